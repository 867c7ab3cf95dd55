"""The names of the shapes: the files of `configuration/`, not read. Imports neither torch nor transformers."""

from functools import cache
from pathlib import Path

from .support.suggest import did_you_mean, nearest


FAMILIES = ("vit", "bert", "gpt")
# Of a baseline: fewer layers and more heads; more heads than fit the width; fewer layers alone; more heads alone;
# fewer layers and one head; fewer layers and twelve.
VARIANTS = ("lean-", "fixed-head-", "shallow-", "many-heads-", "one-head-", "twelve-heads-")
# Controls of the twin's size: the MLP of half the width, of a quarter; deeper and narrower, of the twin's parameters;
# narrower, of its layers' parameters.
VARIANTS += ("half-mlp-", "quarter-mlp-", "deep-narrow-", "narrow-")


@cache
def shapes_folder() -> Path:
    """The folder of the named shapes, installed or in a clone."""
    from . import configuration  # mapped to configuration/ by setup.cfg

    return Path(configuration.__file__).parent


def baseline_of(name: str) -> str | None:
    """The baseline of a lean twin or another variant (`bert/lean-10x24` → `bert/16x12`); None for a baseline."""
    family, shape = name.split("/")
    prefix = next((prefix for prefix in VARIANTS if shape.startswith(prefix)), None)
    if prefix is None:
        return None
    stem = shape.removeprefix(prefix).removesuffix("-mlp")
    return f"{family}/{'16x12' if stem == '10x24' else stem}"


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
    """Raises ValueError for what can only be the name of a shape, or a file, and is neither."""
    path = Path(source)
    if source in shape_names() or path.exists():
        return
    if source.split("/")[0] in FAMILIES:
        shape_path(source)
    if path.suffix == ".json":
        raise ValueError(f"no file {source}{did_you_mean_path(path)}")


def did_you_mean_path(path: Path) -> str:
    """The end of a message about a path that is not there, with the one beside it that is spelt most alike."""
    try:
        beside = [each.name for each in path.parent.iterdir() if not each.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    name = nearest(path.name, beside)
    return "" if name is None else f"; did you mean {path.with_name(name)}?"
