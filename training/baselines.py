"""What can be had without a transformer: guesses from label counts, length, first token and bag of tokens."""

import tempfile
from pathlib import Path

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder
from transformers import EvalPrediction

from .evaluate import load
from .sources import load_training
from .tasks import SequenceClassification


def counts(rows: Dataset, vocabulary: int) -> csr_matrix:
    """(rows, vocabulary): how often each token occurs, over the row's length."""
    ids = [np.asarray(row) for row in rows.with_format("numpy")["input_ids"]]
    place = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    share = np.concatenate([np.full(len(row), 1 / len(row)) for row in ids])
    return csr_matrix((share, (place, np.concatenate(ids))), shape=(len(ids), vocabulary))


def lengths(rows: Dataset) -> np.ndarray:
    """(rows, 1): the length of each row, in bins of a tenth."""
    return np.floor(10 * np.log(np.asarray(rows["length"][:], dtype=float)))[:, None]


def first_tokens(rows: Dataset) -> np.ndarray:
    """(rows, 2): the first two tokens, of which one may be the tokenizer's mark of the beginning."""
    return np.stack([np.append(row, -1)[:2] for row in rows.with_format("numpy")["input_ids"]])


def text_baselines(task: SequenceClassification, train: Dataset, held_out: Dataset) -> list[dict[str, object]]:
    """The task's metric of guesses on prepared rows: the commonest class, length, first token, bag of tokens alone.

    The last three are logistic regressions of scikit-learn, on the binned length, the token and token frequencies.
    """
    labels, answers = np.asarray(train["labels"][:]), np.asarray(held_out["labels"][:])
    classes, vocabulary = int(labels.max()) + 1, len(task.processing)

    def score(guessed: np.ndarray) -> float:
        return float(task.score(EvalPrediction(np.eye(classes)[guessed], answers))[task.metric])

    bins = OneHotEncoder(handle_unknown="ignore").fit(lengths(train))
    starts = OneHotEncoder(handle_unknown="ignore").fit(first_tokens(train))
    features = {
        "length only": (bins.transform(lengths(train)), bins.transform(lengths(held_out))),
        "first token only": (starts.transform(first_tokens(train)), starts.transform(first_tokens(held_out))),
        "bag of tokens": (30 * counts(train, vocabulary), 30 * counts(held_out, vocabulary)),
    }
    found = [{"name": "majority class", "value": score(np.full(len(answers), np.bincount(labels).argmax()))}]
    for name, (seen, asked) in features.items():
        model = LogisticRegression(max_iter=300).fit(seen, labels)
        found.append({"name": name, "value": score(model.predict(asked))})
    return found


def guesses(folder: Path, words: list[str]) -> list[dict[str, object]] | None:
    """`text_baselines` on the training and evaluation rows of a run or a published folder; None for other tasks.

    Args:
        words: `--data_files` and the like, where the rows lie here.

    Raises:
        ValueError: the rows cannot be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = load(str(folder), words, scratch)
        task, arguments = evaluation.task, evaluation.arguments
        if not isinstance(task, SequenceClassification) or task.regression:
            return None
        train = task.prepare(load_training(arguments)[0], "training rows", training=True)
        return text_baselines(task, train, evaluation.prepared)
