"""Progress through a list: a callable that a command gives, a bar where somebody looks on."""

from collections.abc import Callable, Iterable


Progress = Callable[[list, str], Iterable]  # goes through a list under a title


def no_progress(items: list, title: str) -> Iterable:
    """Shows nothing."""
    return items
