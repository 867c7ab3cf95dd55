"""Fits one form of a law to points by robust least squares.

quality = floor · ∏ (size / reference)^γ + scale · ∏ (size / reference)^β · (tokens / reference)^−exponent

The first summand is called the floor, the second the reducible part: what training has still to take off. A form says
which sizes have an exponent γ, and which a β; the form without any is the curve over tokens alone. Floor, scale and
exponent are fitted as natural logarithms, so that they are positive.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from modeling_leaner.planning.laws import COMMON, TERMS, TOKENS, Form, parts

from .data import LawData, Point, by_cell


TOKENS_ONLY = Form()  # the curve over tokens alone

# Bounds of the parameters:
FLOOR_BOUNDS = (1e-3, 2.0)  # times the best quality
SCALE_BOUNDS = (1e-6, 10.0)  # times the worst quality
EXPONENT_BOUNDS = (0.01, 5.0)
MOST_SIZE_EXPONENT = 3.0  # of γ and β, either sign

# Where fits of the curve over tokens alone start:
START_FLOORS = (0.5, 0.9, 0.99)  # times the best quality
START_EXPONENTS = (0.1, 0.3, 1.0)
RANDOM_STARTS = 4  # of a form with sizes, beside the one whose γ and β are 0
RANDOM_SPREAD = 0.2  # of their γ and β

OUTLIER = 3.0  # residuals above this many standard deviations of seeds weigh less (soft L1)
MAD_TO_SD = 1.4826  # the standard deviation of a normal distribution, over its median absolute deviation
MIN_NOISE = 1e-6  # the least standard deviation of seeds, as a share of the worst quality
NOISE_OF_ONE_SEED = 0.01  # as a share of the mean quality, where no cell has two seeds


class Fitter:
    """Fits forms to points; sizes and tokens are relative to their geometric means over the whole grid."""

    def __init__(self, data: LawData):
        self.data = data
        self.budgets = sorted({point.tokens for point in data.points})
        self.reference = {
            term: statistics.geometric_mean(data.sizes[shape][term] for shape in data.shapes) for term in TERMS
        }
        self.reference[TOKENS] = statistics.geometric_mean(self.budgets)
        self.noise = noise_of_seeds(data.points)
        self.token_curves: dict[tuple[Point, ...], np.ndarray] = {}

    def columns(self, points: Sequence[Point]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """ln(size / reference) by term, ln(tokens / reference) and quality of n points, (n) each."""
        sizes = {
            term: np.array([math.log(self.data.sizes[point.shape][term] / self.reference[term]) for point in points])
            for term in TERMS
        }
        tokens = np.array([math.log(point.tokens / self.reference[TOKENS]) for point in points])
        return sizes, tokens, np.array([point.quality for point in points])

    def fit(self, form: Form, points: Sequence[Point], starts: Sequence[np.ndarray]) -> np.ndarray:
        """The best parameters, (P) as `form.names`, from some starts: least squares in which outliers weigh less."""
        from scipy.optimize import least_squares  # takes seconds to import

        sizes, tokens, quality = self.columns(points)
        lower, upper = bounds(form, quality)

        def residuals(parameters: np.ndarray) -> np.ndarray:
            floor, reducible = parts(form, parameters, sizes, tokens)
            return (floor + reducible - quality) / self.noise

        def jacobian(parameters: np.ndarray) -> np.ndarray:
            """(n, P): the floor and the reducible part are exponentials of sums, so the derivatives are products."""
            floor, reducible = parts(form, parameters, sizes, tokens)
            exponent = np.exp(parameters[COMMON.index("exponent")])
            columns = [floor, reducible, -reducible * tokens * exponent]
            columns += [floor * sizes[term] for term in form.floor]
            columns += [reducible * sizes[term] for term in form.scale]
            return np.stack(columns, axis=1) / self.noise

        fits = []
        for start in starts:
            inside = np.clip(start, lower + 1e-6, upper - 1e-6)
            fits.append(
                least_squares(
                    residuals, inside, jacobian, (lower, upper), loss="soft_l1", f_scale=OUTLIER, max_nfev=200
                )
            )
        return min(fits, key=lambda fit: fit.cost).x

    def fit_tokens_only(self, points: Sequence[Point]) -> np.ndarray:
        """The curve over tokens alone, from several starts; that of points that were fitted before is kept."""
        key = tuple(points)
        if key in self.token_curves:
            return self.token_curves[key]
        quality = [point.quality for point in points]
        best = min(quality)
        mean = statistics.fmean(quality)
        starts = []
        for share in START_FLOORS:
            floor = share * best
            scale = max(mean - floor, 1e-9)
            starts += [np.log([floor, scale, exponent]) for exponent in START_EXPONENTS]
        self.token_curves[key] = self.fit(TOKENS_ONLY, points, starts)
        return self.token_curves[key]

    def fit_anew(self, form: Form, points: Sequence[Point]) -> np.ndarray:
        """A form's parameters from the curve over tokens alone, with γ and β of 0 and with random ones."""
        start = extended(self.fit_tokens_only(points), TOKENS_ONLY, form)
        starts = [start]
        if form != TOKENS_ONLY:
            random = np.random.default_rng(0)
            for _ in range(RANDOM_STARTS):
                drawn = start.copy()
                drawn[len(COMMON) :] = random.normal(0, RANDOM_SPREAD, len(drawn) - len(COMMON))
                starts.append(drawn)
        return self.fit(form, points, starts)

    def predict(self, form: Form, parameters: np.ndarray, points: Sequence[Point]) -> np.ndarray:
        """The quality of points by a form's parameters."""
        sizes, tokens, _ = self.columns(points)
        floor, reducible = parts(form, parameters, sizes, tokens)
        return floor + reducible


def bounds(form: Form, quality: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest of each parameter, (P) each, by the qualities that are fitted."""
    best = quality.min()
    worst = quality.max()
    ranges = [
        [math.log(share * best) for share in FLOOR_BOUNDS],
        [math.log(share * worst) for share in SCALE_BOUNDS],
        [math.log(exponent) for exponent in EXPONENT_BOUNDS],
    ]
    ranges += [[-MOST_SIZE_EXPONENT, MOST_SIZE_EXPONENT]] * (len(form.names) - len(COMMON))
    lower, upper = np.array(ranges).T
    return lower, upper


def extended(parameters: np.ndarray, form: Form, larger: Form) -> np.ndarray:
    """The parameters of a form as those of a larger one, whose further exponents are 0: it predicts the same."""
    known = dict(zip(form.names, parameters))
    return np.array([known.get(name, 0.0) for name in larger.names])


def noise_of_seeds(points: Sequence[Point]) -> float:
    """The standard deviation of seeds around the median of their cell, by the median absolute deviation."""
    deviations = []
    for qualities in by_cell(points).values():
        if len(qualities) > 1:
            deviations += [abs(quality - statistics.median(qualities)) for quality in qualities]
    least = MIN_NOISE * max(point.quality for point in points)
    if not deviations:
        return max(least, NOISE_OF_ONE_SEED * statistics.fmean(point.quality for point in points))
    return max(least, MAD_TO_SD * statistics.median(deviations))
