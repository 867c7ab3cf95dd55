"""The documents that runs, grids and published folders keep: results.json and its like, and rows of results.csv."""

# ruff: noqa: F401 (what is imported here is taken from here)

from .results import (
    Environment,
    Evidence,
    Guess,
    PublishedResults,
    Record,
    RunResults,
    StepTime,
    StepTimes,
    checked,
)
from .rows import ResultRow
