"""The learning rates that follow from a grid's rows: each shape's best one, and what is still to be tried."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from .grid import Grid
from .rows import RowsByRun, Run, finished_row, infinite_if_unknown
from .run_statistics import gain


class Choice(NamedTuple):
    """A shape's best learning rate, by the mean over the tuning seeds, and how clear that is.

    lead: distance of its mean from the runner-up's, in the metric's units. spread: the range of values over the tuning
    seeds, the larger one of these two rates; None with a single seed. Both are None where no second rate finished.
    """

    learning_rate: float | None
    lead: float | None = None
    spread: float | None = None

    @property
    def tie(self) -> bool:
        """Whether the seeds differ by as much as the rates do."""
        return self.spread is not None and self.lead <= self.spread


class Tuning(NamedTuple):
    """What the rows say of the learning rates.

    learning_rates: all that are tried. choices: each shape's. at_edge: the shapes whose best rate is the lowest or the
    highest that is tried. due: the runs of the tuning without a row.
    """

    learning_rates: list[float]
    choices: dict[str, Choice]
    at_edge: list[str]
    due: list[Run]

    @property
    def best(self) -> dict[str, float | None]:
        """Each shape's best rate; None where none finished."""
        return {shape: choice.learning_rate for shape, choice in self.choices.items()}


class _Score(NamedTuple):
    """What the rates of a shape are ranked by: the lowest comes first."""

    mean: float  # of the metric, over the tuning seeds, negated where higher is better
    loss: float
    learning_rate: float


def _choose(grid: Grid, rows: RowsByRun, shape: str, rates: list[float]) -> Choice:
    """The choice of one shape among the rates with which every tuning seed finished.

    Ties go to the lower evaluation loss, then to the lower rate. Accuracies tie where a model still predicts the most
    frequent class alone; its loss already tells the rates apart.
    """
    values = {}
    scores = []
    for rate in rates:
        done = [finished_row(rows, Run("tune", shape, seed, rate)) for seed in grid.tuning.seeds]
        if None in done:
            continue
        values[rate] = [row.value for row in done]
        mean_gain = gain(statistics.fmean(values[rate]), done[0].higher_is_better)
        loss = statistics.fmean(infinite_if_unknown(row.eval_loss) for row in done)
        scores.append(_Score(-mean_gain, loss, rate))
    if not scores:
        return Choice(None)
    best, *others = sorted(scores)
    if not others:
        return Choice(best.learning_rate)
    second = others[0]
    spread = None
    if len(grid.tuning.seeds) > 1:
        spread = max(_range(values[best.learning_rate]), _range(values[second.learning_rate]))
    return Choice(best.learning_rate, second.mean - best.mean, spread)


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _beyond(edge: float, neighbour: float) -> float:
    """The rate beyond an edge of the grid, by the ratio of the edge to its neighbour, rounded to 6 digits."""
    rate = edge * edge / neighbour
    return float(f"{rate:.6g}")


def tune(grid: Grid, rows: RowsByRun) -> Tuning:
    """Follows the tuning as far as the rows go.

    While the best rate of a shape that has had all of them lies at an edge, the grid grows there by the ratio of its
    two outermost rates, for all shapes, up to `tuning.extend` times on each side. New rates are rounded to 6 digits.
    """
    rates = list(grid.learning_rates)
    if len(rates) == 1:
        return Tuning(rates, dict.fromkeys(grid.shapes, Choice(rates[0])), [], [])
    below = above = grid.tuning.extend
    while True:
        seeds = grid.tuning.seeds
        runs = [Run("tune", shape, seed, rate) for rate in rates for seed in seeds for shape in grid.shapes]
        due = [run for run in runs if run not in rows]
        shapes_due = {run.shape for run in due}
        choices = {shape: _choose(grid, rows, shape, rates) for shape in grid.shapes}
        best = [choice.learning_rate for shape, choice in choices.items() if shape not in shapes_due]
        grows_down = below > 0 and rates[0] in best
        grows_up = above > 0 and rates[-1] in best
        if not (grows_down or grows_up):
            at_edge = [shape for shape in choices if choices[shape].learning_rate in (rates[0], rates[-1])]
            return Tuning(rates, choices, at_edge, due)
        if grows_down:
            rates = [_beyond(rates[0], rates[1]), *rates]
            below -= 1
        if grows_up:
            rates = [*rates, _beyond(rates[-1], rates[-2])]
            above -= 1
