"""The tasks with a label, on images and on texts: the classes, labels as numbers, and how they are scored.

A metric is computed by `score`; its name stands in `METRICS` of settings.py.
"""

import math

import numpy as np
import torch
from datasets import ClassLabel, Image, IterableDataset, Value
from PIL import Image as PILImage
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F
from transformers import EvalPrediction

from modeling_leaner.family import IMAGES
from modeling_leaner.models import with_channels

from ..data.sources import EMPTY, Rows, checked_texts, column_names, decoded_image, find_column
from .base import Batch, Generators, Task, TextTask, prepared_rows


REGRESSION_METRICS = ("pearson", "spearman", "squared_error")


class Classification(Task):
    """What the two classification tasks share: their labels, and how these are scored."""

    goes_by_name = False  # whether a number is the name of a class, as of stars from 1 to 5, and not its place
    may_be_regression = False

    def configure(self, train: Rows) -> dict[str, object]:
        candidates = [name for name in ("label", "labels", "fine_label") if name in column_names(train)][:1]
        self.label_column = find_column(train, self.arguments.label_column, "label_column", candidates)
        feature = (train.features or {}).get(self.label_column)
        kind = getattr(feature, "dtype", type(feature).__name__)
        is_fraction = isinstance(feature, Value) and kind.startswith("float")
        if is_fraction and self.may_be_regression:
            self.regression = True
            return {"num_labels": 1, "problem_type": "regression"}

        if isinstance(feature, ClassLabel):
            names = feature.names
        elif is_fraction or not isinstance(feature, Value) or isinstance(train, IterableDataset):
            names = []
        else:
            # The texts, or the numbers from 0 to the largest. Numbers that do not begin at 0 count nothing: they are
            # the names. A label that is missing is reported with its row, as the rows are read.
            values = sorted(set(train[self.label_column][:]) - {None})
            counts_from_0 = bool(values) and type(values[0]) is int and values[0] == 0
            self.goes_by_name = not counts_from_0
            names = [str(value) for value in (range(values[-1] + 1) if counts_from_0 else values)]
        if len(names) < 2:
            problem = f"the only class is {names[0]!r}" if names else f"{self.label_column} is {kind}"
            stated = "; a stream must state them" if isinstance(train, IterableDataset) else ""
            expected = f"two classes or more, as whole numbers or text{stated}"
            raise ValueError(f"label_column: {problem}, expected {expected}")
        self.classes = {name: index for index, name in enumerate(names)}
        labels = {"id2label": dict(enumerate(names)), "label2id": self.classes}
        return {"num_labels": len(names), "problem_type": "single_label_classification", **labels}

    def labels(self, batch: dict[str, list], rows: list[int], source: str, feature: object) -> list[float] | list[int]:
        """Raises ValueError for a label that is missing, infinite, or outside the classes of the training split."""
        labels = []
        for row, value in zip(rows, batch[self.label_column]):
            if self.regression:
                number = value
                fits = isinstance(value, int | float) and math.isfinite(value)
            else:
                label = value
                if isinstance(feature, ClassLabel) and value in range(feature.num_classes):
                    label = feature.names[value]  # another file may number the same classes differently
                elif self.goes_by_name and type(value) is int:
                    label = str(value)
                number = self.classes.get(label) if isinstance(label, str) else label
                fits = isinstance(number, int) and 0 <= number < self.config.num_labels
            if not fits:
                names = list(self.classes or ())
                expected = f"not one of the {len(names)} classes {', '.join(names[:10])}" if names else "no number"
                got = EMPTY if value is None else f"{value!r:.40}"
                raise ValueError(f"{source}: {self.label_column}, row {row + 1}: {got} is {expected}")
            labels.append(float(number) if self.regression else int(number))
        return labels

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """The metric of always guessing one class: the most frequent one of the training rows, or for F1 the best."""
        if self.regression or self.metric == "loss":
            return None
        labels = np.asarray(held_out["labels"])
        most_frequent = np.bincount(np.asarray(train["labels"])).argmax()
        guesses = range(self.config.num_labels) if self.metric == "f1" else [most_frequent]
        every = np.eye(self.config.num_labels)
        outputs = (np.tile(every[guess], (len(labels), 1)) for guess in guesses)
        return f"{self.metric} of one class", max(self.score(EvalPrediction(o, labels))[self.metric] for o in outputs)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """Accuracy, F1 (of class 1 where there are two, else macro), Matthews; or Pearson, Spearman, squared error."""
        labels = prediction.label_ids
        if self.regression:
            outputs = prediction.predictions[:, 0]
            is_constant = np.ptp(outputs) == 0 or np.ptp(labels) == 0  # a correlation is undefined, NaN
            return {
                "pearson": math.nan if is_constant else float(stats.pearsonr(outputs, labels).statistic),
                "spearman": math.nan if is_constant else float(stats.spearmanr(outputs, labels).statistic),
                "squared_error": float(((outputs - labels) ** 2).mean()),
            }
        guesses = prediction.predictions.argmax(-1)
        average = "binary" if self.config.num_labels == 2 else "macro"
        is_constant = len({*labels, *guesses}) == 1  # sklearn would warn that the correlation is undefined
        matthews = math.nan if is_constant else float(sklearn_metrics.matthews_corrcoef(labels, guesses))
        return {
            "accuracy": float((guesses == labels).mean()),
            "f1": float(sklearn_metrics.f1_score(labels, guesses, average=average, zero_division=0.0)),
            "matthews_correlation": matthews,
        }


class ImageClassification(Classification):
    """Images as bytes on the disk and the host; scaled, cropped and mirrored on the device."""

    name = "image-classification"
    hub_name = "image-classification"
    head = "ForImageClassification"
    modality = IMAGES
    main_metrics = ("accuracy",)
    held_out_unit = "images"
    has_full_rows = True
    does = "sorts images into the classes of its training set"

    def configure(self, train: Rows) -> dict[str, object]:
        features = train.features or {}
        images = [name for name, kind in features.items() if isinstance(kind, Image)]
        self.image_column = find_column(train, self.arguments.image_column, "image_column", images)
        fields = super().configure(train)
        self.columns = [self.image_column, self.label_column]
        return fields

    def prepare(self, rows: Rows, source: str) -> Rows:
        height, width = self.config.image_shape
        feature = (rows.features or {}).get(self.label_column)
        chosen = self.processing.resample  # 0, the nearest pixel, is a choice
        resampling = PILImage.Resampling.BILINEAR if chosen is None else chosen

        def read(batch: dict[str, list], numbers: list[int]) -> dict:
            pixels = []
            for number, value in zip(numbers, batch[self.image_column]):
                where = f"{source}: {self.image_column}, row {number + 1}"
                image = decoded_image(value, where)
                if not isinstance(image, PILImage.Image) or image.mode[0] in "FI":
                    raise ValueError(f"{where}: expected an image of 8 bits a channel")
                image = with_channels(image, self.config.num_channels)
                image = image if image.size == (width, height) else image.resize((width, height), resampling)
                pixels.append(np.asarray(image, dtype=np.uint8).reshape(height, width, -1).transpose(2, 0, 1).ravel())
            return {"pixels": pixels, "labels": self.labels(batch, numbers, source, feature)}

        labels = (self.label_column, self.classes, self.goes_by_name)  # what decides the number of a label
        settings = (self.image_column, labels, height, width, self.config.num_channels)
        key = (settings, self.processing.to_json_string())
        if isinstance((rows.features or {}).get(self.image_column), Image):
            rows = rows.cast_column(self.image_column, Image(decode=False))  # as files hold them, for `decoded_image`
        return prepared_rows(rows, read, key, self.arguments.preprocessing_workers, f"images of {source}")

    def collate(self, rows: list[dict]) -> Batch:
        pixels = torch.from_numpy(np.stack([np.asarray(row["pixels"], dtype=np.uint8) for row in rows]))
        pixels = pixels.view(-1, self.config.num_channels, *self.config.image_shape)
        return {"pixel_values": pixels, "labels": torch.tensor([int(row["labels"]) for row in rows])}

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """Crop and mirror while training; always the processor's scale, mean and deviation, where it has them."""
        pixels = batch["pixel_values"]
        if training:
            # (B, 3): row, column, mirror
            draws = np.stack([generator.random(3, dtype=np.float32) for generator in generators])
            draws = torch.from_numpy(draws).to(pixels.device)
            height, width = self.config.image_shape
            # A random window of the model's size from every padded image: (B, C, H, W) → (B, C, height, width)
            pixels = F.pad(pixels, [self.arguments.crop_padding] * 4)
            room = (pixels.shape[2] - height + 1, pixels.shape[3] - width + 1)
            if room != (1, 1):
                top, left = (draws[:, :2] * torch.tensor(room, device=pixels.device)).long().unbind(1)
                rows = top[:, None] + torch.arange(height, device=pixels.device)  # (B, height)
                columns = left[:, None] + torch.arange(width, device=pixels.device)  # (B, width)
                items = torch.arange(len(pixels), device=pixels.device)[:, None, None]
                pixels = pixels.permute(0, 2, 3, 1)[items, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
            if self.arguments.horizontal_flip:
                pixels = torch.where((draws[:, 2] < 0.5)[:, None, None, None], pixels.flip(-1), pixels)
        pixels = pixels.float() * (self.processing.rescale_factor if self.processing.do_rescale else 1)
        if self.processing.do_normalize:
            mean = torch.tensor(self.processing.image_mean, device=pixels.device)[:, None, None]
            deviation = torch.tensor(self.processing.image_std, device=pixels.device)[:, None, None]
            pixels = (pixels - mean) / deviation
        return {**batch, "pixel_values": pixels}


class SequenceClassification(Classification, TextTask):
    """One label, or one number, for a text or a pair of texts."""

    name = "sequence-classification"
    hub_name = "text-classification"
    head = "ForSequenceClassification"
    does = "sorts texts into the classes of its training set"
    lower_is_better = ("loss", "squared_error")
    main_metrics = ("accuracy", "pearson")  # of classes, of numbers
    may_be_regression = True

    def configure(self, train: Rows) -> dict[str, object]:
        self.texts = self.text_columns_of(self.arguments, train)
        fields = super().configure(train)
        self.columns = [*self.texts, self.label_column]
        if len(set(self.columns)) < len(self.columns):
            keys = "text_column, text_pair_column, label_column"
            raise ValueError(f"{keys}: expected a column each, got {self.columns}")
        if self.regression and self.arguments.metric is None:
            self.metric = "pearson"
        if self.metric != "loss" and self.regression != (self.metric in REGRESSION_METRICS):
            kind = "numbers" if self.regression else "classes"
            raise ValueError(f"metric: {self.metric} does not fit labels that are {kind} ({self.label_column})")
        if self.config.pad_token_id is None:
            fields["pad_token_id"] = self.pad_id  # LeanGPT reads its last token that is not padding
        return fields

    def prepare(self, rows: Rows, source: str) -> Rows:
        truncation = self.arguments.truncation
        limit = {"truncation": True, "max_length": self.length} if truncation else {"verbose": False}
        feature = (rows.features or {}).get(self.label_column)

        def read(batch: dict[str, list], numbers: list[int]) -> dict:
            texts = [list(checked_texts(batch[name], f"{source}: {name}", numbers)) for name in self.texts]
            tokens = self.processing(*texts, return_attention_mask=False, **limit)
            lengths = list(map(len, tokens["input_ids"]))
            for number, length in zip(numbers, lengths):
                if not 0 < length <= self.length:
                    ways = f"; --truncation true cuts it, --max_length {length} reads all of it" if length else ""
                    problem = f"{length} tokens, expected 1..{self.length}{ways}"
                    raise ValueError(f"{source}: {self.texts[0]}, row {number + 1}: {problem}")
            prepared = {"input_ids": tokens["input_ids"], "length": lengths}
            if len(self.texts) == 2 and "token_type_ids" in tokens and self.segments:
                prepared["token_type_ids"] = tokens["token_type_ids"]
            return {**prepared, "labels": self.labels(batch, numbers, source, feature)}

        reading = (self.length, truncation, self.segments, self.reading_key)
        labels = (self.label_column, self.classes, self.goes_by_name)  # what decides the number of a label
        key = (self.name, self.texts, labels, reading)
        return prepared_rows(rows, read, key, self.arguments.preprocessing_workers, f"tokens of {source}")

    def collate(self, rows: list[dict]) -> Batch:
        dtype = torch.float32 if self.regression else torch.long
        labels = torch.tensor(np.array([row["labels"] for row in rows]), dtype=dtype)
        return {**self.collate_text(rows), "labels": labels}
