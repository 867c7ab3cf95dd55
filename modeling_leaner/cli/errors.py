"""One style of error: a single line on stderr that names the command; never a traceback for a user's mistake."""

from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup


QUIETLY_NAMED = ("shapes", "plan", "convert")


def fail(command: str, error: Exception, status: int = 1) -> NoReturn:
    """Ends the process after one line, with `status`; `command` is empty for `leaner` itself."""
    message = " ".join(str(error).split())
    place = "leaner" if command in QUIETLY_NAMED else f"leaner {command}".strip()
    Console(stderr=True, soft_wrap=True).print(f"{place}: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(status)


class CommandGroup(TyperGroup):
    """The commands of `leaner`. A command raises ValueError or OSError for what a user can put right."""

    def invoke(self, context: typer.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:  # nobody reads any more: typer ends quietly
            raise
        except (ValueError, OSError) as error:
            fail(context.invoked_subcommand, error)
