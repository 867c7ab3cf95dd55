"""What `leaner inspect` looks at: a model, and rows as it reads them.

A trained model with a recipe.yaml beside it reads rows as its recipe says, its own held-out ones where no others are
given. Images that are given are read without labels, texts without a recipe from a column. A shape without weights is
new, and may read random rows.
"""

import tempfile
from dataclasses import dataclass

import torch
from transformers import AutoModel, PreTrainedModel, set_seed

from ..configuration_leaner import LeanConfig
from ..conversion import load_lean
from ..inspection.layers import Row, rows_of
from ..registry import IMAGES
from ..shapes import load_config, modality_of
from ..slimming.calibration import batches_of
from ..slimming.operations import SlimError
from ..source_files import load_processors
from ..training.data.sources import BUILT_IN, describe
from ..training.running.evaluation import prepare_evaluation, saved_recipe
from ..training.running.loading import has_weights, load_image_processor
from ..training.tasks.base import first_inputs
from .rows import contents, data_keys, naming_options, rows_with_content


LENGTH = 128  # tokens of a random row, and of a text at most, where nothing says more
TEXTS_PER_ROW = 8  # read for each row that is wanted, since a recipe may join short texts


@dataclass(frozen=True)
class Options:
    """The options of `leaner inspect`."""

    model: str
    data_files: list[str]
    column: str | None
    rows: int
    max_length: int | None
    layers: str | None
    jacobian: str
    seed: int
    plot: str | None
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
    check_length(options, model.config)
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


def check_length(options: Options, config: LeanConfig) -> None:
    """Raises ValueError for a length of what has none."""
    if options.max_length is not None and modality_of(config) is IMAGES:
        raise ValueError(f"--max-length {options.max_length}: {options.model} reads images, which are of one size")


def new_model(options: Options) -> tuple[PreTrainedModel, Inputs]:
    """New weights of a named shape or config file."""
    config = load_config(options.model)
    check_length(options, config)
    set_seed(options.seed)
    model = AutoModel.from_config(config)
    if not options.data_files:
        return model, random_inputs(config, options.rows, options.max_length)
    if modality_of(config) is not IMAGES:
        raise ValueError(f"--data: {options.model} has no tokenizer to read texts; left out, tokens are random")
    return model, column_inputs(options, model, load_image_processor(options.model, config))


def random_inputs(config: LeanConfig, rows: int, max_length: int | None = None) -> Inputs:
    """Images of even noise in -1..1, or tokens drawn evenly from the vocabulary."""
    if modality_of(config) is IMAGES:
        pixels = 2 * torch.rand(rows, config.num_channels, *config.image_shape) - 1
        return Inputs("random pixels", rows_of({"pixel_values": pixels}))
    length = min(max_length or LENGTH, config.max_position_embeddings)
    tokens = torch.randint(config.vocab_size, (rows, length))
    return Inputs("random tokens", rows_of({"input_ids": tokens}))


def recipe_inputs(options: Options) -> Inputs:
    """The first held-out rows of a model's recipe, or of the data that are given in their place."""
    words = ["--max_eval_rows", str(TEXTS_PER_ROW * options.rows)]
    words += data_keys(options.data_files)
    if options.max_length is not None:
        words += ["--max_length", str(options.max_length)]
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
        inputs = batches_of(model, processor, chosen, options.max_length or LENGTH)
    except SlimError as error:
        raise ValueError(f"--data: {source}: {error}") from error
    return Inputs(source, [row for batch in inputs for row in rows_of(batch)])
