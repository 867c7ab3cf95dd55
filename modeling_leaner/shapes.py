"""The registry of named shapes: the files of `configuration/`, read as configurations. No model is built."""

import json
from functools import cache
from pathlib import Path

from transformers import AutoConfig

from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig


# Of a baseline: fewer layers and more heads; more heads than fit the width; fewer layers alone; more heads alone.
VARIANTS = ("lean-", "fixed-head-", "shallow-", "many-heads-")
CONFIG_CLASSES: dict[str, type[LeanConfig]] = {"vit": LeanViTConfig, "bert": LeanBERTConfig, "gpt": LeanGPTConfig}


@cache
def shapes_folder() -> Path:
    """The folder of the named shapes, installed or in a clone."""
    from . import configuration  # mapped to configuration/ by setup.cfg

    return Path(configuration.__file__).parent


def shape_names() -> list[str]:
    """All names as `family/name`, every baseline before its variants."""
    names = []
    for family in CONFIG_CLASSES:
        found = [f"{family}/{path.stem}" for path in (shapes_folder() / family).glob("*.json")]
        names += sorted(found, key=lambda name: (baseline_of(name) or name, baseline_of(name) is not None, name))
    return names


def shape_path(name: str) -> Path:
    """The file of a named shape, `"bert/lean-tiny"`; it loads with `AutoConfig.from_pretrained(path)`.

    Raises:
        ValueError: no such name; the message lists the names.
    """
    if name not in shape_names():
        raise ValueError(f"unknown shape {name!r}, expected one of {', '.join(shape_names())}")
    return shapes_folder() / f"{name}.json"


def load_shape(name: str, **overrides) -> LeanConfig:
    """The configuration of a named shape; `overrides` replace fields before it is validated."""
    path = shape_path(name)
    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("model_type")
    return CONFIG_CLASSES[name.split("/")[0]](**{**values, **overrides})


def family_of(config: LeanConfig) -> str:
    """`vit`, `bert` or `gpt`."""
    return config.model_type.removeprefix("lean_")


def load_config(source: str) -> LeanConfig:
    """The configuration of a named shape, a config file, a folder or a Hub id.

    Raises:
        ValueError: there is none, or it is not of this family; says what was expected.
    """
    if source in shape_names():
        return load_shape(source)
    path = Path(source)
    if not path.exists() and (path.suffix == ".json" or source.split("/")[0] in ("vit", "bert", "gpt")):
        load_shape(source)  # says which names there are
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"shape {source}: no named shape, config file, folder or Hub id: {reason:.300}") from error
    if not getattr(config, "model_type", "").startswith("lean_"):
        raise ValueError(f"shape {source}: a {config.model_type} model; turn it into a Lean one by leaner convert")
    return config


def baseline_of(name: str) -> str | None:
    """The baseline of a lean twin or another variant (`bert/lean-10x24` → `bert/16x12`); None for a baseline."""
    family, shape = name.split("/")
    prefix = next((prefix for prefix in VARIANTS if shape.startswith(prefix)), None)
    if prefix is None:
        return None
    stem = shape.removeprefix(prefix).removesuffix("-mlp")
    return f"{family}/{'16x12' if stem == '10x24' else stem}"
