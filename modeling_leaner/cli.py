"""The `leaner` command. Each subcommand is a few lines over a function of the package."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .shapes import CONFIG_CLASSES, baseline_of, load_shape, shape_names


app = typer.Typer(no_args_is_help=True, add_completion=False, help="The LeanViT, LeanBERT and LeanGPT model family.")


def fail(error: Exception | str) -> None:
    """One clear line on stderr, exit status 1."""
    Console(stderr=True, soft_wrap=True).print(f"leaner: {error}", style="red", markup=False, highlight=False)
    raise typer.Exit(1)


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
    """What `leaner shapes` says of one named shape; FLOPs are forward, at the stated length."""
    config = load_shape(name)
    count, flops = config.count_parameters(), config.count_flops()
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
    if family is not None and family not in CONFIG_CLASSES:
        fail(f"--family {family}: expected one of {', '.join(CONFIG_CLASSES)}")
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
    rows: Annotated[int | None, typer.Option(help="At most so many shapes; with --measure 6, else all.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure time and memory on this machine.")] = False,
    write: Annotated[str | None, typer.Option(help="Save a shape under a name, or to a path or file.json.")] = None,
    pick: Annotated[int | None, typer.Option(help="The row that --write saves; left out, the first.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw NAME.png and NAME.svg, new files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Shapes for a budget or equal to a starting point: what they cost, and what the literature advises."""
    from .plan_command import Options, run

    try:
        run(Options(**context.params))
    except (ValueError, OSError) as error:
        fail(" ".join(str(error).split()))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    ignore: Annotated[
        list[str] | None, typer.Option(help="Pattern of tensors that may be missing or left over, as 'cls.*'.")
    ] = None,
) -> None:
    """Turn a checkpoint of transformers into its exact Lean relative, or back."""
    from .conversion import convert_checkpoint

    try:
        model = convert_checkpoint(source, output, ignore or [])
    except (ValueError, OSError) as error:
        fail(" ".join(str(error).split()))
    typer.echo(f"{output}: {type(model).__name__}, {model.num_parameters() / 1e6:.1f}M parameters")


PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
TRAINING_COMMANDS = {  # module of `training` whose main parses the words itself, and what help says of it
    "train": ("train", "Train a shape by a recipe: leaner train RECIPE --shape NAME [--key value ...]."),
    "evaluate": ("evaluate", "Evaluate a model: leaner evaluate MODEL [--key value ...]; the last line is JSON."),
    "sweep": ("sweep", "Train a grid of shapes, seeds and learning rates by one recipe: leaner sweep GRID.yaml."),
    "latency": ("latency", "Measure inference of a grid's shapes in turns: leaner latency GRID.yaml."),
    "guesses": ("baselines", "Score simple guesses on a grid's task, to be beaten: leaner guesses GRID.yaml."),
    "publish": ("publish", "Copy a grid's runs to model_cards/, ready for the Hub: leaner publish GRID.yaml."),
    "card": ("cards", "Write a folder's model card from its config and results: leaner card FOLDER."),
    "verify-cards": ("verify", "Recompute a card's numbers from its weights: leaner verify-cards [FOLDER ...]."),
}


def _pass_on(module: str) -> Callable[[typer.Context], None]:
    """A command that hands its words to `main` of a module of `training`, imported only then."""

    def run(context: typer.Context) -> None:
        import_module(f".training.{module}", __package__).main(context.args)

    return run


for _name, (_module, _help) in TRAINING_COMMANDS.items():
    app.command(_name, context_settings=PASSED_ON, help=_help)(_pass_on(_module))


@app.command(context_settings=PASSED_ON)
def tokenizer(context: typer.Context) -> None:
    """Train a tokenizer: leaner tokenizer --kind byte-bpe --output_dir DIR --dataset NAME [--key value ...]."""
    try:
        _pass_on("tokenizer")(context)
    except (ValueError, OSError) as error:
        fail(" ".join(str(error).split()))


if __name__ == "__main__":
    app()
