# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""Checks of a checkpoint around loading: which files hold the weights, what they hold, and what was left out."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open
from torch import nn


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_NAMES = 8


def find_folder(source: object, subfolder: str | None = None) -> Path | None:
    """The folder of a checkpoint; None for a Hub id.

    Raises OSError for a path that does not exist, or that is a file.
    """
    path = Path(str(source))
    if path.is_file():
        raise OSError(f"{path}: a file, expected the folder that holds config.json and {WEIGHTS}")
    if path.is_dir():
        return path / subfolder if subfolder else path
    if path.is_absolute() or str(source).startswith((".", "~")) or len(path.parts) > 2:
        raise OSError(f"{source}: no such folder")
    return None


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a folder: model.safetensors, or else those that its index names.

    Raises OSError for an index that cannot be read, or that names a file outside the folder or one that is missing.
    """
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not index.is_file():
        return []
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
        names = sorted(set(document["weight_map"].values()))
        is_complete = isinstance(document["metadata"], dict) and len(names) > 0
        outside = [name for name in names if Path(name).name != name]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_complete = False
    if not is_complete:
        raise OSError(f'{index}: damaged, expected {{"metadata": {{}}, "weight_map": {{tensor: file}}}}')
    if outside:
        raise OSError(f"{index}: {outside[0]!r} is not the name of a file in this folder")
    for name in names:
        if not (folder / name).is_file():
            raise OSError(f"{folder / name}: missing, {INDEX} names it")
    return [folder / name for name in names]


def refuse_pickle_alone(folder: Path) -> None:
    """Raises OSError for a folder whose weights are a pickle, with no safetensors beside it."""
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise OSError(f"{pickles[0]} is a pickle, which can run code; expected {WEIGHTS}")


def find_integers(weights: Iterable[Path], known: Iterable[str], prefix: str) -> list[str]:
    """Tensors of the files that hold integers under the name of a weight, as `name (I64)`.

    transformers would turn them into floating point without a word. `known` are the names that the model knows;
    `prefix` stands before the backbone's names in models with a head.
    """
    weight_names = {name.removeprefix(prefix) for name in known}
    integers = []
    for path in weights:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                kind = tensors.get_slice(name).get_dtype()
                if kind.startswith(("I", "U", "BOOL")) and name.removeprefix(prefix) in weight_names:
                    integers.append(f"{name} ({kind})")
    return sorted(integers)


def describe_gaps(backbone: nn.Module, prefix: str, missing: Iterable[str], unused: Iterable[str]) -> str:
    """What of the backbone a checkpoint lacks, and what it holds that has no place there; empty where all fits.

    Heads are left out, and the pooler with them: a checkpoint of another task has none.
    """
    parts = [f"{name}." for name, _ in backbone.named_children() if name != "pooler"]

    def names_of_backbone(names: Iterable[str]) -> list[str]:
        return [name for name in names if name.removeprefix(prefix).startswith(tuple(parts))]

    block_size = len(backbone.layers[0].state_dict())
    sentences = []
    if untrained := names_of_backbone(missing):
        sentences.append(f"newly initialised, that is untrained: {in_one_line(untrained, block_size)}")
    if left_over := names_of_backbone(unused):
        sentences.append(f"in the checkpoint but not in the model: {in_one_line(left_over, block_size)}")
    return "; ".join(sentences)


def describe_mismatches(mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]]) -> str:
    """Tensors of another shape than the model's, from transformers' (name, stored shape, expected shape)."""
    tensors = [f"{name} is {list(stored)}, expected {list(expected)}" for name, stored, expected in mismatched]
    return "; ".join(sorted(tensors))


def in_one_line(names: Iterable[str], block_size: int | None = None) -> str:
    """Names of tensors in one line, the first few, with a whole block of `block_size` tensors as `layers.4.*`."""
    blocks: dict[str, list[str]] = {}
    for name in sorted(names):
        in_block = re.match(r"(.*\blayers\.\d+)\.", name)
        block = in_block[1] if in_block else name
        blocks.setdefault(block, []).append(name)
    summary = []
    for block, members in blocks.items():
        if len(members) == block_size:
            summary.append(f"{block}.*")
        else:
            summary += members
    if len(summary) > MOST_NAMES:
        summary[MOST_NAMES:] = [f"and {len(summary) - MOST_NAMES} more"]
    return ", ".join(summary)
