"""The task on sentence vectors: learn a teacher's. Shapes: N rows, B of them read together, T tokens, D width."""

import copy
from functools import partial

import numpy as np
import torch
from datasets import IterableDataset, List, Value, concatenate_datasets
from transformers import AutoTokenizer, EvalPrediction, PreTrainedModel
from transformers.utils import ModelOutput

from modeling_leaner.models import mean_over_tokens

from ..data.sources import Rows, find_text_column, require_columns, sentences
from .base import Batch, TextTask, check_text, prepared_rows, tokenizer_text
from .distillation import ROW, Target, cosine_distance, load_teacher, read_by_teacher, rows_of_run


class Embedding(TextTask):
    """A vector per text, the mean over its tokens.

    They learn to point where the teacher's do (loss: 1 − cosine, or by `vector_loss` the squared error); the metric is
    their cosine. `leaner evaluate --task embedding` scores encoders on pairs of sentences.
    """

    name = "embedding"
    hub_name = "sentence-similarity"
    title = "Sentence vectors"
    head = ""  # the bare model
    does = "turns texts into vectors that are near where the texts are alike"
    not_for = "search that somebody relies on"
    has_own_loss = True

    def columns(self) -> list[str]:
        return [self.text_column]

    def configure(self, train: Rows) -> dict[str, object]:
        if isinstance(train, IterableDataset):
            raise ValueError("streaming: the task embedding needs the whole split")
        if self.arguments.teacher is None:
            raise ValueError("teacher: missing; a folder or Hub id whose vectors are learned")
        self.text_column = find_text_column(train, self.arguments.text_column, "text_column")
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        prepared = self.tokenised(rows, source, training)
        teacher = load_teacher(self.arguments.teacher, self)
        reader = self.of_teacher()
        read = prepared if reader is self else reader.tokenised(rows, source, training)
        bf16 = training and self.arguments.bf16
        read = read_by_teacher(read, reader, teacher, [Vectors(teacher)], (), bf16).remove_columns(ROW)
        return read if reader is self else concatenate_datasets([prepared, read.select_columns("labels")], axis=1)

    def of_teacher(self) -> "Embedding":
        """This task with the teacher's tokenizer, where that differs: a student may have a smaller vocabulary."""
        tokenizer = AutoTokenizer.from_pretrained(self.arguments.teacher, trust_remote_code=False)
        if tokenizer_text(tokenizer) == tokenizer_text(self.processing):
            return self
        reader = copy.copy(self)
        reader.processing = tokenizer
        return reader

    def tokenised(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of the token ids of each text and their number; to train on no more rows than the run reads."""
        require_columns(rows, self.columns(), source)
        settings = (self.text_column, self.length, self.arguments.split_sentences, self.reading_key())
        function = partial(self._read, source=source)
        workers = self.arguments.preprocessing_workers
        prepared = prepared_rows(rows, function, (self.name, settings), workers, f"tokens of {source}")
        if len(prepared) == 0:
            raise ValueError(f"{source}: {self.text_column} holds no sentence")
        return rows_of_run(prepared, self.arguments) if training else prepared

    def _read(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        check_text(batch, self.text_column, indices, source)
        texts = batch[self.text_column]
        if self.arguments.split_sentences:
            texts = [sentence for text in texts for sentence in sentences(text)]
        if not texts:
            return {"input_ids": [], "length": []}
        tokens = self.processing(texts, truncation=True, max_length=self.length, return_attention_mask=False)
        return {"input_ids": tokens["input_ids"], "length": list(map(len, tokens["input_ids"]))}

    def collate(self, rows: list[dict]) -> Batch:
        """Token ids and mask (B, T), and `labels`: the teacher's vectors (B, D), once it has read the rows."""
        if "labels" not in rows[0]:
            return self.collate_text(rows)
        labels = torch.tensor(np.array([row["labels"] for row in rows]), dtype=torch.float32)
        return {**self.collate_text(rows), "labels": labels}

    def loss(
        self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None, batches: int = 1
    ) -> tuple[torch.Tensor, Batch]:
        """Mean over rows of the distance to the teacher; and the vectors (B, D), and states if asked."""
        tokens = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**tokens)
        vectors = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        if self.arguments.vector_loss == "squared_error":
            distances = (vectors - inputs["labels"]).square().mean(dim=-1)  # (B)
        else:
            distances = cosine_distance(vectors, inputs["labels"])
        # the items are the numbers of all vectors, of all processes, whose gradients are averaged
        rows = None if items is None else items / inputs["labels"].shape[1] / self.arguments.world_size
        loss = distances.mean() if rows is None else distances.sum() / rows
        kept = {"loss": loss, "vectors": vectors}
        if outputs.hidden_states is not None:
            kept["hidden_states"] = outputs.hidden_states
        return loss, kept

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        vectors, teachers = unit_vectors(prediction.predictions), unit_vectors(prediction.label_ids)
        return {"cosine": float((vectors * teachers).sum(axis=1).mean())}


class Vectors(Target):
    """The mean over tokens of the last states, as the labels of a row: (D), in float32."""

    def __init__(self, teacher: PreTrainedModel):
        self.features = {"labels": List(Value("float32"), length=teacher.config.hidden_size)}

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        means = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        return [{"labels": vector.numpy()} for vector in means]


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """(N, D), each of length one, in float64."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
