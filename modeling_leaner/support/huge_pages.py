"""Memory of tensors in huge pages, on Linux. It changes times, no other number."""

import os


SETTING = "THP_MEM_ALLOC_ENABLE"  # PyTorch's; read once, at the first tensor


def ask_for_huge_pages() -> None:
    """Tells PyTorch to ask for them, unless the environment says otherwise; docs/speed.md has what that gains.

    Processes that are started later inherit it.
    """
    os.environ.setdefault(SETTING, "1")


def huge_pages_are_asked_for() -> bool:
    """Whether PyTorch asks for them; it does so for any value but 0."""
    return os.environ.get(SETTING, "0") != "0"
