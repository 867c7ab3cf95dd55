"""Checkpoints of a run on the disk: which there are, which are whole, what is wrong with the others, full disks.

`LeanTrainer._save_checkpoint` in trainer.py writes them. A checkpoint counts only once its `complete.json` lists every
file with its size, so that a half-written one is never continued from.
"""

import errno
import json
import shutil
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

import datasets
from safetensors import SafetensorError, safe_open

from modeling_leaner.files import read_object, write_bytes
from modeling_leaner.hub import files_of


COMPLETE = "complete.json"
FULL_DISK = (
    "No space left",
    "os error 28",  # safetensors
    "inline_container",  # torch.save, whose message does not name the cause
    "iostream error",  # nor does this one of it
)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, the oldest first."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    numbered = [path for path, step in steps.items() if step.isdecimal()]
    return sorted(numbered, key=lambda path: int(steps[path]))


def damage(checkpoint: Path) -> str | None:
    """The first file of a checkpoint that is not there in full, and why; None of a whole one."""
    try:
        listed = read_object(checkpoint / COMPLETE)
    except FileNotFoundError:
        return f"{COMPLETE} is missing"
    except (OSError, ValueError):
        return f"{COMPLETE} is unreadable"
    for name, size in listed.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} of {size:,} bytes"
    return None


def is_intact(path: Path) -> bool:
    """Whether a file holds what its name promises; raises an error where it cannot be read at all."""
    if path.suffix in (".pt", ".pth"):  # torch writes an archive with the sum of each tensor
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as tensors:
            return len(tensors.keys()) > 0
    if path.suffix == ".json":
        return json.loads(path.read_text()) is not None
    return True


def unreadable(checkpoint: Path) -> str | None:
    """The first file of a checkpoint that cannot be read: a damaged disk changes bytes, and no size."""
    for name in sorted(files_of(str(checkpoint))):
        path = checkpoint / name
        try:
            intact = is_intact(path)
        except (OSError, ValueError, zipfile.BadZipFile, SafetensorError):
            intact = False
        if not intact:
            return f"{name} cannot be read"
    return None


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints whose every file is there in full, the oldest first."""
    return [path for path in checkpoints(folder) if damage(path) is None]


def remove_partial_checkpoints(folder: Path) -> list[Path]:
    """Deletes checkpoints that are not whole, so that nothing mistakes them for one; returns them."""
    partial = [path for path in checkpoints(folder) if damage(path) is not None]
    for path in partial:
        shutil.rmtree(path)
    return partial


def declare_whole(checkpoint: Path) -> None:
    """Writes the list of a checkpoint's files, with which it counts from now on."""
    sizes = {name: (checkpoint / name).stat().st_size for name in sorted(files_of(str(checkpoint)))}
    write_bytes(checkpoint / COMPLETE, json.dumps(sizes).encode())


def rotate(folder: Path, limit: int | None, kept_steps: Collection[int], best: str | None) -> None:
    """Keeps the latest `limit` whole checkpoints (None: all), the best one and those of the steps; deletes others."""
    if not limit:
        return
    kept = {f"checkpoint-{step}" for step in kept_steps}
    whole = [path for path in whole_checkpoints(folder) if path.name not in kept]
    for path in whole[:-limit]:
        if best is None or Path(best).resolve() != path.resolve():
            (path / COMPLETE).unlink()
            shutil.rmtree(path)


def explain(error: Exception, folder: str | None) -> str:
    """What went wrong with a run, in one line; of a full disk, which one it is and what is safe."""
    text = " ".join(str(error).split())
    if getattr(error, "errno", None) != errno.ENOSPC and not any(phrase in text for phrase in FULL_DISK):
        return text
    places = [Path(folder or "."), Path(datasets.config.HF_DATASETS_CACHE), Path(tempfile.gettempdir())]
    free = {place: shutil.disk_usage(place).free for place in places if place.exists()}
    place = min(free, key=free.get)
    text = f"{place}: no space left on the disk ({free[place] / 2**20:.0f} MiB free)"
    whole = whole_checkpoints(Path(folder)) if folder else []
    if whole:
        text += f"; the last whole checkpoint is {whole[-1]}, --resume continues from it"
    return text
