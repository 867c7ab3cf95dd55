"""A run's folder and its checkpoints: who may write to it, what was asked for, and where to go on from.

`LeanTrainer._save_checkpoint` writes checkpoints. One counts only once its `complete.json` lists every file with its
size, so that a half-written one is never continued from.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from datasets import Dataset
from datasets.fingerprint import Hasher
from filelock import FileLock, Timeout

from modeling_leaner.files import naming, read_json, read_object, write_bytes, write_json

from ..reading import read_recipe
from ..records import RESULTS
from ..settings import RecipeArguments
from .loading import PreparedRun, recorded_settings


RECIPE = "recipe.yaml"
STARTED = "started.json"
COMPLETE = "complete.json"
LOCK = ".lock"
# What may differ when a run goes on: where data lie, how it reports, and how its batch is shared out.
CHANGEABLE = {"data_files", "preprocessing_workers", "disable_tqdm", "logging_steps", "report_to", "save_total_limit"}
CHANGEABLE |= {"per_device_train_batch_size", "gradient_accumulation_steps"}


@contextmanager
def alone_in(arguments: RecipeArguments) -> Iterator[None]:
    """Locks the folder of a run; ValueError if another process has it. A folder that was made and is empty goes."""
    if arguments.process_index != 0:
        yield
        return
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # This process's own: loader workers that outlive a killed run for a moment do not keep it.
    with naming(f"{folder} is in use by another run", (Timeout,)):
        lock = FileLock(folder / LOCK).acquire(blocking=False)
    with lock:
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            if not any(folder.iterdir()):  # the run was refused
                folder.rmdir()


def finished_results(folder: Path) -> dict[str, object] | None:
    """results.json of a run that came to its end; None if it, the card or the weights are missing."""
    if not (folder / "README.md").is_file() or not any(folder.glob("model*.safetensors")):
        return None
    try:
        return read_json(folder / RESULTS)
    except (OSError, ValueError):
        return None


# What was asked for


def write_recipe(folder: Path, arguments: RecipeArguments, recipe: str | None) -> None:
    source = f"; from {Path(recipe).name}" if recipe else ""
    settings = {**recorded_settings(arguments), "shape": arguments.shape}
    text = f"# Every setting of this run that is not a default{source}.\n{yaml.safe_dump(settings)}"
    write_bytes(folder / RECIPE, text.encode())


def compare_start(run: PreparedRun) -> dict[str, object]:
    """What a run starts with, as `started.json` has it; ValueError if the run in the folder began with others."""
    arguments = run.arguments
    of_a_device = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    now: dict[str, object] = {"rows a step": of_a_device * arguments.world_size}
    for name, rows in (("training rows", run.train), ("evaluation rows", run.held_out and run.held_out.rows)):
        now[name] = None  # of a stream
        if isinstance(rows, Dataset):  # their number, and a hash of the first and the last
            ends = [{key: value.tolist() for key, value in rows[index].items()} for index in (0, len(rows) - 1)]
            now[name] = {"rows": len(rows), "ends": Hasher.hash(ends)}
    now["classes"] = run.task.classes
    started = Path(arguments.output_dir) / STARTED
    before = read_object(started) if started.is_file() else now
    for key, value in now.items():
        if before.get(key) != value:
            raise ValueError(f"{started}: {key}: others than at its start; a run goes on with its own")
    return now


def open_folder(arguments: RecipeArguments, recipe: str | None, start: dict[str, object]) -> None:
    """Writes recipe and `start`, from `compare_start`, into a run's folder; removes damaged checkpoints."""
    folder = Path(arguments.output_dir)
    if not (folder / STARTED).is_file():
        write_recipe(folder, arguments, recipe)
        write_json(folder / STARTED, start)
    for path in checkpoints(folder):
        if damage(path) is not None:
            print(f"{path} is not whole and is removed")
            shutil.rmtree(path)


def find_checkpoint(arguments: RecipeArguments) -> Path | None:
    """The checkpoint to continue from, or None; ValueError if this run may not go on in its folder."""
    folder = Path(arguments.output_dir)
    saved = folder / RECIPE
    holds_run = saved.is_file()
    if any(not path.name.startswith(".") for path in folder.glob("*")) and not (holds_run and arguments.resume):
        problem = "holds a run already: --resume continues it," if holds_run else "is not empty and holds no run;"
        raise ValueError(f"{folder} {problem} --output_dir takes another folder")
    if not holds_run:
        return None
    before, now = read_recipe(str(saved))[1], {**recorded_settings(arguments), "shape": arguments.shape}
    for key in sorted({*before, *now} - CHANGEABLE):
        if before.get(key) != now.get(key):
            was, asked = (repr(side[key]) if key in side else "not set" for side in (before, now))
            raise ValueError(f"{saved}: {key} is {was} there and {asked} here; a run goes on with its own settings")
    faults = {path: damage(path) for path in checkpoints(folder)}
    whole = [path for path, found in faults.items() if found is None]
    if whole:
        return whole[-1]
    # A run that was killed while it wrote its first checkpoint leaves a single one without `complete.json`.
    began = len(faults) > 1 or any((path / COMPLETE).exists() for path in faults)
    if began and finished_results(folder) is None:
        said = "; ".join(f"{path.name}: {found}" for path, found in faults.items())
        raise ValueError(f"{folder}: every checkpoint is damaged ({said}); delete the folder to begin again")
    return None


# Checkpoints


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, the oldest first."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    numbered = [path for path, step in steps.items() if step.isdecimal()]
    return sorted(numbered, key=lambda path: int(steps[path]))


def declare_whole(checkpoint: Path) -> None:
    """Writes the list of a checkpoint's files, with which it counts from now on."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}
    write_bytes(checkpoint / COMPLETE, json.dumps(sizes).encode())


def damage(checkpoint: Path) -> str | None:
    """The first file of a checkpoint that is not there in full, and why; None of a whole one."""
    try:
        listed = read_object(checkpoint / COMPLETE)
    except (OSError, ValueError):
        return f"{COMPLETE} is missing or unreadable"
    for name, size in listed.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} of {size:,} bytes"
    return None


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints whose every file is there in full, the oldest first."""
    return [path for path in checkpoints(folder) if damage(path) is None]
