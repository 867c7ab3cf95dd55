"""What `leaner guesses` writes beside a grid's rows, read. A model that has learned beats the best guess."""

import json
from collections.abc import Iterable

from .grid import Grid


GUESSES = "guesses.json"  # beside a grid's rows
ROW_ERRORS = "row_errors.json"  # beside them, too: what `row_errors.py` measures
AS_MANY_ROWS = "bigram, as many rows as trained on"


def read_guesses(grid: Grid) -> list[dict[str, object]] | None:
    """Name and value of each guess; None where none were made. Raises ValueError that names the file."""
    path = grid.path(GUESSES)
    if not path.is_file():
        return None
    try:
        guesses = json.loads(path.read_bytes())
        if not isinstance(guesses, list) or not guesses:
            raise ValueError(f"got {guesses!r:.100}")
        return [{"name": str(guess["name"]), "value": float(guess["value"])} for guess in guesses]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: expected a list of name and value, {type(error).__name__} {error}") from error


def guess_values(grid: Grid) -> list[float]:
    """What the simple guesses in GUESSES, beside a grid's rows, score; empty where none were made."""
    guesses = read_guesses(grid)
    if guesses is None:
        return []
    return [guess["value"] for guess in guesses]


def best_guess(values: Iterable[float | None], higher_is_better: bool) -> float | None:
    """The best of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if higher_is_better:
        return max(known, default=None)
    return min(known, default=None)


def read_row_errors(grid: Grid) -> list[dict[str, object]] | None:
    """Shape, difference and error of each pair; None without the file. Raises ValueError that names the file."""
    path = grid.path(ROW_ERRORS)
    if not path.is_file():
        return None
    try:
        pairs = json.loads(path.read_bytes())
        return [
            {"shape": str(pair["shape"]), "difference": float(pair["difference"]), "error": float(pair["error"])}
            for pair in pairs
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: expected shape, difference, error: {type(error).__name__} {error}") from error
