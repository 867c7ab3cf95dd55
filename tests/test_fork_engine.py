"""`leaner sweep GRID --engine fork`: it has the rows of separate processes, and its runs end as these do."""

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from filelock import lock_descriptor
from modeling_leaner.training.experiments import fork_engine
from modeling_leaner.training.experiments.fork_engine import METHOD, Forks
from modeling_leaner.training.experiments.grid import GridError
from modeling_leaner.training.experiments.run_here import status_of
from modeling_leaner.training.experiments.run_settings import TRAIN_COMMAND


SPENT = ("seconds", "items_per_second", "peak_memory_bytes", "input_pipeline_share", "data_seconds", "jobs")
GRID = {
    "recipe": "digits",
    "shapes": ["vit/nano", "vit/lean-nano"],
    "baseline": "vit/nano",
    "seeds": [1],
    "learning_rates": [1e-3],
    "overrides": {"max_steps": 10, "hardware": "cpu", "logging_steps": 5},
    "output_dir": "out",
}
HAS_FORKS = METHOD in multiprocessing.get_all_start_methods()
needs_forks = pytest.mark.skipif(not HAS_FORKS, reason="this system has no fork server")


def rows_of(folder, engine):
    """What results.csv says after a sweep by an engine, but for what each run has spent."""
    folder.mkdir()
    (folder / "grid.yaml").write_text(yaml.safe_dump(GRID))
    command = [sys.executable, "-m", "modeling_leaner", "sweep", "grid.yaml", "--engine", engine, "--jobs", "2"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    with (folder / "out" / "results.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key not in SPENT} for row in csv.DictReader(file)]


def lock_is_free(path):
    """Whether nobody holds the lock now."""
    with path.open("a") as file:
        return lock_descriptor(file.fileno(), blocking=False)


@pytest.fixture
def lock(tmp_path):
    """A path whose lock a file descriptor holds, as a sweep's."""
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    assert lock_descriptor(descriptor, blocking=False)
    yield path, descriptor
    os.close(descriptor)


def end_of(run, log):
    """The exit status of a run, and the last line that it logged."""
    while (status := run.poll()) is None:
        time.sleep(0.1)
    return status, log.read_text().splitlines()[-1]


@needs_forks
def test_forks_have_the_rows_of_processes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = rows_of(tmp_path / "forks", "fork")
    assert len(rows) == 2 and {row["status"] for row in rows} == {"finished"}
    assert rows == rows_of(tmp_path / "processes", "processes")


@needs_forks
def test_a_fork_that_fails_says_why(tmp_path, lock):
    """Status 1 and one line, added to the log; one whose log cannot be written is not begun and takes no place."""
    log = tmp_path / "run.log"
    log.write_text("earlier\n")
    engine = Forks(1, lock[1])
    command = [*TRAIN_COMMAND, "digits", "--shape", "vit/none", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(FileNotFoundError):
        engine.start(command, tmp_path / "nowhere" / "run.log")
    status, last = end_of(engine.start(command, log), log)
    assert status == 1 and last.startswith("leaner train: ") and "vit/none" in last
    assert log.read_text().startswith("earlier\n")


@needs_forks
def test_a_fork_holds_the_lock_until_it_is_interrupted(tmp_path, lock):
    """Also when the sweep is gone; interrupted, it saves a checkpoint, as a process of its own does."""
    path, descriptor = lock
    log = tmp_path / "run.log"
    options = ["--shape", "vit/nano", "--max_steps", "100000", "--output_dir", str(tmp_path / "run")]
    run = Forks(1, descriptor).start([*TRAIN_COMMAND, "digits", *options], log)
    while "it/s" not in log.read_text():
        assert run.poll() is None, log.read_text()
        time.sleep(0.1)
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)  # the sweep is gone
    assert not lock_is_free(path)
    run.interrupt()
    status, last = end_of(run, log)
    assert status == 130 and "--resume" in last and list((tmp_path / "run").glob("checkpoint-*"))
    assert lock_is_free(path)
    run.process.send_signal(signal.SIGINT)  # to one that has ended: nothing


@needs_forks
def test_an_interrupt_while_the_server_imports(tmp_path):
    """Ctrl-C reaches it, too; the sweep then ends as it would otherwise."""
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID))
    command = [sys.executable, "-m", "modeling_leaner", "sweep", "grid.yaml", "--engine", "fork"]
    sweep = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list((tmp_path / "out").glob("runs/*.log")):
        assert sweep.poll() is None, sweep.stderr.read()
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(sweep.pid, signal.SIGINT)
    _, errors = sweep.communicate(timeout=120)
    assert sweep.returncode == 130 and "leaner sweep: interrupted; the same command" in errors.splitlines()[-1]


def test_a_fork_that_has_just_ended_is_sent_nothing():
    """Its server has waited for it, and has not said yet how it ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    fork_engine.Fork(SimpleNamespace(exitcode=None, pid=ended.pid)).send_signal(signal.SIGINT)


@needs_forks
def test_a_fork_has_the_environment_of_its_run(tmp_path, monkeypatch):
    """Such as the device that it shares out; a plain fork of this process shows it."""
    log = tmp_path / "run.log"

    def tell(words, log):
        log.write_text(f"{words} {os.environ['CUDA_VISIBLE_DEVICES']}")
        return 3

    monkeypatch.setattr(fork_engine, "train_here", tell)
    lock = SimpleNamespace(detach=lambda: None)
    run = (["digits"], log, {"CUDA_VISIBLE_DEVICES": "7"}, lock)
    process = multiprocessing.get_context("fork").Process(target=fork_engine.train_fork, args=run)
    process.start()
    process.join()
    assert process.exitcode == 3 and log.read_text() == "['digits'] 7"


@needs_forks
def test_forks_share_out_the_cores(monkeypatch, lock):
    """By the environment of their server, which reads it once."""
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    Forks(2, lock[1])
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_a_system_without_forks(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(GridError, match="--engine fork: .* has no fork server; expected --engine processes"):
        Forks(1, 0)


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (130, 130), ("no such recipe", 1)])
def test_the_status_of_a_training(code, status):
    assert status_of(SystemExit(code)) == status
