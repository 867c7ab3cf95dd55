"""The runs of a grid: rows of results.csv, the learning rates that follow, what is due, and by what command."""

import csv
import io
import json
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TextIO

from modeling_leaner.shapes import load_config

from ..running.loading import task_of
from ..settings.arguments import RecipeArguments, parse
from .branches import (
    begin,
    branch_settings,
    branches_of,
    check_origin,
    checkpoint_of,
    origin_of,
    step_of,
    trunk_settings,
    words_of,
)
from .grid import Grid, GridError, load_grid, slug


TRAIN_COMMAND = [sys.executable, "-m", "modeling_leaner.training.train"]
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
# Not in files of earlier releases. branch: the tokens of one, empty of any other run. tokens, training_flops: read and
# spent by the end, with a branch, like seconds, those of its trunk until there. begun_from: SHA-256 of the trunk's
# weights that a branch began with.
ADDED = "branch tokens tokens_per_parameter training_flops begun_from".split()
COLUMNS += ADDED
INTEGERS = "seed branch higher_is_better parameters steps tokens training_flops peak_memory_bytes".split()
INTEGERS += "rows failures jobs threads".split()
NUMBERS = "learning_rate value chance eval_loss kappa_start kappa_end tokens_per_parameter seconds".split()
NUMBERS += "items_per_second input_pipeline_share".split()
PHASES = ("tune", "trunk", "report")
MAX_FACTOR, MIN_LENGTH = 2, 1 / 4  # of a sound tuning: between rates; of the reported length
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
        return name if self.branch is None else f"{name}-tokens{self.branch}"

    @property
    def trunk(self) -> "Run":
        """The trunk of a branch."""
        return Run("trunk", self.shape, self.seed, self.learning_rate)

    def folder(self, grid: Grid) -> Path:
        return grid.path("runs") / self.name


def typed_row(cells: dict[str, object]) -> Row:
    """All columns, typed; None for what is unknown or not finite."""
    row: Row = {name: None if cells.get(name) == "" else cells.get(name) for name in COLUMNS}
    row |= {name: int(row[name]) for name in INTEGERS if row[name] is not None}
    row |= {name: float(row[name]) for name in NUMBERS if row[name] is not None}
    return row | {name: None for name in NUMBERS if row[name] is not None and not math.isfinite(row[name])}


def check_row(row: Row, other_length: bool, columns: int) -> None:
    """Raises ValueError for a row with more or fewer cells than columns, and for one that says too little."""
    if other_length:
        raise ValueError(f"expected {columns} cells")
    if row["phase"] not in PHASES or row["status"] not in ("finished", "failed"):
        said = f"{row['phase']} and {row['status']}"
        raise ValueError(f"phase, status: expected {', '.join(PHASES)}, finished or failed, got {said}")
    done = ("metric", "value", "higher_is_better") if row["status"] == "finished" else ()
    for name in ("shape", "seed", "learning_rate", *done):
        if row[name] is None:
            raise ValueError(f"{name}: expected a value")
    if row["higher_is_better"] not in (None, 0, 1):
        raise ValueError(f"higher_is_better: expected 0 or 1, got {row['higher_is_better']}")


def read_rows(path: Path) -> dict[Run, Row]:
    """The rows of results.csv by run, none where there is no file. Raises GridError where it has another form."""
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise GridError(f"{path}: no UTF-8 text: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    there = reader.fieldnames or []
    if there not in (COLUMNS, COLUMNS[: -len(ADDED)]):
        raise GridError(f"{path}: expected the columns {', '.join(COLUMNS)}")
    try:
        rows = {}
        for cells in reader:
            row = typed_row(cells)
            check_row(row, None in cells or None in cells.values(), len(there))
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


def _spent(grid: Grid, run: Run, row: Row) -> Row:
    """What a finished run has read and spent, and what it began with."""
    step, steps = step_of(grid, run.shape), row.get("steps")
    spent: Row = {"begun_from": origin_of(run.folder(grid))}
    if step is not None and steps is not None:
        spent |= {"tokens": steps * step.tokens, "training_flops": steps * step.flops}
        spent |= {"tokens_per_parameter": steps * step.tokens / row["parameters"] if row["parameters"] else None}
    return spent


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; of a grid with branches the longest one, or the one of `branch` tokens."""
    return Run("report", shape, seed, rate, branch or grid.longest)


def planned(grid: Grid, best: dict[str, float | None]) -> list[Run]:
    """All runs to report at these learning rates, seed by seed."""
    cells = [(shape, seed) for seed in grid.seeds for shape in grid.shapes if seed in grid.seeds_for(shape)]
    return [reported(grid, *cell, best[cell[0]], branch) for cell in cells for branch in grid.branches or [None]]


def result_row(grid: Grid, run: Run) -> Row:
    """The row of a run that ended well, from its results.json.

    Raises:
        ValueError: the file does not hold what was asked for, or the metric is not finite: the training diverged.
    """
    try:
        results = json.loads((run.folder(grid) / "results.json").read_text(encoding="utf-8"))
        main = results["main_metric"].removeprefix("eval_")
        metric, metrics = grid.metric or main, results["metrics"]
        if metric not in (main, "loss"):  # which way is up is known of these two
            raise ValueError(f"metric: expected the training's {main}, or loss, got {metric}")
        if (results["seed"], results["learning_rate"]) != (run.seed, run.learning_rate):
            raise ValueError(f"results.json is of seed {results['seed']}, learning rate {results['learning_rate']}")
        value = metrics[f"eval_{metric}"]
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}")
        row = {**results["environment"], **results["train"], **run._asdict(), "status": "finished", "metric": metric}
        row |= {"value": value, "higher_is_better": metric == main and results["higher_is_better"]}
        row |= {name: results.get(name) for name in ("parameters", "rows", "data_sha256")}
        row["chance"] = (results.get("chance") or {}).get("value") if metric == main else None
        for end, layers in (results.get("condition") or {}).items():
            row[f"kappa_{end}"] = statistics.median(math.inf if each is None else each for each in layers)
        row |= _spent(grid, run, row)
        return typed_row(row | {"eval_loss": metrics.get("eval_loss")})
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"results.json: {type(error).__name__} {error}") from error


class Choice(NamedTuple):
    """A shape's best learning rate, by the mean over the tuning seeds, and how clear that is.

    lead: its mean's distance from the runner-up's, in the metric's units. spread: the larger of the ranges that the
    tuning seeds of these two rates cover; None of a single seed. Both None where no second rate finished.
    """

    learning_rate: float | None
    lead: float | None = None
    spread: float | None = None

    @property
    def tie(self) -> bool:
        """Whether the seeds differ by as much as the rates do."""
        return self.spread is not None and self.lead <= self.spread


class Tuning(NamedTuple):
    """What the rows say of the learning rates: those tried, each shape's best, who is at an edge, what has not run."""

    learning_rates: list[float]
    choices: dict[str, Choice]
    at_edge: list[str]
    due: list[Run]

    @property
    def best(self) -> dict[str, float | None]:
        """Each shape's best rate; None where none finished."""
        return {shape: choice.learning_rate for shape, choice in self.choices.items()}


def _choose(grid: Grid, rows: dict[Run, Row], shape: str, rates: list[float]) -> Choice:
    """The choice of one shape among the rates with which every tuning seed finished.

    Of equals it is the rate of the lower loss, then the lower rate. Accuracies are equal where a model still says the
    most frequent class; its loss already tells the rates apart.
    """
    values, ranks = {}, []
    for rate in rates:
        cells = [rows.get(Run("tune", shape, seed, rate), {}) for seed in grid.tuning.seeds]
        if any(row.get("status") != "finished" for row in cells):
            continue
        sign = -1 if cells[0]["higher_is_better"] else 1
        losses = [math.inf if row["eval_loss"] is None else row["eval_loss"] for row in cells]
        values[rate] = [row["value"] for row in cells]
        ranks.append((sign * statistics.fmean(values[rate]), statistics.fmean(losses), rate))
    if not ranks:
        return Choice(None)
    best, *others = sorted(ranks)
    if not others:
        return Choice(best[-1])
    near = [values[rate] for *_, rate in (best, others[0])]
    several = len(grid.tuning.seeds) > 1
    return Choice(best[-1], others[0][0] - best[0], max(max(each) - min(each) for each in near) if several else None)


def tune(grid: Grid, rows: dict[Run, Row]) -> Tuning:
    """Follows the tuning as far as the rows go.

    While a shape's best rate lies at an edge, the grid grows there by the ratio of its two outermost rates, for all
    shapes, up to `tuning.extend` times on each side. New rates are rounded to 6 digits.
    """
    rates = list(grid.learning_rates)
    if len(rates) == 1:
        return Tuning(rates, dict.fromkeys(grid.shapes, Choice(rates[0])), [], [])
    below = above = grid.tuning.extend
    while True:
        seeds = grid.tuning.seeds
        runs = [Run("tune", shape, seed, rate) for rate in rates for seed in seeds for shape in grid.shapes]
        choices = {shape: _choose(grid, rows, shape, rates) for shape in grid.shapes}
        best = [choice.learning_rate for choice in choices.values()]
        due = [run for run in runs if run not in rows]
        down, up = rates[0] in best and below > 0, rates[-1] in best and above > 0
        if due or not (down or up):
            edge = [shape for shape in choices if choices[shape].learning_rate in (rates[0], rates[-1])]
            return Tuning(rates, choices, edge, due)
        lower, higher = rates[0] * rates[0] / rates[1], rates[-1] * rates[-1] / rates[-2]
        rates = [float(f"{lower:.6g}")] * down + rates + [float(f"{higher:.6g}")] * up
        below, above = below - down, above - up


def phases(grid: Grid) -> list[str]:
    """Those of PHASES that the grid has."""
    lacking = {"tune": grid.tuning is None, "trunk": grid.branches is None, "report": False}
    return [phase for phase in PHASES if not lacking[phase]]


def place_of(run: Run) -> tuple:
    """What the rows of results.csv are sorted by."""
    return PHASES.index(run.phase), *run[1:-1], run.branch or 0


def due_runs(grid: Grid, rows: dict[Run, Row]) -> list[Run]:
    """The runs without a row that can start: those of the tuning, and once it is over those to report."""
    tuning = tune(grid, rows)
    runs = [run for run in planned(grid, tuning.best) if run.learning_rate is not None]
    if tuning.due or grid.branches is None:
        return tuning.due or [run for run in runs if run not in rows]
    for seed in grid.seeds:  # each to its end: pairs are complete early
        own = [run for run in runs if run.seed == seed]
        trunks = [run for run in dict.fromkeys(run.trunk for run in own) if run not in rows]
        if due := trunks or [run for run in own if run not in rows and can_branch(grid, run, rows)]:
            return due
    return []


def can_branch(grid: Grid, run: Run, rows: dict[Run, Row]) -> bool:
    """Whether a branch can begin: its trunk has finished, or failed after the checkpoint that the branch needs."""
    if rows[run.trunk]["status"] == "finished":
        return True
    start = branches_of(grid, run.shape)[run.branch].start
    return checkpoint_of(run.trunk.folder(grid), start) is not None


def start_of(grid: Grid, run: Run) -> str:
    """What a run's `--shape` is: the shape, or the folder of its weights in `start_from`, or as they were published.

    They are those of `start_seed`; without it of the run's own seed, and to tune of the first.

    Raises:
        GridError: `start_from` has no such finished run, or its weights are neither there nor published.
    """
    if grid.start_from is None:
        return run.shape
    folder = Path(grid.start_from)
    rows = read_rows(folder / "results.csv")
    if not rows:
        raise GridError(f"start_from: expected finished runs in {folder / 'results.csv'}, found none")
    before = load_grid(folder / "grid.yaml")
    seed = before.seeds[0] if run.phase == "tune" else run.seed
    seed = seed if grid.start_seed is None else grid.start_seed
    start = reported(before, run.shape, seed, tune(before, rows).best.get(run.shape))
    if rows.get(start, {}).get("status") != "finished":
        said = f"expected a finished run of {run.shape} with seed {seed} in {folder / 'results.csv'}, found none"
        raise GridError(f"start_from: {said}")
    weights, name = folder / "runs" / start.name, (before.publish or {}).get(run.shape)
    published = None if name is None or seed != before.seeds[0] else folder.parent.parent / name
    for place in filter(None, (weights, published)):
        if (place / "model.safetensors").is_file():
            return str(place)
    how = shlex.join(["leaner", "train", *command(before, start)[len(TRAIN_COMMAND) :]])
    said = f"expected the weights {weights / 'model.safetensors'}, found none"
    raise GridError(f"start_from: {said}; {how} trains them (--data_files for a local copy of its rows)")


def check_starts(grid: Grid, rows: dict[Run, Row]) -> None:
    """Raises GridError, with all that is missing, where a run that has no row yet has no weights to start from."""
    missing, tuning = {}, tune(grid, rows)
    for run in (*tuning.due, *planned(grid, tuning.best)):
        if rows.get(run, {}).get("status") == "finished" and not tuning.due:
            continue
        try:
            start_of(grid, run)
        except GridError as error:
            missing[str(error)] = None
    if missing:
        first, *others = missing
        rest = [said.removeprefix("start_from: expected ").split("; ")[0] for said in others]
        raise GridError("; also ".join((first, *rest)))


def _of_branch(grid: Grid, shape: str, tokens: int | None) -> dict[str, object]:
    return {} if tokens is None else branch_settings(grid, shape, tokens)


def command(grid: Grid, run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run, with this machine's `local` words; it resumes where its folder holds anything."""

    folder, settings = run.folder(grid), grid.overrides or {}
    words = [*TRAIN_COMMAND, grid.recipe, "--shape", start_of(grid, run), "--seed", str(run.seed)]
    words += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(folder)]
    if run.phase == "tune":
        words += ["--tuning_holdout", str(grid.tuning.holdout)]
        settings = {**settings, **_of_branch(grid, run.shape, grid.tuning.tokens), **(grid.tuning.overrides or {})}
    elif run.phase == "trunk":
        settings = {**settings, **trunk_settings(grid, run.shape)}
    settings = {**settings, **_of_branch(grid, run.shape, run.branch)}
    if local:
        settings.pop("data_files", None)  # this machine's copy takes its place
    words += words_of(settings) + [*local]
    return [*words, "--resume"] if folder.is_dir() and any(folder.iterdir()) else words


def begin_branch(grid: Grid, run: Run, local: Sequence[str] = ()) -> None:
    """Makes the folder of a branch from its trunk's, unless it is there.

    Raises:
        GridError: the trunk has no such checkpoint, or is not the one that the branch was begun from.
    """
    folder, trunk = run.folder(grid), run.trunk.folder(grid)
    start = branches_of(grid, run.shape)[run.branch].start
    if folder.exists():
        check_origin(folder, trunk, start, origin_of(folder))
    else:
        recipe, *words = command(grid, run, local)[len(TRAIN_COMMAND) :]
        begin(folder, trunk, start, recipe, words)


def check_trunk(grid: Grid, rows: dict[Run, Row], trunk: Run) -> None:
    """Raises GridError where a finished branch was begun from other weights than the trunk has now."""
    for run, row in rows.items():
        if run.branch is not None and run.trunk == trunk and row["begun_from"] is not None:
            start = branches_of(grid, run.shape)[run.branch].start
            check_origin(run.folder(grid), trunk.folder(grid), start, row["begun_from"])


def settings(grid: Grid, shape: str, phase: str = "report", branch: int | None = None) -> RecipeArguments:
    """What a run of the grid is trained with, wherever its weights start from; to report, the longest branch.

    Raises:
        GridError: the recipe or the settings are refused, or the shape's family is not for the task.
    """
    seed = grid.tuning.seeds[0] if phase == "tune" else grid.seeds[0]
    branch = (branch or grid.longest) if phase == "report" else None
    run = Run(phase, shape, seed, grid.learning_rates[0], branch)
    recipe, *words = command(replace(grid, start_from=None), run)[len(TRAIN_COMMAND) :]
    try:
        arguments = parse(recipe, words)
        task_of(arguments, load_config(shape))
    except (ValueError, OSError) as error:
        raise GridError(f"{shape} by recipe {grid.recipe}: {' '.join(str(error).split())}") from error
    return arguments


def check_tuning(grid: Grid) -> None:
    """What `grid.py` calls a sound tuning; nothing is asked of one that states why it is unsound.

    Raises:
        GridError: names what the tuning lacks.
    """
    if grid.tuning is None or len(grid.learning_rates) == 1 or grid.unsound_tuning is not None:
        return
    says = "; or say in unsound_tuning why the rates may not be the best"
    if len(grid.tuning.seeds) < 2:
        raise GridError(f"tuning.seeds: expected two seeds or more, got {grid.tuning.seeds}{says}")
    for lower, higher in pairwise(grid.learning_rates):
        if higher > lower * MAX_FACTOR * (1 + 1e-9):
            raise GridError(f"learning_rates: expected a factor of 2 or less, got {lower:g} and {higher:g}{says}")
    tuned, full = settings(grid, grid.shapes[0], "tune"), settings(grid, grid.shapes[0])
    reported = settings(grid, grid.shapes[0], branch=grid.tuning.tokens)
    schedule = ["warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs"]
    for key in schedule + (["max_steps"] if grid.branches else []):
        values = [getattr(arguments, key) or None for arguments in (tuned, reported)]
        here, there = (value.value if isinstance(value, Enum) else value for value in values)
        if here != there:
            raise GridError(f"tuning.overrides: {key} is {here}, and {there} in the reported runs{says}")
    if not reported.warmup_steps >= 1:
        raise GridError(f"warmup_steps: expected steps, the same in tuning, got {reported.warmup_steps:g}{says}")
    unit = "max_steps" if reported.max_steps > 0 else "num_train_epochs"
    short, long = getattr(tuned, unit), getattr(full, unit)
    if (tuned.max_steps > 0) != (full.max_steps > 0) or short < MIN_LENGTH * long:
        said = f"expected a quarter or more of the {long:g} of the reported runs, got {short:g}"
        raise GridError(f"tuning.overrides: {unit}: {said}{says}")


def check_grid(grid: Grid) -> None:
    """Raises GridError, before anything is written, for branches that cannot be, or an unsound tuning."""
    for shape in grid.shapes:
        branches_of(grid, shape)
    check_tuning(grid)
