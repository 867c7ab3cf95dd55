"""Values of several trials as statements and lines of a figure have them."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from torch import Tensor

from ..records import Line, Outcome


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


def verdict(agrees: bool) -> Outcome:
    """The word for what is one or the other."""
    if agrees:
        return "agrees"
    return "disagrees"


def by_interval(interval: Sequence[float] | None) -> Outcome:
    """Of an effect that is stated to be above 0, by its 95 % interval; undecided without one.

    agrees: all of the interval above 0; disagrees: all below; else undecided.
    """
    if interval is None:
        return "undecided"
    low, high = interval
    if low > 0:
        return "agrees"
    if high < 0:
        return "disagrees"
    return "undecided"


def together(outcomes: Collection[Outcome]) -> Outcome:
    """Of what is stated of all. agrees: all agree; disagrees: one disagrees; else undecided, as of none."""
    if "disagrees" in outcomes:
        return "disagrees"
    if outcomes and all(outcome == "agrees" for outcome in outcomes):
        return "agrees"
    return "undecided"


def by_majority(outcomes: Collection[Outcome]) -> Outcome:
    """agrees, disagrees: what more than half are; else undecided."""
    counts = Counter(outcomes)
    for outcome in ("agrees", "disagrees"):
        if counts[outcome] > len(outcomes) / 2:
            return outcome
    return "undecided"
