"""What Ctrl-C does to the `leaner` command: it ends imports at once; later it is an exception, and work is saved."""

import os
import signal


INTERRUPTED = 130  # exit status of a command that Ctrl-C ended


def leave(*_: object) -> None:
    """Ends the process at once: a library turns an interrupted import of its own into another error."""
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """From here on Ctrl-C ends the process. One that ignores it, as under `nohup` or after `&`, keeps ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def leave_in_order() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, for there is something to save."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
