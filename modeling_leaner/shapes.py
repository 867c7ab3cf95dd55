"""Named shapes, config files, folders and Hub ids, read as configurations. No model is built."""

from pathlib import Path

from transformers import AutoConfig

from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig
from .family import IMAGES, TEXT
from .files import naming, read_json, read_object
from .names import SHAPES, require_source, shape_names


CONFIG_CLASSES: dict[str, type[LeanConfig]] = {"vit": LeanViTConfig, "bert": LeanBERTConfig, "gpt": LeanGPTConfig}


def load_shape(name: str, **overrides) -> LeanConfig:
    """The configuration of a named shape; `overrides` replace fields before it is validated."""
    require_source(name, or_shape=True)
    values = read_json(SHAPES / f"{name}.json") | overrides
    values.pop("model_type")
    return CONFIG_CLASSES[name.split("/")[0]](**values)


def heads_of(config: LeanConfig) -> int | list[int]:
    """The heads of every layer, or a list where layers differ."""
    heads = list(config.heads_per_layer)
    return heads[0] if len(set(heads)) == 1 else heads


def family_of(config: LeanConfig) -> str:
    """The key of `CONFIG_CLASSES`."""
    return config.model_type.removeprefix("lean_")


def modality_of(config: LeanConfig) -> str:
    """What the configuration's family reads: `family.IMAGES` or `family.TEXT`."""
    return IMAGES if family_of(config) == "vit" else TEXT


def is_plain(folder: Path) -> bool:
    """Whether a folder's config.json is no model of this family but one of transformers, which needs no code."""
    model_type = read_object(folder / "config.json").get("model_type")
    return model_type not in [config_class.model_type for config_class in CONFIG_CLASSES.values()]


def load_config(source: str) -> LeanConfig:
    """The configuration of a named shape, a config file, a folder or a Hub id. Raises ValueError for any other."""
    if source in shape_names():
        return load_shape(source)
    require_source(source, or_shape=True)
    kinds = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
    with naming(f"shape {source}: no configuration that can be read", kinds):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if not getattr(config, "model_type", "").startswith("lean_"):
        raise ValueError(f"shape {source}: a {config.model_type} model; turn it into a Lean one by leaner convert")
    return config
