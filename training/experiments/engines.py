"""Where the runs of a sweep are carried out: in processes of this machine. `ray_engine.py` has a cluster."""

import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Started(Protocol):
    """A run under way."""

    def poll(self) -> int | None:
        """The exit status of its training; None while it lasts."""

    def interrupt(self) -> None:
        """Asks it to save a checkpoint and to end, as Ctrl-C does."""


class Engine(Protocol):
    """Starts the runs of a sweep."""

    def start(self, command: Sequence[str], log: Path) -> Started:
        """Starts the training that a command line is; what it prints is added to the log."""


def cuda_devices() -> list[str]:
    """The CUDA devices to share out, as CUDA_VISIBLE_DEVICES names them; empty where there are not several."""
    import torch

    count = torch.cuda.device_count()
    if count <= 1:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")[:count]
    return list(map(str, range(count)))


def shared_threads(jobs: int) -> dict[str, str]:
    """OMP_NUM_THREADS for each of `jobs` runs at a time, so that they share out the cores.

    Runs that have as many threads as there are cores, each, wait for one another in every operation. Empty for one
    run, and where OMP_NUM_THREADS is set.
    """
    import torch

    if jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // jobs))}


class Processes:
    """Processes of this machine, which share out its cores and, where it has several, its CUDA devices.

    Every process inherits the file descriptor `lock`, so that one which outlives a killed sweep keeps the next sweep
    from starting a second training in the same folder.
    """

    def __init__(self, jobs: int, lock: int):
        self.lock = lock
        self.threads = shared_threads(jobs)
        devices = cuda_devices() or [None]
        count = max(jobs, len(devices))  # one entry a run: a device may stand in it twice
        self.devices = deque(devices[number % len(devices)] for number in range(count))

    def start(self, command: Sequence[str], log: Path) -> "LocalRun":
        device = self.devices[0]
        environment = {**os.environ, **self.threads}
        environment["PYTHONUNBUFFERED"] = "1"  # else the log could end in what was written earlier
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[self.lock],
                process_group=0,  # a signal reaches it by `interrupt` alone, once, whoever sent it to the sweep
            )
        self.devices.popleft()  # only now: what could not be started takes none
        return LocalRun(process, device, self.devices)


class LocalRun:
    """A process, and the device that `poll` gives back when it first finds that the process has ended."""

    def __init__(self, process: subprocess.Popen, device: str | None, free: deque[str | None]):
        self.process = process
        self.device = device
        self.free = free
        self.holds_device = True

    def poll(self) -> int | None:
        status = self.process.poll()
        if status is not None and self.holds_device:
            self.free.append(self.device)
            self.holds_device = False
        return status

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
