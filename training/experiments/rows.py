"""results.csv of a grid: one typed row per run, read, checked and written."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TextIO

from .branches import origin_of, step_of
from .grid import Grid, GridError, slug


# The columns of results.csv; an empty cell is unknown. phase: tune, trunk or report. status: finished or failed.
# value: the metric, of a tune run on the rows held out. chance: the same metric of a guess that reads nothing.
# kappa_*: condition number of the concatenated head outputs before and after training, the median over the layers.
# rows, data_sha256: of the evaluation. error: the last line that a failed run wrote. failures: how often the same run
# had failed before. jobs: runs at a time.
COLUMNS = (
    "phase shape seed learning_rate status metric value chance higher_is_better eval_loss kappa_start kappa_end "
    "parameters steps seconds items_per_second peak_memory_bytes input_pipeline_share rows data_sha256 error failures "
    "jobs git_commit python torch transformers device processor threads"
).split()
# Not in files of earlier releases. branch: the tokens at which a branch ends, empty for any other run. tokens,
# training_flops: read and spent by the end of the run; of a branch they include, as seconds do, the part of its trunk
# that it goes on from. begun_from: SHA-256 of the trunk's weights that a branch began with.
ADDED = "branch tokens tokens_per_parameter training_flops begun_from".split()
COLUMNS += ADDED
INTEGERS = "seed branch higher_is_better parameters steps tokens training_flops peak_memory_bytes".split()
INTEGERS += "rows failures jobs threads".split()
NUMBERS = "learning_rate value chance eval_loss kappa_start kappa_end tokens_per_parameter seconds".split()
NUMBERS += "items_per_second input_pipeline_share".split()
PHASES = ("tune", "trunk", "report")
Row = dict[str, object]


class Run(NamedTuple):
    """One cell of the grid; `phase` is tune, trunk or report, `branch` the tokens of one that decays from a trunk."""

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


def typed_row(cells: dict[str, object]) -> Row:
    """All columns, typed; None for what is unknown or not finite."""
    filled = {name: cell for name, cell in cells.items() if cell != ""}
    row: Row = {name: filled.get(name) for name in COLUMNS}
    for name in INTEGERS:
        if row[name] is not None:
            row[name] = int(row[name])
    for name in NUMBERS:
        if row[name] is not None:
            row[name] = float(row[name])
            if not math.isfinite(row[name]):
                row[name] = None
    return row


def check_row(row: Row, other_length: bool, columns: int) -> None:
    """Raises ValueError for a row with more or fewer cells than columns, or without a cell that every row needs."""
    if other_length:
        raise ValueError(f"expected {columns} cells")
    if row["phase"] not in PHASES or row["status"] not in ("finished", "failed"):
        got = f"{row['phase']} and {row['status']}"
        raise ValueError(f"phase, status: expected {', '.join(PHASES)}, finished or failed, got {got}")
    needed = ["shape", "seed", "learning_rate"]
    if row["status"] == "finished":
        needed += ["metric", "value", "higher_is_better"]
    for name in needed:
        if row[name] is None:
            raise ValueError(f"{name}: expected a value")
    if row["higher_is_better"] not in (None, 0, 1):
        raise ValueError(f"higher_is_better: expected 0 or 1, got {row['higher_is_better']}")


def read_rows(path: Path) -> dict[Run, Row]:
    """The rows of results.csv by run; none without the file.

    Raises:
        GridError: the file has another form; names it and the line.
    """
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise GridError(f"{path}: no UTF-8 text: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = reader.fieldnames  # None of an empty file
    if columns not in (COLUMNS, COLUMNS[: -len(ADDED)]):
        raise GridError(f"{path}: expected the columns {', '.join(COLUMNS)}")
    try:
        rows = {}
        for cells in reader:
            row = typed_row(cells)
            other_length = None in cells or None in cells.values()
            check_row(row, other_length, len(columns))
            run = Run(*(row[name] for name in Run._fields))
            if run in rows:
                raise ValueError(f"a second row of {run.name}")
            rows[run] = row
    except ValueError as error:
        raise GridError(f"{path}: line {reader.line_num}: {error}") from error
    return rows


def write_rows(rows: Iterable[Row], file: TextIO) -> None:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; in a grid with branches that of `branch` tokens, by default the longest."""
    if branch is None:
        branch = grid.longest
    return Run("report", shape, seed, rate, branch)


def infinite_if_unknown(value: float | None) -> float:
    if value is None:
        return math.inf
    return value


def _spent(grid: Grid, run: Run, row: Row) -> Row:
    """What a finished run has read and spent, and what it began with."""
    step = step_of(grid, run.shape)
    steps = row.get("steps")
    spent: Row = {"begun_from": origin_of(run.folder(grid))}
    if step is None or steps is None:
        return spent
    spent["tokens"] = steps * step.tokens
    spent["training_flops"] = steps * step.flops
    if row["parameters"]:
        spent["tokens_per_parameter"] = spent["tokens"] / row["parameters"]
    return spent


def _chance(results: dict) -> object:
    """The main metric of a guess that reads nothing, from results.json; None where it is unknown."""
    chance = results.get("chance")
    if not chance:
        return None
    return chance.get("value")


def _condition_numbers(results: dict) -> Row:
    """The columns kappa_* from results.json; a layer without a condition number counts as infinite."""
    condition = results.get("condition")
    if not condition:
        return {}
    return {f"kappa_{end}": statistics.median(map(infinite_if_unknown, layers)) for end, layers in condition.items()}


def result_row(grid: Grid, run: Run) -> Row:
    """The row of a run that ended well, from its results.json.

    Raises:
        ValueError: the file does not hold what was asked for, or the metric is not finite: the training diverged.
    """
    try:
        results = json.loads((run.folder(grid) / "results.json").read_text(encoding="utf-8"))
        main = results["main_metric"].removeprefix("eval_")
        metric = main
        if grid.metric is not None:
            metric = grid.metric
        metrics = results["metrics"]
        if metric not in (main, "loss"):  # which way is up is known of these two
            raise ValueError(f"metric: expected the training's {main}, or loss, got {metric}")
        if (results["seed"], results["learning_rate"]) != (run.seed, run.learning_rate):
            raise ValueError(f"results.json is of seed {results['seed']}, learning rate {results['learning_rate']}")
        value = metrics[f"eval_{metric}"]
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}")
        row = {**results["environment"], **results["train"], **run._asdict(), "status": "finished"}
        row |= {"metric": metric, "value": value}
        if metric == main:
            row |= {"higher_is_better": results["higher_is_better"], "chance": _chance(results)}
        else:
            row |= {"higher_is_better": False, "chance": None}
        row["eval_loss"] = metrics.get("eval_loss")
        row |= {name: results.get(name) for name in ("parameters", "rows", "data_sha256")}
        row |= _condition_numbers(results)
        row |= _spent(grid, run, row)
        return typed_row(row)
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"results.json: {type(error).__name__} {error}") from error
