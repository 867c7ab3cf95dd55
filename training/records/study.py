"""Panels of lines, from which figures are drawn."""

from typing import Literal

from pydantic import model_validator

from .base import Record


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
