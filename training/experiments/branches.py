"""One long run that ends at several budgets: a trunk, trained at a constant rate, and the branches that decay from it.

A branch of B tokens takes over the trunk's checkpoint at four fifths of B and lets the learning rate fall to zero over
the last fifth (warm-up, stable, decay; transformers' `warmup_stable_decay`). It ends with the very weights of a run of
B tokens by that schedule, four fifths of which the trunk has saved. A branch is a run folder of its own.

`leaner bench GRID.yaml` times a training step of the shapes, for comparisons at equal seconds.
"""

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers

from modeling_leaner.family import IMAGES
from modeling_leaner.files import naming, write_json
from modeling_leaner.models import seconds_of, take_turns
from modeling_leaner.planning.costs import training_flops
from modeling_leaner.shapes import modality_of

from .. import benchmarking
from ..running.loading import shape_config, task_of, with_fields
from ..running.results import environment
from ..settings import RecipeArguments, parse, words_of
from .grid import Grid, load_grid


SCHEDULE = "warmup_stable_decay"
PARTS = 5  # of a branch, of which the last one decays
STEP_SECONDS = "step_seconds.json"
GRID_DEFAULTS = {"attn_implementation": "sdpa"}  # the default of recorded runs, so that later ones are comparable


class StepCost(NamedTuple):
    """What one step of a run reads and costs; row_tokens: of each row of the batch."""

    tokens: int
    flops: int
    row_tokens: int


class Branch(NamedTuple):
    """A branch in steps: all of them, and how many of them are the trunk's."""

    steps: int
    start: int


def recipe_of(grid: Grid, shape: str) -> RecipeArguments:
    """The recipe with the grid's own overrides, for any phase."""
    with naming(f"{shape} by recipe {grid.recipe}", (ValueError, OSError)):
        return parse(grid.recipe, ["--shape", shape, *words_of(GRID_DEFAULTS | (grid.overrides or {}))])


def step_of(grid: Grid, shape: str) -> StepCost | None:
    """What a step of any run of a shape reads and costs; None for a task whose rows have different lengths."""
    arguments = recipe_of(grid, shape)
    config = with_fields(shape_config(arguments), arguments, {})
    task = task_of(arguments, config)
    if not task.has_full_rows:
        return None
    is_given = arguments.max_length is not None and modality_of(config) is not IMAGES
    length = arguments.max_length if is_given else config.default_length
    rows = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    flops = training_flops(config, length, task.head, arguments.mask_fraction)
    return StepCost(rows * length, rows * flops, length)


def branches_of(grid: Grid, shape: str) -> dict[int, Branch]:
    """The branches of a shape by their tokens.

    Raises ValueError if the schedule is another one, the rows have no one length, or a branch is no whole number of
    steps, begins before the warm-up ends, or lies beyond the trunk.
    """
    arguments = recipe_of(grid, shape)
    step = step_of(grid, shape)
    schedule = arguments.lr_scheduler_type
    if schedule != SCHEDULE or step is None:
        expected = f"lr_scheduler_type: {SCHEDULE} and a task whose rows are all as long"
        raise ValueError(f"branches: expected {expected}, got {schedule.value} and {arguments.task}")

    unit = PARTS * step.tokens
    found = {}
    for tokens in grid.branches:
        found[tokens] = branch = Branch(tokens // step.tokens, tokens // unit * (PARTS - 1))
        if tokens % unit or not arguments.warmup_steps <= branch.start <= arguments.max_steps:
            nearest = max(1, round(tokens / unit)) * unit
            multiples = f"multiples of {unit:,} tokens, {PARTS} steps of {step.tokens:,} each (nearest: {nearest})"
            limits = f"the warm-up's end at {arguments.warmup_steps:g} and the trunk's at {arguments.max_steps}"
            where = f"whose decay begins (at step {branch.start}) between {limits}"
            raise ValueError(f"branches: {tokens}: expected {multiples}, {where}")
    return found


def training_step(grid: Grid, shape: str) -> benchmarking.Step:
    """A training step as the grid trains the shape, on made-up rows; what the Trainer adds around it is left out."""
    arguments = recipe_of(grid, shape)
    config = with_fields(shape_config(arguments), arguments, {})
    auto_class = getattr(transformers, f"AutoModel{task_of(arguments, config).head}")
    model = auto_class.from_config(config, attn_implementation=arguments.attn_implementation)
    rows = arguments.per_device_train_batch_size, step_of(grid, shape).row_tokens
    return benchmarking.Step(
        model,
        benchmarking.made_up(config, *rows, arguments.mask_fraction),
        torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=arguments.weight_decay),
        torch.bfloat16 if arguments.bf16 else torch.float32,
        arguments.gradient_accumulation_steps,
        arguments.max_grad_norm,
    )


def time_steps(file: Path, rounds: int) -> None:
    """Times the steps of a grid's shapes in turns, and writes the medians beside the grid's rows."""
    grid = load_grid(file)
    if grid.branches is None:
        raise ValueError(f"{file}: branches: missing; only they are compared at equal seconds")
    steps = [partial(seconds_of, training_step(grid, shape)) for shape in grid.shapes]
    quartiles = np.percentile(take_turns(steps, rounds), (25, 50, 75), axis=1).T.tolist()
    timed = {
        shape: {"seconds": median, "quartiles": [low, high], "tokens": step_of(grid, shape).tokens}
        for shape, (low, median, high) in zip(grid.shapes, quartiles)
    }
    grid.path("").mkdir(parents=True, exist_ok=True)
    write_json(grid.path(STEP_SECONDS), {"rounds": rounds, "shapes": timed, "environment": environment()})
    for shape, timing in timed.items():
        print(f"{shape}: {timing['seconds'] * 1e3:.1f} ms a step", file=sys.stderr)
    print(grid.path(STEP_SECONDS))
