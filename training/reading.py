"""What a user wrote, read strictly: no key twice, for the last would silently win; YAML within bounds."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from modeling_leaner.files import read_text
from modeling_leaner.terminal import did_you_mean


RECIPES = Path(__file__).parent / "recipes"
MOST_BYTES = 1_000_000
MOST_VALUES = 10_000  # with aliases written out: a few lines of these can be more than fit into memory
QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where PyYAML was built without libyaml, a slow one


class RepeatedKey(ValueError):
    """A key that is given more than once."""


def split_options(command_line: Iterable[str]) -> list[list[str]]:
    """What stands before the first option, then each option with what follows it; `--` ends the options."""
    groups: list[list[str]] = [[]]
    ended = False
    for word in command_line:
        if word.startswith("--") and not ended:
            groups.append([])
        ended = ended or word == "--"
        groups[-1].append(word)
    return groups


def check_extent(text: str) -> None:
    """Raises yaml.YAMLError for more than MOST_VALUES values, aliases written out."""
    sizes: dict[str | None, int] = {}  # values of what an anchor names
    opened: list[tuple[str | None, int]] = []  # anchor of each collection around, and the values before it
    values = 0
    for event in yaml.parse(text, Loader=QuickLoader):
        if isinstance(event, yaml.AliasEvent):
            values += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = values - before
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, values))
                sizes[event.anchor] = MOST_VALUES  # within itself it would have no end
            values += 1
        if values > MOST_VALUES:
            place = f"line {event.start_mark.line + 1}"
            raise yaml.YAMLError(f"{place}: more than {MOST_VALUES:,} values, with aliases written out")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that raises RepeatedKey where a mapping has a key twice, and names the key and both values."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():  # of `!!set [a]` it is none
            if isinstance(key, yaml.ScalarNode):
                earlier = first.setdefault((key.tag, key.value), value)
                if earlier is not value:
                    raise RepeatedKey(f"{key.value}: given twice, as {_place(earlier)} and {_place(value)}")
        return super().construct_mapping(node, deep)


def _place(node: yaml.Node) -> str:
    """A value as the file has it, with its line."""
    start = node.start_mark
    text = " ".join(start.buffer[start.pointer : node.end_mark.pointer].split())
    return f"{text or 'nothing':.100} (line {start.line + 1})"


def load_yaml(text: str) -> object:
    """The content of a YAML document.

    Raises:
        RepeatedKey: a mapping has a key twice.
        yaml.YAMLError: the text is no YAML, holds a value such as `!!int x` or the date 2026-13-45, or is too large.
    """
    try:
        check_extent(text)
        return yaml.load(text, Loader=StrictLoader)
    except RepeatedKey:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("brackets within brackets, too deep to read") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise yaml.YAMLError(f"a value that cannot be read: {error}") from error


def read_yaml(path: Path) -> dict[str, object]:
    """The keys and values in a YAML file.

    Raises:
        ValueError: the file has more than MOST_BYTES, is no text, or is what `load_yaml` refuses; names it.
        OSError: it cannot be read.
    """
    text = read_text(path, MOST_BYTES)
    try:
        values = load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML file: {' '.join(str(error).split())}") from error
    except RepeatedKey as error:
        raise RepeatedKey(f"{path}: {error}") from error
    if values is None:
        raise ValueError(f"{path}: empty, expected keys and values")
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values, got {type(values).__name__}")
    return values


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(name: str) -> tuple[Path, dict[str, object]]:
    """File and settings of a recipe, by its name or path.

    Raises:
        ValueError: names the file, or lists the recipes where the name is none.
    """
    path = RECIPES / f"{name}.yaml" if name in recipe_names() else Path(name)
    if not path.is_file():
        near = did_you_mean(name, recipe_names())
        raise ValueError(f"{name}: no such recipe file, nor one of {', '.join(recipe_names())}{near}")
    return path, read_yaml(path)
