"""What every kind of target that a student learns from a teacher has: `teacher_logits.py` and `states.py` define them.

Shapes: B rows, T tokens.
"""

from typing import Protocol

import numpy as np
import torch
from transformers.utils import ModelOutput

from .base import Batch


class TeacherTargets(Protocol):
    """What is kept of a teacher's outputs, as columns of the prepared rows, and how far a student's are from it."""

    features: dict[str, object]
    """The type of each column, by name."""
    bytes_per_token: int
    """What a row takes in the cache, by the tokens that it has; 0 for what does not grow with them."""

    @property
    def cache_key(self) -> tuple:
        """The kind of target and every setting of it that decides what is stored, besides rows and teacher.

        Settings that give other stored values give another key, even where the values take as many bytes. It names
        cached outputs, so it is made of nothing but texts and numbers, and tuples of them.
        """

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        """The columns of each row of a batch.

        Args:
            outputs: the teacher's, on the CPU.
            inputs: what the teacher read (B, T), and its labels.
            lengths: how many tokens each row has without padding, B of them.
        """

    def collate(self, rows: list[dict]) -> Batch:
        """The columns of some rows as tensors, padded where rows differ in length."""

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        """A number, the mean over the rows or over their tokens.

        Args:
            outputs: the student's.
            batch: what the student read, and what `collate` made.
        """
