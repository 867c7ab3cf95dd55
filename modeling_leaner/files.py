"""Files and folders, written whole or not at all. Errors name the file they are about."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


@contextmanager
def naming(
    place: object, kinds: tuple[type[Exception], ...] = (ValueError,), reason: Callable[[Exception], str] = str
) -> Iterator[None]:
    """Turn errors of these kinds into a ValueError that begins with the file, or the rows, that they are about."""
    try:
        yield
    except kinds as error:
        message = reason(error)
        raise ValueError(message if message.startswith(str(place)) else f"{place}: {message}") from error


@contextmanager
def whole_folder(output: Path, replace: bool = False) -> Iterator[Path]:
    """The path of a folder that the body makes and fills. It becomes `output` if all goes well; else nothing changes.

    With `replace` it takes the place of the folder that is there. Raises ValueError where it cannot be written.
    """
    kinds = (OSError, SafetensorError)  # safetensors has an error of its own for a full disk
    with naming(f"{output}: cannot be written, nothing is left of it", kinds):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-") as scratch:
            folder, before = Path(scratch, output.name), Path(scratch, f"{output.name}.before")
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


def sha256(path: Path) -> str:
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


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError, naming it, if it is not JSON; OSError if it cannot be read."""
    with naming(f"{path}: not a JSON file", (ValueError, RecursionError)):
        return json.loads(path.read_text(encoding="utf-8"))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises as `read_json` does, and ValueError for anything else."""
    document = read_json(path)
    with naming(f"{path}: expected a JSON object", (TypeError,)):
        return {**document}


def finite_or_none(value: float) -> float | None:
    """The value, or None instead of NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def write_json(path: Path, document: object) -> None:
    """Write a JSON file whole or not at all. Raises ValueError, naming it, for a number that is not finite."""
    with naming(path):
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def update_config(folder: Path, **fields: object) -> None:
    """Give fields of a folder's config.json another value; the rest stays as transformers wrote it."""
    path = folder / "config.json"
    write_bytes(path, (json.dumps(read_object(path) | fields, indent=2) + "\n").encode())
