"""Refuses a key of a YAML file, or an option of a command line, that is given twice: the last would silently win.

Aliases are refused, too: a few lines of them can stand for more values than fit into memory.
"""

import argparse
from collections.abc import Iterable, Sequence

import yaml


class RepeatedKey(ValueError):
    """A key, or an option, that is given more than once."""


class UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that raises RepeatedKey where a mapping has a key twice, and names the key and both values."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            line = alias.start_mark.line + 1
            raise yaml.YAMLError(f"*{alias.anchor} (line {line}): aliases are not read, write the value out")
        return super().compose_node(parent, index)

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


def _place(node: yaml.Node) -> str:
    """A value as the file has it, with its line."""
    start = node.start_mark
    text = " ".join(start.buffer[start.pointer : node.end_mark.pointer].split())
    if text == "":
        text = "nothing"
    return f"{text} (line {start.line + 1})"


def load_yaml(text: str) -> object:
    """The content of a YAML document.

    Raises:
        RepeatedKey: a mapping has a key twice.
        yaml.YAMLError: the text is no YAML, or holds a value such as `!!int x`, the date 2026-13-45, or an alias.
    """
    try:
        return yaml.load(text, Loader=UniqueKeyLoader)
    except RepeatedKey:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("brackets within brackets, too deep to read") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise yaml.YAMLError(f"a value that cannot be read: {error}") from error


def by_option(command_line: Iterable[str]) -> list[list[str]]:
    """What stands before the first option, then each option with what follows it; `--` ends the options."""
    groups: list[list[str]] = [[]]
    ended = False
    for word in command_line:
        if word.startswith("--") and not ended:
            groups.append([])
        ended = ended or word == "--"
        groups[-1].append(word)
    return groups


def given_twice(name: str, first: Sequence[str], second: Sequence[str]) -> str:
    """The error about an option of a command line that is given twice, with the values of both, if it has any."""
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
    for option, *values in by_option(command_line)[1:]:
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
            raise RepeatedKey(given_twice(key, given[key], values))
        given[key] = values
    return given
