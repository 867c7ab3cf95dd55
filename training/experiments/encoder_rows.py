"""The rows that sentence encoders are scored on: from the Hub, or local copies by `--data NAME=PATH`."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ClassLabel

from ..data.sources import Rows, describe, evenly, load_split
from ..records import TextRows
from ..tasks.base import check_text, require_columns, shown, text_columns


PROBE_ROWS = 5_000  # that the probe is fitted on, evenly over the training rows
SENTENCES = 4_000  # for the cosine, evenly over the held-out ones
HUB = {  # by name: dataset and configuration
    "stsb": ("nyu-mll/glue", "stsb"),
    "stsb_test": ("sentence-transformers/stsb", None),  # GLUE keeps the numbers of its test rows to itself
    "qnli": ("nyu-mll/glue", "qnli"),
    "sst2": ("nyu-mll/glue", "sst2"),
    "sentences": ("nyu-mll/glue", "sst2"),
}
NAMES = ("stsb", "qnli", "sst2", "sentences")  # that --data may give
FOLDERS = ("stsb", "sst2")  # of these two splits are read


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts and how alike people find them, (N)."""

    first: list[str]
    second: list[str]
    numbers: np.ndarray


@dataclass(frozen=True)
class Questions:
    """Questions, the distinct sentences among which each looks for its own, and the place of that, (Q)."""

    questions: list[str]
    sentences: list[str]
    right: np.ndarray


@dataclass(frozen=True)
class Labelled:
    """Texts of two classes, (N): to fit a probe on, and to score it on."""

    train: list[str]
    train_labels: np.ndarray
    texts: list[str]
    labels: np.ndarray


@dataclass(frozen=True)
class EncoderRows:
    """All that encoders are scored on; what is None is not scored."""

    pairs: dict[str, Pairs]
    """By the name of the score: stsb, stsb_test."""
    qnli: Questions | None
    sst2: Labelled | None
    sentences: list[str] | None
    records: dict[str, TextRows]
    """Of every score what its rows are, and of sst2_train, which the probe is fitted on."""


@dataclass(frozen=True)
class Split:
    """A split: its rows, and where they come from."""

    rows: Rows
    source: str
    """Dataset, split and files, as messages name them."""
    dataset: str
    dataset_config: str | None
    split: str

    def texts(self, column: str) -> list[str]:
        """A column of texts. Raises ValueError where it is missing, or for a value that is none."""
        require_columns(self.rows, [column], self.source)
        texts = self.rows[column][:]
        check_text({column: texts}, column, list(range(len(texts))), self.source)
        return texts

    def labels(self, *columns: str) -> np.ndarray:
        """The first column of these that there is. Raises ValueError where labels are missing or hidden (all −1)."""
        column = next((name for name in columns if name in self.rows.column_names), None)
        if column is None:
            there = ", ".join(self.rows.column_names)
            raise ValueError(f"{self.source}: no labels, expected a column {' or '.join(columns)}, found {there}")
        values = self.rows[column][:]
        for row, value in enumerate(values, 1):
            if not isinstance(value, int | float) or not np.isfinite(value):
                raise ValueError(f"{self.source}: {column}, row {row}: {shown(value)} is no number")
        labels = np.asarray(values)
        if len(labels) and (labels == -1).all():
            raise ValueError(f"{self.source}: {column}: all are -1, which hides the labels; expected a copy with them")
        return labels

    def record_of(self, texts: Iterable[str], count: int, documents: int | None = None) -> TextRows:
        """The record of `count` rows that were taken from this split, and the hash of their texts."""
        digest = hashlib.sha256()
        for text in texts:
            digest.update(text.encode() + b"\n")
        return TextRows(
            dataset=self.dataset,
            dataset_config=self.dataset_config,
            split=self.split,
            rows=count,
            sha256=digest.hexdigest(),
            documents=documents,
        )


def local_data(entries: Sequence[str]) -> dict[str, str]:
    """Paths by name: a folder with the splits of a dataset, or a file where one split of it is read.

    Raises:
        ValueError: an entry is not NAME=PATH with one of `NAMES`, names one twice, or is of another kind.
    """
    given: dict[str, str] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or name not in NAMES or not path:
            raise ValueError(f"--data {entry}: expected NAME=PATH with a NAME of {', '.join(NAMES)}")
        if name in given:
            raise ValueError(f"--data: {name} is given twice, {given[name]} and {path}")
        if not Path(path).exists():
            raise ValueError(f"--data {entry}: no such file or folder")
        if name in FOLDERS and not Path(path).is_dir():
            raise ValueError(f"--data {entry}: a file, expected a folder with the splits of {name}")
        given[name] = path
    return given


def read_split(name: str, split: str, local_paths: Mapping[str, str]) -> Split:
    """A split of the Hub's dataset, or of the local copy. Raises ValueError as `load_split`, with NAME of --data."""
    dataset, config = HUB[name]
    given = name.removesuffix("_test")
    path = local_paths.get(given)
    data_files = []
    place = given
    remedy = f"; --data {given}=PATH names a local copy"
    if path is not None:
        data_files = [path]
        place = f"--data {given}={path}"
        remedy = ""
    try:
        rows = load_split(dataset, split, dataset_config=config, data_files=data_files)
    except ValueError as error:
        raise ValueError(f"{place}: {error}{remedy}") from error
    source = describe(dataset, split, data_files)
    if name == "sentences" and path is not None:
        dataset = Path(path).name
        config = None
    return Split(rows, source, dataset, config, split)


def load_rows(local_paths: Mapping[str, str], scores: Sequence[str]) -> EncoderRows:
    """The rows of these scores: stsb, stsb_test, qnli, sst2, cosine.

    Raises:
        ValueError: rows are missing, or lack texts or labels; names the file or dataset, the column and the row.
    """
    records: dict[str, TextRows] = {}
    pairs = {}
    for name, split in (("stsb", "validation"), ("stsb_test", "test")):
        if name in scores:
            pairs[name], records[name] = read_pairs(name, split, local_paths)
    questions = None
    if "qnli" in scores:
        questions, records["qnli"] = read_questions(local_paths)
    labelled = None
    if "sst2" in scores:
        labelled, records["sst2"], records["sst2_train"] = read_labelled(local_paths)
    sentences = None
    if "cosine" in scores:
        sentences, records["cosine"] = read_sentences(local_paths)
    return EncoderRows(pairs, questions, labelled, sentences, records)


def read_pairs(name: str, split: str, local_paths: Mapping[str, str]) -> tuple[Pairs, TextRows]:
    """Pairs of STS-B, and their record."""
    held_out = read_split(name, split, local_paths)
    first = held_out.texts("sentence1")
    second = held_out.texts("sentence2")
    numbers = held_out.labels("label", "score").astype(float)
    return Pairs(first, second, numbers), held_out.record_of([*first, *second], len(first))


def read_questions(local_paths: Mapping[str, str]) -> tuple[Questions, TextRows]:
    """QNLI's questions whose sentence holds the answer, and the distinct sentences of all its rows; their record."""
    held_out = read_split("qnli", "validation", local_paths)
    labels = held_out.labels("label")
    entailed = 0
    feature = held_out.rows.features["label"]
    if isinstance(feature, ClassLabel) and "entailment" in feature.names:
        entailed = feature.names.index("entailment")
    chosen = np.flatnonzero(labels == entailed)
    if len(chosen) == 0:
        raise ValueError(f"{held_out.source}: label: no row is {entailed}, entailment")
    questions = held_out.texts("question")
    sentences = held_out.texts("sentence")
    places = {sentence: place for place, sentence in enumerate(dict.fromkeys(sentences))}
    right = [places[sentences[row]] for row in chosen]
    asked = [questions[row] for row in chosen]
    record = held_out.record_of([*asked, *places], len(asked), documents=len(places))
    return Questions(asked, list(places), np.array(right)), record


def read_labelled(local_paths: Mapping[str, str]) -> tuple[Labelled, TextRows, TextRows]:
    """Sentences of SST-2, the validation rows and some of the training rows; the records of both."""
    train = read_split("sst2", "train", local_paths)
    places = evenly(len(train.rows), PROBE_ROWS)
    train_texts = train.texts("sentence")
    fitted = [train_texts[place] for place in places]
    fitted_labels = train.labels("label")[places]
    if len(set(fitted_labels.tolist())) < 2:
        raise ValueError(f"{train.source}: label: one class alone, expected two to tell apart")
    held_out = read_split("sst2", "validation", local_paths)
    texts = held_out.texts("sentence")
    labelled = Labelled(fitted, fitted_labels, texts, held_out.labels("label"))
    return labelled, held_out.record_of(texts, len(texts)), train.record_of(fitted, len(fitted))


def read_sentences(local_paths: Mapping[str, str]) -> tuple[list[str], TextRows]:
    """Held-out sentences, those given, else those of SST-2's validation rows; their record."""
    held_out = read_split("sentences", "validation", local_paths)
    columns = text_columns(held_out.rows)
    if len(columns) != 1:
        names = ", ".join(held_out.rows.column_names)
        raise ValueError(f"{held_out.source}: expected one column of sentences, found {names}")
    texts = held_out.texts(columns[0])
    chosen = [texts[place] for place in evenly(len(texts), SENTENCES)]
    return chosen, held_out.record_of(chosen, len(chosen))
