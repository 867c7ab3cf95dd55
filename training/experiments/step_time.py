"""`leaner bench GRID.yaml`: how long a training step of each shape of a grid takes here, the shapes taking turns.

A step is the grid's own: its rows, precision and attention, gradient clipping and AdamW. Weights are random and tokens
or pixels made up, neither of which changes the time; what the Trainer adds around a step is left out. Run it while
nothing else runs. It writes step_seconds.json beside the grid's rows.
"""

import sys
from pathlib import Path

import torch
from transformers import PreTrainedModel

from modeling_leaner.files import read_json, write_json
from modeling_leaner.models import quartiles, seconds_of, take_turns

from ..records import Environment, StepTime, StepTimes, checked
from ..running.environment import environment
from ..tasks.language import MaskedLM
from . import latency
from .branches import recipe_of, step_of
from .grid import Grid, GridError, load_grid


STEP_SECONDS = "step_seconds.json"
ROUNDS = 15


class TrainingStep:
    """One shape's training step: forward, backward, clipping, update."""

    def __init__(self, grid: Grid, shape: str, model: PreTrainedModel):
        self.arguments = recipe_of(grid, shape)
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=self.arguments.weight_decay)
        rows = self.arguments.per_device_train_batch_size
        self.batch = latency.inputs(model, rows, step_of(grid, shape).row_tokens)
        if "pixel_values" in self.batch:
            self.batch["labels"] = torch.zeros(rows, dtype=torch.long)
        else:
            self.batch["labels"] = self.batch["input_ids"].clone()
        if self.arguments.task == MaskedLM.name:
            unmasked = torch.rand(self.batch["labels"].shape) >= self.arguments.mask_fraction
            self.batch["labels"][unmasked] = -100

    def run(self) -> None:
        """One step."""
        for _ in range(self.arguments.gradient_accumulation_steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.arguments.bf16):
                loss = self.model(**self.batch).loss
            loss.backward()
        if self.arguments.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self) -> float:
        """Makes one step and returns its time."""
        return seconds_of(self.run)


def measure(grid: Grid, rounds: int = ROUNDS) -> dict[str, StepTime]:
    """Of each shape the time of a training step.

    Raises:
        GridError: the rows of the grid's task have no one length.
    """
    steps = {shape: step_of(grid, shape) for shape in grid.shapes}
    if None in steps.values():
        raise GridError("recipe: expected a task whose rows are all as long")
    models = latency.models(grid)
    calls = [TrainingStep(grid, shape, model).seconds for shape, model in models.items()]
    return {
        shape: StepTime(seconds=times.median, quartiles=[times.low, times.high], tokens=steps[shape].tokens)
        for shape, times in zip(models, quartiles(take_turns(calls, rounds)))
    }


def measure_grid(file: Path, rounds: int = ROUNDS) -> None:
    """`measure` of a grid's file; writes step_seconds.json beside the grid's rows and prints the medians.

    Raises:
        ValueError, OSError: the grid is refused.
    """
    grid = load_grid(file)
    shapes = measure(grid, rounds)
    grid.path("").mkdir(parents=True, exist_ok=True)
    measured = StepTimes(rounds=rounds, shapes=shapes, environment=Environment(**environment()))
    write_json(grid.path(STEP_SECONDS), measured.document())
    for shape, timing in shapes.items():
        print(f"{shape}: {timing.seconds * 1e3:.1f} ms a step", file=sys.stderr)
    print(grid.path(STEP_SECONDS))


def step_seconds(grid: Grid) -> dict[str, float] | None:
    """Seconds of a training step by shape, as STEP_SECONDS of the grid has them; None where they were not measured.

    Raises:
        GridError: the file has another form, or its steps are not those of the grid.
    """
    path = grid.path(STEP_SECONDS)
    if not path.is_file():
        return None
    try:
        measured = checked(StepTimes, read_json(path), path).shapes
    except ValueError as error:
        raise GridError(f"{error}; leaner bench writes it") from error
    for shape in grid.shapes:
        step = step_of(grid, shape)
        expected = None
        if step is not None:
            expected = step.tokens
        got = None
        if shape in measured:
            got = measured[shape].tokens
        if expected is None or got != expected:
            mismatch = f"expected a step of {shape} of {expected} tokens, got {got}"
            raise GridError(f"{path}: {mismatch}; leaner bench measures it")
    return {shape: timing.seconds for shape, timing in measured.items()}
