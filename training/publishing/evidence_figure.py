"""The picture of a card: every cell of its grid, with each seed's metric, its parameters and its time."""

import itertools
import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiments.evidence import KINDS, dataset_name, kind, with_runs
from ..experiments.run_statistics import row_error
from ..records import Cell, Evidence, PublishedResults
from .theme import png
from .wording.amounts import direction, label
from .wording.scoring import best_of, has_outliers


COLOURS = dict(zip(KINDS, ("tab:blue", "tab:cyan", "tab:orange", "tab:red")))
FURTHER = ("tab:green", "tab:purple", "tab:brown", "tab:pink")  # of cells that differ otherwise
JITTER = 0.09  # of a line's height, between neighbouring seeds


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
    sizes = [millions_of(cell) for cell in cells]
    draw_bars(bars[0], evidence, sizes, "parameters, millions", ".2f")
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
    """One bar per cell with its number, by `form`; of one that would be all zeros, two digits."""
    for place, (value, colour) in enumerate(zip(values, colours_of(evidence))):
        if value is not None:
            axis.barh(place, value, height=0.6, color=colour, alpha=0.6)
            text = f"{value:{form}}"
            if value > 0 and float(text) == 0:
                text = f"{value:.2g}"
            axis.text(value, place, f" {text}", va="center", fontsize=9)
    axis.set_title(title, fontsize=9.5)
    axis.set_xlim(0, 1.35 * max((value for value in values if value is not None), default=1))
    axis.set_xticks([])
    axis.tick_params(left=False)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def millions_of(cell: Cell) -> float | None:
    """A cell's parameters in millions; None where they are unknown."""
    if cell.parameters is None:
        return None
    return cell.parameters / 1e6


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
