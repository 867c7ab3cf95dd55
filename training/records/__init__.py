"""Every number that is kept, with its unit: a file for each kind of document; what is read is checked."""

# ruff: noqa: F401 (what is imported here is taken from here)

from .base import Count, Duration, Record, checked
from .evidence import Cell, Evidence, Guess, RowError
from .published import (
    Continuation,
    Continuations,
    CutParent,
    CutStep,
    PublishedResults,
    SlimFile,
    Subset,
)
from .results import Chance, Environment, RunResults, Train
from .rows import ResultRow
from .timings import Latency, LatencyFile, StepTime, StepTimes, Timing
