"""LeanViT, LeanBERT and LeanGPT: transformers whose depth, heads, head size and width are free of each other.

Importing the package registers the family with transformers' Auto classes.
"""

import os
import sys
import sysconfig
from importlib import import_module


__version__ = "0.1.0"


def _is_the_command() -> bool:
    """Whether this process is the installed `leaner` script, whose help must not wait for torch."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    return os.path.realpath(script) == os.path.realpath(os.path.join(sysconfig.get_path("scripts"), "leaner"))


def __getattr__(name: str) -> object:
    """The classes of the family, in the `leaner` script, too."""
    if name.startswith("Lean") or name == "__all__":
        return getattr(import_module(".family", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not _is_the_command():  # the script itself imports the family before it uses a model
    from .family import *  # noqa: F403
