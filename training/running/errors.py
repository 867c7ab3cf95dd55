"""What went wrong with a run, in one line; of a full disk, which one it is and what is safe."""

import errno
import shutil
import tempfile
from pathlib import Path

import datasets

from .checkpoints import whole_checkpoints


FULL_DISK = (
    "No space left",
    "os error 28",  # safetensors
    "inline_container",  # torch.save, whose message does not name the cause
)


def fullest_disk(folder: str | None) -> tuple[Path, int]:
    """The folder with the fewest bytes free among those that a run writes to, and how many these are."""
    if not folder:
        folder = "."
    places = [Path(folder), Path(datasets.config.HF_DATASETS_CACHE), Path(tempfile.gettempdir())]
    free = {place: shutil.disk_usage(place).free for place in places if place.exists()}
    fullest = min(free, key=free.get)
    return fullest, free[fullest]


def explain(error: Exception, folder: str | None) -> str:
    """One line for what went wrong."""
    text = " ".join(str(error).split())
    full = getattr(error, "errno", None) == errno.ENOSPC or any(phrase in text for phrase in FULL_DISK)
    if not full:
        return text
    place, free = fullest_disk(folder)
    text = f"{place}: no space left on the disk ({free / 2**20:.0f} MiB free)"
    if folder:
        whole = whole_checkpoints(Path(folder))
        if whole:
            text += f"; the last whole checkpoint is {whole[-1]}, --resume continues from it"
    return text
