"""Pairs of shapes along the branches of a grid: the difference at equal tokens, equal FLOPs and equal seconds.

A shape is read where its branches ended; the other one at the same cost, between two of its own branches, along a
straight line over the logarithm of the cost, seed by seed. Nothing is read beyond the first and the last branch.
Seconds are those of `timings.py`, measured apart in turns, times the steps: what the runs took depends on what ran
beside them.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from ..records import ResultRow
from .grid_results import GridResults
from .rows import finished_row, reported


COST_KINDS = ("tokens", "FLOPs", "seconds")


class CurvePoint(NamedTuple):
    """What a branch has cost, and its value of the metric."""

    cost: float
    value: float


class Interpolated(NamedTuple):
    """A value between points; error: how far off it may be, None where so few points cannot tell."""

    value: float
    error: float | None


def second_difference(points: Sequence[tuple[float, float]]) -> float:
    """The second divided difference of three points: half the curvature there."""
    (x0, y0), (x1, y1), (x2, y2) = points
    return ((y2 - y1) / (x2 - x1) - (y1 - y0) / (x1 - x0)) / (x2 - x0)


def interpolate(points: Sequence[CurvePoint], cost: float) -> Interpolated | None:
    """The value at a cost, and its error; None beyond the points.

    The value lies on the line over log cost between the two points around it, the error is what the curvature adds to
    it: |f[a, b, c]| (x − a)(b − x), the larger one of those with the next point c on either side. It is 0 at a point,
    and None in between two points that are alone.

    Args:
        points: by increasing cost.
    """
    logs = [(math.log(point_cost), value) for point_cost, value in points]
    x = math.log(cost)
    for log_cost, value in logs:
        if math.isclose(log_cost, x, abs_tol=1e-9):
            return Interpolated(value, 0.0)
    if not logs or not logs[0][0] < x < logs[-1][0]:
        return None
    right = bisect_left(logs, x, key=itemgetter(0))
    left = right - 1
    a, value_a = logs[left]
    b, value_b = logs[right]
    value = value_a + (value_b - value_a) * (x - a) / (b - a)
    starts = [start for start in (left - 1, left) if 0 <= start <= len(logs) - 3]
    if not starts:
        return Interpolated(value, None)
    curvature = max(abs(second_difference(logs[start : start + 3])) for start in starts)
    return Interpolated(value, curvature * (x - a) * (b - x))


def cost_of(results: GridResults, row: ResultRow, cost_kind: str) -> float | None:
    """What a branch cost, by one of `COST_KINDS`; None where it is unknown."""
    if cost_kind == "tokens":
        return row.tokens
    if cost_kind == "FLOPs":
        return row.training_flops
    if results.step_seconds is None or row.steps is None:
        return None
    return row.steps * results.step_seconds[row.shape]


def curve_of(results: GridResults, shape: str, seed: int, cost_kind: str) -> dict[int, CurvePoint]:
    """Cost and value of each finished branch of one seed at the shape's best rate, by the branch's tokens."""
    grid = results.grid
    rate = results.tuning.best[shape]
    points = {}
    for branch in grid.branches or []:
        row = finished_row(results.rows, reported(grid, shape, seed, rate, branch))
        if row is None:
            continue
        cost = cost_of(results, row, cost_kind)
        if cost is not None:
            points[branch] = CurvePoint(cost, row.value)
    return points


class PairAtCost(NamedTuple):
    """The values of two shapes at the same cost, of the same seeds in the same order.

    error: the largest of those of the second shape's values; None where one of them is unknown.
    """

    values: list[float]
    others: list[float]
    error: float | None


def pair_at_equal_cost(results: GridResults, shape: str, other: str, cost_kind: str) -> dict[int, PairAtCost]:
    """Of each branch of the first shape: its values and those of the second at the same cost.

    Seeds whose second shape cannot be read there are left out.
    """
    grid = results.grid
    seeds = grid.seeds_for(shape)
    own_curves = {seed: curve_of(results, shape, seed, cost_kind) for seed in seeds}
    other_curves = {seed: curve_of(results, other, seed, cost_kind) for seed in seeds}
    by_branch = {}
    for branch in grid.branches or []:
        values = []
        others = []
        errors = []
        for seed in seeds:
            if branch not in own_curves[seed]:
                continue
            own = own_curves[seed][branch]
            at_same_cost = interpolate(sorted(other_curves[seed].values()), own.cost)
            if at_same_cost is None:
                continue
            values.append(own.value)
            others.append(at_same_cost.value)
            errors.append(at_same_cost.error)
        by_branch[branch] = PairAtCost(values, others, _largest(errors))
    return by_branch


def _largest(errors: Sequence[float | None]) -> float | None:
    """The largest of the errors; None where one of them is unknown or there is none."""
    if None in errors:
        return None
    return max(errors, default=None)
