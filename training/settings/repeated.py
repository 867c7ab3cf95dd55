"""Refuses an option of a command line that is given twice: the last would silently win."""

import argparse
from collections.abc import Iterable, Sequence


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
