"""The commands whose work is in `training`: their place in the help, and what is checked before that is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer

from ..registry import check_shape, did_you_mean_path
from .lazy import PACKAGE, library


PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@dataclass(frozen=True)
class TrainingCommand:
    """A command that hands its arguments to `main` of `module`. `takes_grid`: the first is a grid file."""

    name: str
    module: str
    panel: str
    help: str
    takes_grid: bool = False


TRAINING_COMMANDS = (
    TrainingCommand(
        name="train",
        module="train",
        panel="Runs",
        help="Train a shape by a recipe: leaner train RECIPE --shape NAME [--key value ...].",
    ),
    TrainingCommand(
        name="evaluate",
        module="evaluate",
        panel="Runs",
        help="Evaluate a model: leaner evaluate MODEL [--key value ...]; the last line is JSON.",
    ),
    TrainingCommand(
        name="tokenizer",
        module="data.tokenizer",
        panel="Runs",
        help="Train a tokenizer: leaner tokenizer --kind KIND --output_dir DIR [--key value ...].",
    ),
    TrainingCommand(
        name="sweep",
        module="experiments.sweep",
        panel="Experiments",
        help="Train a grid of shapes, seeds and learning rates by one recipe: leaner sweep GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="latency",
        module="experiments.latency",
        panel="Experiments",
        help="Measure inference of a grid's shapes in turns: leaner latency GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="step-time",
        module="experiments.step_time",
        panel="Experiments",
        help="Measure training steps of a grid's shapes in turns: leaner step-time GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="law",
        module="experiments.law",
        panel="Experiments",
        help="Fit a law of shape and tokens to a grid's finished rows: leaner law GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="guesses",
        module="experiments.baselines",
        panel="Experiments",
        help="Score simple guesses on a grid's task, to be beaten: leaner guesses GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="card",
        module="publishing.cards",
        panel="Publishing",
        help="Write a folder's model card from its config and results: leaner card FOLDER.",
    ),
    TrainingCommand(
        name="publish",
        module="publishing.publish",
        panel="Publishing",
        help="Copy a grid's runs to model_cards/, ready for the Hub: leaner publish GRID.yaml.",
        takes_grid=True,
    ),
    TrainingCommand(
        name="verify-cards",
        module="publishing.verify",
        panel="Publishing",
        help="Recompute a card's numbers from its weights: leaner verify-cards [FOLDER ...].",
    ),
)


def underscored(argument: str) -> str:
    """An option in the spelling of a recipe's keys: `--max-steps=3` → `--max_steps=3`. Values stay as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


def check_arguments(command: TrainingCommand, arguments: list[str]) -> None:
    """Raises ValueError for a typing error that can be seen before anything slow is imported."""
    from ..training.settings import help

    has_source = bool(arguments) and not arguments[0].startswith("--")
    if command.takes_grid and has_source:
        check_grid_file(Path(arguments[0]))
    if command.name in help.HELP and command.name not in help.WITH_KEYS:
        help.check_options(command.name, arguments)
        return
    check_named_shape(arguments)
    from ..training.settings.arguments import SettingsParser, read_recipe  # imports torch

    if command.name == "train" and has_source:
        read_recipe(arguments[0])
    keys = ["--data_files" if argument == "--data" else argument for argument in arguments]
    SettingsParser().parse_tokens(keys[1:] if has_source else keys)


def check_grid_file(path: Path) -> None:
    """Raises ValueError, with the nearest name, where there is no such file."""
    if not path.exists():
        raise ValueError(f"{path}: no such grid file{did_you_mean_path(path)}")


def check_named_shape(arguments: list[str]) -> None:
    """Raises ValueError for a misspelt shape in `--shape NAME` or `--shape=NAME`."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        if argument == "--shape":
            check_shape(following)
        if argument.startswith("--shape="):
            check_shape(argument.removeprefix("--shape="))


def passed_on(command: TrainingCommand) -> Callable[[typer.Context], None]:
    """The function of a command: prints its help, or checks its arguments and hands them on."""

    def run(context: typer.Context) -> None:
        arguments = [underscored(argument) for argument in context.args]
        if "--help" in arguments or "-h" in arguments:
            typer.echo(import_module(".training.settings.help", PACKAGE).help_of(command.name))
            return
        check_arguments(command, arguments)
        library(f".training.{command.module}").main(arguments)

    return run


def add_training_commands(app: typer.Typer) -> None:
    """Adds the commands in their order, under their panels of the help."""
    for command in TRAINING_COMMANDS:
        decorate = app.command(
            command.name, context_settings=PASSED_ON, help=command.help, rich_help_panel=command.panel
        )
        decorate(passed_on(command))
