"""Folders of models: their results, and whether weights, configuration and copies of the model code belong together.

A published folder holds the files of this package that its model needs, so that it loads without the package. Loading
it with `trust_remote_code=True` runs them: no other code may be there.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig
from transformers.dynamic_module_utils import get_relative_import_files

import modeling_leaner
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import naming, read_json, read_object, sha256, update_config
from modeling_leaner.layers_leaner import WEIGHTS, find_weights
from modeling_leaner.shapes import CONFIG_CLASSES, is_plain

from ..records import PUBLISHED, RESULTS, PublishedResults, RunResults, checked


CARDS = Path(PUBLISHED)
PACKAGE = Path(modeling_leaner.__file__).parent
README = "README.md"
ENCODER = "sentence encoder"  # `kind` in the results.json of one
WRITTEN_BY_TRAINER = {"auto_map", "use_cache"}  # keys of a saved config.json that are not fields of every family
FAMILIES = {kind.model_type: kind for kind in CONFIG_CLASSES.values()}


def published_folders(cards: Path) -> list[Path]:
    """Every published folder, of whatever kind."""
    return sorted(path.parent for path in cards.glob("*/config.json"))


def results_in(file: Path) -> RunResults:
    """results.json of a published model or a run."""
    document = read_object(file)
    return checked(PublishedResults if "evidence" in document else RunResults, document, file)


def is_encoder(folder: Path) -> bool:
    """Whether a folder is a published sentence encoder."""
    return (folder / RESULTS).is_file() and read_object(folder / RESULTS).get("kind") == ENCODER


def check_folder(folder: Path, files: Iterable[str] | None = None) -> None:
    """Checks that links, code, configuration and weights of a model's folder belong together; none of its code runs.

    A model of this family has this package's code. Any other goes as transformers or sentence-transformers load it by
    themselves: without code. Raises ValueError that names what does not fit. `files` is that of `check_code`.
    """
    check_code(folder, files)
    for path in find_weights(folder):
        with naming(f"{path}: damaged or not safetensors", (SafetensorError,)):
            safe_open(path, framework="pt")
    if not is_plain(folder):
        with naming(f"{folder}: cannot be loaded", (Exception,)):  # of whatever transformers makes of the file
            (name,) = AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures
            model_class = getattr(transformers, "AutoModel" + "".join(name.partition("For")[1:]))
            _, info = model_class.from_pretrained(folder, trust_remote_code=False, output_loading_info=True)
        missing = {name for name in info["missing_keys"] if not name.startswith("pooler.")}  # a bare model may lack it
        wrong = sorted(missing | {*info["unexpected_keys"]})
        if wrong:
            raise ValueError(f"{folder}: the weights do not fit config.json, such as {wrong[0]}")
    results = read_object(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    stated = results.get("sha256") or {WEIGHTS: results.get("weights_sha256")}  # of an encoder, else of a grid's model
    for name, expected in stated.items():
        if expected is not None and sha256(folder / name) != expected:
            raise ValueError(f"{folder / name}: not the file that its results.json was written for: its hash differs")


def code_files(config_class: type[LeanConfig]) -> dict[str, Path]:
    """The package's files that a model of this family needs, by name: its modeling file and all that it imports."""
    modeling = PACKAGE / f"modeling_{config_class.model_type}.py"
    return {path.name: path for path in [modeling, *map(Path, get_relative_import_files(modeling))]}


def check_code(folder: Path, files: Iterable[str] | None = None) -> None:
    """Raises ValueError where `trust_remote_code=True` might run other code of the folder than the package's.

    It only reads. A plain folder, of a model of transformers, has no code at all. Reasons are a link that leads out of
    the folder; a code file that differs from the package's, is missing or not the package's; an `auto_map` or a module
    that points elsewhere; a key of config.json that no model of the family writes. `files` are those of the folder
    that count as code; None for all.
    """
    file = folder / "config.json"
    document = read_object(file)
    config_class = FAMILIES.get(document.get("model_type"))

    # What Python could run: source, compiled, or what a folder of packages may hold.
    expected = {folder / name: path for name, path in code_files(config_class).items()} if config_class else {}
    paths = folder.rglob("*") if files is None else map(folder.joinpath, files)
    found = {path for path in paths if path.suffix.startswith(".py") or path.suffix in (".so", ".pth")}
    blobs = folder.resolve().parent.parent / "blobs"  # to which the Hub's cache links
    links = {path: path.resolve() for path in folder.rglob("*") if path.is_symlink()}
    outside = {path for path, target in links.items() if not {folder.resolve(), blobs} & {*target.parents}}
    for path in sorted(found | expected.keys() | outside):
        what = "differs from that of this package; leaner publish renews it"
        if path in outside:
            what = f"a link to {links[path]}, expected a file of this folder"
        elif path not in expected:
            what = "not a file of a published folder: modeling_leaner has no such code"
        elif not path.is_file():
            what = "missing; expected that of this package; leaner publish renews it"
        elif path.read_bytes() == expected[path].read_bytes():
            continue
        raise ValueError(f"{path}: {what}")

    # What names code: config.json that of the family, tokenizer and processor are transformers' own.
    for path in sorted({*folder.glob("*.json")} - {folder / "modules.json"}):
        auto_map = config_class.auto_classes() if config_class and path == file else None
        given = read_object(path).get("auto_map")
        if given != auto_map:
            raise ValueError(f"{path}: auto_map is {given}, expected {auto_map}")
    if config_class:  # a key of transformers may name code, as attn_implementation does
        known = config_class().to_dict().keys() | config_class._own_keys() | WRITTEN_BY_TRAINER | {"per_layer_config"}
        unknown = sorted(document.keys() - known)
        if unknown:
            raise ValueError(f"{file}: {unknown[0]}: not a key that a {config_class.__name__} is saved with")
    path = folder / "modules.json"
    for module in checked(list[dict], read_json(path), path) if path.is_file() else []:
        if not re.fullmatch(r"sentence_transformers\.[\w.]+", str(module.get("type"))):
            raise ValueError(f"{path}: type is {module.get('type')!r}, expected a module of sentence-transformers")


def renew_code(folder: Path) -> None:
    """Writes the package's files, and the auto_map that names them, over what the folder holds, unless it is plain."""
    if is_plain(folder):
        return
    config_class = FAMILIES[read_object(folder / "config.json")["model_type"]]
    for path in folder.glob("*.py"):
        path.unlink()
    for name, original in code_files(config_class).items():
        shutil.copyfile(original, folder / name)
    update_config(folder, auto_map=dict(sorted(config_class.auto_classes().items())))
