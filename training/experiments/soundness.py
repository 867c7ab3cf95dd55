"""Whether a grid may run: settings that are taken, a metric that counts, possible branches, a sound tuning."""

from enum import Enum
from itertools import pairwise

from ..settings import RecipeArguments
from ..tasks.registry import TASKS
from .branches import branches_of
from .grid import Grid, GridError
from .runs import phases, run_arguments


MAX_FACTOR = 2  # of a sound tuning: between neighbouring learning rates
MIN_LENGTH = 1 / 4  # of a sound tuning: its length over that of the reported runs


def _schedule_setting(arguments: RecipeArguments, key: str) -> object:
    """A setting of the schedule, to compare: None where it is empty or 0, an Enum's value in place of the Enum."""
    value = getattr(arguments, key) or None
    return value.value if isinstance(value, Enum) else value


def _unsound(grid: Grid) -> str | None:
    """What a tuning lacks to be sound; None where it lacks nothing."""
    if len(grid.tuning.seeds) < 2:
        return f"tuning.seeds: expected two seeds or more, got {grid.tuning.seeds}"
    for lower, higher in pairwise(grid.learning_rates):
        if higher > lower * MAX_FACTOR * (1 + 1e-9):
            return f"learning_rates: expected a factor of 2 or less, got {lower:g} and {higher:g}"
    tuned = run_arguments(grid, grid.shapes[0], "tune")
    longest = run_arguments(grid, grid.shapes[0])
    counterpart = run_arguments(grid, grid.shapes[0], branch=grid.tuning.tokens)
    keys = ["warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs"] + ["max_steps"] * (grid.branches is not None)
    for key in keys:
        here, there = (_schedule_setting(arguments, key) for arguments in (tuned, counterpart))
        if here != there:
            return f"tuning.overrides: {key} is {here}, and {there} in the reported runs"
    if 0 < counterpart.warmup_steps < 1:
        return f"warmup_steps: expected steps, the same in tuning, got {counterpart.warmup_steps:g}"
    if (tuned.max_steps > 0) != (longest.max_steps > 0):
        return "max_steps: expected in overrides and tuning.overrides, or in neither"
    unit = "max_steps" if counterpart.max_steps > 0 else "num_train_epochs"
    short, long = getattr(tuned, unit), getattr(longest, unit)
    if short < MIN_LENGTH * long:
        expected = f"a quarter or more of the {long:g} of the reported runs"
        return f"tuning.overrides: {unit}: expected {expected}, got {short:g}"
    return None


def check_tuning(grid: Grid) -> None:
    """What `grid.py` calls a sound tuning; nothing is asked of one that states why it is unsound.

    Raises:
        GridError: names what the tuning lacks.
    """
    if grid.tuning is None or len(grid.learning_rates) == 1 or grid.unsound_tuning is not None:
        return
    reason = _unsound(grid)
    if reason is not None:
        raise GridError(f"{reason}; or say in unsound_tuning why the rates may not be the best")


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
