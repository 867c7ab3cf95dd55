"""`leaner sweep GRID --engine fork`: each run is a fork of one process that has imported all, so none waits for that.

The process, Python's fork server, only imports, and each run is a fresh fork of it: no run sees what another left
behind.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path

from .engines import Processes
from .grid import GridError
from .run_here import train_here
from .run_settings import TRAIN_COMMAND, TRAIN_MODULE


METHOD = "forkserver"
PRELOADED = [TRAIN_MODULE, "matplotlib.pyplot", "modeling_leaner.modeling_lean_bert"]
PRELOADED += ["modeling_leaner.modeling_lean_gpt", "modeling_leaner.modeling_lean_vit"]


def train_fork(words: Sequence[str], log: Path, environment: dict[str, str], lock: DupFd) -> None:
    """Trains one run in this process, a fork, and ends it with the exit status; it holds the lock until then."""
    os.setpgid(0, 0)  # a signal reaches it by `interrupt` alone, as with `Processes`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the server ignores
    lock.detach()  # takes over the file descriptor, which stays open as long as this process
    os.environ.update(environment)
    sys.stdout.reconfigure(line_buffering=True)
    sys.stderr.reconfigure(line_buffering=True)
    sys.exit(train_here(words, log))


class Forks(Processes):
    """As `Processes`, but each run is a fork of one server. Raises GridError where the system has none, as Windows."""

    def __init__(self, jobs: int, lock: int):
        super().__init__(jobs, lock)
        if METHOD not in multiprocessing.get_all_start_methods():
            raise GridError(f"--engine fork: {sys.platform} has no fork server; expected --engine processes")
        # Imported libraries ask for a GPU. By way of CUDA they would begin it in the server, and no fork could use it.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        os.environ.update(self.threads)  # the server's libraries read it when they are loaded
        self.context = multiprocessing.get_context(METHOD)
        self.context.set_forkserver_preload(PRELOADED)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server inherits that: Ctrl-C must not end it
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, handler)

    def _begin(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> "Fork":
        log.touch()  # here, where a log that cannot be written is an error of the run's start
        words = command[len(TRAIN_COMMAND) :]
        process = self.context.Process(target=train_fork, args=(words, log, environment, DupFd(self.lock)))
        process.start()
        return Fork(process)


class Fork:
    """A fork, as a `LocalProcess`."""

    def __init__(self, process: BaseProcess):
        self.process = process

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.process.exitcode is None:
            with suppress(ProcessLookupError):  # it has ended, and its status has not come yet
                os.kill(self.process.pid, number)
