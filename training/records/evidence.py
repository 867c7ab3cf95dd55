"""The evidence of a grid, as the results.json of a published folder holds it."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from .base import Count, Duration, Record
from .guesses import Guess, RowError
from .summary import BudgetSummary, CellSummary, Reading
from .timings import Latency


class Reference(Record):
    """transformers' own model of the baseline's shape, tuned and trained alike."""

    learning_rate: float
    n: Count
    """Seeds that finished."""
    mean: float
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of one."""


class CellScore(Record):
    """The metric of one shape over the seeds."""

    shape: str
    learning_rate: float | None = None
    """The best of the tuning; None where none finished."""
    n: Count
    """Seeds that finished."""
    mean: float | None = None
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of fewer than two."""
    chance: float | None = None
    """The metric of a guess that reads nothing, the mean over the seeds."""
    values: dict[str, float]
    """The metric by seed."""


class Cell(CellSummary):
    """One shape of a grid: its score, its comparison with the baseline, its sizes and its costs."""

    layers: Count
    width: Count
    """Of the hidden states."""
    heads: Count | list[Count]
    """Of every layer; a list where layers differ."""
    head_dim: Count
    mlp: Count
    """Width of the MLPs."""
    length: Count
    """Tokens of an input, of which FLOPs and times are."""
    flops_forward: int | float
    """Of the matrix products of a forward pass of one input."""
    kv_bytes_per_token: Count | None = None
    """Of a cache in bfloat16."""
    values: dict[str, float]
    """The metric by seed."""
    peak_memory_bytes: Count | None = None
    """The most that a training held, the largest of the seeds."""
    jobs: list[int]
    """How many runs shared the machine."""
    latency: Latency | None
    """None where it was not measured."""
    start: str | None = None
    """In a grid of cuts, the weights that its runs started with, in words; None in other grids."""

    @property
    def heads_text(self) -> str:
        """`6`, or `12/5/4/3` where layers differ."""
        if isinstance(self.heads, int):
            return str(self.heads)
        return "/".join(map(str, self.heads))

    @property
    def milliseconds(self) -> float | None:
        """Of the inference of one input; None where it was not measured."""
        if self.latency is None:
            return None
        return self.latency.one.seconds * 1e3


class FineTuned(Record):
    """A grid that started from another grid's weights."""

    grid: str
    metric: str | None
    """None while no run has finished, as is the next one."""
    higher_is_better: bool | None
    published: bool
    """Whether weights of it are published."""
    start_seed: Count | None = None
    """The seed whose weights all runs started from; None where it is each run's own."""
    guess: float | None = None
    """The best simple guess, in the metric's units."""
    learned: bool | None = None
    """Whether the baseline clearly beats it."""
    cells: list[CellScore]


class TuningSettings(Record):
    """How learning rates were chosen."""

    seeds: list[int] | None = None
    seed: Count | None = None
    """In place of `seeds`, on cards from before there could be several."""
    holdout: Count
    """Rows of the training split that the choice was made on."""
    extend: Count | None = None
    """How often the rates could grow at either edge."""
    overrides: dict[str, Any] | None = None
    """Settings of the tuning runs."""
    tokens: Count | None = None
    """The branch that was tuned; None without branches."""


class Evidence(Record):
    """What a grid says of its cells, as the results.json of a published folder holds it."""

    grid: str
    """The name of its folder."""
    recipe: str
    baseline: str
    """The shape that the others are compared with."""
    seeds: list[int] = Field(min_length=1)
    planned: Count | None = None
    """Runs to report once all have run."""
    learning_rates: list[float]
    """All that were tried."""
    tuning: TuningSettings | None = None
    unsound_tuning: str | None = None
    """Why the learning rates may not be the best; None where the tuning is sound."""
    overrides: dict[str, Any] | None = None
    """Settings of every run beside the recipe's."""
    start_from: str | None = None
    """The name of the grid whose weights the runs started from."""
    start_seed: Count | None = None
    """The seed there whose weights all runs started from; None where it is each run's own."""
    beside: "Evidence | None" = None
    """Of the grid whose cells a card shows too."""
    fine_tuned: list[FineTuned]
    """The grids that started from this one's weights."""
    margin: float | None = None
    """Of the test of non-inferiority, in the metric's units."""
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
    curves: Annotated[list[BudgetSummary], Field(min_length=1)] | None = None
    """Of every branch, the shortest first; None of a grid without branches."""
    readings: list[Reading] | None = None
    """The grid's contrasts at equal cost; None without branches or without contrasts."""
    reference: Reference | None = None
    guesses: list[Guess] | None = None
    """Simple guesses that read the input; None where none was fitted."""
    row_errors: list[RowError] | None = None
    runs: Count
    """That have ended."""
    failed: Count
    """Those of them that failed."""
    failures: Count
    """Attempts that failed and were repeated."""
    hours: Duration
    """Of all finished runs together."""
    processor: list[str]
    """The machines of the runs."""
    latency_on: str | None = None
    """The machine on which inference was timed."""
    software: dict[str, list[str]]
    """The versions of each package that runs were made with."""
    commits: list[str]
    """Of this project, that runs were made with."""

    @property
    def longest(self) -> BudgetSummary:
        """The shapes at the longest budget, of a grid with branches."""
        return self.curves[-1]

    @model_validator(mode="after")
    def _has_baseline(self) -> Self:
        shapes = [cell.shape for cell in self.cells]
        if self.baseline not in shapes:
            raise ValueError(f"baseline is {self.baseline!r}, expected one of {shapes}")
        return self

    @model_validator(mode="after")
    def _has_the_same_at_every_branch(self) -> Self:
        shapes = [cell.shape for cell in self.cells]
        pairs = None
        for place, curve in enumerate(self.curves or []):
            found = [cell.shape for cell in curve.shapes]
            if found != shapes:
                raise ValueError(f"curves.{place}.shapes are {found}, expected {shapes} as in cells")
            contrasts = [(contrast.shape, contrast.minus) for contrast in curve.contrasts]
            if pairs is None:
                pairs = contrasts
            if contrasts != pairs or not {shape for pair in contrasts for shape in pair} <= set(shapes):
                raise ValueError(f"curves.{place}.contrasts are of {contrasts}, expected the same pairs of {shapes}")
        return self
