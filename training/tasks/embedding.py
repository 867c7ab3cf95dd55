"""The task on sentence vectors: learn a teacher's, be scored on pairs of sentences by their likeness.

What compares vectors needs no task's settings: it serves any model. Shapes: N rows, B of them read together, T tokens,
D width, Q queries.
"""

import copy
from functools import partial

import numpy as np
import torch
from datasets import IterableDataset, List, Value, concatenate_datasets
from scipy import stats
from transformers import AutoTokenizer, EvalPrediction, PreTrainedModel
from transformers.utils import ModelOutput

from modeling_leaner.models import mean_over_tokens

from ..data.sources import Rows, find_column, require_columns, sentences
from .base import Batch, TextTask, check_text, finite_numbers, prepared_rows, tokenizer_text
from .classification import label_candidates
from .distillation import ROW, Target, cosine_distance, load_teacher, read_by_teacher, rows_of_run


RANKS = 10  # of the mean reciprocal rank


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

    @property
    def is_scored_only(self) -> bool:
        return self.has_pairs

    @property
    def computed_metrics(self) -> tuple[str, ...]:
        if not self.has_pairs:
            return ("cosine", "loss")
        return ("mrr",) if self.label_column is None else ("spearman",)

    def rows_scored(self, inputs: int) -> int:
        return inputs // len(self.texts)

    def columns(self) -> list[str]:
        return self.texts if self.label_column is None else [*self.texts, self.label_column]

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
        candidates = label_candidates(train)
        if candidates or self.arguments.label_column is not None:
            self.label_column = find_column(train, self.arguments.label_column, "label_column", candidates)
        (self.metric,) = self.computed_metrics
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of tokens; of a pair two rows, one after the other."""
        if training and self.has_pairs:
            raise ValueError("text_pair_column: pairs are evaluated on, not trained on; leave it out to learn vectors")
        prepared = self.tokenised(rows, source, training)
        if self.has_pairs:
            return prepared
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

    def prepare_inputs(self, rows: Rows, source: str) -> Rows:
        return self.tokenised(rows, source, training=False)

    def tokenised(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of the token ids of each text and how many there are; to train on no more rows than the run reads."""
        require_columns(rows, self.columns(), source)
        settings = (self.texts, self.label_column, self.length, self.arguments.split_sentences, self.reading_key())
        function = partial(self._read, source=source)
        workers = self.arguments.preprocessing_workers
        prepared = prepared_rows(rows, function, (self.name, settings), workers, f"tokens of {source}")
        if len(prepared) == 0:
            raise ValueError(f"{source}: {self.texts[0]} holds no sentence")
        return rows_of_run(prepared, self.arguments) if training else prepared

    def _read(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        for column in self.texts:
            check_text(batch, column, indices, source)
        columns = [batch[column] for column in self.texts]
        texts = [text for row in zip(*columns) for text in row]
        if self.arguments.split_sentences and not self.has_pairs:
            texts = [sentence for text in texts for sentence in sentences(text)]
        if not texts:
            return {"input_ids": [], "length": []}
        tokens = self.processing(texts, truncation=True, max_length=self.length, return_attention_mask=False)
        prepared = {"input_ids": tokens["input_ids"], "length": list(map(len, tokens["input_ids"]))}
        if self.has_pairs:
            column = self.label_column
            numbers = finite_numbers(batch, column, indices, source) if column else [0.0] * len(indices)
            prepared["labels"] = [number for number in numbers for _ in self.texts]
        return prepared

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
        tokens = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**tokens)
        vectors = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        if self.has_pairs:
            loss = vectors.new_zeros(())
        else:
            if self.arguments.vector_loss == "squared_error":
                distances = (vectors - inputs["labels"]).square().mean(dim=-1)  # (B)
            else:
                distances = cosine_distance(vectors, inputs["labels"])
            # a sum over the items is of all processes, whose gradients are averaged
            loss = distances.mean() if items is None else distances.sum() / items * self.arguments.world_size
        kept = {"loss": loss, "vectors": vectors}
        if outputs.hidden_states is not None:
            kept["hidden_states"] = outputs.hidden_states
        return loss, kept

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        vectors = unit_vectors(prediction.predictions)
        if not self.has_pairs:
            return {"cosine": float((vectors * unit_vectors(prediction.label_ids)).sum(axis=1).mean())}
        first, second = vectors[0::2], vectors[1::2]
        if self.label_column is None:
            return {"mrr": float(reciprocal_ranks(first, second, np.arange(len(first))).mean())}
        return {"spearman": spearman((first * second).sum(axis=1), prediction.label_ids[0::2])}


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


def spearman(cosines: np.ndarray, numbers: np.ndarray) -> float:
    """Spearman's correlation of (N) and (N); NaN if one side is constant, which leaves it undefined."""
    if np.ptp(cosines) == 0 or np.ptp(numbers) == 0:
        return np.nan
    return float(stats.spearmanr(cosines, numbers).statistic)


def reciprocal_ranks(queries: np.ndarray, documents: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(Q, D), (N, D) and the place of each query's document, (Q), → (Q): 1/rank, 0 beyond rank 10.

    Documents that are exactly as near as the right one, such as the same text again, do not count against it. NaN
    where a likeness is not finite: it is neither more nor less than another.
    """
    found = np.zeros(len(queries))
    for index, query in enumerate(queries):
        likeness = documents @ query
        rank = 1 + (likeness > likeness[right[index]] + 1e-9).sum()
        found[index] = 1 / rank if rank <= RANKS else 0.0
        if not np.isfinite(likeness).all():
            found[index] = np.nan
    return found
