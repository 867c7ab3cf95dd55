"""What a law of shape is fitted to: the finished runs of a grid's branches, and the sizes of its shapes.

Quality is such that lower is better: the held-out loss, or 1 − the metric where more of that is better.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from modeling_leaner.planning.laws import sizes_of
from modeling_leaner.shapes import load_config

from ..experiments.branches import step_of
from ..experiments.grid_cells import cells_of
from ..experiments.grid_results import GridResults


@dataclass(frozen=True)
class Point:
    """One finished run of a branch, or the mean of some: the quality is lower where it is better."""

    shape: str
    seed: int | None
    """None of a mean over seeds."""
    tokens: int
    quality: float


@dataclass(frozen=True)
class LawData:
    """The finished runs of a grid's branches, and the sizes of its shapes.

    `sizes`: of each shape, as `sizes_of` names them. `failed`: how many runs are missing, since they failed.
    """

    points: list[Point]
    sizes: dict[str, dict[str, float]]
    metric: str
    higher_is_better: bool
    failed: int
    family: str

    @property
    def shapes(self) -> list[str]:
        """The shapes that have runs."""
        return shapes_of(self.points)

    @property
    def cell_count(self) -> int:
        """How many shapes × budgets have runs."""
        return len(by_cell(self.points))

    @property
    def quality(self) -> str:
        """What is predicted, in words."""
        if self.higher_is_better:
            return f"1 − {self.metric}"
        return self.metric


def read_data(results: GridResults) -> LawData:
    """The finished runs to report of every branch: the only place that reads rows."""
    grid = results.grid
    points = []
    metric = ""
    higher_is_better = False
    failed = 0
    for branch in grid.branches or []:
        cells = cells_of(results, branch)
        failed += sum(map(len, cells.failed.values()))
        for row in cells.rows:
            metric = row.metric
            higher_is_better = row.higher_is_better
            quality = row.value
            if higher_is_better:
                quality = 1 - quality
            points.append(Point(row.shape, row.seed, branch, quality))
    configs = {shape: load_config(shape) for shape in grid.shapes}
    sizes = {shape: sizes_of(config, step_of(grid, shape).row_tokens) for shape, config in configs.items()}
    family = configs[grid.baseline].model_type.removeprefix("lean_")
    return LawData(points, sizes, metric, higher_is_better, failed, family)


def shapes_of(points: Sequence[Point]) -> list[str]:
    """The shapes of some points, in their order."""
    return list(dict.fromkeys(point.shape for point in points))


def by_cell(points: Sequence[Point]) -> dict[tuple[str, int], list[float]]:
    """(shape, tokens) → the qualities of its seeds."""
    cells: dict[tuple[str, int], list[float]] = {}
    for point in points:
        cells.setdefault((point.shape, point.tokens), []).append(point.quality)
    return cells


def by_seed(points: Sequence[Point], shape: str) -> dict[int, dict[int, float]]:
    """Seed → tokens → quality of one shape."""
    qualities: dict[int, dict[int, float]] = {}
    for point in points:
        if point.shape == shape:
            qualities.setdefault(point.seed, {})[point.tokens] = point.quality
    return qualities


def cell_means(points: Sequence[Point]) -> list[Point]:
    """A point for each shape and budget, at the mean over the seeds."""
    return [
        Point(shape, None, tokens, statistics.fmean(qualities))
        for (shape, tokens), qualities in by_cell(points).items()
    ]


def leave_out(points: Sequence[Point], shape: str) -> tuple[list[Point], list[Point]]:
    """The points of all other shapes, and the cell means of this one."""
    others = [point for point in points if point.shape != shape]
    return others, cell_means([point for point in points if point.shape == shape])
