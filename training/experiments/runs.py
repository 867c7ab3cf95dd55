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
MAX_FACTOR = 2  # of a sound tuning: between neighbouring learning rates
MIN_LENGTH = 1 / 4  # of a sound tuning: its length over that of the reported runs
UNLESS_STATED = "; or say in unsound_tuning why the rates may not be the best"
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


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; in a grid with branches that of `branch` tokens, by default the longest."""
    if branch is None:
        branch = grid.longest
    return Run("report", shape, seed, rate, branch)


def planned(grid: Grid, best: dict[str, float | None]) -> list[Run]:
    """All runs to report at these learning rates, seed by seed."""
    branches = grid.branches or [None]
    runs = []
    for seed in grid.seeds:
        for shape in grid.shapes:
            if seed in grid.seeds_for(shape):
                runs += [reported(grid, shape, seed, best[shape], branch) for branch in branches]
    return runs


def _infinite_if_unknown(value: float | None) -> float:
    if value is None:
        return math.inf
    return value


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
    return {f"kappa_{end}": statistics.median(map(_infinite_if_unknown, layers)) for end, layers in condition.items()}


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


class Choice(NamedTuple):
    """A shape's best learning rate, by the mean over the tuning seeds, and how clear that is.

    lead: distance of its mean from the runner-up's, in the metric's units. spread: the range of values over the tuning
    seeds, the larger one of these two rates; None with a single seed. Both are None where no second rate finished.
    """

    learning_rate: float | None
    lead: float | None = None
    spread: float | None = None

    @property
    def tie(self) -> bool:
        """Whether the seeds differ by as much as the rates do."""
        return self.spread is not None and self.lead <= self.spread


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


class _Score(NamedTuple):
    """What the rates of a shape are ranked by: the lowest comes first."""

    mean: float  # of the metric, over the tuning seeds, negated where higher is better
    loss: float
    learning_rate: float


def _choose(grid: Grid, rows: dict[Run, Row], shape: str, rates: list[float]) -> Choice:
    """The choice of one shape among the rates with which every tuning seed finished.

    Ties go to the lower evaluation loss, then to the lower rate. Accuracies tie where a model still predicts the most
    frequent class alone; its loss already tells the rates apart.
    """
    values = {}
    scores = []
    for rate in rates:
        cells = [rows.get(Run("tune", shape, seed, rate), {}) for seed in grid.tuning.seeds]
        if any(row.get("status") != "finished" for row in cells):
            continue
        values[rate] = [row["value"] for row in cells]
        mean = statistics.fmean(values[rate])
        if cells[0]["higher_is_better"]:
            mean = -mean
        loss = statistics.fmean(_infinite_if_unknown(row["eval_loss"]) for row in cells)
        scores.append(_Score(mean, loss, rate))
    if not scores:
        return Choice(None)
    best, *others = sorted(scores)
    if not others:
        return Choice(best.learning_rate)
    second = others[0]
    spread = None
    if len(grid.tuning.seeds) > 1:
        spread = max(_range(values[best.learning_rate]), _range(values[second.learning_rate]))
    return Choice(best.learning_rate, second.mean - best.mean, spread)


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _beyond(edge: float, neighbour: float) -> float:
    """The rate beyond an edge of the grid, by the ratio of the edge to its neighbour, rounded to 6 digits."""
    rate = edge * edge / neighbour
    return float(f"{rate:.6g}")


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
        due = [run for run in runs if run not in rows]
        choices = {shape: _choose(grid, rows, shape, rates) for shape in grid.shapes}
        best = [choice.learning_rate for choice in choices.values()]
        grows_down = below > 0 and rates[0] in best
        grows_up = above > 0 and rates[-1] in best
        if due or not (grows_down or grows_up):
            at_edge = [shape for shape in choices if choices[shape].learning_rate in (rates[0], rates[-1])]
            return Tuning(rates, choices, at_edge, due)
        if grows_down:
            rates = [_beyond(rates[0], rates[1]), *rates]
            below -= 1
        if grows_up:
            rates = [*rates, _beyond(rates[-1], rates[-2])]
            above -= 1


def phases(grid: Grid) -> list[str]:
    """Those of PHASES that the grid has."""
    present = {"tune": grid.tuning is not None, "trunk": grid.branches is not None, "report": True}
    return [phase for phase in PHASES if present[phase]]


def place_of(run: Run) -> tuple:
    """What the rows of results.csv are sorted by; a run without a branch comes before those with one."""
    return PHASES.index(run.phase), run.shape, run.seed, run.learning_rate, run.branch or 0


def due_runs(grid: Grid, rows: dict[Run, Row]) -> list[Run]:
    """The runs without a row that can start: those of the tuning, and once it is over those to report.

    Of a grid with branches they are those of one seed: its trunks, and once they have ended its branches.
    """
    tuning = tune(grid, rows)
    if tuning.due:
        return tuning.due
    runs = [run for run in planned(grid, tuning.best) if run.learning_rate is not None]
    if grid.branches is None:
        return [run for run in runs if run not in rows]
    for seed in grid.seeds:  # each to its end: pairs are complete early
        branches = [run for run in runs if run.seed == seed]
        trunks = dict.fromkeys(branch.trunk for branch in branches)
        due = [trunk for trunk in trunks if trunk not in rows]
        if not due:
            due = [branch for branch in branches if branch not in rows and can_branch(grid, branch, rows)]
        if due:
            return due
    return []


def can_branch(grid: Grid, run: Run, rows: dict[Run, Row]) -> bool:
    """Whether a branch can begin: its trunk has finished, or failed after the checkpoint that the branch needs."""
    if rows[run.trunk]["status"] == "finished":
        return True
    start = branches_of(grid, run.shape)[run.branch].start
    return checkpoint_of(run.trunk.folder(grid), start) is not None


def _start_seed(grid: Grid, run: Run, before: Grid) -> int:
    """The seed of the grid `before` whose weights a run starts from.

    It is `start_seed`; without it the first one of `before` for a tuning run, and the run's own for any other.
    """
    if grid.start_seed is not None:
        return grid.start_seed
    if run.phase == "tune":
        return before.seeds[0]
    return run.seed


def start_of(grid: Grid, run: Run) -> str:
    """A run's `--shape`: the shape, or with `start_from` the folder of its weights there, or of their published copy.

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
    seed = _start_seed(grid, run, before)
    start = reported(before, run.shape, seed, tune(before, rows).best.get(run.shape))
    if rows.get(start, {}).get("status") != "finished":
        missing = f"a finished run of {run.shape} with seed {seed} in {folder / 'results.csv'}"
        raise GridError(f"start_from: expected {missing}, found none")
    trained = folder / "runs" / start.name
    places = [trained]
    if before.publish is not None and run.shape in before.publish and seed == before.seeds[0]:
        places.append(folder.parent.parent / before.publish[run.shape])
    for place in places:
        if (place / "model.safetensors").is_file():
            return str(place)
    training = shlex.join(["leaner", "train", *command(before, start)[len(TRAIN_COMMAND) :]])
    raise GridError(
        f"start_from: expected the weights {trained / 'model.safetensors'}, found none; "
        f"{training} trains them (--data_files for a local copy of its rows)"
    )


def check_starts(grid: Grid, rows: dict[Run, Row]) -> None:
    """Raises GridError, with all that is missing, where a run that has no row yet has no weights to start from."""
    tuning = tune(grid, rows)
    missing = []
    for run in (*tuning.due, *planned(grid, tuning.best)):
        if rows.get(run, {}).get("status") == "finished" and not tuning.due:
            continue
        try:
            start_of(grid, run)
        except GridError as error:
            if str(error) not in missing:
                missing.append(str(error))
    if missing:
        first, *others = missing
        rest = [message.removeprefix("start_from: expected ").split("; ")[0] for message in others]
        raise GridError("; also ".join((first, *rest)))


def _of_branch(grid: Grid, shape: str, tokens: int | None) -> dict[str, object]:
    """The settings of a branch of so many tokens; none without a branch."""
    if tokens is None:
        return {}
    return branch_settings(grid, shape, tokens)


def _overrides(grid: Grid, run: Run) -> dict[str, object]:
    """The grid's settings of a run: those of every run, of its phase and of its branch; the later ones win."""
    overrides = dict(grid.overrides or {})
    if run.phase == "tune":
        overrides |= _of_branch(grid, run.shape, grid.tuning.tokens)
        overrides |= grid.tuning.overrides or {}
    elif run.phase == "trunk":
        overrides |= trunk_settings(grid, run.shape)
    return overrides | _of_branch(grid, run.shape, run.branch)


def command(grid: Grid, run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run, with this machine's `local` words; it resumes where its folder holds anything."""
    folder = run.folder(grid)
    words = [*TRAIN_COMMAND, grid.recipe, "--shape", start_of(grid, run), "--seed", str(run.seed)]
    words += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(folder)]
    if run.phase == "tune":
        words += ["--tuning_holdout", str(grid.tuning.holdout)]
    overrides = _overrides(grid, run)
    if local:
        overrides.pop("data_files", None)  # this machine's copy takes its place
    words += words_of(overrides)
    words += local
    if folder.is_dir() and any(folder.iterdir()):
        words.append("--resume")
    return words


def begin_branch(grid: Grid, run: Run, local: Sequence[str] = ()) -> None:
    """Makes the folder of a branch from its trunk's, unless it is there.

    Raises:
        GridError: the trunk has no such checkpoint, or is not the one that the branch was begun from.
    """
    folder = run.folder(grid)
    trunk = run.trunk.folder(grid)
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


def _first_run(grid: Grid, shape: str, phase: str, branch: int | None) -> Run:
    """A shape's run of a phase with the first seed and the first learning rate."""
    rate = grid.learning_rates[0]
    match phase:
        case "report":
            return reported(grid, shape, grid.seeds[0], rate, branch)
        case "tune":
            return Run(phase, shape, grid.tuning.seeds[0], rate)
        case _:
            return Run(phase, shape, grid.seeds[0], rate)


def settings(grid: Grid, shape: str, phase: str = "report", branch: int | None = None) -> RecipeArguments:
    """What a run of the grid is trained with, wherever its weights start from; to report, the longest branch.

    Raises:
        GridError: the recipe or the settings are refused, or the shape's family is not for the task.
    """
    run = _first_run(grid, shape, phase, branch)
    recipe, *words = command(replace(grid, start_from=None), run)[len(TRAIN_COMMAND) :]
    try:
        arguments = parse(recipe, words)
        task_of(arguments, load_config(shape))
    except (ValueError, OSError) as error:
        raise GridError(f"{shape} by recipe {grid.recipe}: {' '.join(str(error).split())}") from error
    return arguments


def _schedule_setting(arguments: RecipeArguments, key: str) -> object:
    """A setting of the schedule, to compare: None where it is empty or 0, an Enum's value in place of the Enum."""
    value = getattr(arguments, key)
    if not value:
        return None
    if isinstance(value, Enum):
        return value.value
    return value


def _check_schedule(grid: Grid, tuned: RecipeArguments, counterpart: RecipeArguments) -> None:
    """Raises GridError where the tuning's schedule is not that of its counterpart among the reported runs."""
    keys = ["warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs"]
    if grid.branches is not None:
        keys.append("max_steps")
    for key in keys:
        here = _schedule_setting(tuned, key)
        there = _schedule_setting(counterpart, key)
        if here != there:
            raise GridError(f"tuning.overrides: {key} is {here}, and {there} in the reported runs{UNLESS_STATED}")
    if not counterpart.warmup_steps >= 1:
        got = f"{counterpart.warmup_steps:g}"
        raise GridError(f"warmup_steps: expected steps, the same in tuning, got {got}{UNLESS_STATED}")


def _check_length(unit: str, tuned: RecipeArguments, longest: RecipeArguments) -> None:
    """Raises GridError where the tuning is too short for the reported runs, or its length is in another unit."""
    short = getattr(tuned, unit)
    long = getattr(longest, unit)
    other_unit = (tuned.max_steps > 0) != (longest.max_steps > 0)
    if other_unit or short < MIN_LENGTH * long:
        expected = f"a quarter or more of the {long:g} of the reported runs"
        raise GridError(f"tuning.overrides: {unit}: expected {expected}, got {short:g}{UNLESS_STATED}")


def check_tuning(grid: Grid) -> None:
    """What `grid.py` calls a sound tuning; nothing is asked of one that states why it is unsound.

    Raises:
        GridError: names what the tuning lacks.
    """
    if grid.tuning is None or len(grid.learning_rates) == 1 or grid.unsound_tuning is not None:
        return
    if len(grid.tuning.seeds) < 2:
        raise GridError(f"tuning.seeds: expected two seeds or more, got {grid.tuning.seeds}{UNLESS_STATED}")
    for lower, higher in pairwise(grid.learning_rates):
        if higher > lower * MAX_FACTOR * (1 + 1e-9):
            got = f"{lower:g} and {higher:g}"
            raise GridError(f"learning_rates: expected a factor of 2 or less, got {got}{UNLESS_STATED}")
    tuned = settings(grid, grid.shapes[0], "tune")
    longest = settings(grid, grid.shapes[0])
    counterpart = settings(grid, grid.shapes[0], branch=grid.tuning.tokens)
    _check_schedule(grid, tuned, counterpart)
    unit = "num_train_epochs"
    if counterpart.max_steps > 0:
        unit = "max_steps"
    _check_length(unit, tuned, longest)


def check_grid(grid: Grid) -> None:
    """Raises GridError, before anything is written, for branches that cannot be, or an unsound tuning."""
    for shape in grid.shapes:
        branches_of(grid, shape)
    check_tuning(grid)
