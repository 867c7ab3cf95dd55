"""How much the parameters of a law vary over seeds: refits with seeds drawn again (bootstrap), and their intervals.

All runs of a seed are drawn together, since runs that share a seed are not independent.
"""

import math
import statistics

import numpy as np

from modeling_leaner.planning.laws import COMMON, Form, interval

from ..records import LawParameter
from .data import LawData, by_seed
from .fit import Fitter


REFITS = 200


def widening(data: LawData) -> float:
    """By how much the refits are too narrow for the median number n of a shape's seeds.

    A bootstrap of n values has √((n − 1)/n) of their standard error, and its quantiles are those of a normal
    distribution in place of Student's t with n − 1 degrees of freedom.
    """
    from scipy.stats import norm, t  # takes seconds to import

    count = int(statistics.median(len(by_seed(data.points, shape)) for shape in data.shapes))
    return float(t.ppf(0.975, count - 1) / norm.ppf(0.975)) * math.sqrt(count / (count - 1))


def replicates(fitter: Fitter, form: Form, parameters: np.ndarray) -> np.ndarray:
    """Parameters of REFITS refits with seeds drawn again, (R, P), widened.

    A draw that leaves a shape without runs is drawn again. Where a shape has a single seed there are none, (0, P).
    """
    points = fitter.data.points
    shapes = fitter.data.shapes
    seeds = sorted({point.seed for point in points})
    if min(len(by_seed(points, shape)) for shape in shapes) < 2:
        return np.empty((0, len(form.names)))
    random = np.random.default_rng(1)
    refits = []
    while len(refits) < REFITS:
        drawn = [point for seed in random.choice(seeds, len(seeds)) for point in points if point.seed == seed]
        if len({point.shape for point in drawn}) == len(shapes):
            refits.append(fitter.fit(form, drawn, [parameters]))
    return parameters + widening(fitter.data) * (np.array(refits) - parameters)


def fitted_parameters(form: Form, parameters: np.ndarray, refits: np.ndarray) -> dict[str, LawParameter]:
    """Each parameter by its name, with its interval over the refits."""
    by_name = {}
    for place, name in enumerate(form.names):
        fitted = float(parameters[place])
        value = fitted
        limits = None
        if len(refits):
            limits = list(interval(refits[:, place]))
        is_logarithm = place < len(COMMON)
        if is_logarithm:
            value = math.exp(fitted)
            if limits is not None:
                limits = list(map(math.exp, limits))
        by_name[name] = LawParameter(value=value, interval=limits, fitted=fitted)
    return by_name
