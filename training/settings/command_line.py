"""Settings as words of a command line: read with one clear error for each mistake, and written from a mapping."""

import argparse
import copy
import json
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache

from transformers import HfArgumentParser, TrainingArguments

from modeling_leaner.terminal import did_you_mean

from .arguments import BOUNDS, RecipeArguments


OTHER_NAMES = {  # what other tools, or older transformers, call it
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "warmup_ratio": "warmup_steps",
    "model": "shape",
    "data": "data_files",
}
HEADS_WITHOUT_TASK = ("token-classification", "multiple-choice")  # of the models, by the Hub's names of their tasks


def check_finite(values: object, name: str = "") -> None:
    """Raises ValueError, naming the setting, for NaN and infinity among the settings, also in lists and by keys."""
    items: Iterable[tuple[object, object]] = ()
    match values:
        case dict():
            items = values.items()
        case list():
            items = enumerate(values)
        case float() if not math.isfinite(values):
            raise ValueError(f"{name}: {values} is not a finite number")
    for key, value in items:
        check_finite(value, f"{name}.{key}".removeprefix("."))


class SettingsParser(HfArgumentParser):
    """HfArgumentParser that raises ValueError, one line, instead of leaving the process."""

    def __init__(self):
        super().__init__((RecipeArguments,), allow_abbrev=False, add_help=False)
        for action in self._actions:
            if typing.get_origin(action.type) is dict:
                action.type = json.loads

    def error(self, message: str) -> typing.NoReturn:
        if re.search(r"invalid (int|float) value: '[\d.]+,", message):
            message += ", expected spaces between numbers"
        raise ValueError(re.sub(r"^argument --(\w+)(/\S+)?:", r"\1:", message))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if action.dest == "task" and value in HEADS_WITHOUT_TASK:
                error.message += "; the models have this head, for a loop of your own or transformers' Trainer"
            else:
                error.message += suggestion(str(value), map(str, action.choices))
            raise

    def action(self, key: str) -> argparse.Action | None:
        """How argparse reads a key; None for an unknown one."""
        return self._option_string_actions.get(f"--{key}")

    def parse_words(self, words: list[str]) -> argparse.Namespace:
        """Raises ValueError for an unknown key, with the nearest one, and for a value of the wrong type."""
        parsed, unknown = self.parse_known_args(words)
        namespace = copy.deepcopy(parsed)  # lists that are defaults are the parser's own
        for word in unknown:
            if word.startswith("--"):
                raise ValueError(unknown_key(word.removeprefix("--").split("=")[0].replace("-", "_")))
            raise ValueError(f"unexpected {word!r}: expected --key value")
        for name, (low, high) in BOUNDS.items():
            value = getattr(namespace, name)
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                raise ValueError(f"{name}: {value} is not in {low}..{high}")
        if namespace.max_steps < 1 and namespace.max_steps != -1:
            raise ValueError(f"max_steps: {namespace.max_steps} is neither a number from 1 on nor -1, no limit")
        return namespace


@cache
def settings_parser() -> SettingsParser:
    """The parser of all settings; to build it takes longer than to parse."""
    return SettingsParser()


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest of the names, or nothing where none is near."""
    return did_you_mean(name, names)


def unknown_key(key: str) -> str:
    """The error about a key that no setting has."""
    if key in OTHER_NAMES:
        return f"{key}: unknown key, did you mean {OTHER_NAMES[key]}?"
    keys = [setting.name for setting in fields(RecipeArguments)]
    return f"{key}: unknown key{suggestion(key, keys)}"


def words_of(settings: dict[str, object]) -> list[str]:
    """The settings as options of a command line.

    Raises:
        ValueError: names a key that is unknown, and one whose value has the wrong structure.
    """
    words = []
    for key, value in settings.items():
        action = settings_parser().action(str(key))
        if action is None or key != action.dest:
            raise ValueError(unknown_key(str(key)))
        if value is None:
            continue
        if key == "data_files" and isinstance(value, dict):
            value = [f"{split}={path}" for split, path in value.items()]
        words += option_words(action, value)
    return words


def data_options(data_files: Sequence[str]) -> list[str]:
    """The files or folders of a local copy of the data as options of a command line; none where there is no copy."""
    return ["--data_files", *data_files] if data_files else []


def copy_options(recipe: Mapping[str, object], data_files: Sequence[str]) -> list[str]:
    """`--data_files` for a local copy of a recipe's rows, and its `--holdout`: the same rows are held out again.

    Empty without a copy.
    """
    holdout = recipe.get("holdout", 0)
    held_out = ["--holdout", str(holdout)] if data_files and holdout else []
    return [*data_options(data_files), *held_out]


def option_words(action: argparse.Action, value: object) -> list[str]:
    """One setting as an option with its values; ValueError where it has the wrong structure, or is not finite."""
    key = action.dest
    check_finite(value, key)
    if isinstance(value, list):
        if action.nargs not in ("+", "*"):
            raise ValueError(f"{key}: expected one value, got a list")
        return [f"--{key}", *map(str, value)] if value else []
    if isinstance(value, dict):
        if action.type is not json.loads and key not in TrainingArguments._VALID_DICT_FIELDS:
            raise ValueError(f"{key}: expected one value, got keys and values")
        return [f"--{key}", json.dumps(value)]
    if isinstance(value, bool):
        value = str(value).lower()
        if action.type in (int, float):
            raise ValueError(f"{key}: expected a number, got {value}")
    return [f"--{key}={value}"]
