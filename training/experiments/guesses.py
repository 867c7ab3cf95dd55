"""Reads what `leaner guesses` wrote beside a grid's rows. A model that has learned beats the best guess."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from modeling_leaner.support.documents import read_json

from ..records import Guess, RowError, checked
from .grid import Grid


GUESSES = "guesses.json"  # beside a grid's rows
Kind = TypeVar("Kind")
ROW_ERRORS = "row_errors.json"  # beside them, too: what `row_errors.py` measures
AS_MANY_ROWS = "bigram, as many rows as trained on"


def read_guesses(grid: Grid) -> list[Guess] | None:
    """The guesses of a grid; None where none were made. Raises ValueError that names the file."""
    path = grid.path(GUESSES)
    if not path.is_file():
        return None
    try:
        return _checked(list[Guess], path)
    except ValueError as error:
        raise ValueError(f"{path}: expected a list of name and value, {_without(path, error)}") from error


def _checked(kind: type[Kind], path: Path) -> Kind:
    """The records of a file, at least one. Raises ValueError."""
    records = checked(kind, read_json(path), path)
    if not records:
        raise ValueError("got none")
    return records


def _without(path: Path, error: ValueError) -> str:
    """The message of an error without the file's name."""
    return str(error).removeprefix(f"{path}: ")


def best_guess(values: Iterable[float | None], higher_is_better: bool) -> float | None:
    """The best of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if higher_is_better:
        return max(known, default=None)
    return min(known, default=None)


def read_row_errors(grid: Grid) -> list[RowError] | None:
    """The row errors of a grid; None without the file. Raises ValueError that names the file."""
    path = grid.path(ROW_ERRORS)
    if not path.is_file():
        return None
    try:
        return _checked(list[RowError], path)
    except ValueError as error:
        raise ValueError(f"{path}: expected shape, difference, error: {_without(path, error)}") from error
