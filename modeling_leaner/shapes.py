"""Named shapes, config files, folders and Hub ids, read as configurations. No model is built."""

from functools import cache
from pathlib import Path

from transformers import AutoConfig

from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig
from .family import FAMILIES, Modality
from .files import read_json
from .hub import require_source
from .terminal import did_you_mean, did_you_mean_path


CONFIG_CLASSES: dict[str, type[LeanConfig]] = {"vit": LeanViTConfig, "bert": LeanBERTConfig, "gpt": LeanGPTConfig}
VARIANTS = (  # of a baseline, by the beginning of the name
    "lean-",  # fewer layers and more heads
    "fixed-head-",  # more heads than fit the width
    "shallow-",  # fewer layers alone
    "many-heads-",  # more heads alone
    "one-head-",  # fewer layers and one head
    "twelve-heads-",  # fewer layers and twelve heads
    # Controls of the lean twin's size:
    "half-mlp-",  # the MLP of half the width
    "quarter-mlp-",
    "deep-narrow-",  # deeper and narrower, with the twin's parameters
    "narrow-",  # narrower, with the parameters of the twin's layers
)
RENAMED = {"10x24": "16x12"}  # the baseline of a variant whose name has its own layers × heads


@cache
def shapes_folder() -> Path:
    """The folder of the named shapes, installed or in a clone."""
    from . import configuration  # mapped to configuration/ by setup.cfg

    return Path(configuration.__file__).parent


def baseline_of(name: str) -> str | None:
    """The baseline of a lean twin or another variant (`bert/lean-10x24` → `bert/16x12`); None for a baseline."""
    family, shape = name.split("/")
    for prefix in VARIANTS:
        if shape.startswith(prefix):
            stem = shape.removeprefix(prefix).removesuffix("-mlp")
            return f"{family}/{RENAMED.get(stem, stem)}"
    return None


def shape_names() -> list[str]:
    """All names as `family/name`, every baseline before its variants."""
    names = []
    for family in FAMILIES:
        of_family = [f"{family}/{path.stem}" for path in (shapes_folder() / family).glob("*.json")]
        names += sorted(of_family, key=lambda name: (baseline_of(name) or name, baseline_of(name) is not None, name))
    return names


def shape_path(name: str) -> Path:
    """The file of a named shape, `"bert/lean-tiny"`; it loads with `AutoConfig.from_pretrained(path)`.

    Raises:
        ValueError: no such name; the message has the nearest one.
    """
    if name not in shape_names():
        hint = did_you_mean(name, shape_names())
        raise ValueError(f"unknown shape {name!r}{hint} (`leaner shapes` lists all)")
    return shapes_folder() / f"{name}.json"


def check_shape(source: str) -> None:
    """Raises ValueError for what looks like the name of a shape or a .json file, but does not exist."""
    path = Path(source)
    if source in shape_names() or path.exists():
        return
    if source.split("/")[0] in FAMILIES:
        shape_path(source)
    if path.suffix == ".json":
        raise ValueError(f"no file {source}{did_you_mean_path(path)}")


def load_shape(name: str, **overrides) -> LeanConfig:
    """The configuration of a named shape; `overrides` replace fields before it is validated."""
    values = read_json(shape_path(name)) | overrides
    values.pop("model_type")
    return CONFIG_CLASSES[name.split("/")[0]](**values)


def heads_of(config: LeanConfig) -> int | list[int]:
    """The heads of every layer, or a list where layers differ."""
    heads = list(config.heads_per_layer)
    return heads[0] if len(set(heads)) == 1 else heads


def family_of(config: LeanConfig) -> str:
    """The key of `FAMILIES`."""
    return config.model_type.removeprefix("lean_")


def modality_of(config: LeanConfig) -> Modality:
    """What the configuration's family reads: `family.IMAGES` or `family.TEXT`."""
    return FAMILIES[family_of(config)].modality


def _require_model_type(source: str) -> None:
    """Raises ValueError if config.json names no family: transformers would ask whether to run its code."""
    path = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return  # reading it as a configuration says what is wrong
    if isinstance(document, dict) and "model_type" not in document:
        kinds = ", ".join(config_class.model_type for config_class in CONFIG_CLASSES.values())
        raise ValueError(f"{path}: model_type: missing, expected one of {kinds}")


def load_config(source: str) -> LeanConfig:
    """The configuration of a named shape, a config file, a folder or a Hub id.

    Raises:
        ValueError: there is none, or it is not of this family; says what was expected.
    """
    if source in shape_names():
        return load_shape(source)
    check_shape(source)
    require_source(source, shape_names())
    _require_model_type(source)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        unread = "no configuration that can be read"
        what = unread if Path(source).exists() else "no named shape, config file, folder or Hub id"
        raise ValueError(f"shape {source}: {what}: {reason:.300}") from error
    if not getattr(config, "model_type", "").startswith("lean_"):
        if Path(source).is_dir() and not any(Path(source).glob("*.safetensors")):
            raise ValueError(f"shape {source}: a {config.model_type} model; no model.safetensors in this folder")
        raise ValueError(f"shape {source}: a {config.model_type} model; turn it into a Lean one by leaner convert")
    return config
