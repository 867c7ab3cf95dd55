"""JSON documents: written whole or not at all, without NaN; errors that name the file they are about."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .files import write_bytes


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
        if str(error).startswith(str(place)):
            raise
        raise ValueError(f"{place}: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError, naming the file, for anything else; OSError where it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
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


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all; raises ValueError as `flat` does."""
    flat(path, document)
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())
