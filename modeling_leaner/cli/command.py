"""How a command line is read, checked and answered.

Options may be written `--two-words` or `--two_words`; a list's option takes all values that follow it. A user's
mistake is one line on stderr that names the command, never a traceback; what can be checked without torch is checked
before it is imported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from ..files import naming, read_object
from ..names import require_model_type, require_source
from ..process import INTERRUPTED, leave_at_once, leave_in_order
from ..terminal import plain_console, quiet_libraries, visible
from ..training.reading import split_options


RESEARCH = "Research"  # second panel of the help


@contextmanager
def slow_imports() -> Iterator[None]:
    """Around imports that take seconds: Ctrl-C ends the process at once, and the Auto classes know the family."""
    leave_at_once()
    from .. import family  # noqa: F401

    yield
    quiet_libraries()
    leave_in_order()


# Reading


class Command(TyperCommand):
    """A command whose options with a metavar that ends in `...` take several values: `--data-files a b`."""

    def option_of(self, word: str) -> TyperOption | None:
        """The option that a word such as `--head_dim=8` names; None for one that the command does not have."""
        name = word.partition("=")[0].replace("_", "-")
        return next((parameter for parameter in self.params if name in parameter.opts), None)

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:
        """As typer, to which several values are the option again before each of them."""
        words, *groups = split_options(args)
        for name, *values in groups:
            option = self.option_of(name)
            takes_several = option is not None and (option.metavar or "").endswith("...") and "=" not in name
            if takes_several and not values:  # else the next option would be the value
                context.fail(f"Option {option.opts[0]!r} requires an argument.")
            words += chain.from_iterable((name, value) for value in values) if takes_several else (name, *values)
        return super().parse_args(context, words)


class KeyCommand(Command):
    """A command whose options are keys of a recipe; it declares those that mean more, or that the help shows.

    All keys are left in `context.args`, in the spelling of recipes.
    """

    no_keys = ("as_json", "rounds", "threads")  # declared options that mean nothing to a recipe

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:
        if not set(args).isdisjoint(context.help_option_names):
            return super().parse_args(context, context.help_option_names[:1])
        first, *groups = split_options(args)
        declared = [group for group in groups if self.option_of(group[0]) is not None]
        super().parse_args(context, list(chain(first, *declared)))
        context.args = []
        for word, *values in groups:
            name, equals, value = word.partition("=")
            option = self.option_of(name)
            key = option.name if option else name[2:].replace("-", "_")
            if key not in self.no_keys:
                context.args += [f"--{key}{equals}{value}", *values]
        return context.args


# Answering


class CommandGroup(TyperGroup):
    """The commands of `leaner`. A command raises ValueError or OSError for what a user can put right.

    A KeyboardInterrupt may say how to go on.
    The exit status is 1 for these, 2 for unknown commands, options and values of a wrong type, 130 for Ctrl-C.
    """

    def invoke(self, context: typer.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:  # nobody reads any more: typer ends quietly
            raise
        except (TyperException, ValueError, OSError, KeyboardInterrupt) as error:
            status, message = 1, str(error)
            if isinstance(error, TyperException):
                status, message = error.exit_code, error.format_message().replace("Value error, ", "")
            elif isinstance(error, KeyboardInterrupt):
                status, message = INTERRUPTED, message or "interrupted"
            elif getattr(error, "strerror", None):  # without the system's number: `[Errno 28] No space …`
                message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            place = " ".join(filter(None, ("leaner", context.invoked_subcommand)))
            line = visible(" ".join(message.split()))
            plain_console(stderr=True, soft_wrap=True).print(f"{place}: {line}", style="red")
            raise typer.Exit(status) from error


# Checks, as callbacks of options: each returns the value or raises ValueError


def new_path(path: Path | None) -> Path | None:
    if path is not None and (path.exists() or path.is_symlink()):
        raise ValueError(f"{path} exists already; choose another name, or delete it")
    return path


def named(model: str | None) -> str | None:
    """A named shape, a file, a folder or a model of the Hub."""
    if model is not None:
        require_source(model, or_shape=True)
    return model


def trained(models: str | list[str] | None) -> str | list[str] | None:
    """Models with weights: a folder or a Hub id each."""
    for model in [models] if isinstance(models, str) else models or []:
        require_source(model)
    return models


def convertible(model: str) -> str:
    """A model with weights, and if it is a folder one of BERT, ViT, GPT-2 or this family."""
    require_source(model)
    if Path(model).is_dir():
        with naming(f"{model}: no model", (OSError,), lambda _: "it has no config.json"):
            document = read_object(Path(model, "config.json"))
        with naming(model):
            require_model_type(document.get("model_type"))
    return model


def layer_numbers(text: str) -> tuple[int, ...]:
    """`"0,4,5"` → (0, 4, 5), a parser: of what raises ValueError typer says the option."""
    return tuple(map(int, text.split(",")))


Trained = Annotated[
    str,
    Argument(metavar="MODEL", help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.", callback=convertible),
]
NewFolder = Annotated[Path, Argument(metavar="OUT", help="Folder to write; it must not exist.", callback=new_path)]
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]
DataFiles = Annotated[
    list[str] | None,
    Option(
        "--data-files",
        "--data",
        metavar="PATH ...",
        help="Local data instead of the Hub's: a folder, or files, also SPLIT=FILE (parquet, json, csv, text).",
    ),
]
License = Annotated[
    str | None,
    Option(help="Licence of the weights, as the Hub names it, such as mit.", show_default="as stated before"),
]
