"""The resolved settings of a run: defaults < recipe < command line, every key known, every number a number.

A recipe is a flat YAML file of `RecipeArguments` fields; it never names a shape, so that a baseline and its lean twin
are trained by the very same file.
"""

import argparse
import json
import os
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from .arguments import NOT_IN_RECIPES, RecipeArguments
from .combinations import check_combinations
from .command_line import check_finite, settings_parser, suggestion, words_of
from .repeated import given_options
from .yaml_files import read_yaml


RECIPES = Path(__file__).parent.parent / "recipes"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(name: str) -> tuple[Path, dict[str, object]]:
    """File and settings of a recipe, by its name or path.

    Raises:
        ValueError: names the file, or lists the recipes where the name is none.
    """
    path = Path(name)
    if name in recipe_names():
        path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        near = suggestion(name, recipe_names())
        raise ValueError(f"{name}: no such recipe file, nor one of {', '.join(recipe_names())}{near}")
    return path, read_yaml(path)


def recipe_words(recipe: str) -> list[str]:
    """The settings of a recipe as options of a command line; ValueError, with the file, where one of them is wrong."""
    path, settings = read_recipe(recipe)
    try:
        if path.name == "recipe.yaml":  # of a run folder, which also says what was trained
            settings.pop("shape", None)
        for key in NOT_IN_RECIPES:
            if key in settings:
                raise ValueError(f"{key}: belongs on the command line, not in a recipe")
        words = words_of(settings)
        settings_parser().parse_words(words)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return words


def arguments_of(namespace: argparse.Namespace) -> RecipeArguments:
    """The settings as transformers checks them; ValueError that names the key, where it can be found."""
    try:
        arguments = RecipeArguments(**vars(namespace))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.doc!r}: no JSON: {error}") from error
    except ValueError as error:
        invalid = re.match(r"(\S+) is not a valid ", str(error))  # of an Enum, which does not know its key
        if invalid is None:
            raise
        for key, value in vars(namespace).items():
            if value == invalid[1]:
                raise ValueError(f"{key}: {error}") from error
        raise
    check_finite({key: getattr(arguments, key) for key in vars(namespace)})  # what was text of JSON until now
    return arguments


def parse(
    recipe: str | None,
    command_line: Iterable[str] = (),
    needed: tuple[str, ...] = (),
    fixed: dict[str, object] | None = None,
) -> RecipeArguments:
    """The resolved settings of a run.

    `given` of the result holds the keys of the command line; `settings`, as plain values, what differs from the
    defaults and is a recipe's business.

    Args:
        recipe: name or path of a recipe; None for the defaults alone.
        command_line: options such as `["--learning_rate", "1e-3"]`, which win over the recipe.
        needed: keys that must have a value.
        fixed: settings that win over the command line, too.

    Raises:
        ValueError: one line that names the file where it is the recipe's fault, and the key.
    """
    parser = settings_parser()
    options = list(command_line)
    given = given_options(parser, options)
    words = [] if recipe is None else recipe_words(recipe)
    namespace = parser.parse_words([*words, *options, *words_of(fixed or {})])
    for key in needed:
        if getattr(namespace, key) in (None, []):
            place = f"in the recipe or as --{key}"
            if key == "shape":
                place = "as --shape; leaner shapes lists those that have a name"
            raise ValueError(f"{key}: missing; give it {place}")
    if namespace.output_dir is None:
        namespace.output_dir = default_output_dir(recipe, namespace)
    arguments = arguments_of(namespace)
    arguments.given = set(given)
    check_combinations(arguments)
    defaults = vars(parser.parse_words([]))
    for key, value in vars(namespace).items():
        if value != defaults[key] and key not in [*NOT_IN_RECIPES, "hardware"]:
            arguments.settings[key] = value.value if isinstance(value, Enum) else value
    return arguments


def default_output_dir(recipe: str | None, namespace: argparse.Namespace) -> str:
    """`runs/<recipe>/<shape>-seed<seed>`."""
    shape = str(namespace.shape).strip("/").replace("/", "-").removesuffix(".json").lstrip(".-")
    return os.path.join("runs", Path(recipe or "run").stem, f"{shape}-seed{namespace.seed}")
