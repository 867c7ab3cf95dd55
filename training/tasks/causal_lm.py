"""The task of a causal language model: the next token."""

import numpy as np
import torch
from transformers import EvalPrediction

from .base import Batch
from .language_modelling import LanguageModelling


class CausalLM(LanguageModelling):
    """Next-token prediction on packed rows, end-of-text between documents."""

    name = "causal-lm"
    hub_name = "text-generation"
    title = "Causal language modelling"
    head = "ForCausalLM"
    does = "continues text"
    not_for = "anybody who wants to read what it writes"
    needs = ("eos",)

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        """Rows that share one token with the row before, so that every token is predicted exactly once."""
        stream = [self.separator, *self._join(batch["input_ids"])]  # the end of the text before
        starts = range(0, len(stream) - 1, self.length - 1)
        rows = [stream[start : start + self.length] for start in starts]
        return {"input_ids": [np.array(row, dtype=np.int32) for row in rows], "length": [len(row) for row in rows]}

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """Adds bits per byte of text: all nats over all bytes. No token's context reaches beyond its row."""
        nats = np.asarray(prediction.predictions, dtype=np.float64)[:, 0].sum()
        return {**super().score(prediction), "bits_per_byte": float(nats / np.log(2) / self.text_bytes)}

    def collate(self, rows: list[dict]) -> Batch:
        ids = self.pad(rows, "input_ids", -100)
        return {"input_ids": ids.masked_fill(ids == -100, self.pad_id), "labels": ids}

    def targets(self, ids: np.ndarray) -> np.ndarray:
        return ids[1:]

    def aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits[:, :-1], labels[:, 1:]
