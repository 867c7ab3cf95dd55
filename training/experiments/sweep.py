"""`leaner sweep GRID.yaml`: shapes × seeds × learning rates over one recipe, every run a training process of its own.

First every shape is tuned over the same learning rates, with seeds that are not reported and on rows held out of the
training split; where a best rate lies at an edge the grid grows there, for all shapes. Then every shape is trained
with every seed at its own best rate; with branches a trunk first, then its branches (`branches.py`). The keys of a
grid file are described in `grid.py`, where the processes run in `engines.py`.

In output_dir: results.csv (one row per finished or failed run, see `rows.py`), summary.json, grid.yaml, and of each
run runs/<run>/ and runs/<run>.log. A sweep may be killed at any time; the same command continues it.
"""

import io
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import lock_descriptor

from modeling_leaner.files import naming, write_bytes, write_json

from ..data.sources import load_training
from ..records import ResultRow
from ..records.results import RESULTS
from ..settings.command_line import data_options
from .cuts import make_cuts
from .engines import Engine, Processes, Started
from .grid import Grid, GridError, check_same_data, check_unchanged, load_grid, write_grid
from .grid_results import GridResults, load_results
from .rows import Run, result_row, write_rows
from .run_settings import run_arguments
from .runs import begin_branch, can_start, check_starts, check_trunk, command, missing_runs, planned, sort_key
from .simple_guesses import write_guesses
from .soundness import check_grid, check_settings
from .summary import summarise
from .summary_tables import show


POLL_SECONDS = 0.1
OWN_ERROR = "leaner train: "  # begins what a run says when it refuses or fails
PROGRESS = re.compile(r"\d+%\|.*\[[\d:?]+<")  # a line of tqdm


def _reason(status: int, log: Path, begin: int = 0) -> str:
    """Why a run failed: the last error of `leaner train` in its log, else the last line that is no progress bar.

    The exit status of a run that a signal ended, or that logged no such line. The log is read from the byte `begin`,
    where this attempt begins.
    """
    if status > 0:
        lines = re.split(r"[\r\n]+", log.read_bytes()[begin:].decode(errors="replace"))
        lines = [line for line in lines if line.strip() and not PROGRESS.search(line)]
        errors = [line for line in lines if line.startswith(OWN_ERROR)]
        reasons = errors or lines
        if reasons:
            return reasons[-1].strip()[:300]
    return f"exit status {status}"


class Sweep:
    """Runs what is due, `jobs` runs at a time, by an engine, and keeps results.csv up to date."""

    def __init__(self, results: GridResults, jobs: int, engine: Engine, local: Sequence[str] = ()):
        self.results = results
        self.grid = results.grid
        self.rows = results.rows
        self.jobs = jobs
        self.engine = engine
        self.local = local
        self.running: dict[Run, Started | None] = {}  # None where it had finished and only its row was lost
        self.log_begins: dict[Run, int] = {}  # bytes of earlier attempts in the log of a run
        self.interrupts = 0
        self.forwarded = 0  # how many interrupts the runs under way have been sent
        self.to_retry = {run for run, row in self.rows.items() if row.has_failed}

    def run(self) -> None:
        """Runs until nothing is due; what failed in an earlier sweep is tried once more.

        Raises:
            KeyboardInterrupt: after SIGINT or SIGTERM, once the processes under way have ended.
        """
        # Handlers that raise would lose the process that is being started.
        handlers = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._announce()
            self._start_due()
            while self.running:
                self._await_end()
                self._start_due()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.interrupts:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        self.interrupts += 1

    def _without_retries(self) -> GridResults:
        """The results as if there were no row of a run that is tried again."""
        return GridResults(self.grid, {run: row for run, row in self.rows.items() if run not in self.to_retry})

    def _next(self) -> Run | None:
        """The next run to start; None where each has a row, is under way, waits for one that is, or never can."""
        results = self._without_retries()
        due = (run for run in missing_runs(results) if run not in self.running and can_start(results, run))
        return next(due, None)

    def _start_due(self) -> None:
        """Starts runs while there is room for one, unless interrupted; what cannot be started has failed."""
        while len(self.running) < self.jobs and not self.interrupts:
            run = self._next()
            if run is None:
                return
            try:
                self.running[run] = self._start(run)
            except (GridError, OSError) as error:
                self._fail(run, error)

    def _await_end(self) -> None:
        """Waits until one run ends, and keeps what became of it; an interrupt is passed on to all under way."""
        while True:
            self._forward_interrupts()
            for run, started in self.running.items():
                status = 0
                if started is not None:
                    status = started.poll()
                if status is None:
                    continue
                del self.running[run]
                if status == 0 or not self.interrupts:
                    self._keep(run, status)
                return
            time.sleep(POLL_SECONDS)

    def _forward_interrupts(self) -> None:
        """Interrupts the runs under way, once for all interrupts since it last did."""
        interrupts = self.interrupts
        if interrupts == self.forwarded:
            return
        for started in self.running.values():
            if started is not None:
                started.interrupt()
        self.forwarded = interrupts

    def _start(self, run: Run) -> Started | None:
        """Starts one run; None where it had finished and only its row was lost."""
        folder = run.folder(self.grid)
        if (folder / RESULTS).exists():
            return None
        folder.parent.mkdir(parents=True, exist_ok=True)
        if run.branch is not None:
            check_trunk(self.results, run.trunk)
            begin_branch(self.results, run, self.local)
        log = Path(f"{folder}.log")
        if log.exists():
            self.log_begins[run] = log.stat().st_size
        return self.engine.start(command(self.results, run, self.local), log)

    def _keep(self, run: Run, status: int) -> None:
        """Keeps the row of a run whose process ended."""
        try:
            if status != 0:
                log = Path(f"{run.folder(self.grid)}.log")
                raise ValueError(_reason(status, log, self.log_begins.get(run, 0)))
            row = result_row(self.grid, run)
            self._check_same_data(run, row)
            seconds = row.seconds
            if seconds is None:
                seconds = 0
            self._write(run, row, f"{row.metric} {row.value:.4f}, {seconds:.0f} s")
        except ValueError as error:
            self._fail(run, error)

    def _check_same_data(self, run: Run, row: ResultRow) -> None:
        """Raises GridError for a run that read other rows than those before it."""
        try:
            check_same_data(self.grid, [*self.rows.values(), row])
        except GridError as error:
            folder = run.folder(self.grid)
            raise GridError(f"{error}; with the data of the other runs remove {folder} and sweep again") from error

    def _fail(self, run: Run, error: Exception) -> None:
        """Keeps the row of a run that failed."""
        row = ResultRow.from_cells({**run._asdict(), "status": "failed", "error": str(error)})
        self._write(run, row, f"failed: {error} ({run.folder(self.grid)}.log)")

    def _failures_before(self, run: Run) -> int:
        """How often a run has failed in earlier sweeps: any row that it has is of such an attempt."""
        before = self.rows.get(run)
        if before is None:
            return 0
        if before.failures is None:
            return 1
        return before.failures + 1

    def _count(self, phase: str) -> str:
        """How many of a phase's runs have ended, of all that are known and can: tune 3/6."""
        results = self._without_retries()
        done = sum(run.phase == phase for run in results.rows)
        missing = sum(run.phase == phase for run in missing_runs(results))
        return f"{phase} {done}/{done + missing}"

    def _announce(self) -> None:
        """Prints how many runs have ended of the phases that are due, and where those to come keep their logs."""
        due = dict.fromkeys(run.phase for run in missing_runs(self._without_retries()))
        if not due:
            return
        counts = ", ".join(map(self._count, due))
        print(f"[{counts}] the logs of the runs: {self.grid.path('runs')}", file=sys.stderr, flush=True)

    def _write(self, run: Run, row: ResultRow, outcome: str) -> None:
        """Puts a row into results.csv, and prints the outcome of the run."""
        self.rows[run] = replace(row, failures=self._failures_before(run), jobs=self.jobs)
        self.to_retry.discard(run)
        file = io.StringIO()
        write_rows([self.rows[key] for key in sorted(self.rows, key=sort_key)], file)
        write_bytes(self.grid.path("results.csv"), file.getvalue().encode())
        cell = f"{run.shape} seed {run.seed} learning rate {run.learning_rate:g}"
        if run.branch is not None:
            cell += f" {run.branch:,} tokens"
        print(f"[{self._count(run.phase)}] {cell}: {outcome}", file=sys.stderr, flush=True)


def engine_of(name: str, jobs: int, folder: Path, lock: int) -> Engine:
    """The engine of a name. Raises GridError where Ray is not installed, or as `RayCluster`."""
    if name == "processes":
        return Processes(jobs, lock)
    try:
        from .ray_engine import RayCluster
    except ModuleNotFoundError as error:
        raise GridError(f'--engine ray: {error}; pip install ".[ray]" in a clone') from error
    return RayCluster(jobs, folder)


def check_data(results: GridResults, local: Sequence[str]) -> None:
    """Loads the rows that the reported runs read, once, where any run is to be started: without them each would fail.

    Raises:
        GridError: the rows cannot be had.
    """
    grid = results.grid
    without_failed = {run: row for run, row in results.rows.items() if not row.has_failed}  # they are tried again
    due = missing_runs(GridResults(grid, without_failed))
    if all((run.folder(grid) / RESULTS).exists() for run in due):
        return
    arguments = run_arguments(grid, grid.baseline, local=local)
    try:
        load_training(arguments)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise GridError(f"recipe {grid.recipe}: {reason}; no run was started (--data names a local copy)") from error


def run_sweep(grid: Grid, jobs: int, local: Sequence[str] = (), engine: str = "processes") -> GridResults:
    """Runs the grid, alone in its output_dir, and returns it with all rows; on Ctrl-C it waits for the runs under way.

    `local` are options of every run's command line that say where its data lie on this machine.

    Raises:
        GridError: output_dir is in use, or holds runs of another grid; or as `check_data` and `engine_of`.
    """
    check_starts(load_results(grid))  # before anything is written
    try:
        Path(grid.output_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GridError(f"output_dir: expected a folder that can be written to, got {error}") from error
    with grid.path(".lock").open("a") as lock:
        if not lock_descriptor(lock.fileno(), blocking=False):
            used = "in use by another sweep, or by a run that outlived a killed one; wait until it ends"
            raise GridError(f"output_dir: {grid.output_dir} is {used}")
        results = load_results(grid)  # again: only now no other sweep adds rows
        check_unchanged(grid, results.rows.values())
        for trunk in dict.fromkeys(run.trunk for run in results.rows if run.branch is not None):
            check_trunk(results, trunk)
        if engine != "ray":  # the machines of a cluster may have data that this one has not
            check_data(results, local)
        write_grid(grid)
        Sweep(results, jobs, engine_of(engine, jobs, Path(grid.output_dir), lock.fileno()), local).run()
    return results


def sweep(
    file: Path,
    jobs: int = 1,
    data_files: Sequence[str] = (),
    output_dir: Path | None = None,
    summary: bool = False,
    engine: str = "processes",
) -> bool:
    """Runs the grid of a file, then compares its shapes: writes summary.json and prints it.

    Args:
        jobs: runs at the same time.
        data_files: a local copy of the recipe's dataset.
        output_dir: in place of the grid's.
        summary: only compare the runs that are there.
        engine: processes, or ray, the machines of a cluster.

    Returns:
        Whether all runs to be reported have finished; True with `summary`.

    Raises:
        ValueError: the grid is refused, or what lies beside its rows is.
        KeyboardInterrupt: interrupted, once the processes under way have ended.
    """
    grid = load_grid(file)
    if output_dir is not None:
        grid = replace(grid, output_dir=str(output_dir))
    local = data_options(data_files)
    if not summary:
        make_cuts(grid, local)
    with naming(file):
        check_grid(grid)
        if not summary:  # which must still read grids whose settings a later release refuses
            check_settings(grid)
    if summary:
        results = load_results(grid)
        check_unchanged(grid, results.rows.values())
        if not results.rows:
            raise GridError(f"{grid.path('results.csv')}: no run has ended yet")
        write_grid(grid)  # what no run depends on, such as data and publish, may have changed
    else:
        results = run_sweep(grid, jobs, local, engine)
        if results.any_reported is not None and results.guesses is None:
            try:
                write_guesses(grid, data_files)
            except (ValueError, OSError) as error:  # rows that only the machines of the runs have
                print(f"no simple guesses: {error}", file=sys.stderr)
            results = load_results(grid)
    comparison = summarise(results)
    write_json(grid.path("summary.json"), comparison.document())
    show(comparison)
    finished = {run for run, row in results.rows.items() if row.has_finished}
    return summary or finished.issuperset(planned(grid, results.tuning.best))
