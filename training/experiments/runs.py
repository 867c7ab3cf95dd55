"""The runs of a grid: what each is trained with, what it starts from, which are missing, and their commands."""

import shlex
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.shapes import load_config

from ..running.loading import task_of
from ..settings import RecipeArguments, parse, words_of
from .branches import begin, branch_settings, branches_of, check_origin, checkpoint_of, origin_of, trunk_settings
from .grid import Grid, GridError
from .rows import PHASES, Run, finished_row, reported


if TYPE_CHECKING:
    from .grid_results import GridResults


TRAIN_MODULE = "modeling_leaner.training.train"
TRAIN_COMMAND = [sys.executable, "-m", TRAIN_MODULE]
GRID_DEFAULTS = {"attn_implementation": "sdpa"}  # the default of recorded runs, so that later ones are comparable


def _overrides(grid: Grid, run: Run) -> dict[str, object]:
    """The grid's settings for a run: those of every run, of its branch and of its phase; the later ones win."""
    overrides = GRID_DEFAULTS | (grid.overrides or {})
    if run.phase == "trunk":
        overrides |= trunk_settings(grid, run.shape)
    tokens = grid.tuning.tokens if run.phase == "tune" else run.branch
    if tokens is not None:
        overrides |= branch_settings(grid, run.shape, tokens)
    if run.phase == "tune":
        overrides |= grid.tuning.overrides or {}
    return overrides


def options_of_run(grid: Grid, run: Run, start: str, local: Sequence[str] = ()) -> list[str]:
    """The options of one run, which override the grid's recipe.

    Args:
        start: the run's `--shape`.
        local: the options for this machine's copy of the rows.

    Raises:
        ValueError: as `words_of`.
    """
    options = ["--shape", start, "--seed", str(run.seed)]
    options += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(run.folder(grid))]
    if run.phase == "tune":
        options += ["--tuning_holdout", str(grid.tuning.holdout)]
    overrides = _overrides(grid, run)
    if local:
        overrides.pop("data_files", None)  # replaced by this machine's copy
    return [*options, *words_of(overrides), *local]


def run_arguments(
    grid: Grid, shape: str, phase: str = "report", branch: int | None = None, local: Sequence[str] = ()
) -> RecipeArguments:
    """What a shape's first run of a phase is trained with; to report, the longest branch.

    `local` are the options for this machine's copy of the rows.

    Raises:
        GridError: the recipe or the settings are refused, or the shape's family is not for the task.
    """
    seed = grid.tuning.seeds[0] if phase == "tune" else grid.seeds[0]
    run = Run(phase, shape, seed, grid.learning_rates[0])
    if phase == "report":
        run = reported(grid, shape, seed, grid.learning_rates[0], branch)
    try:
        arguments = parse(grid.recipe, options_of_run(grid, run, shape, local))
        task_of(arguments, load_config(shape))
    except (ValueError, OSError) as error:
        raise GridError(f"{shape} by recipe {grid.recipe}: {' '.join(str(error).split())}") from error
    return arguments


def planned(grid: Grid, best: dict[str, float | None]) -> list[Run]:
    """All runs to report at these learning rates, seed by seed."""
    return [
        reported(grid, shape, seed, best[shape], branch)
        for seed in grid.seeds
        for shape in grid.shapes
        if seed in grid.seeds_for(shape)
        for branch in grid.branches or [None]
    ]


def phases(grid: Grid) -> list[str]:
    """Those of PHASES that the grid has."""
    present = {"tune": grid.tuning is not None, "trunk": grid.branches is not None, "report": True}
    return [phase for phase in PHASES if present[phase]]


def sort_key(run: Run) -> tuple:
    """The order of the rows of results.csv; a run without a branch comes before those with one."""
    return PHASES.index(run.phase), run.shape, run.seed, run.learning_rate, run.branch or 0


def missing_runs(results: "GridResults") -> list[Run]:
    """The runs without a row, in the order to start them: those of the tuning, and once it is over those to report.

    In a grid with branches each seed has its trunks first and then its branches, so that its pairs are complete early;
    a branch whose trunk failed before it is left out.
    """
    tuning = results.tuning
    if tuning.due:
        return tuning.due
    runs = [run for run in planned(results.grid, tuning.best) if run.learning_rate is not None]
    if results.grid.branches is not None:
        seeds = [list(runs) for _, runs in groupby(runs, key=attrgetter("seed"))]
        runs = [run for own in seeds for run in (*dict.fromkeys(branch.trunk for branch in own), *own)]
    return [run for run in runs if run not in results.rows and not is_lost(results, run)]


def is_lost(results: "GridResults", run: Run) -> bool:
    """Whether a run is a branch whose trunk failed before the checkpoint that it begins from."""
    trunk = results.rows.get(run.trunk)
    if run.branch is None or trunk is None or trunk.has_finished:
        return False
    start = branches_of(results.grid, run.shape)[run.branch].start
    return checkpoint_of(run.trunk.folder(results.grid), start) is None


def can_start(results: "GridResults", run: Run) -> bool:
    """Whether a missing run can start now: a branch waits for its trunk."""
    return run.branch is None or run.trunk in results.rows


def shape_option(results: "GridResults", run: Run) -> str:
    """A run's `--shape`: the shape, or with `start_from` the folder of its weights there, or of their published copy.

    Their seed is `start_seed`; without it the first one there for a tuning run, and the run's own for any other.

    Raises:
        GridError: `start_from` has no such finished run, or its weights are neither there nor published.
    """
    before = results.start_from
    if before is None:
        return run.shape
    folder = Path(results.grid.start_from)
    seed = results.grid.start_seed
    if seed is None:
        seed = before.grid.seeds[0] if run.phase == "tune" else run.seed
    start = reported(before.grid, run.shape, seed, before.tuning.best.get(run.shape))
    if finished_row(before.rows, start) is None:
        rows = folder / "results.csv"
        raise GridError(f"start_from: expected a finished run of {run.shape} with seed {seed} in {rows}, found none")
    trained = folder / "runs" / start.name
    places = [trained]
    if run.shape in (before.grid.publish or {}) and seed == before.grid.seeds[0]:
        places.append(folder.parent.parent / before.grid.publish[run.shape])
    for place in places:
        if (place / WEIGHTS).is_file():
            return str(place)
    training = shlex.join(["leaner", "train", *command(before, start)[len(TRAIN_COMMAND) :]])
    remedy = f"{training} trains them (--data_files for a local copy of its rows)"
    raise GridError(f"start_from: expected the weights {trained / WEIGHTS}, found none; {remedy}")


def check_starts(results: "GridResults") -> None:
    """Raises GridError if runs that have not finished have no weights to start from; names all of these."""
    tuning = results.tuning
    missing = {}
    for run in (*tuning.due, *planned(results.grid, tuning.best)):
        if tuning.due or finished_row(results.rows, run) is None:
            try:
                shape_option(results, run)
            except GridError as error:
                missing[str(error)] = run
    if missing:
        raise GridError("; also ".join(missing))


def command(results: "GridResults", run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run; it resumes if the run's folder holds anything.

    `local` are the options for this machine's copy of the rows.
    """
    grid = results.grid
    folder = run.folder(grid)
    resume = ["--resume"] if folder.is_dir() and any(folder.iterdir()) else []
    options = options_of_run(grid, run, shape_option(results, run), local)
    return [*TRAIN_COMMAND, grid.recipe, *options, *resume]


def begin_branch(results: "GridResults", run: Run, local: Sequence[str] = ()) -> None:
    """Makes the folder of a branch from its trunk's, unless it is there.

    Raises:
        GridError: the trunk has no such checkpoint, or is not the one that the branch was begun from.
    """
    grid = results.grid
    folder, trunk = run.folder(grid), run.trunk.folder(grid)
    start = branches_of(grid, run.shape)[run.branch].start
    if folder.exists():
        check_origin(folder, trunk, start, origin_of(folder))
    else:
        begin(folder, trunk, start, grid.recipe, options_of_run(grid, run, shape_option(results, run), local))


def check_trunk(results: "GridResults", trunk: Run) -> None:
    """Raises GridError if a finished branch was begun from other weights than the trunk has now."""
    grid = results.grid
    for run, row in results.rows.items():
        if run.branch is not None and run.trunk == trunk and row.begun_from is not None:
            start = branches_of(grid, run.shape)[run.branch].start
            check_origin(run.folder(grid), trunk.folder(grid), start, row.begun_from)
