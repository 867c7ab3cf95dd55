"""A teacher's hidden states: which of its layers each layer of a student learns from, what is kept, how far they are.

Shapes: B rows, T tokens, L layers of the student, D width.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import List, Value
from torch.nn import functional as F
from transformers.utils import ModelOutput

from modeling_leaner.slimming.slim import RECORD, cut_of_layers
from modeling_leaner.support.documents import read_json

from .base import Batch


def mapped_layers(shape: str, named: list[int], depth: int, teacher_depth: int) -> list[int]:
    """For each layer of the student, the layer of the teacher that it learns from, from 0.

    Those that are named; else those that `leaner slim` kept, where the student's folder says so; else evenly, the last
    from the last.

    Raises:
        ValueError: another number is named than the student has layers, or one that the teacher does not have.
    """
    if named:
        if len(named) != depth:
            raise ValueError(f"distill_layers: expected a layer for each of the student's {depth}, got {len(named)}")
        for layer in named:
            if not 0 <= layer < teacher_depth:
                raise ValueError(f"distill_layers: the teacher has no layer {layer}, expected 0..{teacher_depth - 1}")
        return named
    file = Path(shape) / RECORD
    if file.is_file():
        kept = kept_layers(read_json(file), teacher_depth)
        if kept is not None and len(kept) == depth:
            return kept
    return [max(0, (layer + 1) * teacher_depth // depth - 1) for layer in range(depth)]


def kept_layers(record: Mapping[str, Any], source_depth: int | None = None) -> list[int] | None:
    """Which layers of its source a cut kept, from 0, by its slim.json; None where it cut no layers.

    Args:
        source_depth: how many layers the source has to have; None also where the cut is of another depth.
    """
    cut = cut_of_layers(record)
    if cut is None:
        return None
    if source_depth is not None and len(cut["before"]) != source_depth:
        return None
    return cut["after"]


class States:
    """The states after some layers of the teacher: (L, T, D) for a row, in 16 bits; see `TeacherTargets`."""

    features = {"teacher_states": List(Value("float16"))}

    def __init__(self, layers: list[int], width: int):
        self.layers = layers
        self.width = width
        self.bytes_per_token = 2 * len(layers) * width

    @property
    def cache_key(self) -> tuple[str, tuple[int, ...], int]:
        return ("States", tuple(self.layers), self.width)

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        states = torch.stack([outputs.hidden_states[layer + 1] for layer in self.layers], dim=1)  # (B, L, T, D)
        return [{"teacher_states": row[:, :length].half().flatten().numpy()} for row, length in zip(states, lengths)]

    def collate(self, rows: list[dict]) -> Batch:
        """The states (B, L, T, D), and which tokens are no padding: (B, T)."""
        kept = [np.asarray(row["teacher_states"], dtype=np.float16) for row in rows]
        kept = [torch.from_numpy(row).view(len(self.layers), -1, self.width) for row in kept]
        lengths = torch.tensor([row.shape[1] for row in kept])
        longest = int(lengths.max())
        padded = [F.pad(row, (0, 0, 0, longest - row.shape[1])) for row in kept]
        mask = torch.arange(longest) < lengths[:, None]
        return {"teacher_states": torch.stack(padded), "teacher_mask": mask}

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        """Mean over layers and tokens of 1 − cosine."""
        states = torch.stack(list(outputs["hidden_states"][1:]), dim=1)  # (B, L, T, D)
        cosines = F.cosine_similarity(states.float(), batch["teacher_states"].float(), dim=-1)  # (B, L, T)
        return (1 - cosines).transpose(1, 2)[batch["teacher_mask"]].mean()
