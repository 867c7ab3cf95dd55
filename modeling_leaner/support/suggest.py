"""Suggestions for a name that does not exist: the nearest one that does."""

from collections.abc import Iterable
from difflib import get_close_matches


NEAR = 0.5  # of the letters, as difflib counts them


def nearest(name: str, choices: Iterable[str], near: float = NEAR) -> str | None:
    """The choice that is spelt most alike, whatever the case; None where none is near."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=near)
    if not matches:
        return None
    return by_lower_case[matches[0]]


def did_you_mean(name: str, choices: Iterable[str], form: str = "; did you mean {}?") -> str:
    """The end of a message about an unknown name, with the nearest choice in `form`; empty where none is near."""
    choice = nearest(name, choices)
    if choice is None:
        return ""
    return form.format(choice)
