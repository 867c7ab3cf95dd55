"""What Ctrl-C and SIGTERM do to the `leaner` command: imports end at once; later they are an exception."""

import os
import signal
from functools import partial
from types import FrameType


INTERRUPTED = 130  # exit status of a command that Ctrl-C or SIGTERM ended


def leave(*_: object) -> None:
    """Ends the process at once: a library turns an interrupted import of its own into another error."""
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
    """Does what Ctrl-C does now; where that is ignored, as after `&` in a script, it raises KeyboardInterrupt."""
    pressed = signal.getsignal(signal.SIGINT)
    if not callable(pressed):
        pressed = signal.default_int_handler
    pressed(signal.SIGINT, frame)


def end_as_interrupted() -> None:
    """From here on SIGTERM is as Ctrl-C to this process; a process that it forks ends at once."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
        if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
            os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
