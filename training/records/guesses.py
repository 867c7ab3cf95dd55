"""guesses.json and row_errors.json of a grid: what has to be beaten, and how much the choice of rows moves."""

from .base import Record


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
