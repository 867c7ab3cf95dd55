"""What a grid's rows say: means, the paired comparison with the baseline, whether it learned, and the verdict."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..records import (
    BranchCell,
    BudgetSummary,
    CellSummary,
    Contrast,
    FailedRun,
    PairedStatistics,
    Reading,
    ResultRow,
)
from .baselines import best_guess
from .curves import COST_KINDS, pair_at_equal_cost
from .grid import Grid
from .grid_cells import GridCells, cells_of
from .grid_results import GridResults
from .run_statistics import (
    BASELINE,
    deviation,
    gain,
    geometric_mean_of_all,
    holm,
    mean_of_known,
    median,
    paired_statistics,
    ratio,
    row_error,
    verdict,
)
from .tuning import Tuning


def _row_error_of(rows: Sequence[ResultRow]) -> float | None:
    """`row_error` of the mean of some runs, which were evaluated on the same rows."""
    first = rows[0]
    if not first.rows:
        return None
    return row_error(first.metric, mean_of_known(row.value for row in rows), first.rows)


def _standard_errors(rows: Sequence[ResultRow]) -> list[float]:
    """The standard errors that are known of the mean of some runs: over the seeds, and by the choice of rows."""
    errors = []
    if len(rows) > 1:
        errors.append(statistics.stdev(row.value for row in rows) / math.sqrt(len(rows)))
    by_rows = _row_error_of(rows)
    if by_rows is not None:
        errors.append(by_rows)
    return errors


def learned(rows: Iterable[ResultRow], guess: float | None = None) -> bool | None:
    """Whether finished runs of one cell are better than guessing by three standard errors; None where that is unknown.

    The runs have to beat the better of `guess`, the best of the guesses that read the input, and the rows' `chance`,
    that of a guess that reads nothing. The standard error is the larger one of that over the seeds and that by the
    choice of rows (`row_error`). A single run of a metric without a `row_error` has neither: the answer is False if it
    is no better than the guess, else None.
    """
    known = [row for row in rows if row.value is not None]
    if not known:
        return None
    higher_is_better = known[0].higher_is_better
    to_beat = best_guess([guess, *(row.chance for row in known)], bool(higher_is_better))
    if to_beat is None:
        return None
    advantage = gain(statistics.fmean(row.value for row in known) - to_beat, higher_is_better)
    errors = _standard_errors(known)
    if errors:
        return advantage > 3 * max(errors)
    if advantage > 0:
        return None
    return False


def failure_rate(guesses: Sequence[float], finished: list[ResultRow], failed: int) -> float | None:
    """The share of runs that failed, or that end worse than the best simple guess; None where no guess is known.

    The guess is the best of `guesses`; without any it is each row's own `chance`.
    """
    count = len(finished) + failed
    best = best_guess(guesses, bool(finished and finished[0].higher_is_better))
    to_beat = [row.chance if best is None else best for row in finished]
    if count == 0 or None in to_beat:
        return None
    worse = [gain(row.value - target, row.higher_is_better) < 0 for row, target in zip(finished, to_beat)]
    return (failed + sum(worse)) / count


def paired(grid: Grid, cells: GridCells, shape: str, other: str) -> PairedStatistics:
    """`paired_statistics` of a shape minus another one over the seeds that both finished."""
    pairs = cells.pairs(shape, other)
    values = [row.value for row, _ in pairs]
    other_values = [other_row.value for _, other_row in pairs]
    return paired_statistics(values, other_values, grid.margin, cells.higher_is_better)


def _row_error_of_difference(pairs: Sequence[tuple[ResultRow, ResultRow]]) -> float | None:
    """`row_error` of the mean difference of pairs, as if either side were right independently of the other."""
    if not pairs:
        return None
    errors = [_row_error_of(side) for side in zip(*pairs)]
    if None in errors:
        return None
    return math.hypot(*errors)


def contrasts(grid: Grid, cells: GridCells) -> list[Contrast]:
    """The grid's `contrasts`: paired statistics of the first shape minus the second, p corrected by Holm over all.

    row_error is the standard error of the difference by the choice of evaluation rows, which more seeds do not lower.
    It is an upper limit, as if the two were right independently of each other; models are right on the same rows more
    often than that. None of a metric without a simple formula for it, such as a loss.
    """
    if grid.contrasts is None:
        return []
    compared = []
    for shape, other in grid.contrasts:
        statistics_of_pair = paired(grid, cells, shape, other)
        error = _row_error_of_difference(cells.pairs(shape, other))
        contrast = Contrast(
            shape=shape, minus=other, **statistics_of_pair.document(), row_error=error, p_corrected=None
        )
        compared.append(contrast)
    corrected = holm([1.0 if contrast.p is None else contrast.p for contrast in compared])  # also what has not run
    for contrast, p in zip(compared, corrected):
        if contrast.p is not None:
            contrast.p_corrected = p
    return compared


def _notes(tuning: Tuning, shape: str, failed: list[int]) -> list[str]:
    """The notes of a cell: failed seeds, and what is wrong with the choice of its learning rate."""
    choice = tuning.choices[shape]
    notes = []
    if any(run.shape == shape for run in tuning.due):
        notes.append("the tuning is not finished")
    elif choice.learning_rate is None:
        notes.append("no learning rate finished")
    elif shape in tuning.at_edge:
        notes.append("the best learning rate is at the edge of the grid")
    if failed:
        notes.append(f"failed seeds: {', '.join(map(str, failed))}")
    if choice.tie:
        notes.append("tie: the best learning rate leads by no more than the tuning seeds differ")
    return notes


def _against_baseline(grid: Grid, cells: GridCells, shape: str) -> PairedStatistics:
    """`paired` of a shape with the baseline; the baseline itself has the same fields, all None."""
    if shape == grid.baseline:
        return PairedStatistics.unknown()
    return paired(grid, cells, shape, grid.baseline)


def _first(values: Iterable[int | None]) -> int | None:
    """The first of the values; None without any."""
    return next(iter(values), None)


def _branch_cell(grid: Grid, cells: GridCells, shape: str) -> BranchCell:
    """The summary of a shape at one branch."""
    rows = cells.finished[shape].values()
    values = [row.value for row in rows]
    return BranchCell(
        shape=shape,
        n=len(values),
        mean=mean_of_known(values),
        values=cells.values(shape),
        sd=deviation(values),
        failed=cells.failed[shape],
        tokens=_first(row.tokens for row in rows),
        training_flops=_first(row.training_flops for row in rows),
        tokens_per_parameter=mean_of_known(row.tokens_per_parameter for row in rows),
        seconds=mean_of_known(row.seconds for row in rows),
        **_against_baseline(grid, cells, shape).document(),
    )


def summaries_by_budget(results: GridResults) -> list[BudgetSummary]:
    """Of each branch, the shortest first: every shape's values, costs and difference from the baseline, and contrasts.

    The contrasts are corrected for their number within each branch. Those that count are the summary's own, of the
    longest branch.
    """
    grid = results.grid
    if grid.branches is None:
        return []
    summaries = []
    for tokens in grid.branches:
        cells = cells_of(results, tokens)
        shapes = [_branch_cell(grid, cells, shape) for shape in grid.shapes]
        summaries.append(BudgetSummary(branch=tokens, shapes=shapes, contrasts=contrasts(grid, cells)))
    return summaries


def readings(results: GridResults, higher_is_better: bool | None) -> list[Reading]:
    """The grid's contrasts at equal tokens, FLOPs and seconds, at the cost of each branch of the first shape."""
    grid = results.grid
    if grid.contrasts is None or grid.branches is None:
        return []
    all_readings = []
    for shape, other in grid.contrasts:
        for cost_kind in COST_KINDS:
            for branch, pair in pair_at_equal_cost(results, shape, other, cost_kind).items():
                reading = Reading(
                    shape=shape,
                    minus=other,
                    equal=cost_kind,
                    branch=branch,
                    **paired_statistics(pair.values, pair.others, grid.margin, higher_is_better).document(),
                    interpolation_error=pair.error,
                )
                all_readings.append(reading)
    return all_readings


def _cell(results: GridResults, cells: GridCells, shape: str) -> CellSummary:
    """The summary of a shape."""
    grid = results.grid
    choice = results.tuning.choices[shape]
    rows = list(cells.finished[shape].values())
    base = list(cells.finished[grid.baseline].values())
    values = [row.value for row in rows]
    size = _first(row.parameters for row in rows)
    guess = best_guess(results.guess_values, bool(cells.higher_is_better))
    compared = _against_baseline(grid, cells, shape)
    conclusion = BASELINE
    if shape != grid.baseline:
        conclusion = verdict(compared, grid.margin, len(grid.seeds_for(shape)), learned(base, guess))
    return CellSummary(
        shape=shape,
        learning_rate=choice.learning_rate,
        tuning_lead=choice.lead,
        tuning_spread=choice.spread,
        n=len(values),
        mean=mean_of_known(values),
        sd=deviation(values),
        median=median(values),
        failure_rate=failure_rate(results.guess_values, rows, len(cells.failed[shape])),
        **compared.document(),
        parameters=size,
        parameters_over_baseline=ratio(size, _first(row.parameters for row in base)),
        seconds=mean_of_known(row.seconds for row in rows),
        kappa_start=geometric_mean_of_all(row.kappa_start for row in rows),
        kappa_end=geometric_mean_of_all(row.kappa_end for row in rows),
        chance=mean_of_known(row.chance for row in rows),
        learned=learned(rows, guess),
        verdict=conclusion,
        notes=_notes(results.tuning, shape, cells.failed[shape]),
    )


@dataclass
class Summary:
    """A grid compared shape by shape; of one with branches `shapes` and `contrasts` are those of the longest."""

    grid: Grid
    metric: str | None
    """None while no run has finished and the grid names none."""
    higher_is_better: bool | None
    learning_rates: list[float]
    """All that are tried, with those that the tuning added."""
    contrasts: list[Contrast]
    curves: list[BudgetSummary]
    """Of every branch, the shortest first."""
    readings: list[Reading]
    shapes: list[CellSummary]
    failed: list[FailedRun]

    @property
    def baseline(self) -> CellSummary:
        """The shape that the others are compared with."""
        return next(cell for cell in self.shapes if cell.shape == self.grid.baseline)

    def document(self) -> dict[str, Any]:
        """summary.json: the grid's keys, then what was read from its rows."""
        document = asdict(self.grid)
        document["metric"] = self.metric
        document["higher_is_better"] = self.higher_is_better
        document["learning_rates"] = self.learning_rates
        for name in ("contrasts", "curves", "readings", "shapes", "failed"):
            document[name] = [record.document() for record in getattr(self, name)]
        return document


def summarise(results: GridResults) -> Summary:
    """The comparison of a grid's shapes; runs may be missing.

    Of each shape: mean, sd and median over the finished seeds, `paired_statistics` over those that the baseline
    finished too, `failure_rate`; of the grid its `contrasts`.
    """
    grid = results.grid
    cells = cells_of(results)
    known = results.any_reported
    metric = grid.metric
    higher_is_better = None
    if known is not None:
        metric = known.metric
        higher_is_better = known.higher_is_better
    failed = {run: row for run, row in results.rows.items() if row.has_failed}
    return Summary(
        grid=grid,
        metric=metric,
        higher_is_better=higher_is_better,
        learning_rates=results.tuning.learning_rates,
        contrasts=contrasts(grid, cells),
        curves=summaries_by_budget(results),
        readings=readings(results, higher_is_better),
        shapes=[_cell(results, cells, shape) for shape in grid.shapes],
        failed=[FailedRun(**run._asdict(), error=row.error) for run, row in failed.items()],
    )
