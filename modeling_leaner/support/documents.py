"""Texts and JSON documents: read up to a size, written whole or not at all; errors name the file they are about."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .files import write_bytes


MOST_BYTES = 100_000_000  # of a JSON file; the largest tokenizers have a third of it


def require(condition: bool, path: Path, name: str, value: object, expected: str) -> None:
    """Raises ValueError, with the file and what was expected of the value, unless the condition holds."""
    if not condition:
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")


@contextmanager
def naming(place: object, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Errors of these kinds become a ValueError that begins with the file, or the rows, that they are about."""
    try:
        yield
    except kinds as error:
        message = str(error)
        if not message.startswith(str(place)):
            message = f"{place}: {message}"
        elif isinstance(error, ValueError):
            raise
        raise ValueError(message) from error


def read_text(path: Path, most: int) -> str:
    """The text of a file. Raises ValueError, naming it, for more bytes than `most` and for what is not UTF-8."""
    with path.open("rb") as file:
        content = file.read(most + 1)  # of a device, too, which has no size
    if len(content) > most:
        raise ValueError(f"{path}: expected at most {most:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from error


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises ValueError, naming it, where it holds none; OSError where it cannot be read."""
    text = read_text(path, MOST_BYTES)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: brackets within brackets, too deep to read") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises as `read_json` does, and ValueError for anything else."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def flat(path: Path, value: object, name: str = "") -> dict[str, Any]:
    """The values in nested dicts and lists by name, such as `train.loss`.

    Raises:
        ValueError: a number is NaN or infinite; names it and the file.
    """
    require(not isinstance(value, float) or math.isfinite(value), path, name, value, "a finite number")
    match value:
        case dict():
            items = value.items()
        case list() | tuple():
            items = enumerate(value)
        case _:
            return {name: value}
    values = {name: value}
    for key, item in items:
        place = str(key)
        if name:
            place = f"{name}.{key}"
        values |= flat(path, item, place)
    return values


def finite_or_none(value: float) -> float | None:
    """The value, or None in place of NaN and infinity, which JSON does not have."""
    if math.isfinite(value):
        return value
    return None


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all; raises ValueError as `flat` does."""
    flat(path, document)
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())
