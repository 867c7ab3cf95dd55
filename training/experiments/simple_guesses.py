"""What simple guesses that read the input score on a grid's task, without a transformer.

A model has learned where it beats the best of them (`summary.learned`). Where a grid's weights are published, the
command also measures how much the choice of held-out rows moves their difference (`row_errors.py`). Each guess is
fitted on the grid's training rows and scored on its held-out rows by the task's own metric:

- texts with a label: the commonest class; logistic regressions on the length, on the first token, on the bag of tokens
  and, of pairs, on how many tokens they share. A number in place of a label: the same as linear regressions.
- images: the commonest class; a logistic regression on pixels, averaged down to 16 × 16.
- language models: the frequency of a token, and an interpolated bigram that reads the token on the left as the model
  sees it, a mask in its place included. A second bigram is fitted on as many rows as the run was trained on.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import OneHotEncoder
from transformers import EvalPrediction

from modeling_leaner.files import write_json

from ..data.sources import load_training
from ..records import Guess
from ..records.results import PUBLISHED
from ..running.evaluation import prepare_evaluation
from ..running.preparation import prepare
from ..settings.arguments import RecipeArguments
from ..settings.command_line import data_options
from ..settings.recipes import parse
from ..tasks.base import Task, evaluation_batches
from ..tasks.classification import ImageClassification, SequenceClassification
from ..tasks.embedding import Embedding
from ..tasks.language import LanguageModelling, MaskedLM
from .bigram import Bigram, neighbours
from .grid import Grid
from .grid_results import GridResults, load_results
from .guess_features import bag_of_tokens, first_tokens, length_bins, small_images, token_overlap
from .guess_files import AS_MANY_ROWS, GUESSES, ROW_ERRORS
from .row_errors import row_errors
from .rows import reported
from .run_settings import options_of_run
from .runs import shape_option


class Features(NamedTuple):
    """What a regression reads of the training rows and of the held-out rows, (rows, features) each."""

    train: np.ndarray | csr_matrix
    held_out: np.ndarray | csr_matrix


def scored(task: Task, name: str, outputs: np.ndarray, labels: np.ndarray | None) -> Guess:
    """A guess by the task's metric, from outputs such as an evaluation has them of a model."""
    return Guess(name=name, value=float(task.score(EvalPrediction(outputs, labels))[task.metric]))


def one_hot(train: np.ndarray, held_out: np.ndarray) -> Features:
    """A feature for each value that the training rows have; other values of the held-out rows have none."""
    encoder = OneHotEncoder(handle_unknown="ignore").fit(train)
    return Features(encoder.transform(train), encoder.transform(held_out))


def text_guesses(task: SequenceClassification, train: Dataset, held_out: Dataset) -> list[Guess]:
    """Guesses from prepared rows that read the length, the first token, the bag of tokens or the overlap of a pair
    alone; before them the commonest class, where there are classes."""
    vocabulary = len(task.processing)
    features = {
        "length only": one_hot(length_bins(train), length_bins(held_out)),
        "first token only": one_hot(first_tokens(train), first_tokens(held_out)),
        "bag of tokens": Features(bag_of_tokens(train, vocabulary), bag_of_tokens(held_out, vocabulary)),
    }
    if "token_type_ids" in train.column_names:  # pairs of texts
        separator = task.processing.sep_token_id
        features["shared tokens only"] = Features(token_overlap(train, separator), token_overlap(held_out, separator))
    return fitted_guesses(task, features, train, held_out)


def image_guesses(task: ImageClassification, train: Dataset, held_out: Dataset) -> list[Guess]:
    """The commonest class, and a logistic regression on small images."""
    features = {"16 × 16 pixels": Features(small_images(task, train), small_images(task, held_out))}
    return fitted_guesses(task, features, train, held_out)


def fitted_guesses(task: Task, features: dict[str, Features], train: Dataset, held_out: Dataset) -> list[Guess]:
    """One guess per entry of `features`. Where the task has classes, the commonest one comes before them."""
    train_labels = np.asarray(train["labels"][:])
    labels = np.asarray(held_out["labels"][:])
    if task.regression:
        return linear_guesses(task, features, train_labels, labels)
    return class_guesses(task, features, train_labels, labels)


def linear_guesses(
    task: Task, features: dict[str, Features], train_labels: np.ndarray, labels: np.ndarray
) -> list[Guess]:
    """A linear regression on each of the features."""
    guesses = []
    for name, columns in features.items():
        predicted = Ridge().fit(columns.train, train_labels).predict(columns.held_out)
        guesses.append(scored(task, name, predicted[:, None], labels))
    return guesses


def class_guesses(
    task: Task, features: dict[str, Features], train_labels: np.ndarray, labels: np.ndarray
) -> list[Guess]:
    """The commonest class, and a logistic regression on each of the features."""
    as_logits = np.eye(int(train_labels.max()) + 1)  # row c: 1 for class c, 0 for the others
    commonest = np.full(len(labels), np.bincount(train_labels).argmax())
    guesses = [scored(task, "majority class", as_logits[commonest], labels)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a guess need not be the best of its kind
        for name, columns in features.items():
            predicted = LogisticRegression(max_iter=300).fit(columns.train, train_labels).predict(columns.held_out)
            guesses.append(scored(task, name, as_logits[predicted], labels))
    return guesses


def left_and_target(task: LanguageModelling, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The tokens on the left, as the model reads them, of the targets, and these, which an evaluation asks for.

    (N,) each, of some rows at a time.
    """
    if not isinstance(task, MaskedLM):
        yield from neighbours(rows)
        return
    for batch in evaluation_batches(task, rows.with_format("numpy"), range(len(rows)), 500):
        inputs = batch["input_ids"].numpy()
        targets = batch["labels"].numpy()[:, 1:]
        is_asked = targets != -100
        yield inputs[:, :-1][is_asked], targets[is_asked]


def language_guesses(
    task: LanguageModelling, train: Dataset, held_out: Dataset, trained_on: int | None
) -> list[Guess]:
    """The frequencies of tokens, and bigrams of all training rows and of `trained_on` of them, by the loss."""
    ignored = []
    if not task.predicts_special_tokens:
        ignored = task.processing.all_special_ids
    left, targets = (np.concatenate(parts) for parts in zip(*left_and_target(task, held_out)))

    def guess(name: str, nats: np.ndarray) -> Guess:
        loss_tokens_hits = np.array([[nats.sum(), len(nats), 0.0]])  # hits are not counted
        return scored(task, name, loss_tokens_hits, None)

    of_all_rows = Bigram.fit(train, task.config.vocab_size, ignored)
    guesses = [guess("frequencies", -np.log(of_all_rows.frequency[targets]))]
    if trained_on is not None and trained_on < len(train):
        chosen = np.sort(np.random.default_rng(0).choice(len(train), trained_on, replace=False))
        of_as_many = Bigram.fit(train.select(chosen), task.config.vocab_size, ignored)
        guesses.append(guess(AS_MANY_ROWS, of_as_many.nats(left, targets)))
    return [*guesses, guess("bigram, all training rows", of_all_rows.nats(left, targets))]


def rows_trained_on(arguments: RecipeArguments) -> int | None:
    """Rows of all steps of a run that is limited by steps; None of one that is limited by epochs."""
    if arguments.max_steps <= 0:
        return None
    return arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.max_steps


def guesses_on(task: Task, train: Dataset, held_out: Dataset) -> list[Guess] | None:
    """The guesses of a task on prepared rows; None where none is known for it or its metric."""
    match task:
        case SequenceClassification() if task.metric != "loss":
            return text_guesses(task, train, held_out)
        case ImageClassification() if not task.regression and task.metric != "loss":
            return image_guesses(task, train, held_out)
        case LanguageModelling() if task.metric != "accuracy":
            return language_guesses(task, train, held_out, rows_trained_on(task.arguments))
    return None


def guesses(folder: Path, options: list[str]) -> list[Guess] | None:
    """`guesses_on` the training and evaluation rows of a run or a published folder.

    Args:
        options: `--data_files` and the like, where the rows lie here.

    Raises:
        ValueError: the rows cannot be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = prepare_evaluation(str(folder), options, scratch)
        rows = load_training(evaluation.arguments)[0]
        train = evaluation.task.prepare(rows, "training rows", training=True)
        return guesses_on(evaluation.task, train, evaluation.held_out.rows)


def guesses_of_grid(results: GridResults, options: list[str]) -> list[Guess] | None:
    """`guesses_on` the rows of a grid, read as its baseline reads them. Raises ValueError as `guesses` does."""
    grid = results.grid
    run = reported(grid, grid.baseline, grid.seeds[0], grid.learning_rates[0])
    arguments = parse(grid.recipe, options_of_run(grid, run, shape_option(results, run), options))
    if arguments.task != Embedding.name:  # whose labels a teacher makes
        arguments.teacher = None
    prepared = prepare(arguments)
    if grid.metric not in (None, prepared.task.metric):  # which no guess is scored by
        return None
    return guesses_on(prepared.task, prepared.train, prepared.held_out_rows)


def write_guesses(grid: Grid, data_files: Sequence[str] = ()) -> None:
    """Scores the guesses on a grid's task and writes guesses.json beside its rows; nothing if none is known.

    If the grid's weights are published, `row_errors` are measured and written, too.

    Raises:
        ValueError, OSError: the rows cannot be had.
    """
    fitted = guesses_of_grid(load_results(grid), data_options(data_files))
    if fitted is None:
        return
    grid.path(GUESSES).parent.mkdir(parents=True, exist_ok=True)
    write_json(grid.path(GUESSES), [guess.document() for guess in fitted])
    errors = row_errors(grid, data_files, Path(PUBLISHED))
    if errors:
        write_json(grid.path(ROW_ERRORS), [error.document() for error in errors])
    for guess in fitted:
        print(f"{guess.name}: {guess.value:.4f}", file=sys.stderr)
