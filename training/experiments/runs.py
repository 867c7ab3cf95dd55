"""The runs of a grid: which are due, what each starts from, and the command that trains it."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modeling_leaner.shapes import load_config

from ..running.loading import task_of
from ..settings.arguments import RecipeArguments, parse
from .branches import (
    begin,
    branch_settings,
    branches_of,
    check_origin,
    checkpoint_of,
    options_of,
    origin_of,
    trunk_settings,
)
from .grid import Grid, GridError, load_grid
from .rows import PHASES, Rows, Run, finished_row, read_rows, reported
from .tuning import tune


TRAIN_COMMAND = [sys.executable, "-m", "modeling_leaner.training.train"]


def planned(grid: Grid, best: dict[str, float | None]) -> list[Run]:
    """All runs to report at these learning rates, seed by seed."""
    branches = grid.branches or [None]
    runs = []
    for seed in grid.seeds:
        for shape in grid.shapes:
            if seed in grid.seeds_for(shape):
                runs += [reported(grid, shape, seed, best[shape], branch) for branch in branches]
    return runs


def phases(grid: Grid) -> list[str]:
    """Those of PHASES that the grid has."""
    present = {"tune": grid.tuning is not None, "trunk": grid.branches is not None, "report": True}
    return [phase for phase in PHASES if present[phase]]


def place_of(run: Run) -> tuple:
    """What the rows of results.csv are sorted by; a run without a branch comes before those with one."""
    return PHASES.index(run.phase), run.shape, run.seed, run.learning_rate, run.branch or 0


def due_runs(grid: Grid, rows: Rows) -> list[Run]:
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


def can_branch(grid: Grid, run: Run, rows: Rows) -> bool:
    """Whether a branch can begin: its trunk has finished, or failed after the checkpoint that the branch needs."""
    if rows[run.trunk].has_finished:
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
    if finished_row(rows, start) is None:
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


def check_starts(grid: Grid, rows: Rows) -> None:
    """Raises GridError, with all that is missing, where a run that has no row yet has no weights to start from."""
    tuning = tune(grid, rows)
    missing = []
    for run in (*tuning.due, *planned(grid, tuning.best)):
        if finished_row(rows, run) is not None and not tuning.due:
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
    words += options_of(overrides)
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


def check_trunk(grid: Grid, rows: Rows, trunk: Run) -> None:
    """Raises GridError where a finished branch was begun from other weights than the trunk has now."""
    for run, row in rows.items():
        if run.branch is not None and run.trunk == trunk and row.begun_from is not None:
            start = branches_of(grid, run.shape)[run.branch].start
            check_origin(run.folder(grid), trunk.folder(grid), start, row.begun_from)


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
