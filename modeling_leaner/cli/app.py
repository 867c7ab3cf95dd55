"""The `leaner` command. Each subcommand is a few lines over a function of the package.

Nothing here imports torch or transformers before a command's arguments are known to be right: help and typing errors
are answered at once.
"""

import atexit
import json
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import __version__
from ..process import INTERRUPTED
from ..terminal import plain_console
from .checks import (
    check_named,
    check_new,
    check_source,
    check_trained,
    parse_layers,
)
from .command import Command, dashed
from .errors import CommandGroup, print_error
from .lazy import slow_imports
from .training import License, commands


SHAPES = "Shapes"  # panels of the help
MODELS = "Models"
HELP = """The LeanViT, LeanBERT and LeanGPT model family.

Options may be written --two-words or --two_words."""


app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    help=HELP,
    context_settings={"token_normalize_func": dashed, "help_option_names": ["--help", "-h"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"leaner {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(cls=Command, rich_help_panel=SHAPES)
def shapes(
    family: Annotated[Literal["vit", "bert", "gpt"] | None, typer.Option(help="Only one family.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """The named shapes: parameters, FLOPs per token, cache bytes per token, heads × head size.

    Example: leaner shapes --family gpt
    """
    with slow_imports():
        from .shapes import shape_rows, shape_table
    rows = shape_rows(family)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        plain_console(width=80).print(shape_table(rows))
        name = rows[0]["shape"]
        typer.echo(f"\nNext: leaner plan --like {name} --layers 4, or leaner train RECIPE --shape {name}")


@app.command(cls=Command, rich_help_panel=SHAPES)
def plan(
    context: typer.Context,
    family: Annotated[
        Literal["vit", "bert", "gpt"] | None, typer.Option(help="Model family; not needed with --like.")
    ] = None,
    params: Annotated[str | None, typer.Option(help="Number of parameters to reach, such as 30M.")] = None,
    flops: Annotated[str | None, typer.Option(help="Maximum forward FLOPs per token or image, such as 5G.")] = None,
    memory: Annotated[str | None, typer.Option(help="Maximum memory of a training step, such as 8GB.")] = None,
    latency: Annotated[
        str | None, typer.Option(help="Maximum time per item, measured on this machine, such as 5ms.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="Starting point: a shape, config file, folder or Hub id.")] = None,
    layers: Annotated[int | None, typer.Option(help="Fix the number of layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Fix the width.")] = None,
    heads: Annotated[int | None, typer.Option(help="Fix the number of heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Fix the head size.")] = None,
    mlp: Annotated[int | None, typer.Option(help="Fix the MLP's width.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per sequence (text).", show_default="the longest")] = None,
    image_size: Annotated[int | None, typer.Option(help="Image size in pixels (vit).")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Patch size in pixels (vit).")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary size (text).")] = None,
    batch: Annotated[int, typer.Option(min=1, max=2**24, help="Batch size of a training step.")] = 8,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Data type of weights and states.")
    ] = "float32",
    attention: Annotated[Literal["lean", "sdpa", "eager"], typer.Option(help="Attention implementation.")] = "lean",
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="Device of a training step.")] = "cpu",
    measure: Annotated[bool, typer.Option("--measure", help="Measure time and memory on this machine.")] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Print what each published source says about each row.")
    ] = False,
    write: Annotated[str | None, typer.Option(help="Save a shape as NAME.json here, or to a path.")] = None,
    pick: Annotated[int | None, typer.Option(min=1, help="Row to save.", show_default="the recommended one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find shapes for a budget, or equal to a starting point, with their costs, and recommend one.

    Example: leaner plan --family gpt --params 30M --vocab-size 8192 --length 512
    """
    if pick is not None and write is None:
        raise ValueError(f"--pick {pick}: is the row that --write NAME saves; expected both")
    if like is not None:
        check_named(like)
    with slow_imports(models=measure or latency is not None):
        from ..planning.costs import StepSetting, parse_size
        from ..planning.solver import Budget, Dials
        from .plan import NOT_AGAIN, question_of, run

    def size(flag: str, text: str | None, symbol: str = "") -> float | None:
        return None if text is None else parse_size(flag, text, symbol)

    budget = Budget(size("--params", params), size("--flops", flops), size("--memory", memory, "B"))
    dials = Dials(layers, width, heads, head_dim, mlp)
    setting = StepSetting(batch, length, dtype, attention, device)
    limit = size("--latency", latency, "s")
    inputs = {"image_size": image_size, "patch_size": patch_size, "vocab_size": vocab_size}
    question = question_of(family, like, budget, dials, setting, **inputs)
    given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]
    arguments = []
    for name in given:
        flag = "--json" if name == "as_json" else f"--{dashed(name)}"
        if flag not in NOT_AGAIN:
            arguments += [flag, str(context.params[name])]
    run(question, arguments, limit, measure, advice, write, pick, as_json)


@app.command(cls=Command, rich_help_panel=MODELS)
def convert(
    source: Annotated[str, typer.Argument(help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    ignore: Annotated[
        list[str] | None, typer.Option(help="Pattern of tensors that may be missing or left over, as 'cls.*'.")
    ] = None,
) -> None:
    """Turn a checkpoint of transformers into its exact Lean relative, or back."""
    if ignore is None:
        ignore = []
    check_new(output)
    check_source(source)
    with slow_imports():
        from ..conversion import convert_checkpoint
        from ..terminal import quiet_libraries
    quiet_libraries()
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Ctrl-C while Python ends changes no status
    try:
        model = convert_checkpoint(source, output, ignore)
        typer.echo(f"{output}: {type(model).__name__}, {model.num_parameters() / 1e6:.1f}M parameters")
    except KeyboardInterrupt:
        if not output.exists():  # it appears whole or not at all
            print_error("convert", f"interrupted; there is no {output}")
            raise typer.Exit(INTERRUPTED) from None
        typer.echo(f"{output}: complete, for it was written before the interrupt")


@app.command(cls=Command, rich_help_panel=MODELS)
def slim(
    source: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a BERT, ViT, GPT-2 or Lean model.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not exist.")],
    speedup: Annotated[float | None, typer.Option(help="How many times as fast on this machine, such as 2.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH ...", help="Texts or images like those that the model will read; no labels needed."
        ),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit with 3 if less of the quality is kept, such as 0.99.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Longest training.")] = 60,
    column: Annotated[
        str | None, typer.Option(help="Column to read.", show_default="text, sentence, or the only one")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of classes; a classifier learns from it, too.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers to keep, instead of --speedup.")] = None,
    keep_layers: Annotated[str | None, typer.Option(help="Layers to keep, counted from 0, as 0,4,5.")] = None,
    heads: Annotated[
        int | None, typer.Option(help="Heads per layer; more than there are start with no effect.")
    ] = None,
    total_heads: Annotated[int | None, typer.Option(help="Heads over all layers together.")] = None,
    intermediate_size: Annotated[int | None, typer.Option(help="Neurons per MLP.")] = None,
    max_length: Annotated[int, typer.Option(min=2, help="Longest text in tokens.")] = 128,
    training: Annotated[bool, typer.Option(help="Train what is left to reproduce the model.")] = True,
    lean: Annotated[
        bool, typer.Option("--lean", help="Write this family's class instead of transformers' own.")
    ] = False,
    base_model: Annotated[str | None, typer.Option(help="Hub id of a MODEL that is a folder, for the card.")] = None,
    license: License = None,
) -> None:
    """Make a faster model from a trained one: remove layers, distil, compare.

    Example: leaner slim sentence-transformers/all-MiniLM-L6-v2 fast --speedup 2 --data sentences.txt
    """
    check_new(output)
    check_source(source)
    kept = None if keep_layers is None else tuple(parse_layers("--keep-layers", keep_layers))
    with slow_imports():
        from ..terminal import quiet_libraries
        from ..training.slim import Settings, run
    quiet_libraries()
    settings = Settings(
        source=source,
        output=output,
        data=tuple(data or ()),
        speedup=speedup,
        layers=layers,
        keep_layers=kept,
        heads=heads,
        total_heads=total_heads,
        intermediate_size=intermediate_size,
        column=column,
        label_column=label_column,
        keep=keep,
        minutes=minutes,
        max_length=max_length,
        training=training,
        lean=lean,
        base_model=base_model,
        license=license,
    )
    try:
        raise typer.Exit(run(settings))
    except KeyboardInterrupt:
        print_error("slim", f"interrupted; {output} was not written")
        raise typer.Exit(INTERRUPTED) from None


@app.command(cls=Command, rich_help_panel=MODELS)
def export(
    kind: Annotated[Literal["onnx", "torch"], typer.Argument(help="An ONNX graph, or a program of torch.export.")],
    source: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not exist.")],
    int8: Annotated[bool, typer.Option(help="Also write an ONNX file with 8-bit weights.")] = True,
) -> None:
    """Write a model as a graph that runs without this package, and compare it with the model.

    Example: leaner export onnx sentence-transformers/all-MiniLM-L6-v2 minilm-onnx
    """
    check_new(output)
    check_trained(source)
    with slow_imports():
        from ..exporting import export as export_model
        from ..planning.costs import human_bytes
        from ..terminal import quiet_libraries
    quiet_libraries()
    try:
        exported = export_model(kind, source, output, int8)
    except KeyboardInterrupt:
        print_error("export", f"interrupted; {output} was not written")
        raise typer.Exit(INTERRUPTED) from None
    for each in exported:
        parity = each.parity
        choice = "" if parity.same_choice is None else f", same choice {parity.same_choice:.1%}"
        differs = f"difference {parity.difference:.1e}, cosine {parity.cosine:.6f}{choice}"
        typer.echo(f"{output / each.file}: {human_bytes(each.bytes)}, {differs}")
    path = output / exported[0].file
    call = f'torch.export.load("{path}").module()' if kind == "torch" else f'onnxruntime.InferenceSession("{path}")'
    typer.echo(f"Next, in Python: {call}")


@app.command(cls=Command, rich_help_panel=MODELS)
def inspect(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Run, published folder, Hub id of a ViT, BERT, GPT-2 or Lean model, or a new shape.")
    ],
    data_files: Annotated[
        list[str] | None,
        typer.Option(
            "--data-files", "--data", metavar="PATH ...", help="Examples: a folder, files, or a built-in set's name."
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the texts or images.", show_default="the recipe's, or the only one")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Number of examples; the Jacobian is measured on the first.")] = 8,
    layers: Annotated[
        str | None, typer.Option(help="Layers counted from 0, such as 0,4,5.", show_default="all")
    ] = None,
    jacobian: Annotated[
        Literal["auto", "exact", "matrix-free", "none"],
        typer.Option(help="auto: exact up to 4,096 numbers in an example's states, else matrix-free."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """See the conditioning of a model's attention: κ, the Jacobian, and what its heads do.

    Example: leaner inspect gpt2 --data texts.txt --rows 2 --jacobian none
    """
    check_named(model)
    with slow_imports():
        from ..terminal import quiet_libraries
    quiet_libraries()
    with slow_imports():
        from .inspect import Options, run
    options = context.params | {"data_files": data_files or []}
    run(Options(**options))


app.add_typer(commands)


if __name__ == "__main__":
    app()
