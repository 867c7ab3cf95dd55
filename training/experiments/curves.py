"""Pairs of shapes along the branches of a grid: the difference at equal tokens, equal FLOPs and equal seconds.

A shape is read where its branches ended; the other one at the same cost, between two of its own branches, along a
straight line over the logarithm of the cost, seed by seed. Nothing is read beyond the first and the last branch.
Seconds are those of `step_time.py`, measured apart in turns, times the steps: what the runs took depends on what ran
beside them.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

from ..records import ResultRow, StepTimes, checked
from .branches import step_of
from .grid import Grid, GridError
from .rows import Rows, finished_row, reported


STEP_SECONDS = "step_seconds.json"
WAYS = ("tokens", "FLOPs", "seconds")
Points = Sequence[tuple[float, float]]


def second_difference(points: Points) -> float:
    """The second divided difference of three points: half the curvature there."""
    (x0, y0), (x1, y1), (x2, y2) = points
    return ((y2 - y1) / (x2 - x1) - (y1 - y0) / (x1 - x0)) / (x2 - x0)


def read_at(points: Points, cost: float) -> tuple[float, float | None] | None:
    """The value at a cost, and its error; None beyond the points.

    The value lies on the line over log cost between the two points around it, the error is what the curvature adds to
    it: |f[a, b, c]| (x − a)(b − x), the larger one of those with the next point c on either side. It is 0 at a point,
    and None in between two points that are alone.

    Args:
        points: cost and value, by increasing cost.
    """
    logs = [(math.log(point_cost), value) for point_cost, value in points]
    x = math.log(cost)
    for log_cost, value in logs:
        if math.isclose(log_cost, x, abs_tol=1e-9):
            return value, 0.0
    if not logs or not logs[0][0] < x < logs[-1][0]:
        return None
    right = bisect_left(logs, x, key=itemgetter(0))
    left = right - 1
    a, value_a = logs[left]
    b, value_b = logs[right]
    value = value_a + (value_b - value_a) * (x - a) / (b - a)
    starts = [start for start in (left - 1, left) if 0 <= start <= len(logs) - 3]
    if not starts:
        return value, None
    curvature = max(abs(second_difference(logs[start : start + 3])) for start in starts)
    return value, curvature * (x - a) * (b - x)


def step_seconds(grid: Grid) -> dict[str, float] | None:
    """Seconds of a training step by shape, as STEP_SECONDS of the grid has them; None where they were not measured.

    Raises:
        GridError: the file has another form, or its steps are not those of the grid.
    """
    path = grid.path(STEP_SECONDS)
    if not path.is_file():
        return None
    try:
        measured = checked(StepTimes, json.loads(path.read_bytes()), path).shapes
    except ValueError as error:
        raise GridError(f"{path}: {str(error).removeprefix(f'{path}: ')}; leaner step-time writes it") from error
    for shape in grid.shapes:
        step = step_of(grid, shape)
        expected = None
        if step is not None:
            expected = step.tokens
        tokens = None
        if shape in measured:
            tokens = measured[shape].tokens
        if expected is None or tokens != expected:
            mismatch = f"expected a step of {shape} of {expected} tokens, got {tokens}"
            raise GridError(f"{path}: {mismatch}; leaner step-time measures it")
    return {shape: step.seconds for shape, step in measured.items()}


def cost_of(row: ResultRow, way: str, seconds: dict[str, float] | None) -> float | None:
    """What a branch cost, in tokens, FLOPs or seconds; None where it is unknown."""
    if way == "tokens":
        return row.tokens
    if way == "FLOPs":
        return row.training_flops
    if seconds is None:
        return None
    return row.steps * seconds[row.shape]


def curve_of(
    grid: Grid, rows: Rows, shape: str, seed: int, rate: float | None, way: str, seconds: dict | None
) -> dict[int, tuple[float, float]]:
    """Cost and value of each finished branch of one seed, by its tokens."""
    points = {}
    for branch in grid.branches or []:
        row = finished_row(rows, reported(grid, shape, seed, rate, branch))
        if row is None:
            continue
        cost = cost_of(row, way, seconds)
        if cost is not None:
            points[branch] = (cost, row.value)
    return points


def read_pair(
    grid: Grid, rows: Rows, best: dict[str, float | None], pair: Sequence[str], way: str
) -> dict[int, tuple[list[float], list[float], float | None]]:
    """Of each branch of the first shape: its values, those of the second at the same cost, and their largest error.

    Both hold the same seeds, in the same order: those whose second shape can be read there.
    """
    shape, other = pair
    seconds = None
    if way == "seconds":
        seconds = step_seconds(grid)
    by_branch = {}
    for branch in grid.branches or []:
        own_values = []
        other_values = []
        errors = []
        for seed in grid.seeds_for(shape):
            own_curve = curve_of(grid, rows, shape, seed, best[shape], way, seconds)
            other_curve = curve_of(grid, rows, other, seed, best[other], way, seconds)
            if branch not in own_curve:
                continue
            cost, own_value = own_curve[branch]
            at_same_cost = read_at(sorted(other_curve.values()), cost)
            if at_same_cost is None:
                continue
            other_value, error = at_same_cost
            own_values.append(own_value)
            other_values.append(other_value)
            errors.append(error)
        by_branch[branch] = (own_values, other_values, _largest(errors))
    return by_branch


def _largest(errors: Sequence[float | None]) -> float | None:
    """The largest of the errors; None where one of them is unknown or there is none."""
    if None in errors:
        return None
    return max(errors, default=None)
