"""At which budget two shapes are equal, by a law: below it one of them is ahead, above it the other."""

import math
from collections.abc import Sequence

import numpy as np

from modeling_leaner.planning.laws import TOKENS, Law

from ..records import Crossing


NO_CROSSING = "no crossing within the fitted range"
ALIKE = "alike by the law, which does not depend on where they differ"
HALVINGS = 60


def crossing(law: Law, sizes: dict[str, dict[str, float]], shape: str, other: str) -> Crossing:
    """The budget at which two shapes are equal, with its interval; none of two that are alike by the law.

    Args:
        sizes: shape → term → value.
    """
    if are_alike(law, sizes[shape], sizes[other]):
        return no_crossing(shape, other, None, f"{shape} and {other}: {ALIKE}")
    low, _ = law.ranges[TOKENS]
    ahead, behind = shape, other  # at the smallest budget
    if law.at(sizes[shape], low, law.parameters) > law.at(sizes[other], low, law.parameters):
        ahead, behind = other, shape
    ln_tokens = float(ln_tokens_at_crossing(law, sizes[ahead], sizes[behind], law.parameters))
    if not math.isfinite(ln_tokens):
        return no_crossing(shape, other, ahead, f"{ahead} and {behind}: {NO_CROSSING}, {ahead} ahead")
    tokens = math.exp(ln_tokens)
    limits = None
    if len(law.replicates):
        of_refits = ln_tokens_at_crossing(law, sizes[ahead], sizes[behind], law.replicates)
        # The nearest refit, for some never cross and are ±∞, between which there is nothing:
        limits = [tokens_of(limit) for limit in np.quantile(of_refits, (0.025, 0.975), method="nearest")]
    per_parameter = tokens / sizes[ahead]["parameters"]
    return Crossing(
        shape=shape,
        other=other,
        ahead_below=ahead,
        ahead_above=behind,
        tokens=tokens,
        interval=limits,
        tokens_per_parameter=per_parameter,
        sentence=(
            f"below {tokens:.3g} tokens ({limits_text(limits)}), {per_parameter:.2g} a "
            f"parameter of {ahead} without embeddings, {ahead} is ahead of {behind}"
        ),
    )


def no_crossing(shape: str, other: str, ahead: str | None, sentence: str) -> Crossing:
    """Of two shapes of which one is ahead at every budget, or neither: then `ahead` is None."""
    return Crossing(
        shape=shape,
        other=other,
        ahead_below=ahead,
        ahead_above=ahead,
        tokens=None,
        interval=None,
        sentence=sentence,
    )


def are_alike(law: Law, shape: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two shapes differ in no size that the law depends on: it gives them the same quality at any budget."""
    return all(shape[term] == other[term] for term in law.form.terms)


def ln_tokens_at_crossing(
    law: Law, shape: dict[str, float], other: dict[str, float], parameters: np.ndarray
) -> np.ndarray:
    """ln tokens at which two shapes are equal by parameters (…, P), by bisection.

    Args:
        shape, other: their sizes.

    Returns:
        (…): +∞ where the first shape is better at all budgets of the fit, −∞ where it is worse at all of them.
    """
    low, high = law.ranges[TOKENS]
    at_low = law.at(shape, low, parameters) - law.at(other, low, parameters)
    at_high = law.at(shape, high, parameters) - law.at(other, high, parameters)
    is_ahead = at_low < 0
    crosses = np.sign(at_low) != np.sign(at_high)
    left, right = (np.full(at_low.shape, end) for end in np.log([low, high]))
    for _ in range(HALVINGS):  # the difference of two such curves has one root at most
        middle = (left + right) / 2
        is_ahead_there = difference_at(law, shape, other, np.exp(middle), parameters) < 0
        is_before = is_ahead_there == is_ahead
        left = np.where(is_before, middle, left)
        right = np.where(is_before, right, middle)
    never = np.where(is_ahead, math.inf, -math.inf)
    return np.where(crosses, right, never)


def difference_at(
    law: Law, shape: dict[str, float], other: dict[str, float], tokens: np.ndarray, parameters: np.ndarray
) -> np.ndarray:
    """Quality of the first shape less that of the other, (…), each set of parameters (…, P) at its own tokens (…)."""
    sets = parameters.reshape(-1, parameters.shape[-1])
    differences = [
        law.at(shape, budget, own) - law.at(other, budget, own) for own, budget in zip(sets, np.atleast_1d(tokens))
    ]
    return np.array(differences).reshape(np.shape(tokens))


def tokens_of(ln_tokens: float) -> float | None:
    """The tokens; None where they are beyond the fit, an infinite logarithm."""
    if not math.isfinite(ln_tokens):
        return None
    return math.exp(ln_tokens)


def limits_text(limits: Sequence[float | None] | None) -> str:
    """An interval of tokens in words; a limit of None is beyond the fit."""
    if limits is None:
        return "one seed, no interval"
    words = []
    for limit in limits:
        words.append("beyond the fit" if limit is None else f"{limit:.3g}")
    return " to ".join(words)
