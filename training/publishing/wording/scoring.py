"""What is read from the scores of a grid before it is put into words: best guesses, outliers, errors by rows."""

import statistics
from typing import NamedTuple

from ...experiments.evidence import baseline_of
from ...experiments.guess_files import best_guess
from ...experiments.run_statistics import row_error
from ...records import Cell, Evidence, Guess, RunResults
from ...tasks.registry import TASKS
from .amounts import gain, number


LEAST_DEVIATION = 1e-3  # of a share or a nat: where most seeds tie, a small difference is no outlier


def guesses_of(evidence: Evidence) -> list[Guess]:
    """The simple guesses that read the input, an empty list where none was fitted."""
    return evidence.guesses or []


def best_of(evidence: Evidence) -> Guess | None:
    """The best simple guess that reads the input, else the one that reads nothing; None where neither is known."""
    guesses = guesses_of(evidence)
    chance = baseline_of(evidence).chance
    if chance is not None and not guesses:
        guesses = [Guess(name="a guess that reads nothing", value=chance)]
    best = best_guess([guess.value for guess in guesses], evidence.higher_is_better)
    for guess in guesses:
        if guess.value == best:
            return guess
    return None


def outliers(cell: Cell, evidence: Evidence) -> list[str]:
    """Seeds whose run failed to train where the others did not.

    Such a run is worse than the cell's median by ten median absolute deviations, at least LEAST_DEVIATION each. It is
    also no better than the best simple guess among those that the median beats. Where no guess is known, the first
    alone counts.

    Empty where the median beats no guess, and for fewer than five seeds, which are too few to tell.
    """
    values = cell.values
    if len(values) < 5:
        return []
    median = statistics.median(values.values())
    deviation = max(statistics.median(abs(value - median) for value in values.values()), LEAST_DEVIATION)
    far_below = [seed for seed, value in values.items() if gain(value - median, evidence) < -10 * deviation]
    known = [guess.value for guess in guesses_of(evidence)]
    chance = baseline_of(evidence).chance
    if chance is not None:
        known.append(chance)
    if not known:
        return far_below
    beaten = [value for value in known if gain(median - value, evidence) > 0]
    best = best_guess(beaten, evidence.higher_is_better)
    if best is None:
        return []
    return [seed for seed in far_below if gain(values[seed] - best, evidence) <= 0]


def has_outliers(evidence: Evidence) -> bool:
    """Whether any cell has an outlier; then medians say more than means."""
    return any(outliers(cell, evidence) for cell in evidence.cells)


def median_score(cell: Cell, evidence: Evidence) -> str:
    """Median of a cell, and how many of its runs are outliers."""
    count = len(outliers(cell, evidence))
    return f"{statistics.median(cell.values.values()):.4f}, outliers: {count} of {cell.n}"


def score_error(metric: str, value: float, results: RunResults) -> float | None:
    """`row_error` of a score; None for language models, which are scored by tokens, not by rows."""
    if TASKS[results.task].is_scored_by_token:
        return None
    return row_error(metric, value, results.rows)


class PairError(NamedTuple):
    """A published pair: its difference from the baseline, plus = better, and what would move it; in metric units.

    `by_rows` is the standard error by the choice of rows; `over_seeds` the sd over the seeds, None of one seed.
    """

    cell: str
    difference: float
    by_rows: float
    over_seeds: float | None

    def columns(self) -> tuple[str, str, str, str]:
        """A line of a table with the header PAIR_ERROR_HEADER."""
        return self.cell, f"{self.difference:+.3f}", f"{self.by_rows:.3f}", number(self.over_seeds, ".3f")


PAIR_ERROR_HEADER = (
    "layers × heads",
    "difference, + is better",
    "standard error by the choice of rows",
    "sd over the seeds",
)


def pair_errors(evidence: Evidence) -> list[PairError]:
    """Of each published shape but the baseline: how much rows and seeds move its difference."""
    base = baseline_of(evidence)
    cells = {cell.shape: cell for cell in evidence.cells}
    pairs = []
    for published in evidence.row_errors or ():
        cell = cells[published.shape]
        shared = cell.values.keys() & base.values.keys()
        differences = [cell.values[seed] - base.values[seed] for seed in sorted(shared)]
        spread = None
        if len(differences) > 1:
            spread = statistics.stdev(differences)
        ahead = gain(published.difference, evidence)
        pairs.append(PairError(f"{cell.layers} × {cell.heads_text}", ahead, published.error, spread))
    return pairs
