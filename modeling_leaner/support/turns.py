"""Timing by turns: what is compared runs call by call beside each other, so that a slow minute is shared by all."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch.utils.benchmark import timer


WARM_UP = 2
LEAST_ROUNDS = 3  # however long they take


class Quartiles(NamedTuple):
    """The 25th, 50th and 75th percentile of some times."""

    low: float
    median: float
    high: float


def quartiles(seconds: np.ndarray) -> list[Quartiles]:
    """Of each call over its rounds: (calls, rounds) → a member for each call."""
    return [Quartiles(*of_call) for of_call in np.percentile(seconds, (25, 50, 75), axis=1).T.tolist()]


def seconds_of(call: Callable[[], object]) -> float:
    """Time of a call; the queue of a GPU is emptied before and after."""
    start = timer()
    call()
    return timer() - start


def take_turns(
    timed: Sequence[Callable[[], float]], rounds: int, *, warm_up: int = WARM_UP, limit: float = float("inf")
) -> np.ndarray:
    """The seconds that the calls return, without those of the rounds that warm up: (calls, rounds).

    Every other round runs backwards. After `LEAST_ROUNDS` it ends once the slowest call has taken `limit` seconds.
    """
    for _ in range(warm_up):
        for call in timed:
            call()
    seconds: list[list[float]] = [[] for _ in timed]
    order = list(range(len(timed)))
    for done in range(rounds):
        if done >= LEAST_ROUNDS and max(map(sum, seconds), default=0.0) > limit:
            break
        for turn in order:
            seconds[turn].append(timed[turn]())
        order.reverse()
    return np.array(seconds)
