"""The copies of the model code in a published folder: what they must be, and writing them anew.

A published folder holds the files of the package that its model needs, so that it loads where the package is not
installed. Whoever loads it with `trust_remote_code=True` runs them: nothing but the package's own may be there.
"""

import json
import shutil
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

import modeling_leaner
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import read_json, read_object, write_bytes
from modeling_leaner.shapes import CONFIG_CLASSES

from ..records import Record, checked


PACKAGE = Path(modeling_leaner.__file__).parent
MODULES = "modules.json"  # of sentence-transformers
OWN_MODULES = "sentence_transformers."
WRITTEN_BY_TRAINER = {"auto_map", "use_cache"}  # keys of a saved config.json that are not fields of every family


class Module(Record):
    """An entry of modules.json."""

    type: str
    """The class that is loaded, with its package or, of remote code, its repository."""


def code_files(config_class: type[LeanConfig]) -> dict[str, Path]:
    """The package's files that a model of this family needs, by name: its modeling file and all that it imports."""
    modeling = PACKAGE / f"modeling_{config_class.model_type}.py"
    paths = [modeling, *map(Path, get_relative_import_files(modeling))]
    return {path.name: path for path in paths}


def config_class_of(folder: Path) -> type[LeanConfig]:
    """The family of a folder by its config.json, which is only read. Raises ValueError for another model_type."""
    model_type = read_object(folder / "config.json").get("model_type")
    for config_class in CONFIG_CLASSES.values():
        if config_class.model_type == model_type:
            return config_class
    expected = ", ".join(config_class.model_type for config_class in CONFIG_CLASSES.values())
    raise ValueError(f"{folder / 'config.json'}: model_type is {model_type!r}, expected one of {expected}")


def check_code(folder: Path) -> None:
    """Checks, by reading alone, that loading the folder with `trust_remote_code=True` runs the package's code only.

    Raises:
        ValueError: a code file that differs from the package's, is missing, is a link, or is not the package's; an
            `auto_map` that points elsewhere; a key of config.json that no model of the family writes. Named.
    """
    config_class = config_class_of(folder)
    expected = code_files(config_class)
    check_links(folder)
    for path in sorted(folder.rglob("*")):
        is_code = path.suffix.startswith(".py") or path.suffix in (".so", ".pth")
        if is_code and (path.parent != folder or path.name not in expected):
            raise ValueError(f"{path}: not a file of a published folder: modeling_leaner has no such code")
    for name, original in expected.items():
        copy = folder / name
        if not copy.is_file():
            raise ValueError(f"{copy}: missing; leaner publish renews it")
        if copy.read_bytes() != original.read_bytes():
            version = modeling_leaner.__version__
            raise ValueError(f"{copy}: differs from that of modeling_leaner {version}; leaner publish renews it")
    check_config(folder / "config.json", config_class)
    for path in sorted(folder.glob("*.json")):
        if path.name in ("config.json", MODULES):
            continue
        if "auto_map" in read_object(path):
            raise ValueError(f"{path}: auto_map names code, expected none: tokenizer and processor are transformers'")
    if (folder / MODULES).is_file():
        check_modules(folder / MODULES)


def check_modules(path: Path) -> None:
    """Raises ValueError where sentence-transformers would load a module that is not its own."""
    modules = checked(list[Module], read_json(path), path)
    for module in modules:
        if not module.type.startswith(OWN_MODULES) or "--" in module.type:
            raise ValueError(f"{path}: type is {module.type!r}, expected a module of sentence-transformers")


def check_links(folder: Path) -> None:
    """Raises ValueError for a link that leads out of the folder; the links of the Hub's own cache are allowed."""
    for path in sorted(folder.rglob("*")):
        target = path.resolve()
        allowed = (folder.resolve(), folder.resolve().parent.parent / "blobs")
        if path.is_symlink() and not any(target.is_relative_to(place) for place in allowed):
            raise ValueError(f"{path}: a link to {target}, expected a file of this folder")


def check_config(path: Path, config_class: type[LeanConfig]) -> None:
    """Raises ValueError where config.json names other code than the family's, or has keys that it does not write."""
    document = read_object(path)
    auto_classes = config_class.auto_classes()
    auto_map = document.get("auto_map")
    if not isinstance(auto_map, dict):
        raise ValueError(f"{path}: auto_map is {auto_map!r}, expected that of {config_class.__name__}")
    for name in sorted(auto_map.keys() | auto_classes.keys()):
        shipped = auto_map.get(name)
        expected = auto_classes.get(name)
        if shipped != expected:
            raise ValueError(f"{path}: auto_map: {name} is {shipped!r}, expected {expected!r}")
    known = config_class().to_dict().keys() | config_class._own_keys() | WRITTEN_BY_TRAINER | {"per_layer_config"}
    unknown = sorted(document.keys() - known)
    if unknown:
        raise ValueError(f"{path}: {unknown[0]}: not a key that a {config_class.__name__} is saved with")


def renew_code(folder: Path) -> None:
    """Writes the package's files, and the auto_map that names them, in place of what the folder holds.

    Raises:
        ValueError: config.json is not that of one of the families.
    """
    config_class = config_class_of(folder)
    expected = code_files(config_class)
    for path in folder.glob("*.py"):
        if path.name not in expected:
            path.unlink()
    for name, original in expected.items():
        (folder / name).unlink(missing_ok=True)
        shutil.copyfile(original, folder / name)
    config = folder / "config.json"
    document = read_object(config)
    if document.get("auto_map") != config_class.auto_classes():
        document["auto_map"] = config_class.auto_classes()
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"  # as transformers writes it
        write_bytes(config, text.encode())
