"""Memory of freed tensors, kept for the next ones. It changes times and how much a process holds, no other number."""

import ctypes
import os
import re
import sys


M_TRIM_THRESHOLD = -1  # of mallopt(3)
M_MMAP_MAX = -4
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
TUNABLES = r"glibc\.malloc\.(trim_threshold|mmap_threshold|mmap_max)="

is_kept = False


def keep_freed_memory() -> None:
    """Tells glibc to give none back to the system, which takes long to hand it out again; docs/speed.md has the gain.

    What the environment says of it wins. Elsewhere than with glibc on Linux nothing changes.
    """
    global is_kept
    if sys.platform != "linux" or environment_decides():
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        unmapped = libc.mallopt(M_MMAP_MAX, 0)  # large tensors, too, lie in the heap, which is kept
        untrimmed = libc.mallopt(M_TRIM_THRESHOLD, -1)
        is_kept = unmapped == untrimmed == 1


def environment_decides() -> bool:
    """Whether the environment says what glibc is to keep, as MALLOC_TRIM_THRESHOLD_=131072 does."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(name in os.environ for name in VARIABLES) or re.search(TUNABLES, tunables) is not None
