"""Files and folders, written whole or not at all. Errors name the file they are about."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


@contextmanager
def whole_folder(output: Path, replace: bool = False) -> Iterator[Path]:
    """The path of a folder that the body makes and fills. It becomes `output` if all goes well; else nothing changes.

    With `replace` it takes the place of the folder that is there. Raises OSError where `output` cannot be written.
    """
    scratch = output.parent
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".unfinished-") as name:
            scratch = Path(name)
            folder, before = scratch / output.name, scratch / f"{output.name}.before"
            yield folder
            for weights in folder.rglob("*.safetensors"):
                weights.chmod(0o644)  # which safetensors narrows
            if replace and output.is_dir():
                output.rename(before)  # deleted with the scratch folder, once the new one is in place
            try:
                folder.rename(output)
            finally:
                if before.is_dir() and not output.is_dir():  # by Ctrl-C, too
                    before.rename(output)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        file = getattr(error, "filename", None)
        if isinstance(file, str) and not Path(file).absolute().is_relative_to(scratch.absolute()):
            raise  # about a file that was read
        raise OSError(f"{output}: cannot be written, nothing is left of it: {error}") from error


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(place: object, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Turn errors of these kinds into a ValueError that begins with the file, or the rows, that they are about."""
    try:
        yield
    except kinds as error:
        message = str(error)
        raise ValueError(message if message.startswith(str(place)) else f"{place}: {message}") from error


def read_text(path: Path) -> str:
    """Read a text file. Raises ValueError, naming it, for what is not UTF-8."""
    with naming(f"{path}: not a text in UTF-8"):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError, naming it, if it is not JSON; OSError if it cannot be read."""
    text = read_text(path)
    with naming(f"{path}: not a JSON file", (ValueError, RecursionError)):
        return json.loads(text)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises as `read_json` does, and ValueError for anything else."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def finite_or_none(value: float) -> float | None:
    """The value, or None instead of NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def write_json(path: Path, document: object) -> None:
    """Write a JSON file whole or not at all. Raises ValueError, naming it, for a number that is not finite."""
    with naming(path):
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())
