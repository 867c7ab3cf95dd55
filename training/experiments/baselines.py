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


def token_losses(
    train: Dataset, vocabulary: int, ignored: list[int], left: np.ndarray, right: np.ndarray
) -> dict[str, np.ndarray]:
    """(N,) each: nats of the tokens `right` after `left`, by frequencies and by a bigram; `ignored` are not predicted.

    A pair that was seen c times after a token that was seen n times, before t different ones, has the probability
    (c + t · frequency) / (n + t): interpolation by Witten and Bell (1991). After a token that was never seen it is the
    frequency.
    """
    pairs = csr_matrix((vocabulary, vocabulary), dtype=np.int64)  # left × right
    for before, after in neighbours(train):
        kept = ~np.isin(after, ignored)
        pairs += csr_matrix((np.ones(kept.sum(), dtype=np.int64), (before[kept], after[kept])), shape=pairs.shape)
    counts_plus_one = np.asarray(pairs.sum(0)).ravel() + 1
    frequency = (counts_plus_one / counts_plus_one.sum())[right]
    pair_count = np.asarray(pairs[left, right]).ravel()  # c
    left_count = np.asarray(pairs.sum(1)).ravel()[left]  # n
    followers = np.diff(pairs.indptr)[left]  # t, the entries of a row of the matrix
    with np.errstate(invalid="ignore"):  # 0 / 0 after tokens that were never seen
        interpolated = (pair_count + followers * frequency) / (left_count + followers)
    bigram = -np.log(np.where(left_count == 0, frequency, interpolated))
    return {"frequencies": -np.log(frequency), "bigram, all training rows": bigram}


def small_images(task: ImageClassification, rows: Dataset) -> np.ndarray:
    """(rows, channels × PIXELS²): pixels of 0..1, averaged over tiles if the images are larger than PIXELS."""
    height, width = task.config.image_shape
    tile = max(1, height // PIXELS), max(1, width // PIXELS)
    batches = []
    for batch in rows.with_format("torch").iter(1000):
        images = torch.stack(list(batch["pixels"])).reshape(-1, task.config.num_channels, height, width) / 255
        batches.append(avg_pool2d(images, tile).flatten(1).numpy())
    return np.concatenate(batches)


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
        # The share of the different tokens that both texts contain. A row is a mark of the beginning, the first text,
        # the separator, the second text and perhaps the separator again.
        separator, overlaps = task.processing.sep_token_id, []
        for each in tokens:
            shares = []
            for row in each:
                middle = np.flatnonzero(row == separator)[0]
                first, second = set(row[1:middle].tolist()), set(row[middle + 1 :].tolist()) - {separator}
                shares.append(len(first & second) / max(1, len(first | second)))
            overlaps.append(np.array(shares)[:, None])
        features["shared tokens only"] = (*overlaps, [])
    return features


def fitted_guesses(task: Task, features: Features, train: Dataset, held_out: Dataset) -> list[Guess]:
    """A regression on each of the features; if the task has classes, the commonest one comes before them."""
    train_labels, labels = (np.asarray(rows["labels"][:]) for rows in (train, held_out))
    as_outputs = np.eye(1 if task.regression else int(train_labels.max()) + 1)  # row c: 1 for class c, else 0
    outputs = {}
    if not task.regression:
        commonest = np.full(len(labels), np.bincount(train_labels).argmax())
        outputs["majority class"] = as_outputs[commonest]
    for name, (own, others, encoders) in features.items():
        regression = Ridge() if task.regression else LogisticRegression(max_iter=300)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline need not be the best of its kind
            predicted = make_pipeline(*encoders, regression).fit(own, train_labels).predict(others)
        outputs[name] = predicted[:, None] if task.regression else as_outputs[predicted]
    return [
        Guess(name=name, value=float(task.score(EvalPrediction(each, labels))[task.metric]))
        for name, each in outputs.items()
    ]


def language_guesses(task: LanguageModelling, train: Dataset, held_out: Dataset) -> list[Guess]:
    """By the loss, of the tokens that an evaluation asks for, each after the one on its left as the model reads it."""
    if isinstance(task, MaskedLM):
        asked = []
        for batch in evaluation_batches(task, held_out.with_format("numpy"), range(len(held_out)), 500):
            inputs, targets = batch["input_ids"].numpy()[:, :-1], batch["labels"].numpy()[:, 1:]
            asked.append((inputs[targets != -100], targets[targets != -100]))
    else:
        asked = neighbours(held_out)
    left, targets = (np.concatenate(parts) for parts in zip(*asked))
    ignored = [] if task.predicts_special_tokens else task.processing.all_special_ids
    losses = token_losses(train, task.config.vocab_size, ignored, left, targets)
    guesses = []
    for name, each in losses.items():
        outputs = np.array([[each.sum(), len(each), 0.0]])  # loss, tokens, and hits, which are not counted
        guesses.append(Guess(name=name, value=float(task.score(EvalPrediction(outputs, None))[task.metric])))
    return guesses


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
