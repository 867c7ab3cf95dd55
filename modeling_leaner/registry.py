"""The families, and the names of the shapes in `configuration/`. Imports neither torch nor transformers."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .support.suggest import did_you_mean, nearest


@dataclass(frozen=True)
class Modality:
    """What a family reads: the `unit` by which its costs are stated, and the settings by which its data differ."""

    unit: str
    inputs: tuple[str, ...]


IMAGES = Modality(unit="image", inputs=("image_size", "patch_size"))
TEXT = Modality(unit="token", inputs=("length", "vocab_size"))


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer that is trained for a family of text.

    `tokens` in the order of their numbers, from 0 on; `roles` as arguments of the tokenizer; `unknown` stands for a
    word outside the vocabulary. `single` and `pair` say what is put around a text or two, "" for nothing.
    """

    tokens: tuple[str, ...]
    roles: dict[str, str]
    unknown: str
    single: str = ""
    pair: str = ""


END_OF_TEXT = SpecialTokens(
    tokens=("<|endoftext|>",),
    roles=dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>"),
    unknown="<|endoftext|>",
)
CLS_AND_SEP = SpecialTokens(
    tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    roles={
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    unknown="[UNK]",
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
)


@dataclass(frozen=True)
class FirstRecipe:
    """A recipe whose data every installation has; the rows of one step, and the tokens of a row at most.

    `tokens` is None of images.
    """

    name: str
    rows: int
    tokens: int | None = None


@dataclass(frozen=True)
class Family:
    """Facts about a family that neither its configuration nor its models hold.

    `title` is its name for people; `first_recipe` one for a first try. A family of text has `special_tokens`.
    """

    title: str
    modality: Modality
    first_recipe: FirstRecipe
    special_tokens: SpecialTokens | None = None


FAMILIES = {
    "vit": Family("LeanViT", IMAGES, FirstRecipe("digits", 64)),
    "bert": Family("LeanBERT", TEXT, FirstRecipe("listops-short", 64, tokens=32), CLS_AND_SEP),
    "gpt": Family("LeanGPT", TEXT, FirstRecipe("python-docs", 16, tokens=128), END_OF_TEXT),
}
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


def check_family(family: str) -> None:
    """Raises ValueError, naming --family, unless there is such a family."""
    if family not in FAMILIES:
        raise ValueError(f"--family {family}: expected one of {', '.join(FAMILIES)}{did_you_mean(family, FAMILIES)}")


def check_shape(source: str) -> None:
    """Raises ValueError for what looks like the name of a shape or a .json file, but does not exist."""
    path = Path(source)
    if source in shape_names() or path.exists():
        return
    if source.split("/")[0] in FAMILIES:
        shape_path(source)
    if path.suffix == ".json":
        raise ValueError(f"no file {source}{did_you_mean_path(path)}")


def did_you_mean_path(path: Path) -> str:
    """The end of a message about a path that does not exist, with the file beside it that is spelt most alike."""
    try:
        beside = [sibling.name for sibling in path.parent.iterdir() if not sibling.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    by_stem = {Path(name).stem: name for name in beside}  # a common suffix makes no two names alike
    stem = nearest(path.stem, by_stem, near=0.6)  # a folder may hold anything
    return "" if stem is None else f"; did you mean {path.with_name(by_stem[stem])}?"
