"""A grid's summary in print: tables and notes for people, the document on the last line for programs."""

import json
import sys

from rich.table import Table

from modeling_leaner.terminal import plain_console

from ..records import BudgetSummary, CellSummary, Contrast, Reading
from .curves import COST_KINDS
from .grid import short_name
from .run_statistics import BASELINE
from .summary import Summary


SHOWN = {  # what of a shape is in the table: heading and format
    "learning_rate": ("rate", "g"),
    "n": ("n", "d"),
    "mean": ("mean", ".4f"),
    "sd": ("± sd", ".4f"),
    "median": ("median", ".4f"),
    "failure_rate": ("failed or worse", ".0%"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 % interval", "+.4f"),
    "p": ("p", ".3g"),
    "p_non_inferiority": ("p non-inferior", ".3g"),
    "parameters": ("parameters", ",d"),
    "parameters_over_baseline": ("of base", ".0%"),
    "seconds": ("seconds", ".1f"),
}
WITHOUT_LINES = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False}  # of a table


def _text(value: object, form: str) -> str:
    """A number, or the numbers of a list, by a format; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(format(number, form) for number in value)
    return format(value, form)


def contrast_line(contrast: Contrast) -> str:
    """One contrast in words."""
    line = (
        f"{contrast.shape} − {contrast.minus}: {_text(contrast.difference, '+.4f')}, "
        f"95 % interval {_text(contrast.interval, '+.4f')}, {_text(contrast.pairs, 'd')} pairs, "
        f"p {_text(contrast.p, '.3g')}, corrected {_text(contrast.p_corrected, '.3g')}"
    )
    if contrast.row_error is not None:
        line += f"; standard error by the choice of rows at most {contrast.row_error:.4f}"
    return line


def reading_table(contrast: Contrast, readings: list[Reading]) -> Table:
    """A pair's difference at the cost of each branch, a column for each thing that is equal."""
    pair = (contrast.shape, contrast.minus)
    of_pair = [reading for reading in readings if (reading.shape, reading.minus) == pair]
    caption = "difference with its 95 % interval, ± error of the interpolation"
    table = Table(title=" − ".join(pair), caption=caption, **WITHOUT_LINES)
    table.add_column("tokens", justify="right")
    for cost_kind in COST_KINDS:
        table.add_column(f"equal {cost_kind}", justify="right")
    for branch in dict.fromkeys(reading.branch for reading in of_pair):
        at_branch = {reading.equal: reading for reading in of_pair if reading.branch == branch}
        table.add_row(f"{branch:,}", *(_reading_text(at_branch[cost_kind]) for cost_kind in COST_KINDS))
    return table


def _reading_text(reading: Reading) -> str:
    """One difference in a cell of a table."""
    if reading.difference is None:
        return "–"
    text = f"{reading.difference:+.4f} ({_text(reading.interval, '+.4f')})"
    if reading.interpolation_error is None:
        return f"{text} ± unknown"
    if reading.interpolation_error > 0:
        text += f" ± {reading.interpolation_error:.4f}"
    return text


def choice_line(cell: CellSummary) -> str:
    """How clear a cell's best learning rate is."""
    line = f"{cell.shape}: learning rate {cell.learning_rate:g} leads by {cell.tuning_lead:.4f}"
    if cell.tuning_spread is None:
        return f"{line}, one tuning seed"
    return f"{line}, the tuning seeds differ by {cell.tuning_spread:.4f}"


def budgets_table(summaries: list[BudgetSummary]) -> Table:
    """Mean ± sd of each shape at each budget."""
    table = Table(caption="mean ± sd by tokens", **WITHOUT_LINES)
    table.add_column("shape")
    for summary in summaries:
        table.add_column(f"{summary.branch:,}", justify="right")
    for cells in zip(*(summary.shapes for summary in summaries)):
        values = [f"{_text(cell.mean, '.4f')} ± {_text(cell.sd, '.4f')}" for cell in cells]
        table.add_row(cells[0].shape, *values)
    return table


def _metric_text(metric: str | None, higher_is_better: bool | None) -> str:
    """A metric in words, with the direction where it is known."""
    if metric is None:
        metric = "no metric yet"
    if higher_is_better is None:
        return metric
    if higher_is_better:
        return f"{metric}, higher is better"
    return f"{metric}, lower is better"


def verdict_of(cell: CellSummary) -> str:
    """A cell's verdict; that of a baseline says where it has not learned, which is why the others have none."""
    if cell.verdict == BASELINE and cell.learned is False:
        return f"{BASELINE}, not learned"
    return cell.verdict


def shape_table(summary: Summary) -> Table:
    """What SHOWN says of each shape, and the verdict."""
    metric = _metric_text(summary.metric, summary.higher_is_better)
    caption = (
        f"{metric}; failed or worse: runs that failed, or are worse than the best simple guess; "
        f"difference from {short_name(summary.grid, summary.grid.baseline)} over the same seeds"
    )
    table = Table(caption=caption, **WITHOUT_LINES)
    table.add_column("shape")
    for heading, _ in SHOWN.values():
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for cell in summary.shapes:
        values = [_text(getattr(cell, name), form) for name, (_, form) in SHOWN.items()]
        table.add_row(short_name(summary.grid, cell.shape), *values, verdict_of(cell))
    return table


def show(summary: Summary) -> None:
    """Prints a summary: a table and notes for people, the document on the last line for programs."""
    width = 160
    if sys.stdout.isatty():
        width = None  # the terminal's own
    console = plain_console(width=width)
    console.print(shape_table(summary))
    for cell in summary.shapes:
        if cell.tuning_lead is not None:
            console.print(choice_line(cell), soft_wrap=True)
        for note in cell.notes:
            console.print(f"{cell.shape}: {note}", soft_wrap=True)
    if summary.curves:
        console.print(budgets_table(summary.curves))
    if summary.readings:
        for contrast in summary.contrasts:
            console.print(reading_table(contrast, summary.readings))
    for contrast in summary.contrasts:
        console.print(contrast_line(contrast), soft_wrap=True)
    if summary.grid.unsound_tuning:
        console.print(f"the tuning is unsound: {summary.grid.unsound_tuning}", soft_wrap=True)
    if summary.failed:
        console.print(f"failed runs: {len(summary.failed)}, see results.csv; the same command tries them again")
    print(json.dumps(summary.document(), allow_nan=False), flush=True)
