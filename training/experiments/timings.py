"""`leaner bench GRID.yaml`: how long inference and a training step of a grid's shapes take, measured in turns.

It writes latency.json and, for a grid with branches, step_seconds.json beside the grid's results.csv: medians over
rounds in which every shape has its turn, with quartiles. Run it while nothing else runs. Compare ratios within one
measurement, not times of different days. Weights are random and inputs made up, since times do not depend on them.
"""

import sys
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from modeling_leaner.family import IMAGES
from modeling_leaner.files import read_json, write_json
from modeling_leaner.models import quartiles, take_turns
from modeling_leaner.shapes import load_config, modality_of

from ..benchmarking import Step, made_up
from ..records import Environment, Latency, LatencyFile, StepTime, StepTimes, Timing, checked
from ..running.loading import recipe_config
from ..running.results import environment
from ..tasks import TASKS
from .branches import recipe_of, step_of
from .grid import Grid, GridError, load_grid
from .runs import run_arguments


MANY = 32  # inputs at a time, of `Latency.many`
LATENCY = "latency.json"
STEP_SECONDS = "step_seconds.json"


def config_of(grid: Grid, shape: str) -> tuple[PreTrainedConfig, str]:
    """The configuration that a shape is trained with, and the head of the grid's task, such as ForMaskedLM."""
    arguments = run_arguments(grid, shape)
    return recipe_config(arguments), TASKS[arguments.task].head


def length_of(grid: Grid) -> int | None:
    """Tokens of the inputs that are timed: the grid's, or a full row of its task; None for images."""
    config = load_config(grid.baseline)
    if modality_of(config) is IMAGES:
        return None
    positions = config.max_position_embeddings
    length = grid.length or run_arguments(grid, grid.baseline).max_length or positions
    if length > positions:
        raise GridError(f"length: expected at most the {positions} positions of {grid.baseline}, got {length}")
    return length


def time_inference(grid: Grid, batch: int, length: int | None, rounds: int) -> dict[str, Timing]:
    """The time of a forward pass of `batch` inputs, by shape."""
    steps = []
    for shape in grid.shapes:
        model = model_of(grid, shape)
        inputs = made_up(model.config, batch, length)
        del inputs["labels"]
        steps.append(Step(model, inputs).seconds)
    return {
        shape: Timing(seconds=each.median, quartiles=[each.low, each.high], items_per_second=batch / each.median)
        for shape, each in zip(grid.shapes, quartiles(take_turns(steps, rounds)))
    }


def model_of(grid: Grid, shape: str) -> PreTrainedModel:
    """The shape, untrained, with the head of the grid's task."""
    config, head = config_of(grid, shape)
    attention = run_arguments(grid, shape).attn_implementation
    return getattr(transformers, f"AutoModel{head}").from_config(config, attn_implementation=attention)


def training(grid: Grid, shape: str) -> Step:
    """A training step as the grid trains the shape; what the Trainer adds around a step is left out."""
    arguments = recipe_of(grid, shape)
    model = model_of(grid, shape)
    return Step(
        model,
        made_up(
            model.config,
            arguments.per_device_train_batch_size,
            step_of(grid, shape).row_tokens,
            arguments.mask_fraction,
        ),
        torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=arguments.weight_decay),
        torch.bfloat16 if arguments.bf16 else torch.float32,
        arguments.gradient_accumulation_steps,
        arguments.max_grad_norm,
    )


def time_grid(file: Path, rounds: int) -> None:
    """Measures the shapes of a grid's file, writes the times beside the grid's rows and prints the medians.

    Raises:
        ValueError, OSError: the grid is refused.
    """
    grid = load_grid(file)
    if (grid.overrides or {}).get("implementation") == "transformers":
        raise GridError(f"{file}: implementation: this family's models are timed, transformers' are not")
    length = length_of(grid)
    one, many = (time_inference(grid, batch, length, rounds) for batch in (1, MANY))
    machine = Environment(**environment())
    latencies = {shape: Latency(one=one[shape], many=many[shape]) for shape in grid.shapes}
    measured = LatencyFile(length=length, rounds=rounds, shapes=latencies, environment=machine)
    grid.path("").mkdir(parents=True, exist_ok=True)
    write_json(grid.path(LATENCY), measured.document())
    for shape in grid.shapes:
        times = f"batch 1 {one[shape].seconds * 1e3:.1f} ms, batch {MANY} {many[shape].seconds * 1e3:.1f} ms"
        print(f"{shape}: {times}", file=sys.stderr)
    print(grid.path(LATENCY))
    if grid.branches:
        built = [training(grid, shape) for shape in grid.shapes]
        turns = quartiles(take_turns([step.seconds for step in built], rounds))
        steps = {
            shape: StepTime(seconds=each.median, quartiles=[each.low, each.high], tokens=step_of(grid, shape).tokens)
            for shape, each in zip(grid.shapes, turns)
        }
        write_json(grid.path(STEP_SECONDS), StepTimes(rounds=rounds, shapes=steps, environment=machine).document())
        for shape, timing in steps.items():
            print(f"{shape}: {timing.seconds * 1e3:.1f} ms a step", file=sys.stderr)
        print(grid.path(STEP_SECONDS))


def step_seconds(grid: Grid) -> dict[str, float] | None:
    """Seconds of a training step by shape, from step_seconds.json; None if they were not measured.

    Raises:
        ValueError: the file has another form, or its steps are not those of the grid.
    """
    path = grid.path(STEP_SECONDS)
    if not path.is_file():
        return None
    held = checked(StepTimes, read_json(path), path)
    for shape in grid.shapes:
        step = step_of(grid, shape)
        got = held.shapes[shape].tokens if shape in held.shapes else None
        if step is None or got != step.tokens:
            expected = f"expected a step of {shape} of {step and step.tokens} tokens, got {got}"
            raise GridError(f"{path}: {expected}; leaner bench measures it")
    return {shape: timing.seconds for shape, timing in held.shapes.items()}
