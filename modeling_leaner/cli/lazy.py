"""Modules of the package that take seconds to import, fetched once a command needs them."""

from importlib import import_module
from types import ModuleType

from ..support.interrupts import leave_at_once, leave_in_order


PACKAGE = __package__.rpartition(".")[0]


def library(module: str, models: bool = True) -> ModuleType:
    """A module of the package; with `models` the family is registered with the Auto classes, which takes seconds."""
    leave_at_once()
    if models:
        import_module(".family", PACKAGE)
    imported = import_module(module, PACKAGE)
    leave_in_order()
    return imported
