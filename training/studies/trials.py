"""Values of several trials as statements and lines of a figure have them."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..records import Line


def line(label: str, x: Sequence[float], values: Sequence[Tensor]) -> Line:
    """The mean over the trials (R,) at each x, with the least and the greatest."""
    each = [value.tolist() for value in values]
    return Line(
        label=label,
        x=list(x),
        y=[rounded(sum(trials) / len(trials)) for trials in each],
        low=[rounded(min(trials)) for trials in each],
        high=[rounded(max(trials)) for trials in each],
    )


def rounded(value: float, digits: int = 6) -> float:
    """To so many significant digits: what is stored and printed."""
    return float(f"{value:.{digits}g}")


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of ln y over ln x, by least squares."""
    return rounded(float(np.polyfit(np.log(x), np.log(y), 1)[0]))


def most(trials: int) -> int:
    """How many of the trials are most of them: four of five, and all of fewer than five."""
    return max(trials - trials // 5, 1)


def verdict(agrees: bool) -> str:
    """The word for it."""
    if agrees:
        return "agrees"
    return "disagrees"
