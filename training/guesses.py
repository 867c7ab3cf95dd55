"""guesses.json and row_errors.json of a grid: what `leaner guesses` found. A model that has learned beats the best."""

import json
from collections.abc import Iterable

from .grid import Grid


GUESSES = "guesses.json"  # beside a grid's rows
ROW_ERRORS = "row_errors.json"  # beside them, too: what `row_errors` measured
AS_MANY_ROWS = "bigram, as many rows as trained on"


def read_guesses(grid: Grid) -> list[dict[str, object]] | None:
    """Name and value of each guess; None where none were made. Raises ValueError that names the file."""
    path = grid.path(GUESSES)
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_bytes())
        if not isinstance(held, list) or not held:
            raise ValueError(f"got {held!r:.100}")
        return [{"name": str(each["name"]), "value": float(each["value"])} for each in held]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: expected a list of name and value, {type(error).__name__} {error}") from error


def best_guess(values: Iterable[float | None], higher_is_better: bool) -> float | None:
    """The best of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    best = max if higher_is_better else min
    return best(known, default=None)


def read_row_errors(grid: Grid) -> list[dict[str, object]] | None:
    """What the file holds; None without. Raises ValueError that names the file."""
    path = grid.path(ROW_ERRORS)
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_bytes())
        return [
            {"shape": str(each["shape"]), "difference": float(each["difference"]), "error": float(each["error"])}
            for each in held
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: expected shape, difference, error: {type(error).__name__} {error}") from error
