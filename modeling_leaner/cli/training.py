"""The commands whose work is in `training`: their options, and what is checked before anything slow is imported."""

from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..process import INTERRUPTED
from ..terminal import plain_console
from .checks import (
    BENCH_CHOICES,
    STUDY_NAMES,
    base_model_of,
    check_bench,
    check_folders,
    check_grid_file,
    check_named,
    check_new,
    check_study,
    check_trained,
)
from .command import Command, KeyCommand
from .errors import print_error
from .lazy import slow_imports


RUNS = "Runs"  # panels of the help
EXPERIMENTS = "Experiments"
PUBLISHING = "Publishing"

BENCH_SHAPES = ["vit/tiny", "bert/tiny", "gpt/tiny"]  # defaults of leaner bench
BENCH_PHASES = [*BENCH_CHOICES["phases"]]
BENCH_MODES = [*BENCH_CHOICES["modes"]]
BENCH_BATCH = [8]
BENCH_ATTENTIONS = ["eager", "sdpa", "lean"]

commands = typer.Typer()


GridFile = Annotated[Path, typer.Argument(metavar="GRID.yaml", help="The grid file.", callback=check_grid_file)]
DataFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--data-files",
        "--data",
        metavar="PATH ...",
        help="Local data in place of the Hub's: a folder, or files, also SPLIT=FILE (parquet, json, csv, text).",
    ),
]
Sizes = Annotated[
    list[int] | None,
    typer.Option(metavar="N ...", help="In place of the shape's; heads × head size stays, unless both are given."),
]
License = Annotated[
    str | None,
    typer.Option(
        help="Licence of the weights, as the Hub names it, such as mit. [default: as stated before]",
    ),
]


class TrainCommand(KeyCommand):
    """`leaner train`, whose help lists this package's keys by group; transformers documents its own."""

    def format_help(self, context: typer.Context, formatter: Any) -> None:
        super().format_help(context, formatter)
        from ..training.settings import recipe_names, settings_by_group

        console = plain_console()
        console.print(f"Recipes: {', '.join(recipe_names())}; or a file of your own.")
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
        str | None, typer.Option(help="Named shape, folder, config file or Hub id.", callback=check_named)
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
    with slow_imports():
        from ..training.train import train as train_shape
    train_shape(recipe, context.args)


def check_keys(recipe: str | None, options: list[str]) -> None:
    """Raises ValueError for a recipe, key or file that is none, or another task's metric, before a run's imports."""
    from ..training.reading import given_options
    from ..training.settings import (
        check_data_files,
        check_metric,
        check_modality,
        read_recipe,
        settings_parser,
        split_files,
    )

    task = None
    if recipe is not None:
        _, settings = read_recipe(recipe)
        task = settings.get("task")
    parser = settings_parser()
    given = parser.parse_words(options)
    if given.task is not None:
        task = given.task
    check_metric(task, given.metric)
    check_modality(task, given_options(parser, options))
    check_data_files(chain.from_iterable(split_files(given.data_files).values()))


@commands.command(cls=KeyCommand, rich_help_panel=RUNS)
def evaluate(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(metavar="MODEL ...", help="Folder or Hub id of a model.")],
    task: Annotated[str | None, typer.Option(help="embedding: see below. [default: that of the recipe]")] = None,
    dataset: Annotated[str | None, typer.Option(help="Built-in data, or a Hub id. [default: the recipe's]")] = None,
    data_files: DataFiles = None,
    eval_split: Annotated[str | None, typer.Option(help="Split to evaluate on.")] = None,
    max_eval_rows: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    rounds: Annotated[int, typer.Option(help="Of several encoders: turns of the timing, 0 for none.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="PyTorch threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Of several encoders: print JSON.")] = False,
) -> None:
    """Evaluate a model on its recipe's data, or compare sentence encoders as MTEB does.

    One model: its own recipe.yaml says task and data; further keys are those of leaner train. The last line is JSON.

    Encoders: leaner evaluate ENCODER [ENCODER ...] --task embedding [--data NAME[=PATH] ...] with the names sts12 to
    sts16, sick_r, stsb, stsb_test, qnli, sst2, mr, subj, sentences. The others are compared with the first encoder.
    The path of an .onnx file is an encoder, too.
    """
    compares = task == "embedding" and not any(word.startswith("--text_column") for word in context.args)
    if len(models) > 1 and not compares:
        raise ValueError("several models are compared by --task embedding alone")
    if compares:
        with slow_imports():
            from ..training.experiments.embedding_benchmark import evaluate_encoders
        evaluate_encoders(models, data_files or [], rounds, threads, as_json)
        return
    model = models[0]
    check_trained(model)
    check_keys(None, context.args)
    with slow_imports():
        from ..training.running.evaluation import print_evaluation
    print_evaluation(model, context.args)


@commands.command(cls=Command, rich_help_panel=RUNS)
def tokenizer(
    kind: Annotated[Literal["byte-bpe", "wordpiece", "bytes", "words"], typer.Option(help="What a token is.")],
    output_dir: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    family: Annotated[Literal["bert", "gpt"], typer.Option(help="Whose special tokens.")] = "bert",
    vocab_size: Annotated[int, typer.Option(min=1, help="Tokens at most, special tokens included.")] = 8192,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens of the longest input.")] = 512,
    dataset: Annotated[str | None, typer.Option(help="Built-in data, or a Hub id.")] = None,
    dataset_config: Annotated[str | None, typer.Option(help="Configuration of a Hub dataset.")] = None,
    data_files: DataFiles = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "train",
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts; left out, text, sentence, question ... or the only one.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Read only the first rows.")] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Read as a stream, without preparing a copy on disk.")
    ] = False,
) -> None:
    """Train a tokenizer on a column of text."""
    with slow_imports():
        from ..training.data.sources import TextSource
        from ..training.data.tokenizer import write_tokenizer
    source = TextSource(dataset, dataset_config, data_files, split, text_column, max_rows, streaming)
    write_tokenizer(output_dir, source, kind, vocab_size, max_length, family)


@commands.command(cls=Command, rich_help_panel=RUNS)
def sentences(
    output: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="File to write; it must not exist.")],
    dataset: Annotated[str | None, typer.Option(help="Built-in data, or a Hub id.")] = None,
    data_files: DataFiles = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "train",
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts; left out, text, sentence, question ... or the only one.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Read only the first rows.")] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help="Texts that are tested on: a file, or a Hub dataset as ID:CONFIGURATION:SPLIT."),
    ] = None,
) -> None:
    """Write the sentences of texts, to learn vectors from, without those that share 8 words in a row with a test."""
    with slow_imports():
        from ..training.data.sources import TextSource, write_sentences
    source = TextSource(dataset, None, data_files, split, text_column, max_rows)
    write_sentences(output, source, leave_out or [])


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def sweep(
    grid: GridFile,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share out the machine's cores.")] = 1,
    data_files: DataFiles = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="In place of the grid's; a new folder trains all anew.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only summarise the runs that are there.")] = False,
    engine: Annotated[
        Literal["processes", "ray"],
        typer.Option(help="Processes of this machine, or a Ray cluster."),
    ] = "processes",
) -> None:
    """Train a grid of shapes, seeds and learning rates by one recipe, then compare the shapes."""
    with slow_imports():
        from ..training.experiments.sweep import sweep as run_grid
    try:
        finished = run_grid(grid, jobs, data_files or [], output_dir, summary, engine)
    except KeyboardInterrupt:
        print_error("sweep", "interrupted; the same command continues where the runs stopped")
        raise typer.Exit(INTERRUPTED) from None
    if not finished:
        raise typer.Exit(1)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def bench(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL ...",
            help="Shapes, folders or Hub ids to time against each other (inference, without heads), or one grid file.",
        ),
    ] = None,
    shapes: Annotated[
        list[str], typer.Option(metavar="SHAPE ...", help="Shapes to time against transformers and timm.")
    ] = BENCH_SHAPES,
    layers: Sizes = None,
    heads: Sizes = None,
    head_dim: Sizes = None,
    phases: Annotated[
        list[str], typer.Option(metavar="PHASE ...", help="training, inference, decoding (LeanGPT alone).")
    ] = BENCH_PHASES,
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE ...",
            help="float32, bfloat16, float16. [default: float32, and bfloat16 if the processor has units for it]",
        ),
    ] = None,
    modes: Annotated[list[str], typer.Option(metavar="MODE ...", help="eager, compile.")] = BENCH_MODES,
    attentions: Annotated[list[str], typer.Option(metavar="NAME ...", help="attn_implementation.")] = BENCH_ATTENTIONS,
    batch: Annotated[list[int], typer.Option(min=1, metavar="N ...", help="Examples of a step.")] = BENCH_BATCH,
    length: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N ...", help="Tokens of a text. [default: the longest]")
    ] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens that decoding adds.")] = 32,
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="Where the models run.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of PyTorch.")] = None,
    rounds: Annotated[int, typer.Option(min=3, help="How often every model takes its turn.")] = 20,
    seconds: Annotated[float, typer.Option(min=0, help="Stop once a model was timed for so long.")] = 30,
    csv: Annotated[Path | None, typer.Option(help="New file for the cells and their provenance.")] = None,
) -> None:
    """Time this family against transformers and timm at equal shape, or MODELs against each other, in turns.

    Every combination of the lists is measured. A grid file times the grid's shapes and writes latency.json, and
    step_seconds.json if it has branches, beside its rows.
    """
    options = SimpleNamespace(**locals())
    if models and models[0].endswith((".yaml", ".yml")):
        if len(models) > 1:
            context.fail("expected one grid file, or models")
        check_grid_file(Path(models[0]))
        with slow_imports():
            from ..training.experiments.timings import time_grid
        time_grid(Path(models[0]), rounds)
        return
    check_bench(context.params)
    with slow_imports():
        from ..training.benchmarking import bench as measure
    measure(options)


@commands.command(cls=Command, rich_help_panel=EXPERIMENTS)
def study(
    name: Annotated[
        str, typer.Argument(help=f"{', '.join(STUDY_NAMES[:-1])} or {STUDY_NAMES[-1]}.", callback=check_study)
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A run of two minutes at most that only checks the code.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="New folder. [default: runs/studies/NAME]")] = None,
) -> None:
    """Test the statements of a paper: verdicts, numbers and a figure, in one to seventy minutes."""
    output = output or Path("runs/studies") / name
    check_new(output)
    with slow_imports():
        from ..training.studies.study import run_study
    run_study(name, quick, output)


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def publish(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="GRID.yaml|RUN",
            help="Grid file, or a run that taught an encoder from its parent. [default: renew every published folder]",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of a RUN: its folder in model_cards/.")] = None,
    parent: Annotated[str | None, typer.Option(help="Of a RUN: folder or Hub id of the encoder that was cut.")] = None,
    base_model: Annotated[str | None, typer.Option(help="Hub id of a --parent that is a folder.")] = None,
    texts: Annotated[str | None, typer.Option(help="Of a RUN: sources of its sentences, for the card.")] = None,
    data_files: DataFiles = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Publish existing folders from their runs again.")
    ] = False,
    license: License = None,
    rounds: Annotated[int, typer.Option(min=3, help="Of a RUN: turns of the timing.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="Of a RUN: of PyTorch and onnxruntime.")] = 1,
) -> None:
    """Publish the runs of a grid, or a sentence encoder, as folders of model_cards/, ready for the Hub.

    Example: leaner publish runs/recovered --name minilm-4-layers --parent sentence-transformers/all-MiniLM-L6-v2
    """
    if source is None and (data_files or replace or license):
        context.fail("--data-files, --replace and --license need a grid file or a run")
    if source is None or source.suffix in (".yaml", ".yml"):
        if source is not None:
            check_grid_file(source)
        with slow_imports():
            from ..training.publishing.publish import publish_all
        publish_all(source, data_files or [], replace, license)
        return
    if name is None or parent is None:
        context.fail("a run needs --name and --parent")
    check_folders([source])
    check_trained(parent)
    base_model = base_model_of(base_model, parent)
    with slow_imports():
        from ..training.publishing.encoders import Origin, publish_encoder
        from ..training.publishing.index import write_index
    origin = Origin(source, parent, base_model, license, texts)
    print(publish_encoder(name, origin, data_files or [], rounds, threads, replace))
    print(write_index(Path("model_cards")))


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def verify(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Published folders. [default: all]", callback=check_folders)
    ] = None,
    data_files: Annotated[
        list[str] | None,
        typer.Option("--data-files", "--data", metavar="NAME=FOLDER ...", help="Local copies of datasets."),
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Use only the first examples.")] = False,
) -> None:
    """Recompute the numbers of published cards from the weights."""
    with slow_imports():
        from ..training.publishing.verify import verify_all
    verify_all(folders or [], data_files or [], short)


@commands.command(cls=Command, rich_help_panel=PUBLISHING)
def push(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a model, such as a run or what leaner slim wrote.")
    ] = None,
    repository: Annotated[str | None, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.")] = None,
    every: Annotated[
        str | None, typer.Option("--all", metavar="OWNER", help="Every folder of model_cards/, and a collection.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would change.")] = False,
    private: Annotated[bool | None, typer.Option("--private", help="Create the repository as a private one.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch; created if it does not exist. [default: main]")] = None,
) -> None:
    """Send a model to the Hub in one commit, without the state of its training."""
    if every is None and repository is None:
        context.fail("expected FOLDER OWNER/NAME, or --all OWNER")
    if every is not None and folder is not None:
        context.fail("--all OWNER sends every folder of model_cards/ and takes no FOLDER")
    if folder is not None:
        check_folders([folder])
    with slow_imports():
        from ..training.publishing.push import push as push_folder
        from ..training.publishing.push import push_all
    if every is not None:
        push_all(every, dry_run, private, revision)
    else:
        push_folder(folder, repository, dry_run, private, revision)
