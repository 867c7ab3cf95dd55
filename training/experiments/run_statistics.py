"""The statistics of paired runs: t intervals, corrected p values, errors by the choice of rows, and the verdict."""

import math
import statistics
from collections.abc import Iterable, Sequence

from ..records import PairedStatistics


# Of "no loss of quality", which model_cards/README.md decides over all grids:
MIN_PAIRS = 7
MAX_P = 0.01
BASELINE = "baseline"  # its own verdict
NO_VERDICT = "no verdict"  # for the baseline has not learned
NON_INFERIOR = "non-inferior before correction"
WORSE = "worse before correction"  # by more than the margin


def gain(value: float, higher_is_better: bool | None) -> float:
    """A value of the metric, or a difference of two, such that more is better."""
    if higher_is_better:
        return value
    return -value


def paired_statistics(
    values: Sequence[float], baseline: Sequence[float], margin: float | None = None, higher_is_better: bool = True
) -> PairedStatistics:
    """Paired t statistics of values − baseline, pair by pair, in the metric's units.

    What needs more pairs, or a margin, is None. Where all differences are the same, the p values are the limits for a
    vanishing spread: 0 or 1.
    """
    differences = [value - base for value, base in zip(values, baseline, strict=True)]
    result = PairedStatistics.unknown(pairs=len(differences))
    if not differences:
        return result
    mean = statistics.fmean(differences)
    result.difference = mean
    if len(differences) == 1:
        return result
    from scipy.stats import t  # takes seconds to import

    # By hand: scipy's ttest_1samp differs in the last bits from the numbers in git, and has no answer where all
    # differences are the same.

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
    result.interval = [mean - half, mean + half]
    result.p = min(1.0, 2 * tail(abs(mean)))
    if margin is not None:
        result.p_non_inferiority = tail(gain(mean, higher_is_better) + margin)
    return result


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method (1979): none below its predecessor, 1 at most."""
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
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


def verdict(result: PairedStatistics, margin: float | None, seeds: int, baseline_learned: bool | None) -> str:
    """What paired statistics prove: that the baseline has not learned, non-inferiority, its opposite, or nothing.

    Nothing is proven while a seed is missing or has failed, since its loss is unknown, nor where it is unknown whether
    the baseline has learned.
    """
    if baseline_learned is False:
        return NO_VERDICT
    if baseline_learned is None or margin is None:
        return "undecided"
    complete = result.pairs >= MIN_PAIRS and result.pairs == seeds
    if complete and result.p_non_inferiority < MAX_P:
        return f"{NON_INFERIOR} (margin {margin:g})"
    if complete and 1 - result.p_non_inferiority < MAX_P:
        return f"{WORSE} (margin {margin:g})"
    return "undecided"


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.fmean(known)


def geometric_mean_of_all(values: Iterable[float | None]) -> float | None:
    """The geometric mean; None of no values, and where one of them is None: it was infinite, or not measured."""
    values = list(values)
    if not values or None in values:
        return None
    return statistics.geometric_mean(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation; None of fewer than two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values)


def median(values: Sequence[float]) -> float | None:
    """The median; None of no values."""
    if not values:
        return None
    return statistics.median(values)


def ratio(size: int | None, base: int | None) -> float | None:
    """size / base; None where one of them is unknown."""
    if not size or not base:
        return None
    return size / base
