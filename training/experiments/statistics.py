"""What a grid's rows say, as summary.json has it: means, paired differences, whether the runs learned.

The runs of two shapes are compared pair by pair of a seed. Of two shapes on several branches there is also the
difference at equal tokens, equal FLOPs and equal seconds: the first shape is read at the end of its branches, the
second at the same cost, on a straight line over the logarithm of the cost between two of its own branches. Seconds are
those of `leaner bench`, times the steps: what the runs took depends on what ran beside them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from modeling_leaner.files import read_json

from ..records import CELL_TYPES, COLUMNS, ResultRow
from .branches import STEP_SECONDS, step_of
from .grid import Grid, reported
from .grid_results import GridResults, Tuning, gain


COSTS = {"tokens": "tokens", "FLOPs": "training_flops", "seconds": "step_seconds"}  # what is equal → its column
DTYPES = {int: "Int64", float: "float64", bool: "boolean", str: "object"}

Summary = dict[str, Any]


def frame(rows: Iterable[ResultRow]) -> pd.DataFrame:
    """The rows as a table with the columns of results.csv."""
    table = pd.DataFrame([vars(row) for row in rows], columns=COLUMNS, dtype=object)
    dtypes = {column: DTYPES[kind] for column, kind in CELL_TYPES.items()}
    return table.astype(dtypes | {"training_flops": "object"})  # beyond 64 bits


def number(value: Any) -> Any:
    """A plain number of Python; None for NaN, which is unknown."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def paired_statistics(
    values: Sequence[float], others: Sequence[float], margin: float | None = None, higher_is_better: bool = True
) -> Summary:
    """t statistics of values − others, pair by pair, in the metric's units.

    `interval` is the 95 % interval of the mean difference, `p` two-sided, of no difference, and `p_non_inferiority`
    one-sided, of a loss of at least the margin. What needs more pairs, or a margin, is None.
    """
    differences = np.subtract(values, others)
    mean = float(differences.mean()) if len(differences) else None
    found = {"pairs": len(differences), "difference": mean, "interval": None, "p": None, "p_non_inferiority": None}
    if len(differences) < 2:
        return found
    rounding = 1e-12 * np.abs([values, others]).max()  # where all differences are the same
    t = stats.t(len(differences) - 1, scale=max(stats.sem(differences), rounding, 1e-300))
    found["interval"] = [mean + float(limit) for limit in t.ppf([0.025, 0.975])]
    found["p"] = 2 * float(t.sf(abs(mean)))
    if margin is not None:
        found["p_non_inferiority"] = float(t.sf(gain(mean, higher_is_better) + margin))
    return found


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


def learned(runs: pd.DataFrame, guess: float | None = None) -> bool | None:
    """Whether finished runs of one cell are better than guessing by three standard errors; None where that is unknown.

    The runs have to beat the better of `guess`, the best of the guesses that read the input, and the rows' `chance`,
    that of a guess that reads nothing. The standard error is the larger one of that over the seeds and that by the
    choice of rows (`row_error`). A single run of a metric without a `row_error` has neither: the answer is False if it
    is no better than the guess, else None.
    """
    if runs.empty:
        return None
    higher_is_better = bool(runs["higher_is_better"].iloc[0])
    known = [value for value in (guess, *runs["chance"].dropna()) if value is not None]
    if not known:
        return None
    advantage = min(gain(runs["value"].mean() - value, higher_is_better) for value in known)
    rows = number(runs["rows"].max())  # all were evaluated on the same ones
    by_rows = row_error(runs["metric"].iloc[0], runs["value"].mean(), rows) if rows else None
    errors = [error for error in (number(runs["value"].sem()), by_rows) if error is not None]
    if errors:
        return bool(advantage > 3 * max(errors))
    return None if advantage > 0 else False


def reported_rows(results: GridResults, branch: int | None = None) -> pd.DataFrame:
    """The reported runs at the best rates that have ended, shape by shape; by default those of the longest branch.

    A branch that could not begin, since its trunk had failed before, has failed.
    """
    grid, best = results.grid, results.tuning.best
    ended = []
    for shape in grid.shapes:
        for seed in grid.seeds_for(shape):
            run = reported(grid, shape, seed, best[shape], branch)
            row = results.rows.get(run, results.rows.get(run.trunk))
            if row is not None and (row.phase == "report" or row.status == "failed"):
                ended.append(row)
    return frame(ended)


def runs_of(ended: pd.DataFrame, shape: str, status: str = "finished") -> pd.DataFrame:
    """The runs of a shape that finished, or failed."""
    return ended[(ended["shape"] == shape) & (ended["status"] == status)]


def compare(grid: Grid, ended: pd.DataFrame, shape: str, other: str) -> Summary:
    """`paired_statistics` of a shape minus another; all are None for a shape and itself."""
    pairs = [runs_of(ended, each).set_index("seed") for each in (shape, other)]
    seeds = pairs[0].index.intersection(pairs[1].index)
    own, base = (runs.loc[seeds] for runs in pairs)
    higher_is_better = bool(own["higher_is_better"].any())
    compared = paired_statistics(own["value"], base["value"], grid.margin, higher_is_better)
    return dict.fromkeys(compared) if shape == other else compared


def score(ended: pd.DataFrame, shape: str) -> Summary:
    """Count, mean, sd and seconds of a shape's finished runs, over the seeds."""
    runs = runs_of(ended, shape)
    return {
        "shape": shape,
        "n": len(runs),
        "mean": number(runs["value"].mean()),
        "sd": number(runs["value"].std()),
        "seconds": number(runs["seconds"].mean()),
    }


def interpolate(costs: Sequence[float], values: Sequence[float], cost: float) -> tuple[float, float]:
    """The value at a cost, of increasing ones, and how far off it may be; NaN where that is unknown.

    The value lies on the line over log cost between the two points around it, the error is what the curvature adds to
    it: |f[a, b, c]| (x − a)(b − x), the larger one of those with the next point c on either side. It is 0 at a point,
    and unknown in between two points that are alone. Beyond the points the value is unknown, too.
    """
    x, logs, values = math.log(cost), np.log(np.asarray(costs, float)), np.asarray(values, float)
    at_point = np.isclose(logs, x, rtol=1e-9, atol=1e-9)
    if at_point.any():
        return float(values[at_point][0]), 0.0
    right = np.searchsorted(logs, x)
    if not 0 < right < len(logs):
        return math.nan, math.nan
    slopes = np.diff(values) / np.diff(logs)
    curvatures = np.abs(np.diff(slopes) / (logs[2:] - logs[:-2]))[max(right - 2, 0) : right]
    error = curvatures.max(initial=-1) * (x - logs[right - 1]) * (logs[right] - x)
    return float(np.interp(x, logs, values)), float(error) if len(curvatures) else math.nan


def readings(grid: Grid, budgets: Sequence[pd.DataFrame]) -> list[Summary]:
    """The grid's contrasts at equal cost, at that of each branch of the first shape.

    Seeds whose second shape cannot be read there are left out: nothing is read beyond its first or last branch.
    `interpolation_error` is the largest of the seeds.
    """
    if not grid.contrasts or not budgets:
        return []
    runs = pd.concat(budgets).query("status == 'finished'")
    timed = read_json(grid.path(STEP_SECONDS))["shapes"] if grid.path(STEP_SECONDS).is_file() else {}
    seconds = {  # of the same step as the grid's
        shape: timed[shape]["seconds"]
        for shape in grid.shapes
        if shape in timed and timed[shape]["tokens"] == step_of(grid, shape).tokens
    }
    runs["step_seconds"] = runs["steps"].astype(float) * runs["shape"].map(seconds).astype(float)
    found = []
    for shape, minus in grid.contrasts:
        for equal, column in COSTS.items():
            known = runs.dropna(subset=column).sort_values(column)
            others = dict(list(known[known["shape"] == minus].groupby("seed")))
            for branch in grid.branches:
                read = []
                for run in known[(known["shape"] == shape) & (known["branch"] == branch)].to_dict("records"):
                    if run["seed"] in others:
                        other = others[run["seed"]]
                        read.append((run["value"], *interpolate(other[column], other["value"], run[column])))
                table = pd.DataFrame(read, columns=["own", "other", "error"]).dropna(subset="other")
                higher_is_better = bool(runs["higher_is_better"].any())
                compared = paired_statistics(table["own"], table["other"], grid.margin, higher_is_better)
                place = {"shape": shape, "minus": minus, "equal": equal, "branch": branch}
                found.append({**place, **compared, "interpolation_error": number(table["error"].max(skipna=False))})
    return found


def _cell(results: GridResults, tuning: Tuning, ended: pd.DataFrame, shape: str) -> Summary:
    """The summary of a shape."""
    choice, runs = tuning.choices[shape], runs_of(ended, shape)
    failed = runs_of(ended, shape, "failed")["seed"].tolist()
    notes = []
    if any(run.shape == shape for run in tuning.due):
        notes.append("the tuning is not finished")
    elif choice.learning_rate is None:
        notes.append("no learning rate finished")
    elif shape in tuning.at_edge:
        notes.append("the best learning rate is at the edge of the grid")
    if failed:
        notes.append(f"failed seeds: {', '.join(map(str, failed))}")
    if choice.spread is not None and choice.lead <= choice.spread:
        notes.append("tie: the best learning rate leads by no more than the tuning seeds differ")

    return {
        **score(ended, shape),
        "learning_rate": choice.learning_rate,
        "tuning_lead": choice.lead,
        "tuning_spread": choice.spread,
        "median": number(runs["value"].median()),
        **compare(results.grid, ended, shape, results.grid.baseline),
        "parameters": number(runs["parameters"].max()),
        "learned": learned(runs, results.best_guess and results.best_guess.value),
        "notes": notes,
    }


def summarise(results: GridResults) -> Summary:
    """summary.json: the grid's keys, then what its rows say; runs may be missing.

    Of a grid with branches `shapes` and `contrasts` are those of the longest one, `curves` those of each.
    """
    grid, tuning, known = results.grid, results.tuning, results.any_reported
    budgets = {tokens: reported_rows(results, tokens) for tokens in grid.branches or []}
    curves = []
    for tokens, ended in budgets.items():
        cells = []
        for shape in grid.shapes:
            runs = runs_of(ended, shape)
            values = dict(zip(runs["seed"].astype(str), runs["value"].tolist()))
            failed = runs_of(ended, shape, "failed")["seed"].tolist()
            compared = compare(grid, ended, shape, grid.baseline)
            cells.append({**score(ended, shape), "values": values, "failed": failed, **compared})
        curves.append({"branch": tokens, "shapes": cells})

    ended = reported_rows(results)
    pairs = grid.contrasts or []
    contrasts = [{"shape": shape, "minus": minus, **compare(grid, ended, shape, minus)} for shape, minus in pairs]
    # By Holm, also over those that have not run: the k-th smallest p of n times n - k + 1, never below the one before.
    ordered = pd.Series([contrast["p"] for contrast in contrasts], dtype=float).fillna(1).sort_values()
    corrected = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1)
    for place, contrast in enumerate(contrasts):
        contrast["p_corrected"] = None if contrast["p"] is None else float(corrected[place])
    return {
        **asdict(grid),
        "metric": known.metric if known else None,
        "higher_is_better": known.higher_is_better if known else None,
        "learning_rates": tuning.learning_rates,
        "contrasts": contrasts,
        "curves": curves,
        "readings": readings(grid, list(budgets.values())),
        "shapes": [_cell(results, tuning, ended, shape) for shape in grid.shapes],
        "failed": [
            {**run._asdict(), "error": row.error} for run, row in results.rows.items() if row.status == "failed"
        ],
    }


SHOWN = (  # of each shape and comparison, under the keys of summary.json
    "shape minus equal branch learning_rate pairs n mean sd median difference interval p "
    "p_non_inferiority p_corrected parameters seconds"
).split()


def _text(value: str | float | list[float] | None) -> str:
    match value:
        case str() | int():
            return str(value)
        case list():
            return " ".join(map(_text, value))
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def show(summary: Summary) -> None:
    """Prints a grid's summary: what there is of SHOWN for each shape, branch and contrast, and notes."""
    curves = [{"branch": each["branch"], **cell} for each in summary["curves"] for cell in each["shapes"]]
    for entries in filter(None, (summary["shapes"], curves, summary["readings"], summary["contrasts"])):
        print(pd.DataFrame(entries).filter(SHOWN).astype(object).map(_text).to_string(index=False))
    way = "higher" if summary["higher_is_better"] else "lower"
    print(f"{summary['metric']}, {way} is better; difference from {summary['baseline']} over the same seeds")
    for cell in summary["shapes"]:
        is_baseline = cell["shape"] == summary["baseline"]
        unlearned = ["the baseline has not learned"] * (is_baseline and cell["learned"] is False)
        for note in [*cell["notes"], *unlearned]:
            print(f"{cell['shape']}: {note}")
    if summary["failed"]:
        print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
