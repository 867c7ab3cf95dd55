"""The commands whose work is in `training`: their options, and what is checked before anything slow is imported."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..registry import check_shape, did_you_mean_path
from ..support.interrupts import INTERRUPTED
from .command import Command, KeyCommand
from .errors import print_error
from .lazy import library


RUNS = "Runs"  # panels of the help
EXPERIMENTS = "Experiments"
PUBLISHING = "Publishing"

commands = typer.Typer()


def existing_grid(path: Path | None) -> Path | None:
    """The path itself. Raises ValueError, with the nearest name, where there is no such file."""
    if path is not None and not path.exists():
        raise ValueError(f"{path}: no such grid file{did_you_mean_path(path)}")
    return path


def known_shape(name: str | None) -> str | None:
    """The name itself. Raises ValueError, with the nearest one, for a misspelt named shape."""
    if name is not None:
        check_shape(name)
    return name


GridFile = Annotated[Path, typer.Argument(metavar="GRID.yaml", help="The grid file.", callback=existing_grid)]
DataFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--data-files",
        "--data",
        metavar="PATH ...",
        help="Local data in place of the Hub's: a folder, or files, also SPLIT=FILE (parquet, json, csv, text).",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="How often every shape has its turn.")]


class TrainCommand(KeyCommand):
    """`leaner train`, whose help lists this package's keys by group; transformers documents its own."""

    def format_help(self, context: typer.Context, formatter: Any) -> None:
        super().format_help(context, formatter)
        from ..training.settings.arguments import recipe_names, settings_by_group  # imports torch

        console = Console()
        console.print(f"Recipes: {', '.join(recipe_names())}; or a file of your own.", highlight=False)
        console.print("Every field of transformers.TrainingArguments is a key; beside them, or with another default:")
        for group, settings in settings_by_group().items():
            table = Table(box=None, show_header=False)
            for key, help in settings:
                table.add_row(f"--{key}", Text(help))
            console.print(Panel(table, title=group, title_align="left"))


@commands.command(cls=TrainCommand, rich_help_panel=RUNS)
def train(
    context: typer.Context,
    recipe: Annotated[str | None, typer.Argument(help="Name or file of a recipe; first, if given.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Named shape, folder, config file or Hub id.", callback=known_shape)
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Folder of the run; left out, of recipe and shape.")] = None,
    data_files: DataFiles = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last whole checkpoint.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --resume: begin again where every checkpoint is damaged.")
    ] = False,
) -> None:
    """Train a shape by a recipe: leaner train RECIPE --shape NAME [--key value ...]."""
    check_keys(recipe, context.args)
    library(".training.train").train(recipe, context.args)


def check_keys(recipe: str | None, words: list[str]) -> None:
    """Raises ValueError for a recipe or key that does not exist, sooner than all that a run needs is imported."""
    from ..training.settings.arguments import SettingsParser, read_recipe  # imports torch

    if recipe is not None:
        read_recipe(recipe)
    SettingsParser().parse_tokens(words)


@commands.command(cls=KeyCommand, rich_help_panel=RUNS)
def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A run folder, a published folder, or a Hub id.")],
    task: Annotated[str | None, typer.Option(help="Another task than that of the model's own recipe.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Built-in data, or a Hub id; left out, the recipe's.")] = None,
    data_files: DataFiles = None,
    eval_split: Annotated[str | None, typer.Option(help="Split to evaluate on.")] = None,
    max_eval_rows: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
) -> None:
    """Evaluate a model: leaner evaluate MODEL [--key value ...]; the last line is JSON.

    Its own recipe says task and data. Further keys are those of leaner train.
    """
    check_keys(None, context.args)
    library(".training.evaluate").evaluate(model, context.args)


@commands.command(cls=Command, rich_help_panel=RUNS)
def tokenizer(
    kind: Annotated[Literal["byte-bpe", "wordpiece", "bytes", "words"], typer.Option(help="What a token is.")],
    output_dir: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    family: Annotated[Literal["gpt", "bert"], typer.Option(help="Whose special tokens.")] = "bert",
    vocab_size: Annotated[int, typer.Option(min=1, help="Tokens at most, special tokens included.")] = 8192,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens of the longest input.")] = 512,
    dataset: Annotated[str | None, typer.Option(help="Built-in data, or a Hub id.")] = None,
    dataset_config: Annotated[str | None, typer.Option(help="Configuration of a Hub dataset.")] = None,
    data_files: DataFiles = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "train",
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
    max_rows: Annotated[int | None, typer.Option(min=1, help="Read only the first rows.")] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Read as a stream, without preparing a copy on disk.")
    ] = False,
) -> None:
    """Train a tokenizer on a column of text."""
    module = library(".training.data.tokenizer")
    source = module.TextSource(dataset, dataset_config, data_files, split, text_column, max_rows, streaming)
    module.write_tokenizer(output_dir, source, kind, vocab_size, max_length, family)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def sweep(
    grid: GridFile,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share the machine's cores.")] = 1,
    data_files: DataFiles = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="In place of the grid's; a new folder trains all anew.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only summarise the runs that are there.")] = False,
) -> None:
    """Train a grid of shapes, seeds and learning rates by one recipe, then compare the shapes."""
    module = library(".training.experiments.sweep")
    try:
        finished = module.sweep(grid, jobs, data_files or [], output_dir, summary)
    except KeyboardInterrupt:
        print_error("sweep", "interrupted; the same command continues where the runs stopped")
        raise typer.Exit(INTERRUPTED) from None
    if not finished:
        raise typer.Exit(1)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def cut_cells(
    source: Annotated[str, typer.Argument(help="Folder or Hub id of an encoder.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    data: Annotated[list[str] | None, typer.Option(help="File or folder of calibration rows.")] = None,
    column: Annotated[str | None, typer.Option(help="Column of the texts; left out, the only one.")] = None,
    rows: Annotated[int, typer.Option(help="At most so many rows: half to choose by, half held out.")] = 256,
) -> None:
    """Write an encoder, as the teacher, and its cuts: the cells of training/grids/cuts/, for leaner sweep."""
    library(".support.quiet").quiet_libraries()
    library(".hub").require_source(source)
    library(".cli.cells").write_cells(source, folder, data or [], column, rows)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def latency(grid: GridFile, rounds: Rounds = 15) -> None:
    """Measure inference time and throughput of a grid's shapes, in turns, on this machine."""
    library(".training.experiments.latency").measure_grid(grid, rounds)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def step_time(grid: GridFile, rounds: Rounds = 15) -> None:
    """Measure how long a training step of each shape of a grid takes, in turns, on this machine; for equal seconds."""
    library(".training.experiments.step_time").measure_grid(grid, rounds)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def law(grid: GridFile) -> None:
    """Fit a law of shape and tokens to the finished rows of a grid with branches."""
    library(".training.experiments.law").write_law(grid)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def guesses(grid: GridFile, data_files: DataFiles = None) -> None:
    """Score simple guesses on a grid's task, to be beaten."""
    library(".training.experiments.baselines").write_guesses(grid, data_files or [])


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def shift(one: GridFile, other: GridFile) -> None:
    """By how much the differences of shapes shift between two grids; the last line is JSON."""
    library(".training.experiments.shift").compare(one, other)


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def card(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders or published ones; left out, all published ones.")
    ] = None,
) -> None:
    """Write model cards from config.json and results.json; without a folder, the index of all, too."""
    library(".training.publishing.cards").write_cards(folders or [])


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def publish(
    context: typer.Context,
    grid: Annotated[
        Path | None,
        typer.Argument(
            metavar="GRID.yaml", help="With publish; left out, renew the folders there are.", callback=existing_grid
        ),
    ] = None,
    data_files: DataFiles = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take folders that are there anew, weights too.")] = False,
) -> None:
    """Copy a grid's runs to model_cards/, ready for the Hub."""
    if grid is None and (data_files or replace):
        context.fail("--data-files and --replace: expected with the grid file whose runs are meant")
    library(".training.publishing.publish").publish_all(grid, data_files or [], replace)


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def verify_cards(
    folders: Annotated[list[Path] | None, typer.Argument(help="Published ones; left out, all there are.")] = None,
    data_files: Annotated[
        list[str] | None, typer.Option("--data-files", metavar="NAME=FOLDER ...", help="Local copies of datasets.")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="The first rows only.")] = False,
) -> None:
    """Recompute what a published card says of its model, from the weights alone."""
    library(".training.publishing.verify").verify_all(folders or [], data_files or [], short)
