"""Which sizes of a grid's shapes a law can depend on: those that vary independently of each other over the shapes.

If every shape has, say, the head size width / heads, then no fit can tell the head size from the other two. Such a
size is dependent: it is left out of the law, which then holds only for shapes with the same relation, its tie.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modeling_leaner.planning.laws import TERMS, Tie

from ..records import NotFitted


COLLINEAR = 0.1  # a term is dependent if less than this share of its spread, in logs, is left by the terms before it
MIN_SPREAD = 1e-9  # of a term's logs; below it the term is constant
MIN_POWER = 0.01  # of a term in a regression; below it the other does not depend on it
TIE_MARGIN = math.log(1.25)  # how much further than the fitted shapes a shape may be from a tie, in logs


class Regression(NamedTuple):
    """ln term = constant + Σ powers · ln other + residuals; the residuals one of each shape."""

    constant: float
    powers: dict[str, float]
    residuals: np.ndarray


def log_sizes(term: str, sizes: dict[str, dict[str, float]], shapes: Sequence[str]) -> np.ndarray:
    """ln term of each shape."""
    return np.log([sizes[shape][term] for shape in shapes])


def regression(
    term: str, others: Sequence[str], sizes: dict[str, dict[str, float]], shapes: Sequence[str]
) -> Regression:
    """ln term by least squares from the logarithms of other terms, over some shapes."""
    logs = log_sizes(term, sizes, shapes)
    columns = [np.ones(len(shapes)), *(log_sizes(other, sizes, shapes) for other in others)]
    design = np.stack(columns, axis=1)
    solution, *_ = np.linalg.lstsq(design, logs, rcond=None)
    constant, *powers = map(float, solution)
    return Regression(constant, dict(zip(others, powers)), logs - design @ solution)


def independent_terms(
    sizes: dict[str, dict[str, float]], shapes: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Divides TERMS, in their order, into those that vary independently over some shapes, and the dependent ones.

    Returns:
        The independent terms; and by each dependent one the terms that it follows from, none if it is constant.
    """
    independent: list[str] = []
    dependent: dict[str, list[str]] = {}
    for term in TERMS:
        logs = log_sizes(term, sizes, shapes)
        spread = np.linalg.norm(logs - logs.mean())
        if spread < MIN_SPREAD:
            dependent[term] = []
            continue
        fit = regression(term, independent, sizes, shapes)
        if np.linalg.norm(fit.residuals) < COLLINEAR * spread:
            dependent[term] = [name for name, power in fit.powers.items() if abs(power) > MIN_POWER]
        else:
            independent.append(term)
    return independent, dependent


def ties(dependent: dict[str, list[str]], sizes: dict[str, dict[str, float]], shapes: Sequence[str]) -> list[Tie]:
    """How each dependent term follows from the others; constant ones have no tie."""
    tied = []
    for term, others in dependent.items():
        if others:
            fit = regression(term, others, sizes, shapes)
            tolerance = float(np.abs(fit.residuals).max()) + TIE_MARGIN
            tied.append(Tie(term, fit.constant, fit.powers, tolerance))
    return tied


def not_fitted(dependent: dict[str, list[str]]) -> list[NotFitted]:
    """The dependent terms, each with the reason why the law cannot depend on it."""
    stated = []
    for term, others in dependent.items():
        reason = "the same in all shapes"
        if others:
            reason = f"follows from {', '.join(others)}"
        stated.append(NotFitted(term=term, reason=reason))
    return stated
