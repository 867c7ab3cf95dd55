"""A run folder before it is finished: who may write to it, what was asked for, and where to go on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from datasets import IterableDataset
from datasets.fingerprint import Hasher
from filelock import FileLock, Timeout

from modeling_leaner.files import read_json, read_object, write_bytes, write_json

from ..data.sources import Rows
from ..records.results import RESULTS
from ..settings import RecipeArguments, read_recipe
from .checkpoints import COMPLETE, checkpoints, damage, remove_partial_checkpoints, unreadable, whole_checkpoints
from .loading import recorded_settings
from .preparation import PreparedRun


RECIPE = "recipe.yaml"
STARTED = "started.json"
LOCK = ".lock"
# What may differ when a run goes on: where data lie, how it reports, and how its batch is shared out.
CHANGEABLE = {"data_files", "preprocessing_workers", "disable_tqdm", "logging_steps", "report_to", "save_total_limit"}
CHANGEABLE |= {"per_device_train_batch_size", "gradient_accumulation_steps"}


@contextmanager
def alone_in(arguments: RecipeArguments) -> Iterator[None]:
    """Locks the folder of a run; ValueError where another process has it, or where it cannot be written to."""
    if arguments.process_index != 0:
        yield
        return
    folder = Path(arguments.output_dir)
    new = [path for path in (folder, *folder.parents) if not path.exists()]  # the innermost first
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # This process's own: loader workers that outlive a killed run for a moment do not keep it.
        lock = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{folder} is in use by another run") from None
    except OSError as error:
        raise ValueError(f"output_dir: {folder}: no folder that can be written to: {error.strerror}") from error
    with lock:
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            for path in new:  # refused: nothing is left behind
                if any(path.iterdir()):
                    break
                path.rmdir()


def settings_of(arguments: RecipeArguments) -> dict[str, object]:
    """What `recipe.yaml` of the folder says."""
    return {**recorded_settings(arguments), "shape": arguments.shape}


def write_recipe(folder: Path, arguments: RecipeArguments, recipe: str | None) -> None:
    """Writes `recipe.yaml` of a run."""
    source = f"; from {Path(recipe).name}" if recipe else ""
    text = f"# Every setting of this run that is not a default{source}.\n" + yaml.safe_dump(settings_of(arguments))
    write_bytes(folder / RECIPE, text.encode())


def find_checkpoint(arguments: RecipeArguments) -> Path | None:
    """The checkpoint to continue from; nothing is written yet.

    Raises:
        ValueError: the folder holds a run and `resume` is not set, or a run with other settings, or something else;
            or all its checkpoints are damaged and `restart` is not set.
    """
    folder = Path(arguments.output_dir)
    saved = folder / RECIPE
    if not saved.is_file():
        if any(not path.name.startswith(".") for path in folder.glob("*")):
            raise ValueError(f"{folder} is not empty and holds no run; --output_dir takes another folder")
        return None
    if not arguments.resume:
        raise ValueError(f"{folder} holds a run already: --resume continues it, --output_dir takes another folder")
    check_same_settings(saved, settings_of(arguments))
    whole = [path for path in whole_checkpoints(folder) if unreadable(path) is None]
    if whole:
        return whole[-1]
    if not arguments.restart and finished_results(folder) is None:
        check_none_was_whole(folder)
    return None


def check_same_settings(saved: Path, settings: dict[str, object]) -> None:
    """Raises ValueError for the first setting of a run that differs from the saved one and may not be changed."""
    _, before = read_recipe(str(saved))
    for key in sorted({*before, *settings} - CHANGEABLE):
        if before.get(key) != settings.get(key):
            was, asked = (repr(side[key]) if key in side else "not set" for side in (before, settings))
            raise ValueError(f"{saved}: {key} is {was} there and {asked} here; a run goes on with its own settings")


def check_none_was_whole(folder: Path) -> None:
    """Raises ValueError where a folder without a whole checkpoint has had one: its steps are not thrown away unasked.

    A single checkpoint without `complete.json` is what a run leaves that was killed while it wrote the first one.
    """
    paths = checkpoints(folder)
    if len(paths) > 1 or any((path / COMPLETE).exists() for path in paths):
        damages = "; ".join(f"{path.name}: {damage(path) or unreadable(path)}" for path in paths)
        raise ValueError(f"{folder}: every checkpoint is damaged ({damages}); --resume --restart begins at step 0")


def finished_results(folder: Path) -> dict[str, object] | None:
    """results.json of a run that came to its end; None where it, the card or the weights are missing."""
    if not (folder / "README.md").is_file() or not any(folder.glob("model*.safetensors")):
        return None
    try:
        return read_json(folder / RESULTS)
    except (OSError, ValueError):
        return None


def identity(rows: Rows | None) -> dict[str, object] | None:
    """How many prepared rows there are, and what the first and the last hold; None of a stream."""
    if rows is None or isinstance(rows, IterableDataset):
        return None
    ends = [{key: value.tolist() for key, value in rows[index].items()} for index in (0, len(rows) - 1)]
    return {"rows": len(rows), "ends": Hasher.hash(ends)}


def compare_start(run: PreparedRun) -> dict[str, object]:
    """What a run starts with: rows, classes and batch, as `started.json` has them.

    Raises:
        ValueError: the run in the folder started with others.
    """
    arguments = run.arguments
    batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    now = {"rows a step": batch, "training rows": identity(run.train)}
    now["evaluation rows"] = identity(run.held_out_rows)
    now["classes"] = run.task.classes
    started = Path(arguments.output_dir) / STARTED
    if started.is_file():
        before = read_object(started)
        for key, value in now.items():
            if before.get(key) == value:
                continue
            difference = "others than at its start"
            if key == "rows a step":
                difference = f"{before.get(key)} there and {value} here"
            raise ValueError(f"{started}: {key}: {difference}; a run goes on with its own")
    return now


def open_folder(arguments: RecipeArguments, recipe: str | None, start: dict[str, object]) -> None:
    """Writes recipe and `start`, from `compare_start`, into a run's folder; removes half-written checkpoints."""
    folder = Path(arguments.output_dir)
    if not (folder / STARTED).is_file():
        write_recipe(folder, arguments, recipe)
        write_json(folder / STARTED, start)
    for path in remove_partial_checkpoints(folder):
        print(f"{path} was not written to its end and is not used")
