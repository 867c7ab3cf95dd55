"""Memory of freed tensors, kept for the next ones. It changes times and how much a process holds, no other number."""

import ctypes
import os
import sys


TRIM_THRESHOLD = -1  # mallopt(3)
MMAP_MAX = -4

kept = False


def keep_freed_memory() -> None:
    """Tells glibc to give none back to the system, which takes long to hand it out again; docs/speed.md has the gain.

    Settings of glibc's own in the environment win. Elsewhere than with glibc on Linux nothing changes.
    """
    global kept
    if sys.platform != "linux" or has_settings_of_its_own():
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        mapped = library.mallopt(MMAP_MAX, 0)  # large tensors, too, lie in the heap, which is kept
        trimmed = library.mallopt(TRIM_THRESHOLD, -1)  # never
        kept = mapped == trimmed == 1


def has_settings_of_its_own() -> bool:
    """Whether the environment says what glibc is to keep, as MALLOC_TRIM_THRESHOLD_=131072 does."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
    return any(name in os.environ for name in names) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
