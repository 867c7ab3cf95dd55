"""What people read: progress, suggestions; text of others as it is, never as commands to the terminal."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that takes `[red]` and `:x:` for text."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def visible(text: str) -> str:
    r"""The text with what cannot be printed as an escape: `\n`, `\x1b`, bytes of a name that are no UTF-8."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name, with the choice that is spelt most alike; empty if none is near."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    return f"; did you mean {by_lower_case[matches[0]]}?" if matches else ""


def quiet_libraries() -> None:
    """Silence transformers' warnings and its bars over weights; bars of training and of downloads stay."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging  # slow

    logging.set_verbosity_error()
    had_bars_of_downloads = not are_progress_bars_disabled()
    logging.disable_progress_bar()  # the Hub's, too
    if had_bars_of_downloads:
        enable_progress_bars()
