"""What the tasks with a label share: the classes, labels as numbers, and how predictions are scored.

A metric is computed by `score`; its name stands in `METRICS` of settings/arguments.py.
"""

import typing
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, IterableDataset, Value
from scipy import stats
from sklearn import metrics as sklearn_metrics
from transformers import EvalPrediction

from modeling_leaner.configuration_leaner import LeanConfig

from ..data.sources import Rows
from .base import Task, column_names, features_of, find_column, place_in_file, shown


LABEL_COLUMNS = ("label", "labels", "fine_label")
LARGEST_NUMBER = 1e18  # whose square is finite in float32
MOST_CLASSES = 1000  # that numbers may count up to where there are fewer rows
LABEL_TYPES = ("int", "uint", "bool", "string", "large_string", "null")


class Classification(Task):
    """What the two classification tasks share: their labels, and how these are scored."""

    named_by_text = False  # whether the classes are texts of the training rows, whose numbers nothing declares
    named_by_number = False  # whether they are numbers that do not begin at 0, as stars from 1 to 5

    @classmethod
    def loss_unit_of(cls, settings: Mapping[str, Any], config: LeanConfig) -> str:
        if config.problem_type == "regression":
            return "squared error"
        return "nats"

    def configure(self, train: Rows) -> dict[str, object]:
        available = column_names(train)
        candidates = [name for name in LABEL_COLUMNS if name in available][:1]
        self.label_column = find_column(train, self.arguments.label_column, "label_column", candidates)
        feature = features_of(train).get(self.label_column)
        if isinstance(feature, ClassLabel):
            names = list(feature.names)
        elif isinstance(feature, Value) and feature.dtype.startswith("float"):
            self.regression = True
            return {"num_labels": 1, "problem_type": "regression"}
        elif feature is not None and not (isinstance(feature, Value) and feature.dtype.startswith(LABEL_TYPES)):
            kind = getattr(feature, "dtype", type(feature).__name__)
            raise ValueError(f"label_column: {self.label_column} is {kind}, expected classes, numbers or text")
        elif isinstance(train, IterableDataset):
            raise ValueError(f"label_column: {self.label_column}: a streamed column must state its classes")
        else:
            names = self._names(train)
        if len(names) < 2:
            raise ValueError(f"{self.label_column}: the only class is {names[0]!r}, expected two or more")
        self.classes = {name: index for index, name in enumerate(names)}
        labels = {"id2label": dict(enumerate(names)), "label2id": self.classes}
        return {"num_labels": len(names), "problem_type": "single_label_classification", **labels}

    def _names(self, train: Rows) -> list[str]:
        """The names of the classes of a column that states none: its texts, or the numbers from 0 to its largest.

        Numbers that do not begin at 0 count nothing: those that are there are the names.

        Raises:
            ValueError: names the row of a label that is missing, negative, or so large that it is no class.
        """
        column = train[self.label_column][:]
        values = sorted(set(column), key=lambda value: (value is None, value))

        def refuse(value: object, expected: str) -> typing.NoReturn:
            row = place_in_file(train, column.index(value))
            raise ValueError(f"{self.label_column}, row {row + 1}: {shown(value)}, expected {expected}")

        if values[-1] is None:
            refuse(None, "a label")
        self.named_by_text = isinstance(values[0], str)
        if type(values[0]) is not int:
            return [str(value) for value in values]
        if values[0] < 0:
            refuse(values[0], "classes from 0 on, or text")
        if values[-1] >= max(MOST_CLASSES, len(column)):
            refuse(values[-1], "a class; numbers count the classes from 0 on")
        if values[0] > 0:
            self.named_by_number = True
            return [str(value) for value in values]
        return [str(value) for value in range(values[-1] + 1)]

    @property
    def class_count(self) -> int:
        """How many classes there are; some have two names, the model's and a number."""
        return len(set(self.classes.values()))

    def label_key(self) -> tuple:
        """All that decides the number of a label: part of the name of cached rows."""
        return self.label_column, self.classes, self.named_by_text, self.named_by_number

    def labels(
        self, batch: dict[str, list], indices: list[int], source: str, feature: object
    ) -> list[float] | list[int]:
        """Raises ValueError for a label that is missing, infinite, or outside the classes of the training split."""
        labels = []
        for index, value in zip(indices, batch[self.label_column]):
            if not self.regression and isinstance(feature, ClassLabel) and value in range(feature.num_classes):
                value = feature.names[value]  # another file may number the same classes differently
            where = f"{source}: {self.label_column}, row {index + 1}: {shown(value)}"
            if self.regression:
                if not isinstance(value, Real) or not np.isfinite(value):
                    raise ValueError(f"{where} is no number")
                if abs(value) > LARGEST_NUMBER:
                    raise ValueError(f"{where} is too large for float32, expected {LARGEST_NUMBER:g} at most")
                labels.append(float(value))
                continue
            if self.named_by_text and isinstance(value, int):  # a number says nothing of classes that are texts
                value = str(value)
                if value not in self.classes:
                    raise ValueError(self._of_two_kinds(batch, source))
            if self.named_by_number and type(value) is int:
                value = str(value)
            number = self._class_number(value)
            if number is None:
                classes = f"{len(self.classes)} classes {', '.join(list(self.classes)[:10])}"
                if len(self.classes) > 10:
                    classes += ", ..."
                if self.arguments.holdout or self.arguments.tuning_holdout:
                    classes += " of the rows that are left to train on"
                raise ValueError(f"{where} is not one of the {classes}")
            labels.append(number)
        return labels

    def _of_two_kinds(self, batch: dict[str, list], source: str) -> str:
        """The error about labels that are numbers here and texts in the training rows, with both."""
        numbers = ", ".join(map(str, sorted({value for value in batch[self.label_column] if value is not None})[:10]))
        texts = ", ".join(list(self.classes)[:10])
        return f"{source}: {self.label_column} holds {numbers}, in the training rows {texts}: expected the same labels"

    def _class_number(self, label: object) -> int | None:
        """The number of the class that a label states by its name, its number or as a bool; None where none has it."""
        number = label
        if isinstance(label, str):
            number = self.classes.get(label)
        elif isinstance(label, bool):
            number = int(label)
        if type(number) is int and 0 <= number < self.class_count:
            return number
        return None

    def collate_labels(self, rows: list[dict]) -> torch.Tensor:
        """(B,): numbers of a regression, or of classes."""
        dtype = torch.float32 if self.regression else torch.long
        return torch.tensor(np.array([row["labels"] for row in rows]), dtype=dtype)

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """The metric of always guessing one class: the most frequent one of the training rows, or for F1 the best."""
        if self.regression or self.metric == "loss":
            return None
        labels = np.asarray(held_out["labels"])
        if self.metric == "f1":
            guesses = range(self.class_count)
        else:
            guesses = [np.bincount(np.asarray(train["labels"])).argmax()]
        values = []
        for guess in guesses:
            outputs = np.zeros((len(labels), self.class_count))
            outputs[:, guess] = 1.0
            values.append(self.score(EvalPrediction(outputs, labels))[self.metric])
        return f"{self.metric} of one class", max(values)

    def never_seen(self, train: Rows) -> list[str]:
        if self.regression or isinstance(train, IterableDataset):
            return []
        counts = np.bincount(np.asarray(train["labels"]), minlength=len(self.classes))
        return [name for name, index in self.classes.items() if not counts[index]]

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """Accuracy, F1 (of class 1 where there are two, else macro), Matthews; or Pearson, Spearman, squared error."""
        labels = prediction.label_ids
        if self.regression:
            return regression_scores(prediction.predictions[:, 0], labels)
        guesses = prediction.predictions.argmax(-1)
        average = "macro"
        if self.class_count == 2:
            average = "binary"
        matthews = 0.0  # where only one class occurs at all, of which sklearn would warn
        if len({*labels, *guesses}) > 1:
            matthews = float(sklearn_metrics.matthews_corrcoef(labels, guesses))
        return {
            "accuracy": float((guesses == labels).mean()),
            "f1": float(sklearn_metrics.f1_score(labels, guesses, average=average, zero_division=0.0)),
            "matthews_correlation": matthews,
        }


def regression_scores(outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The metrics of predicted numbers; correlations are 0 where they are undefined, since one side is constant."""
    scores = {"pearson": 0.0, "spearman": 0.0}
    if np.ptp(outputs) != 0 and np.ptp(labels) != 0:
        scores["pearson"] = float(stats.pearsonr(outputs, labels).statistic)
        scores["spearman"] = float(stats.spearmanr(outputs, labels).statistic)
    return {**scores, "squared_error": float(((outputs - labels) ** 2).mean())}
