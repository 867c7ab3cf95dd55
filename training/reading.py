"""What a user wrote, read strictly: YAML without repeated keys; names of files."""

import io
from collections.abc import Iterable
from pathlib import Path

import yaml

from modeling_leaner.files import naming
from modeling_leaner.terminal import did_you_mean


RECIPES = Path(__file__).parent / "recipes"
RECIPE_NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".txt": "text"}


def is_there(path: str) -> bool:
    """Whether a file or folder exists, as far as this machine can tell: patterns and addresses count."""
    return Path(path).exists() or any(character in path for character in "*?[") or "://" in path


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


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a mapping with a key twice, of which the last would win."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # of `!!set [a]` it is none
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.YAMLError(f"{key.value}: given twice, again in line {key.start_mark.line + 1}")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, object]:
    """The keys and values in a YAML file; ValueError if it is none, has a key twice or a value such as `!!int x`."""
    kinds = (yaml.YAMLError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of what YAML reads
    with naming(f"{path}: no YAML file of keys and values", kinds):
        text = path.read_text(encoding="utf-8")
        return {**yaml.load(io.StringIO(text), Loader=StrictLoader)}  # errors then show no lines of it


def read_recipe(name: str) -> tuple[Path, dict[str, object]]:
    """File and settings of a recipe, by its name or path."""
    path = RECIPES / f"{name}.yaml" if name in RECIPE_NAMES else Path(name)
    if not path.is_file():
        near = did_you_mean(name, RECIPE_NAMES) or f"; give a YAML file, or one of {', '.join(RECIPE_NAMES)}"
        raise ValueError(f"{name}: no such recipe{near}")
    return path, read_yaml(path)
