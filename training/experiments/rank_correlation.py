"""Spearman's rank correlation, pooled over groups: ranks are taken within each group alone.

ρ = Σ a·b / √(Σ a² · Σ b²), where a and b are the two ranks of each pair less their means in the group. Each of the
three sums goes over the pairs of all groups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Correlation(NamedTuple):
    """Spearman's ρ over groups, with its 95 % bootstrap interval; None where nothing can be ranked.

    `groups`: within which there is ranking; `ranked`: how many pairs they hold.
    """

    value: float | None
    interval: tuple[float, float] | None
    groups: int
    ranked: int


NOTHING_RANKED = Correlation(None, None, 0, 0)


def rank_sums(pairs: np.ndarray) -> np.ndarray:
    """The three sums of a group of n pairs, Σ a·b, Σ a² and Σ b²: (..., n, 2) → (..., 3).

    All are 0 where one side is constant, which cannot be ranked. Ranks go from 0 to 1 in groups of any size.
    """
    from scipy.stats import rankdata  # takes seconds to import

    ranks = rankdata(pairs, axis=-2)
    ranks -= ranks.mean(axis=-2, keepdims=True)
    ranks /= pairs.shape[-2] - 1
    first, second = ranks[..., 0], ranks[..., 1]
    sums = np.stack([first * second, first**2, second**2], axis=-1).sum(axis=-2)
    both_vary = sums[..., 1:].all(axis=-1, keepdims=True)
    return np.where(both_vary, sums, 0)


def rho_of_sums(sums: np.ndarray) -> np.ndarray:
    """ρ by the three sums, (..., 3) → (...), of one group or added up over groups; no sum may be 0."""
    return sums[..., 0] / np.sqrt(sums[..., 1] * sums[..., 2])


def rankable(groups: Sequence[np.ndarray]) -> tuple[int, np.ndarray]:
    """Of the groups in which both sides vary: how many pairs they hold, and the `rank_sums` of each, (groups, 3)."""
    counted = [(len(group), rank_sums(group)) for group in groups]
    varying = [(count, sums) for count, sums in counted if sums.any()]
    ranked = sum(count for count, _ in varying)
    return ranked, np.array([sums for _, sums in varying])
