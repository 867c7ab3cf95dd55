"""The evidence of a grid in the results.json of a published folder; guesses.json and row_errors.json of a grid.

`training/experiments/evidence.py` writes it. What code reads is typed here; the other keys are kept as they are, with
the statistics of `training/experiments/statistics.py` among them.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from .base import Count, Record


class Guess(Record):
    """What a simple guess that reads the input scores."""

    name: str
    value: float
    """In the units of the grid's metric."""


class RowError(Record):
    """How much the choice of held-out rows moves the difference of a published shape from the baseline."""

    shape: str
    difference: float
    """Shape minus baseline, one run each, in the metric's units."""
    error: float
    """Its standard error by the choice of rows, in the metric's units."""


class CellScore(Record):
    """One shape of a grid at one budget: its metric by seed."""

    shape: str
    values: dict[str, float]


class Cell(CellScore):
    """One shape of a grid: its score over the seeds that finished, and its sizes."""

    learning_rate: float | None = None
    """The best of the tuning; None where none finished."""
    n: Count
    mean: float | None = None
    sd: float | None = None
    chance: float | None = None
    """The metric of a guess that reads nothing, the mean over the seeds."""
    parameters: Count | None = None
    layers: Count
    width: Count
    """Of the hidden states."""
    heads: Count | list[Count]
    """Of every layer; a list where layers differ."""
    head_dim: Count
    mlp: Count
    """Width of the MLPs."""

    @property
    def heads_text(self) -> str:
        """`6`, or `12/5/4/3` where layers differ."""
        return str(self.heads) if isinstance(self.heads, int) else "/".join(map(str, self.heads))


class Budget(Record):
    """All shapes at one budget: a point of every curve."""

    branch: Count
    """In tokens."""
    shapes: list[CellScore]

    def cell(self, shape: str) -> CellScore:
        """The runs of a shape."""
        return next(cell for cell in self.shapes if cell.shape == shape)


class Evidence(Record):
    """What a grid says of its cells."""

    grid: str
    """The name of its folder."""
    recipe: str
    baseline: str
    """The shape that the others are compared with."""
    seeds: list[int] = Field(min_length=1)
    unsound_tuning: str | None = None
    """Why the learning rates may not be the best; None where the tuning is sound."""
    data: str | None = None
    """What the rows are, in words."""
    data_files: str | None = None
    """Words of --data_files in which FOLDER stands for the folder of a local copy."""
    hub: bool
    """Whether the evaluation rows are those of the Hub's dataset."""
    metric: str | None
    """None while no run has finished, as is the next one."""
    higher_is_better: bool | None
    cells: list[Cell] = Field(min_length=1)
    """Of a grid with branches at its longest one."""
    curves: list[Budget] | None = None
    """Of every branch, the shortest first; None of a grid without branches."""
    fine_tuned: list[dict[str, Any]] = []
    """The grids that started from this one's weights."""
    guesses: list[Guess] | None = None
    """Simple guesses that read the input; None where none was fitted."""
    row_errors: list[RowError] | None = None

    @model_validator(mode="after")
    def _has_baseline(self) -> Self:
        shapes = [cell.shape for cell in self.cells]
        if self.baseline not in shapes:
            raise ValueError(f"baseline is {self.baseline!r}, expected one of {shapes}")
        return self
