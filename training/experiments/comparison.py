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
from .guesses import best_guess, read_guesses
from .runs import Row, Run, Tuning, reported, tune


MIN_PAIRS, MAX_P = 7, 0.01  # of "no loss of quality", which model_cards/README.md decides over all grids
NOT_LEARNED, NON_INFERIOR = "not learned", "non-inferior before correction"


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
    mean = statistics.fmean(differences) if differences else None
    result = {"pairs": len(differences), "difference": mean, "interval": None, "p": None, "p_non_inferiority": None}
    if len(differences) < 2:
        return result
    from scipy.stats import t  # takes seconds to import

    freedom, rounding = len(differences) - 1, 1e-12 * max(map(abs, (*values, *baseline)))
    spread = statistics.stdev(differences)
    error = spread / math.sqrt(len(differences)) if spread > rounding else 0.0

    def tail(excess: float) -> float:
        return float(t.sf(excess / error, freedom)) if error else float(excess <= rounding)

    half = float(t.ppf(0.975, freedom)) * error
    result |= {"interval": [mean - half, mean + half], "p": min(1.0, 2 * tail(abs(mean)))}
    if margin is not None:
        result["p_non_inferiority"] = tail((mean if higher_is_better else -mean) + margin)
    return result


def holm(values: dict[str, float]) -> dict[str, float]:
    """p values corrected for their number by Holm's step-down method (1979): none below its predecessor, 1 at most."""
    adjusted, highest = {}, 0.0
    for place, name in enumerate(sorted(values, key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[name]))
        adjusted[name] = highest
    return adjusted


def row_error(metric: str, value: float, rows: int) -> float | None:
    """Standard error of a metric by the choice of so many rows; None where nothing simple is known of it.

    Binomial for accuracy, and for F1 as if it were one; (1 − r²)/√(rows − 1), the usual form for many rows, for a
    correlation r, Matthews' included.
    """
    if metric in ("accuracy", "f1"):
        share = min(max(value, 0.0), 1.0)
        return math.sqrt(share * (1 - share) / rows)
    if metric in ("matthews_correlation", "pearson", "spearman"):
        return (1 - value**2) / math.sqrt(max(rows - 1, 1))
    return None


def learned(rows: Iterable[Row], guess: float | None = None) -> bool | None:
    """Whether finished runs of one cell are better than guessing by three standard errors; None where none can say.

    What must be beaten is the best of `guess`, of guesses that read the input, and the rows' own, that reads nothing.
    The standard error is the larger of that over the seeds and `row_error`, that by the choice of rows. One run of a
    metric without the latter has none: it is False if no better than the guess, else None.
    """
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return None
    values, (first, *_) = [row["value"] for row in known], known
    to_beat = best_guess([guess, *(row["chance"] for row in known)], bool(first["higher_is_better"]))
    if to_beat is None:
        return None
    errors = [statistics.stdev(values) / math.sqrt(len(values))] if len(values) > 1 else []
    if first["rows"] and (error := row_error(first["metric"], statistics.fmean(values), first["rows"])) is not None:
        errors.append(error)
    advantage = (statistics.fmean(values) - to_beat) * (1 if first["higher_is_better"] else -1)
    if not errors:
        return None if advantage > 0 else False
    return advantage > 3 * max(errors)


def verdict(result: dict[str, object], margin: float | None, seeds: int, baseline_learned: bool | None) -> str:
    """What may be said of paired statistics. While a seed is missing or failed, nothing: its loss is unknown; nor
    where nobody knows whether the baseline has learned."""
    if baseline_learned is False:
        return NOT_LEARNED
    enough = baseline_learned and margin is not None and result["pairs"] >= MIN_PAIRS and result["pairs"] == seeds
    proven = enough and result["p_non_inferiority"] < MAX_P
    return f"{NON_INFERIOR} (margin {margin:g})" if proven else "undecided"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean, None where one of the values is: it was infinite, or not measured."""
    values = list(values)
    return None if None in values else _mean(values)


def failure_rate(grid: Grid, finished: list[Row], failed: int) -> float | None:
    """The share of runs that failed, or that end worse than the best simple guess; None where no guess is known.

    The guess is the best one of GUESSES beside the rows, where it is there, else each row's own `chance`.
    """
    count = len(finished) + failed
    if not count or any(row["chance"] is None for row in finished):
        return None
    simple = [guess["value"] for guess in read_guesses(grid) or []]

    def is_worse(row: Row) -> bool:
        guesses = simple or [row["chance"]]
        return row["value"] < max(guesses) if row["higher_is_better"] else row["value"] > min(guesses)

    return (failed + sum(map(is_worse, finished))) / count


def _row_error_of(rows: Sequence[Row]) -> float | None:
    """`row_error` of the mean of some runs, which were evaluated on the same rows."""
    first = rows[0]
    return row_error(first["metric"], _mean(row["value"] for row in rows), first["rows"]) if first["rows"] else None


def contrasts(grid: Grid, finished: dict[str, dict[int, Row]], up: bool | None) -> list[dict[str, object]]:
    """The grid's `contrasts`: paired statistics of the first shape minus the second, p corrected by Holm over them.

    row_error is the standard error of the difference by the choice of evaluation rows, which more seeds do not lower.
    It is an upper limit, as if the two were right independently of each other; models are right on the same rows more
    often than that. None where nothing simple is known of the metric, such as a loss.
    """
    found = []
    for shape, other in grid.contrasts or []:
        own, others = finished[shape], finished[other]
        pairs = [(own[seed], others[seed]) for seed in own if seed in others]
        values = [[row["value"] for row in side] for side in zip(*pairs)] or [[], []]
        result = paired_statistics(*values, grid.margin, up)
        errors = [_row_error_of(side) for side in zip(*pairs)]
        result["row_error"] = math.hypot(*errors) if errors and None not in errors else None
        found.append({"shape": shape, "minus": other, **result, "p_corrected": None})
    corrected = holm({place: each["p"] for place, each in enumerate(found) if each["p"] is not None})
    for place, value in corrected.items():
        found[place]["p_corrected"] = value
    return found


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


def cells_of(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None], branch: int | None = None) -> Cells:
    """The reported runs at the best rates, of `branch` tokens where there are branches, else of the longest.

    A branch that could not begin, since its trunk had failed before, has failed.
    """
    cells = Cells({}, {})
    for shape in grid.shapes:
        runs = {seed: reported(grid, shape, seed, best[shape], branch) for seed in grid.seeds_for(shape)}
        found = {seed: rows.get(run) or rows.get(run.trunk) or {} for seed, run in runs.items()}
        done = {seed: row for seed, row in found.items() if row.get("status") == "finished"}
        cells.finished[shape] = {seed: row for seed, row in done.items() if row["phase"] == "report"}
        cells.failed[shape] = [seed for seed, row in found.items() if row.get("status") == "failed"]
    return cells


def metric_of(grid: Grid, rows: Iterable[Row]) -> tuple[str | None, bool | None]:
    """The metric of finished rows, and whether more of it is better; None while nobody knows."""
    first = next(iter(rows), None)
    return (grid.metric, None) if first is None else (first["metric"], bool(first["higher_is_better"]))


def paired(grid: Grid, own: dict[int, Row], others: dict[int, Row], up: bool | None) -> dict[str, object]:
    """`paired_statistics` of two cells over the seeds that both finished."""
    pairs = [(own[seed]["value"], others[seed]["value"]) for seed in own if seed in others]
    return paired_statistics([one for one, _ in pairs], [other for _, other in pairs], grid.margin, up)


def _sizes(rows: Iterable[Row]) -> dict[str, object]:
    """What runs of one cell cost, the mean where it differs."""
    rows = list(rows)
    return {name: next((row[name] for row in rows), None) for name in ("tokens", "training_flops")} | {
        name: _mean(row[name] for row in rows) for name in ("tokens_per_parameter", "seconds")
    }


def curves(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None]) -> list[dict[str, object]]:
    """Of each branch, the shortest first: every shape's values, costs and difference from the baseline, and contrasts.

    The contrasts are corrected for their number within each branch; what counts are those of the grid, of the longest.
    """
    found = []
    for tokens in grid.branches or []:
        finished, failed = cells_of(grid, rows, best, tokens)
        _, up = metric_of(grid, [row for cells in finished.values() for row in cells.values()])
        shapes = []
        for shape, cells in finished.items():
            values = {str(seed): row["value"] for seed, row in cells.items()}
            result = paired(grid, cells, finished[grid.baseline], up)
            shapes.append(
                {"shape": shape, "n": len(values), "mean": _mean(values.values()), "values": values}
                | {"sd": statistics.stdev(values.values()) if len(values) > 1 else None}
                | {"failed": failed[shape], **_sizes(cells.values())}
                | (dict.fromkeys(result) if shape == grid.baseline else result)
            )
        found.append({"branch": tokens, "shapes": shapes, "contrasts": contrasts(grid, finished, up)})
    return found


def readings(grid: Grid, rows: dict[Run, Row], best: dict[str, float | None], up: bool | None) -> list[dict]:
    """The grid's contrasts at equal tokens, FLOPs and seconds, at the cost of each branch of the first shape.

    interpolation_error is the largest of the second shape's readings; None where they have none (`curves.read_at`).
    """
    found = []
    for pair in (grid.contrasts or []) if grid.branches else []:
        for way in WAYS:
            for branch, (own, others, error) in read_pair(grid, rows, best, pair, way).items():
                result = paired_statistics(own, others, grid.margin, up)
                about = {"shape": pair[0], "minus": pair[1], "equal": way, "branch": branch}
                found.append({**about, **result, "interpolation_error": error})
    return found


def _cell(grid: Grid, shape: str, cells: Cells, tuning: Tuning, up: bool | None) -> dict[str, object]:
    """What `summarise` says of one shape."""
    own, base, choice = cells.finished[shape], cells.finished[grid.baseline], tuning.choices[shape]
    result = paired(grid, own, base, up)
    guess = best_guess([guess["value"] for guess in read_guesses(grid) or ()], bool(up))
    said = verdict(result, grid.margin, len(grid.seeds_for(shape)), learned(base.values(), guess))
    values, failed = [row["value"] for row in own.values()], cells.failed[shape]
    size, base_size = (next((row["parameters"] for row in each.values()), None) for each in (own, base))
    return (
        {"shape": shape, "learning_rate": choice.learning_rate}
        | {"tuning_lead": choice.lead, "tuning_spread": choice.spread}
        | {"n": len(values), "mean": _mean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}
        | {"median": statistics.median(values) if values else None}
        | {"failure_rate": failure_rate(grid, list(own.values()), len(failed))}
        | (dict.fromkeys(result) if shape == grid.baseline else result)
        | {"parameters": size, "parameters_over_baseline": size / base_size if size and base_size else None}
        | {"seconds": _mean(row["seconds"] for row in own.values())}
        | {name: _mean_of_all(row[name] for row in own.values()) for name in ("kappa_start", "kappa_end")}
        | {"chance": _mean(row["chance"] for row in own.values()), "learned": learned(own.values(), guess)}
        | {"verdict": "baseline" if shape == grid.baseline else said}
        | {"notes": _notes(tuning, shape, failed)}
    )


def summarise(grid: Grid, rows: dict[Run, Row]) -> dict[str, object]:
    """The sweep as one JSON document; runs may be missing.

    Of each shape: mean, sd and median over the finished seeds, `paired_statistics` over those that the baseline
    finished too, `failure_rate`; of the grid its `contrasts`. With branches all of that is of the longest, and
    `curves` has every one.
    """
    tuning = tune(grid, rows)
    cells = cells_of(grid, rows, tuning.best)
    metric, up = metric_of(grid, [row for each in cells.finished.values() for row in each.values()])
    errors = [{**run._asdict(), "error": row["error"]} for run, row in rows.items() if row["status"] == "failed"]
    found = {"metric": metric, "higher_is_better": up, "learning_rates": tuning.learning_rates}
    found |= {"contrasts": contrasts(grid, cells.finished, up), "curves": curves(grid, rows, tuning.best)}
    found["readings"] = readings(grid, rows, tuning.best, up)
    shapes = [_cell(grid, shape, cells, tuning, up) for shape in grid.shapes]
    return {**asdict(grid), **found, "shapes": shapes, "failed": errors}


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
    numbers = value if isinstance(value, list) else [value]
    return "–" if value is None else " ".join(format(number, form) for number in numbers)


def contrast_line(contrast: dict[str, object]) -> str:
    """One contrast in words."""
    parts = {"difference": "+.4f", "interval": "+.4f", "pairs": "d", "p": ".3g", "p_corrected": ".3g"}
    said = {name: _text(contrast[name], form) for name, form in parts.items()}
    line = f"{contrast['shape']} − {contrast['minus']}: {said['difference']}, 95 % interval {said['interval']}, "
    line += f"{said['pairs']} pairs, p {said['p']}, corrected {said['p_corrected']}"
    rows = contrast["row_error"]
    return line if rows is None else f"{line}; standard error by the choice of rows at most {rows:.4f}"


def reading_table(contrast: dict[str, object], readings: list[dict[str, object]]) -> Table:
    """A pair's difference at the cost of each branch, a column for each thing that is equal."""
    pair = [contrast["shape"], contrast["minus"]]
    own = [each for each in readings if [each["shape"], each["minus"]] == pair]
    caption = "difference with its 95 % interval, ± error of the interpolation"
    table = Table(title=" − ".join(pair), caption=caption, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("tokens", justify="right")
    for way in WAYS:
        table.add_column(f"equal {way}", justify="right")
    for branch in dict.fromkeys(each["branch"] for each in own):
        row = [each for each in own if each["branch"] == branch]
        table.add_row(f"{branch:,}", *map(_reading, row))
    return table


def _reading(reading: dict[str, object]) -> str:
    """One difference of `readings` in a cell of a table."""
    if reading["difference"] is None:
        return "–"
    said = f"{reading['difference']:+.4f} ({_text(reading['interval'], '+.4f')})"
    return f"{said} ± {reading['interpolation_error']:.4f}" if reading["interpolation_error"] else said


def choice_line(cell: dict[str, object]) -> str:
    """How clear a cell's best learning rate is."""
    line = f"{cell['shape']}: learning rate {cell['learning_rate']:g} leads by {cell['tuning_lead']:.4f}"
    spread = cell["tuning_spread"]
    return f"{line}, one tuning seed" if spread is None else f"{line}, the tuning seeds differ by {spread:.4f}"


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


def show(summary: dict[str, object]) -> None:
    """Prints a summary: a table and notes for people, the document on the last line for programs."""
    direction = {True: ", higher is better", False: ", lower is better", None: ""}[summary["higher_is_better"]]
    caption = (
        f"{summary['metric'] or 'no metric yet'}{direction}; difference from {summary['baseline']} over the same seeds"
    )
    table = Table(caption=caption, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("shape")
    for heading, _ in SHOWN.values():
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in summary["shapes"]:
        cells = [_text(row[name], form) for name, (_, form) in SHOWN.items()]
        table.add_row(row["shape"], *cells, row["verdict"])
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    console.print(table)
    for row in summary["shapes"]:
        if row["tuning_lead"] is not None:
            console.print(choice_line(row), soft_wrap=True)
        for note in row["notes"]:
            console.print(f"{row['shape']}: {note}", soft_wrap=True)
    if summary["curves"]:
        console.print(curve_table(summary["curves"]))
    for contrast in summary["contrasts"] if summary["readings"] else []:
        console.print(reading_table(contrast, summary["readings"]))
    for contrast in summary["contrasts"]:
        console.print(contrast_line(contrast), soft_wrap=True)
    if summary["unsound_tuning"]:
        console.print(f"the tuning is unsound: {summary['unsound_tuning']}", soft_wrap=True)
    if summary["failed"]:
        console.print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
    print(json.dumps(summary, allow_nan=False), flush=True)
