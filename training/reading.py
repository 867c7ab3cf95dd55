"""What a user wrote, read strictly: no option and no key twice, for the last would silently win; YAML within bounds.

The bounds are of bytes, of values with aliases written out, since a few lines of these can be more than fit into
memory, and of levels.
"""

import argparse
import copy
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from modeling_leaner.files import read_text


MOST_BYTES = 1_000_000
MOST_VALUES = 10_000
MOST_LEVELS = 100  # of lists and mappings within each other
QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where PyYAML was built without libyaml, a slow one
SEXAGESIMAL = re.compile("[0-9]:[0-9]")
LEADING_ZERO = re.compile("[-+]?0[0-9_]+")


class RepeatedKey(ValueError):
    """A key, or an option, that is given more than once."""


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


def repeated_message(name: str, first: Sequence[str], second: Sequence[str]) -> str:
    """What is wrong with an option of a command line that is given twice, with the values of both, if it has any."""
    message = f"{name}: given twice on the command line"
    both = " and ".join(" ".join(values) for values in (first, second) if values)
    if both:
        message += f", with {both}"
    return message


def given_options(parser: argparse.ArgumentParser, command_line: Iterable[str]) -> dict[str, list[str]]:
    """The options of a command line by their key, however they are spelt, each with its values as text.

    Raises:
        RepeatedKey: an option is given twice, such as `--seed 1 --seed=2`.
    """
    given: dict[str, list[str]] = {}
    for option, *values in split_options(command_line)[1:]:
        name, equals, value = option.partition("=")
        if name == "--":
            break
        action = parser._option_string_actions.get(name)
        if action is None:
            key = name.removeprefix("--").replace("-", "_")
        else:
            key = action.dest
        if equals:
            values = [value]
        if key in given:
            raise RepeatedKey(repeated_message(key, given[key], values))
        given[key] = values
    return given


def check_extent(text: str) -> None:
    """Raises yaml.YAMLError for more than MOST_VALUES values, aliases written out, or MOST_LEVELS levels."""
    extents: dict[str, tuple[int, int]] = {}  # values and levels of what an anchor names
    opened: list[tuple[str | None, int]] = []  # anchor of each collection around, and the values before it
    deepest = [0]  # levels within each of them
    values = 0
    for event in yaml.parse(text, Loader=QuickLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            levels = 1 + deepest.pop()
            extents[anchor] = (values - before, levels)
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, values))
            extents[event.anchor] = (MOST_VALUES, MOST_LEVELS)  # within itself it would have no end
            deepest.append(0)
            values += 1
            levels = 0
        elif isinstance(event, yaml.AliasEvent):
            more, levels = extents.get(event.anchor, (1, 0))
            values += more
        else:
            values += isinstance(event, yaml.ScalarEvent)
            levels = 0
        deepest[-1] = max(deepest[-1], levels)
        place = f"line {event.start_mark.line + 1}"
        if values > MOST_VALUES:
            raise yaml.YAMLError(f"{place}: more than {MOST_VALUES:,} values, with aliases written out")
        if len(opened) + levels > MOST_LEVELS:
            raise yaml.YAMLError(f"{place}: brackets within brackets, too deep to read")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that raises RepeatedKey where a mapping has a key twice, and names the key and both values.

    A scalar such as `1:30` is text, and `010` is ten, as in YAML 1.2; YAML 1.1 has numbers of base 60 and 8.
    """

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        tag = super().resolve(kind, value, implicit)
        is_number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if kind is yaml.ScalarNode and is_number and SEXAGESIMAL.search(value):
            return self.DEFAULT_SCALAR_TAG
        return tag

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if LEADING_ZERO.fullmatch(node.value):
            return int(node.value.replace("_", ""))
        return super().construct_yaml_int(node)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        if not isinstance(node, yaml.MappingNode):  # of `!!set [a]`, which SafeLoader refuses
            return super().construct_mapping(node, deep)
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            earlier = first.setdefault((key.tag, key.value), value)
            if earlier is not value:
                raise RepeatedKey(f"{key.value}: given twice, as {_place(earlier)} and {_place(value)}")
        return super().construct_mapping(node, deep)


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)


def _place(node: yaml.Node) -> str:
    """A value as the file has it, with its line."""
    start = node.start_mark
    text = " ".join(start.buffer[start.pointer : node.end_mark.pointer].split())
    if text == "":
        text = "nothing"
    return f"{text:.100} (line {start.line + 1})"


@lru_cache(maxsize=128)
def _load(text: str) -> object:
    """The content of a YAML document; of one that was read before, the same object."""
    check_extent(text)
    return yaml.load(text, Loader=StrictLoader)


def load_yaml(text: str) -> object:
    """The content of a YAML document. A text that is read again, as those of grids are, takes no time.

    Raises:
        RepeatedKey: a mapping has a key twice.
        yaml.YAMLError: the text is no YAML, or holds a value such as `!!int x` or the date 2026-13-45, more than
            MOST_VALUES values with its aliases written out, or more than MOST_LEVELS lists within lists.
    """
    try:
        return copy.deepcopy(_load(text))
    except RepeatedKey:
        raise
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
