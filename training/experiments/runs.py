"""The runs of a grid: what each is trained with, whether it may, what it starts from, and the row that it leaves."""

import math
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from modeling_leaner.files import naming, read_json
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.shapes import load_config

from ..records import RESULTS, ResultRow
from ..running.loading import task_of
from ..running.run_folder import STARTED, whole_checkpoints, write_recipe
from ..settings import RecipeArguments, parse, words_of
from .branches import GRID_DEFAULTS, branches_of, recipe_of, step_of
from .grid import Grid, Run, reported
from .grid_results import GridResults, load_folder


TRAIN_MODULE = "modeling_leaner.training.train"
TRAIN_COMMAND = [sys.executable, "-m", TRAIN_MODULE]


def options_of_run(grid: Grid, run: Run, start: str, local: Sequence[str] = ()) -> list[str]:
    """The options of one run, which override the grid's recipe: those of every run, of its branch and of its phase.

    Args:
        start: the run's `--shape`.
        local: the options for this machine's copy of the rows.
    """
    overrides = GRID_DEFAULTS | (grid.overrides or {})
    options = ["--shape", start, "--seed", str(run.seed)]
    options += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(run.folder(grid))]

    tokens = grid.tuning.tokens if run.phase == "tune" else run.branch
    if run.phase == "trunk" or tokens is not None:
        recipe, branches = recipe_of(grid, run.shape), branches_of(grid, run.shape)
        if tokens is not None:  # a branch, or a whole run by its schedule
            branch = branches[tokens]
            schedule = {"num_decay_steps": branch.steps - branch.start}
            overrides["max_steps"] = branch.steps
        else:  # no decay: the stable steps follow the warm-up, so that the schedule never ends
            schedule = {"num_decay_steps": 0, "num_stable_steps": recipe.max_steps}
            overrides["checkpoint_steps"] = [branch.start for branch in branches.values()]
        overrides["lr_scheduler_kwargs"] = (recipe.lr_scheduler_kwargs or {}) | schedule

    if run.phase == "tune":
        overrides |= grid.tuning.overrides or {}
        options += ["--tuning_holdout", str(grid.tuning.holdout)]
    return [*options, *words_of(overrides), *local]  # of an option that is given twice the last holds


def run_arguments(grid: Grid, shape: str, phase: str = "report", local: Sequence[str] = ()) -> RecipeArguments:
    """What a shape's first run of a phase is trained with; to report, the longest branch.

    Raises ValueError if the recipe or the settings are refused, or the shape's family is not for the task.
    """
    cell = (shape, grid.tuning.seeds[0] if phase == "tune" else grid.seeds[0], grid.learning_rates[0])
    run = reported(grid, *cell) if phase == "report" else Run(phase, *cell)
    with naming(f"{shape} by recipe {grid.recipe}", (ValueError, OSError)):
        arguments = parse(grid.recipe, options_of_run(grid, run, shape, local))
        task_of(arguments, load_config(shape))
    return arguments


def check_settings(grid: Grid) -> None:
    """Raises ValueError where the training refuses the settings of a phase or a shape."""
    phases = ["report"] + ["tune"] * (grid.tuning is not None) + ["trunk"] * (grid.branches is not None)
    for shape in grid.shapes:
        for phase in phases:
            run_arguments(grid, shape, phase)


def planned(grid: Grid, best: dict[str, float | None]) -> list[Run]:
    """All runs to report at these learning rates, seed by seed."""
    return [
        reported(grid, shape, seed, best[shape], branch)
        for seed in grid.seeds
        for shape in grid.shapes
        if seed in grid.seeds_for(shape)
        for branch in grid.branches or [None]
    ]


def missing_runs(results: GridResults) -> list[Run]:
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

    missing = []
    for run in (run for run in runs if run not in results.rows):
        trunk = results.rows.get(run.trunk)
        if run.branch is not None and trunk is not None and trunk.status == "failed":
            start = f"checkpoint-{branches_of(results.grid, run.shape)[run.branch].start}"
            if start not in [path.name for path in whole_checkpoints(run.trunk.folder(results.grid))]:
                continue
        missing.append(run)
    return missing


def shape_option(grid: Grid, run: Run) -> str:
    """A run's `--shape`: the shape, or with `start_from` the folder of its weights there, or of their published copy.

    Their seed is `start_seed`; without it the first one there for a tuning run, and the run's own for any other.
    Raises ValueError if the weights are neither there nor published.
    """
    if grid.start_from is None:
        return run.shape
    folder = Path(grid.start_from)
    before = load_folder(folder)
    own = before.grid.seeds[0] if run.phase == "tune" else run.seed
    seed = own if grid.start_seed is None else grid.start_seed
    start = reported(before.grid, run.shape, seed, before.tuning.best.get(run.shape))
    places = [start.folder(before.grid)]
    if run.shape in (before.grid.publish or {}) and seed == before.grid.seeds[0]:
        places.append(folder.parent.parent / before.grid.publish[run.shape])
    for place in places:
        if (place / WEIGHTS).is_file():
            return str(place)
    remedy = f"leaner sweep {folder / 'grid.yaml'} --output_dir ... trains them"
    raise ValueError(f"start_from: expected the weights {places[0] / WEIGHTS}, found none; {remedy}")


def command(grid: Grid, run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run; it resumes if the run's folder holds anything.

    The folder of a branch is made from its trunk's checkpoint first, whole or not at all, unless it is there. Raises
    OSError without the checkpoint. `local` are the options for this machine's copy of the rows.
    """
    folder, trunk = run.folder(grid), run.trunk.folder(grid)
    options = options_of_run(grid, run, shape_option(grid, run), local)
    if run.branch is not None and not folder.exists():
        checkpoint = trunk / f"checkpoint-{branches_of(grid, run.shape)[run.branch].start}"
        pending = folder.with_name(f".{folder.name}.begun")
        shutil.rmtree(pending, ignore_errors=True)  # of a sweep that was killed
        pending.mkdir(parents=True)
        shutil.copytree(checkpoint, pending / checkpoint.name)
        shutil.copyfile(trunk / STARTED, pending / STARTED)
        write_recipe(pending, parse(grid.recipe, options), grid.recipe)
        os.replace(pending, folder)
    resume = ["--resume"] if folder.is_dir() and any(folder.iterdir()) else []
    return [*TRAIN_COMMAND, grid.recipe, *options, *resume]


def result_row(grid: Grid, run: Run) -> ResultRow:
    """The row of a run that ended well, from its results.json. Raises ValueError if its metric is not finite."""
    results = read_json(run.folder(grid) / RESULTS)
    metric = results["main_metric"]
    value = results["metrics"].get(f"eval_{metric}")
    if value is None or not math.isfinite(value):  # not evaluated, or the training diverged
        raise ValueError(f"{metric} is {value}")
    kappas = {  # a layer without a condition number counts as infinite
        f"kappa_{end}": statistics.median(math.inf if layer is None else layer for layer in layers)
        for end, layers in (results.get("condition") or {}).items()
    }
    cells = {
        **results["environment"],
        **results["train"],
        **run._asdict(),
        **kappas,
        **{name: results.get(name) for name in ("parameters", "rows", "data_sha256")},
        "metric": metric,
        "value": value,
        "higher_is_better": results["higher_is_better"],
        "chance": (results.get("chance") or {}).get("value"),
        "eval_loss": results["metrics"].get("eval_loss"),
        **{name: results["metrics"].get(f"eval_{name}") for name in ("loss_repeated_bigram", "loss_other")},
        "status": "finished",
    }
    step, steps = step_of(grid, run.shape), cells.get("steps")
    if step is not None and steps is not None:
        cells |= {"tokens": steps * step.tokens, "training_flops": steps * step.flops}
        if cells["parameters"]:
            cells["tokens_per_parameter"] = cells["tokens"] / cells["parameters"]
    return ResultRow.from_cells(cells)
