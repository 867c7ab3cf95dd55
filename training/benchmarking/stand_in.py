"""timm where torchvision is missing: an empty torchvision while timm is imported, and never after.

timm imports torchvision for its data pipelines and for norms of convolutional models; its vision transformer needs
neither. An installed torchvision that works is used.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from transformers.utils import is_torchvision_available


NAME = "torchvision"


class Names(type):
    """A class every attribute of which is its own name, as of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Placeholder(ModuleType):
    """A module of which every name is a class without contents."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        created = Names(name, (), {})
        setattr(self, name, created)
        return created


class Finder(MetaPathFinder, Loader):
    """Finds torchvision and all modules in it as placeholders."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != NAME:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def stand_in() -> Iterator[None]:
    """Puts a placeholder in the place of torchvision while the block runs."""
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if name.partition(".")[0] == NAME:
                del sys.modules[name]


def import_timm(name: str) -> ModuleType:
    """A module of timm. Raises ImportError where timm is not installed."""
    if name in sys.modules:
        return sys.modules[name]
    if is_torchvision_available():
        return import_module(name)
    with stand_in():
        return import_module(name)
