"""`leaner inspect`: the conditioning of a model's attention on some rows, as tables or JSON.

A trained model with a recipe.yaml beside it reads rows as its recipe describes, by default its own held-out ones.
Images given as data are read without labels, texts without a recipe from a column. A named shape gets new weights,
and may read random rows.
"""

import json
import tempfile
from dataclasses import dataclass
from time import perf_counter

import torch
from transformers import AutoModel, PreTrainedModel, set_seed

from ..configuration_leaner import LeanConfig
from ..conversion import load_lean
from ..family import IMAGES
from ..hub import load_processors
from ..inspection import Row, check_layers, document_of, inspect_layers, layer_tables, rows_of
from ..shapes import load_config, modality_of
from ..slimming.calibration import make_batches
from ..slimming.operations import SlimError
from ..terminal import plain_console, progress_bar
from ..training.data.sources import BUILT_IN, describe
from ..training.running.evaluation import prepare_evaluation, saved_recipe
from ..training.running.loading import has_weights, load_image_processor
from ..training.tasks.base import first_inputs
from .checks import parse_layers
from .rows import contents, data_keys, naming_options, rows_with_content


LENGTH = 128  # tokens of a row at most, if no recipe sets it
TEXTS_PER_ROW = 8  # read for each row that is wanted, since a recipe may join short texts
TABLE_WIDTH = 112


@dataclass(frozen=True)
class Options:
    """The options of `leaner inspect`."""

    model: str
    data_files: list[str]
    column: str | None
    rows: int
    layers: str | None
    jacobian: str
    as_json: bool


@dataclass(frozen=True)
class Inputs:
    """Rows, each alone and without padding, and where they come from, for people."""

    source: str
    rows: list[Row]


def model_and_inputs(options: Options) -> tuple[PreTrainedModel, Inputs]:
    """The model, and what it is inspected on. Raises ValueError or OSError that names the option, or the file."""
    if "" in options.data_files:
        raise ValueError("--data: expected a folder, files or the name of a built-in set, got ''")
    if options.column is not None and not options.data_files:
        raise ValueError(f"--column {options.column}: expected --data as well, whose column it names")
    if not has_weights(options.model):
        return new_model(options)
    model = load_lean(options.model)
    is_given = bool(options.data_files) and options.data_files[0] not in BUILT_IN
    are_given_images = is_given and modality_of(model.config) is IMAGES  # which need no labels
    if options.column is None and saved_recipe(options.model) is not None and not are_given_images:
        return model, recipe_inputs(options)
    if not options.data_files:
        raise ValueError(f"--data: missing; {options.model} has no recipe.yaml that says what it reads")
    processors = load_processors(options.model)
    if not processors:
        raise ValueError(f"{options.model}: no tokenizer or image processor, by which rows are read")
    return model, column_inputs(options, model, processors[0])


def new_model(options: Options) -> tuple[PreTrainedModel, Inputs]:
    """New weights of a named shape or config file."""
    config = load_config(options.model)
    set_seed(1)
    model = AutoModel.from_config(config)
    if not options.data_files:
        return model, random_inputs(config, options.rows)
    if modality_of(config) is not IMAGES:
        raise ValueError(f"--data: {options.model} has no tokenizer to read texts; left out, tokens are random")
    return model, column_inputs(options, model, load_image_processor(options.model, config))


def random_inputs(config: LeanConfig, rows: int) -> Inputs:
    """Images of even noise in -1..1, or tokens drawn evenly from the vocabulary."""
    if modality_of(config) is IMAGES:
        pixels = 2 * torch.rand(rows, config.num_channels, *config.image_shape) - 1
        return Inputs("random pixels", rows_of({"pixel_values": pixels}))
    length = min(LENGTH, config.max_position_embeddings)
    tokens = torch.randint(config.vocab_size, (rows, length))
    return Inputs("random tokens", rows_of({"input_ids": tokens}))


def recipe_inputs(options: Options) -> Inputs:
    """The first held-out rows of a model's recipe, or of the data that are given in their place."""
    words = ["--max_eval_rows", str(TEXTS_PER_ROW * options.rows)]
    words += data_keys(options.data_files)
    with tempfile.TemporaryDirectory() as scratch, naming_options():
        run = prepare_evaluation(options.model, words, scratch, inputs_alone=True)
    inputs = first_inputs(run.task, run.held_out.rows, options.rows)
    return Inputs(run.held_out.source, rows_of(inputs))


def column_inputs(options: Options, model: PreTrainedModel, processor: object) -> Inputs:
    """The first texts or images of a column."""
    rows, column = rows_with_content(options.data_files, options.column, model)
    source = describe(options.data_files[0], "train", options.data_files)
    if len(rows) == 0:
        raise ValueError(f"--data: {source}: no row has anything in the column {column}")
    chosen = contents(rows, column, options.rows, source)
    try:
        inputs = make_batches(model, processor, chosen, LENGTH, least=1)
    except SlimError as error:
        raise ValueError(f"--data: {source}: {error}") from error
    return Inputs(source, [row for batch in inputs for row in rows_of(batch)])


def run(options: Options) -> None:
    """Inspects a model and prints what was found. Raises ValueError or OSError."""
    layers = None
    if options.layers is not None:
        layers = sorted(set(parse_layers("--layers", options.layers)))
    model, inputs = model_and_inputs(options)
    if layers is not None:
        check_layers("--layers", layers, model.config.num_hidden_layers)
    start = perf_counter()
    reports = inspect_layers(model, inputs.rows, layers, options.jacobian, progress_bar)
    document = document_of(options.model, inputs.source, perf_counter() - start, reports)
    if options.as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
        return
    print(heading(document))
    console = plain_console(width=TABLE_WIDTH)
    for table in layer_tables(reports):
        console.print(table)
    if has_weights(options.model):
        print(f"\nNext: leaner slim {options.model} OUT --total-heads N --data PATH removes the least important heads")
    else:
        print(f"\nNext: leaner train RECIPE --shape {options.model} --inspect heads logs the same during training")


def heading(document: dict) -> str:
    """What was inspected, on what, and how long it took."""
    tokens = document["tokens"]
    extent = f"{min(tokens)} to {max(tokens)} tokens" if max(tokens) > min(tokens) else f"{min(tokens)} tokens each"
    return f"{document['model']} on {document['data']}: {len(tokens)} rows of {extent}, {document['seconds']:.1f} s"
