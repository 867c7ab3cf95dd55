"""Whether a law predicts shapes that it has not seen better than the curve over tokens alone: leave one shape out.

Each shape is left out of everything, of the search for the form, too (nested cross-validation). A law is found only
if the 95 % interval of the difference of errors excludes 0, by a paired bootstrap over shapes and their seeds.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modeling_leaner.planning.laws import Form, interval

from ..records import LawErrors
from .data import LawData, by_seed, leave_out
from .fit import TOKENS_ONLY, Fitter
from .search import Search


DRAWS = 2000  # of the difference of errors


@dataclass(frozen=True)
class LeftOut:
    """What was predicted of one shape that was left out, at each of its budgets: by the law, and by tokens alone."""

    shape: str
    budgets: list[int]
    law: np.ndarray
    tokens_only: np.ndarray
    form: Form


def leave_each_out(fitter: Fitter) -> list[LeftOut]:
    """Of each shape, what a search and a fit among the other shapes predict."""
    predictions = []
    for shape in fitter.data.shapes:
        others, means = leave_out(fitter.data.points, shape)
        form = Search(fitter, others).best()
        law = fitter.predict(form, fitter.fit_anew(form, others), means)
        tokens_only = fitter.predict(TOKENS_ONLY, fitter.fit_tokens_only(others), means)
        predictions.append(LeftOut(shape, [point.tokens for point in means], law, tokens_only, form))
    return predictions


def errors_on(runs: Sequence[dict[int, float]], prediction: LeftOut) -> tuple[float, float]:
    """The mean absolute errors over the budgets, of the law and of tokens alone.

    Args:
        runs: of each seed, tokens → quality; a seed that was drawn twice is there twice.
    """
    of_law = []
    of_tokens_only = []
    for place, tokens in enumerate(prediction.budgets):
        measured = [run[tokens] for run in runs if tokens in run]
        if measured:
            mean = statistics.fmean(measured)
            of_law.append(abs(prediction.law[place] - mean))
            of_tokens_only.append(abs(prediction.tokens_only[place] - mean))
    return statistics.fmean(of_law), statistics.fmean(of_tokens_only)


def errors_of(predictions: Sequence[LeftOut], data: LawData) -> LawErrors:
    """The mean errors over shapes, with the interval of their difference."""
    runs = {shape: by_seed(data.points, shape) for shape in data.shapes}
    pairs = [errors_on(list(runs[prediction.shape].values()), prediction) for prediction in predictions]
    law, tokens_only = (statistics.fmean(errors) for errors in zip(*pairs))
    random = np.random.default_rng(0)
    differences = [difference_of_draw(predictions, runs, random) for _ in range(DRAWS)]
    limits = list(interval(np.array(differences)))
    return LawErrors(law=law, tokens_only=tokens_only, difference=law - tokens_only, interval=limits)


def difference_of_draw(
    predictions: Sequence[LeftOut], runs: dict[str, dict[int, dict[int, float]]], random: np.random.Generator
) -> float:
    """The mean difference of errors over shapes that are drawn with replacement, and within each over drawn seeds.

    Args:
        runs: shape → seed → tokens → quality.
    """
    differences = []
    for place in random.integers(len(predictions), size=len(predictions)):
        prediction = predictions[place]
        of_shape = runs[prediction.shape]
        seeds = random.choice(list(of_shape), len(of_shape)).tolist()
        law, tokens_only = errors_on([of_shape[seed] for seed in seeds], prediction)
        differences.append(law - tokens_only)
    return statistics.fmean(differences)


def is_found(form: Form, errors: LawErrors) -> bool:
    """The criterion: the form has a term, and the interval of law − tokens only lies below 0."""
    return form != TOKENS_ONLY and errors.interval[1] < 0
