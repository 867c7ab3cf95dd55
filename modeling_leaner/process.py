"""The process of the `leaner` command: what Ctrl-C and SIGTERM do to it, and memory of freed tensors that it keeps."""

import ctypes
import os
import signal
import sys
from types import FrameType


INTERRUPTED = 130  # exit status of a command that Ctrl-C or SIGTERM ended
M_TRIM_THRESHOLD = -1  # of mallopt(3)
M_MMAP_MAX = -4


def leave(*_: object) -> None:
    """End the process at once: a library turns an interrupted import of its own into another error."""
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """From here on Ctrl-C ends the process. One that ignores it, as after `&` in a script, keeps ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def leave_in_order() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, for there is something to save."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now; if that is ignored, as after `&` in a script, raise KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    pressed = handler if callable(handler) else signal.default_int_handler
    pressed(signal.SIGINT, frame)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory instead of returning it to the system; docs/speed.md has the gain.

    Only times and how much memory a process holds change. Environment variables such as MALLOC_TRIM_THRESHOLD_ take
    precedence. Does nothing without glibc on Linux.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)  # large tensors, too, lie in the heap, which is kept
        libc.mallopt(M_TRIM_THRESHOLD, -1)
