"""The `leaner` script, also `python -m modeling_leaner`.

Its commands are in cli/app.py and, from train to push, in cli/training.py. It ends quietly, with status 130, by
Ctrl-C or SIGTERM.
"""

import sys

from .process import INTERRUPTED, end_as_interrupted, keep_freed_memory, leave_at_once


def main() -> None:
    """Runs the command line."""
    keep_freed_memory()
    leave_at_once()
    end_as_interrupted()
    try:
        from .cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        leave_at_once()  # all is written


if __name__ == "__main__":
    main()
