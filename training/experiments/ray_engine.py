"""`leaner sweep GRID --engine ray`: the runs of a sweep on the machines of a Ray cluster.

A run is a task, which trains in a worker of its own. Where a worker or its machine is lost, Ray starts the task again
on another, and it continues from the run's last checkpoint: so the folder of the sweep has to be one that all machines
share, and lie in the same place on each.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from runpy import run_module

import ray
from filelock import FileLock
from ray.exceptions import RayError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from modeling_leaner import __version__
from modeling_leaner.support.interrupts import INTERRUPTED

from ..running.run_folder import LOCK
from .grid import GridError
from .run_settings import TRAIN_COMMAND


LOST_WORKERS = 10  # of one run, after which it has failed
PATIENCE = 300  # seconds until a machine answers, and until a lost worker has let go of its run
SHARED = ".shared"


def said_of(folder: Path, word: str, place: str) -> str:
    """What a machine finds where the folder of the sweep should be; `word` and the version where all is well."""
    try:
        os.chdir(place)
        found = (folder / SHARED).read_text()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if found != word:
        return f"{folder}: another folder of this name"
    return f"modeling_leaner {__version__}"


def train(words: list[str], log: Path, place: str) -> int:
    """Trains one run in this worker, from its last checkpoint where it has one, and returns its exit status."""
    os.chdir(place)
    log = log.absolute()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    folder = log.with_name(log.name.removesuffix(".log"))
    if folder.is_dir():
        with FileLock(folder / LOCK, timeout=PATIENCE):  # a lost worker may take a moment to end
            pass
        if "--resume" not in words and any(folder.iterdir()):
            words = [*words, "--resume"]
    _, _, module = TRAIN_COMMAND
    sys.argv = [module, *words]
    status = 0
    try:
        run_module(module, run_name="__main__", alter_sys=True)  # as the command does, whose room is above this one
    except SystemExit as end:
        if end.code is not None:
            status = end.code
    finally:
        sys.stdout.flush()
    return status


class RayCluster:
    """The cluster that RAY_ADDRESS names, or that this machine belongs to.

    Args:
        jobs: runs at the same time; each gets its share of the processors, and one GPU where there are any.

    Raises:
        GridError: there is no cluster; or a machine of it does not see the folder of the sweep, or has another version
            of this package.
    """

    def __init__(self, jobs: int, folder: Path):
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            missing = "no Ray cluster is running here; ray start --head starts one, or RAY_ADDRESS names one"
            raise GridError(f"--engine ray: {missing}") from error
        machines = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        check_shared(machines, folder)
        sizes = [int(node["Resources"]["CPU"]) for node in machines]
        share = min(max(sizes), max(1, sum(sizes) // jobs))
        gpus = int(any(node["Resources"].get("GPU") for node in machines))
        # max_calls: a process of its own for each run, so that none sees what another left behind
        self.train = ray.remote(num_cpus=share, num_gpus=gpus, max_calls=1, max_retries=LOST_WORKERS)(train)

    def start(self, command: Sequence[str], log: Path) -> "RayRun":
        words = list(command[len(TRAIN_COMMAND) :])
        return RayRun(self.train.remote(words, log, os.getcwd()), log)


class RayRun:
    """A task of a Ray cluster, and the log of its run."""

    def __init__(self, task: ray.ObjectRef, log: Path):
        self.task = task
        self.log = log

    def poll(self) -> int | None:
        ended, _ = ray.wait([self.task], timeout=0)
        if not ended:
            return None
        try:
            return ray.get(self.task)
        except TaskCancelledError:
            return INTERRUPTED
        except RayError as error:
            with self.log.open("a") as file:
                print(f"its worker was lost: {' '.join(str(error).split())}", file=file)
            return 1

    def interrupt(self) -> None:
        ray.cancel(self.task)


def check_shared(machines: list[dict], folder: Path) -> None:
    """Raises GridError for a machine that does not see the folder of the sweep, or has another version."""
    if not machines:
        raise GridError("--engine ray: no machine of the cluster has a processor")
    word = f"{os.getpid()} {time.time()}"
    mark = folder / SHARED
    mark.write_text(word)
    ask = ray.remote(num_cpus=0)(said_of)
    answers = {}
    for machine in machines:
        there = NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False)
        answer = ask.options(scheduling_strategy=there).remote(folder, word, os.getcwd())
        answers[answer] = machine["NodeManagerAddress"]
    try:
        for answer, address in answers.items():
            try:
                said = ray.get(answer, timeout=PATIENCE)
            except RayError as error:
                said = " ".join(str(error).split())[-200:]
            if said != f"modeling_leaner {__version__}":
                expected = f"expected {folder} of this machine, shared, and modeling_leaner {__version__}"
                raise GridError(f"--engine ray: {address}: {said}; {expected}")
    finally:
        mark.unlink()
