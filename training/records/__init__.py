"""Every number that is kept, with its unit: a file for each kind of document; what is read is checked."""

# ruff: noqa: F401 (what is imported here is taken from here)

from .base import Count, Duration, Record, checked, message_of
from .encoders import (
    Difference,
    EncoderComparison,
    EncoderScores,
    EncoderTime,
    Lengths,
    PublishedEncoder,
    StoredWeights,
    TextRows,
)
from .evidence import Cell, CellScore, Evidence, FineTuned, Reference, TuningSettings
from .guesses import Guess, RowError
from .published import (
    Continuation,
    Continuations,
    CutParent,
    CutStep,
    PublishedResults,
    PublishedTrain,
    SlimFile,
    Subset,
)
from .results import Chance, Environment, RunResults, Train, TrainingData
from .rows import ResultRow
from .summary import BranchCell, BudgetSummary, CellSummary, Contrast, FailedRun, PairedStatistics, Reading
from .timings import Latency, LatencyFile, StepTime, StepTimes, Timing
