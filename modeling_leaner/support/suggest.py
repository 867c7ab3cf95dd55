"""What is said of a name that nothing has: the nearest one that there is."""

from collections.abc import Iterable
from difflib import get_close_matches


NEAR = 0.5  # of the letters, as difflib counts them


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is spelt most alike, whatever the case; None where none is near."""
    choices = {choice.lower(): choice for choice in choices}
    matches = get_close_matches(name.lower(), choices, n=1, cutoff=NEAR)
    return choices[matches[0]] if matches else None


def did_you_mean(name: str, choices: Iterable[str], form: str = "; did you mean {}?") -> str:
    """The end of a message about an unknown name, with the nearest choice in `form`; empty where none is near."""
    choice = nearest(name, choices)
    return "" if choice is None else form.format(choice)
