"""Progress through a list: a callable that a command gives, a bar where somebody looks on."""

from collections.abc import Callable, Iterable

from rich.progress import track

from .terminal import plain_console


Progress = Callable[[list, str], Iterable]  # goes through a list under a title


def no_progress(items: list, title: str) -> Iterable:
    """Shows nothing."""
    return items


def progress_bar(items: list, title: str) -> Iterable:
    """A bar on stderr, which goes when the list is done."""
    return track(items, description=f"measuring {title}", console=plain_console(stderr=True), transient=True)
