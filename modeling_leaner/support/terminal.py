"""What people read: words of others are shown as they are, never as colours, emoji or commands to the terminal."""

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
