"""YAML files that a user gives, read strictly: no key twice, for the last would silently win, and within bounds.

The bounds are of bytes, of values with aliases written out, since a few lines of these can be more than fit into
memory, and of levels.
"""

import copy
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import yaml

from modeling_leaner.files import read_text

from .repeated import RepeatedKey


MOST_BYTES = 1_000_000
MOST_VALUES = 10_000
MOST_LEVELS = 100  # of lists and mappings within each other
QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where PyYAML was built without libyaml, a slow one
SEXAGESIMAL = re.compile("[0-9]:[0-9]")
LEADING_ZERO = re.compile("[-+]?0[0-9_]+")


def children(node: yaml.Node) -> Iterator[yaml.Node]:
    """The values of a list; the keys and values of a mapping."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def extent(node: yaml.Node, known: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """How many values and levels a node has with its aliases written out; `known` has those of nodes met before.

    Raises yaml.YAMLError for more than MOST_VALUES or MOST_LEVELS, and for a value within itself.
    """
    if node not in known:
        known[node] = (MOST_VALUES, MOST_LEVELS)  # while it is measured: within itself it would have no end
        inner = [extent(child, known) for child in children(node)]
        levels = 0
        if isinstance(node, yaml.CollectionNode):
            levels = 1 + max((levels for _, levels in inner), default=0)
        known[node] = (1 + sum(values for values, _ in inner), levels)
    values, levels = known[node]
    place = f"line {node.start_mark.line + 1}"
    if values > MOST_VALUES:
        raise yaml.YAMLError(f"{place}: stands for more than {MOST_VALUES:,} values with its aliases written out")
    if levels > MOST_LEVELS:
        raise yaml.YAMLError(f"{place}: brackets within brackets, too deep to read")
    return known[node]


def check_extent(text: str) -> None:
    """Raises yaml.YAMLError for a document of more values or levels than may be, before any of it is kept."""
    values = 0
    levels = 0
    for event in yaml.parse(text, Loader=QuickLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionEndEvent):
            levels -= 1
        if isinstance(event, yaml.CollectionStartEvent):
            levels += 1
        if isinstance(event, yaml.NodeEvent):
            values += 1
        if levels > MOST_LEVELS:
            raise yaml.YAMLError(f"line {line}: brackets within brackets, too deep to read")
        if values > MOST_VALUES:
            raise yaml.YAMLError(f"line {line}: the file holds more than {MOST_VALUES:,} values")


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

    def compose_document(self) -> yaml.Node:
        node = super().compose_document()
        extent(node, {})
        return node

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
