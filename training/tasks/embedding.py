"""The task on sentence vectors: learn a teacher's, be scored on pairs of sentences by their likeness."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedModel

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.slimming.measures import mean_over_tokens

from ..data.sentences import sentences
from ..data.sources import Rows
from .base import Batch, column_names, find_column, prepared_rows, require_columns, shown
from .classification import LABEL_COLUMNS
from .teacher import load_teacher, rows_of_run, with_vectors
from .text import TextTask, check_text
from .vectors import mean_reciprocal_rank, spearman, unit_vectors


class Embedding(TextTask):
    """A vector per text, the mean over its tokens.

    With `teacher` the vectors learn to point where the teacher's do (loss: 1 − cosine, or by `vector_loss` the squared
    error); the metric is their cosine. With `text_pair_column` nothing is learned: pairs with a number in
    `label_column` give Spearman's correlation of the number and the cosine, pairs without give the mean reciprocal
    rank of the second text among all second texts, 0 beyond rank 10.
    """

    name = "embedding"
    hub_name = "sentence-similarity"
    title = "Sentence vectors"
    head = ""  # the bare model
    does = "turns texts into vectors that are near where the texts are alike"
    not_for = "search that somebody relies on"
    has_own_loss = True

    @classmethod
    def loss_unit_of(cls, settings: Mapping[str, Any], config: LeanConfig) -> str:
        if settings["vector_loss"] == "squared_error":
            return "squared error"
        return "1 - cosine"

    @property
    def is_scored_only(self) -> bool:
        return self.has_pairs

    @property
    def computed_metrics(self) -> tuple[str, ...]:
        if not self.has_pairs:
            return ("cosine", "loss")
        if self.label_column is None:
            return ("mrr",)
        return ("spearman",)

    def rows_scored(self, inputs: int) -> int:
        return inputs // len(self.texts)

    def columns(self) -> list[str]:
        columns = list(self.texts)
        if self.label_column is not None:
            columns.append(self.label_column)
        return columns

    def configure(self, train: Rows) -> dict[str, object]:
        if isinstance(train, IterableDataset):
            raise ValueError("streaming: the task embedding needs the whole split")
        self.texts = self.text_columns_of(self.arguments, train)
        self.label_column = None
        self.has_pairs = len(self.texts) == 2
        if not self.has_pairs:
            if self.arguments.teacher is None:
                raise ValueError("teacher: missing; a folder or Hub id whose vectors are learned")
            if self.metric not in self.computed_metrics:
                raise ValueError(f"metric: {self.metric} is of pairs, which text_pair_column names; expected cosine")
            return {}
        candidates = [name for name in LABEL_COLUMNS if name in column_names(train)][:1]
        if candidates or self.arguments.label_column is not None:
            self.label_column = find_column(train, self.arguments.label_column, "label_column", candidates)
        self.metric = "mrr"
        if self.label_column is not None:
            self.metric = "spearman"
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of tokens; of a pair two rows, one after the other."""
        if training and self.has_pairs:
            raise ValueError("text_pair_column: pairs are evaluated on, not trained on; leave it out to learn vectors")
        prepared = self.tokenised(rows, source, training)
        if self.has_pairs:
            return prepared
        teacher = load_teacher(self.arguments.teacher, self)
        return with_vectors(prepared, teacher, source, bf16=training and self.arguments.bf16)

    def prepare_inputs(self, rows: Rows, source: str) -> Rows:
        return self.tokenised(rows, source, training=False)

    def tokenised(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of the token ids of each text and how many there are; to train on no more rows than the run reads."""
        require_columns(rows, self.columns(), source)
        settings = (self.texts, self.label_column, self.length, self.arguments.split_sentences, self.tokenizer_key())
        function = partial(self._read, source=source)
        key = (self.name, settings)
        prepared = prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"tokens of {source}")
        if len(prepared) == 0:
            raise ValueError(f"{source}: {self.texts[0]} holds no sentence")
        if training:
            return rows_of_run(prepared, self.arguments)
        return prepared

    def _read(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        for column in self.texts:
            check_text(batch, column, indices, source)
        columns = [batch[column] for column in self.texts]
        texts = [text for row in zip(*columns) for text in row]
        if self.arguments.split_sentences and not self.has_pairs:
            texts = [sentence for text in texts for sentence in sentences(text)]
        if not texts:
            return {"input_ids": [], "length": []}
        tokens = self.processing(
            texts, truncation=True, max_length=self.length, padding=False, return_attention_mask=False
        )
        prepared = {"input_ids": tokens["input_ids"], "length": [len(ids) for ids in tokens["input_ids"]]}
        if self.has_pairs:
            numbers = [0.0] * len(indices)
            if self.label_column is not None:
                numbers = self._numbers(batch, indices, source)
            prepared["labels"] = [number for number in numbers for _ in self.texts]
        return prepared

    def _numbers(self, batch: dict[str, list], indices: list[int], source: str) -> list[float]:
        """Raises ValueError for a label that is no finite number."""
        for index, value in zip(indices, batch[self.label_column]):
            if not isinstance(value, int | float) or not np.isfinite(value):
                raise ValueError(f"{source}: {self.label_column}, row {index + 1}: {shown(value)} is no number")
        return [float(value) for value in batch[self.label_column]]

    def collate(self, rows: list[dict]) -> Batch:
        """Token ids and mask (B, T), and `labels`: the teacher's vectors (B, D), or the numbers of the pairs (B).

        Rows of `prepare_inputs` may have no labels.
        """
        if "labels" not in rows[0]:
            return self.collate_text(rows)
        labels = torch.tensor(np.array([row["labels"] for row in rows]), dtype=torch.float32)
        return {**self.collate_text(rows), "labels": labels}

    def loss(
        self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None, batches: int = 1
    ) -> tuple[torch.Tensor, Batch]:
        """Mean over rows of the distance to the teacher, 0 for pairs; and the vectors (B, D), and states if asked."""
        labels = inputs["labels"]
        tokens = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**tokens)
        vectors = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        if self.has_pairs:
            loss = vectors.new_zeros(())
        else:
            distances = self.distances(vectors, labels)
            loss = distances.mean()
            if items is not None:  # of all processes, whose gradients are averaged
                loss = distances.sum() / items * self.arguments.world_size
        kept = {"loss": loss, "vectors": vectors}
        if outputs.hidden_states is not None:
            kept["hidden_states"] = outputs.hidden_states
        return loss, kept

    def distances(self, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, D) twice → (B): 1 − cosine, or the mean of the squared differences."""
        if self.arguments.vector_loss == "squared_error":
            return (vectors - labels).square().mean(dim=-1)
        return 1 - F.cosine_similarity(vectors, labels, dim=-1)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        vectors = unit_vectors(prediction.predictions)
        if not self.has_pairs:
            return {"cosine": float((vectors * unit_vectors(prediction.label_ids)).sum(axis=1).mean())}
        first = vectors[0::2]
        second = vectors[1::2]
        if self.label_column is None:
            return {"mrr": mean_reciprocal_rank(first, second)}
        return {"spearman": spearman((first * second).sum(axis=1), prediction.label_ids[0::2])}
