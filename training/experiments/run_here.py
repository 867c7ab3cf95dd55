"""A run of a sweep in this very process, which is there for it alone: a worker of Ray, or a fork."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .run_settings import TRAIN_MODULE


def train_here(words: Sequence[str], log: Path) -> int:
    """Trains by the words of a command line and returns the exit status; what is printed is added to the log."""
    with log.open("ab") as file:  # gets also what libraries print that are not Python
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [TRAIN_MODULE, *words]
    try:
        import_module(TRAIN_MODULE).main([*words])  # by its name: its room is above this one
        return 0
    except SystemExit as end:
        return status_of(end)
    except Exception:
        traceback.print_exc()  # in the log, as a process of its own ends
        return 1
    finally:
        sys.stdout.flush()


def status_of(end: SystemExit) -> int:
    """The exit status of a process that ends so."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1
