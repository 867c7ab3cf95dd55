"""The pictures of cards and index: a grid's cells, and the forest plot of all comparisons."""

import io
import itertools
import statistics
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiments.evidence import KINDS, baseline_of, dataset_name, kind, with_runs
from ..experiments.run_statistics import row_error
from ..records import Cell, Evidence, PublishedResults
from .wording.amounts import direction, gain, interval_of, label
from .wording.scoring import best_of, has_outliers, outliers


COLOURS = dict(zip(KINDS, ("tab:blue", "tab:cyan", "tab:orange", "tab:red")))
FURTHER = ("tab:green", "tab:purple", "tab:brown", "tab:pink")  # of cells that differ otherwise
JITTER = 0.09  # of a line's height, between neighbouring seeds


def png(figure: Figure) -> bytes:
    """The picture's file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()


def colours_of(evidence: Evidence) -> list[str]:
    """One colour per cell; a kind has the same in every figure."""
    further = itertools.cycle(FURTHER)
    colours = []
    for cell in evidence.cells:
        colour = COLOURS.get(kind(cell, evidence))
        if colour is None:
            colour = next(further)
        colours.append(colour)
    return colours


def draw_seeds(axis: Axes, place: int, values: list[float], centre: float, colour: str) -> None:
    """A dot per seed, none on another, and a bar at their `centre`; a single seed with its number."""
    middle = (len(values) - 1) / 2
    heights = [place + JITTER * (index - middle) for index in range(len(values))]
    axis.plot(values, heights, "o", color=colour, alpha=0.8, markersize=5)
    if len(values) > 1:
        axis.plot([centre, centre], [place - 0.4, place + 0.4], color=colour, linewidth=2)
    if len(values) == 1:
        (value,) = values
        axis.annotate(f"{value:.3f}", (value, place), (0, 7), textcoords="offset points", ha="center", fontsize=9)


def centre_of(cell: Cell, evidence: Evidence) -> float:
    """The mean of a cell's seeds; the median where a run is an outlier, as in the tables."""
    if has_outliers(evidence):
        return statistics.median(cell.values.values())
    return statistics.fmean(cell.values.values())


def draw_row_error(axis: Axes, evidence: Evidence, rows: int) -> str | None:
    """Draws the standard error by the choice of rows below the cells; returns its label, None where unknown.

    It is that of one score, or, of a loss, the largest of the published differences.
    """
    means = [cell.mean for cell in evidence.cells if cell.mean is not None]
    if not means:
        return None
    middle = statistics.fmean(means)
    error = row_error(evidence.metric, middle, rows)
    text = f"± 1 standard error\nby choice of {rows:,} rows"
    paired = [published.error for published in evidence.row_errors or ()]
    if error is None and paired:
        error = max(paired)
        text = f"± 1 standard error\nof a difference, by\nchoice of {rows:,} rows"
    if error is None:
        return None
    place = len(evidence.cells)
    axis.errorbar([middle], [place], xerr=[error], color="grey", capsize=4, linewidth=1.5)
    return text


def draw_bars(axis: Axes, evidence: Evidence, values: list[float | None], title: str, form: str) -> None:
    """One bar per cell with its number."""
    for place, (value, colour) in enumerate(zip(values, colours_of(evidence))):
        if value is not None:
            axis.barh(place, value, height=0.6, color=colour, alpha=0.6)
            axis.text(value, place, f" {value:{form}}", va="center", fontsize=9)
    axis.set_title(title, fontsize=9.5)
    axis.set_xlim(0, 1.35 * max((value for value in values if value is not None), default=1))
    axis.set_xticks([])
    axis.tick_params(left=False)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def parameters_in_millions(cell: Cell) -> float:
    """The length of a cell's bar; zero where its parameters are unknown."""
    if cell.parameters is None:
        return 0.0
    return cell.parameters / 1e6


def evidence_figure(results: PublishedResults) -> bytes:
    """PNG of a grid's cells, a line each: every seed's metric, parameters, and milliseconds where they are known."""
    evidence = with_runs(results.evidence)
    cells = evidence.cells
    timed = any(cell.latency for cell in cells)
    figure = Figure((8.6, 1.8 + 0.55 * len(cells)), layout="constrained")
    widths = [3, 1]
    if timed:
        widths = [3, 1, 1]
    axis, *bars = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    labels = [label(cell, evidence).replace("× ", "×\n") for cell in cells]
    for place, (cell, colour) in enumerate(zip(cells, colours_of(evidence))):
        values = list(cell.values.values())
        if values:
            draw_seeds(axis, place, values, centre_of(cell, evidence), colour)
    row_error_label = draw_row_error(axis, evidence, results.rows)
    if row_error_label is not None:
        labels.append(row_error_label)
    axis.set_yticks(range(len(labels)), labels, fontsize=9)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.08)
    note_guess(axis, evidence)
    draw_bars(bars[0], evidence, [parameters_in_millions(cell) for cell in cells], "parameters, millions", ".2f")
    if timed:
        draw_bars(bars[1], evidence, [cell.milliseconds for cell in cells], "one input, ms", ".1f")
    seeds = len(evidence.seeds)
    dots = "one seed a shape"
    if seeds > 1:
        bar = "mean"
        if has_outliers(evidence):
            bar = "median, because of an outlier"
        dots = f"{seeds} seeds a shape, each a dot; the bar is their {bar}"
    figure.suptitle(f"{dataset_name(results)}: {dots}", fontsize=10.5)
    return png(figure)


def note_guess(axis: Axes, evidence: Evidence) -> None:
    """Labels the axis with metric, direction and best guess; a guess within the picture is also a dotted line."""
    text = f"{evidence.metric}, {direction(evidence)}"
    best = best_of(evidence)
    if best is not None:
        text += f"; best simple guess ({best.name}) {best.value:.3f}"
        low, high = axis.get_xlim()
        if low <= best.value <= high:
            axis.axvline(best.value, color="grey", linestyle=":")
            text += ", dotted"
        else:
            text += ", outside"
    axis.set_xlabel(text, fontsize=9)


@dataclass
class Comparison:
    """One line of the forest plot; differences and interval with plus = better."""

    group: str
    name: str
    metric: str
    difference: float
    interval: list[float] | None
    differences: list[float]  # of each seed
    margin: float | None
    baseline: float
    guess: float | None
    learned: bool | None
    outliers: int = 0  # seeds of this cell with one; if any cell has one, all differences are medians without interval


TITLES = {
    "cifar10": "LeanViT, CIFAR-10, 2 epochs",
    "enwik8-text-causal": "LeanGPT, enwik8, causal",
    "enwik8-text-masked": "LeanBERT, enwik8, masked",
    "sst2": "LeanBERT, SST-2, pretrained",
    "listops-short": "LeanBERT, ListOps, 10-30 tokens",
}
KIND_NAMES = {"more heads": "twice the heads", "fewer layers": "half the layers", "both": "both"}


def comparisons(grids: dict[str, Evidence]) -> list[Comparison]:
    """The lines of the forest plot, from the evidence of each grid by its name."""
    lines = []
    for grid, title in TITLES.items():
        evidence = grids.get(grid)
        if evidence is None:
            continue
        for cell in evidence.cells:
            name = KIND_NAMES.get(kind(cell, evidence))
            if name is not None and cell.difference is not None:
                lines.append(compared(title, name, cell, evidence))
    return lines


def compared(title: str, name: str, cell: Cell, evidence: Evidence) -> Comparison:
    """One cell against the baseline; the median of the seeds where a run is an outlier."""
    base = baseline_of(evidence)
    seeds = [seed for seed in cell.values if seed in base.values]
    differences = [gain(cell.values[seed] - base.values[seed], evidence) for seed in seeds]
    excluded = {*outliers(cell, evidence), *outliers(base, evidence)}
    if has_outliers(evidence):
        difference = statistics.median(differences)
        interval = None
        baseline = statistics.median(base.values.values())
    else:
        difference = gain(cell.difference, evidence)
        interval = interval_of(cell, evidence)
        baseline = base.mean
    guess = None
    best = best_of(evidence)
    if best is not None:
        guess = best.value
    return Comparison(
        group=title,
        name=f"{name}: {cell.layers} × {cell.heads_text}",
        metric=evidence.metric,
        difference=difference,
        interval=interval,
        differences=differences,
        margin=evidence.margin,
        baseline=baseline,
        guess=guess,
        learned=base.learned,
        outliers=len(excluded),
    )


@dataclass
class Theme:
    """Colours of a forest plot, which has no background of its own."""

    text: str
    faint: str
    band: str
    mark: str


THEMES = {  # as of GitHub's
    "light": Theme(text="#1f2328", faint="#59636e", band="#ddf4ff", mark="#0969da"),
    "dark": Theme(text="#e6edf3", faint="#9198a1", band="#12324f", mark="#58a6ff"),
}
WIDTH = 8.6  # inches of 96 pixels: a README's width
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
    with matplotlib.rc_context({"svg.hashsalt": "forest", "svg.fonttype": "path"}):
        figure = Figure((WIDTH, height))
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        space = 0.55 * len(panels) / (0.235 * sum(heights))
        figure.subplots_adjust(left=0.285, right=0.66, top=0.995, bottom=1.05 / height, hspace=space)
        for axis, (title, panel) in zip(axes, panels.items()):
            draw_panel(axis, panel, colours)
            axis.set_xlabel(title, fontsize=8.5, color=colours.text)
        figure.text(0.006, 0.008, FOOTER, fontsize=7.8, color=colours.faint, linespacing=1.4)
        return image_of_page(figure, form)


def image_of_page(figure: Figure, form: str) -> bytes:
    """A figure of the README or the index, without a background, as `png` or `svg`; equal figures give equal bytes."""
    metadata = None
    if form == "svg":
        metadata = {"Date": None}
    content = io.BytesIO()
    figure.savefig(content, format=form, transparent=True, metadata=metadata, dpi=192)
    return content.getvalue()


def limits(panel: list[Comparison]) -> tuple[float, float]:
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
    axis.set_xlim(*limits(panel))
    way = "accuracy, higher is better"
    if panel[0].metric == "loss":
        way = "loss, lower is better"
    write(axis, GROUP, 0, way, colours.faint)
    for column, text in ((NUMBERS, "difference (95 % interval)"), (BASELINE, "8 × 3"), (GUESS, "guess")):
        write(axis, column, 0, text, colours.faint)
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
    write(axis, GROUP, place, f"{first.group}, {len(first.differences)} seeds", colours.text, "bold")
    write(axis, BASELINE, place, f"{first.baseline:.3f}", colours.text)
    guess = "–"
    if first.guess is not None:
        guess = f"{first.guess:.3f}"
    if not first.learned:
        guess += " †"
    write(axis, GUESS, place, guess, colours.text)
    if first.margin is not None:
        middle = place + (len(lines) + 1) / 2
        axis.barh(middle, 2 * first.margin, len(lines) + 0.1, -first.margin, color=colours.band)


def write(axis: Axes, x: float, place: float, text: str, colour: str, weight: str = "normal") -> None:
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
    write(axis, NAME, place, line.name, colours.text)
    write(axis, NUMBERS, place, numbers(line), colours.text)


def signed(value: float) -> str:
    """A number with its sign, to three places, or to four where three would say zero."""
    text = f"{value:+.3f}"
    if float(text) == 0:
        text = f"{value:+.4f}"
    return text.replace("-", "−")


def numbers(line: Comparison) -> str:
    """The difference and its interval; where a run is an outlier, that it is the median, and how many are."""
    if line.interval is not None:
        low, high = line.interval
        return f"{signed(line.difference)} ({signed(low)} to {signed(high)})"
    text = f"{signed(line.difference)} median"
    if line.outliers:
        text += f", outliers: {line.outliers} of {len(line.differences)}"
    return text
