"""Imports that take seconds, made once a command needs them."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..process import leave_at_once, leave_in_order


@contextmanager
def slow_imports(models: bool = True) -> Iterator[None]:
    """Inside, Ctrl-C ends the process; with `models` the family is registered with the Auto classes before."""
    leave_at_once()
    if models:
        from .. import family  # noqa: F401
    yield
    leave_in_order()
