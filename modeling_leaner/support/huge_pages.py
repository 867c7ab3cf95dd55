"""Memory of tensors in huge pages, on Linux. It changes times and how much memory a process holds, no other number."""

import os
import sys


SETTING = "THP_MEM_ALLOC_ENABLE"  # PyTorch's; read once, at the first tensor


def ask_for_huge_pages() -> None:
    """Tells PyTorch to ask for them, unless the environment says otherwise; docs/speed.md has what that gains.

    Processes that are started later inherit it.
    """
    os.environ.setdefault(SETTING, "1")


def huge_pages_are_asked_for() -> bool:
    """Whether PyTorch asks for them."""
    return sys.platform == "linux" and os.environ.get(SETTING) == "1"
