"""The `leaner` command. Each subcommand is a few lines over a function of the package.

Nothing here imports torch or transformers before a command's words are known to be right: help and typing errors are
answered at once.
"""

import atexit
import json
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..registry import baseline_of, check_family, check_shape, did_you_mean_path, shape_names
from ..support.interrupts import leave_at_once, leave_in_order


PACKAGE = "modeling_leaner"
app = typer.Typer(no_args_is_help=True, add_completion=False, help="The LeanViT, LeanBERT and LeanGPT model family.")


def fail(error: Exception | str) -> None:
    """One clear line on stderr, exit status 1."""
    Console(stderr=True, soft_wrap=True).print(f"leaner: {error}", style="red", markup=False, highlight=False)
    raise typer.Exit(1)


def library(module: str, models: bool = True) -> ModuleType:
    """A module of the package; with `models` the family is registered with the Auto classes, which takes seconds."""
    leave_at_once()
    if models:
        import_module(".family", PACKAGE)
    imported = import_module(module, PACKAGE)
    leave_in_order()
    return imported


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"leaner {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def shape_row(name: str) -> dict[str, object]:
    """The row of one named shape in `leaner shapes`; FLOPs are forward, at the stated length."""
    from ..shapes import load_shape

    config = load_shape(name)
    count = config.count_parameters()
    flops = config.count_flops()
    baseline = baseline_of(name)
    ratio = count.total / load_shape(baseline).count_parameters().total if baseline else None
    return {
        "shape": name,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.heads_per_layer[0],
        "head_dim": config.head_dim,
        "mlp": config.intermediate_size,
        "parameters": count.total,
        "parameters_without_embeddings": count.without_embeddings,
        "parameters_over_baseline": ratio,
        "length": flops.length,
        "flops_per_token": flops.forward / flops.length,
        "flops_per_sequence": flops.forward,
        "training_flops_per_sequence": flops.training_step,
        "kv_bytes_per_token": config.kv_bytes_per_token(),
    }


@app.command()
def shapes(
    family: Annotated[str | None, typer.Option(help="Only vit, bert or gpt.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """The named shapes: parameters, FLOPs per token, cache bytes per token, heads × head size."""
    try:
        if family is not None:
            check_family(family)
    except ValueError as error:
        fail(error)
    library(".shapes", models=False)
    rows = [shape_row(name) for name in shape_names() if family in (None, name.split("/")[0])]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    caption = "parameters: with the pretraining head. FLOPs: forward, matrix products, at length. KV: bf16."
    table = Table(caption=caption, box=None, padding=(0, 1, 0, 0), pad_edge=False)  # fits in 80 columns
    table.add_column("shape", no_wrap=True)
    for column in ("layers\n× width", "heads\n× size", "MLP", "para-\nmeters", "of\nbase", "at\nlength"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("FLOPs\n/token", "KV bytes\n/token"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ratio, cache = row["parameters_over_baseline"], row["kv_bytes_per_token"]
        table.add_row(
            row["shape"],
            f"{row['layers']}×{row['width']}",
            f"{row['heads']}×{row['head_dim']}",
            str(row["mlp"]),
            f"{row['parameters'] / 1e6:.2f}M",
            "–" if ratio is None else f"{100 * ratio:.0f}%",
            str(row["length"]),
            f"{row['flops_per_token'] / 1e6:.1f}M",
            "–" if cache is None else f"{cache:,}",
        )
    Console(width=80).print(table)


@app.command()
def plan(
    context: typer.Context,
    family: Annotated[str | None, typer.Option(help="vit, bert or gpt; left out, that of --like.")] = None,
    params: Annotated[str | None, typer.Option(help="Parameters to reach, as 30M.")] = None,
    flops: Annotated[str | None, typer.Option(help="Forward FLOPs of one token or image, at most, as 5G.")] = None,
    memory: Annotated[str | None, typer.Option(help="Tensors of a training step, at most, as 8GB.")] = None,
    latency: Annotated[str | None, typer.Option(help="Forward time of one item, at most, as 5ms.")] = None,
    like: Annotated[str | None, typer.Option(help="Starting point: a shape, config file, folder or Hub id.")] = None,
    equal: Annotated[str | None, typer.Option(help="Equal to --like: params (the default) or flops.")] = None,
    layers: Annotated[int | None, typer.Option(help="Fix the number of layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Fix the width.")] = None,
    heads: Annotated[int | None, typer.Option(help="Fix the number of heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Fix the head size.")] = None,
    mlp: Annotated[int | None, typer.Option(help="Fix the MLP's width.")] = None,
    mlp_ratio: Annotated[float | None, typer.Option(help="Fix the MLP's width over the width.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence (text); left out, the longest.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels of an image's side (vit).")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Pixels of a patch's side (vit).")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary (text).")] = None,
    batch: Annotated[int, typer.Option(help="Items of a training step, for its memory and time.")] = 8,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    attention: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    device: Annotated[str, typer.Option(help="cpu or gpu: which keeps what, for the memory.")] = "cpu",
    rows: Annotated[
        int | None, typer.Option(help="At most so many shapes; left out, 6, and all with --json alone.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure time and memory on this machine.")] = False,
    advice: Annotated[bool, typer.Option("--advice", help="Print the verdicts of all twelve sources.")] = False,
    write: Annotated[str | None, typer.Option(help="Save a shape as NAME.json here, or to a path.")] = None,
    pick: Annotated[int | None, typer.Option(help="The row that --write saves; left out, the first.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw NAME.png and NAME.svg, new files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Shapes for a budget or equal to a starting point: what they cost, and what the literature advises."""
    try:
        if family is not None:
            check_family(family)
        if like is not None:
            check_shape(like)
    except (ValueError, OSError) as error:
        fail(f"--like {like}: {error}" if "--family" not in str(error) else error)
    command = library(".cli.plan", models=measure)
    given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]
    try:
        command.run(command.Options(**context.params, given=tuple(given)))
    except (ValueError, OSError) as error:
        fail(one_line(error))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    ignore: Annotated[
        list[str] | None, typer.Option(help="Pattern of tensors that may be missing or left over, as 'cls.*'.")
    ] = None,
) -> None:
    """Turn a checkpoint of transformers into its exact Lean relative, or back."""
    existed = output.exists()
    conversion = library(".conversion")
    library(".support.quiet").quiet_libraries()
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Ctrl-C while Python ends changes no status
    try:
        library(".hub").require_source(source)
        model = conversion.convert_checkpoint(source, output, ignore or [])
        typer.echo(f"{output}: {type(model).__name__}, {model.num_parameters() / 1e6:.1f}M parameters")
    except (ValueError, OSError) as error:
        fail(one_line(error))
    except KeyboardInterrupt:
        if existed or not output.exists():  # the folder appears whole or not at all
            raise typer.Exit(130) from None


PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
TRAINING_COMMANDS = {  # module of `training` whose main reads the words itself, and its line in the list of commands
    "train": ("train", "Train a shape by a recipe: leaner train RECIPE --shape NAME [--key value ...]."),
    "evaluate": ("evaluate", "Evaluate a model: leaner evaluate MODEL [--key value ...]; the last line is JSON."),
    "sweep": ("sweep", "Train a grid of shapes, seeds and learning rates by one recipe: leaner sweep GRID.yaml."),
    "latency": ("latency", "Measure inference of a grid's shapes in turns: leaner latency GRID.yaml."),
    "step-time": ("step_time", "Measure training steps of a grid's shapes in turns: leaner step-time GRID.yaml."),
    "publish": ("publish", "Copy a grid's runs to model_cards/, ready for the Hub: leaner publish GRID.yaml."),
    "card": ("published", "Write a folder's model card from its config and results: leaner card FOLDER."),
    "verify-cards": ("verify", "Recompute a card's numbers from its weights: leaner verify-cards [FOLDER ...]."),
    "tokenizer": ("tokenizer", "Train a tokenizer: leaner tokenizer --kind KIND --output_dir DIR [--key value ...]."),
}
OF_GRIDS = ("sweep", "latency", "step-time", "publish")


def check_words(command: str, words: list[str]) -> None:
    """Raises ValueError for a typing error that can be seen before anything slow is imported."""
    from ..training import help

    if command in OF_GRIDS and words and not words[0].startswith("--"):
        path = Path(words[0])
        if not path.exists():
            raise ValueError(f"{path}: no such grid file{did_you_mean_path(path)}")
    if command in help.HELP and command not in help.WITH_KEYS:
        help.check_options(command, words)
        return
    pairs = " ".join(words).replace("=", " ").split(" ")
    for option, value in zip(pairs, pairs[1:]):
        if option == "--shape":
            check_shape(value)
    from ..training.arguments import SettingsParser, read_recipe  # imports torch

    if command == "train" and words and not words[0].startswith("--"):
        read_recipe(words[0])
    keys = ["--data_files" if word == "--data" else word for word in words]
    SettingsParser().parse_tokens(keys if not keys or keys[0].startswith("--") else keys[1:])


def _pass_on(command: str, module: str) -> Callable[[typer.Context], None]:
    """A command that hands its words to `main` of a module of `training`, imported only then."""

    def run(context: typer.Context) -> None:
        words = context.args
        if "--help" in words or "-h" in words:
            typer.echo(import_module(".training.help", PACKAGE).help_of(command))
            return
        try:
            check_words(command, words)
            library(f".training.{module}").main(words)
        except (ValueError, OSError) as error:
            typer.echo(f"leaner {command}: {one_line(error)}", err=True)
            raise typer.Exit(1) from error

    return run


for _name, (_module, _help) in TRAINING_COMMANDS.items():
    app.command(_name, context_settings=PASSED_ON, help=_help)(_pass_on(_name, _module))


if __name__ == "__main__":
    app()
