"""results.csv of a grid: one typed row per run, read, checked and written."""

import csv
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TextIO

from modeling_leaner.files import read_json

from ..records.results import RESULTS
from ..records.rows import ADDED, COLUMNS, ResultRow
from .branches import origin_of, step_of
from .grid import Grid, GridError, slug


PHASES = ("tune", "trunk", "report")
Cells = dict[str, object]  # of a row, by column


class Run(NamedTuple):
    """One training; `phase` is tune, trunk or report, `branch` the tokens of one that decays from a trunk."""

    phase: str
    shape: str
    seed: int
    learning_rate: float
    branch: int | None = None

    @property
    def name(self) -> str:
        name = f"{self.phase}-{slug(self.shape)}-seed{self.seed}-lr{self.learning_rate!r}"
        if self.branch is not None:
            name += f"-tokens{self.branch}"
        return name

    @property
    def trunk(self) -> "Run":
        """The trunk of a branch."""
        return Run("trunk", self.shape, self.seed, self.learning_rate)

    def folder(self, grid: Grid) -> Path:
        return grid.path("runs") / self.name


RowsByRun = dict[Run, ResultRow]


def _check_row(row: ResultRow) -> None:
    """Raises ValueError for a row without a cell that every row needs."""
    if row.phase not in PHASES or row.status not in ("finished", "failed"):
        got = f"{row.phase} and {row.status}"
        raise ValueError(f"phase, status: expected {', '.join(PHASES)}, finished or failed, got {got}")
    needed = ["shape", "seed", "learning_rate"]
    if row.has_finished:
        needed += ["metric", "value", "higher_is_better"]
    for name in needed:
        if getattr(row, name) is None:
            raise ValueError(f"{name}: expected a value")


def read_rows(path: Path) -> RowsByRun:
    """The rows of results.csv by run; none without the file.

    Raises:
        GridError: the file has another form; names it and the line.
    """
    if not path.exists():
        return {}
    rows = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            columns = reader.fieldnames  # None of an empty file
            if columns not in (COLUMNS, COLUMNS[: -len(ADDED)]):
                raise ValueError(f"expected the columns {', '.join(COLUMNS)}")
            for cells in reader:
                row = ResultRow.from_cells(cells)
                if None in cells or None in cells.values():  # more of them than columns, or fewer
                    raise ValueError(f"expected {len(columns)} cells")
                _check_row(row)
                run = Run(row.phase, row.shape, row.seed, row.learning_rate, row.branch)
                if run in rows:
                    raise ValueError(f"a second row of {run.name}")
                rows[run] = row
        except (ValueError, csv.Error) as error:
            raise GridError(f"{path}: line {reader.line_num}: {error}") from error
    return rows


def write_rows(rows: Iterable[ResultRow], file: TextIO) -> None:
    """Writes the rows as `read_rows` reads them, with all columns."""
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in rows)


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; in a grid with branches that of `branch` tokens, by default the longest."""
    return Run("report", shape, seed, rate, grid.longest if branch is None else branch)


def finished_row(rows: RowsByRun, run: Run) -> ResultRow | None:
    """The row of a run that has finished; None of any other."""
    row = rows.get(run)
    return row if row is not None and row.has_finished else None


def _spent(grid: Grid, run: Run, cells: Cells) -> Cells:
    """What a finished run has read and spent, and what it began with."""
    step = step_of(grid, run.shape)
    steps = cells.get("steps")
    spent: Cells = {"begun_from": origin_of(run.folder(grid))}
    if step is None or steps is None:
        return spent
    tokens = steps * step.tokens
    spent |= {"tokens": tokens, "training_flops": steps * step.flops}
    if cells["parameters"]:
        spent["tokens_per_parameter"] = tokens / cells["parameters"]
    return spent


def _condition_numbers(results: dict) -> Cells:
    """The columns kappa_* from results.json; a layer without a condition number counts as infinite."""
    return {
        f"kappa_{end}": statistics.median(math.inf if layer is None else layer for layer in layers)
        for end, layers in (results.get("condition") or {}).items()
    }


def _score(grid: Grid, results: dict) -> Cells:
    """The metric that the grid compares, from results.json, with its direction and what guessing has.

    Raises:
        ValueError: the grid asks for another metric than the training's main one or its loss, or it is not finite.
    """
    main = results["main_metric"].removeprefix("eval_")
    metric = grid.metric or main
    if metric not in (main, "loss"):  # which way is up is known of these two
        raise ValueError(f"metric: expected the training's {main}, or loss, got {metric}")
    value = results["metrics"][f"eval_{metric}"]
    if not math.isfinite(value):
        raise ValueError(f"{metric} is {value}")
    score = {"metric": metric, "value": value, "higher_is_better": False, "chance": None}
    if metric == main:
        score |= {
            "higher_is_better": results["higher_is_better"],
            "chance": (results.get("chance") or {}).get("value"),
        }
    return score


def result_row(grid: Grid, run: Run) -> ResultRow:
    """The row of a run that ended well, from its results.json.

    Raises:
        ValueError: the file does not hold what was asked for, or the metric is not finite: the training diverged.
    """
    try:
        results = read_json(run.folder(grid) / RESULTS)
        if (results["seed"], results["learning_rate"]) != (run.seed, run.learning_rate):
            raise ValueError(f"results.json is of seed {results['seed']}, learning rate {results['learning_rate']}")
        cells = {**results["environment"], **results["train"], **run._asdict(), "status": "finished"}
        cells |= _score(grid, results)
        cells["eval_loss"] = results["metrics"].get("eval_loss")
        cells |= {name: results.get(name) for name in ("parameters", "rows", "data_sha256")}
        cells |= _condition_numbers(results)
        cells |= _spent(grid, run, cells)
        return ResultRow.from_cells(cells)
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"results.json: {type(error).__name__} {error}") from error
