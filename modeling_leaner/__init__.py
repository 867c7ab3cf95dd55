"""LeanViT, LeanBERT and LeanGPT: transformers whose depth, heads, head size and width are free of each other.

Importing the package registers the family with transformers' Auto classes.
"""

import os
import sys
import sysconfig
from importlib import import_module


__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """The classes of the family, in the `leaner` script, too."""
    if name.startswith("Lean") or name == "__all__":
        return getattr(import_module(".family", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The help of the installed `leaner` script must not wait for torch: it imports the family before it uses a model.
_process = os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or "")
if _process != os.path.realpath(os.path.join(sysconfig.get_path("scripts"), "leaner")):
    from .family import *  # noqa: F403
