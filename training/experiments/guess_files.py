"""Reads what `leaner sweep` wrote beside a grid's rows. A model that has learned beats the best guess."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from modeling_leaner.files import read_json

from ..records import Guess, RowError, checked
from .grid import Grid


GUESSES = "guesses.json"  # beside a grid's rows
ROW_ERRORS = "row_errors.json"  # beside them, too: what `row_errors.py` measures
AS_MANY_ROWS = "bigram, as many rows as trained on"
Kind = TypeVar("Kind")


def read_guesses(grid: Grid) -> list[Guess] | None:
    """The guesses of a grid; None where none were made. Raises ValueError that names the file."""
    return _read_list(Guess, grid.path(GUESSES), "a list of name and value")


def read_row_errors(grid: Grid) -> list[RowError] | None:
    """The row errors of a grid; None without the file. Raises ValueError that names the file."""
    return _read_list(RowError, grid.path(ROW_ERRORS), "a list of shape, difference and error")


def _read_list(kind: type[Kind], path: Path, expected: str) -> list[Kind] | None:
    """The records of a file, at least one; None without the file. Raises ValueError that names what was expected."""
    if not path.is_file():
        return None
    try:
        records = checked(list[kind], read_json(path), path)
    except ValueError as error:
        raise ValueError(f"{path}: expected {expected}; {str(error).removeprefix(f'{path}: ')}") from error
    if not records:
        raise ValueError(f"{path}: expected {expected}; got none")
    return records


def best_guess(values: Iterable[float | None], higher_is_better: bool) -> float | None:
    """The best of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if higher_is_better:
        return max(known, default=None)
    return min(known, default=None)
