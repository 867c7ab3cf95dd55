"""The task of finding an answer in a context, as in SQuAD."""

from functools import partial

import numpy as np
import torch
from datasets import IterableDataset
from torch.nn import functional as F
from transformers import EvalPrediction

from ..data.sources import Rows
from ..settings.arguments import RecipeArguments
from . import squad
from .base import Batch, find_column, prepared_rows, require_columns
from .text import TextTask, check_text


class QuestionAnswering(TextTask):
    """The answer's span in a context, as in SQuAD (Rajpurkar et al. 2016): columns id, question, context, answers."""

    name = "question-answering"
    hub_name = "question-answering"
    title = "Question answering"
    head = "ForQuestionAnswering"
    does = "finds the answer to a question in a text"
    not_for = "answers that somebody relies on"
    label_names = ("start_positions", "end_positions")

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        return [cls.find_text(rows, column, "question-answering") for column in ("question", "context")]

    def rows_scored(self, inputs: int) -> int:
        return len(self.examples)

    def columns(self) -> list[str]:
        return ["id", "question", "context", "answers"]

    def configure(self, train: Rows) -> dict[str, object]:
        for column in ("id", "question", "context", "answers"):
            find_column(train, column, "question-answering", [])
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        if isinstance(rows, IterableDataset):
            raise ValueError("streaming: question-answering needs the whole split")
        key = (self.name, "by row", self.length, self.arguments.doc_stride, training, self.tokenizer_key())
        function = partial(self._read, training=training, source=source)
        return prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"windows of {source}")

    def keep_held_out(self, rows: Rows, prepared: Rows) -> None:
        """Keeps the questions with their answers, and the windows that the logits are of."""
        self.examples = rows
        self.features = prepared

    def _read(self, batch: dict[str, list], indices: list[int], training: bool, source: str) -> dict:
        for column in ("question", "context"):
            check_text(batch, column, indices, source)
        by_row = {**batch, "id": indices}  # ids of one's own data may be those of a text with many questions
        try:
            return squad.windows(by_row, self.processing, self.length, self.arguments.doc_stride, training)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.collate_text(rows)
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor(np.array([row[name] for row in rows]))
        return batch

    def reduce(self, outputs: object, labels: object) -> torch.Tensor:
        """(B, 2, length): start and end logits, padded to one length for all batches."""
        start, end = outputs[:2]
        logits = torch.stack([start, end], dim=1).float()
        return F.pad(logits, (0, self.length - logits.shape[-1]), value=-1e4)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        starts = prediction.predictions[:, 0]
        ends = prediction.predictions[:, 1]
        references = {row: answers["text"] for row, answers in enumerate(self.examples["answers"])}
        contexts = [{"id": row, "context": context} for row, context in enumerate(self.examples["context"])]
        some_are_empty = not all(references.values())
        predicted = squad.best_spans(starts, ends, self.features, contexts, may_be_empty=some_are_empty)
        return squad.exact_match_and_f1(predicted, references)
