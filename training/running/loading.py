"""From a shape's name, a folder or a Hub id to a configuration, a tokenizer or image processor, and a model."""

import sys
from pathlib import Path

import datasets
import torch
import transformers
from datasets.fingerprint import Hasher
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoTokenizer,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ViTImageProcessorPil,
    set_seed,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # top level: needs torchvision in 5.17
from transformers.utils import CONFIG_NAME, cached_file

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import ConversionError, from_lean_config
from modeling_leaner.family import IMAGES, TEXT
from modeling_leaner.files import whole_folder
from modeling_leaner.hub import refuse_pickles
from modeling_leaner.layers_leaner import find_weights
from modeling_leaner.names import shape_names
from modeling_leaner.shapes import family_of, load_config, modality_of

from ..data.sources import Rows, check_cache, first_rows
from ..data.tokenizer import TOKENIZER_KINDS, VocabularyTooSmall, train_tokenizer
from ..settings import RecipeArguments, split_files
from ..tasks.base import Task, fitting
from ..tasks.registry import TASKS


def has_weights(source: str) -> bool:
    """Whether `shape` is a checkpoint rather than a shape alone. Raises ValueError where its weights are a pickle."""
    path = Path(source)
    if source in shape_names() or path.suffix == ".json":
        return False
    if not path.is_dir():
        return True
    refuse_pickle_folder(path)
    return any(path.glob("*.safetensors"))


def refuse_pickle_folder(folder: Path) -> None:
    """Raises ValueError for a folder whose weights are a pickle alone."""
    try:
        refuse_pickles(str(folder))
    except OSError as error:
        raise ValueError(str(error)) from error


def check_folder(folder: Path) -> None:
    """Raises ValueError or OSError, with the file, for a folder whose weights are missing or damaged.

    Only their headers are read.
    """
    refuse_pickle_folder(folder)
    files = find_weights(folder)
    if not files:
        raise ValueError(f"{folder}: no model.safetensors in this folder")
    for path in files:
        tensor_shapes(path)


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each tensor of a safetensors file. Raises ValueError where it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or not safetensors ({error})") from error


def started_from(source: str) -> str | None:
    """Whose weights `shape` names: a Hub id, or ./NAME of a folder; None of a shape alone."""
    if not has_weights(source):
        return None
    if Path(source).exists():
        return f"./{Path(source).resolve().name}"
    return source


def is_checkpoint_with(source: str, file: str) -> bool:
    """Whether `shape` is a checkpoint that has the file; one on the Hub is taken to have it."""
    if not has_weights(source):
        return False
    folder = Path(source)
    return not folder.is_dir() or (folder / file).is_file()


def recorded_settings(arguments: RecipeArguments) -> dict[str, object]:
    """What the run's recipe.yaml and results.json say: of a checkpoint that keeps its own tokenizer no other one."""
    settings = dict(arguments.settings)
    if is_checkpoint_with(str(arguments.shape), "tokenizer.json"):
        settings.pop("tokenizer", None)
    return settings


def load_processing(arguments: RecipeArguments, config: LeanConfig, train: Rows | None) -> object:
    """The image processor or tokenizer: a checkpoint's own; else the recipe's, trained on the training rows.

    Raises:
        ValueError: there is none, a checkpoint has lost its own, or `tokenizer` is given for one that has it.
    """
    if modality_of(config) is IMAGES:
        return load_image_processor(str(arguments.shape), config)
    return load_tokenizer(arguments, config, train)


def load_image_processor(source: str, config: LeanConfig) -> object:
    """A checkpoint's own image processor; else one that scales pixels to -1..1."""
    if is_checkpoint_with(source, "preprocessor_config.json"):
        return AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    height, width = config.image_shape
    mean = [0.5] * config.num_channels
    return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=mean, image_std=mean)


def load_tokenizer(arguments: RecipeArguments, config: LeanConfig, train: Rows | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a text model; errors as of `load_processing`."""
    source = str(arguments.shape)
    name = arguments.tokenizer
    if is_checkpoint_with(source, "tokenizer.json"):
        if "tokenizer" in arguments.given:
            raise ValueError(f"tokenizer: {source} keeps its own; --tokenizer is for a shape without weights")
        tokenizer = read_tokenizer(source)
        if arguments.max_length:
            tokenizer.model_max_length = arguments.max_length
        return tokenizer
    if name is None and arguments.teacher is not None:
        name = arguments.teacher  # a student reads what its teacher reads
    if has_weights(source) and (name is None or name in TOKENIZER_KINDS):
        place = Path(source) / "tokenizer.json"
        raise ValueError(
            f"{place}: missing; the weights know the numbers of that vocabulary alone; expected the file, or as "
            "--tokenizer a folder or Hub id that has it"
        )
    if name is None:
        kinds = ", ".join(TOKENIZER_KINDS)
        raise ValueError(f"tokenizer: missing; one of {kinds} to train one, or a folder or Hub id")
    if name in TOKENIZER_KINDS:
        if train is None:
            raise ValueError(f"tokenizer: {name} would have to be trained; {source} has no tokenizer of its own")
        return trained_tokenizer(arguments, config, train)
    if Path(name).is_dir() and not (Path(name) / "tokenizer.json").is_file():
        raise ValueError(f"tokenizer: {name}: no tokenizer.json in this folder")
    return read_tokenizer(name)


def read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id; ValueError where there is none, or it cannot be read."""
    try:
        tokenizer = without_local_traces(AutoTokenizer.from_pretrained(source, trust_remote_code=False))
        for texts in (["a"], ["a", "a"]):
            tokenizer(*texts)  # some damage shows at the first text, or the first pair
        return tokenizer
    except BaseException as error:  # the tokenizers library raises bare Exceptions, and panics, which are none
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if Path(source).is_dir():
            raise ValueError(f"tokenizer: the files in {source} cannot be read: {error}") from error
        kinds = ", ".join(TOKENIZER_KINDS)
        raise ValueError(f"tokenizer: {source}: none of {kinds}, nor a folder or Hub id with one") from error


def trained_tokenizer(arguments: RecipeArguments, config: LeanConfig, train: Rows) -> PreTrainedTokenizerBase:
    """The tokenizer of the recipe's kind on the training rows (at most 200,000); kept in the datasets' cache.

    Raises:
        ValueError: the shape's vocabulary is too small for it, or the cache cannot be written to.
    """
    columns = TASKS[arguments.task].text_columns_of(arguments, train)
    length = arguments.max_length or config.max_position_embeddings
    settings = (arguments.tokenizer, config.vocab_size, length, family_of(config), columns, __version__)
    data = (arguments.dataset, arguments.dataset_config, arguments.data_files, arguments.train_split)
    limits = (arguments.holdout, arguments.tuning_holdout, arguments.max_train_rows)
    key = Hasher.hash((content_key(train, arguments.data_files), settings, data, limits))
    folder = Path(datasets.config.HF_CACHE_HOME) / "modeling_leaner" / "tokenizers" / key
    if not (folder / "tokenizer.json").is_file():
        texts = (row[column] for row in first_rows(train, 200_000) for column in columns)
        check_cache(folder.parent, "HF_HOME", "XDG_CACHE_HOME")
        try:
            tokenizer = train_tokenizer(texts, arguments.tokenizer, config.vocab_size, length, family_of(config))
        except VocabularyTooSmall as error:
            fit = fitting(config, "vocab_size", error.needed)
            raise ValueError(f"tokenizer: {arguments.tokenizer} for {arguments.shape}: {error}{fit}") from error
        try:
            with whole_folder(folder) as unfinished:
                tokenizer.save_pretrained(unfinished)
        except OSError:
            if not (folder / "tokenizer.json").is_file():  # else another process was quicker
                raise
    return without_local_traces(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def without_local_traces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, which would else save with every model whether this machine had been offline."""
    tokenizer.init_kwargs.pop("local_files_only", None)
    return tokenizer


def content_key(rows: Rows, data_files: list[str]) -> object:
    """What changes with the content of the rows; of a stream, without a fingerprint, sizes and times of its files."""
    fingerprint = getattr(rows, "_fingerprint", None)
    if fingerprint is not None:
        return fingerprint
    places = [Path(name) for names in split_files(data_files).values() for name in names]
    files = [file for place in places for file in sorted((place, *place.rglob("*"))) if file.is_file()]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def fitted(config: LeanConfig, arguments: RecipeArguments, processing: object) -> LeanConfig:
    """The configuration; that of a new model on bytes or words has no more tokens than its tokenizer."""
    if arguments.tokenizer in ("bytes", "words") and not has_weights(str(arguments.shape)):
        return with_fields(config, arguments, {"vocab_size": min(config.vocab_size, len(processing))})
    return config


def shape_config(arguments: RecipeArguments) -> LeanConfig:
    """The configuration of the shape, at the recipe's `image_size`.

    Raises:
        ValueError: no such shape; or the family reads no images, a checkpoint has another size, or patches do not
            fill it.
    """
    config = load_config(str(arguments.shape))
    size = arguments.image_size
    if size is None:
        return config
    if modality_of(config) is not IMAGES:
        raise ValueError(f"image_size: {arguments.shape} reads no images")
    if not has_weights(str(arguments.shape)):
        return type(config)(**{**config.to_dict(), "image_size": size})
    if config.image_shape != (size, size):
        raise ValueError(f"image_size: {size}, but {arguments.shape} has image_size {config.image_size}")
    return config


def task_of(arguments: RecipeArguments, config: LeanConfig) -> type[Task]:
    """The class of the recipe's task. Raises ValueError where the shape's family has no head for it."""
    task = TASKS[arguments.task]
    if not is_possible(task, config):
        possible = ", ".join(name for name, other in TASKS.items() if is_possible(other, config))
        raise ValueError(
            f"task: {arguments.task} is not for {config.model_type} ({arguments.shape}), which has {possible}"
        )
    return task


def is_possible(task: type[Task], config: LeanConfig) -> bool:
    """Whether a family has the head of a task; a task of bare models is for every family that reads text."""
    return modality_of(config) is TEXT if task.trains_bare_model() else task.head in config.task_heads


def recipe_config(arguments: RecipeArguments) -> LeanConfig:
    """The configuration that a shape is trained with, but for what follows from data: labels, and a cut vocabulary.

    Raises:
        ValueError: as `shape_config` and `with_fields`.
    """
    return with_fields(shape_config(arguments), arguments, {})


def with_fields(config: LeanConfig, arguments: RecipeArguments, fields: dict[str, object]) -> LeanConfig:
    """The configuration with what data and recipe decide: labels, dropout, new weights, and a new model's positions.

    Raises:
        ValueError: a checkpoint has fewer positions than `max_length`.
    """
    values = {**config.to_dict(), **fields}
    positions = values.get("max_position_embeddings")
    length = arguments.max_length
    if positions is not None and length is not None and length > positions:
        if has_weights(str(arguments.shape)):
            raise ValueError(f"max_length: {length}, but {arguments.shape} has max_position_embeddings {positions}")
        values["max_position_embeddings"] = length
    if "num_labels" in fields and "id2label" not in fields:
        values.pop("id2label", None)
        values.pop("label2id", None)
    if arguments.initializer_range is not None:
        values["initializer_range"] = arguments.initializer_range
    if arguments.dropout is not None:
        values["hidden_dropout_prob"] = arguments.dropout
        values["attention_probs_dropout_prob"] = arguments.dropout
        if "classifier_dropout" in values:
            values["classifier_dropout"] = None
    if arguments.loss_chunk_size is not None and "loss_chunk_size" in values:
        values["loss_chunk_size"] = arguments.loss_chunk_size
    for key in ("model_type", "transformers_version", "auto_map", "architectures", "dtype"):
        values.pop(key, None)
    return type(config)(**values)


def check_values(source: str, model: PreTrainedModel) -> None:
    """Raises ValueError for a tensor of a checkpoint that is not stored as floating point, or not finite; names it."""
    folder = Path(source)
    if not folder.is_dir():
        folder = Path(cached_file(source, CONFIG_NAME)).parent
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as tensors:
            names = tensors.keys()
            for name in names:
                dtype = tensors.get_slice(name).get_dtype()
                if not dtype.startswith(("F", "BF")):
                    raise ValueError(f"{path}: {name} is stored as {dtype}, expected floating point")
    for name, tensor in model.state_dict().items():
        if tensor.is_meta:
            continue  # another process holds it
        bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        if bad:
            raise ValueError(f"{source}: {name}: {bad:,} of {tensor.numel():,} values are NaN or infinite")


MAY_BE_NEW = ("classifier", "score", "qa_outputs", "transform", "lm_head", "model.pooler")  # tensors of a head


def build_model(
    arguments: RecipeArguments, task: Task, complete: bool = False, quietly: bool = False
) -> PreTrainedModel:
    """The task's model: from the seed, or a checkpoint's weights with a new head where it has none.

    Unless `quietly`, stderr names the tensors of a checkpoint that are not taken, for they have another size there.

    Raises:
        ValueError: a checkpoint lacks tensors outside the head, or, with `complete`, any; or some have another shape,
            are not finite, or not stored as floating point.
    """
    set_seed(arguments.seed)
    config = task.config
    auto_class = getattr(transformers, f"AutoModel{task.head}")
    source = str(arguments.shape)
    named = arguments.attn_implementation
    attention = {} if named is None else {"attn_implementation": named}
    if arguments.implementation == "transformers":
        if has_weights(source):
            raise ValueError(f"implementation: {source} has weights of this family; leaner convert turns them")
        try:
            model = auto_class.from_config(from_lean_config(config), **attention)
        except ConversionError as error:
            raise ValueError(f"implementation: {error}") from error
        divide_by_predicted_labels(model)
        return model
    if not has_weights(source):
        return without_unused_pooler(auto_class.from_config(config, **attention), task)
    if not Path(source).is_dir():
        refuse_pickles(source)
    options = {"dtype": "float32", "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = auto_class.from_pretrained(source, config=config, trust_remote_code=False, **attention, **options)
    may_be_new = () if complete else MAY_BE_NEW
    wrong = [name for name, *_ in info["mismatched_keys"] if not name.startswith(may_be_new)]
    if wrong:
        raise ValueError(f"{source}: tensors do not fit its config.json: {', '.join(sorted(wrong))}")
    if task.trains_bare_model():
        may_be_new = (*may_be_new, "pooler.")  # a bare model may have been saved without
    missing = [name for name in info["missing_keys"] if not name.startswith(may_be_new)]
    if missing:
        raise ValueError(f"{source}: no trained {', '.join(sorted(missing)[:3])} for {arguments.task}")
    check_values(source, model)
    if info["mismatched_keys"] and arguments.process_index == 0 and not quietly:
        names = ", ".join(sorted(name for name, *_ in info["mismatched_keys"]))
        print(f"{source}: begins with new weights, for they have another size there: {names}", file=sys.stderr)
    return without_unused_pooler(model, task)


def divide_by_predicted_labels(model: PreTrainedModel) -> None:
    """Makes Trainer divide GPT-2's loss by the T − 1 labels of a row that are predicted, as it does LeanGPT's.

    Trainer does so where `loss_type` is that of a causal language model. GPT2LMHeadModel leaves it None, and its loss
    would be divided by T. Any other model stays as it is.
    """
    if isinstance(model, GPT2LMHeadModel):
        model.loss_type = "ForCausalLM"


def without_unused_pooler(model: PreTrainedModel, task: Task) -> PreTrainedModel:
    """A bare model without the pooling layer, if it has one: no task reads it."""
    if task.trains_bare_model() and getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
