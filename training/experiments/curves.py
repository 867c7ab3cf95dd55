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

from .branches import step_of
from .grid import Grid, GridError
from .runs import Row, Run, reported


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
    logs = [(math.log(place), value) for place, value in points]
    place = math.log(cost)
    near = [value for each, value in logs if math.isclose(each, place, abs_tol=1e-9)]
    if near:
        return near[0], 0.0
    if not logs or not logs[0][0] < place < logs[-1][0]:
        return None
    right = bisect_left([each for each, _ in logs], place)
    (low, first), (high, last) = logs[right - 1], logs[right]
    value = first + (last - first) * (place - low) / (high - low)
    threes = [logs[start : start + 3] for start in (right - 2, right - 1) if 0 <= start <= len(logs) - 3]
    bend = max((abs(second_difference(three)) for three in threes), default=None)
    return value, None if bend is None else bend * (place - low) * (high - place)


def step_seconds(grid: Grid) -> dict[str, float] | None:
    """Seconds of a training step by shape, as STEP_SECONDS of the grid has them; None where they were not measured.

    Raises:
        GridError: the file has another form, or its steps are not those of the grid.
    """
    path = grid.path(STEP_SECONDS)
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_bytes())
        found = {shape: float(each["seconds"]) for shape, each in held["shapes"].items()}
        tokens = {shape: each["tokens"] for shape, each in held["shapes"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise GridError(f"{path}: {type(error).__name__} {error}; leaner step-time writes it") from error
    for shape in grid.shapes:
        step = step_of(grid, shape)
        if step is None or tokens.get(shape) != step.tokens:
            said = f"expected a step of {shape} of {step and step.tokens} tokens, got {tokens.get(shape)}"
            raise GridError(f"{path}: {said}; leaner step-time measures it")
    return found


def cost_of(row: Row, way: str, seconds: dict[str, float] | None) -> float | None:
    """What a branch cost, in tokens, FLOPs or seconds; None where it is unknown."""
    if way == "seconds":
        return None if seconds is None else row["steps"] * seconds[row["shape"]]
    return row["tokens"] if way == "tokens" else row["training_flops"]


def curve_of(
    grid: Grid, rows: dict[Run, Row], shape: str, seed: int, rate: float | None, way: str, seconds: dict | None
) -> dict[int, tuple[float, float]]:
    """Cost and value of each finished branch of one seed, by its tokens."""
    found = {}
    for branch in grid.branches or []:
        row = rows.get(reported(grid, shape, seed, rate, branch), {})
        cost = cost_of(row, way, seconds) if row.get("status") == "finished" else None
        if cost is not None:
            found[branch] = (cost, row["value"])
    return found


def read_pair(
    grid: Grid, rows: dict[Run, Row], best: dict[str, float | None], pair: Sequence[str], way: str
) -> dict[int, tuple[list[float], list[float], float | None]]:
    """Of each branch of the first shape: its values, those of the second at the same cost, and their largest error.

    Both hold the same seeds, in the same order: those whose second shape can be read there.
    """
    shape, other = pair
    seconds, found = step_seconds(grid) if way == "seconds" else None, {}
    for branch in grid.branches or []:
        own, others, errors = [], [], []
        for seed in grid.seeds_for(shape):
            here = curve_of(grid, rows, shape, seed, best[shape], way, seconds).get(branch)
            there = sorted(curve_of(grid, rows, other, seed, best[other], way, seconds).values())
            read = None if here is None else read_at(there, here[0])
            if read is not None:
                own.append(here[1]), others.append(read[0]), errors.append(read[1])
        found[branch] = (own, others, None if None in errors else max(errors, default=None))
    return found
