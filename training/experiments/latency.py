"""`leaner bench GRID.yaml`: inference time and throughput of a grid's shapes, measured in turns on this machine.

Writes latency.json beside the grid's results.csv: of each shape and batch size the median over rounds in which every
shape had its turn, with quartiles. Run it while nothing else runs: the ratios of one measurement may be compared, its
times with those of another day may not. Weights are random, since no arithmetic here depends on their values.
"""

import functools
import sys
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, set_seed

from modeling_leaner.family import IMAGES
from modeling_leaner.files import read_json, write_json
from modeling_leaner.models import quartiles, seconds_of, take_turns
from modeling_leaner.shapes import load_config, modality_of

from ..records import Environment, Latency, LatencyFile, Timing, checked
from ..running.environment import environment
from ..running.loading import recipe_config
from ..tasks.registry import TASKS
from .grid import Grid, GridError, load_grid
from .run_settings import run_arguments


MANY = 32  # inputs at a time, of `Latency.many`
ROUNDS = 15
FILE = "latency.json"


def config_of(grid: Grid, shape: str) -> tuple[PreTrainedConfig, str]:
    """The configuration that a shape is trained with, and the head of the grid's task as in `ForMaskedLM`."""
    arguments = run_arguments(grid, shape)
    return recipe_config(arguments), TASKS[arguments.task].head


def models(grid: Grid) -> dict[str, PreTrainedModel]:
    """The grid's shapes as untrained models in evaluation mode, with the head of its task."""
    built = {}
    for shape in grid.shapes:
        set_seed(0)
        config, head = config_of(grid, shape)
        attention = run_arguments(grid, shape).attn_implementation
        auto_class = getattr(transformers, f"AutoModel{head}")
        built[shape] = auto_class.from_config(config, attn_implementation=attention).eval()
    return built


def length_of(grid: Grid) -> int | None:
    """Tokens of the inputs that are timed: the grid's, or a full row of its task; None for images."""
    config = load_config(grid.baseline)
    if modality_of(config) is IMAGES:
        return None
    positions = config.max_position_embeddings
    length = grid.length
    if not length:
        length = run_arguments(grid, grid.baseline).max_length
    if not length:
        length = positions
    if length > positions:
        raise GridError(f"length: expected at most the {positions} positions of {grid.baseline}, got {length}")
    return length


def inputs(model: PreTrainedModel, batch: int, length: int | None) -> dict[str, torch.Tensor]:
    """Random pixels or tokens, full rows."""
    config = model.config
    if modality_of(config) is IMAGES:
        return {"pixel_values": torch.randn(batch, config.num_channels, *config.image_shape)}
    return {"input_ids": torch.randint(0, config.vocab_size, (batch, length))}


@torch.inference_mode()
def seconds(model: PreTrainedModel, given: dict[str, torch.Tensor]) -> float:
    """Time of one forward pass."""
    return seconds_of(functools.partial(model, **given))


def measure(
    built: dict[str, PreTrainedModel], batch: int, length: int | None, rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Of each shape the time of a forward pass of `batch` inputs."""
    calls = [functools.partial(seconds, model, inputs(model, batch, length)) for model in built.values()]
    return {
        shape: Timing(seconds=times.median, quartiles=[times.low, times.high], items_per_second=batch / times.median)
        for shape, times in zip(built, quartiles(take_turns(calls, rounds)))
    }


def measure_grid(file: Path, rounds: int = ROUNDS) -> None:
    """Measures the shapes of a grid's file, writes latency.json beside the grid's rows and prints the medians.

    Raises:
        ValueError, OSError: the grid is refused.
    """
    grid = load_grid(file)
    if grid.overrides is not None and grid.overrides.get("implementation") == "transformers":
        raise GridError(f"{file}: implementation: this family's models are timed, transformers' are not")
    built = models(grid)
    length = length_of(grid)
    one = measure(built, 1, length, rounds)
    many = measure(built, MANY, length, rounds)
    shapes = {shape: Latency(one=one[shape], many=many[shape]) for shape in built}
    machine = Environment(**environment())
    measured = LatencyFile(length=length, rounds=rounds, shapes=shapes, environment=machine)
    grid.path("").mkdir(parents=True, exist_ok=True)
    write_json(grid.path(FILE), measured.document())
    for shape, timing in shapes.items():
        one_ms = timing.one.seconds * 1e3
        many_ms = timing.many.seconds * 1e3
        print(f"{shape}: batch 1 {one_ms:.1f} ms, batch {MANY} {many_ms:.1f} ms", file=sys.stderr)
    print(grid.path(FILE))


def read(grid: Grid) -> LatencyFile | None:
    """What latency.json of the grid holds; None where it was not measured, or with inputs of another length.

    Raises:
        ValueError: the file cannot be read; names it.
    """
    path = grid.path(FILE)
    length = length_of(grid)
    if not path.is_file():
        return None
    try:
        held = checked(LatencyFile, read_json(path), path)
    except ValueError as error:
        raise ValueError(f"{error}; leaner bench writes it") from error
    if not held.shapes or held.length != length:
        return None
    return held
