"""Run folders and published ones, read and checked; ValueError where config, results and weights do not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig

from modeling_leaner.checkpoints_leaner import WEIGHTS, find_weights
from modeling_leaner.files import flat, naming, read_object, require
from modeling_leaner.shapes import CONFIG_CLASSES

from ..records import PublishedEncoder, PublishedResults, RunResults, checked
from ..records.results import PUBLISHED, RESULTS
from ..running.card import settings_of
from ..running.loading import tensor_shapes
from ..running.snippets import auto_class
from ..settings.arguments import TASK_NAMES
from ..tasks.registry import TASKS


CARDS = Path(PUBLISHED)
LOCAL = ("data_files",)  # settings that say where data lie on one machine
RUN_FILES = (  # what a published folder has of its run
    "config.json generation_config.json model.safetensors preprocessor_config.json tokenizer.json "
    "tokenizer_config.json special_tokens_map.json *_lean*.py training.png metrics.jsonl"
).split()
FAMILIES = tuple(kind.model_type for kind in CONFIG_CLASSES.values())
UNREADABLE = (OSError, ValueError, KeyError, RecursionError)  # what a file that cannot be used raises
SIZES = ["hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "intermediate_size"]


RECORD_OF_FIELD = {  # field → the kind of results.json that has it, the first that fits
    "comparison": PublishedEncoder,
    "evidence": PublishedResults,
    "weights_sha256": PublishedResults,
}


class Run(NamedTuple):
    """A folder's configuration and results, all settings of its training, and the command that trains it again."""

    config: PreTrainedConfig
    results: RunResults
    settings: dict[str, Any]
    command: str


def without_local_settings(recipe: Mapping[str, object]) -> dict[str, object]:
    """The recipe of a run as it is published: without what `LOCAL` names."""
    return {key: value for key, value in recipe.items() if key not in LOCAL}


def check_there(folder: Path) -> None:
    """Raises ValueError that says what is missing, where a folder holds no finished run."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if not any(folder.iterdir()):
        raise ValueError(f"{folder}: the folder is empty, expected config.json and results.json of a finished run")
    for name in (RESULTS, "config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing; leaner train writes it at the end of a run")


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a folder, once it states its family and sizes. Raises ValueError that names the field."""
    path = folder / "config.json"
    values = flat(path, read_object(path))
    for name, kind in {"model_type": str, **dict.fromkeys(SIZES, int)}.items():
        require(type(values.get(name)) is kind, path, name, values.get(name), kind.__name__)
    family = values["model_type"]
    require(family in FAMILIES, path, "model_type", family, f"one of {', '.join(FAMILIES)}")
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def results_in(file: Path) -> RunResults:
    """results.json: of a published folder of a grid, of a sentence encoder, or of a run, by its `RECORD_OF_FIELD`.

    Here alone kinds of folders are told apart; the record's class says it to everybody else.

    Raises:
        ValueError: names the field.
    """
    document = read_object(file)
    for field, kind in RECORD_OF_FIELD.items():
        if field in document:
            return checked(kind, document, file)
    return checked(RunResults, document, file)


def published_folders(cards: Path) -> list[Path]:
    """Every published folder, of whatever kind."""
    return sorted(path.parent for path in cards.glob("*/config.json"))


def read_results(folder: Path, config: PreTrainedConfig) -> Run:
    """The results of a folder, compared with its configuration. Raises ValueError that names the field."""
    file = folder / RESULTS
    results = results_in(file)
    task = TASKS.get(results.task)
    has_no_head = task is not None and task.trains_bare_model()
    classes = []
    for auto, target in config.auto_classes().items():
        is_bare = auto == "AutoModel"
        if auto.startswith("AutoModel") and is_bare == has_no_head:
            classes.append(target.split(".")[1])
    kind = results.architecture
    require(kind in classes, file, "architecture", kind, f"one of {classes}")
    parameters = config.count_parameters(kind).total
    settings, command = settings_of(results)
    main = f"eval_{results.metric}"
    metrics = list(results.metrics)
    require(results.task in TASK_NAMES, file, "task", results.task, f"one of {TASK_NAMES}")
    require(main in metrics or not (metrics or results.rows), file, "main_metric", main, f"one of {metrics}")
    same = has_no_head or results.parameters == parameters  # a bare model may lack its pooling layer
    require(same, file, "parameters", results.parameters, f"{parameters}")
    return Run(config, results, settings, command)


def read_run(folder: Path) -> Run:
    """What a folder holds of its run. Raises ValueError that names the file and the missing or wrong field."""
    check_there(folder)
    with naming(folder / "config.json", UNREADABLE):
        config = read_config(folder)
    with naming(folder / RESULTS, UNREADABLE):
        return read_results(folder, config)


def check_tensor_shapes(folder: Path, architecture: str, config: PreTrainedConfig) -> None:
    """Raises ValueError where the weights, if there are any, are not the tensors of the configuration."""
    files = find_weights(folder)
    if not files:
        return
    with torch.device("meta"):
        model_class = getattr(transformers, auto_class(architecture))
        model = model_class.from_config(config, trust_remote_code=False)
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    optional = {name for name in expected if name.startswith("pooler.")}  # of a bare model
    tied = getattr(model, "_tied_weights_keys", None)
    if tied is not None:
        optional.update(tied)
    held = {}
    for path in files:
        held |= tensor_shapes(path)
    place = folder / WEIGHTS
    if len(files) > 1:
        place = folder
    for name in sorted(expected.keys() | held.keys()):
        if name in optional and name not in held:
            continue
        if held.get(name) != expected.get(name):
            raise ValueError(f"{place}: {name} is {held.get(name)}, expected {expected.get(name)} of config.json")
