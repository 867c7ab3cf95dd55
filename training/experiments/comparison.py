"""What a grid's rows say: means, the paired comparison with the baseline, whether it learned, and the verdict."""

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from .curves import WAYS, read_pair
from .grid import Grid
from .guesses import best_guess, guess_values
from .runs import Row, Run, Tuning, reported, tune


# Of "no loss of quality", which model_cards/README.md decides over all grids:
MIN_PAIRS = 7
MAX_P = 0.01
NOT_LEARNED = "not learned"
NON_INFERIOR = "non-inferior before correction"


def _gain(difference: float, higher_is_better: bool | None) -> float:
    """A difference as a gain, positive where it is for the better."""
    if higher_is_better:
        return difference
    return -difference


def paired_statistics(
    values: Sequence[float], baseline: Sequence[float], margin: float | None = None, higher_is_better: bool = True
) -> dict[str, object]:
    """Paired t statistics of values − baseline, pair by pair, in the metric's units.

    Returns:
        pairs; difference, the mean; interval, its 95 % t interval; p, two-sided, of no difference; p_non_inferiority,
        one-sided, of a loss of at least `margin`. None where there are too few pairs, or no margin. Where all
        differences are the same, the limits for a vanishing spread: p is 0 or 1.
    """
    differences = [value - base for value, base in zip(values, baseline, strict=True)]
    result = {"pairs": len(differences), "difference": None, "interval": None, "p": None, "p_non_inferiority": None}
    if not differences:
        return result
    mean = statistics.fmean(differences)
    result["difference"] = mean
    if len(differences) == 1:
        return result
    from scipy.stats import t  # takes seconds to import

    freedom = len(differences) - 1
    rounding = 1e-12 * max(map(abs, (*values, *baseline)))
    spread = statistics.stdev(differences)
    error = 0.0
    if spread > rounding:
        error = spread / math.sqrt(len(differences))

    def tail(excess: float) -> float:
        """One-sided p of a mean difference that lies by `excess` above what the hypothesis says."""
        if error == 0:
            return float(excess <= rounding)
        return float(t.sf(excess / error, freedom))

    half = float(t.ppf(0.975, freedom)) * error
    result["interval"] = [mean - half, mean + half]
    result["p"] = min(1.0, 2 * tail(abs(mean)))
    if margin is not None:
        result["p_non_inferiority"] = tail(_gain(mean, higher_is_better) + margin)
    return result


def holm(values: dict[str, float]) -> dict[str, float]:
    """p values corrected for their number by Holm's step-down method (1979): none below its predecessor, 1 at most."""
    adjusted = {}
    highest = 0.0
    for place, name in enumerate(sorted(values, key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[name]))
        adjusted[name] = highest
    return adjusted


def row_error(metric: str, value: float, rows: int) -> float | None:
    """Standard error of a metric by the choice of so many rows; None where it has no simple formula.

    It is binomial for accuracy, and for F1 as if that were an accuracy. For a correlation r, Matthews' included, it is
    (1 − r²)/√(rows − 1), the usual form for many rows.
    """
    if metric in ("accuracy", "f1"):
        share = min(max(value, 0.0), 1.0)
        return math.sqrt(share * (1 - share) / rows)
    if metric in ("matthews_correlation", "pearson", "spearman"):
        return (1 - value**2) / math.sqrt(max(rows - 1, 1))
    return None


def _row_error_of(rows: Sequence[Row]) -> float | None:
    """`row_error` of the mean of some runs, which were evaluated on the same rows."""
    first = rows[0]
    if not first["rows"]:
        return None
    return row_error(first["metric"], _mean(row["value"] for row in rows), first["rows"])


def _standard_errors(rows: Sequence[Row]) -> list[float]:
    """The standard errors that are known of the mean of some runs: over the seeds, and by the choice of rows."""
    errors = []
    if len(rows) > 1:
        errors.append(statistics.stdev(row["value"] for row in rows) / math.sqrt(len(rows)))
    by_rows = _row_error_of(rows)
    if by_rows is not None:
        errors.append(by_rows)
    return errors


def learned(rows: Iterable[Row], guess: float | None = None) -> bool | None:
    """Whether finished runs of one cell are better than guessing by three standard errors; None where that is unknown.

    The runs have to beat the better of `guess`, the best of the guesses that read the input, and the rows' `chance`,
    that of a guess that reads nothing. The standard error is the larger one of that over the seeds and that by the
    choice of rows (`row_error`). A single run of a metric without a `row_error` has neither: the answer is False if it
    is no better than the guess, else None.
    """
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return None
    up = known[0]["higher_is_better"]
    to_beat = best_guess([guess, *(row["chance"] for row in known)], bool(up))
    if to_beat is None:
        return None
    advantage = _gain(statistics.fmean(row["value"] for row in known) - to_beat, up)
    errors = _standard_errors(known)
    if errors:
        return advantage > 3 * max(errors)
    if advantage > 0:
        return None
    return False


def verdict(result: dict[str, object], margin: float | None, seeds: int, baseline_learned: bool | None) -> str:
    """What paired statistics prove: that the baseline has not learned, non-inferiority, or nothing.

    Nothing is proven while a seed is missing or has failed, since its loss is unknown, nor where it is unknown whether
    the baseline has learned.
    """
    if baseline_learned is False:
        return NOT_LEARNED
    if baseline_learned is None or margin is None:
        return "undecided"
    complete = result["pairs"] >= MIN_PAIRS and result["pairs"] == seeds
    if complete and result["p_non_inferiority"] < MAX_P:
        return f"{NON_INFERIOR} (margin {margin:g})"
    return "undecided"


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.fmean(known)


def _mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean; None where one of the values is None: it was infinite, or not measured."""
    values = list(values)
    if None in values:
        return None
    return _mean(values)


def _deviation(values: Sequence[float]) -> float | None:
    """The standard deviation; None of fewer than two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values)


def _median(values: Sequence[float]) -> float | None:
    """The median; None of no values."""
    if not values:
        return None
    return statistics.median(values)


def _ratio(size: int | None, base: int | None) -> float | None:
    """size / base; None where one of them is unknown."""
    if not size or not base:
        return None
    return size / base


def failure_rate(grid: Grid, finished: list[Row], failed: int) -> float | None:
    """The share of runs that failed, or that end worse than the best simple guess; None where no guess is known.

    The guess is the best one of GUESSES beside the rows; without that file it is each row's own `chance`.
    """
    count = len(finished) + failed
    if count == 0 or any(row["chance"] is None for row in finished):
        return None
    simple = guess_values(grid)

    def is_worse(row: Row) -> bool:
        to_beat = best_guess(simple, row["higher_is_better"])
        if to_beat is None:
            to_beat = row["chance"]
        if row["higher_is_better"]:
            return row["value"] < to_beat
        return row["value"] > to_beat

    return (failed + sum(map(is_worse, finished))) / count


def _shared(own: dict[int, Row], others: dict[int, Row]) -> list[tuple[Row, Row]]:
    """The rows of two cells, seed by seed, of the seeds that both finished."""
    return [(row, others[seed]) for seed, row in own.items() if seed in others]


def paired(grid: Grid, own: dict[int, Row], others: dict[int, Row], up: bool | None) -> dict[str, object]:
    """`paired_statistics` of two cells over the seeds that both finished."""
    pairs = _shared(own, others)
    values = [row["value"] for row, _ in pairs]
    other_values = [other["value"] for _, other in pairs]
    return paired_statistics(values, other_values, grid.margin, up)


def _row_error_of_difference(pairs: Sequence[tuple[Row, Row]]) -> float | None:
    """`row_error` of the mean difference of pairs, as if either side were right independently of the other."""
    if not pairs:
        return None
    errors = [_row_error_of(side) for side in zip(*pairs)]
    if None in errors:
        return None
    return math.hypot(*errors)


def contrasts(grid: Grid, finished: dict[str, dict[int, Row]], up: bool | None) -> list[dict[str, object]]:
    """The grid's `contrasts`: paired statistics of the first shape minus the second, p corrected by Holm over them.

    row_error is the standard error of the difference by the choice of evaluation rows, which more seeds do not lower.
    It is an upper limit, as if the two were right independently of each other; models are right on the same rows more
    often than that. None of a metric without a simple formula for it, such as a loss.
    """
    if grid.contrasts is None:
        return []
    compared = []
    for shape, other in grid.contrasts:
        contrast = {"shape": shape, "minus": other, **paired(grid, finished[shape], finished[other], up)}
        contrast["row_error"] = _row_error_of_difference(_shared(finished[shape], finished[other]))
        contrast["p_corrected"] = None
        compared.append(contrast)
    corrected = holm({place: contrast["p"] for place, contrast in enumerate(compared) if contrast["p"] is not None})
    for place, p in corrected.items():
        compared[place]["p_corrected"] = p
    return compared


def _notes(tuning: Tuning, shape: str, failed: list[int]) -> list[str]:
    """What a reader of a cell has to know."""
    choice = tuning.choices[shape]
    notes = {
        "the best learning rate is at the edge of the grid": shape in tuning.at_edge,
        "the tuning is not finished": bool(tuning.due),
        "no learning rate finished": choice.learning_rate is None and not tuning.due,
        f"failed seeds: {', '.join(map(str, failed))}": bool(failed),
        "tie: the best learning rate leads by no more than the tuning seeds differ": choice.tie,
    }
    return [note for note, holds in notes.items() if holds]


class Cells(NamedTuple):
    """The runs of one budget: finished rows by shape and seed, and the seeds that failed."""

    finished: dict[str, dict[int, Row]]
    failed: dict[str, list[int]]

    def rows(self) -> list[Row]:
        """All finished rows, shape by shape."""
        return [row for finished in self.finished.values() for row in finished.values()]


def _row_of(rows: dict[Run, Row], run: Run) -> Row:
    """The row of a run; without one that of its trunk; empty without either."""
    for ended in (run, run.trunk):
        if ended in rows:
            return rows[ended]
    return {}


def cells_of(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None], branch: int | None = None) -> Cells:
    """The reported runs at the best rates; of a grid with branches those of `branch` tokens, else of the longest one.

    A branch that could not begin, since its trunk had failed before, has failed.
    """
    cells = Cells({}, {})
    for shape in grid.shapes:
        runs = {seed: reported(grid, shape, seed, best[shape], branch) for seed in grid.seeds_for(shape)}
        ended = {seed: _row_of(rows, run) for seed, run in runs.items()}
        done = {seed: row for seed, row in ended.items() if row.get("status") == "finished"}
        cells.finished[shape] = {seed: row for seed, row in done.items() if row["phase"] == "report"}
        cells.failed[shape] = [seed for seed, row in ended.items() if row.get("status") == "failed"]
    return cells


def metric_of(grid: Grid, rows: Iterable[Row]) -> tuple[str | None, bool | None]:
    """The metric of finished rows, and whether more of it is better; without rows the grid's own metric, and None."""
    first = next(iter(rows), None)
    if first is None:
        return grid.metric, None
    return first["metric"], bool(first["higher_is_better"])


def _against_baseline(
    grid: Grid, shape: str, finished: dict[str, dict[int, Row]], up: bool | None
) -> dict[str, object]:
    """`paired` of a shape with the baseline; the baseline itself has the same fields, all None."""
    result = paired(grid, finished[shape], finished[grid.baseline], up)
    if shape == grid.baseline:
        return dict.fromkeys(result)
    return result


def _first(rows: Iterable[Row], name: str) -> object:
    """A column of the first row; None without rows."""
    return next((row[name] for row in rows), None)


def _branch_cell(grid: Grid, shape: str, cells: Cells, up: bool | None) -> dict[str, object]:
    """What `curves` says of one shape at one branch."""
    rows = cells.finished[shape].values()
    values = [row["value"] for row in rows]
    return {
        "shape": shape,
        "n": len(values),
        "mean": _mean(values),
        "values": {str(seed): row["value"] for seed, row in cells.finished[shape].items()},
        "sd": _deviation(values),
        "failed": cells.failed[shape],
        "tokens": _first(rows, "tokens"),
        "training_flops": _first(rows, "training_flops"),
        "tokens_per_parameter": _mean(row["tokens_per_parameter"] for row in rows),
        "seconds": _mean(row["seconds"] for row in rows),
        **_against_baseline(grid, shape, cells.finished, up),
    }


def curves(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None]) -> list[dict[str, object]]:
    """Of each branch, the shortest first: every shape's values, costs and difference from the baseline, and contrasts.

    The contrasts are corrected for their number within each branch. Those that count are the summary's own, of the
    longest branch.
    """
    if grid.branches is None:
        return []
    branches = []
    for tokens in grid.branches:
        cells = cells_of(grid, rows, best, tokens)
        _, up = metric_of(grid, cells.rows())
        shapes = [_branch_cell(grid, shape, cells, up) for shape in cells.finished]
        branches.append({"branch": tokens, "shapes": shapes, "contrasts": contrasts(grid, cells.finished, up)})
    return branches


def readings(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None], up: bool | None) -> list[dict]:
    """The grid's contrasts at equal tokens, FLOPs and seconds, at the cost of each branch of the first shape.

    interpolation_error is the largest of the second shape's readings; None where they have none (`curves.read_at`).
    """
    if grid.contrasts is None or grid.branches is None:
        return []
    all_readings = []
    for shape, other in grid.contrasts:
        for way in WAYS:
            for branch, (own, others, error) in read_pair(grid, rows, best, (shape, other), way).items():
                reading = {"shape": shape, "minus": other, "equal": way, "branch": branch}
                reading |= paired_statistics(own, others, grid.margin, up)
                reading["interpolation_error"] = error
                all_readings.append(reading)
    return all_readings


def _cell(grid: Grid, shape: str, cells: Cells, tuning: Tuning, up: bool | None) -> dict[str, object]:
    """What `summarise` says of one shape."""
    choice = tuning.choices[shape]
    rows = list(cells.finished[shape].values())
    base = list(cells.finished[grid.baseline].values())
    values = [row["value"] for row in rows]
    size = _first(rows, "parameters")
    guess = best_guess(guess_values(grid), bool(up))
    result = _against_baseline(grid, shape, cells.finished, up)
    conclusion = "baseline"
    if shape != grid.baseline:
        conclusion = verdict(result, grid.margin, len(grid.seeds_for(shape)), learned(base, guess))
    return {
        "shape": shape,
        "learning_rate": choice.learning_rate,
        "tuning_lead": choice.lead,
        "tuning_spread": choice.spread,
        "n": len(values),
        "mean": _mean(values),
        "sd": _deviation(values),
        "median": _median(values),
        "failure_rate": failure_rate(grid, rows, len(cells.failed[shape])),
        **result,
        "parameters": size,
        "parameters_over_baseline": _ratio(size, _first(base, "parameters")),
        "seconds": _mean(row["seconds"] for row in rows),
        "kappa_start": _mean_of_all(row["kappa_start"] for row in rows),
        "kappa_end": _mean_of_all(row["kappa_end"] for row in rows),
        "chance": _mean(row["chance"] for row in rows),
        "learned": learned(rows, guess),
        "verdict": conclusion,
        "notes": _notes(tuning, shape, cells.failed[shape]),
    }


def summarise(grid: Grid, rows: dict[Run, Row]) -> dict[str, object]:
    """The sweep as one JSON document; runs may be missing.

    Of each shape: mean, sd and median over the finished seeds, `paired_statistics` over those that the baseline
    finished too, `failure_rate`; of the grid its `contrasts`. With branches all of that is of the longest, and
    `curves` has every one.
    """
    tuning = tune(grid, rows)
    cells = cells_of(grid, rows, tuning.best)
    metric, up = metric_of(grid, cells.rows())
    summary = asdict(grid)
    summary["metric"] = metric
    summary["higher_is_better"] = up
    summary["learning_rates"] = tuning.learning_rates
    summary["contrasts"] = contrasts(grid, cells.finished, up)
    summary["curves"] = curves(grid, rows, tuning.best)
    summary["readings"] = readings(grid, rows, tuning.best, up)
    summary["shapes"] = [_cell(grid, shape, cells, tuning, up) for shape in grid.shapes]
    failed = {run: row for run, row in rows.items() if row["status"] == "failed"}
    summary["failed"] = [{**run._asdict(), "error": row["error"]} for run, row in failed.items()]
    return summary


SHOWN = {  # what of a shape is in the table: heading and format
    "learning_rate": ("rate", "g"),
    "n": ("n", "d"),
    "mean": ("mean", ".4f"),
    "sd": ("± sd", ".4f"),
    "median": ("median", ".4f"),
    "failure_rate": ("failed", ".0%"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 % interval", "+.4f"),
    "p": ("p", ".3g"),
    "p_non_inferiority": ("p non-inferior", ".3g"),
    "parameters": ("parameters", ",d"),
    "parameters_over_baseline": ("of base", ".0%"),
    "seconds": ("seconds", ".1f"),
}


def _text(value: object, form: str) -> str:
    """A number, or the numbers of a list, by a format; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(format(number, form) for number in value)
    return format(value, form)


def contrast_line(contrast: dict[str, object]) -> str:
    """One contrast in words."""
    parts = {"difference": "+.4f", "interval": "+.4f", "pairs": "d", "p": ".3g", "p_corrected": ".3g"}
    text = {name: _text(contrast[name], form) for name, form in parts.items()}
    line = f"{contrast['shape']} − {contrast['minus']}: {text['difference']}, 95 % interval {text['interval']}, "
    line += f"{text['pairs']} pairs, p {text['p']}, corrected {text['p_corrected']}"
    if contrast["row_error"] is not None:
        line += f"; standard error by the choice of rows at most {contrast['row_error']:.4f}"
    return line


def reading_table(contrast: dict[str, object], readings: list[dict[str, object]]) -> Table:
    """A pair's difference at the cost of each branch, a column for each thing that is equal."""
    pair = [contrast["shape"], contrast["minus"]]
    own = [reading for reading in readings if [reading["shape"], reading["minus"]] == pair]
    caption = "difference with its 95 % interval, ± error of the interpolation"
    table = Table(title=" − ".join(pair), caption=caption, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("tokens", justify="right")
    for way in WAYS:
        table.add_column(f"equal {way}", justify="right")
    for branch in dict.fromkeys(reading["branch"] for reading in own):
        at_branch = [reading for reading in own if reading["branch"] == branch]
        table.add_row(f"{branch:,}", *map(_reading, at_branch))
    return table


def _reading(reading: dict[str, object]) -> str:
    """One difference of `readings` in a cell of a table."""
    if reading["difference"] is None:
        return "–"
    text = f"{reading['difference']:+.4f} ({_text(reading['interval'], '+.4f')})"
    if reading["interpolation_error"]:
        text += f" ± {reading['interpolation_error']:.4f}"
    return text


def choice_line(cell: dict[str, object]) -> str:
    """How clear a cell's best learning rate is."""
    line = f"{cell['shape']}: learning rate {cell['learning_rate']:g} leads by {cell['tuning_lead']:.4f}"
    if cell["tuning_spread"] is None:
        return f"{line}, one tuning seed"
    return f"{line}, the tuning seeds differ by {cell['tuning_spread']:.4f}"


def curve_table(curves: list[dict[str, object]]) -> Table:
    """Mean ± sd of each shape at each budget."""
    table = Table(caption="mean ± sd by tokens", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("shape")
    for curve in curves:
        table.add_column(f"{curve['branch']:,}", justify="right")
    for cells in zip(*(curve["shapes"] for curve in curves)):
        values = [f"{_text(cell['mean'], '.4f')} ± {_text(cell['sd'], '.4f')}" for cell in cells]
        table.add_row(cells[0]["shape"], *values)
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


def shape_table(summary: dict[str, object]) -> Table:
    """What SHOWN says of each shape, and the verdict."""
    metric = _metric_text(summary["metric"], summary["higher_is_better"])
    caption = f"{metric}; difference from {summary['baseline']} over the same seeds"
    table = Table(caption=caption, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("shape")
    for heading, _ in SHOWN.values():
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in summary["shapes"]:
        cells = [_text(row[name], form) for name, (_, form) in SHOWN.items()]
        table.add_row(row["shape"], *cells, row["verdict"])
    return table


def show(summary: dict[str, object]) -> None:
    """Prints a summary: a table and notes for people, the document on the last line for programs."""
    width = 160
    if sys.stdout.isatty():
        width = None  # the terminal's own
    console = Console(width=width, markup=False, highlight=False)
    console.print(shape_table(summary))
    for row in summary["shapes"]:
        if row["tuning_lead"] is not None:
            console.print(choice_line(row), soft_wrap=True)
        for note in row["notes"]:
            console.print(f"{row['shape']}: {note}", soft_wrap=True)
    if summary["curves"]:
        console.print(curve_table(summary["curves"]))
    if summary["readings"]:
        for contrast in summary["contrasts"]:
            console.print(reading_table(contrast, summary["readings"]))
    for contrast in summary["contrasts"]:
        console.print(contrast_line(contrast), soft_wrap=True)
    if summary["unsound_tuning"]:
        console.print(f"the tuning is unsound: {summary['unsound_tuning']}", soft_wrap=True)
    if summary["failed"]:
        console.print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
    print(json.dumps(summary, allow_nan=False), flush=True)
