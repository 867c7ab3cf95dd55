"""What a run of a grid is trained with: the settings of the grid, of the run's phase and of its branch."""

import sys
from collections.abc import Sequence

from modeling_leaner.shapes import load_config

from ..running.loading import task_of
from ..settings.arguments import RecipeArguments
from ..settings.command_line import words_of
from ..settings.recipes import parse
from .branches import branch_settings, trunk_settings
from .grid import Grid, GridError
from .rows import Run, reported


TRAIN_MODULE = "modeling_leaner.training.train"
TRAIN_COMMAND = [sys.executable, "-m", TRAIN_MODULE]
GRID_DEFAULTS = {"attn_implementation": "sdpa"}  # the default of recorded runs, so that later ones are comparable


def _of_branch(grid: Grid, shape: str, tokens: int | None) -> dict[str, object]:
    """The settings of a branch of so many tokens; none without a branch."""
    if tokens is None:
        return {}
    return branch_settings(grid, shape, tokens)


def _overrides(grid: Grid, run: Run) -> dict[str, object]:
    """The grid's settings of a run: those of every run, of its phase and of its branch; the later ones win."""
    overrides = GRID_DEFAULTS | (grid.overrides or {})
    if run.phase == "tune":
        overrides |= _of_branch(grid, run.shape, grid.tuning.tokens)
        overrides |= grid.tuning.overrides or {}
    elif run.phase == "trunk":
        overrides |= trunk_settings(grid, run.shape)
    return overrides | _of_branch(grid, run.shape, run.branch)


def options_of_run(grid: Grid, run: Run, start: str, local: Sequence[str] = ()) -> list[str]:
    """The options of one run, which win over the grid's recipe.

    Args:
        start: the run's `--shape`.
        local: the options that say where the run's data are on this machine.

    Raises:
        ValueError: as `words_of`.
    """
    options = ["--shape", start, "--seed", str(run.seed)]
    options += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(run.folder(grid))]
    if run.phase == "tune":
        options += ["--tuning_holdout", str(grid.tuning.holdout)]
    overrides = _overrides(grid, run)
    if local:
        overrides.pop("data_files", None)  # this machine's copy takes its place
    return [*options, *words_of(overrides), *local]


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


def run_arguments(
    grid: Grid, shape: str, phase: str = "report", branch: int | None = None, local: Sequence[str] = ()
) -> RecipeArguments:
    """What a run of the grid is trained with, wherever its weights start from; to report, the longest branch.

    `local` are the options that say where its data are on this machine.

    Raises:
        GridError: the recipe or the settings are refused, or the shape's family is not for the task.
    """
    run = _first_run(grid, shape, phase, branch)
    try:
        arguments = parse(grid.recipe, options_of_run(grid, run, shape, local))
        task_of(arguments, load_config(shape))
    except (ValueError, OSError) as error:
        raise GridError(f"{shape} by recipe {grid.recipe}: {' '.join(str(error).split())}") from error
    return arguments
