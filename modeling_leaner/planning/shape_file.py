"""The file of a planned shape, complete as those of `configuration/` are."""

import json
import re
from pathlib import Path

from ..configuration_leaner import LeanConfig
from ..support.files import free_path, write_new
from .dials import fields_of, heads_by_layer


OTHER_ENDINGS = (".csv", ".jsonl", ".parquet", ".png", ".safetensors", ".txt", ".yaml", ".yml")


def shape_file(name: str) -> Path:
    """Where `write_shape` writes: NAME.json in the working folder, or the path that NAME is.

    Raises ValueError where the file exists or its folder does not.
    """
    flag = f"--write {name}"
    if name.lower().endswith(".json"):
        return free_path(flag, Path(name))
    if "/" not in name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise ValueError(f"--write {name!r}: expected letters, digits, dots and dashes, or a path")
    if Path(name).suffix.lower() in OTHER_ENDINGS:
        raise ValueError(f"--write {name}: a shape is a JSON file, expected a name without ending or with .json")
    return free_path(flag, Path(f"{name}.json"))


def write_shape(config: LeanConfig, name: str) -> Path:
    """Writes a complete shape file and returns its path, `shape_file`; raises ValueError as that does."""
    path = shape_file(name)
    head = type(config).__name__.removesuffix("Config") + config.task_heads[0]
    document = {"model_type": config.model_type, "architectures": [head], **fields_of(config)}
    if config.per_layer_attributes:
        document["per_layer_config"] = heads_by_layer(config.heads_per_layer)
    write_new(f"--write {name}", path, (json.dumps(document, indent=2) + "\n").encode())
    return path
