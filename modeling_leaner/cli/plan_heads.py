"""`leaner plan --heads auto` and `--heads random`: the heads of a shape in other numbers per layer, at equal cost."""

import json
import tempfile
from dataclasses import dataclass
from statistics import mean

from rich.table import Table
from transformers import AutoModel, set_seed

from ..configuration_leaner import LeanConfig
from ..inspection import effective_ranks, rows_of
from ..planning.adaptive_heads import (
    check_total,
    head_step,
    most_heads,
    rank_per_head,
    share_out,
    shuffled,
    total_heads,
    with_heads,
)
from ..planning.dials import describe
from ..planning.shape_file import shape_file, write_shape
from ..shapes import family_of
from ..support.progress import progress_bar
from ..support.terminal import plain_console
from ..training.data.sources import describe as describe_rows
from ..training.running.preparation import prepare
from ..training.settings.recipes import parse
from ..training.tasks.base import first_inputs
from .inspect import Inputs, random_inputs
from .plan import Options, training_command
from .rows import data_keys, recipe_and_keys


ROWS = 16
STARTS = 4  # new weights that are measured, the mean of which counts


@dataclass(frozen=True)
class Measured:
    """What heads are shared out by: on which rows, and per layer the effective rank of its first 1, 2, ... heads."""

    source: str
    rows: int
    ranks: list[list[float]]


def run_with_heads(options: Options) -> None:
    """Shares out or reorders the heads of `--like`, prints the shape, and writes it where asked to.

    Raises ValueError or OSError that names the option.
    """
    if options.write is not None:  # before anything takes time
        shape_file(options.write)
    start = options.starting_point()
    measured = None
    if options.heads == "auto":
        total = options.total_heads
        if total is None:
            total = total_heads(start)
        measured = measure(options, start, total)
        heads = share_out(measured.ranks, total, head_step(start))
    else:
        try:
            heads = shuffled(start.heads_per_layer, options.seed)
        except ValueError as error:
            raise ValueError(f"--like {options.like}: {error}") from error
    config = with_heads(start, heads)
    if options.as_json:
        print(json.dumps(document_of(start, config, measured), indent=1))
    else:
        report(options, start, config, measured)
    if options.write is None:
        return
    path = write_shape(config, options.write)  # after what was measured is printed, which a full disk does not take
    if not options.as_json:
        print(f"Saved: {path}")
        print(f"Train it: {training_command(family_of(config), config, path)}")


def measure(options: Options, start: LeanConfig, total: int) -> Measured:
    """The effective ranks of head outputs in new models with the most heads that a layer may get, in every layer."""
    try:
        check_total(start, total)
    except ValueError as error:
        flag = f"--like {options.like}"
        if options.total_heads is not None:
            flag = f"--total-heads {options.total_heads}"
        raise ValueError(f"{flag}: {error}") from error
    most = most_heads(start, total)
    config, inputs = config_and_rows(options, start)
    wide = with_heads(config, [most] * config.num_hidden_layers)
    of_starts = []
    for seed in progress_bar(list(range(options.seed, options.seed + STARTS)), "new weights"):
        set_seed(seed)
        try:
            of_starts.append(effective_ranks(AutoModel.from_config(wide), inputs.rows))
        except ValueError as error:
            raise ValueError(f"--heads auto measures {most} heads in every layer: {error}") from error
    ranks = [[mean(numbers) for numbers in zip(*of_layer)] for of_layer in zip(*of_starts)]
    return Measured(inputs.source, len(inputs.rows), ranks)


def config_and_rows(options: Options, start: LeanConfig) -> tuple[LeanConfig, Inputs]:
    """The shape as the recipe trains it, and the recipe's first training rows; without a recipe random ones."""
    if options.recipe is None:
        set_seed(options.seed)
        return start, random_inputs(start, ROWS)
    recipe, keys = recipe_and_keys("--recipe", options.recipe)
    keys += data_keys(options.data)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = parse(recipe, keys, fixed={"shape": options.like, "output_dir": scratch})
        if arguments.streaming:
            raise ValueError("--recipe: streaming: expected rows that are not read as a stream")
        run = prepare(arguments)
    source = describe_rows(arguments.dataset, arguments.train_split, arguments.data_files)
    return run.config, Inputs(source, rows_of(first_inputs(run.task, run.train, ROWS)))


def per_head(ranks: list[list[float]], config: LeanConfig) -> list[float]:
    """Effective rank over heads of each layer of a shape."""
    return [rank_per_head(of_layer, heads) for of_layer, heads in zip(ranks, config.heads_per_layer)]


def document_of(start: LeanConfig, config: LeanConfig, measured: Measured | None) -> dict[str, object]:
    """Heads before and after, the parameters of both, and what was measured."""
    document = {
        "heads_before": start.heads_per_layer,
        "heads": config.heads_per_layer,
        "head_dim": config.head_dim,
        "parameters_before": start.count_parameters().total,
        "parameters": config.count_parameters().total,
    }
    if measured is not None:
        document["data"] = measured.source
        document["rows"] = measured.rows
        document["effective_ranks"] = measured.ranks
    return document


def report(options: Options, start: LeanConfig, config: LeanConfig, measured: Measured | None) -> None:
    """Prints the heads of each layer before and after, with the effective rank per head where it was measured."""
    print(f"{options.like}: {describe(start)}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns = {"layer": range(config.num_hidden_layers), "heads": start.heads_per_layer}
    if measured is not None:
        print(f"Measured: {measured.rows} rows of {measured.source}, {STARTS} times with new weights.")
        columns["rank per head"] = [f"{share:.2f}" for share in per_head(measured.ranks, start)]
    columns["new heads"] = config.heads_per_layer
    if measured is not None:
        columns["rank per new head"] = [f"{share:.2f}" for share in per_head(measured.ranks, config)]
    for name in columns:
        table.add_column(name, justify="right")
    for row in zip(*columns.values()):
        table.add_row(*map(str, row))
    plain_console().print(table)
    before = start.count_parameters().total
    print(f"{config.count_parameters().total:,} parameters, {before:,} before; heads of {config.head_dim} in both.")
