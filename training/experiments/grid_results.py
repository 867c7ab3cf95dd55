"""A grid with its rows and all that lies beside them: loaded once, and passed on."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..records import Guess, LatencyFile, ResultRow, RowError
from .baselines import read_guesses, read_row_errors
from .grid import Grid, GridError, load_grid
from .rows import RowsByRun, read_rows
from .timings import read_latency, step_seconds
from .tuning import Tuning, tune


@dataclass
class GridResults:
    """A grid and the rows of its runs.

    What lies beside the rows is read when it is first asked for, and once; so are the grids that this one names, and
    those that name it.
    """

    grid: Grid
    rows: RowsByRun

    @property
    def name(self) -> str:
        """The name of the grid's folder."""
        return Path(self.grid.output_dir).name

    @property
    def tuning(self) -> Tuning:
        """The choice of learning rates, as far as the rows go, of which a sweep adds some."""
        return tune(self.grid, self.rows)

    @cached_property
    def start_from(self) -> "GridResults | None":
        """The grid whose weights the runs start from; None where they start anew. Raises GridError without rows."""
        if self.grid.start_from is None:
            return None
        folder = Path(self.grid.start_from)
        rows = read_rows(folder / "results.csv")
        if not rows:
            raise GridError(f"start_from: expected finished runs in {folder / 'results.csv'}, found none")
        return GridResults(load_grid(folder / "grid.yaml"), rows)

    @cached_property
    def fine_tuned(self) -> "list[GridResults]":
        """The grids that started from this one's weights, by the name of their folder, which lies beside this one's.

        Without those that have no rows yet.
        """
        grids = []
        for path in sorted(Path(self.grid.output_dir).parent.glob("*/results.csv")):
            other = load_folder(path.parent)
            start = other.grid.start_from
            if other.rows and start is not None and Path(start) == Path(self.grid.output_dir):
                grids.append(other)
        return grids

    @cached_property
    def beside(self) -> "GridResults | None":
        """The grid that is shown beside this one; None where it names none. Raises GridError without its grid.yaml."""
        if self.grid.beside is None:
            return None
        return load_results(load_grid(Path(self.grid.beside) / "grid.yaml"))

    @cached_property
    def guesses(self) -> list[Guess] | None:
        """The simple guesses that read the input; None where none were made."""
        return read_guesses(self.grid)

    @property
    def guess_values(self) -> list[float]:
        """What the simple guesses score; empty where none were made."""
        if self.guesses is None:
            return []
        return [guess.value for guess in self.guesses]

    @cached_property
    def row_errors(self) -> list[RowError] | None:
        """How much the choice of held-out rows moves published pairs; None where it was not measured."""
        return read_row_errors(self.grid)

    @cached_property
    def latency(self) -> LatencyFile | None:
        """Times of inference; None where they were not measured."""
        return read_latency(self.grid)

    @cached_property
    def step_seconds(self) -> dict[str, float] | None:
        """Seconds of a training step by shape; None where they were not measured."""
        return step_seconds(self.grid)

    @property
    def any_reported(self) -> ResultRow | None:
        """One finished row to report, of any branch: all have the same metric; None before the first."""
        return next((row for row in self.rows.values() if row.phase == "report" and row.has_finished), None)


def load_results(grid: Grid) -> GridResults:
    """The results of a grid; without rows before its first run. Raises GridError where results.csv does not fit."""
    return GridResults(grid, read_rows(grid.path("results.csv")))


def load_folder(folder: Path) -> GridResults:
    """The results in a folder with grid.yaml and results.csv. Raises GridError where one of them does not fit."""
    grid = load_grid(folder / "grid.yaml")
    path = folder / "results.csv"
    rows = read_rows(path)
    budgets = grid.branches or []
    for run in rows:
        if run.branch is not None and run.branch not in budgets:
            raise GridError(f"{path}: a row of {run.branch} tokens, expected one of the grid's branches, {budgets}")
    return GridResults(grid, rows)
