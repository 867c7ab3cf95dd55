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
from ..planning.units import MOST_INPUT
from ..registry import check_family
from ..support.interrupts import INTERRUPTED
from ..support.terminal import plain_console
from .checks import (
    HEAD_WAYS,
    check_calibration_rows,
    check_inspected,
    check_new,
    check_plan,
    check_source,
    check_trained,
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
    family: Annotated[str | None, typer.Option(help="Only vit, bert or gpt.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """The named shapes: parameters, FLOPs per token, cache bytes per token, heads × head size."""
    if family is not None:
        check_family(family)
    with slow_imports(models=False):
        from .shapes import shape_rows, shape_table
    rows = shape_rows(family)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        plain_console(width=80).print(shape_table(rows))


# Of leaner plan:
PlanRecipe = Annotated[
    str | None,
    typer.Option(
        help="With --heads auto: recipe and keys of leaner train whose rows are measured, as 'NAME --holdout 0'; "
        "left out, random tokens or pixels."
    ),
]
PlanRows = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH ...", help="With --recipe: its rows, a folder, files, or a built-in set's name."),
]
PlanHeads = Annotated[
    str | None,
    typer.Option(
        help="Fix the number of heads. Of those of --like, auto: shared out over its layers by a measurement; "
        "random: in another order of layers."
    ),
]


@app.command(cls=Command, rich_help_panel=SHAPES)
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
    heads: PlanHeads = None,
    head_dim: Annotated[int | None, typer.Option(help="Fix the head size.")] = None,
    mlp: Annotated[int | None, typer.Option(help="Fix the MLP's width.")] = None,
    mlp_ratio: Annotated[float | None, typer.Option(help="Fix the MLP's width over the width.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence (text); left out, the longest.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels of an image's side (vit).")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Pixels of a patch's side (vit).")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary (text).")] = None,
    batch: Annotated[int, typer.Option(help="Items of a training step, for its memory and time.")] = 8,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    attention: Annotated[str, typer.Option(help="lean, sdpa or eager.")] = "lean",
    device: Annotated[str, typer.Option(help="cpu or gpu: which keeps what, for the memory.")] = "cpu",
    rows: Annotated[
        int | None, typer.Option(help="At most so many shapes; left out, 6, and all with --json alone.")
    ] = None,
    total_heads: Annotated[
        int | None, typer.Option(help="With --heads auto: heads of all layers; left out, as many as --like has.")
    ] = None,
    recipe: PlanRecipe = None,
    data: PlanRows = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the new weights of --heads auto, and of the order of random.")
    ] = 1,
    measure: Annotated[bool, typer.Option("--measure", help="Measure time and memory on this machine.")] = False,
    advice: Annotated[bool, typer.Option("--advice", help="Print the verdicts of all twelve sources.")] = False,
    write: Annotated[str | None, typer.Option(help="Save a shape as NAME.json here, or to a path.")] = None,
    pick: Annotated[int | None, typer.Option(help="The row that --write saves; left out, the first.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw NAME.png and NAME.svg, new files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Shapes for a budget or equal to a starting point: what they cost, and what the literature advises."""
    given = tuple(name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE")
    check_plan(context.params, given)
    with slow_imports(models=measure or heads in HEAD_WAYS):
        from .plan import Options, run
    options = Options(**context.params | {"data": data or []}, given=given)
    if heads in HEAD_WAYS:
        with slow_imports():
            from ..support.quiet import quiet_libraries
            from .plan_heads import run_with_heads
        quiet_libraries()
        run_with_heads(options)
    else:
        run(options)


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
        from ..support.quiet import quiet_libraries
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
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    layers: Annotated[int | None, typer.Option(help="Layers to keep, chosen by the change of the output.")] = None,
    keep: Annotated[str | None, typer.Option(help="The layers to keep, from 0, as 0,4,5.")] = None,
    heads: Annotated[
        int | None, typer.Option(help="Heads to keep in every layer; more than it has: new ones, silent at first.")
    ] = None,
    total_heads: Annotated[int | None, typer.Option(help="Heads to keep, shared out over the layers.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Head size, by the singular values of every head.")] = None,
    intermediate_size: Annotated[
        int | None, typer.Option(help="Neurons to keep in every MLP; more than it has: new ones, silent at first.")
    ] = None,
    params: Annotated[str | None, typer.Option(help="Layers for this share of the parameters, as 0.6x.")] = None,
    latency: Annotated[str | None, typer.Option(help="Layers for this share of the time, as 0.5x.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="File, folder or built-in set of calibration rows.")] = None,
    column: Annotated[str | None, typer.Option(help="Column of the texts or images; left out, the only one.")] = None,
    rows: Annotated[
        int, typer.Option(help="At most so many rows, 16 or more: half to choose by, half held out.")
    ] = 256,
    max_length: Annotated[int, typer.Option(help="Tokens of a calibration row, at most.")] = 64,
    base_model: Annotated[str | None, typer.Option(help="Hub id of a source that is a folder, for the card.")] = None,
    license: License = None,
    tries: Annotated[
        int | None, typer.Option("--try", min=2, help="Train so many of the best choices of layers, keep the best.")
    ] = None,
    recovery: Annotated[
        str | None, typer.Option(help='With --try: recipe and keys of leaner train, as "RECIPE --max-steps 100".')
    ] = None,
) -> None:
    """Leave layers, heads or neurons out of a trained checkpoint: those whose absence changes its output least."""
    check_new(output)
    check_calibration_rows(rows)
    check_source(source)
    with slow_imports():
        from ..support.quiet import quiet_libraries
    quiet_libraries()
    with slow_imports():
        from .slim import Options, run
    options = context.params | {"data": data or []}
    try:
        run(Options(**options))
    except KeyboardInterrupt:
        print_error("slim", f"interrupted; {output} was not written")
        raise typer.Exit(INTERRUPTED) from None


@app.command(cls=Command, rich_help_panel=MODELS)
def export(
    context: typer.Context,
    kind: Annotated[Literal["onnx", "torch"], typer.Argument(help="An ONNX graph, or a program of torch.export.")],
    source: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a ViT, BERT, GPT-2 or Lean checkpoint.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not exist.")],
    int8: Annotated[bool, typer.Option("--int8", help="A second file with weights in 8 bits.")] = False,
    batch: Annotated[
        int,
        typer.Option(min=1, max=MOST_INPUT, help="Rows of a pass that is timed, beside one row; they have to fit."),
    ] = 8,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a text that is timed; left out, 128 or the longest.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="How often the model and every file have their turn.")] = 20,
) -> None:
    """Write a model as a graph that runs without this package, and say how exact and how fast it is."""
    check_new(output)
    check_trained(source)
    with slow_imports():
        from ..support.quiet import quiet_libraries
        from .export import Options, run
    quiet_libraries()
    try:
        run(Options(**context.params))
    except KeyboardInterrupt:
        print_error("export", f"interrupted; {output} was not written")
        raise typer.Exit(INTERRUPTED) from None


@app.command(cls=Command, rich_help_panel=MODELS)
def inspect(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Run, published folder, Hub id of a ViT, BERT, GPT-2 or Lean model, or a new shape.")
    ],
    data_files: Annotated[
        list[str] | None,
        typer.Option(
            "--data-files", "--data", metavar="PATH ...", help="Rows: a folder, files, or a built-in set's name."
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the texts or images; left out, as in the recipe, or the only one.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="At most so many rows; the Jacobian is of the first.")] = 8,
    layers: Annotated[str | None, typer.Option(help="Layers from 0, as 0,4,5; left out, all.")] = None,
    jacobian: Annotated[
        Literal["auto", "exact", "matrix-free", "none"],
        typer.Option(help="auto: exact up to 4,096 numbers in a row's states, minutes a layer; else matrix-free."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """See the conditioning of a model's attention: κ, the Jacobian, and what its heads do."""
    check_inspected(model)
    with slow_imports():
        from ..support.quiet import quiet_libraries
    quiet_libraries()
    with slow_imports():
        from .inspect import Options, run
    options = context.params | {"data_files": data_files or []}
    run(Options(**options))


app.add_typer(commands)


if __name__ == "__main__":
    app()
