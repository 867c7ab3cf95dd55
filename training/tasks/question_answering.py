"""Extractive question answering as in SQuAD: windows over long contexts, the best span of each question, EM and F1.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (arXiv 1606.05250); the questions
without an answer are those of Rajpurkar et al. 2018 (arXiv 1806.03822).
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from datasets import IterableDataset
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedTokenizerBase

from modeling_leaner.files import naming

from ..data.sources import Rows, find_text_column, require_columns
from ..settings import RecipeArguments
from .base import Batch, TextTask, check_text, prepared_rows


OUTSIDE = [-1, -1]  # the offsets of tokens that are not the context's


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
        return [find_text_column(rows, column, "question-answering") for column in ("question", "context")]

    def rows_scored(self, inputs: int) -> int:
        return len(self.examples)

    def columns(self) -> list[str]:
        return ["id", "question", "context", "answers"]

    def configure(self, train: Rows) -> dict[str, object]:
        require_columns(train, self.columns(), "question-answering")
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        if isinstance(rows, IterableDataset):
            raise ValueError("streaming: question-answering needs the whole split")
        key = (self.name, "by row number", self.length, self.arguments.doc_stride, training, self.reading_key())
        function = partial(self._read, training=training, source=source)
        return prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"windows of {source}")

    def keep_held_out(self, rows: Rows, prepared: Rows) -> None:
        """Keeps the questions with their answers, and the windows that the logits are of."""
        self.examples = rows
        self.features = prepared

    def _read(self, batch: dict[str, list], indices: list[int], training: bool, source: str) -> dict:
        for column in ("question", "context"):
            check_text(batch, column, indices, source)
        # ids of one's own data may be those of a text with many questions: rows go by their number, as in messages
        by_row = {**batch, "id": [index + 1 for index in indices]}
        with naming(source):
            return windows(by_row, self.processing, self.length, self.arguments.doc_stride, training)

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.collate_text(rows)
        for name in self.label_names:
            batch[name] = torch.tensor(np.array([row[name] for row in rows]))
        return batch

    def reduce(self, outputs: object, labels: object) -> torch.Tensor:
        """(B, 2, length): start and end logits, padded to one length for all batches."""
        start, end = outputs[:2]
        logits = torch.stack([start, end], dim=1).float()
        return F.pad(logits, (0, self.length - logits.shape[-1]), value=-1e4)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        starts, ends = prediction.predictions[:, 0], prediction.predictions[:, 1]
        references = {row: answers["text"] for row, answers in enumerate(self.examples["answers"], 1)}
        contexts = [{"id": row, "context": context} for row, context in enumerate(self.examples["context"], 1)]
        some_are_empty = not all(references.values())
        predicted = best_spans(starts, ends, self.features, contexts, may_be_empty=some_are_empty)
        return exact_match_and_f1(predicted, references)


def windows(
    batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, max_length: int, doc_stride: int, training: bool
) -> dict[str, list]:
    """Each row as one or more windows of at most `max_length` tokens, for `Dataset.map(batched=True)`.

    Columns of the rows: id, question, context, answers {text, answer_start in characters}. A window is the question
    and a part of the context; consecutive windows of a row share `doc_stride` tokens of context. `start_positions` and
    `end_positions` are the tokens of the row's first answer, inclusive; both are 0, the [CLS] token, if the answer
    is not wholly inside the window or the row has none (one of more than `doc_stride` tokens may be in none).
    For evaluation there are also `example_id`, the row's id, and `offset_mapping`, each token's characters in the
    context, (-1, -1) for other tokens.

    Raises:
        ValueError: names the row whose answer is not where it says, or whose question leaves no room for context.
    """
    questions = [question.strip() for question in batch["question"]]  # a few of SQuAD's begin with pages of spaces
    special = tokenizer.num_special_tokens_to_add(pair=True)
    for row_id, tokens in zip(batch["id"], tokenizer(questions, add_special_tokens=False, verbose=False)["input_ids"]):
        room = max_length - special - len(tokens)
        if room <= doc_stride:
            raise ValueError(
                f"row {row_id}: a question of {len(tokens)} tokens leaves room for {max(room, 0)} tokens of "
                f"context, and windows that share {doc_stride} need {doc_stride + 1} (max_length={max_length})"
            )
    spans = [answer_span(*row) for row in zip(batch["id"], batch["context"], batch["answers"])]
    encoded = tokenizer(
        questions,
        batch["context"],
        truncation="only_second",
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = encoded.pop("overflow_to_sample_mapping")
    offsets = [
        [list(offset) if sequence == 1 else OUTSIDE for offset, sequence in zip(window, encoded.sequence_ids(number))]
        for number, window in enumerate(encoded.pop("offset_mapping"))
    ]
    starts, ends = map(list, zip(*(_positions(window, spans[row]) for window, row in zip(offsets, rows))))
    out = {**encoded, "start_positions": starts, "end_positions": ends}
    if not training:
        out |= {"example_id": [batch["id"][row] for row in rows], "offset_mapping": offsets}
    return out


def answer_span(row_id: int | str, context: str, answers: Mapping[str, Sequence]) -> tuple[int, int] | None:
    """First and last-plus-one character of the first answer, without spaces around it; None if there is none.

    Raises:
        ValueError: an answer's text is not at its place in the context; names the row.
    """
    pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
    for text, start in pairs:
        if start < 0 or context[start : start + len(text)] != text:
            raise ValueError(f"row {row_id}: the answer {text!r} is not at character {start}")
    if not pairs or not pairs[0][0].strip():
        return None
    text, start = pairs[0]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def _positions(offsets: list[list[int]], span: tuple[int, int] | None) -> tuple[int, int]:
    """First and last token of a span of characters; (0, 0) unless the window has all of it."""
    if span is None:
        return 0, 0
    start, end = span
    inside = [token for token, (first, last) in enumerate(offsets) if last > start and first < end]
    has_all = bool(inside) and offsets[inside[0]][0] <= start and offsets[inside[-1]][1] >= end
    return (inside[0], inside[-1]) if has_all else (0, 0)


def best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    features: Sequence[Mapping],
    examples: Iterable[Mapping],
    max_answer_tokens: int = 30,
    may_be_empty: bool = False,
) -> dict[str, str]:
    """The text of each example's best span over all its windows, by id; "" for an example without any.

    The score of a span is the sum of its start's and its end's logit; every span of at most `max_answer_tokens` tokens
    inside the context is tried. If an answer `may_be_empty`, as in SQuAD 2.0, it is "" too if the score of the [CLS]
    token, the least over the windows, is above that of the span.

    Args:
        start_logits, end_logits: (windows, tokens), in the order of `features`; beyond a window's length is padding.
        features: with `example_id` and `offset_mapping` of `windows`.
        examples: with id and context.
    """
    best: dict[str, tuple[float, int, int]] = {}
    empty: dict[str, float] = {}
    for starts, ends, feature in zip(start_logits, end_logits, features, strict=True):
        row_id = feature["example_id"]
        span = _best_span(starts, ends, np.asarray(feature["offset_mapping"]), max_answer_tokens)
        if span is not None and (row_id not in best or span[0] > best[row_id][0]):
            best[row_id] = span
        empty[row_id] = min(empty.get(row_id, np.inf), float(starts[0] + ends[0]))
    texts = {}
    for row in examples:
        score, start, end = best.get(row["id"], (0.0, 0, 0))
        is_empty = may_be_empty and empty.get(row["id"], -np.inf) > score
        texts[row["id"]] = "" if is_empty else row["context"][start:end]
    return texts


def _best_span(
    starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, max_answer_tokens: int
) -> tuple[float, int, int] | None:
    """Score, first and last-plus-one character of one window's best span; logits (T,), offsets (T, 2)."""
    context = np.flatnonzero(offsets[:, 0] >= 0)  # consecutive tokens
    if not context.size:
        return None
    padded = np.pad(ends[context].astype(np.float64), (0, max_answer_tokens - 1), constant_values=-np.inf)
    scores = starts[context, None] + np.lib.stride_tricks.sliding_window_view(padded, max_answer_tokens)  # (C, length)
    start, more = np.unravel_index(scores.argmax(), scores.shape)
    return float(scores[start, more]), int(offsets[context[start], 0]), int(offsets[context[start + more], 1])


def normalise(answer: str) -> str:
    """An answer as SQuAD compares it: in lower case, with single spaces, without ASCII punctuation and articles."""
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match_and_f1(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """SQuAD's two measures over all questions, as fractions 0..1 (its tables show percentages).

    `exact_match`: share of predictions equal to a reference once both are normalised; `f1`: mean overlap of words;
    both with the reference that fits best. For a question without references the right prediction is "".
    """
    exact = []
    overlap = []
    for row_id, answers in references.items():
        prediction = normalise(predictions[row_id])
        wanted = [answer for answer in map(normalise, answers) if answer] or [""]
        exact.append(float(prediction in wanted))
        overlap.append(max(_f1(prediction.split(), answer.split()) for answer in wanted))
    return {"exact_match": sum(exact) / len(exact), "f1": sum(overlap) / len(overlap)}


def _f1(predicted: list[str], wanted: list[str]) -> float:
    """Harmonic mean of precision and recall over the bags of words; two answers without words are equal."""
    if not predicted or not wanted:
        return float(predicted == wanted)
    return 2 * (Counter(predicted) & Counter(wanted)).total() / (len(predicted) + len(wanted))
