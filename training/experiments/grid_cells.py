"""The cells of a grid at one budget: the finished rows of every shape, seed by seed, and the seeds that failed."""

from typing import NamedTuple

from ..records import ResultRow
from .grid_results import GridResults
from .rows import reported


class GridCells(NamedTuple):
    """The runs of one budget: finished rows by shape and seed, and the seeds that failed."""

    finished: dict[str, dict[int, ResultRow]]
    failed: dict[str, list[int]]

    @property
    def rows(self) -> list[ResultRow]:
        """All finished rows, shape by shape."""
        return [row for finished in self.finished.values() for row in finished.values()]

    @property
    def higher_is_better(self) -> bool | None:
        """Whether more of the metric is better; None while no run has finished."""
        if not self.rows:
            return None
        return self.rows[0].higher_is_better

    def values(self, shape: str) -> dict[str, float]:
        """Seed → value of a shape; the seed is text, as keys are in JSON."""
        return {str(seed): row.value for seed, row in self.finished[shape].items()}

    def pairs(self, shape: str, other: str) -> list[tuple[ResultRow, ResultRow]]:
        """The rows of two shapes, seed by seed, of the seeds that both finished."""
        others = self.finished[other]
        return [(row, others[seed]) for seed, row in self.finished[shape].items() if seed in others]


def cells_of(results: GridResults, branch: int | None = None) -> GridCells:
    """The reported runs at the best rates; of a grid with branches those of `branch` tokens, else of the longest one.

    A branch that could not begin, since its trunk had failed before, has failed.
    """
    grid = results.grid
    cells = GridCells({}, {})
    for shape in grid.shapes:
        rate = results.tuning.best[shape]
        cells.finished[shape] = {}
        cells.failed[shape] = []
        for seed in grid.seeds_for(shape):
            run = reported(grid, shape, seed, rate, branch)
            row = results.rows.get(run, results.rows.get(run.trunk))
            if row is None:
                continue
            if row.has_failed:
                cells.failed[shape].append(seed)
            elif row.has_finished and row.phase == "report":
                cells.finished[shape][seed] = row
    return cells
