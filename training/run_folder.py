"""A run folder before it is finished: who may write to it, what was asked for, and where to go on from."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from datasets import IterableDataset
from datasets.fingerprint import Hasher

from . import report
from .arguments import RecipeArguments
from .sources import Rows
from .tasks import Task
from .trainer import remove_partial_checkpoints, whole_checkpoints


RECIPE, STARTED, LOCK = "recipe.yaml", "started.json", ".lock"
# What may differ when a run goes on: where data lie, how it reports, and how its batch is shared out.
CHANGEABLE = {"data_files", "preprocessing_workers", "disable_tqdm", "logging_steps", "report_to", "save_total_limit"}
CHANGEABLE |= {"per_device_train_batch_size", "gradient_accumulation_steps"}


@contextmanager
def alone_in(arguments: RecipeArguments) -> Iterator[None]:
    """Holds the folder of a run; ValueError where another process does."""
    if arguments.process_index != 0:
        yield
        return
    folder = Path(arguments.output_dir)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            # This process's own: loader workers that outlive a killed run for a moment do not keep it.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"{folder} is in use by another run") from None
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            if made and not any(folder.iterdir()):  # refused: nothing is left behind
                folder.rmdir()


def settings_of(arguments: RecipeArguments) -> dict[str, object]:
    """What `recipe.yaml` of the folder says."""
    return {**arguments.settings, "shape": arguments.shape}


def write_recipe(folder: Path, arguments: RecipeArguments, recipe: str | None) -> None:
    """Writes `recipe.yaml` of a run."""
    source = f"; from {Path(recipe).name}" if recipe else ""
    text = f"# Every setting of this run that is not a default{source}.\n" + yaml.safe_dump(settings_of(arguments))
    report.write_bytes(folder / RECIPE, text.encode())


def find_checkpoint(arguments: RecipeArguments) -> Path | None:
    """The checkpoint to continue from; nothing is written yet.

    Raises:
        ValueError: the folder holds a run and `resume` is not set, or a run with other settings, or something else.
    """
    folder, settings = Path(arguments.output_dir), settings_of(arguments)
    saved = folder / RECIPE
    if not saved.is_file():
        if any(not path.name.startswith(".") for path in folder.glob("*")):
            raise ValueError(f"{folder} is not empty and holds no run; --output_dir takes another folder")
        return None
    if not arguments.resume:
        raise ValueError(f"{folder} holds a run already: --resume continues it, --output_dir takes another folder")
    before = yaml.safe_load(saved.read_text(encoding="utf-8"))
    for key in sorted({*before, *settings} - CHANGEABLE):
        if before.get(key) != settings.get(key):
            was, asked = (f"{values[key]!r}" if key in values else "not set" for values in (before, settings))
            raise ValueError(f"{saved}: {key} is {was} there and {asked} here; a run goes on with its own settings")
    whole = whole_checkpoints(folder)
    return whole[-1] if whole else None


def identity(rows: Rows | None) -> dict[str, object] | None:
    """How many prepared rows there are, and what the first and the last hold; None of a stream."""
    if rows is None or isinstance(rows, IterableDataset):
        return None
    ends = [{key: value.tolist() for key, value in rows[index].items()} for index in (0, len(rows) - 1)]
    return {"rows": len(rows), "ends": Hasher.hash(ends)}


def open_folder(
    arguments: RecipeArguments, recipe: str | None, task: Task, train: Rows, held_out: Rows | None
) -> None:
    """Writes what the run is into its folder, or compares; removes what a killed run left half written.

    Raises:
        ValueError: the run that goes on was begun with other rows, other classes or another batch.
    """
    folder = Path(arguments.output_dir)
    batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    now = {"rows a step": batch, "training rows": identity(train), "evaluation rows": identity(held_out)}
    now["classes"] = task.classes
    started = folder / STARTED
    if started.is_file():
        before = json.loads(started.read_text(encoding="utf-8"))
        for key, value in now.items():
            if before.get(key) != value:
                counted = key == "rows a step"
                what = f"{before.get(key)} there and {value} here" if counted else "others than at its start"
                raise ValueError(f"{started}: {key}: {what}; a run goes on with its own")
    else:
        write_recipe(folder, arguments, recipe)
        report.write_json(started, now)
    for path in remove_partial_checkpoints(folder):
        print(f"{path} was not written to its end and is not used")
