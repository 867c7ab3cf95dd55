"""From the settings to a run: configuration, tokenizer or image processor, rows, task and model."""

import sys
from dataclasses import dataclass
from pathlib import Path

import datasets
import transformers
from datasets.fingerprint import Hasher
from filelock import FileLock
from transformers import (
    AutoTokenizer,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ViTImageProcessorPil,
    set_seed,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # top level: needs torchvision in 5.17

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import from_lean_config
from modeling_leaner.family import IMAGES, TEXT
from modeling_leaner.files import naming, whole_folder
from modeling_leaner.layers_leaner import WEIGHTS, find_weights
from modeling_leaner.names import shape_names
from modeling_leaner.shapes import family_of, load_config, modality_of

from ..data.sources import Rows, content_sha256, describe, find_column, first_rows, load_training
from ..data.tokenizer import TOKENIZER_KINDS, train_tokenizer, vocab_size_of
from ..settings import RecipeArguments
from ..tasks import TASKS
from ..tasks.base import Task
from ..tasks.distillation import Taught, require_mean


MAY_BE_NEW = ("classifier", "score", "transform", "lm_head", "model.pooler")  # tensors of a head


@dataclass(frozen=True)
class HeldOut:
    """The evaluation rows of a run."""

    source: str  # where they come from, for people
    split: str  # the same as results.json names it
    rows: Rows  # as the model reads them
    sha256: str | None  # of their contents


@dataclass(frozen=True)
class PreparedRun:
    """What is trained, or only evaluated: then `train` is None. `training_data` is for results.json."""

    arguments: RecipeArguments
    task: Task
    train: Rows | None = None
    training_data: dict[str, object] | None = None
    held_out: HeldOut | None = None


def prepare(arguments: RecipeArguments) -> PreparedRun:
    """The run that the settings describe: its data loaded, its task configured by them, its rows prepared.

    A named shape is a file of configuration/ (`shapes.load_config`); rows come from `data/sources.py`, those of
    built-in sets from `data/builtin.py`. ValueError names the key, or file, column and row, that does not fit.
    """
    config = shape_config(arguments)
    task_class = task_of(arguments, config)
    with arguments.main_process_first(local=True, desc="data"):
        rows, held_out = load_training(arguments)
        source = describe(arguments.dataset, arguments.train_split, arguments.data_files)
        processing = load_processing(arguments, config, rows)
        if modality_of(config) is TEXT and not has_weights(str(arguments.shape)):  # room for a tokenizer that is given
            config.vocab_size = max(config.vocab_size, vocab_size_of(processing))
        task = task_class(arguments, config, processing)
        with naming(source):
            fields = task.configure(rows)
        if has_weights(str(arguments.shape)):
            if not task.head:
                require_mean("shape", str(arguments.shape))
            own = {name: index for index, name in sorted(config.id2label.items())}
            if task.classes is not None and own.keys() == task.classes.keys():  # the head keeps its numbers of them
                task.classes = own
                fields |= {"id2label": {index: name for name, index in own.items()}, "label2id": own}
        elif arguments.tokenizer in ("bytes", "words"):
            fields["vocab_size"] = min(config.vocab_size, len(processing))
        task.config = with_fields(config, arguments, fields)
        # A teacher that does not fit is refused before the rows are read.
        taught = task if arguments.teacher is None else Taught(task)
        if isinstance(rows, datasets.IterableDataset):
            rows = rows.shuffle(seed=arguments.seed, buffer_size=10_000)
        with naming(source, (UnicodeDecodeError,)):  # some formats are read before they are decoded
            train = task.prepare(rows, source).with_format("numpy")
        training_data = {
            "rows": len(rows) if hasattr(rows, "__len__") else None,  # None of a stream
            # None of images: to decode them all would take long
            "sha256": content_sha256(rows, task.columns) if task.modality is TEXT else None,
            "local": bool(arguments.data_files),
        }
        return PreparedRun(arguments, taught, train, training_data, prepare_held_out(task, held_out))


def prepare_held_out(task: Task, rows: Rows | None) -> HeldOut | None:
    """The evaluation rows as the model reads them; None if there are none. The task keeps what it scores them by."""
    if rows is None:
        return None
    arguments = task.arguments
    key = next((key for key in ("tuning_holdout", "holdout") if getattr(arguments, key)), None)
    source = describe(arguments.dataset, arguments.train_split if key else arguments.eval_split, arguments.data_files)
    split = f"{key} of {arguments.train_split}" if key else arguments.eval_split
    for name in task.columns:
        find_column(rows, name, source, [])
    with naming(source, (UnicodeDecodeError,)):
        prepared = task.prepare(rows, source)
        task.keep_held_out(rows)
    return HeldOut(source, split, prepared.with_format("numpy"), content_sha256(rows, task.columns))


# Shapes and checkpoints


def has_weights(source: str) -> bool:
    """Whether `source` is a checkpoint rather than a shape alone."""
    path = Path(source)
    if source in shape_names() or path.suffix == ".json" or path.is_file():
        return False
    if not path.is_dir():
        return True
    return any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))  # which loading refuses: a pickle


def has_file(source: str, name: str) -> bool:
    """Whether `source` is a checkpoint that has the file; one on the Hub is taken to have it."""
    folder = Path(source)
    return has_weights(source) and (not folder.is_dir() or (folder / name).is_file())


def recorded_settings(arguments: RecipeArguments) -> dict[str, object]:
    """What the run's recipe.yaml and results.json say: of a checkpoint that keeps its own tokenizer no other one."""
    keeps_tokenizer = has_file(str(arguments.shape), "tokenizer.json")
    return {key: value for key, value in arguments.settings.items() if not (keeps_tokenizer and key == "tokenizer")}


# Configurations


def shape_config(arguments: RecipeArguments) -> LeanConfig:
    """The configuration of the shape, of the recipe's `image_size` and with positions for its `max_length`.

    Raises ValueError where a checkpoint has another image size, fewer positions, only a pickle, or weights of this
    family although `implementation` is transformers.
    """
    config = load_config(str(arguments.shape))
    size, length = arguments.image_size, arguments.max_length
    source, changes, differs = str(arguments.shape), {}, {}
    shape, positions = getattr(config, "image_shape", None), getattr(config, "max_position_embeddings", length)
    if size is not None and shape != (size, size):
        changes["image_size"] = size
        differs["image_size"] = f"has images of {shape}"
    if length is not None and length > positions:
        changes["max_position_embeddings"] = length
        differs["max_length"] = f"has {positions} positions"
    if arguments.implementation != "lean":
        differs["implementation"] = "has weights of this family; leaner convert turns them"
    if Path(source).is_dir() and has_weights(source) and not find_weights(Path(source)):
        differs["shape"] = f"has no {WEIGHTS}; pickles, which can run code, and ONNX files are not read"
    if differs and has_weights(source):
        key, reason = differs.popitem()
        raise ValueError(f"{key}: {source} {reason}")
    return type(config)(**{**config.to_dict(), **changes}) if changes else config


def task_of(arguments: RecipeArguments, config: LeanConfig) -> type[Task]:
    """The class of the recipe's task. Raises ValueError if the shape's family has no head for it."""
    heads = (*config.task_heads, "") if modality_of(config) is TEXT else config.task_heads  # "": the bare model
    possible = [name for name, task in TASKS.items() if task.head in heads]
    if arguments.task not in possible:
        whose = f"{config.model_type} ({arguments.shape})"
        raise ValueError(f"task: {arguments.task} is not for {whose}, which has {', '.join(possible)}")
    return TASKS[arguments.task]


def with_fields(config: LeanConfig, arguments: RecipeArguments, fields: dict[str, object]) -> LeanConfig:
    """The configuration with what data and recipe decide: labels, dropout, new weights."""
    values = {**config.to_dict(), **fields}
    gone = ["model_type", "transformers_version", "auto_map", "architectures", "dtype"]
    if "num_labels" in fields and "id2label" not in fields:
        gone += ["id2label", "label2id"]
    if arguments.initializer_range is not None:
        values["initializer_range"] = arguments.initializer_range
    if arguments.dropout is not None:
        values["hidden_dropout_prob"] = values["attention_probs_dropout_prob"] = arguments.dropout
        if "classifier_dropout" in values:
            values["classifier_dropout"] = None
    if arguments.loss_chunk_size is not None and "loss_chunk_size" in values:
        values["loss_chunk_size"] = arguments.loss_chunk_size
    return type(config)(**{key: value for key, value in values.items() if key not in gone})


# Tokenizers and image processors


def load_processing(arguments: RecipeArguments, config: LeanConfig, train: Rows | None) -> object:
    """The image processor or tokenizer: a checkpoint's own; else the recipe's, trained on the training rows."""
    source = str(arguments.shape)
    if modality_of(config) is IMAGES:
        if has_file(source, "preprocessor_config.json"):
            return AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
        height, width = config.image_shape
        mean = [0.5] * config.num_channels  # so pixels become -1..1
        return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=mean, image_std=mean)
    if has_file(source, "tokenizer.json"):
        tokenizer = read_tokenizer(source)
        tokenizer.model_max_length = arguments.max_length or tokenizer.model_max_length
        return tokenizer
    name = arguments.tokenizer or arguments.teacher  # a student reads what its teacher reads
    is_new = name in TOKENIZER_KINDS
    if name is None or (is_new and has_weights(source)):
        problem = f"tokenizer: missing; one of {', '.join(TOKENIZER_KINDS)} to train one, or a folder or Hub id"
        lost = f"{Path(source) / 'tokenizer.json'}: missing; expected that of the weights, here or by --tokenizer"
        raise ValueError(lost if has_weights(source) else problem)
    if not is_new:
        return read_tokenizer(name)

    # Trained on at most 200,000 training rows, and kept in the datasets' cache.
    columns = TASKS[arguments.task].text_columns_of(arguments, train)
    length = arguments.max_length or config.max_position_embeddings
    settings = (name, config.vocab_size, length, family_of(config), columns, __version__)
    data = (arguments.dataset, arguments.dataset_config, arguments.data_files, arguments.train_split)
    limits = (arguments.holdout, arguments.tuning_holdout, arguments.max_train_rows)
    key = Hasher.hash((getattr(train, "_fingerprint", None), settings, data, limits))
    folder = Path(datasets.config.HF_CACHE_HOME) / "modeling_leaner" / "tokenizers" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # of processes that begin together one trains it
        if not (folder / "tokenizer.json").is_file():
            texts = (row[column] for row in first_rows(train, 200_000) for column in columns)
            with naming("tokenizer"):
                tokenizer = train_tokenizer(texts, name, config.vocab_size, length, family_of(config))
            with whole_folder(folder) as unfinished:
                tokenizer.save_pretrained(unfinished)
    return read_tokenizer(str(folder))


def read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id; ValueError if there is none, or it cannot be read."""
    with naming(f"tokenizer: {source} cannot be read", (Exception,)):  # the tokenizers library raises bare Exceptions
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer.init_kwargs.pop("local_files_only", None)  # of this machine alone
        for texts in (["a"], ["a", "a"]):
            tokenizer(*texts)  # some damage shows at the first text, or the first pair
    return tokenizer


# Models


def build_model(
    arguments: RecipeArguments, task: Task, complete: bool = False, quietly: bool = False
) -> PreTrainedModel:
    """The task's model: from the seed, or a checkpoint's weights, with a new head if it has none, unless `complete`.

    Unless `quietly`, stderr names the tensors that are not taken, for they have another size there.
    """
    set_seed(arguments.seed)
    config = task.config
    auto_class = getattr(transformers, f"AutoModel{task.head}")
    source = str(arguments.shape)
    attention = {"attn_implementation": arguments.attn_implementation} if arguments.attn_implementation else {}
    if arguments.implementation == "transformers":  # of new weights, as `shape_config` has checked
        model = auto_class.from_config(from_lean_config(config), **attention)
        if isinstance(model, GPT2LMHeadModel):
            # Trainer then divides its loss by the T - 1 labels of a row that are predicted, as it does LeanGPT's.
            model.loss_type = "ForCausalLM"
        return model

    if has_weights(source):
        options = {"dtype": "float32", "ignore_mismatched_sizes": True, "output_loading_info": True, **attention}
        model, info = auto_class.from_pretrained(
            source, config=config, trust_remote_code=False, use_safetensors=True, **options
        )
        may_be_new = () if complete else MAY_BE_NEW
        resized = sorted(name for name, *_ in info["mismatched_keys"])
        wrong = [name for name in resized if not name.startswith(may_be_new)]
        may_lack = may_be_new if task.head else (*may_be_new, "pooler.")  # a bare model may have been saved without
        missing = sorted(name for name in info["missing_keys"] if not name.startswith(may_lack))
        if wrong or missing:
            unfit = f"tensors do not fit its config.json: {', '.join(wrong)}"
            untrained = f"no trained {', '.join(missing[:3])} for {task.name}"
            raise ValueError(f"{source}: {unfit if wrong else untrained}")
        if resized and arguments.process_index == 0 and not quietly:
            new = f"begins with new weights, for they have another size there: {', '.join(resized)}"
            print(f"{source}: {new}", file=sys.stderr)
    else:
        model = auto_class.from_config(config, **attention)

    if not task.head and getattr(model, "pooler", None) is not None:
        model.pooler = None  # no task reads it
    return model
