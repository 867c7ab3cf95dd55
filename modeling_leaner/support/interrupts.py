"""What Ctrl-C does to the `leaner` command: nothing is lost while libraries are imported, later there may be."""

import os
import signal


INTERRUPTED = 130  # the status of a command that was


def leave(*_: object) -> None:
    """Ends the process at once: a library turns an interrupted import of its own into another error."""
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """From here on Ctrl-C ends the process. A process that ignores it, as `nohup` and `&` make it, goes on to."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def leave_in_order() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, for there is something to save."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
