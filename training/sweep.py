"""`leaner sweep GRID.yaml`: shapes × seeds × learning rates over one recipe, every run a training process of its own.

First every shape is tuned over the same learning rates, with a seed that is not reported and on rows held out of the
training split; where a best rate lies at an edge the grid grows there, for all shapes. Then every shape is trained
with every seed at its own best rate. A grid:

    recipe: fashion-mnist               # name or path
    shapes: [vit/tiny, vit/lean-tiny]   # names or paths
    baseline: vit/tiny                  # one of them
    seeds: [1, 2, 3]
    learning_rates: [3e-4, 1e-3, 3e-3]  # with a single one there is nothing to tune
    tuning: {seed: 0, holdout: 2000, extend: 3, overrides: {max_steps: 300}}
    overrides: {max_steps: 600}         # settings of the training, the same for every run
    output_dir: runs/sweeps/fashion     # left out, runs/sweeps/<name of the grid file>
    data: what the rows are             # left out, the recipe's dataset; stated on the published cards
    hub: true                           # whether the evaluation rows are those of the Hub's dataset; left out, false
    publish: {vit/tiny: leanvit-tiny}   # folders of model_cards/ that `leaner publish` makes of the first seed
    metric: accuracy                    # left out, the task's; or loss
    start_from: runs/sweeps/pretrained  # left out, from scratch; output_dir of a grid of the same shapes
    beside: runs/sweeps/short           # left out, none; output_dir of a grid whose cells the cards show too
    margin: 0.01                        # of the non-inferiority test, in the metric's units
    test: non-inferiority

In output_dir: results.csv (one row per finished or failed run, see `COLUMNS`), summary.json, grid.yaml, and of each
run runs/<run>/ and runs/<run>.log. A sweep may be killed at any time; the same command continues it.
"""

import argparse
import csv
import difflib
import fcntl
import io
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple, TextIO

import yaml
from rich.console import Console
from rich.table import Table

from modeling_leaner.shapes import shape_names


TRAIN_COMMAND = [sys.executable, "-m", "modeling_leaner.training.train"]
SET_BY_SWEEP = ("shape", "seed", "learning_rate", "output_dir", "resume", "tuning_holdout")
# Once the grid has run:
MAY_GROW = ("shapes", "seeds", "learning_rates")
MAY_CHANGE = ("baseline", "output_dir", "beside", "publish", "data", "hub")
MIN_PAIRS, MAX_P = 7, 0.01  # of "no loss of quality", which model_cards/README.md decides over all grids
NOT_LEARNED, NON_INFERIOR = "not learned", "non-inferior before correction"
POLL_SECONDS = 0.1

# The columns of results.csv; an empty cell is unknown. phase: tune or report. status: finished or failed. value: the
# metric, of a tune run on the rows held out. chance: the same metric of a guess that reads nothing. kappa_*: condition
# number of the concatenated head outputs before and after training, the median over the layers. rows, data_sha256: of
# the evaluation. error: the last line that a failed run wrote. jobs: runs at a time.
COLUMNS = (
    "phase shape seed learning_rate status metric value chance higher_is_better eval_loss kappa_start kappa_end "
    "parameters steps seconds items_per_second peak_memory_bytes input_pipeline_share rows data_sha256 error jobs "
    "git_commit python torch transformers device processor threads"
).split()
INTEGERS = "seed higher_is_better parameters steps peak_memory_bytes rows jobs threads".split()
NUMBERS = (
    "learning_rate value chance eval_loss kappa_start kappa_end seconds items_per_second input_pipeline_share".split()
)
Row = dict[str, object]


class GridError(ValueError):
    """What is wrong with a grid file or its folder, in one line."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_positive(value: object) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def _is_whole(value: object, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _is_list(value: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and value != [] and all(map(fits, value)) and len(set(value)) == len(value)


def _is_names(value: object) -> bool:
    names = list(value.values()) if isinstance(value, dict) else []
    fit = all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", str(name)) and name != "grids" for name in names)
    return isinstance(value, dict) and fit and len(set(names)) == len(names)


def _is_settings(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and key not in SET_BY_SWEEP and isinstance(item, str | int | float | list | dict)
        for key, item in value.items()
    )


def _key(fits: Callable[[object], bool], expected: str, default: object = MISSING) -> object:
    return field(default=default, metadata={"fits": fits, "expected": expected})


SETTINGS = f"training settings other than {', '.join(SET_BY_SWEEP)}"


@dataclass(frozen=True, kw_only=True)
class TuningKeys:
    """The keys under `tuning`."""

    seed: int = _key(_is_whole, "a whole number from 0 that is not in seeds")
    holdout: int = _key(lambda value: _is_whole(value, 1), "how many rows of the training split to evaluate on")
    extend: int = _key(_is_whole, "how often the learning rates may grow at either edge", 3)
    overrides: dict | None = _key(_is_settings, SETTINGS, None)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The keys of a grid file."""

    recipe: str = _key(_is_text, "the name or path of a recipe")
    shapes: list[str] = _key(lambda value: _is_list(value, _is_text), "a list of different names or paths")
    baseline: str = _key(_is_text, "one of shapes")
    seeds: list[int] = _key(lambda value: _is_list(value, _is_whole), "a list of different whole numbers from 0")
    learning_rates: list[float] = _key(
        lambda value: _is_list(value, _is_positive) and value == sorted(value), "positive numbers, strictly increasing"
    )
    tuning: TuningKeys | None = _key(lambda value: isinstance(value, TuningKeys), "seed, holdout ...", None)
    overrides: dict | None = _key(_is_settings, SETTINGS, None)
    output_dir: str = _key(_is_text, "a folder")
    metric: str | None = _key(_is_text, "the name of a metric", None)
    start_from: str | None = _key(_is_text, "the output_dir of a grid over the same shapes", None)
    beside: str | None = _key(_is_text, "the output_dir of another grid", None)
    data: str | None = _key(_is_text, "what the rows are, in words", None)
    hub: bool = _key(lambda value: isinstance(value, bool), "true or false", False)
    publish: dict | None = _key(_is_names, "shapes of the grid and the names of their folders", None)
    margin: float | None = _key(_is_positive, "a positive number, in the metric's units", None)
    test: str | None = _key(lambda value: value == "non-inferiority", "non-inferiority", None)

    def path(self, name: str) -> Path:
        return Path(self.output_dir) / name


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def read_keys(kind: type, values: dict, where: str = "") -> object:
    """A `Grid` or its `TuningKeys`; `where` precedes the keys in messages.

    Raises:
        GridError: a key is unknown, missing or mistyped; names it and what was expected.
    """
    keys = {key.name: key for key in fields(kind)}
    for name in map(str, values):
        if name not in keys:
            raise GridError(f"{where}{name}: unknown key, expected one of {', '.join(keys)}{_nearest(name, keys)}")
    given = {name: value for name, value in values.items() if value is not None}
    for name, key in keys.items():
        if name not in given and key.default is MISSING:
            raise GridError(f"{where}{name}: missing, expected {key.metadata['expected']}")
        if name in given and not key.metadata["fits"](given[name]):
            raise GridError(f"{where}{name}: expected {key.metadata['expected']}, got {given[name]!r:.100}")
    return kind(**given)


def _number(value: object) -> object:
    """1e-3 is text in YAML 1.1."""
    try:
        return value if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return value


def load_grid(path: Path) -> Grid:
    """The grid of a file.

    Raises:
        GridError: one line that names the file, the key and what was expected.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise GridError(f"expected keys and values, got {values!r:.100}")
        values = {"output_dir": f"runs/sweeps/{path.stem}", **values, "margin": _number(values.get("margin"))}
        if isinstance(values.get("learning_rates"), list):
            values["learning_rates"] = list(map(_number, values["learning_rates"]))
        if isinstance(values.get("tuning"), dict):
            values["tuning"] = read_keys(TuningKeys, values["tuning"], "tuning.")
        return _checked(read_keys(Grid, values))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise GridError(f"{path}: no YAML file: {' '.join(str(error).split())}") from error
    except GridError as error:
        raise GridError(f"{path}: {error}") from error


def _checked(grid: Grid) -> Grid:
    """The grid, once its keys fit together; else raises GridError."""
    for shape in grid.shapes:
        if shape not in shape_names() and not Path(shape).exists():
            raise GridError(f"shapes: expected named shapes or paths, got {shape}{_nearest(shape, shape_names())}")
    if len({_slug(shape) for shape in grid.shapes}) < len(grid.shapes):
        raise GridError(f"shapes: expected names that give different folder names, got {', '.join(grid.shapes)}")
    if grid.baseline not in grid.shapes:
        raise GridError(f"baseline: expected one of {', '.join(grid.shapes)}, got {grid.baseline}")
    if not set(grid.publish or {}) <= set(grid.shapes):
        raise GridError(f"publish: expected shapes of the grid, got {', '.join(map(str, grid.publish))}")
    if grid.tuning is None and len(grid.learning_rates) > 1:
        raise GridError("tuning: missing, expected seed and holdout to choose among several learning_rates")
    if grid.tuning is not None and grid.tuning.seed in grid.seeds:
        raise GridError(f"tuning.seed: expected a seed that is not in seeds, got {grid.tuning.seed}")
    if (grid.margin is None) != (grid.test is None):
        raise GridError("margin, test: expected both or neither")
    return grid


def check_unchanged(grid: Grid, rows: Iterable[Row]) -> None:
    """Raises GridError where output_dir holds runs of another grid; shapes, seeds, learning rates may be added."""
    saved = grid.path("grid.yaml")
    if not any(row["status"] == "finished" for row in rows) and not any(grid.path("runs").glob("*/*")):
        return  # whatever failed wrote nothing yet, such as a misspelt setting
    if not saved.exists():
        raise GridError(f"output_dir: expected {saved} beside its runs, name another output_dir")
    before, now = yaml.safe_load(saved.read_text(encoding="utf-8")), asdict(grid)
    before["tuning"] = before["tuning"] or now["tuning"]  # nothing was tuned over a single learning rate
    for key, value in before.items():
        gone = key in MAY_GROW and not set(value) <= set(now[key])
        if gone or ((value or None) != (now[key] or None) and key not in (*MAY_GROW, *MAY_CHANGE)):
            raise GridError(f"{key}: expected {value} as in {saved}, got {now[key]}; or name another output_dir")


def _slug(shape: str) -> str:
    return re.sub(r"[^\w.-]+", "-", shape.removesuffix(".json")).strip("-.")


class Run(NamedTuple):
    """One cell of the grid; `phase` is tune or report."""

    phase: str
    shape: str
    seed: int
    learning_rate: float

    @property
    def name(self) -> str:
        return f"{self.phase}-{_slug(self.shape)}-seed{self.seed}-lr{self.learning_rate!r}"

    def folder(self, grid: Grid) -> Path:
        return grid.path("runs") / self.name


def _row(cells: dict[str, object]) -> Row:
    """All columns, typed; None for what is unknown or not finite."""
    row: Row = {name: None if cells.get(name) == "" else cells.get(name) for name in COLUMNS}
    row |= {name: int(row[name]) for name in INTEGERS if row[name] is not None}
    row |= {name: float(row[name]) for name in NUMBERS if row[name] is not None}
    return row | {name: None for name in NUMBERS if row[name] is not None and not math.isfinite(row[name])}


def read_rows(path: Path) -> dict[Run, Row]:
    """The rows of results.csv by run, none where there is no file. Raises GridError where it has another form."""
    if not path.exists():
        return {}
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    if reader.fieldnames != COLUMNS:
        raise GridError(f"{path}: expected the columns {', '.join(COLUMNS)}")
    try:
        rows = [_row(cells) for cells in reader]
    except ValueError as error:
        raise GridError(f"{path}: line {reader.line_num}: {error}") from error
    return {Run(*(row[name] for name in Run._fields)): row for row in rows}


def _replace(path: Path, write: Callable[[TextIO], object]) -> None:
    """Writes a file as a whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        write(file)
    os.replace(temporary, path)


def _write_rows(rows: Iterable[Row], file: TextIO) -> None:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def result_row(grid: Grid, run: Run) -> Row:
    """The row of a run that ended well, from its results.json.

    Raises:
        ValueError: the file does not hold what was asked for, or the metric is not finite: the training diverged.
    """
    try:
        results = json.loads((run.folder(grid) / "results.json").read_text(encoding="utf-8"))
        main = results["main_metric"].removeprefix("eval_")
        metric, metrics = grid.metric or main, results["metrics"]
        if metric not in (main, "loss"):  # which way is up is known of these two
            raise ValueError(f"metric: expected the training's {main}, or loss, got {metric}")
        if (results["seed"], results["learning_rate"]) != (run.seed, run.learning_rate):
            raise ValueError(f"results.json is of seed {results['seed']}, learning rate {results['learning_rate']}")
        value = metrics[f"eval_{metric}"]
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}")
        row = {**results["environment"], **results["train"], **run._asdict(), "status": "finished", "metric": metric}
        row |= {"value": value, "higher_is_better": metric == main and results["higher_is_better"]}
        row |= {name: results.get(name) for name in ("parameters", "rows", "data_sha256")}
        row["chance"] = (results.get("chance") or {}).get("value") if metric == main else None
        for end, layers in (results.get("condition") or {}).items():
            row[f"kappa_{end}"] = statistics.median(math.inf if each is None else each for each in layers)
        return _row(row | {"eval_loss": metrics.get("eval_loss")})
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"results.json: {type(error).__name__} {error}") from error


class Tuning(NamedTuple):
    """What the rows say of the learning rates: those tried, each shape's best, who is at an edge, what has not run."""

    learning_rates: list[float]
    best: dict[str, float | None]
    at_edge: list[str]
    due: list[Run]


def _best(grid: Grid, rows: dict[Run, Row], shape: str, rates: list[float]) -> float | None:
    """The best rate of one shape, the lowest of equals; None where no run has finished."""
    cells = [rows.get(Run("tune", shape, grid.tuning.seed, rate), {}) for rate in rates]
    values = {row["learning_rate"]: row["value"] for row in cells if row.get("status") == "finished"}
    up = any(row.get("higher_is_better") for row in cells)
    return (max if up else min)(values, key=values.__getitem__, default=None)


def tune(grid: Grid, rows: dict[Run, Row]) -> Tuning:
    """Follows the tuning as far as the rows go.

    While a shape's best rate lies at an edge, the grid grows there by the ratio of its two outermost rates, for all
    shapes, up to `tuning.extend` times on each side. New rates are rounded to 6 digits.
    """
    rates = list(grid.learning_rates)
    if len(rates) == 1:
        return Tuning(rates, dict.fromkeys(grid.shapes, rates[0]), [], [])
    below = above = grid.tuning.extend
    while True:
        runs = [Run("tune", shape, grid.tuning.seed, rate) for rate in rates for shape in grid.shapes]
        best = {shape: _best(grid, rows, shape, rates) for shape in grid.shapes}
        due = [run for run in runs if run not in rows]
        down, up = rates[0] in best.values() and below > 0, rates[-1] in best.values() and above > 0
        if due or not (down or up):
            return Tuning(rates, best, [shape for shape in best if best[shape] in (rates[0], rates[-1])], due)
        lower, higher = rates[0] * rates[0] / rates[1], rates[-1] * rates[-1] / rates[-2]
        rates = [float(f"{lower:.6g}")] * down + rates + [float(f"{higher:.6g}")] * up
        below, above = below - down, above - up


def due_runs(grid: Grid, rows: dict[Run, Row]) -> list[Run]:
    """The runs without a row that can start: those of the tuning, and once it is over those to report."""
    tuning = tune(grid, rows)
    runs = [Run("report", shape, seed, tuning.best[shape]) for seed in grid.seeds for shape in grid.shapes]
    return tuning.due or [run for run in runs if run not in rows and run.learning_rate is not None]


def start_of(grid: Grid, run: Run) -> str:
    """What a run's `--shape` is: the shape, or its weights in `start_from`: of the same seed, to tune the first's.

    Raises:
        GridError: `start_from` has no such finished run, or its weights are gone.
    """
    if grid.start_from is None:
        return run.shape
    folder = Path(grid.start_from)
    rows = read_rows(folder / "results.csv")
    if not rows:
        raise GridError(f"start_from: expected finished runs in {folder / 'results.csv'}, found none")
    before = load_grid(folder / "grid.yaml")
    seed = before.seeds[0] if run.phase == "tune" else run.seed
    start = Run("report", run.shape, seed, tune(before, rows).best.get(run.shape))
    if rows.get(start, {}).get("status") != "finished":
        said = f"expected a finished run of {run.shape} with seed {seed} in {folder / 'results.csv'}, found none"
        raise GridError(f"start_from: {said}")
    weights = folder / "runs" / start.name
    if not (weights / "model.safetensors").is_file():
        raise GridError(f"start_from: expected the weights {weights / 'model.safetensors'}, found none")
    return str(weights)


def command(grid: Grid, run: Run, local: Sequence[str] = ()) -> list[str]:
    """The command line of one run, with this machine's `local` words; it resumes where its folder holds anything."""

    def word(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    folder, settings = run.folder(grid), grid.overrides or {}
    words = [*TRAIN_COMMAND, grid.recipe, "--shape", start_of(grid, run), "--seed", str(run.seed)]
    words += ["--learning_rate", repr(run.learning_rate), "--output_dir", str(folder)]
    if run.phase == "tune":
        words += ["--tuning_holdout", str(grid.tuning.holdout)]
        settings = {**settings, **(grid.tuning.overrides or {})}
    for key, value in settings.items():
        if isinstance(value, dict):
            files = [f"{name}={word(part)}" for name, part in value.items()]
            value = files if key == "data_files" else json.dumps(value)
        words += [f"--{key}", *map(word, value if isinstance(value, list) else [value])]
    words += local
    return [*words, "--resume"] if folder.is_dir() and any(folder.iterdir()) else words


def cuda_devices() -> list[str]:
    """The CUDA devices to share out, as CUDA_VISIBLE_DEVICES names them; empty where there are not several."""
    import torch

    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else list(map(str, range(count)))
    return names[:count] if count > 1 else []


class Sweep:
    """Runs what is due, `jobs` processes at a time, and keeps results.csv up to date.

    Every run inherits the file descriptor `lock`, so that one which outlives a killed sweep keeps the next sweep from
    starting a second training in the same folder.
    """

    def __init__(self, grid: Grid, jobs: int, lock: int, local: Sequence[str] = ()):
        self.grid, self.jobs, self.lock, self.local, self.interrupts = grid, jobs, lock, local, 0
        self.rows = read_rows(grid.path("results.csv"))
        self.again = {run for run, row in self.rows.items() if row["status"] == "failed"}
        devices = cuda_devices() or [None]
        self.devices = deque(devices[index % len(devices)] for index in range(max(jobs, len(devices))))

    def run(self) -> None:
        """Runs until nothing is due; what failed in an earlier sweep is tried once more.

        Raises:
            KeyboardInterrupt: after SIGINT or SIGTERM, once the processes under way have ended.
        """
        # Handlers that raise would lose the process that is being started.
        handlers = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while due := due_runs(self.grid, {run: row for run, row in self.rows.items() if run not in self.again}):
                for run in due:
                    start_of(self.grid, run)  # before the first process, not between two
                self._run_all(due)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self.interrupts += 1

    def _run_all(self, due: list[Run]) -> None:
        waiting, running, ended, forwarded = deque(due), {}, 0, 0
        while running or (waiting and not self.interrupts):
            while waiting and len(running) < self.jobs and not self.interrupts:
                run = waiting.popleft()
                running[run] = self._start(run)
            interrupts = self.interrupts
            for run, (process, device) in list(running.items()):
                if process and forwarded < interrupts:
                    process.send_signal(signal.SIGINT)
                status = process.poll() if process else 0
                if status is not None:
                    del running[run]
                    self.devices.append(device)
                    ended += 1
                    if status == 0 or not self.interrupts:
                        self._keep(run, status, f"{run.phase} {ended}/{len(due)}")
            forwarded = interrupts
            time.sleep(POLL_SECONDS if running else 0)
        if self.interrupts:
            raise KeyboardInterrupt

    def _start(self, run: Run) -> tuple[subprocess.Popen | None, str | None]:
        """The process of one run and its device; no process where the run had finished and only its row was lost."""
        folder, device = run.folder(self.grid), self.devices.popleft()
        if (folder / "results.json").exists():
            return None, device
        folder.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # else the log could end in what was written earlier
        environment |= {"CUDA_VISIBLE_DEVICES": device} if device else {}
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "pass_fds": [self.lock]}
        with open(f"{folder}.log", "ab") as log:
            # In a group of its own: a signal reaches it by _run_all alone, once, whoever sent it to the sweep.
            words = command(self.grid, run, self.local)
            return subprocess.Popen(words, stdout=log, env=environment, process_group=0, **pipes), device

    def _keep(self, run: Run, status: int, count: str) -> None:
        """Writes the row of a run that ended, and says so."""
        log = Path(f"{run.folder(self.grid)}.log")
        try:
            if status != 0:
                last_line = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
                raise ValueError(last_line[:300] if status > 0 and last_line else f"exit status {status}")
            row = result_row(self.grid, run)
            said = f"{row['metric']} {row['value']:.4f}, {row['seconds'] or 0:.0f} s"
        except ValueError as error:
            row = _row({**run._asdict(), "status": "failed", "error": str(error)})
            said = f"failed: {error} ({log})"
        self.rows[run] = {**row, "jobs": self.jobs}
        self.again.discard(run)
        rows = [self.rows[key] for key in sorted(self.rows, key=lambda key: (key.phase != "tune", key))]
        _replace(self.grid.path("results.csv"), lambda file: _write_rows(rows, file))
        cell = f"{run.shape} seed {run.seed} learning rate {run.learning_rate:g}"
        print(f"[{count}] {cell}: {said}", file=sys.stderr, flush=True)


def paired_statistics(
    values: Sequence[float], baseline: Sequence[float], margin: float | None = None, higher_is_better: bool = True
) -> dict[str, object]:
    """Paired t statistics of values − baseline, pair by pair, in the metric's units.

    Returns:
        pairs; difference, the mean; interval, its 95 % t interval; p, two-sided, of no difference; p_non_inferiority,
        one-sided, of a loss of at least `margin`. None where there are too few pairs, or no margin. Where all
        differences are the same, the limits for a vanishing spread: p is 0 or 1.
    """
    differences = [value - base for value, base in zip(values, baseline, strict=True)]
    mean = statistics.fmean(differences) if differences else None
    result = {"pairs": len(differences), "difference": mean, "interval": None, "p": None, "p_non_inferiority": None}
    if len(differences) < 2:
        return result
    from scipy.stats import t  # takes seconds to import

    freedom, rounding = len(differences) - 1, 1e-12 * max(map(abs, (*values, *baseline)))
    spread = statistics.stdev(differences)
    error = spread / math.sqrt(len(differences)) if spread > rounding else 0.0

    def tail(excess: float) -> float:
        return float(t.sf(excess / error, freedom)) if error else float(excess <= rounding)

    half = float(t.ppf(0.975, freedom)) * error
    result |= {"interval": [mean - half, mean + half], "p": min(1.0, 2 * tail(abs(mean)))}
    if margin is not None:
        result["p_non_inferiority"] = tail((mean if higher_is_better else -mean) + margin)
    return result


def learned(rows: Iterable[Row]) -> bool | None:
    """Whether finished runs of one cell are better than guessing by three standard errors; None where none can say.

    The standard error is the larger of that over the seeds and, for a share of right answers, the binomial one.
    """
    known = [row for row in rows if row["value"] is not None and row["chance"] is not None]
    if not known:
        return None
    values, (first, *_) = [row["value"] for row in known], known
    errors = [statistics.stdev(values) / math.sqrt(len(values))] if len(values) > 1 else []
    if first["metric"] == "accuracy" and first["rows"]:
        share = min(max(statistics.fmean(values), 0.0), 1.0)
        errors.append(math.sqrt(share * (1 - share) / first["rows"]))
    advantage = (statistics.fmean(values) - first["chance"]) * (1 if first["higher_is_better"] else -1)
    return advantage > 3 * max(errors, default=0.0)


def verdict(result: dict[str, object], margin: float | None, seeds: int, baseline_learned: bool | None = None) -> str:
    """What may be said of paired statistics. While a seed is missing or failed, nothing: its loss is unknown."""
    if baseline_learned is False:
        return NOT_LEARNED
    enough = margin is not None and result["pairs"] >= MIN_PAIRS and result["pairs"] == seeds
    proven = enough and result["p_non_inferiority"] < MAX_P
    return f"{NON_INFERIOR} (margin {margin:g})" if proven else "undecided"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean, None where one of the values is: it was infinite, or not measured."""
    values = list(values)
    return None if None in values else _mean(values)


def summarise(grid: Grid, rows: dict[Run, Row]) -> dict[str, object]:
    """The sweep as one JSON document; runs may be missing.

    Of each shape: mean and sd over the finished seeds, `paired_statistics` over those that the baseline finished too.
    """
    tuning, finished, failed, shapes = tune(grid, rows), {}, {}, []
    for shape in grid.shapes:
        cells = {seed: rows.get(Run("report", shape, seed, tuning.best[shape]), {}) for seed in grid.seeds}
        finished[shape] = {seed: row for seed, row in cells.items() if row.get("status") == "finished"}
        failed[shape] = [seed for seed, row in cells.items() if row.get("status") == "failed"]
    base, every = finished[grid.baseline], [row for cells in finished.values() for row in cells.values()]
    metric, up = (every[0]["metric"], bool(every[0]["higher_is_better"])) if every else (grid.metric, None)
    for shape, cells in finished.items():
        pairs = [(cells[seed]["value"], base[seed]["value"]) for seed in cells if seed in base]
        result = paired_statistics([own for own, _ in pairs], [other for _, other in pairs], grid.margin, up)
        said = verdict(result, grid.margin, len(grid.seeds), learned(base.values()))
        values = [row["value"] for row in cells.values()]
        size, base_size = (next((row["parameters"] for row in each.values()), None) for each in (cells, base))
        notes = {
            "the best learning rate is at the edge of the grid": shape in tuning.at_edge,
            "the tuning is not finished": bool(tuning.due),
            "no learning rate finished": tuning.best[shape] is None and not tuning.due,
            f"failed seeds: {', '.join(map(str, failed[shape]))}": bool(failed[shape]),
        }
        shapes.append(
            {"shape": shape, "learning_rate": tuning.best[shape], "n": len(values), "mean": _mean(values)}
            | {"sd": statistics.stdev(values) if len(values) > 1 else None}
            | (dict.fromkeys(result) if shape == grid.baseline else result)
            | {"parameters": size, "parameters_over_baseline": size / base_size if size and base_size else None}
            | {"seconds": _mean(row["seconds"] for row in cells.values())}
            | {name: _mean_of_all(row[name] for row in cells.values()) for name in ("kappa_start", "kappa_end")}
            | {"chance": _mean(row["chance"] for row in cells.values()), "learned": learned(cells.values())}
            | {"verdict": "baseline" if shape == grid.baseline else said}
            | {"notes": [note for note, holds in notes.items() if holds]}
        )
    errors = [{**run._asdict(), "error": row["error"]} for run, row in rows.items() if row["status"] == "failed"]
    found = {"metric": metric, "higher_is_better": up, "learning_rates": tuning.learning_rates}
    return {**asdict(grid), **found, "shapes": shapes, "failed": errors}


SHOWN = {  # what of a shape is in the table: heading and format
    "learning_rate": ("rate", "g"),
    "n": ("n", "d"),
    "mean": ("mean", ".4f"),
    "sd": ("± sd", ".4f"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 % interval", "+.4f"),
    "p": ("p", ".3g"),
    "p_non_inferiority": ("p non-inferior", ".3g"),
    "parameters": ("parameters", ",d"),
    "parameters_over_baseline": ("of base", ".0%"),
    "seconds": ("seconds", ".1f"),
}


def show(summary: dict[str, object]) -> None:
    """Prints a summary: a table and notes for people, the document on the last line for programs."""

    def text(value: object, form: str) -> str:
        numbers = value if isinstance(value, list) else [value]
        return "–" if value is None else " ".join(format(number, form) for number in numbers)

    direction = {True: ", higher is better", False: ", lower is better", None: ""}[summary["higher_is_better"]]
    caption = (
        f"{summary['metric'] or 'no metric yet'}{direction}; difference from {summary['baseline']} over the same seeds"
    )
    table = Table(caption=caption, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("shape")
    for heading, _ in SHOWN.values():
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in summary["shapes"]:
        cells = [text(row[name], form) for name, (_, form) in SHOWN.items()]
        table.add_row(row["shape"], *cells, row["verdict"])
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    console.print(table)
    for row in summary["shapes"]:
        for note in row["notes"]:
            console.print(f"{row['shape']}: {note}", soft_wrap=True)
    if summary["failed"]:
        console.print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
    print(json.dumps(summary, allow_nan=False), flush=True)


def run_sweep(grid: Grid, jobs: int, local: Sequence[str] = ()) -> dict[Run, Row]:
    """Runs the grid, alone in its output_dir, and returns all rows; on Ctrl-C it waits for the runs under way.

    `local` are words for every run's command line that say where its data lie on this machine.

    Raises:
        GridError: output_dir is in use, or holds runs of another grid.
    """
    Path(grid.output_dir).mkdir(parents=True, exist_ok=True)
    with grid.path(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            used = "in use by another sweep, or by a run that outlived a killed one; wait until it ends"
            raise GridError(f"output_dir: {grid.output_dir} is {used}") from None
        sweep = Sweep(grid, jobs, lock.fileno(), local)
        check_unchanged(grid, sweep.rows.values())
        _replace(grid.path("grid.yaml"), lambda file: yaml.safe_dump(asdict(grid), file, sort_keys=False))
        sweep.run()
    return sweep.rows


def main(argv: list[str]) -> None:
    """The command `leaner sweep`; see the module's docstring.

    Raises:
        SystemExit: 1 and one line where the grid is refused, 1 where a reported run failed, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(prog="leaner sweep", description="Shapes × seeds × learning rates, one recipe.")
    parser.add_argument("grid", type=Path, help="the grid file, YAML")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; they share the machine's cores")
    parser.add_argument("--data_files", nargs="+", help="a local copy of the recipe's dataset, as of leaner train")
    parser.add_argument("--summary", action="store_true", help="only summarise the runs that are there")
    options = parser.parse_args(argv)
    try:
        if options.jobs < 1:
            raise GridError(f"--jobs: expected a number from 1, got {options.jobs}")
        grid = load_grid(options.grid)
        if options.summary:
            rows = read_rows(grid.path("results.csv"))
            check_unchanged(grid, rows.values())
            if not rows:
                raise GridError(f"{grid.path('results.csv')}: no run has ended yet")
        else:
            rows = run_sweep(grid, options.jobs, ["--data_files", *options.data_files] if options.data_files else [])
    except GridError as error:
        raise SystemExit(f"leaner sweep: {error}") from error
    except KeyboardInterrupt:
        print("leaner sweep: interrupted; the same command continues where the runs stopped", file=sys.stderr)
        raise SystemExit(130) from None
    summary = summarise(grid, rows)
    _replace(grid.path("summary.json"), lambda file: json.dump(summary, file, indent=1, allow_nan=False))
    show(summary)
    if not options.summary and any(row["n"] < len(grid.seeds) for row in summary["shapes"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
