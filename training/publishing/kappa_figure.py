"""kappa-light.svg and kappa-dark.svg of the index: κ against quality, within cells and between them."""

import math
import statistics
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiments.kappa import ENDS, MIN_RUNS, Correlation, KappaCell, conclude, mean_of
from .theme import THEMES, WIDTH, Theme, image_of_page


COLOURS = {
    "image-classification": "tab:green",
    "causal-lm": "tab:orange",
    "masked-lm": "tab:purple",
    "sequence-classification": "tab:blue",
}
OTHER = "tab:grey"
TITLES = {"start": "before training", "end": "after training"}
Dots = list[tuple[float, float]]


def relative(pairs: Sequence[tuple[float, float]]) -> Dots:
    """log10 κ less its mean, and quality less its mean over its standard deviation; nothing where that is 0."""
    spread = statistics.stdev(gain for _, gain in pairs)
    if spread == 0:
        return []
    logs = [math.log10(kappa) for kappa, _ in pairs]
    gains = [gain for _, gain in pairs]
    return [
        (log - statistics.fmean(logs), (gain - statistics.fmean(gains)) / spread) for log, gain in zip(logs, gains)
    ]


def within(cells: Sequence[KappaCell], end: str) -> Iterator[tuple[str, Dots]]:
    """Of each cell that is ranked: its task, and its runs as dots."""
    for cell in cells:
        known = cell.known(end)
        if len(known) >= MIN_RUNS and len({trial.kappa(end) for trial in known}) > 1:
            yield cell.task, relative([(trial.kappa(end), trial.gain) for trial in known])


def between(cells: Sequence[KappaCell], end: str) -> Iterator[tuple[str, Dots]]:
    """Of each grid that is ranked: its task, and its cells as dots."""
    for grid in dict.fromkeys(cell.grid for cell in cells):
        members = [cell for cell in cells if cell.grid == grid and cell.known(end)]
        if len(members) >= MIN_RUNS:
            yield members[0].task, relative([mean_of(cell.known(end), end) for cell in members])


def titled(what: str, end: str, correlation: Correlation) -> str:
    """A panel's title with the correlation."""
    text = f"{what}, κ {TITLES[end]}"
    if correlation.value is None:
        return text
    text += f"\nSpearman {correlation.value:+.2f}"
    if correlation.interval is not None:
        low, high = correlation.interval
        text += f" ({low:+.2f} to {high:+.2f})"
    return text


def draw(axis: Axes, groups: Iterator[tuple[str, Dots]], theme: Theme) -> None:
    """The dots of one panel, a colour per task."""
    for task, dots in groups:
        places = [place for place, _ in dots]
        axis.plot(places, [gain for _, gain in dots], ".", color=COLOURS.get(task, OTHER), alpha=0.75, markersize=7)
    axis.axhline(0, color=theme.faint, linewidth=0.8)
    axis.axvline(0, color=theme.faint, linewidth=0.8)
    axis.tick_params(colors=theme.text, labelsize=8)
    for spine in axis.spines.values():
        spine.set_color(theme.faint)


def kappa_figure(cells: Sequence[KappaCell], theme: str, form: str = "svg") -> bytes:
    """Four panels, within and between cells, κ before and after training; transparent.

    Grids that have not ended are left out.
    """
    colours = THEMES[theme]
    conclusion = conclude(cells)
    ended = [cell for cell in cells if cell.ended]
    rows = (("Runs of a cell", within, conclusion.within), ("Cells of a grid", between, conclusion.between))
    figure = Figure((WIDTH, 6.6))
    figure.subplots_adjust(left=0.085, right=0.985, top=0.93, bottom=0.14, hspace=0.45, wspace=0.18)
    for line, (what, groups, correlations) in zip(figure.subplots(2, 2), rows):
        for axis, end in zip(line, ENDS):
            draw(axis, groups(ended, end), colours)
            axis.set_title(titled(what, end, correlations[end]), fontsize=8.5, color=colours.text)
            axis.set_xlabel("log10 κ, less the mean of its group", fontsize=8, color=colours.text)
        line[0].set_ylabel("quality, sd from the mean", fontsize=8, color=colours.text)
    for place, task in enumerate(dict.fromkeys(cell.task for cell in ended)):
        figure.text(0.09 + 0.22 * place, 0.04, f"● {task}", fontsize=8, color=COLOURS.get(task, OTHER))
    footer = "Above 0 is better. Groups: cells (above), grids (below). Intervals: 95 %, bootstrap."
    figure.text(0.09, 0.012, footer, fontsize=7.8, color=colours.faint)
    return image_of_page(figure, "kappa", form)
