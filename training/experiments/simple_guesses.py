"""`leaner guesses GRID.yaml`: what simple guesses that read the input score on a grid's task, without a transformer.

A model has learned where it beats the best of them (`summary.learned`). Where a grid's weights are published, the
command also measures how much the choice of held-out rows moves their difference (`row_errors.py`). Each guess is
fitted on the grid's training rows and scored on its held-out rows by the task's own metric:

- texts with a label: the commonest class; logistic regressions on the length, on the first token, on the bag of tokens
  and, of pairs, on how many tokens they share. A number in place of a label: the same as linear regressions.
- images: the commonest class; a logistic regression on pixels, averaged down to 16 × 16.
- language models: the frequency of a token, and an interpolated bigram that reads the token on the left as the model
  sees it. A second bigram is fitted on as many rows as the run was trained on.
"""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import OneHotEncoder
from transformers import EvalPrediction
from transformers.utils import logging

from modeling_leaner.support.documents import write_json

from ..data.sources import load_training
from ..running.evaluation import load
from ..running.preparation import prepare
from ..settings.arguments import RecipeArguments, parse
from ..tasks.base import Task, evaluation_generators
from ..tasks.image_classification import ImageClassification
from ..tasks.language_modelling import LanguageModelling
from ..tasks.masked_lm import MaskedLM
from ..tasks.sequence_classification import SequenceClassification
from .branches import data_options
from .grid import GridError, load_grid
from .grid_results import GridResults, load_results
from .guesses import AS_MANY_ROWS, GUESSES, ROW_ERRORS
from .row_errors import row_errors
from .rows import Run
from .run_settings import recipe_and_options
from .runs import start_of


PIXELS = 16  # a side of the images that the logistic regression reads
Guess = dict[str, object]  # name, and value in the task's metric


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


def overlaps(rows: Dataset, separator: int) -> np.ndarray:
    """(rows, 1): of the different tokens of a pair, the share that both texts have."""
    shares = []
    for row in rows.with_format("numpy")["input_ids"]:
        middle = np.flatnonzero(row == separator)[0]
        first = set(row[1:middle].tolist())
        second = set(row[middle + 1 :].tolist()) - {separator}
        shares.append(len(first & second) / max(1, len(first | second)))
    return np.array(shares)[:, None]


def text_guesses(task: SequenceClassification, train: Dataset, held_out: Dataset) -> list[Guess]:
    """Guesses from prepared rows that read the length, the first token, the bag of tokens or the overlap of a pair
    alone; before them the commonest class, where there are classes."""
    bins = OneHotEncoder(handle_unknown="ignore").fit(lengths(train))
    starts = OneHotEncoder(handle_unknown="ignore").fit(first_tokens(train))
    vocabulary = len(task.processing)
    features = {
        "length only": (bins.transform(lengths(train)), bins.transform(lengths(held_out))),
        "first token only": (starts.transform(first_tokens(train)), starts.transform(first_tokens(held_out))),
        "bag of tokens": (30 * counts(train, vocabulary), 30 * counts(held_out, vocabulary)),
    }
    if "token_type_ids" in train.column_names:
        separator = task.processing.sep_token_id
        features["shared tokens only"] = (overlaps(train, separator), overlaps(held_out, separator))
    return fitted_guesses(task, features, train, held_out)


def fitted_guesses(
    task: Task, features: dict[str, tuple[object, object]], train: Dataset, held_out: Dataset
) -> list[Guess]:
    """One guess per entry of `features`, a pair: those of the training rows and those of the held-out rows.

    Where the task has classes, the commonest one comes before them.
    """
    labels = np.asarray(train["labels"][:])
    answers = np.asarray(held_out["labels"][:])

    def guess(name: str, outputs: np.ndarray) -> Guess:
        return {"name": name, "value": float(task.score(EvalPrediction(outputs, answers))[task.metric])}

    if task.regression:
        guesses = []
        for name, (of_training, of_held_out) in features.items():
            model = Ridge().fit(of_training, labels)
            guesses.append(guess(name, model.predict(of_held_out)[:, None]))
        return guesses
    one_hot = np.eye(int(labels.max()) + 1)
    commonest = one_hot[np.bincount(labels).argmax()]
    guesses = [guess("majority class", np.tile(commonest, (len(answers), 1)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a guess need not be the best of its kind
        for name, (of_training, of_held_out) in features.items():
            model = LogisticRegression(max_iter=300).fit(of_training, labels)
            guesses.append(guess(name, one_hot[model.predict(of_held_out)]))
    return guesses


def small_images(task: ImageClassification, rows: Dataset) -> np.ndarray:
    """(rows, channels × `PIXELS`²): pixels of 0..1, averaged over squares where the images are larger."""
    height, width = task.config.image_shape
    down = max(1, height // PIXELS)
    across = max(1, width // PIXELS)
    parts = []
    for batch in rows.with_format("numpy").iter(1000):
        images = np.stack(list(batch["pixels"])).reshape(-1, task.config.num_channels, height, width) / 255
        images = images[:, :, : height // down * down, : width // across * across]
        squares = images.reshape(*images.shape[:2], height // down, down, width // across, across)
        parts.append(squares.mean((3, 5), dtype=np.float32).reshape(len(images), -1))
    return np.concatenate(parts)


def image_guesses(task: ImageClassification, train: Dataset, held_out: Dataset) -> list[Guess]:
    """The commonest class, and a logistic regression on small images."""
    features = {"16 × 16 pixels": (small_images(task, train), small_images(task, held_out))}
    return fitted_guesses(task, features, train, held_out)


def neighbours(rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and those that follow them in the same row, (N,) each, of 10,000 rows at a time."""
    for batch in rows.with_format("arrow").iter(10_000):
        column = batch["input_ids"].combine_chunks()
        ids = column.flatten().to_numpy()
        ends = np.cumsum(column.value_lengths().to_numpy())[:-1]
        inside = np.ones(len(ids) - 1, dtype=bool)
        inside[ends - 1] = False
        yield ids[:-1][inside], ids[1:][inside]


@dataclass
class Bigram:
    """Counts of tokens that follow each other, and the frequency of each token where nothing is known.

    A pair that was seen c times after a token that was seen n times, before t different ones, has the probability
    (c + t · frequency) / (n + t): interpolation by Witten and Bell (1991).
    """

    pairs: csr_matrix  # (V, V)
    frequency: np.ndarray  # (V,)

    @classmethod
    def fit(cls, rows: Dataset, vocabulary: int, ignored: list[int]) -> "Bigram":
        """From prepared rows; tokens of `ignored` are never predicted."""
        pairs = csr_matrix((vocabulary, vocabulary), dtype=np.int64)
        for left, right in neighbours(rows):
            kept = ~np.isin(right, ignored)
            ones = np.ones(kept.sum(), dtype=np.int64)
            pairs += csr_matrix((ones, (left[kept], right[kept])), shape=pairs.shape)
        once_more = np.asarray(pairs.sum(0)).ravel() + 1
        return cls(pairs, once_more / once_more.sum())

    def nats(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(N,): the loss of each token `right` after `left`."""
        known = np.asarray(self.pairs[left, right]).ravel()
        seen = np.asarray(self.pairs.sum(1)).ravel()[left]
        different = np.diff(self.pairs.indptr)[left]
        with np.errstate(invalid="ignore"):
            mixed = (known + different * self.frequency[right]) / (seen + different)
        return -np.log(np.where(seen == 0, self.frequency[right], mixed))


@singledispatch
def predicted(task: LanguageModelling, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The tokens on the left, as the model reads them, of those that an evaluation asks for, and these; (N,) each."""
    return neighbours(rows)


@predicted.register
def _(task: MaskedLM, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rows = rows.with_format("numpy")
    for start in range(0, len(rows), 500):
        places = range(start, min(start + 500, len(rows)))
        generators = evaluation_generators(places)
        batch = task.transform(task.collate([rows[place] for place in places]), generators, training=False)
        inputs = batch["input_ids"].numpy()
        labels = batch["labels"].numpy()
        asked = labels[:, 1:] != -100
        yield inputs[:, :-1][asked], labels[:, 1:][asked]


def language_guesses(
    task: LanguageModelling, train: Dataset, held_out: Dataset, trained_on: int | None
) -> list[Guess]:
    """The frequencies of tokens, and bigrams of all training rows and of `trained_on` of them."""
    ignored = []
    if not task.predicts_special_tokens:
        ignored = task.processing.all_special_ids
    left, right = (np.concatenate(parts) for parts in zip(*predicted(task, held_out)))

    def guess(name: str, nats: np.ndarray) -> Guess:
        sums = np.array([[nats.sum(), len(nats), 0.0]])
        return {"name": name, "value": float(task.score(EvalPrediction(sums, None))[task.metric])}

    everything = Bigram.fit(train, task.config.vocab_size, ignored)
    guesses = [guess("frequencies", -np.log(everything.frequency[right]))]
    if trained_on is not None and trained_on < len(train):
        chosen = np.sort(np.random.default_rng(0).choice(len(train), trained_on, replace=False))
        part = Bigram.fit(train.select(chosen), task.config.vocab_size, ignored)
        guesses.append(guess(AS_MANY_ROWS, part.nats(left, right)))
    return [*guesses, guess("bigram, all training rows", everything.nats(left, right))]


def rows_trained_on(arguments: RecipeArguments) -> int | None:
    """Rows of all steps of a run that is limited by steps; None of one that is limited by epochs."""
    if arguments.max_steps <= 0:
        return None
    return arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.max_steps


@singledispatch
def guesses_on(task: Task, train: Dataset, held_out: Dataset) -> list[Guess] | None:
    """The guesses of a task on prepared rows; None where none is known for it or its metric."""
    return None


guesses_on.register(text_guesses)


@guesses_on.register
def _(task: ImageClassification, train: Dataset, held_out: Dataset) -> list[Guess] | None:
    if task.regression:
        return None
    return image_guesses(task, train, held_out)


@guesses_on.register
def _(task: LanguageModelling, train: Dataset, held_out: Dataset) -> list[Guess] | None:
    if task.metric == "accuracy":
        return None
    return language_guesses(task, train, held_out, rows_trained_on(task.arguments))


def guesses(folder: Path, options: list[str]) -> list[Guess] | None:
    """`guesses_on` the training and evaluation rows of a run or a published folder.

    Args:
        options: `--data_files` and the like, where the rows lie here.

    Raises:
        ValueError: the rows cannot be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = load(str(folder), options, scratch)
        rows = load_training(evaluation.arguments)[0]
        train = evaluation.task.prepare(rows, "training rows", training=True)
        return guesses_on(evaluation.task, train, evaluation.held_out.rows)


def guesses_of_grid(results: GridResults, options: list[str]) -> list[Guess] | None:
    """`guesses_on` the rows of a grid, read as its baseline reads them. Raises ValueError as `guesses` does."""
    grid = results.grid
    run = Run("report", grid.baseline, grid.seeds[0], grid.learning_rates[0])
    recipe, *settings = recipe_and_options(grid, run, start_of(results, run), options)
    arguments = parse(recipe, settings)
    prepared = prepare(arguments)
    return guesses_on(prepared.task, prepared.train, prepared.held_out_rows)


def write_guesses(file: Path, data_files: Sequence[str] = ()) -> None:
    """Scores the guesses on the task of a grid's file, writes them beside the grid's rows and prints them.

    Where the grid's weights are published, `row_errors` are measured and written, too.

    Raises:
        ValueError, OSError: the grid is refused, its rows cannot be had, or no guess is known for its task.
    """
    logging.set_verbosity_error()
    grid = load_grid(file)
    options = data_options(data_files)
    scored = guesses_of_grid(load_results(grid), options)
    if scored is None:
        raise GridError(f"{file}: no simple guess is known for its task and metric")
    write_json(grid.path(GUESSES), scored)
    errors = row_errors(grid, options, Path("model_cards"))
    if errors:
        write_json(grid.path(ROW_ERRORS), errors)
    for guess in scored:
        print(f"{guess['name']}: {guess['value']:.4f}")
    print(grid.path(GUESSES))
