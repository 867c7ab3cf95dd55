"""results.json of a study: statements of a paper, put to the test here, each with its verdict and its numbers."""

from typing import Any, Literal

from pydantic import model_validator

from .base import Count, Duration, Record
from .results import Environment


Whose = Literal["the paper", "second-hand", "derived here", "asked here"]
"""Whose a statement is: read in the paper; in what others quote of it; derived here; a question of this project."""

Outcome = Literal["agrees", "disagrees", "undecided", "not tested"]
"""Undecided: tested, and the numbers show neither that it holds nor that it does not."""


class Statement(Record):
    """One statement and what was found."""

    paper: str
    """Short name and arXiv number."""
    place: str
    """Section, figure, table or theorem."""
    whose: Whose
    statement: str
    """In one sentence."""
    rule: str | None
    """When the numbers agree with it, fixed before they were read; None where it is not tested."""
    verdict: Outcome
    finding: str
    """What was found, in words; of what is not tested, what is known instead."""
    numbers: dict[str, int | float | None]
    """Behind the verdict; None where a run did not get so far, or a matrix has lost rank."""
    missing: str | None = None
    """Of what is not tested: the data or the core-hours that it would need."""

    @model_validator(mode="after")
    def _has_its_reason(self) -> "Statement":
        if self.verdict == "not tested":
            if not self.missing:
                raise ValueError("missing: expected the data or the core-hours that the test would need")
        elif self.rule is None or not self.numbers:
            raise ValueError("numbers: expected a rule and numbers behind a verdict")
        return self


class Line(Record):
    """One line of a panel: y over x, with a band from `low` to `high` where there are several trials."""

    label: str
    x: list[int | float]
    y: list[float]
    low: list[float] | None = None
    """The least of the trials, or the lower limit of an interval."""
    high: list[float] | None = None
    """The greatest of the trials, or the upper limit."""

    @model_validator(mode="after")
    def _is_even(self) -> "Line":
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{name}: {len(values)} values, expected {len(self.x)}, as many as x")
        return self


class FigurePanel(Record):
    """One panel of a study's figure."""

    title: str
    x: str
    """Name of the axis with its unit, as is the next."""
    y: str
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    level: float | None = None
    """A y to compare with, such as no difference."""
    lines: list[Line]


class StudyFile(Record):
    """results.json of a study."""

    study: str
    """Its name, as `leaner study` takes it."""
    title: str
    """What is put to the test, in a line."""
    size: Literal["quick", "default", "full"]
    command: str
    """That writes these results again."""
    settings: dict[str, Any]
    """All that was chosen of this size."""
    seeds: list[int]
    """One of each trial."""
    statements: list[Statement]
    panels: list[FigurePanel]
    """Of the figure, which is drawn from these numbers alone."""
    seconds: Duration
    """Of processor time that the study took, over all threads."""
    environment: Environment
    tested: Count
    """How many of the statements have a verdict."""
