"""Simple baselines that read the input, without a transformer: guesses.json of a grid.

A model has learned if it beats the best of them. Each is fitted on training rows and scored on held-out rows by the
task's own metric:

- texts with a label: the commonest class; logistic regressions on the length, on the first token, on the bag of tokens
  and, for pairs, on how many tokens they share. A number instead of a label: the same as linear regressions.
- images: the commonest class; a logistic regression on pixels, averaged down to 16 × 16.
- language models: the frequency of a token, and an interpolated bigram that reads the token on the left as the model
  sees it, a mask included.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder
from torch.nn.functional import avg_pool2d
from transformers import EvalPrediction

from ..records import Guess
from ..tasks.base import Task, evaluation_batches
from ..tasks.classification import ImageClassification, SequenceClassification
from ..tasks.language import LanguageModelling, MaskedLM


GUESSES = "guesses.json"  # beside a grid's rows
BAG_SCALE = 30  # times a token's share of its row, so that the penalty of a regression does not outweigh it
PIXELS = 16  # the sides that images are averaged down to
Features = dict[str, tuple[Any, Any, list]]  # by name: of the training rows, of the held-out rows, and their encoders


def neighbours(rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and those that follow them in the same row, (N,) each, for 10,000 rows at a time."""
    for batch in rows.with_format("arrow").iter(10_000):
        column = batch["input_ids"].combine_chunks()
        ids = column.flatten().to_numpy()  # of all rows, one after the other
        later_starts = np.cumsum(column.value_lengths().to_numpy())[:-1]  # of all rows but the first
        in_one_row = np.ones(len(ids) - 1, dtype=bool)
        in_one_row[later_starts - 1] = False
        yield ids[:-1][in_one_row], ids[1:][in_one_row]


@dataclass
class Bigram:
    """Counts of tokens that follow each other, and the frequency of each token, used if nothing else is known.

    A pair that was seen c times after a token that was seen n times, before t different ones, has the probability
    (c + t · frequency) / (n + t): interpolation by Witten and Bell (1991). V: the size of the vocabulary.
    """

    pairs: csr_matrix  # (V, V), left × right
    frequency: np.ndarray  # (V,)

    @classmethod
    def fit(cls, rows: Dataset, vocabulary: int, ignored: list[int]) -> "Bigram":
        """From prepared rows; tokens of `ignored` are never predicted."""
        pairs = csr_matrix((vocabulary, vocabulary), dtype=np.int64)
        for left, right in neighbours(rows):
            kept = ~np.isin(right, ignored)
            ones = np.ones(kept.sum(), dtype=np.int64)
            pairs += csr_matrix((ones, (left[kept], right[kept])), shape=pairs.shape)
        counts_plus_one = np.asarray(pairs.sum(0)).ravel() + 1
        return cls(pairs, counts_plus_one / counts_plus_one.sum())

    def nats(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(N,): the loss of each token `right` after `left`."""
        pair_count = np.asarray(self.pairs[left, right]).ravel()  # c
        left_count = np.asarray(self.pairs.sum(1)).ravel()[left]  # n
        followers = np.diff(self.pairs.indptr)[left]  # t, the entries of a row of the matrix
        frequency = self.frequency[right]
        with np.errstate(invalid="ignore"):  # 0 / 0 after tokens that were never seen
            interpolated = (pair_count + followers * frequency) / (left_count + followers)
        return -np.log(np.where(left_count == 0, frequency, interpolated))


def token_overlap(rows: Dataset, separator: int) -> np.ndarray:
    """(rows, 1): the share of the different tokens of a pair of texts that both contain.

    A row is a mark of the beginning, the first text, the separator, the second text and perhaps the separator again.
    """
    shares = []
    for row in rows.with_format("numpy")["input_ids"]:
        middle = np.flatnonzero(row == separator)[0]
        first = set(row[1:middle].tolist())
        second = set(row[middle + 1 :].tolist()) - {separator}
        shares.append(len(first & second) / max(1, len(first | second)))
    return np.array(shares)[:, None]


def small_images(task: ImageClassification, rows: Dataset) -> np.ndarray:
    """(rows, channels × PIXELS²): pixels of 0..1, averaged over tiles if the images are larger than PIXELS."""
    height, width = task.config.image_shape
    tile = max(1, height // PIXELS), max(1, width // PIXELS)
    batches = []
    for batch in rows.with_format("torch").iter(1000):
        images = torch.stack(list(batch["pixels"])).reshape(-1, task.config.num_channels, height, width) / 255
        batches.append(avg_pool2d(images, tile).flatten(1).numpy())
    return np.concatenate(batches)


def scored(task: Task, name: str, outputs: np.ndarray, labels: np.ndarray | None) -> Guess:
    """A baseline by the task's metric, from outputs in the form in which an evaluation gets a model's."""
    return Guess(name=name, value=float(task.score(EvalPrediction(outputs, labels))[task.metric]))


def text_features(task: SequenceClassification, train: Dataset, held_out: Dataset) -> Features:
    """What a baseline reads of the rows: their length in bins, their first tokens, or all of them."""
    parts = (train, held_out)
    # Each bin is about a tenth longer than the one before. Of two tokens one may be the tokenizer's mark of the
    # beginning; -1 is a missing one.
    lengths = [np.floor(10 * np.log(np.asarray(rows["length"][:], dtype=float)))[:, None] for rows in parts]
    tokens = [list(rows.with_format("numpy")["input_ids"]) for rows in parts]
    firsts = [np.stack([np.append(row, -1)[:2] for row in each]) for each in tokens]

    one_hot = OneHotEncoder(handle_unknown="ignore")
    bag = [CountVectorizer(analyzer=list), Normalizer("l1"), FunctionTransformer(lambda shares: BAG_SCALE * shares)]
    features = {
        "length only": (*lengths, [one_hot]),
        "first token only": (*firsts, [one_hot]),
        "bag of tokens": (*tokens, bag),
    }
    if "token_type_ids" in train.column_names:  # pairs of texts
        separator = task.processing.sep_token_id
        features["shared tokens only"] = (token_overlap(train, separator), token_overlap(held_out, separator), [])
    return features


def fitted_guesses(task: Task, features: Features, train: Dataset, held_out: Dataset) -> list[Guess]:
    """A regression on each of the features; if the task has classes, the commonest one comes before them."""
    train_labels, labels = (np.asarray(rows["labels"][:]) for rows in (train, held_out))
    as_outputs = np.eye(1 if task.regression else int(train_labels.max()) + 1)  # row c: 1 for class c, else 0
    guesses = []
    if not task.regression:
        commonest = np.full(len(labels), np.bincount(train_labels).argmax())
        guesses.append(scored(task, "majority class", as_outputs[commonest], labels))
    for name, (own, others, encoders) in features.items():
        regression = Ridge() if task.regression else LogisticRegression(max_iter=300)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline need not be the best of its kind
            predicted = make_pipeline(*encoders, regression).fit(own, train_labels).predict(others)
        outputs = predicted[:, None] if task.regression else as_outputs[predicted]
        guesses.append(scored(task, name, outputs, labels))
    return guesses


def left_and_target(task: LanguageModelling, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The tokens that an evaluation asks for, each after the one on its left as the model reads it, (N,) each."""
    if not isinstance(task, MaskedLM):
        yield from neighbours(rows)
        return
    for batch in evaluation_batches(task, rows.with_format("numpy"), range(len(rows)), 500):
        inputs = batch["input_ids"].numpy()
        targets = batch["labels"].numpy()[:, 1:]
        is_asked = targets != -100
        yield inputs[:, :-1][is_asked], targets[is_asked]


def language_guesses(task: LanguageModelling, train: Dataset, held_out: Dataset) -> list[Guess]:
    """The frequencies of tokens, and a bigram, by the loss."""
    ignored = [] if task.predicts_special_tokens else task.processing.all_special_ids
    left, targets = (np.concatenate(parts) for parts in zip(*left_and_target(task, held_out)))
    bigram = Bigram.fit(train, task.config.vocab_size, ignored)
    nats = {
        "frequencies": -np.log(bigram.frequency[targets]),
        "bigram, all training rows": bigram.nats(left, targets),
    }
    # Loss, tokens, and hits, which are not counted:
    return [scored(task, name, np.array([[each.sum(), len(each), 0.0]]), None) for name, each in nats.items()]


def guesses_on(task: Task, train: Dataset, held_out: Dataset) -> list[Guess] | None:
    """The baselines of a task on prepared rows; None if none is known for it or its metric."""
    match task:
        case SequenceClassification() if task.metric != "loss":
            return fitted_guesses(task, text_features(task, train, held_out), train, held_out)
        case ImageClassification() if not task.regression and task.metric != "loss":
            features = {"16 × 16 pixels": (small_images(task, train), small_images(task, held_out), [])}
            return fitted_guesses(task, features, train, held_out)
        case LanguageModelling() if task.metric != "accuracy":
            return language_guesses(task, train, held_out)
    return None
