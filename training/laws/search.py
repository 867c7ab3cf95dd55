"""Searches which sizes a law depends on: forward selection by the error on shapes that were left out of the fit.

It begins with the curve over tokens alone. Each step adds a size to the floor, to the scale or to both, whichever
predicts a left-out shape best, as long as each further parameter lowers that error by MIN_FALL.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from modeling_leaner.planning.laws import TERMS, Form

from .data import Point, by_cell, leave_out, shapes_of
from .fit import TOKENS_ONLY, Fitter, extended
from .terms import independent_terms


MIN_FALL = 0.05  # of the error of left-out shapes, for each further parameter


def larger_forms(form: Form, terms: Sequence[str]) -> list[Form]:
    """The forms with one more term on the floor, on the scale or on both."""
    larger = []
    for term in terms:
        floor = tuple(name for name in TERMS if name in (*form.floor, term))
        scale = tuple(name for name in TERMS if name in (*form.scale, term))
        larger += [Form(floor, form.scale), Form(form.floor, scale), Form(floor, scale)]
    return [candidate for candidate in dict.fromkeys(larger) if candidate != form]


def restricted(form: Form, terms: Sequence[str]) -> Form:
    """A form without the terms that are not among `terms`."""
    return Form(
        floor=tuple(term for term in form.floor if term in terms),
        scale=tuple(term for term in form.scale if term in terms),
    )


def mean_error(predicted: np.ndarray, measured: Sequence[Point]) -> float:
    """The mean absolute error over points."""
    return float(np.abs(predicted - [point.quality for point in measured]).mean())


@dataclass
class Fold:
    """One shape left out: the points to fit, the means to predict, and what the shapes to fit can tell apart.

    `fits`: the parameters of the forms that were fitted so far.
    """

    points: list[Point]
    left_out: list[Point]
    terms: list[str]
    cell_count: int
    fits: dict[Form, np.ndarray] = field(default_factory=dict)


class Search:
    """Searches the form that predicts a left-out shape best, among the shapes of some points."""

    def __init__(self, fitter: Fitter, points: Sequence[Point]):
        self.fitter = fitter
        shapes = shapes_of(points)
        self.terms, _ = independent_terms(fitter.data.sizes, shapes)
        self.folds = [self.fold(points, shape) for shape in shapes]

    def fold(self, points: Sequence[Point], shape: str) -> Fold:
        """The fold without this shape, in which the curve over tokens alone is fitted."""
        others, left_out = leave_out(points, shape)
        terms, _ = independent_terms(self.fitter.data.sizes, shapes_of(others))
        fold = Fold(others, left_out, terms, len(by_cell(others)))
        fold.fits[TOKENS_ONLY] = self.fitter.fit_tokens_only(others)
        return fold

    def error_of_fold(self, fold: Fold, form: Form, parent: Form) -> float:
        """The error of a fold's left-out shape; infinite where the fold has fewer cells than the form parameters.

        Terms that the fold's shapes cannot tell apart are left out of the form. The fit starts from the parent's.
        """
        form = restricted(form, fold.terms)
        parent = restricted(parent, fold.terms)
        if len(form.names) > fold.cell_count:
            return math.inf
        if form not in fold.fits:
            start = extended(fold.fits[parent], parent, form)
            fold.fits[form] = self.fitter.fit(form, fold.points, [start])
        return mean_error(self.fitter.predict(form, fold.fits[form], fold.left_out), fold.left_out)

    def error(self, form: Form, parent: Form) -> float:
        """The mean error over the folds; infinite where it is in one of them."""
        errors = []
        for fold in self.folds:
            error = self.error_of_fold(fold, form, parent)
            if math.isinf(error):
                return math.inf
            errors.append(error)
        return statistics.fmean(errors)

    def best(self) -> Form:
        """The form at which no step lowers the error by MIN_FALL for each further parameter."""
        form = TOKENS_ONLY
        error = self.error(form, form)
        while True:
            penalised = {}
            for larger in larger_forms(form, self.terms):
                penalty = (1 + MIN_FALL) ** (len(larger.names) - len(form.names))
                penalised[larger] = penalty * self.error(larger, form)
            if not penalised or min(penalised.values()) >= error:
                return form
            chosen = min(penalised, key=penalised.__getitem__)
            error = self.error(chosen, form)
            form = chosen
