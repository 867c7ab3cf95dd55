"""What the two language models' tasks share: documents joined and cut into rows, and scores by the token."""

from functools import partial

import numpy as np
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import EvalPrediction

from ..data.sources import Rows, first_rows
from .base import prepared_rows, require_columns
from .text import TextTask, check_text


class LanguageModelling(TextTask):
    """Documents with a separator after each, joined and cut into rows, 1,000 documents at a time.

    Nothing is dropped: the last row of each 1,000 documents is short.
    """

    trained_unit = "rows"
    is_scored_by_token = True
    has_full_rows = True
    predicts_special_tokens = True  # such as the end of a text

    def columns(self) -> list[str]:
        return [self.text_column]

    def configure(self, train: Rows) -> dict[str, object]:
        self.text_column = self.find_text(train, self.arguments.text_column, "text_column")
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        key = (self.text_column, self.arguments.whole_word_masking, self.tokenizer_key())
        function = partial(self._tokens, source=source)
        rows = prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"tokens of {source}")
        if isinstance(rows, Dataset) and all(len(ids) < 2 for ids in rows["input_ids"]):
            raise ValueError(f"{source}: {self.text_column} holds no text")
        # One process: where rows are cut must not depend on how many there are.
        return prepared_rows(rows, self._pack, (self.name, self.length), 1, f"rows of {source}")

    def keep_held_out(self, rows: Rows, prepared: Rows) -> None:
        """Keeps the UTF-8 bytes of all documents, by which the nats of all their tokens are divided."""
        texts = (str(row[self.text_column]) for row in rows)  # str: nothing has read the rows of a stream yet
        self.text_bytes = sum(len(text.encode()) for text in texts)

    @property
    def separator(self) -> int:
        """The number of the token that ends a document: the end of a text, or where the tokenizer has none, sep."""
        if self.processing.eos_token_id is None:
            return self.processing.sep_token_id
        return self.processing.eos_token_id

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """Loss, in nats per token, of guessing each token by its frequency in the training rows (plus one)."""
        frequencies = self._counts(train) + 1
        occurrences = self._counts(held_out)
        log_probabilities = np.log(frequencies / frequencies.sum())
        return "unigram loss", float(-(occurrences * log_probabilities).sum() / occurrences.sum())

    def targets(self, ids: np.ndarray) -> np.ndarray:
        """Those of a row's tokens that may be predicted."""
        raise NotImplementedError

    def _counts(self, rows: Dataset) -> np.ndarray:
        """How often each token is a target in the first 20,000 rows."""
        counts = np.zeros(self.config.vocab_size, dtype=np.int64)
        for batch in first_rows(rows, 20_000).with_format("numpy").iter(1000):
            targets = np.concatenate([self.targets(row) for row in batch["input_ids"]])
            counts += np.bincount(targets, minlength=len(counts))
        return counts

    def _tokens(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        """Each document's tokens with a separator at the end and, for whole words, the number of each token's word."""
        check_text(batch, self.text_column, indices, source)
        encodings = self.processing(batch[self.text_column], add_special_tokens=False, verbose=False).encodings
        columns = {"input_ids": [np.array([*encoding.ids, self.separator], dtype=np.int32) for encoding in encodings]}
        if self.arguments.whole_word_masking:
            columns["words"] = [np.array([*encoding.word_ids, -1], dtype=np.int32) for encoding in encodings]
        return columns

    @staticmethod
    def _join(documents: list[list[int]]) -> list[int]:
        return [token for document in documents for token in document]

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """From sums per row (loss, tokens, hits): the loss per token in nats, its exponential, the share of hits."""
        loss, tokens, hits = np.asarray(prediction.predictions, dtype=np.float64).sum(0)
        return {
            "loss": loss / tokens,
            "perplexity": float(np.exp(min(loss / tokens, 700.0))),
            "accuracy": hits / tokens,
        }

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """(B, 3): loss in nats, tokens and hits of each row, from logits (B, T, V) and labels (B, T), -100 ignored."""
        logits, labels = self.aligned(super().reduce(outputs, labels), labels)
        return torch.stack([row_sums(*row) for row in zip(logits, labels)])


def row_sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(3,): loss in nats, tokens and hits of one row, from logits (T, V) and labels (T,), -100 ignored.

    A row at a time, because the logits of a whole batch are too large to be copied.
    """
    counted = labels != -100
    if not counted.all():
        logits = logits[counted]  # (N, V)
        labels = labels[counted]  # (N,)
    logits = logits.float()
    loss = F.cross_entropy(logits, labels, reduction="sum")
    hits = (logits.argmax(-1) == labels).sum()
    return torch.stack([loss, counted.sum(), hits])
