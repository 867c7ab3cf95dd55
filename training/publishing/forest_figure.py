"""The forest plot of the index: the differences of shapes from their baselines, with their intervals."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .differences import Comparison
from .theme import THEMES, WIDTH, Theme, image_of_page


# Columns, in shares of a panel's width:
GROUP = -0.747
NAME = -0.70
NUMBERS = 1.03
BASELINE = 1.56
GUESS = 1.73
FOOTER = (
    "Bar: 95 % interval over seeds, paired by seed, not corrected for the number of comparisons. Small dots: the "
    "seeds (arrow:\noutside). Diamond: median, because of an outlier. Shaded: the margin fixed before the first run. "
    "8 × 3: the baseline's own\n"
    "score. Guess: the best simple guess that reads the input. †: the baseline is not clearly better than the guess."
)


def forest(lines: list[Comparison], theme: str, form: str = "svg") -> bytes:
    """The forest plot: shares above, losses below, each on its own scale; transparent."""
    colours = THEMES[theme]
    panels = {
        "difference in accuracy from 8 layers × 3 heads (plus = better)": [
            line for line in lines if line.metric != "loss"
        ],
        "difference in loss, nats a token, sign turned (plus = better)": [
            line for line in lines if line.metric == "loss"
        ],
    }
    panels = {title: panel for title, panel in panels.items() if panel}
    heights = [len(panel) + len({line.group for line in panel}) + 1 for panel in panels.values()]
    height = 0.235 * sum(heights) + 0.55 * len(panels) + 0.6
    figure = Figure((WIDTH, height))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    space = 0.55 * len(panels) / (0.235 * sum(heights))
    figure.subplots_adjust(left=0.285, right=0.66, top=0.995, bottom=1.05 / height, hspace=space)
    for axis, (title, panel) in zip(axes, panels.items()):
        draw_panel(axis, panel, colours)
        axis.set_xlabel(title, fontsize=8.5, color=colours.text)
    figure.text(0.006, 0.008, FOOTER, fontsize=7.8, color=colours.faint, linespacing=1.4)
    return image_of_page(figure, "forest", form)


def axis_limits(panel: list[Comparison]) -> tuple[float, float]:
    """The ends of a panel's axis, which holds all intervals, and the seeds of comparisons without an outlier."""
    shown = [0.0]
    for line in panel:
        if line.interval is None:
            shown.append(line.difference)
        else:
            shown.extend(line.interval)
        if not line.outliers:
            shown.extend(line.differences)
        if line.margin is not None:
            shown.extend((-line.margin, line.margin))
    low = min(shown)
    high = max(shown)
    room = 0.06 * (high - low)
    return low - room, high + room


def draw_panel(axis: Axes, panel: list[Comparison], colours: Theme) -> None:
    """The lines of one metric, a heading per group, and the columns of numbers on the right."""
    axis.set_xlim(*axis_limits(panel))
    way = "accuracy, higher is better"
    if panel[0].metric == "loss":
        way = "loss, lower is better"
    write_text(axis, GROUP, 0, way, colours.faint)
    for column, text in ((NUMBERS, "difference (95 % interval)"), (BASELINE, "8 × 3"), (GUESS, "guess")):
        write_text(axis, column, 0, text, colours.faint)
    place = 0
    for group in dict.fromkeys(line.group for line in panel):
        lines = [line for line in panel if line.group == group]
        place += 1
        draw_heading(axis, place, lines, colours)
        for line in lines:
            place += 1
            draw_line(axis, place, line, colours)
    axis.axvline(0, color=colours.faint, linewidth=1)
    axis.set_ylim(place + 0.7, -0.5)
    axis.set_yticks([])
    axis.tick_params(colors=colours.text, labelsize=8)
    for side in ("top", "left", "right"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(colours.faint)


def draw_heading(axis: Axes, place: int, lines: list[Comparison], colours: Theme) -> None:
    """A group's name with its absolute numbers, and the band of its margin behind its lines."""
    first = lines[0]
    write_text(axis, GROUP, place, f"{first.group}, {len(first.differences)} seeds", colours.text, "bold")
    write_text(axis, BASELINE, place, f"{first.baseline:.3f}", colours.text)
    guess = "–"
    if first.guess is not None:
        guess = f"{first.guess:.3f}"
    if first.learned is False:
        guess += " †"
    write_text(axis, GUESS, place, guess, colours.text)
    if first.margin is not None:
        middle = place + (len(lines) + 1) / 2
        axis.barh(middle, 2 * first.margin, len(lines) + 0.1, -first.margin, color=colours.band)


def write_text(axis: Axes, x: float, place: float, text: str, colour: str, weight: str = "normal") -> None:
    """Text at a share of the panel's width, on the line `place`."""
    options = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 8.5, "color": colour}
    axis.text(x, place, text, fontweight=weight, **options)


def draw_line(axis: Axes, place: float, line: Comparison, colours: Theme) -> None:
    """Seeds as small dots, the interval as a bar, the mean (or the median, beside an outlier) as a large mark."""
    low, high = axis.get_xlim()
    inside = [value for value in line.differences if low <= value <= high]
    axis.plot(inside, [place + 0.24] * len(inside), ".", color=colours.faint, markersize=4)
    if min(line.differences) < low:
        axis.plot([low], [place + 0.24], "<", color=colours.faint, markersize=4, clip_on=False)
    if max(line.differences) > high:
        axis.plot([high], [place + 0.24], ">", color=colours.faint, markersize=4, clip_on=False)
    mark = "D"
    if line.interval is not None:
        mark = "o"
        axis.plot(line.interval, [place, place], color=colours.mark, linewidth=2.2, solid_capstyle="butt")
    axis.plot([line.difference], [place], mark, color=colours.mark, markersize=5.5)
    write_text(axis, NAME, place, line.name, colours.text)
    write_text(axis, NUMBERS, place, difference_text(line), colours.text)


def signed(value: float) -> str:
    """A number with its sign, to three places, or to four where three would say zero."""
    text = f"{value:+.3f}"
    if float(text) == 0:
        text = f"{value:+.4f}"
    return text.replace("-", "−")


def difference_text(line: Comparison) -> str:
    """The difference and its interval; where a run is an outlier, that it is the median, and how many are."""
    if line.interval is not None:
        low, high = line.interval
        return f"{signed(line.difference)} ({signed(low)} to {signed(high)})"
    text = f"{signed(line.difference)} median"
    if line.outliers:
        text += f", outliers: {line.outliers} of {len(line.differences)}"
    return text
