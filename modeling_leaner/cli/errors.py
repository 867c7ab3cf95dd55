"""One style of error: a single line on stderr that names the command; never a traceback for a user's mistake."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from ..terminal import plain_console, visible


def print_error(command: str | None, message: str) -> None:
    """One line on stderr; `command` is None for `leaner` itself."""
    place = "leaner" if command is None else f"leaner {command}"
    line = visible(" ".join(message.split()))
    plain_console(stderr=True, soft_wrap=True).print(f"{place}: {line}", style="red")


def describe(error: ValueError | OSError) -> str:
    """The message of an error; one of the operating system without its number: `[Errno 28] No space …`."""
    if isinstance(error, OSError) and error.strerror is not None:
        if error.filename is None:
            return error.strerror
        return f"{error.filename}: {error.strerror}"
    return str(error)


def drop_unwritten_output() -> None:
    """Lets go of what a full disk does not take of stdout: else Python tries again as it exits, and ends with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


class CommandGroup(TyperGroup):
    """The commands of `leaner`. A command raises ValueError or OSError for what a user can put right.

    Exit status 1 for these, 2 for unknown commands and options and for values of a wrong type.
    """

    def make_context(self, *args: Any, **extra: Any) -> typer.Context:
        """Reads the options of `leaner` itself."""
        try:
            return super().make_context(*args, **extra)
        except TyperException as error:
            print_error(None, error.format_message())
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # --help on a full disk
            print_error(None, describe(error))
            drop_unwritten_output()
            raise typer.Exit(1) from error

    def invoke(self, context: typer.Context) -> Any:
        """Reads the options of a command and runs it."""
        try:
            result = super().invoke(context)
            sys.stdout.flush()  # while a full disk can still be said
            return result
        except BrokenPipeError:  # nobody reads any more: typer ends quietly
            raise
        except TyperException as error:
            print_error(context.invoked_subcommand, error.format_message())
            raise typer.Exit(error.exit_code) from error
        except (ValueError, OSError) as error:
            print_error(context.invoked_subcommand, describe(error))
            drop_unwritten_output()
            raise typer.Exit(1) from error
