"""latency.json and step_seconds.json of a grid: what inference and a training step of each shape take."""

from pydantic import Field

from .base import Count, Duration, Record
from .results import Environment


class Timing(Record):
    """Inference at one batch size, measured in turns with the grid's other shapes."""

    seconds: Duration
    """Of one forward pass, the median over the rounds."""
    quartiles: list[float] | None = None
    """The first and the third, in seconds."""
    items_per_second: Duration
    """Batch size over `seconds`."""


class Latency(Record):
    """Inference of one shape by batch size."""

    one: Timing = Field(alias="1")
    """Of a single input."""
    many: Timing = Field(alias="32")
    """Of 32 inputs at a time."""


class LatencyFile(Record):
    """latency.json of a grid."""

    length: Count | None
    """Tokens of an input; None of images."""
    rounds: Count
    """In each of which every shape had its turn."""
    shapes: dict[str, Latency]
    environment: Environment


class StepTime(Record):
    """A training step of one shape, measured in turns with the grid's other shapes."""

    seconds: float = Field(gt=0)
    """The median over the rounds."""
    quartiles: list[float] | None = None
    """The first and the third, in seconds."""
    tokens: Count
    """That a step reads."""


class StepTimes(Record):
    """step_seconds.json of a grid."""

    rounds: Count | None = None
    """In each of which every shape had its turn."""
    shapes: dict[str, StepTime]
    environment: Environment | None = None
