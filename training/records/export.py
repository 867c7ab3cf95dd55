"""parity.json of what `leaner export` wrote: how far each file is from the model, and how long each takes here."""

from .base import Count, Duration, Record
from .results import Environment


class ForwardTime(Record):
    """A forward pass, measured in turns with the model itself and the other files."""

    rows: Count
    length: Count | None
    """Tokens of a row that are read; None of images."""
    past: Count | None
    """Tokens of a row that the cache holds already; None without a cache."""
    seconds: Duration
    """The median over the rounds."""


class ExportedFile(Record):
    """One file, or the model itself in eager PyTorch, of which `file` is None."""

    file: str | None
    """In the folder."""
    bytes: Count
    """Of the file, or of the model's parameters."""
    difference: float
    """Of its outputs from the model's: the largest, over the largest magnitude of that output."""
    same_choice: float | None
    """The share of largest logits that are the model's; None without logits to choose from."""
    times: list[ForwardTime]


class ExportFile(Record):
    """The document."""

    architecture: str
    """Class of the model."""
    inputs: dict[str, list[int | str]]
    """Shape of each input by its name; what is free of it has a name."""
    outputs: list[str]
    """The names of the outputs, in order."""
    rounds: Count
    """In each of which the model and every file had their turn."""
    files: list[ExportedFile]
    environment: Environment
