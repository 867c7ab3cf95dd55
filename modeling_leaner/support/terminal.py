"""What people read: amounts, and words of others as they are, never as colours, emoji or commands to the terminal."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that takes `[red]` and `:x:` for text."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def plural(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}s"


def visible(text: str) -> str:
    r"""The text with what cannot be printed as an escape: `\n`, `\x1b`, bytes of a name that are no UTF-8."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
