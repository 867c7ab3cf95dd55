"""`leaner sweep GRID --engine ray` on a cluster of two workers on this machine; skipped where Ray is not installed."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml


ray = pytest.importorskip("ray", reason="the extra ray is not installed")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

from modeling_leaner.training.experiments import ray_engine  # noqa: E402
from modeling_leaner.training.experiments.runs import TRAIN_COMMAND  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402


MEMORY = 100 * 2**20  # bytes of a node's object store, of which a sweep uses none
SPENT = ("seconds", "items_per_second", "peak_memory_bytes", "input_pipeline_share", "data_seconds", "jobs")
GRID = {
    "recipe": "digits",
    "shapes": ["vit/nano", "vit/lean-nano"],
    "baseline": "vit/nano",
    "seeds": [1, 2],
    "learning_rates": [1e-3],
    "overrides": {"max_steps": 30, "save_strategy": "steps", "save_steps": 5, "use_cpu": True, "logging_steps": 5},
}


def cluster_of_two() -> Cluster:
    """A head without processors, and two workers with one each; Ray gives a node 30 seconds to start."""
    cluster = Cluster()
    try:
        for processors in (0, 1, 1):
            cluster.add_node(num_cpus=processors, object_store_memory=MEMORY, include_dashboard=False)
    except Exception:
        cluster.shutdown()
        raise
    return cluster


@pytest.fixture(scope="module")
def environment():
    """The environment of a process that uses the cluster, tried three times on a machine that is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        for attempt in range(3):
            try:
                cluster = cluster_of_two()
                break
            except Exception:
                if attempt == 2:
                    raise
        yield {**os.environ, "RAY_ADDRESS": cluster.address}
        cluster.shutdown()


def started(folder: Path, *words: str, environment: dict[str, str]) -> subprocess.Popen:
    """A sweep of the grid, with its output in sweep.log."""
    (folder / "grid.yaml").write_text(yaml.safe_dump({**GRID, "output_dir": "out"}))
    command = [sys.executable, "-m", "modeling_leaner", "sweep", "grid.yaml", *words]
    with (folder / "sweep.log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def rows_of(folder: Path) -> list[dict[str, str]]:
    """What results.csv says, but for what each run has spent."""
    with (folder / "out" / "results.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key not in SPENT} for row in csv.DictReader(file)]


def worker_of(lock: Path) -> psutil.Process | None:
    """The process that holds a run's lock."""
    for process in psutil.process_iter():
        try:
            if any(file.path == str(lock) for file in process.open_files()):
                return process
        except psutil.Error:
            continue
    return None


def kill_a_worker(folder: Path, sweep: subprocess.Popen) -> str:
    """Kills the worker of the first run that has saved a checkpoint; returns the run's name."""
    while sweep.poll() is None:
        for checkpoint in sorted((folder / "out" / "runs").glob("*/checkpoint-*/complete.json")):
            run = checkpoint.parent.parent
            worker = worker_of(run / ".lock")
            if worker is not None and not (run / "results.json").exists():
                worker.kill()
                return run.name
        time.sleep(0.05)
    raise RuntimeError((folder / "sweep.log").read_text()[-3000:])


def test_a_sweep_that_loses_a_worker_has_the_rows_of_one_process(environment, tmp_path):
    """Two runs at a time; the worker of one is killed, and the run continues from its checkpoint."""
    for name in ("cluster", "alone"):
        (tmp_path / name).mkdir()
    sweep = started(tmp_path / "cluster", "--engine", "ray", "--jobs", "2", environment=environment)
    lost = kill_a_worker(tmp_path / "cluster", sweep)
    status = sweep.wait(900)
    assert status == 0, (tmp_path / "cluster" / "sweep.log").read_text()[-3000:]
    log = (tmp_path / "cluster" / "out" / "runs" / f"{lost}.log").read_text()
    assert "continuing from" in log
    alone = started(tmp_path / "alone", environment=environment)
    assert alone.wait(900) == 0, (tmp_path / "alone" / "sweep.log").read_text()[-3000:]
    rows = rows_of(tmp_path / "cluster")
    assert len(rows) == 4 and {row["status"] for row in rows} == {"finished"}
    assert rows == rows_of(tmp_path / "alone")


def test_a_run_that_loses_every_worker_has_failed(environment, tmp_path, monkeypatch):
    """After as many as are allowed, and its log says what Ray says."""

    def end_worker(words, log, working_directory):
        with log.open("a") as file:
            print("begun", file=file)
        os._exit(1)

    monkeypatch.setattr(ray_engine, "train", end_worker)
    monkeypatch.setattr(ray_engine, "LOST_WORKERS", 2)
    monkeypatch.setenv("RAY_ADDRESS", environment["RAY_ADDRESS"])
    run = ray_engine.RayCluster(2).start(TRAIN_COMMAND, tmp_path / "run.log")
    while (status := run.poll()) is None:
        time.sleep(0.1)
    ray.shutdown()
    *begun, said = (tmp_path / "run.log").read_text().splitlines()
    assert status == 1 and begun == ["begun", "begun"] and said.startswith("Ray: ")


@pytest.mark.parametrize(
    ("processors", "jobs", "share"),
    [([16, 4], 2, 8), ([6, 6], 3, 3), ([4, 4], 2, 4), ([8], 3, 2), ([1, 1], 5, 1)],
)
def test_the_share_of_a_run(monkeypatch, processors, jobs, share):
    """On no machine fewer runs than fit: of 16 and 4 processors, 10 each would let only one run at a time."""
    asked = []
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": each}} for each in processors])
    monkeypatch.setattr(ray, "remote", lambda **options: asked.append(options["num_cpus"]) or (lambda task: task))
    ray_engine.RayCluster(jobs)
    assert asked == [share]
