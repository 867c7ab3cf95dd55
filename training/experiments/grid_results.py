"""A grid with the rows of its runs, the learning rates that follow from them, and what lies beside them."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from modeling_leaner.files import naming, read_json, write_bytes

from ..records import COLUMNS, Guess, ResultRow, checked
from .baselines import GUESSES
from .grid import Grid, Run, load_grid


RowsByRun = dict[Run, ResultRow]


def read_rows(path: Path) -> RowsByRun:
    """The rows of results.csv by run; none without the file. Raises ValueError that names the file and the line."""
    if not path.exists():
        return {}
    rows = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for cells in reader:
            with naming(f"{path}: line {reader.line_num}"):
                row = ResultRow.from_cells(cells)
            rows[Run(row.phase, row.shape, row.seed, row.learning_rate, row.branch)] = row
    return rows


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Writes the rows as `read_rows` reads them, with all columns, whole or not at all."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        higher = row.higher_is_better
        writer.writerow({**vars(row), "higher_is_better": None if higher is None else int(higher)})
    write_bytes(path, file.getvalue().encode())


def gain(value: float, higher_is_better: bool | None) -> float:
    """A value of the metric, or a difference of two, such that more is better."""
    return value if higher_is_better else -value


class Choice(NamedTuple):
    """A shape's best learning rate, by the mean over the tuning seeds, and how clear that is.

    lead: distance of its mean from the runner-up's, in the metric's units. spread: the range of values over the tuning
    seeds, the larger one of these two rates; None with a single seed. Both are None where no second rate finished.
    """

    learning_rate: float | None
    lead: float | None = None
    spread: float | None = None


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


def _choose(grid: Grid, rows: RowsByRun, shape: str, rates: list[float]) -> Choice:
    """The choice of one shape among the rates with which every tuning seed finished.

    Ties go to the lower evaluation loss, then to the lower rate. Accuracies tie where a model still predicts the most
    frequent class alone; its loss already tells the rates apart.
    """
    tried = []
    for rate in rates:
        done = [rows.get(Run("tune", shape, seed, rate)) for seed in grid.tuning.seeds]
        if all(row is not None and row.status == "finished" for row in done):
            values = [row.value for row in done]
            loss = fmean(math.inf if row.eval_loss is None else row.eval_loss for row in done)
            tried.append((-gain(fmean(values), done[0].higher_is_better), loss, rate, max(values) - min(values)))
    tried.sort()
    if len(tried) < 2:
        return Choice(tried[0][2] if tried else None)
    (best, _, rate, spread), (second, _, _, other_spread) = tried[:2]
    return Choice(rate, second - best, max(spread, other_spread) if len(grid.tuning.seeds) > 1 else None)


@dataclass
class GridResults:
    """A grid and the rows of its runs; what lies beside them is read when it is first asked for, and once."""

    grid: Grid
    rows: RowsByRun

    @property
    def name(self) -> str:
        """The name of the grid's folder."""
        return Path(self.grid.output_dir).name

    @property
    def tuning(self) -> Tuning:
        """The choice of learning rates as far as the rows go, of which a sweep adds some.

        While the best rate of a shape that has had all of them lies at an edge, the grid grows there by the ratio of
        its two outermost rates, for all shapes, up to `tuning.extend` times on each side.
        """
        grid, rates = self.grid, list(self.grid.learning_rates)
        if len(rates) == 1:
            return Tuning(rates, dict.fromkeys(grid.shapes, Choice(rates[0])), [], [])
        below = above = grid.tuning.extend
        while True:
            seeds = grid.tuning.seeds
            runs = [Run("tune", shape, seed, rate) for rate in rates for seed in seeds for shape in grid.shapes]
            due = [run for run in runs if run not in self.rows]
            shapes_due = {run.shape for run in due}
            choices = {shape: _choose(grid, self.rows, shape, rates) for shape in grid.shapes}
            best = [choice.learning_rate for shape, choice in choices.items() if shape not in shapes_due]
            grows_down = below > 0 and rates[0] in best
            grows_up = above > 0 and rates[-1] in best
            if not (grows_down or grows_up):
                at_edge = [shape for shape, choice in choices.items() if choice.learning_rate in (rates[0], rates[-1])]
                return Tuning(rates, choices, at_edge, due)
            if grows_down:
                rates = [float(f"{rates[0] ** 2 / rates[1]:.6g}"), *rates]
                below -= 1
            if grows_up:
                rates = [*rates, float(f"{rates[-1] ** 2 / rates[-2]:.6g}")]
                above -= 1

    @property
    def any_reported(self) -> ResultRow | None:
        """One finished row to report, of any branch: all have the same metric; None before the first."""
        return next((row for row in self.rows.values() if row.phase == "report" and row.status == "finished"), None)

    @cached_property
    def best_guess(self) -> Guess | None:
        """The best simple baseline that reads the input, else the one that reads nothing; None if neither is known."""
        run, path = self.any_reported, self.grid.path(GUESSES)
        if run is None:
            return None
        fitted = checked(list[Guess], read_json(path), path) if path.is_file() else []
        chance = [] if run.chance is None else [Guess(name="a guess that reads nothing", value=run.chance)]
        return max(fitted or chance, key=lambda guess: gain(guess.value, run.higher_is_better), default=None)


def load_results(grid: Grid) -> GridResults:
    """The results of a grid; without rows before its first run."""
    return GridResults(grid, read_rows(grid.path("results.csv")))


def load_folder(folder: Path) -> GridResults:
    """The results in a folder with grid.yaml and results.csv."""
    return load_results(replace(load_grid(folder / "grid.yaml"), output_dir=str(folder)))
