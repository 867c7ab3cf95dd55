"""What a grid's rows say: means, the paired comparison with the baseline, whether it learned, and the verdict."""

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from .grid import Grid
from .guesses import best_guess, read_guesses
from .runs import Row, Run, tune


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


def summarise(grid: Grid, rows: dict[Run, Row]) -> dict[str, object]:
    """The sweep as one JSON document; runs may be missing.

    Of each shape: mean and sd over the finished seeds, `paired_statistics` over those that the baseline finished too.
    """
    tuning, finished, failed, shapes = tune(grid, rows), {}, {}, []
    for shape in grid.shapes:
        cells = {seed: rows.get(Run("report", shape, seed, tuning.best[shape]), {}) for seed in grid.seeds}
        finished[shape] = {seed: row for seed, row in cells.items() if row.get("status") == "finished"}
        failed[shape] = [seed for seed, row in cells.items() if row.get("status") == "failed"]
    base, every = finished[grid.baseline], [row for cells in finished.values() for row in cells.values()]
    metric, up = (every[0]["metric"], bool(every[0]["higher_is_better"])) if every else (grid.metric, None)
    guess = best_guess([each["value"] for each in read_guesses(grid) or ()], bool(up))
    for shape, cells in finished.items():
        pairs = [(cells[seed]["value"], base[seed]["value"]) for seed in cells if seed in base]
        result = paired_statistics([own for own, _ in pairs], [other for _, other in pairs], grid.margin, up)
        said = verdict(result, grid.margin, len(grid.seeds), learned(base.values(), guess))
        values = [row["value"] for row in cells.values()]
        size, base_size = (next((row["parameters"] for row in each.values()), None) for each in (cells, base))
        notes = {
            "the best learning rate is at the edge of the grid": shape in tuning.at_edge,
            "the tuning is not finished": bool(tuning.due),
            "no learning rate finished": tuning.best[shape] is None and not tuning.due,
            f"failed seeds: {', '.join(map(str, failed[shape]))}": bool(failed[shape]),
        }
        shapes.append(
            {"shape": shape, "learning_rate": tuning.best[shape], "n": len(values), "mean": _mean(values)}
            | {"sd": statistics.stdev(values) if len(values) > 1 else None}
            | (dict.fromkeys(result) if shape == grid.baseline else result)
            | {"parameters": size, "parameters_over_baseline": size / base_size if size and base_size else None}
            | {"seconds": _mean(row["seconds"] for row in cells.values())}
            | {name: _mean_of_all(row[name] for row in cells.values()) for name in ("kappa_start", "kappa_end")}
            | {"chance": _mean(row["chance"] for row in cells.values()), "learned": learned(cells.values(), guess)}
            | {"verdict": "baseline" if shape == grid.baseline else said}
            | {"notes": [note for note, holds in notes.items() if holds]}
        )
    errors = [{**run._asdict(), "error": row["error"]} for run, row in rows.items() if row["status"] == "failed"]
    found = {"metric": metric, "higher_is_better": up, "learning_rates": tuning.learning_rates}
    return {**asdict(grid), **found, "shapes": shapes, "failed": errors}


SHOWN = {  # what of a shape is in the table: heading and format
    "learning_rate": ("rate", "g"),
    "n": ("n", "d"),
    "mean": ("mean", ".4f"),
    "sd": ("± sd", ".4f"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 % interval", "+.4f"),
    "p": ("p", ".3g"),
    "p_non_inferiority": ("p non-inferior", ".3g"),
    "parameters": ("parameters", ",d"),
    "parameters_over_baseline": ("of base", ".0%"),
    "seconds": ("seconds", ".1f"),
}


def show(summary: dict[str, object]) -> None:
    """Prints a summary: a table and notes for people, the document on the last line for programs."""

    def text(value: object, form: str) -> str:
        numbers = value if isinstance(value, list) else [value]
        return "–" if value is None else " ".join(format(number, form) for number in numbers)

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
        cells = [text(row[name], form) for name, (_, form) in SHOWN.items()]
        table.add_row(row["shape"], *cells, row["verdict"])
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    console.print(table)
    for row in summary["shapes"]:
        for note in row["notes"]:
            console.print(f"{row['shape']}: {note}", soft_wrap=True)
    if summary["failed"]:
        console.print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
    print(json.dumps(summary, allow_nan=False), flush=True)
