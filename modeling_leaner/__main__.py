"""The `leaner` script, also `python -m modeling_leaner`.

Its commands are in cli/app.py and, from train to push, in cli/training.py. It ends quietly, with status 130, by
Ctrl-C or SIGTERM.
"""

import os
import signal
import sys
from functools import partial

from .process import INTERRUPTED, interrupt, keep_freed_memory, leave_at_once


def main() -> None:
    """Runs the command line."""
    keep_freed_memory()
    leave_at_once()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # From here on SIGTERM is as Ctrl-C to this process; a process that it forks ends at once.
        signal.signal(signal.SIGTERM, interrupt)
        if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
            os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
    try:
        from .cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        leave_at_once()  # all is written


if __name__ == "__main__":
    main()
