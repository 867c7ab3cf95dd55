"""The runs of a grid: which are missing, what each starts from, and the command that trains it."""

import shlex
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from modeling_leaner.checkpoints_leaner import WEIGHTS

from .branches import begin, branches_of, check_origin, checkpoint_of, origin_of
from .grid import Grid, GridError
from .grid_results import GridResults
from .rows import PHASES, Run, finished_row, reported
from .run_settings import TRAIN_COMMAND, options_of_run


class MissingStart(GridError):
    """What `start_from` lacks for a run, and how it can be had."""

    def __init__(self, expected: str, remedy: str | None = None):
        self.absence = f"{expected}, found none"
        message = f"start_from: expected {self.absence}"
        if remedy is not None:
            message += f"; {remedy}"
        super().__init__(message)


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


def sort_key(run: Run) -> tuple:
    """By which the rows of results.csv are sorted; a run without a branch comes before those with one."""
    return PHASES.index(run.phase), run.shape, run.seed, run.learning_rate, run.branch or 0


def missing_runs(results: GridResults) -> list[Run]:
    """The runs without a row, in the order to start them: those of the tuning, and once it is over those to report.

    Of a grid with branches each seed has its trunks first and then its branches, so that its pairs are complete early;
    a branch whose trunk failed before it is left out.
    """
    grid = results.grid
    tuning = results.tuning
    if tuning.due:
        return tuning.due
    runs = [run for run in planned(grid, tuning.best) if run.learning_rate is not None]
    if grid.branches is not None:
        runs = _with_trunks(runs)
    return [run for run in runs if run not in results.rows and not is_lost(results, run)]


def _with_trunks(branches: list[Run]) -> list[Run]:
    """The branches, in front of those of each seed the trunks that they begin from."""
    runs = []
    for _, same_seed in groupby(branches, key=attrgetter("seed")):
        same_seed = list(same_seed)
        runs += dict.fromkeys(branch.trunk for branch in same_seed)
        runs += same_seed
    return runs


def is_lost(results: GridResults, run: Run) -> bool:
    """Whether a run is a branch whose trunk failed before the checkpoint that it begins from."""
    if run.branch is None:
        return False
    trunk = results.rows.get(run.trunk)
    if trunk is None or trunk.has_finished:
        return False
    start = branches_of(results.grid, run.shape)[run.branch].start
    return checkpoint_of(run.trunk.folder(results.grid), start) is None


def can_start(results: GridResults, run: Run) -> bool:
    """Whether a missing run can start now: a branch waits for its trunk."""
    return run.branch is None or run.trunk in results.rows


def _start_seed(grid: Grid, run: Run, before: Grid) -> int:
    """The seed of the grid `before` whose weights a run starts from.

    It is `start_seed`; without it the first one of `before` for a tuning run, and the run's own for any other.
    """
    if grid.start_seed is not None:
        return grid.start_seed
    if run.phase == "tune":
        return before.seeds[0]
    return run.seed


def shape_option(results: GridResults, run: Run) -> str:
    """A run's `--shape`: the shape, or with `start_from` the folder of its weights there, or of their published copy.

    Raises:
        MissingStart: `start_from` has no such finished run, or its weights are neither there nor published.
    """
    before = results.start_from
    if before is None:
        return run.shape
    folder = Path(results.grid.start_from)
    seed = _start_seed(results.grid, run, before.grid)
    start = reported(before.grid, run.shape, seed, before.tuning.best.get(run.shape))
    if finished_row(before.rows, start) is None:
        raise MissingStart(f"a finished run of {run.shape} with seed {seed} in {folder / 'results.csv'}")
    trained = folder / "runs" / start.name
    places = [trained]
    published = before.grid.publish
    if published is not None and run.shape in published and seed == before.grid.seeds[0]:
        places.append(folder.parent.parent / published[run.shape])
    for place in places:
        if (place / WEIGHTS).is_file():
            return str(place)
    training = shlex.join(["leaner", "train", *command(before, start)[len(TRAIN_COMMAND) :]])
    remedy = f"{training} trains them (--data_files for a local copy of its rows)"
    raise MissingStart(f"the weights {trained / WEIGHTS}", remedy)


def check_starts(results: GridResults) -> None:
    """Raises GridError, with all that is missing, where a run that has not finished has no weights to start from.

    While the tuning is due all runs are asked.
    """
    tuning = results.tuning
    missing = {}
    for run in (*tuning.due, *planned(results.grid, tuning.best)):
        if finished_row(results.rows, run) is not None and not tuning.due:
            continue
        try:
            shape_option(results, run)
        except MissingStart as error:
            missing[error.absence] = error
    if missing:
        first, *others = missing.values()
        raise GridError("; also ".join([str(first), *(error.absence for error in others)]))


def command(results: GridResults, run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run; it resumes where the run's folder holds anything.

    `local` are the options that say where the run's data lie on this machine.
    """
    grid = results.grid
    command_line = [*TRAIN_COMMAND, grid.recipe, *options_of_run(grid, run, shape_option(results, run), local)]
    folder = run.folder(grid)
    if folder.is_dir() and any(folder.iterdir()):
        command_line.append("--resume")
    return command_line


def begin_branch(results: GridResults, run: Run, local: Sequence[str] = ()) -> None:
    """Makes the folder of a branch from its trunk's, unless it is there.

    Raises:
        GridError: the trunk has no such checkpoint, or is not the one that the branch was begun from.
    """
    grid = results.grid
    folder = run.folder(grid)
    trunk = run.trunk.folder(grid)
    start = branches_of(grid, run.shape)[run.branch].start
    if folder.exists():
        check_origin(folder, trunk, start, origin_of(folder))
    else:
        begin(folder, trunk, start, grid.recipe, options_of_run(grid, run, shape_option(results, run), local))


def check_trunk(results: GridResults, trunk: Run) -> None:
    """Raises GridError where a finished branch was begun from other weights than the trunk has now."""
    grid = results.grid
    for run, row in results.rows.items():
        if run.branch is not None and run.trunk == trunk and row.begun_from is not None:
            start = branches_of(grid, run.shape)[run.branch].start
            check_origin(run.folder(grid), trunk.folder(grid), start, row.begun_from)
