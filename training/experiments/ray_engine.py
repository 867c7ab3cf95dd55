"""`leaner sweep GRID --engine ray`: the runs of a sweep on the machines of a Ray cluster.

A run is a task, which trains in a worker of its own. If a worker or its machine is lost, Ray starts the task again on
another, and it continues from the run's last checkpoint: so all machines have to share the folder of the sweep, have
it in the same place, and have the same version of this package.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import ray
from filelock import FileLock
from ray.exceptions import RayError, TaskCancelledError

from modeling_leaner.process import INTERRUPTED

from ..running.run_folder import LOCK
from .runs import TRAIN_COMMAND, TRAIN_MODULE


LOST_WORKERS = 10  # of one run, after which it has failed
PATIENCE = 300  # seconds until a lost worker has let go of its run


def train(words: list[str], log: Path, working_directory: str) -> int:
    """Trains one run in this worker, from its last checkpoint if it has one, and returns its exit status."""
    os.chdir(working_directory)
    log = log.absolute()
    folder = log.with_name(log.name.removesuffix(".log"))
    if folder.is_dir():
        with FileLock(folder / LOCK, timeout=PATIENCE):  # a lost worker may take a moment to end
            pass
        if "--resume" not in words and any(folder.iterdir()):
            words = [*words, "--resume"]
    with log.open("ab") as file:  # also gets what libraries print that are not Python
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [TRAIN_MODULE, *words]
    try:
        import_module(TRAIN_MODULE).main([*words])  # by its name: its room is above this one
        return 0
    except SystemExit as end:
        return end.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()


class RayCluster:
    """The cluster that RAY_ADDRESS names, or that this machine belongs to.

    Args:
        jobs: runs at the same time; each gets its share of the processors, and one GPU if there are any.
    """

    def __init__(self, jobs: int):
        address = os.environ.get("RAY_ADDRESS") or "auto"
        ray.init(address=address, log_to_driver=False, configure_logging=False)
        machines = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        processors = [int(node["Resources"]["CPU"]) for node in machines]
        # The most processors that each of `jobs` runs at a time can have; 1 if not all fit.
        shares = range(max(processors), 0, -1)
        share = next((each for each in shares if sum(count // each for count in processors) >= jobs), 1)
        gpus = int(any(node["Resources"].get("GPU") for node in machines))
        # max_calls: a process of its own for each run, so that none sees what another left behind
        self.train = ray.remote(num_cpus=share, num_gpus=gpus, max_calls=1, max_retries=LOST_WORKERS - 1)(train)

    def start(self, command: Sequence[str], log: Path) -> "RayRun":
        return RayRun(self.train.remote(list(command[len(TRAIN_COMMAND) :]), log, os.getcwd()), log)


@dataclass
class RayRun:
    """A task of a Ray cluster, and the log of its run."""

    task: ray.ObjectRef
    log: Path

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
                print(f"Ray: {' '.join(str(error).split())}", file=file)
            return 1

    def send_signal(self, _: int) -> None:
        ray.cancel(self.task)
