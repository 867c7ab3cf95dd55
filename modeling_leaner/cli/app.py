"""The `leaner` command: models and shapes; train, evaluate, sweep, publish, push and others are in `training.py`.

Each command is its options and a call of one function of the package.

Nothing here imports torch or transformers before a command's arguments are known to be right: help and mistakes are
answered at once.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from .. import __version__
from ..files import read_json
from ..terminal import plain_console
from ..training.reading import FORMATS, is_there
from .command import (
    RESEARCH,
    Command,
    CommandGroup,
    Json,
    NewFolder,
    Trained,
    layer_numbers,
    named,
    new_path,
    slow_imports,
)
from .training import commands


HELP = """Make a trained BERT, ViT or GPT-2 smaller and faster, or train one of any shape.

Start with `leaner slim --help` or `leaner plan --help`. Options may be written --two-words or --two_words."""

Family = Literal["vit", "bert", "gpt"]

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    help=HELP,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": lambda key: key.replace("_", "-"),
    },
)


def print_version(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(f"leaner {__version__}")
        context.exit()


@app.callback()
def main(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command(cls=Command)
def shapes(family: Annotated[Family | None, Option(help="Only one family.")] = None, as_json: Json = False) -> None:
    """List the named shapes with their parameters and costs.

    Example: leaner shapes --family gpt
    """
    with slow_imports():
        from .plan import shape_rows, shape_table
    rows = shape_rows(family)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        plain_console(width=80).print(shape_table(rows))
        name = rows[0]["shape"]
        typer.echo(f"\nNext: leaner plan --like {name} --layers 4, or leaner train RECIPE --shape {name}")


@app.command(cls=Command)
def plan(
    context: typer.Context,
    family: Annotated[Family | None, Option(help="Model family; not needed with --like.")] = None,
    like: Annotated[str | None, Option(help="Starting point: shape, file, folder or Hub id.", callback=named)] = None,
    params: Annotated[str | None, Option(help="Number of parameters to reach, such as 30M.")] = None,
    flops: Annotated[str | None, Option(help="Forward FLOPs per token or image to reach, such as 5G.")] = None,
    layers: Annotated[int | None, Option(min=1, help="Fix the number of layers.")] = None,
    width: Annotated[int | None, Option(min=1, help="Fix the width.")] = None,
    heads: Annotated[int | None, Option(min=1, help="Fix the number of heads.")] = None,
    head_dim: Annotated[int | None, Option(help="Fix the head size.")] = None,
    mlp: Annotated[int | None, Option(min=1, help="Fix the MLP's width.")] = None,
    length: Annotated[
        int | None, Option(min=1, max=2**24, help="Tokens per sequence (text).", show_default="the longest")
    ] = None,
    vocab_size: Annotated[int | None, Option(min=1, max=2**24, help="Vocabulary size (text).")] = None,
    write: Annotated[Path | None, Option(help="New .json file for the recommended shape.", callback=new_path)] = None,
    as_json: Json = False,
) -> None:
    """Find shapes of a size, and recommend one.

    Example: leaner plan --family gpt --params 30M --vocab-size 8192 --length 512
    """
    with slow_imports():
        from .plan import run
    run(**context.params)


@app.command(cls=Command)
def convert(source: Trained, output: NewFolder) -> None:
    """Convert a transformers checkpoint exactly to Lean, or back.

    Example: leaner convert google-bert/bert-base-uncased lean-bert
    """
    with slow_imports():
        from ..conversion import convert_checkpoint
    model = convert_checkpoint(source, output)
    name = type(model).__name__
    typer.echo(f"{output}: {name}, {model.num_parameters() / 1e6:.1f}M parameters")
    package = "modeling_leaner" if name.startswith("Lean") else "transformers"
    typer.echo(f'Next, in Python: {package}.{name}.from_pretrained("{output}")')


@app.command(cls=Command)
def slim(
    context: typer.Context,
    source: Trained,
    output: NewFolder,
    data: Annotated[
        list[str], Option(metavar="PATH ...", help="Files, a folder or a dataset like the model's inputs.")
    ],
    speedup: Annotated[
        float | None, Option(min=1.05, help="Speed on this machine over the original's, such as 2.")
    ] = None,
    keep: Annotated[float | None, Option(min=0, max=1, help="Exit with status 3 if it keeps less, say 0.99.")] = None,
    minutes: Annotated[float, Option(min=0.01, help="Minutes of training, about; the rest takes some more.")] = 60,
    column: Annotated[
        str | None, Option(help="Column to read.", show_default="text, sentence, or the only one")
    ] = None,
    label_column: Annotated[str | None, Option(help="Column of classes; a classifier learns from it, too.")] = None,
    layers: Annotated[int | None, Option(help="Number of layers to keep, instead of --speedup.")] = None,
    keep_layers: Annotated[
        str | None, Option(metavar="<str>", help="Layers to keep, such as 0,4,5.", parser=layer_numbers)
    ] = None,
    heads: Annotated[int | None, Option(help="Heads per layer; added ones start without effect.")] = None,
    total_heads: Annotated[int | None, Option(help="Heads over all layers together.")] = None,
    intermediate_size: Annotated[int | None, Option(help="Neurons per MLP.")] = None,
    vocab_size: Annotated[
        int | None, Option(help="Tokens to keep, the commonest of --data; alone, with --no-training.")
    ] = None,
    max_length: Annotated[int, Option(min=2, help="Longest text in tokens.")] = 128,
    no_training: Annotated[bool, Option("--no-training", help="Only remove.")] = False,
    lean: Annotated[bool, Option("--lean", help="Write this family's class instead of transformers' own.")] = False,
    base_model: Annotated[str | None, Option(help="Hub id of a MODEL that is a folder, for the card.")] = None,
    license: Annotated[
        str | None, Option(help="Licence of the weights, for the card.", show_default="the original's")
    ] = None,
) -> None:
    """Make a faster model: remove layers, distil, compare. Give --speedup, or what to keep.

    Example: leaner slim sentence-transformers/all-MiniLM-L6-v2 fast --speedup 2 --data texts.csv
    """
    for path in data:
        is_file = Path(path).suffix.lower() in FORMATS  # any other name may be a dataset
        if is_file and not is_there(path) and not is_there(path.split("=", 1)[-1]):  # SPLIT=FILE
            raise ValueError(f"{path}: no such file or folder")
    of_layers = [each for each in (speedup, layers, keep_layers) if each is not None]
    others = [each for each in (heads, total_heads, intermediate_size) if each is not None]
    problem = None
    if vocab_size is not None:
        if of_layers or others or not no_training or (keep, label_column) != (None, None):
            problem = "--vocab-size: only with --no-training, and without --keep, --label-column or other cuts"
    elif len(of_layers) > 1:
        problem = "--speedup, --layers, --keep-layers: give one of them"
    elif not of_layers and not others:
        problem = "nothing to remove: give --speedup, --layers, --keep-layers, --heads, --total-heads, "
        problem += "--intermediate-size or --vocab-size"
    elif speedup is not None and Path(source).is_dir():
        config = read_json(Path(source, "config.json"))
        depth = config.get("num_hidden_layers", config.get("n_layer", 12))  # 12 is the default of all three families
        most = 1.2 * depth  # one layer, and a little by a narrower MLP
        if speedup >= most:
            problem = f"--speedup: expected below {most:g} (one of {depth} layers gives no more), got {speedup:g}"
    if problem:
        raise ValueError(problem)
    with slow_imports():
        from ..training.slim import Settings, run
    on_hub = None if Path(source).exists() else source
    settings = Settings(**context.params | {"base_model": base_model or on_hub})
    try:
        context.exit(run(settings))
    except KeyboardInterrupt:
        goes_on = f"continues from {settings.unfinished}" if settings.unfinished.exists() else "starts again"
        raise KeyboardInterrupt(f"interrupted; the same command {goes_on}") from None


@app.command(cls=Command)
def export(
    kind: Annotated[Literal["onnx"], Argument(help="An ONNX graph.")],
    source: Trained,
    output: NewFolder,
    int8: Annotated[bool, Option(help="Also write an ONNX file with 8-bit weights.")] = True,
    int4_embeddings: Annotated[
        bool, Option("--int4-embeddings", help="Word embeddings of that file in 4 bits, a smaller download.")
    ] = False,
) -> None:
    """Write a model as an ONNX graph, and compare both.

    Example: leaner export onnx sentence-transformers/all-MiniLM-L6-v2 minilm-onnx
    """
    with slow_imports():
        from ..exporting import export as export_model
        from ..planning.costs import human
    for each in export_model(source, output, int8, int4_embeddings):
        differs = "" if "quantized" in each["file"] else f"difference {each['difference']:.1e}, "
        typer.echo(f"{output / each['file']}: {human(each['bytes'])}B, {differs}cosine {each['cosine']:.6f}")
    typer.echo(f'Next, in Python: onnxruntime.InferenceSession("{output / "onnx/model.onnx"}")')


@app.command(cls=Command, rich_help_panel=RESEARCH)
def inspect(
    context: typer.Context,
    source: Trained,
    data: Annotated[
        list[str] | None,
        Option(
            "--data-files", "--data", metavar="PATH ...", help="Examples: a folder, files, or a built-in set's name."
        ),
    ] = None,
    column: Annotated[
        str | None, Option(help="Column of the texts or images.", show_default="the recipe's, or the only one")
    ] = None,
    rows: Annotated[int, Option(min=1, help="Number of examples.")] = 8,
    layers: Annotated[
        str | None,
        Option(
            metavar="<str>", help="Layers counted from 0, such as 0,4,5.", show_default="all", parser=layer_numbers
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the attention's conditioning and what each head does.

    Example: leaner inspect gpt2 --data texts.txt --rows 2
    """
    with slow_imports():
        from .inspect import run
    run(**context.params)


app.add_typer(commands)
