"""Folders of runs and published models: configuration, results, weights, and the copies of the model code.

A published folder holds the files of the package that its model needs, so that it loads if the package is not
installed. Whoever loads it with `trust_remote_code=True` runs them: no other code may be there.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files

import modeling_leaner
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import naming, read_json, read_object, require, sha256, write_bytes
from modeling_leaner.layers_leaner import WEIGHTS, find_weights
from modeling_leaner.shapes import CONFIG_CLASSES
from modeling_leaner.slimming.slim import RECORD

from ..records import CutStep, PublishedResults, Record, RunResults, SlimFile, checked
from ..records.results import PUBLISHED, RESULTS
from ..running.card import auto_class, settings_of
from ..running.loading import tensor_shapes
from ..tasks.registry import TASKS


CARDS = Path(PUBLISHED)
PACKAGE = Path(modeling_leaner.__file__).parent
MODULES = "modules.json"  # of sentence-transformers
UNREADABLE = (OSError, ValueError, KeyError, RecursionError)  # what a file that cannot be used raises
WRITTEN_BY_TRAINER = {"auto_map", "use_cache"}  # keys of a saved config.json that are not fields of every family
FAMILIES = {kind.model_type: kind for kind in CONFIG_CLASSES.values()}


class Run(NamedTuple):
    """A folder's configuration and results, all settings of its training, and the command that trains it again."""

    config: PreTrainedConfig
    results: RunResults
    settings: dict[str, Any]
    command: str


class Module(Record):
    """An entry of modules.json."""

    type: str  # the class that is loaded, with its package or, if it is remote code, its repository


def without_local_settings(recipe: Mapping[str, object]) -> dict[str, object]:
    """The recipe of a run as it is published: without where data lie on one machine."""
    return {key: value for key, value in recipe.items() if key != "data_files"}


# Runs


def check_there(folder: Path) -> None:
    """Raises ValueError, naming what is missing, if a folder holds no finished run."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    for name in (RESULTS, "config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing; leaner train writes it at the end of a run")


def config_class_of(folder: Path) -> type[LeanConfig]:
    """The family of a folder by its config.json, which is only read. Raises ValueError for another model_type."""
    file = folder / "config.json"
    model_type = read_object(file).get("model_type")
    require(model_type in FAMILIES, file, "model_type", model_type, f"one of {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def results_in(file: Path) -> RunResults:
    """results.json of a published model or a run. Raises ValueError that names the field."""
    document = read_object(file)
    if "evidence" in document or "weights_sha256" in document:
        return checked(PublishedResults, document, file)
    return checked(RunResults, document, file)


def read_run(folder: Path) -> Run:
    """What a folder holds of its run.

    Raises:
        ValueError: configuration and results do not fit; names the file and the missing or wrong field.
    """
    check_there(folder)
    with naming(folder / "config.json", UNREADABLE):
        config_class_of(folder)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    file = folder / RESULTS
    with naming(file, UNREADABLE):
        results = results_in(file)
        require(results.task in TASKS, file, "task", results.task, f"one of {', '.join(TASKS)}")
        is_bare = TASKS[results.task].trains_bare_model()
        auto = auto_class(results.architecture)
        target = config.auto_classes().get(auto, "").split(".")[-1]
        fits = target == results.architecture and is_bare == (auto == "AutoModel")
        require(fits, file, "architecture", results.architecture, f"a class of {results.task}")
        parameters = config.count_parameters(results.architecture).total
        same = is_bare or results.parameters == parameters  # a bare model may lack its pooling layer
        require(same, file, "parameters", results.parameters, f"{parameters}")
        scored = f"eval_{results.metric}" in results.metrics or not (results.metrics or results.rows)
        require(scored, file, "main_metric", results.metric, f"one of {[*results.metrics]}")
        return Run(config, results, *settings_of(results))


def check_tensor_shapes(folder: Path, architecture: str, config: PreTrainedConfig) -> None:
    """Raises ValueError unless the weights, if there are any, are the tensors of the configuration."""
    files = find_weights(folder)
    if not files:
        return
    with torch.device("meta"):
        model_class = getattr(transformers, auto_class(architecture))
        model = model_class.from_config(config, trust_remote_code=False)
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    optional = {name for name in expected if name.startswith("pooler.")}  # of a bare model
    optional.update(getattr(model, "_tied_weights_keys", None) or ())
    held = {}
    for path in files:
        held |= tensor_shapes(path)
    place = folder / WEIGHTS if len(files) == 1 else folder
    for name in sorted(expected.keys() | held.keys()):
        if held.get(name) != expected.get(name) and (name in held or name not in optional):
            raise ValueError(f"{place}: {name} is {held.get(name)}, expected {expected.get(name)} of config.json")


def published_folders(cards: Path) -> list[Path]:
    """Every published folder, of whatever kind."""
    return sorted(path.parent for path in cards.glob("*/config.json"))


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside `target` to make a folder at, which takes its place if all goes well; else `target` stays.

    Raises:
        ValueError: as raised within, about `target` instead of the path.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".publish-") as scratch:
        folder, before = Path(scratch) / target.name, Path(scratch) / "before"
        try:
            yield folder
        except ValueError as error:
            raise ValueError(str(error).replace(str(folder), str(target))) from error
        if target.is_dir():
            target.rename(before)  # deleted with the scratch folder, once the new one is in place
        try:
            folder.rename(target)
        except BaseException:  # Ctrl-C, too
            if before.is_dir():
                before.rename(target)
            raise


# Pruned models


def slim_file_in(folder: Path) -> SlimFile:
    """What the slim.json of a folder records. Raises ValueError that names file and key."""
    file = folder / RECORD
    if not file.is_file():
        raise ValueError(f"{file}: missing; it records what was cut")
    return checked(SlimFile, read_object(file), file)


def cuts_in(folder: Path) -> list[CutStep]:
    """What was cut, step by step. Raises ValueError as `slim_file_in`."""
    return slim_file_in(folder).cuts


def check_parent_weights(place: str, recorded: str | None, parent: Path) -> None:
    """Raises ValueError, naming the place of the record, if the parent's folder holds other weights than were cut.

    Nothing is compared if no hash was recorded, or if the weights are not there.
    """
    weights = parent / WEIGHTS
    if recorded is None or not weights.is_file():
        return
    found = sha256(weights)
    if found != recorded:
        raise ValueError(f"{place} is {recorded}, but {weights} has {found}: the parent was replaced; cut it again")


# Code


def code_files(config_class: type[LeanConfig]) -> dict[str, Path]:
    """The package's files that a model of this family needs, by name: its modeling file and all that it imports."""
    modeling = PACKAGE / f"modeling_{config_class.model_type}.py"
    paths = [modeling, *map(Path, get_relative_import_files(modeling))]
    return {path.name: path for path in paths}


def is_code(path: Path) -> bool:
    """Whether Python could run a file: source, compiled, or what a folder of packages may hold."""
    return path.suffix.startswith(".py") or path.suffix in (".so", ".pth")


def is_plain(folder: Path) -> bool:
    """Whether a folder holds a model of transformers, which needs no code."""
    return read_object(folder / "config.json").get("model_type") in ("bert", "vit", "gpt2")


def check_links(folder: Path) -> None:
    """Raises ValueError for a link that leads out of the folder; the links of the Hub's own cache are allowed."""
    allowed = (folder.resolve(), folder.resolve().parent.parent / "blobs")
    for path in sorted(folder.rglob("*")):
        target = path.resolve()
        if path.is_symlink() and not any(target.is_relative_to(place) for place in allowed):
            raise ValueError(f"{path}: a link to {target}, expected a file of this folder")


def check_no_other_code(folder: Path) -> None:
    """Raises ValueError if tokenizer, processor or modules would load code that is not their library's own."""
    for path in sorted(folder.glob("*.json")):
        if path.name not in ("config.json", MODULES) and "auto_map" in read_object(path):
            raise ValueError(f"{path}: auto_map names code, expected none: tokenizer and processor are transformers'")
    if (folder / MODULES).is_file():
        check_modules(folder / MODULES)


def check_modules(path: Path) -> None:
    """Raises ValueError if sentence-transformers would load a module that is not its own."""
    for module in checked(list[Module], read_json(path), path):
        own = module.type.startswith("sentence_transformers.") and "--" not in module.type
        require(own, path, "type", module.type, "a module of sentence-transformers")


def check_code(folder: Path) -> None:
    """Checks, by reading alone, that loading the folder with `trust_remote_code=True` runs the package's code only.

    A plain folder, of a model of transformers, has no code at all.

    Raises:
        ValueError: a code file that differs from the package's, is missing, or is not the package's; an
            `auto_map` that points elsewhere; a key of config.json that no model of the family writes. Named.
    """
    config_class = None if is_plain(folder) else config_class_of(folder)
    expected = {} if config_class is None else code_files(config_class)
    for path in sorted(filter(is_code, folder.rglob("*"))):
        if path.parent != folder or path.name not in expected:
            raise ValueError(f"{path}: not a file of a published folder: modeling_leaner has no such code")
    for name, original in expected.items():
        copy = folder / name
        if not copy.is_file():
            raise ValueError(f"{copy}: missing; leaner publish renews it")
        if copy.read_bytes() != original.read_bytes():
            version = modeling_leaner.__version__
            raise ValueError(f"{copy}: differs from that of modeling_leaner {version}; leaner publish renews it")
    file = folder / "config.json"
    document = read_object(file)
    auto_map = document.get("auto_map")
    if config_class is None:
        require(auto_map is None, file, "auto_map", auto_map, "none")
        check_no_other_code(folder)
        return
    require(isinstance(auto_map, dict), file, "auto_map", auto_map, f"that of {config_class.__name__}")
    own = config_class.auto_classes()
    for name in sorted(auto_map.keys() | own.keys()):
        require(
            auto_map.get(name) == own.get(name), file, f"auto_map: {name}", auto_map.get(name), repr(own.get(name))
        )
    known = config_class().to_dict().keys() | config_class._own_keys() | WRITTEN_BY_TRAINER | {"per_layer_config"}
    for key in sorted(document.keys() - known):  # one of transformers may name code, as attn_implementation does
        raise ValueError(f"{file}: {key}: not a key that a {config_class.__name__} is saved with")
    check_no_other_code(folder)


def renew_code(folder: Path) -> None:
    """Writes the package's files, and the auto_map that names them, over what the folder holds, unless it is plain.

    Raises:
        ValueError: config.json is not that of one of the families.
    """
    if is_plain(folder):
        return
    config_class = config_class_of(folder)
    for path in folder.glob("*.py"):
        path.unlink()
    for name, original in code_files(config_class).items():
        shutil.copyfile(original, folder / name)
    config = folder / "config.json"
    document = read_object(config)
    if document.get("auto_map") != config_class.auto_classes():
        document["auto_map"] = config_class.auto_classes()
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"  # as transformers writes it
        write_bytes(config, text.encode())
