"""Whether a grid may run: settings that are taken, a metric that counts, possible branches, a sound tuning."""

from enum import Enum
from itertools import pairwise

from ..settings.arguments import RecipeArguments
from ..tasks.registry import TASKS
from .branches import branches_of
from .grid import Grid, GridError
from .runs import phases, run_arguments


MAX_FACTOR = 2  # of a sound tuning: between neighbouring learning rates
MIN_LENGTH = 1 / 4  # of a sound tuning: its length over that of the reported runs
UNLESS_STATED = "; or say in unsound_tuning why the rates may not be the best"


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
    if 0 < counterpart.warmup_steps < 1:
        got = f"{counterpart.warmup_steps:g}"
        raise GridError(f"warmup_steps: expected steps, the same in tuning, got {got}{UNLESS_STATED}")


def _check_length(unit: str, tuned: RecipeArguments, longest: RecipeArguments) -> None:
    """Raises GridError where the tuning is too short for the reported runs, or only one of them is in steps."""
    if (tuned.max_steps > 0) != (longest.max_steps > 0):
        raise GridError(f"max_steps: expected in overrides and tuning.overrides, or in neither{UNLESS_STATED}")
    short = getattr(tuned, unit)
    long = getattr(longest, unit)
    if short < MIN_LENGTH * long:
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
    tuned = run_arguments(grid, grid.shapes[0], "tune")
    longest = run_arguments(grid, grid.shapes[0])
    counterpart = run_arguments(grid, grid.shapes[0], branch=grid.tuning.tokens)
    _check_schedule(grid, tuned, counterpart)
    unit = "num_train_epochs"
    if counterpart.max_steps > 0:
        unit = "max_steps"
    _check_length(unit, tuned, longest)


def check_grid_metric(grid: Grid) -> None:
    """Raises GridError where the grid compares another metric than the one that counts in its runs, or their loss."""
    if grid.metric is None:
        return
    arguments = run_arguments(grid, grid.baseline)
    known = dict.fromkeys([*TASKS[arguments.task].main_metrics_of(arguments), "loss"])
    if grid.metric not in known:
        asked = f"expected {' or '.join(known)}, got {grid.metric}"
        remedy = "to compare by another one of the task, set metric in the recipe or overrides"
        raise GridError(f"metric: {asked}; {remedy}")


def check_settings(grid: Grid) -> None:
    """Raises GridError where the training refuses the settings of a phase or a shape; or as `check_grid_metric`."""
    for shape in grid.shapes:
        for phase in phases(grid):
            run_arguments(grid, shape, phase)
    check_grid_metric(grid)


def check_grid(grid: Grid) -> None:
    """Raises GridError, before anything is trained, for branches that cannot be, or an unsound tuning."""
    for shape in grid.shapes:
        branches_of(grid, shape)
    check_tuning(grid)
