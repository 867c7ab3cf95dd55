"""`leaner sweep GRID.yaml`: shapes × seeds × learning rates over one recipe, every run a training process of its own.

First every shape is tuned over the same learning rates, with seeds that are not reported and on rows held out of the
training split; if a best rate lies at an edge the grid grows there, for all shapes. Then every shape is trained with
every seed at its own best rate; with branches a trunk first, then its branches (`branches.py`). `grid.py` describes
the keys of a grid file. Runs are processes of this machine, or tasks of a Ray cluster (`ray_engine.py`).

In output_dir: results.csv (one row per finished or failed run, see `records.py`), summary.json, grid.yaml, and for
each run runs/<run>/ and runs/<run>.log. A sweep may be killed at any time; the same command continues it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from filelock import lock_descriptor

from modeling_leaner.files import naming, write_json

from ..data.sources import load_training
from ..records import RESULTS, ResultRow
from ..running.loading import prepare
from ..settings import parse, words_of
from ..tasks.distillation import Embedding
from . import runs
from .baselines import GUESSES, guesses_on
from .cuts import make_cuts
from .grid import PHASES, Grid, Run, check_data, check_unchanged, load_grid, reported, write_grid
from .grid_results import GridResults, load_results, write_rows
from .statistics import show, summarise


POLL_SECONDS = 0.1
ERROR = re.compile(r"^(?:leaner train|Ray|\w*Error): .*", re.MULTILINE)  # the line that a run prints if it fails


class Processes:
    """An engine: processes of this machine, which share out its cores and, if it has several, its CUDA devices.

    Every process inherits the file descriptor `lock`, so that one which outlives a killed sweep keeps the next sweep
    from starting a second training in the same folder.
    """

    def __init__(self, jobs: int, lock: int):
        self.lock = lock
        self.environment = {"PYTHONUNBUFFERED": "1"}  # else the log could end in what was written earlier
        if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            # Runs with as many threads as there are cores, each, would wait for one another in every operation.
            self.environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // jobs))
        self.devices, visible = [None], os.environ.get("CUDA_VISIBLE_DEVICES")
        if torch.cuda.device_count() > 1:
            devices = [*map(str, range(torch.cuda.device_count()))]
            self.devices = visible.split(",")[: len(devices)] if visible else devices
        self.runs: list[tuple[str | None, subprocess.Popen]] = []  # with the device of each

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen:
        """Starts the training that a command line is; what it prints is added to the log."""
        busy = [device for device, run in self.runs if run.poll() is None]
        device = min(self.devices, key=busy.count)
        visible = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        with log.open("ab") as file:
            run = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **visible},
                pass_fds=[self.lock],
                process_group=0,  # a signal reaches it only by `send_signal`, once, whoever sent it to the sweep
            )
        self.runs.append((device, run))
        return run


@dataclass
class Sweep:
    """Runs what is due, `jobs` runs at a time, and keeps results.csv up to date.

    `local` are the options for this machine's copy of the rows.
    """

    results: GridResults
    jobs: int
    local: Sequence[str] = ()
    running: dict[Run, Any] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)  # SIGINT and SIGTERM, as often as they came

    def run(self, engine: Any) -> None:
        """Runs until nothing is due. Raises KeyboardInterrupt after SIGINT or SIGTERM, once the runs have ended."""
        forwarded = 0  # signals that the runs under way have been sent
        handlers = {  # by ones that do not raise: that would lose the process that is being started
            number: signal.signal(number, lambda number, frame: self.signals.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            due = dict.fromkeys(run.phase for run in runs.missing_runs(self.results))
            if due:
                counts, logs = ", ".join(map(self._count, due)), self.results.grid.path("runs")
                print(f"[{counts}] the logs of the runs: {logs}", file=sys.stderr, flush=True)
            self._start_due(engine)
            while self.running:
                if len(self.signals) > forwarded:
                    forwarded = len(self.signals)
                    for started in self.running.values():
                        started.send_signal(signal.SIGINT)  # to save a checkpoint and to end
                ended = {run: status for run, each in self.running.items() if (status := each.poll()) is not None}
                for run, status in ended.items():
                    del self.running[run]
                    if status == 0 or not self.signals:
                        self._keep(run, status)
                if ended:
                    self._start_due(engine)
                else:
                    time.sleep(POLL_SECONDS)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.signals:
            raise KeyboardInterrupt("interrupted; the same command continues where the runs stopped")

    def _start_due(self, engine: Any) -> None:
        """Starts runs while there is room for one, unless interrupted; what cannot be started has failed."""
        grid = self.results.grid
        while len(self.running) < self.jobs and not self.signals:
            for run in runs.missing_runs(self.results):
                # A branch waits for its trunk.
                if run not in self.running and (run.branch is None or run.trunk in self.results.rows):
                    break
            else:
                return
            folder = run.folder(grid)
            if (folder / RESULTS).exists():  # it had finished, only its row was lost
                self._keep(run, 0)
                continue
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                self.running[run] = engine.start(runs.command(grid, run, self.local), Path(f"{folder}.log"))
            except (ValueError, OSError) as error:
                self._keep(run, error)

    def _count(self, phase: str) -> str:
        """How many of a phase's runs have ended, out of all that are known and can, such as tune 3/6."""
        done = sum(run.phase == phase for run in self.results.rows)
        missing = sum(run.phase == phase for run in runs.missing_runs(self.results))
        return f"{phase} {done}/{done + missing}"

    def _keep(self, run: Run, outcome: int | Exception) -> None:
        """Puts the row of a run that ended with a status, or could not start, into results.csv, and prints it."""
        grid, rows = self.results.grid, self.results.rows
        log = Path(f"{run.folder(grid)}.log")
        error = outcome
        if outcome == 0:
            try:
                row = runs.result_row(grid, run)
                check_data(grid, [*rows.values(), row])
                error, text = None, f"{row.metric} {row.value:.4f}, {row.seconds or 0:.0f} s"
            except (ValueError, OSError) as problem:
                error = problem
        elif isinstance(outcome, int):  # the last error in the log; a signal leaves none
            said = log.read_text(errors="replace").replace("\r", "\n") if outcome > 0 else ""
            errors = ERROR.findall(said)
            error = errors[-1][:300] if errors else f"exit status {outcome}"
        if error is not None:
            line = " ".join(str(error).split())
            row = ResultRow.from_cells({**run._asdict(), "status": "failed", "error": line})
            text = f"failed: {line} ({log})"
        rows[run] = replace(row, jobs=self.jobs)

        ordered = sorted(rows, key=lambda run: (PHASES.index(run.phase), *run[1:4], run.branch or 0))
        write_rows(grid.path("results.csv"), map(rows.get, ordered))

        tokens = "" if run.branch is None else f" {run.branch:,} tokens"
        cell = f"{run.shape} seed {run.seed} learning rate {run.learning_rate:g}{tokens}"
        print(f"[{self._count(run.phase)}] {cell}: {text}", file=sys.stderr, flush=True)


def run_sweep(grid: Grid, jobs: int, local: Sequence[str] = (), engine: str = "processes") -> GridResults:
    """Runs the grid, alone in its output_dir, and returns it with all rows; on Ctrl-C it waits for the runs under way.

    `local` are the options for this machine's copy of the rows.
    """
    Path(grid.output_dir).mkdir(parents=True, exist_ok=True)
    with grid.path(".lock").open("a") as lock:
        if not lock_descriptor(lock.fileno(), blocking=False):
            used = "in use by another sweep, or by a run that outlived a killed one; wait until it ends"
            raise ValueError(f"output_dir: {grid.output_dir} is {used}")
        results = load_results(grid)
        check_unchanged(grid, results.rows.values())
        # What failed in an earlier sweep is tried once more, as if there were no row of it:
        for run in [run for run, row in results.rows.items() if row.status == "failed"]:
            del results.rows[run]

        # Rows that cannot be had are found once, before each run fails. A Ray cluster's machines may have others.
        starts_any = any(not (run.folder(grid) / RESULTS).exists() for run in runs.missing_runs(results))
        if starts_any and engine != "ray":
            arguments = runs.run_arguments(grid, grid.baseline, local=local)
            place = f"recipe {grid.recipe}: no run was started (--data names a local copy)"
            with naming(place, (ValueError, OSError)):
                load_training(arguments)
        write_grid(grid)
        if engine == "ray":
            remedy = 'pip install ".[ray]" in a clone, and ray start --head'
            with naming(f"--engine ray ({remedy})", (ImportError, OSError, RuntimeError)):
                from .ray_engine import RayCluster

                chosen = RayCluster(jobs)
        else:
            chosen = Processes(jobs, lock.fileno())
        Sweep(results, jobs, local).run(chosen)
    return results


def write_guesses(grid: Grid, local: Sequence[str] = ()) -> None:
    """Scores the simple baselines on the rows that the grid's baseline reads, and writes guesses.json."""
    run = reported(grid, grid.baseline, grid.seeds[0], grid.learning_rates[0])
    arguments = parse(grid.recipe, runs.options_of_run(grid, run, runs.shape_option(grid, run), local))
    if arguments.task != Embedding.name:  # whose labels a teacher makes
        arguments.teacher = None
    prepared = prepare(arguments)
    held_out = prepared.held_out and prepared.held_out.rows
    fitted = guesses_on(prepared.task, prepared.train, held_out)
    if fitted is not None:
        write_json(grid.path(GUESSES), [guess.document() for guess in fitted])
        for guess in fitted:
            print(f"{guess.name}: {guess.value:.4f}", file=sys.stderr)


def sweep(
    file: Path,
    jobs: int = 1,
    data_files: Sequence[str] = (),
    output_dir: Path | None = None,
    summary: bool = False,
    engine: str = "processes",
) -> bool:
    """Runs the grid of a file, then compares its shapes: writes summary.json and prints its tables.

    `output_dir` takes the place of the grid's. With `summary` only the runs that are there are compared. Returns
    whether all runs to be reported have finished; True with `summary`.
    """
    grid = load_grid(file)
    grid = grid if output_dir is None else replace(grid, output_dir=str(output_dir))
    if summary:
        results = load_results(grid)
        check_unchanged(grid, results.rows.values())
        if not results.rows:
            raise ValueError(f"{grid.path('results.csv')}: no run has ended yet")
        write_grid(grid)  # what no run depends on, such as data and publish, may have changed
    else:
        local = words_of({"data_files": list(data_files)})
        make_cuts(grid, local)
        with naming(file):
            runs.check_settings(grid)
        results = run_sweep(grid, jobs, local, engine)
        if results.any_reported is not None and not grid.path(GUESSES).is_file():
            try:
                write_guesses(grid, local)
            except (ValueError, OSError) as error:  # rows that only the machines of the runs have
                print(f"no simple guesses: {error}", file=sys.stderr)

    comparison = summarise(results)
    write_json(grid.path("summary.json"), comparison)
    show(comparison)
    print(grid.path("summary.json"), flush=True)
    finished = {run for run, row in results.rows.items() if row.status == "finished"}
    return summary or finished.issuperset(runs.planned(grid, results.tuning.best))
