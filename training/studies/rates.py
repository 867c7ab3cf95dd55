"""The choice of learning rates in a study: the best of those tried, and where to try on."""

from collections.abc import Collection


FACTOR = 2.0  # between rates that are tried


def beyond(best: float, tried: Collection[float]) -> float | None:
    """The next rate where the best is the least or the greatest of those tried; None where it lies between others."""
    if best == min(tried):
        return best / FACTOR
    if best == max(tried):
        return best * FACTOR
    return None
