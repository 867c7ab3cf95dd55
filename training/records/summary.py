"""summary.json of a grid: what its rows say of each shape, each contrast and each budget.

A record that has several classes before its name has their fields, too, those of the last class first.
"""

from typing import Self

from .base import Count, Duration, Record


class PairedStatistics(Record):
    """A comparison of two series of runs, pair by pair; None where it cannot be known from so few pairs."""

    pairs: Count | None = None
    """Seeds that both finished; None of the baseline beside itself."""
    difference: float | None = None
    """The mean over the pairs, first minus second, in the metric's units."""
    interval: list[float] | None = None
    """95 % t interval of the difference."""
    p: float | None = None
    """Two-sided, of no difference."""
    p_non_inferiority: float | None = None
    """One-sided, of a loss of at least the margin."""

    @classmethod
    def unknown(cls, pairs: int | None = None) -> Self:
        """Nothing is known but how many pairs there are. Every field is set, so that a document has each as null."""
        return cls(pairs=pairs, difference=None, interval=None, p=None, p_non_inferiority=None)


class ShapePair(Record):
    """Two shapes of a grid."""

    shape: str
    minus: str
    """The shape that is subtracted."""


class Contrast(PairedStatistics, ShapePair):
    """One of the grid's contrasts."""

    row_error: float | None = None
    """Standard error of the difference by the choice of held-out rows, at most; None where it has no formula."""
    p_corrected: float | None = None
    """`p` corrected by Holm for the number of contrasts."""


class CostPoint(ShapePair):
    """A pair of shapes at the cost of one branch of the first."""

    equal: str
    """What both have spent: tokens, FLOPs or seconds."""
    branch: Count
    """The tokens at which that branch ends."""


class Reading(PairedStatistics, CostPoint):
    """The difference of a pair at equal cost."""

    interpolation_error: float | None = None
    """The largest error of the second shape's values, in the metric's units; None where it is unknown."""


class BranchScore(Record):
    """The runs of one shape at one budget."""

    shape: str
    n: Count
    """Seeds that finished."""
    mean: float | None = None
    """Of the metric over the seeds."""
    values: dict[str, float]
    """The metric by seed."""
    sd: float | None = None
    """Over the seeds; None of fewer than two."""
    failed: list[int]
    """Seeds that failed."""
    tokens: Count | None = None
    """Read by the end of a run."""
    training_flops: Count | None = None
    """Spent by the end of a run."""
    tokens_per_parameter: float | None = None
    """The mean over the seeds."""
    seconds: Duration | None = None
    """Of a run with its part of the trunk, the mean over the seeds."""


class BranchCell(PairedStatistics, BranchScore):
    """The runs of one shape at one budget, compared with the baseline there."""


class BudgetSummary(Record):
    """All shapes at one budget: a point of every curve."""

    branch: Count
    """In tokens."""
    shapes: list[BranchCell]
    contrasts: list[Contrast]

    def cell(self, shape: str) -> BranchCell:
        """The runs of a shape."""
        return next(cell for cell in self.shapes if cell.shape == shape)


class TunedScore(Record):
    """The runs of one shape at its best learning rate."""

    shape: str
    learning_rate: float | None = None
    """The best of the tuning; None where none finished."""
    tuning_lead: float | None = None
    """Distance of the best rate's mean from the runner-up's, in the metric's units."""
    tuning_spread: float | None = None
    """Range of the metric over the tuning seeds, the larger one of the two best rates."""
    n: Count
    """Seeds that finished."""
    mean: float | None = None
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of fewer than two."""
    median: float | None = None
    """Of the metric over the seeds."""
    failure_rate: float | None = None
    """Share, 0 to 1, of runs that failed or ended worse than the best simple guess."""


class CellSummary(PairedStatistics, TunedScore):
    """One shape of a grid, compared with the baseline."""

    parameters: Count | None = None
    parameters_over_baseline: float | None = None
    """Share of the baseline's."""
    seconds: Duration | None = None
    """Of a training, the mean over the seeds."""
    kappa_start: float | None = None
    """Condition number of the head outputs before training: median over the layers, geometric mean over the seeds."""
    kappa_end: float | None = None
    """The same after the training."""
    chance: float | None = None
    """The metric of a guess that reads nothing, the mean over the seeds."""
    learned: bool | None = None
    """Whether the runs clearly beat the best simple guess; None where that is unknown."""
    verdict: str
    """baseline, undecided, no verdict (the baseline has not learned), or non-inferior before correction."""
    notes: list[str]
    """What a reader has to know."""


class FailedRun(Record):
    """A run that failed, and why."""

    phase: str
    """tune, trunk or report."""
    shape: str
    seed: Count
    learning_rate: float
    branch: Count | None
    """The tokens at which it would have ended; None of a run that is no branch."""
    error: str | None
    """The last line that it wrote."""
