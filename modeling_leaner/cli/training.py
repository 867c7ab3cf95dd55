"""The commands whose work is in the folder training/, which is installed as `modeling_leaner.training`.

Here are their options, and what is checked before anything slow is imported. The further keys of `leaner train` are
those of `training.settings.RecipeArguments`.
"""

from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from ..terminal import plain_console
from ..training.reading import RECIPE_NAMES, read_recipe
from .command import RESEARCH, Command, DataFiles, Json, KeyCommand, License, named, new_path, slow_imports, trained


Study = Literal["conditioning", "heads-optimization", "low-rank"]  # of training/studies/study.py
Phase = StrEnum("Phase", "training inference")
Dtype = StrEnum("Dtype", "float32 bfloat16 float16")
ALL_PHASES = list(Phase)
BENCH_SHAPES = ["vit/tiny", "bert/tiny", "gpt/tiny"]
BENCH_ATTENTIONS = ["lean", "sdpa", "eager"]
BENCH_DTYPES = [Dtype.float32]
BENCH_BATCH = [8]

commands = typer.Typer()


Threads = Annotated[int | None, Option(min=1, help="PyTorch threads.", show_default="PyTorch's choice")]


class TrainCommand(KeyCommand):
    """`leaner train`, whose help lists this package's keys; transformers documents its own."""

    def format_help(self, context: typer.Context, formatter: Any) -> None:
        super().format_help(context, formatter)
        from ..training.settings import RecipeArguments

        console = plain_console()
        console.print(f"Recipes: {', '.join(RECIPE_NAMES)}; or a file of your own.")
        console.print("Every field of transformers.TrainingArguments is a key; beside them, or with another default:")
        table = Table(box=None, show_header=False)
        above = {parameter.name for parameter in self.params}
        settings = {setting.name: setting for setting in fields(RecipeArguments)}
        for key in RecipeArguments.__annotations__:  # in their order, which is not that of `fields`
            if key not in above:
                default = settings[key].default
                stated = f" [default: {default}]" if isinstance(default, bool | int | float | str) else ""
                table.add_row(f"--{key}", Text(settings[key].metadata["help"] + stated))
        console.print(table)


@commands.command(cls=TrainCommand)
def train(
    context: typer.Context,
    recipe: Annotated[str | None, Argument(help="Name or file; first, if given.")] = None,
    shape: Annotated[str | None, Option(help="Named shape, folder, config file or Hub id.", callback=named)] = None,
    output_dir: Annotated[
        str | None, Option(help="Folder of the run.", show_default="runs/RECIPE/SHAPE-seedN")
    ] = None,
    data_files: DataFiles = None,
    resume: Annotated[bool, Option("--resume", help="Continue from the last whole checkpoint.")] = False,
) -> None:
    """Train a shape by a recipe.

    Example: leaner train digits --shape vit/nano --max_steps 100
    """
    # `KeyCommand` leaves all options in context.args, as a recipe's keys; those declared above are only checked here.
    if recipe is not None:
        read_recipe(recipe)
    with slow_imports():
        from ..training.train import train as train_shape
    train_shape(recipe, context.args)


@commands.command(cls=KeyCommand)
def evaluate(
    context: typer.Context,
    models: Annotated[list[str], Argument(metavar="MODEL", help="Folder or Hub id of a model.", callback=trained)],
    task: Annotated[str | None, Option(help="embedding compares encoders.", show_default="the model's")] = None,
    dataset: Annotated[str | None, Option(help="Built-in data, or a Hub id.", show_default="the recipe's")] = None,
    data_files: DataFiles = None,
    eval_split: Annotated[str | None, Option(help="Split to evaluate on.", show_default="the recipe's")] = None,
    max_eval_rows: Annotated[int | None, Option(min=1, help="Only the first rows.")] = None,
    rounds: Annotated[int, Option(help="With --task embedding: rounds of the timing, 0 for none.")] = 5,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model, or compare sentence encoders as MTEB does.

    Example: leaner evaluate runs/digits --data validation=my-digits.parquet

    One model: task and data are those of its recipe.yaml; without one, give --data or --dataset. Further keys are
    those of leaner train.

    Encoders: leaner evaluate ENCODER [ENCODER ...] --task embedding [--data NAME[=PATH] ...] with the names sts12 to
    sts16, sick_r, stsb, stsb_test, qnli, sst2, sentences. The others are compared with the first encoder.
    The path of an .onnx file is an encoder, too.
    """
    are_encoders = len(models) > 1 or models[0].endswith(".onnx") or Path(models[0], "modules.json").is_file()
    if threads is not None:
        with slow_imports():
            import torch
        torch.set_num_threads(threads)
    if task == "embedding" or task is None and are_encoders:
        for word in context.args:
            if word.startswith("--") and word.partition("=")[0] not in ("--task", "--data_files"):
                raise ValueError(f"{word}: not an option of --task embedding")
        with slow_imports():
            from ..training.running.encoder_evaluation import evaluate_encoders
        evaluate_encoders(models, data_files or [], rounds, as_json)
        return
    if len(models) > 1:
        raise ValueError(f"--task {task}: takes one model; several are compared by --task embedding alone")
    with slow_imports():
        from ..training.running.evaluation import print_evaluation
    print_evaluation(models[0], context.args, as_json)


@commands.command(cls=Command)
def tokenizer(
    kind: Annotated[Literal["byte-bpe", "wordpiece", "bytes", "words"], Option(help="What a token is.")],
    output_dir: Annotated[Path, Option(help="Folder to write; it must not exist.", callback=new_path)],
    family: Annotated[Literal["bert", "gpt"], Option(help="Whose special tokens.")] = "bert",
    vocab_size: Annotated[int, Option(min=1, help="Maximum tokens, special tokens included.")] = 8192,
    max_length: Annotated[int, Option(min=1, help="Tokens of the longest input.")] = 512,
    dataset: Annotated[str | None, Option(help="Built-in data, or a Hub id.")] = None,
    dataset_config: Annotated[str | None, Option(help="Configuration of a Hub dataset.")] = None,
    data_files: DataFiles = None,
    split: Annotated[str, Option(help="Split of the data.")] = "train",
    text_column: Annotated[
        str | None, Option(help="Column of the texts.", show_default="text, sentence, question ... or the only one")
    ] = None,
) -> None:
    """Train a tokenizer on a column of text.

    Example: leaner tokenizer --kind wordpiece --data texts.txt --output-dir my-tokenizer
    """
    with slow_imports():
        from ..files import whole_folder
        from ..training.data.sources import find_text_column, load_split
        from ..training.data.tokenizer import train_tokenizer
    rows = load_split(dataset, split, dataset_config=dataset_config, data_files=data_files)
    texts = rows[find_text_column(rows, text_column, "--text-column")]
    made = train_tokenizer(texts, kind, vocab_size, max_length, family)
    with whole_folder(output_dir) as folder:
        made.save_pretrained(folder)
    typer.echo(f"{output_dir}: {kind}, {len(made):,} tokens")
    typer.echo(f"Next: leaner train RECIPE --shape {family}/nano --tokenizer {output_dir}")


@commands.command(cls=Command, rich_help_panel=RESEARCH)
def sweep(
    context: typer.Context,
    grid: Annotated[Path, Argument(metavar="GRID.yaml", help="The grid file.", exists=True, dir_okay=False)],
    jobs: Annotated[int, Option(min=1, help="Runs at the same time; they share the machine's cores.")] = 1,
    data_files: DataFiles = None,
    output_dir: Annotated[
        Path | None,
        Option(help="Folder of the runs; in a new one all are trained again.", show_default="the grid's"),
    ] = None,
    summary: Annotated[bool, Option("--summary", help="Only summarise the runs that are there.")] = False,
    engine: Annotated[Literal["processes", "ray"], Option(help="This machine, or a Ray cluster.")] = "processes",
) -> None:
    """Train a grid of shapes, seeds and rates; compare the shapes.

    Example: leaner sweep my-grid.yaml --jobs 2
    """
    from ..training.experiments.grid import load_grid  # takes a tenth of a second

    publishes = load_grid(grid).publish
    with slow_imports():
        from ..training.experiments.sweep import sweep as run_grid
    if not run_grid(grid, jobs, data_files or [], output_dir, summary, engine):
        context.exit(1)
    if publishes:
        typer.echo(f"Next: leaner publish {grid}", err=True)


@commands.command(cls=Command, rich_help_panel=RESEARCH)
def bench(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="MODEL",
            help="Shapes, folders or Hub ids to time against each other (inference, without heads), or one grid file.",
        ),
    ] = None,
    shapes: Annotated[list[str], Option(metavar="SHAPE ...", help="Shapes to time.")] = BENCH_SHAPES,
    phases: Annotated[list[Phase], Option(metavar="PHASE ...", help="training, inference.")] = ALL_PHASES,
    dtypes: Annotated[list[Dtype], Option(metavar="DTYPE ...", help="float32, bfloat16, float16.")] = BENCH_DTYPES,
    attentions: Annotated[list[str], Option(metavar="NAME ...", help="attn_implementation.")] = BENCH_ATTENTIONS,
    batch: Annotated[list[int], Option(min=1, metavar="N ...", help="Examples of a step.")] = BENCH_BATCH,
    length: Annotated[
        list[int] | None, Option(min=1, metavar="N ...", help="Tokens of a text.", show_default="the longest, to 512")
    ] = None,
    device: Annotated[Literal["cpu", "gpu"], Option(help="Where the models run.")] = "cpu",
    threads: Threads = None,
    rounds: Annotated[int, Option(min=3, help="How often every model takes its turn.")] = 20,
    seconds: Annotated[float, Option(min=0, help="Stop once a model was timed for so long.")] = 30,
    csv: Annotated[Path | None, Option(help="New file for the cells and their provenance.", callback=new_path)] = None,
) -> None:
    """Time shapes against transformers, or models in turns.

    Example: leaner bench --shapes bert/tiny --phases inference

    Every combination of the lists is measured. A grid file with branches times their training steps and writes
    step_seconds.json beside its rows.
    """
    if models and models[0].endswith((".yaml", ".yml")):
        if len(models) > 1:
            context.fail("expected one grid file, or models")
        with slow_imports():
            from ..training.experiments.branches import time_steps
        time_steps(Path(models[0]), rounds)
        return
    for shape in [*shapes, *(models or [])]:
        named(shape)
    with slow_imports():
        from ..training.benchmarking import bench as measure
    measure(SimpleNamespace(**context.params))


@commands.command(cls=Command, rich_help_panel=RESEARCH)
def study(
    name: Annotated[Study, Argument(help="The study.")],
    quick: Annotated[bool, Option("--quick", help="A run of at most two minutes that only checks the code.")] = False,
    output: Annotated[
        Path | None, Option(help="New folder.", show_default="runs/studies/NAME", callback=new_path)
    ] = None,
) -> None:
    """Test the statements of a paper, in one to seventy minutes.

    Example: leaner study low-rank --quick
    """
    output = output or new_path(Path("runs/studies") / name)
    with slow_imports():
        from ..training.studies.study import run_study
    run_study(name, quick, output)


@commands.command(cls=Command, rich_help_panel=RESEARCH)
def publish(
    context: typer.Context,
    source: Annotated[
        Path | None,
        Argument(
            metavar="GRID.yaml|RUN",
            exists=True,
            help="Grid file, or a run that distilled an encoder.",
            show_default="renew every published folder",
        ),
    ] = None,
    name: Annotated[str | None, Option(help="Of a RUN: its folder in model_cards/.")] = None,
    parent: Annotated[str | None, Option(help="Of a RUN: the encoder that was cut.", callback=trained)] = None,
    base_model: Annotated[str | None, Option(help="Hub id of a --parent that is a folder.")] = None,
    texts: Annotated[str | None, Option(help="Of a RUN: sources of its sentences, for the card.")] = None,
    data_files: DataFiles = None,
    replace: Annotated[bool, Option("--replace", help="Publish existing folders from their runs again.")] = False,
    license: License = None,
) -> None:
    """Make folders of model_cards/ from a grid's runs or an encoder.

    Example: leaner publish runs/recovered --name minilm-4-layers --parent sentence-transformers/all-MiniLM-L6-v2
    """
    if source is None and (data_files or replace or license):
        context.fail("--data-files, --replace and --license need a grid file or a run")
    if source is None or source.suffix in (".yaml", ".yml"):
        with slow_imports():
            from ..training.publishing.publish import publish_all
        publish_all(source, data_files or [], replace, license)
        typer.echo("Next: leaner verify, then leaner push model_cards/NAME OWNER/NAME")
        return
    if name is None or parent is None or base_model is None and Path(parent).exists():
        context.fail("a run needs --name and --parent, and a parent that is a folder --base-model, for the card")
    base_model = base_model or parent
    with slow_imports():
        from ..training.publishing.encoders import publish_encoder
        from ..training.publishing.index import write_index
    folder = publish_encoder(source, name, parent, base_model, data_files or [], license, texts, replace)
    typer.echo(f"{folder}\n{write_index(Path('model_cards'))}")
    typer.echo(f"Next: leaner verify {folder}, then leaner push {folder} OWNER/{name}")


@commands.command(cls=Command, rich_help_panel=RESEARCH)
def verify(
    folders: Annotated[
        list[Path] | None,
        Argument(help="Published folders.", show_default="all", exists=True, file_okay=False),
    ] = None,
    data_files: Annotated[
        list[str] | None,
        Option("--data-files", "--data", metavar="NAME=FOLDER ...", help="Local copies of datasets."),
    ] = None,
    short: Annotated[bool, Option("--short", help="Use only the first examples.")] = False,
) -> None:
    """Recompute the numbers of published cards from the weights.

    Example: leaner verify model_cards/leanbert-mini-listops
    """
    with slow_imports():
        from ..training.publishing.verify import verify_all
    verify_all(folders or [], data_files or [], short)
    typer.echo("Next: leaner push FOLDER OWNER/NAME", err=True)


@commands.command(cls=Command)
def push(
    context: typer.Context,
    folder: Annotated[
        Path | None, Argument(help="A model, such as a run or slim's OUT.", exists=True, file_okay=False)
    ] = None,
    repository: Annotated[str | None, Argument(metavar="OWNER/NAME", help="Repository on the Hub.")] = None,
    every: Annotated[str | None, Option("--all", metavar="OWNER", help="Every folder of model_cards/.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list what would change.")] = False,
    private: Annotated[bool | None, Option("--private", help="Create the repository as a private one.")] = None,
) -> None:
    """Send a model to the Hub in one commit.

    Example: leaner push runs/digits OWNER/my-digits --dry-run
    """
    if every is None and "/" not in (repository or ""):  # the Hub itself takes a name without owner
        context.fail("expected FOLDER OWNER/NAME, or --all OWNER")
    if every is not None and folder is not None:
        context.fail("--all OWNER sends every folder of model_cards/ and takes no FOLDER")
    with slow_imports():
        from ..training.publishing.folders import CARDS, published_folders
        from ..training.publishing.push import push as push_folder
    folders = [folder] if every is None else published_folders(CARDS)
    if not folders:
        context.fail("--all: no published folder; expected a clone of the project here")
    for path in folders:
        push_folder(path, repository or f"{every}/{path.name}", dry_run, private)
    if dry_run:
        typer.echo("Next: the same command without --dry-run")
