"""The tasks with a head, and what all share: columns, rows as tensors, masks and crops, metrics.

Rows are prepared once, in parallel, and cached. What is random (masks, crops, mixup) happens on the device, drawn by a
generator of each row's place in the run: a baseline and its twin, one process or eight, a run and its continuation all
see the same masks. (Mixup's partners and shares are of one process's batch.) Shapes: B rows, T tokens.
"""

import json
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Image, IterableDataset, Value
from datasets.fingerprint import Hasher
from PIL import Image as PILImage
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import family_of, load_shape, shape_names

from ..data.sources import Rows, first_rows, likely_texts
from ..settings.arguments import RecipeArguments
from . import question_answering


Batch = dict[str, torch.Tensor]
Generators = Sequence[np.random.Generator]
LABEL_COLUMNS = ("label", "labels", "fine_label")
IMAGE_MODES = {1: "L", 3: "RGB"}  # by the number of channels
REGRESSION_METRICS = ("pearson", "spearman", "squared_error")
MOST_CLASSES = 1000  # that numbers may count up to where there are fewer rows
LABEL_TYPES = ("int", "uint", "bool", "string", "large_string", "null")


def column_names(rows: Rows) -> list[str]:
    if rows.features:
        return list(rows.features)
    return list(next(iter(rows)))  # of a stream that does not state its columns


def features_of(rows: Rows) -> dict[str, object]:
    """The type of each column; empty for a stream that does not state its columns."""
    if rows.features is None:
        return {}
    return rows.features


def column_kinds(rows: Rows) -> str:
    """The columns with their types, for messages."""
    return ", ".join(f"{name} is {getattr(kind, 'dtype', kind)}" for name, kind in rows.features.items())


def find_column(rows: Rows, named: str | None, key: str, candidates: list[str]) -> str:
    """The column that the recipe names, or else the only candidate.

    Raises:
        ValueError: names the key, the column and the columns that there are.
    """
    available = column_names(rows)
    if named is not None:
        if named not in available:
            raise ValueError(f"{key}: no column {named!r} in the data, which has {', '.join(available)}")
        return named
    if not candidates:
        raise ValueError(f"{key}: no column fits; name one of {', '.join(available)}")
    if len(candidates) > 1:
        raise ValueError(f"{key}: {', '.join(candidates)} would all fit; name one of {', '.join(available)}")
    return candidates[0]


def require_columns(rows: Rows, names: list[str], source: str) -> None:
    """Raises ValueError for the first of `names` that the rows lack."""
    available = column_names(rows)
    for name in names:
        if name not in available:
            raise ValueError(f"{source}: no column {name!r}, only {', '.join(available)}")


def text_columns(rows: Rows) -> list[str]:
    columns = features_of(rows).items()
    return [name for name, kind in columns if isinstance(kind, Value) and kind.dtype.endswith("string")]


def check_text(batch: dict[str, list], column: str, indices: list[int], source: str) -> None:
    """Raises ValueError for the first value of `column` that is not text."""
    for index, text in zip(indices, batch[column]):
        if not isinstance(text, str):
            raise ValueError(f"{source}: {column}, row {index}: expected text, got {type(text).__name__} {text!r:.40}")


@dataclass
class Prepare:
    """A batched `map` function; equal settings give equal results, so `key` can name the cached result."""

    function: Callable[..., dict]
    key: object

    def __call__(self, rows: Rows, workers: int | None, description: str) -> Rows:
        """The prepared columns alone, from the cache where it has them; `workers` has no influence on the rows."""
        names = column_names(rows)
        function = self.function
        if isinstance(rows, IterableDataset):
            return rows.map(function, batched=True, with_indices=True, remove_columns=names)
        if rows._indices is not None:
            function = partial(_in_file, function=function, places=rows._indices.column(0).to_numpy())
        return rows.map(
            function,
            batched=True,
            with_indices=True,
            remove_columns=names,
            num_proc=process_count(workers, len(rows)),
            new_fingerprint=Hasher.hash((rows._fingerprint, self.key, __version__)),
            desc=description,
        )


def process_count(workers: int | None, rows: int) -> int | None:
    """How many processes prepare the rows, each at least 1,000 of them; None where this process does it alone."""
    if not workers:
        workers = min(os.cpu_count() or 1, 8)
    processes = min(workers, rows // 1000)
    if processes <= 1:
        return None
    return processes


def place_in_file(rows: Dataset, index: int) -> int:
    """The number of a row in its file, by which messages name it; `rows` may be some of the file's rows."""
    if rows._indices is None:
        return index
    return rows._indices.column(0)[index].as_py()


def _in_file(batch: dict[str, list], indices: list[int], function: Callable[..., dict], places: np.ndarray) -> dict:
    return function(batch, places[indices].tolist())


def fitting(config: LeanConfig, key: str, least: int) -> str:
    """The end of an error about a shape that is too small: the named shapes of its family that would do.

    They have `least` or more of `key`, and of vocabulary and positions no less than the shape itself.
    """
    limits = {"vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings, key: least}
    sizes = {}
    for name in shape_names():
        shape = load_shape(name)
        if family_of(shape) != family_of(config):
            continue
        if all(getattr(shape, field) >= limit for field, limit in limits.items()):
            sizes[name] = shape.count_parameters().total
    if not sizes:
        return ""
    smallest = sorted(sizes, key=sizes.get)[:5]
    return f"; shapes with {key} {least} or more, smallest first: {', '.join(smallest)}"


class Task:
    """What every task defines; see the module's docstring.

    Args:
        arguments: the settings of the run.
        config: the shape, without the fields that `configure` returns.
        processing: tokenizer or image processor.
    """

    name: str
    head: str
    regression = False
    has_own_loss = False
    is_scored_only = False  # there is nothing to learn, so that evaluations state no loss
    classes: dict[str, int] | None = None  # of a classification, name to number
    named_by_text = False  # whether the classes are texts of the training rows, whose numbers nothing declares
    data_sha256: str | None = None  # of the evaluation rows' contents
    training_data: dict[str, object] | None = None  # number and hash of the rows that are trained on
    metrics: tuple[str, ...] = ("loss",)  # the first is the one that counts where the recipe names none
    lower_is_better = ("loss", "perplexity", "bits_per_byte")

    def __init__(self, arguments: RecipeArguments, config: LeanConfig, processing: object):
        self.arguments = arguments
        self.config = config
        self.processing = processing
        self.metric = arguments.metric or self.metrics[0]
        if self.metric not in self.metrics:
            raise ValueError(f"metric: {self.metric}: the task {self.name} has {', '.join(self.metrics)}")

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        """The columns whose text the task reads, for a tokenizer to be trained on."""
        return []

    @property
    def higher_is_better(self) -> bool:
        return self.metric not in self.lower_is_better

    def columns(self) -> list[str]:
        """The columns that the task reads, once `configure` has found them."""
        raise NotImplementedError

    def configure(self, train: Rows) -> dict[str, object]:
        """Finds the columns; returns the fields of the configuration that follow from the data, such as the labels."""
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of numbers, ready for `collate`. Raises ValueError that names source, column and row."""
        raise NotImplementedError

    def collate(self, rows: list[dict]) -> Batch:
        """One batch on the host."""
        raise NotImplementedError

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """What the model reads, on the device; `generators` has one per row."""
        return batch

    def aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and labels such that each logit is of the label at its place."""
        return logits, labels

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """What is kept of the model's outputs on a batch, small enough for all batches to stay in memory."""
        if isinstance(outputs, tuple):
            return outputs[0]
        return outputs

    def loss(self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None) -> tuple[torch.Tensor, Batch]:
        """Loss and outputs of a task that has a loss of its own, `has_own_loss`; the others have their model's.

        Args:
            items: rows of all batches of a step, by which a sum is divided; None for the mean of this batch.
        """
        raise NotImplementedError

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """The metrics over all rows, from what `reduce` kept."""
        raise NotImplementedError

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """Name and value of a guess that reads no input, from the prepared rows; None where there is none."""
        return None

    def never_seen(self, train: Rows) -> list[str]:
        """The names of the classes that no prepared training row has; none of a stream, which is not counted."""
        return []

    def _random(self, generators: Generators, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Uniform numbers in [0, 1): (B, *shape)."""
        drawn = np.stack([generator.random(shape, dtype=np.float32) for generator in generators])
        return torch.from_numpy(drawn).to(like.device)


class Classification(Task):
    """What the two classification tasks share: their labels, and how these are scored."""

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

        Raises:
            ValueError: names the row of a label that is missing, negative, or so large that it is no class.
        """
        column = train[self.label_column][:]
        values = sorted(set(column), key=lambda value: (value is None, value))

        def refuse(value: object, expected: str) -> typing.NoReturn:
            row = place_in_file(train, column.index(value))
            raise ValueError(f"{self.label_column}, row {row}: {value!r}, expected {expected}")

        if values[-1] is None:
            refuse(None, "a label")
        self.named_by_text = isinstance(values[0], str)
        if type(values[0]) is not int:
            return [str(value) for value in values]
        if values[0] < 0:
            refuse(values[0], "classes from 0 on, or text")
        if values[-1] >= max(MOST_CLASSES, len(column)):
            refuse(values[-1], "a class; numbers count the classes from 0 on")
        return [str(value) for value in range(values[-1] + 1)]

    def labels(
        self, batch: dict[str, list], indices: list[int], source: str, feature: object
    ) -> list[float] | list[int]:
        """Raises ValueError for a label that is missing, infinite, or outside the classes of the training split."""
        labels = []
        for index, value in zip(indices, batch[self.label_column]):
            where = f"{source}: {self.label_column}, row {index}: {value!r}"
            if self.regression:
                if value is None or not np.isfinite(value):
                    raise ValueError(f"{where} is no number")
                labels.append(float(value))
                continue
            if isinstance(feature, ClassLabel) and type(value) is int and 0 <= value < feature.num_classes:
                value = feature.names[value]  # another file may number the same classes differently
            elif self.named_by_text and isinstance(value, int):  # a number says nothing of classes that are texts
                value = str(value)
                if value not in self.classes:
                    raise ValueError(self._of_two_kinds(batch, source))
            number = self._class_number(value)
            if number is None:
                raise ValueError(f"{where} is not one of the {len(self.classes)} classes {list(self.classes)[:10]}")
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
        if type(number) is int and 0 <= number < len(self.classes):
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
            guesses = range(len(self.classes))
        else:
            guesses = [np.bincount(np.asarray(train["labels"])).argmax()]
        values = []
        for guess in guesses:
            outputs = np.zeros((len(labels), len(self.classes)))
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
        if len(self.classes) == 2:
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


class ImageClassification(Classification):
    """Images as bytes on the disk and the host; scaled, cropped, mirrored and mixed on the device."""

    name = "image-classification"
    head = "ForImageClassification"
    metrics = ("accuracy", "f1", "matthews_correlation", "loss")

    def columns(self) -> list[str]:
        return [self.image_column, self.label_column]

    def configure(self, train: Rows) -> dict[str, object]:
        features = features_of(train)
        images = [name for name, kind in features.items() if isinstance(kind, Image)]
        if self.arguments.image_column is None and features and not images:
            raise ValueError(f"image_column: no column holds images: {column_kinds(train)}; or name one of numbers")
        self.image_column = find_column(train, self.arguments.image_column, "image_column", images)
        return super().configure(train)

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        height, width = self.config.image_shape
        if self.arguments.train_resize and self.arguments.train_resize < max(height, width):
            raise ValueError(f"train_resize: {self.arguments.train_resize} is below the image size {height}×{width}")
        if training and self.arguments.train_resize:
            height = width = self.arguments.train_resize
        feature = features_of(rows).get(self.label_column)
        function = partial(self._read, source=source, size=(height, width), feature=feature)
        labels = (self.label_column, self.classes, self.named_by_text)
        settings = (self.image_column, labels, height, width, self.config.num_channels)
        read = Prepare(function, (settings, self.processing.to_json_string()))
        return read(rows, self.arguments.preprocessing_workers, f"images of {source}")

    def _read(
        self, batch: dict[str, list], indices: list[int], source: str, size: tuple[int, int], feature: object
    ) -> dict:
        mode = IMAGE_MODES.get(self.config.num_channels)
        pixels = []
        for index, image in zip(indices, batch[self.image_column]):
            where = f"{source}: {self.image_column}, row {index}"
            if not isinstance(image, PILImage.Image) or image.mode[0] in "FI":
                image = self._from_numbers(image, where)
            if mode is not None and image.mode != mode:
                image = image.convert(mode)
            if image.size != size[::-1]:
                image = image.resize(size[::-1], self.processing.resample or PILImage.Resampling.BILINEAR)
            pixels.append(np.asarray(image, dtype=np.uint8).reshape(*size, -1).transpose(2, 0, 1).ravel())
        return {"pixels": pixels, "labels": self.labels(batch, indices, source, feature)}

    def _from_numbers(self, values: object, where: str) -> PILImage.Image:
        """An image from numbers of 0..255: (height, width[, channels])."""
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: expected an image, got {type(values).__name__}") from error
        if array.ndim not in (2, 3):
            raise ValueError(f"{where}: expected an image, got numbers of shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{where}: NaN or infinite pixels")
        if array.min() < 0 or array.max() > 255:
            raise ValueError(f"{where}: pixels {array.min():g}..{array.max():g} are outside 0..255")
        if (array % 1).any() and array.max() <= 1:
            raise ValueError(f"{where}: pixels are fractions of 0..1, expected 0..255")
        return PILImage.fromarray(np.uint8(np.round(array)).squeeze())

    def collate(self, rows: list[dict]) -> Batch:
        channels = self.config.num_channels
        pixels = torch.from_numpy(np.stack([np.asarray(row["pixels"], dtype=np.uint8) for row in rows]))
        height, width = self.config.image_shape
        if pixels.shape[1] != channels * height * width:
            height = width = self.arguments.train_resize
        return {
            "pixel_values": pixels.view(-1, channels, height, width),  # uint8
            "labels": self.collate_labels(rows),
        }

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """Crop, mirror and mixup while training; always the processor's scale, mean and deviation."""
        pixels = batch["pixel_values"]
        labels = batch["labels"]
        if training:
            draws = self._random(generators, (4,), pixels)  # (B, 4): row, column, mirror, mixup
            pixels = self._crop(pixels, draws[:, :2])
            if self.arguments.horizontal_flip:
                pixels = torch.where((draws[:, 2] < 0.5)[:, None, None, None], pixels.flip(-1), pixels)
        pixels = pixels.float() * self.processing.rescale_factor
        if self.processing.do_normalize:
            mean = torch.tensor(self.processing.image_mean, device=pixels.device)[:, None, None]
            deviation = torch.tensor(self.processing.image_std, device=pixels.device)[:, None, None]
            pixels = (pixels - mean) / deviation
        if training and self.arguments.mixup_alpha:
            pixels, labels = self._mix(pixels, labels, generators[0])
        return {"pixel_values": pixels, "labels": labels}

    def _crop(self, pixels: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """A random window of the model's size from every (padded) image: (B, C, H, W) → (B, C, height, width)."""
        height, width = self.config.image_shape
        pixels = F.pad(pixels, [self.arguments.crop_padding] * 4)
        room = (pixels.shape[2] - height + 1, pixels.shape[3] - width + 1)
        if room == (1, 1):
            return pixels
        top, left = (draws * torch.tensor(room, device=pixels.device)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=pixels.device)  # (B, height)
        columns = left[:, None] + torch.arange(width, device=pixels.device)  # (B, width)
        items = torch.arange(len(pixels), device=pixels.device)[:, None, None]
        return pixels.permute(0, 2, 3, 1)[items, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)

    def _mix(self, pixels: torch.Tensor, labels: torch.Tensor, generator: np.random.Generator):
        """Mixup of each image with another of the batch; labels become (B, classes)."""
        share = float(generator.beta(self.arguments.mixup_alpha, self.arguments.mixup_alpha))
        soft = F.one_hot(labels, len(self.classes)).float()
        mixed = share * pixels + (1 - share) * pixels.roll(1, 0)
        return mixed, share * soft + (1 - share) * soft.roll(1, 0)


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer as text, without the lengths to which it cuts and pads: those change with every call."""
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    document["truncation"] = None
    document["padding"] = None
    return json.dumps(document, sort_keys=True)


class TextTask(Task):
    """What the tasks on text share: the tokenizer's fit, the length, the text column, padding."""

    processing: PreTrainedTokenizerBase
    needs: tuple[str, ...] = ()  # special tokens; where there are none, a bidirectional model needs cls and sep

    def __init__(self, arguments: RecipeArguments, config: LeanConfig, processing: PreTrainedTokenizerBase):
        super().__init__(arguments, config, processing)
        size = len(processing)
        vocabulary = config.vocab_size
        if size > vocabulary:
            fit = fitting(config, "vocab_size", size)
            raise ValueError(f"tokenizer: {size} tokens, but the shape's vocab_size is {vocabulary}{fit}")
        self.length = arguments.max_length or config.max_position_embeddings
        self.segments = hasattr(config, "type_vocab_size")  # as bidirectional models have
        needs = self.needs
        if not needs and self.segments:
            needs = ("cls", "sep")
        for token in needs:
            if getattr(processing, f"{token}_token_id") is None:
                raise ValueError(f"tokenizer: it has no {token} token, which {self.name} with this shape needs")

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        columns = [cls.find_text(rows, arguments.text_column, "text_column")]
        if arguments.text_pair_column is not None:
            columns.append(cls.find_text(rows, arguments.text_pair_column, "text_pair_column"))
        return columns

    @staticmethod
    def find_text(rows: Rows, named: str | None, key: str) -> str:
        texts = text_columns(rows)
        if named is None and rows.features and not texts:
            raise ValueError(f"{key}: no column holds text alone: {column_kinds(rows)}")
        column = find_column(rows, named, key, likely_texts(texts))
        feature = features_of(rows).get(column)
        if feature is not None and column not in texts:
            raise ValueError(f"{key}: column {column!r} is {getattr(feature, 'dtype', feature)}, expected text")
        return column

    def tokenizer_key(self) -> str:
        return Hasher.hash(vocabulary(self.processing))

    def pad(self, rows: list[dict], key: str, value: int) -> torch.Tensor:
        """(B, longest) from lists of numbers."""
        longest = max(len(row[key]) for row in rows)
        out = np.full((len(rows), longest), value, dtype=np.int64)
        for index, row in enumerate(rows):
            out[index, : len(row[key])] = row[key]
        return torch.from_numpy(out)

    def collate_text(self, rows: list[dict]) -> Batch:
        """Token ids, the mask of what is no padding and, where model and rows have them, segments: each (B, T)."""
        ids = self.pad(rows, "input_ids", self.pad_id)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}
        if "token_type_ids" in rows[0] and self.segments:
            batch["token_type_ids"] = self.pad(rows, "token_type_ids", 0)
        return batch

    @property
    def pad_id(self) -> int:
        if self.processing.pad_token_id is None:
            return 0
        return self.processing.pad_token_id


class LanguageModelling(TextTask):
    """Documents joined with a separator between them and cut into rows; nothing is dropped, the last row is short."""

    metrics = ("loss", "perplexity")

    def columns(self) -> list[str]:
        return [self.text_column]

    def configure(self, train: Rows) -> dict[str, object]:
        self.text_column = self.find_text(train, self.arguments.text_column, "text_column")
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        if not training:  # UTF-8 bytes of all documents
            self.text_bytes = sum(len(str(row[self.text_column]).encode()) for row in rows)
        key = (self.text_column, self.arguments.whole_word_masking, self.tokenizer_key())
        tokens = Prepare(partial(self._tokens, source=source), key)
        rows = tokens(rows, self.arguments.preprocessing_workers, f"tokens of {source}")
        if isinstance(rows, Dataset) and all(len(ids) < 2 for ids in rows["input_ids"]):
            raise ValueError(f"{source}: {self.text_column} holds no text")
        # One process: where rows are cut must not depend on how many there are.
        return Prepare(self._pack, (self.name, self.length))(rows, 1, f"rows of {source}")

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """Loss, in nats per token, of guessing each token by its frequency in the training rows (plus one)."""
        frequencies = self._counts(train) + 1
        occurrences = self._counts(held_out)
        log_probabilities = np.log(frequencies / frequencies.sum())
        return "unigram loss", float(-(occurrences * log_probabilities).sum() / occurrences.sum())

    def targets(self, ids: np.ndarray) -> np.ndarray:
        """Those of a row's tokens that may be predicted."""
        raise NotImplementedError

    def _counts(self, rows: Dataset) -> np.ndarray:
        """How often each token is a target in the first 20,000 rows."""
        counts = np.zeros(self.config.vocab_size, dtype=np.int64)
        for batch in first_rows(rows, 20_000).with_format("numpy").iter(1000):
            targets = np.concatenate([self.targets(row) for row in batch["input_ids"]])
            counts += np.bincount(targets, minlength=len(counts))
        return counts

    def _tokens(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        """Each document's tokens with a separator at the end and, for whole words, the number of each token's word."""
        check_text(batch, self.text_column, indices, source)
        separator = self.processing.eos_token_id
        if separator is None:
            separator = self.processing.sep_token_id
        encodings = self.processing(batch[self.text_column], add_special_tokens=False, verbose=False).encodings
        columns = {"input_ids": [np.array([*encoding.ids, separator], dtype=np.int32) for encoding in encodings]}
        if self.arguments.whole_word_masking:
            columns["words"] = [np.array([*encoding.word_ids, -1], dtype=np.int32) for encoding in encodings]
        return columns

    @staticmethod
    def _join(documents: list[list[int]]) -> list[int]:
        return [token for document in documents for token in document]

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """From sums per row (loss, tokens, hits): the loss per token in nats, its exponential, the share of hits."""
        loss, tokens, hits = np.asarray(prediction.predictions, dtype=np.float64).sum(0)
        return {
            "loss": loss / tokens,
            "perplexity": float(np.exp(min(loss / tokens, 700.0))),
            "accuracy": hits / tokens,
        }

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """(B, 3): loss in nats, tokens and hits of each row, from logits (B, T, V) and labels (B, T), -100 ignored."""
        logits, labels = self.aligned(super().reduce(outputs, labels), labels)
        counted = labels != -100
        logits = logits[counted].float()  # (N, V)
        labels = labels[counted]  # (N,)
        row = counted.nonzero()[:, 0]  # (N,)
        losses = F.cross_entropy(logits, labels, reduction="none")
        hits = (logits.argmax(-1) == labels).float()
        tokens = torch.stack([losses, torch.ones_like(losses), hits], dim=1)
        return tokens.new_zeros(len(counted), 3).index_add(0, row, tokens)


class CausalLM(LanguageModelling):
    """Next-token prediction on packed rows, end-of-text between documents."""

    name = "causal-lm"
    head = "ForCausalLM"
    needs = ("eos",)
    metrics = ("loss", "perplexity", "bits_per_byte", "accuracy")

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        """Rows that share one token with the row before, so that every token is predicted exactly once."""
        stream = self._join(batch["input_ids"])
        stream = [stream[-1], *stream]  # the end of the text before
        starts = range(0, len(stream) - 1, self.length - 1)
        rows = [stream[start : start + self.length] for start in starts]
        return {"input_ids": [np.array(row, dtype=np.int32) for row in rows], "length": [len(row) for row in rows]}

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """Adds bits per byte of text: all nats over all bytes. No token's context reaches beyond its row."""
        nats = np.asarray(prediction.predictions, dtype=np.float64)[:, 0].sum()
        return {**super().score(prediction), "bits_per_byte": float(nats / np.log(2) / self.text_bytes)}

    def collate(self, rows: list[dict]) -> Batch:
        ids = self.pad(rows, "input_ids", -100)
        return {"input_ids": ids.masked_fill(ids == -100, self.pad_id), "labels": ids}

    def targets(self, ids: np.ndarray) -> np.ndarray:
        return ids[1:]

    def aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits[:, :-1], labels[:, 1:]


class MaskedLM(LanguageModelling):
    """BERT's objective (Devlin et al. 2018): 80 % of the chosen tokens masked, 10 % replaced, 10 % left."""

    name = "masked-lm"
    head = "ForMaskedLM"
    needs = ("cls", "sep", "mask")
    metrics = ("loss", "perplexity", "accuracy")

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        stream = self._join(batch["input_ids"])
        words = self._join(batch.get("words", []))
        start = self.processing.cls_token_id
        end = self.processing.sep_token_id
        size = self.length - 2
        cuts = range(0, len(stream), size)
        rows = {"input_ids": [np.array([start, *stream[cut : cut + size], end], dtype=np.int32) for cut in cuts]}
        rows["length"] = [len(row) for row in rows["input_ids"]]
        if words:
            rows["words"] = [self._number([-1, *words[cut : cut + size], -1]) for cut in cuts]
        return rows

    @staticmethod
    def _number(words: list[int]) -> np.ndarray:
        """Numbers from 0 that rise wherever another word, or another document, begins."""
        words = np.array(words)
        return np.cumsum(np.diff(words, prepend=words[0]) != 0).astype(np.int32)

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.collate_text(rows)
        batch["labels"] = batch["input_ids"]
        if self.arguments.whole_word_masking:
            batch["words"] = self.pad(rows, "words", 0)
        return batch

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """Chooses and masks tokens; the same choice for a row at every evaluation."""
        ids = batch["input_ids"]
        words = batch.pop("words", None)
        draws = self._random(generators, (3, self.length), ids)[..., : ids.shape[1]]  # none depends on the batch's T
        chosen, fate, other = draws.unbind(1)  # each (B, T)
        if words is not None:
            chosen = chosen.gather(1, words)  # one draw per word
        special = torch.tensor(self.processing.all_special_ids, device=ids.device)
        masked = (chosen < self.arguments.mask_fraction) & ~torch.isin(ids, special)
        # A row without any chosen token would have no loss: its nearest token, or word, is chosen.
        chosen = chosen.masked_fill(torch.isin(ids, special), 2.0)
        least = chosen.min(1, keepdim=True).values
        masked |= ~masked.any(1, keepdim=True) & (chosen == least) & (least < 2)
        replaced = (other * len(self.processing)).long()
        inputs = torch.where(masked & (fate < 0.8), self.processing.mask_token_id, ids)
        inputs = torch.where(masked & (fate >= 0.9), replaced, inputs)
        return {**batch, "input_ids": inputs, "labels": ids.masked_fill(~masked, -100)}

    def targets(self, ids: np.ndarray) -> np.ndarray:
        return ids[~np.isin(ids, self.processing.all_special_ids)]


class SequenceClassification(Classification, TextTask):
    """One label, or one number, for a text or a pair of texts."""

    name = "sequence-classification"
    head = "ForSequenceClassification"
    metrics = ("accuracy", "f1", "matthews_correlation", "pearson", "spearman", "squared_error", "loss")
    lower_is_better = ("loss", "squared_error")

    def columns(self) -> list[str]:
        return [*self.texts, self.label_column]

    def configure(self, train: Rows) -> dict[str, object]:
        self.texts = self.text_columns_of(self.arguments, train)
        fields = super().configure(train)
        if self.regression and self.arguments.metric is None:
            self.metric = "pearson"
        if self.metric != "loss" and self.regression != (self.metric in REGRESSION_METRICS):
            kind = "numbers" if self.regression else "classes"
            raise ValueError(f"metric: {self.metric} does not fit labels that are {kind} ({self.label_column})")
        if self.config.pad_token_id is None:
            fields["pad_token_id"] = self.pad_id  # LeanGPT reads its last token that is not padding
        return fields

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        columns = (self.texts, self.label_column, self.classes, self.named_by_text)
        key = (self.name, columns, self.length, self.arguments.truncation, self.segments, self.tokenizer_key())
        feature = features_of(rows).get(self.label_column)
        read = Prepare(partial(self._read, source=source, feature=feature), key)
        return read(rows, self.arguments.preprocessing_workers, f"tokens of {source}")

    def _read(self, batch: dict[str, list], indices: list[int], source: str, feature: object) -> dict:
        for name in self.texts:
            check_text(batch, name, indices, source)
        options = {"return_attention_mask": False}
        if self.arguments.truncation:
            options |= {"truncation": True, "max_length": self.length}
        else:
            options["verbose"] = False  # too long a text is refused below
        tokens = self.processing(*(batch[name] for name in self.texts), **options)
        for index, ids in zip(indices, tokens["input_ids"]):
            self._check_length(len(ids), f"{source}: {self.texts[0]}, row {index}")
        prepared = {"input_ids": tokens["input_ids"], "length": [len(ids) for ids in tokens["input_ids"]]}
        if len(self.texts) == 2 and "token_type_ids" in tokens and self.segments:
            prepared["token_type_ids"] = tokens["token_type_ids"]
        return {**prepared, "labels": self.labels(batch, indices, source, feature)}

    def _check_length(self, length: int, where: str) -> None:
        """Raises ValueError for a text without tokens, or with more than are read; says what would read all of it."""
        if length == 0:
            raise ValueError(f"{where}: the text is empty")
        if length <= self.length:
            return
        ways = "--truncation true cuts it"
        if length <= self.config.max_position_embeddings:
            ways += f"; --max_length {length} reads all of it"
        else:
            ways += fitting(self.config, "max_position_embeddings", length)
        raise ValueError(f"{where}: {length} tokens, but {self.length} are read: {ways}")

    def collate(self, rows: list[dict]) -> Batch:
        return {**self.collate_text(rows), "labels": self.collate_labels(rows)}


class QuestionAnswering(TextTask):
    """The answer's span in a context, as in SQuAD (Rajpurkar et al. 2016): columns id, question, context, answers."""

    name = "question-answering"
    head = "ForQuestionAnswering"
    metrics = ("f1", "exact_match", "loss")

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        return [cls.find_text(rows, column, "question-answering") for column in ("question", "context")]

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
        key = (self.name, self.length, self.arguments.doc_stride, training, self.tokenizer_key())
        cut = Prepare(partial(self._read, training=training, source=source), key)
        features = cut(rows, self.arguments.preprocessing_workers, f"windows of {source}")
        if not training:
            self.examples = rows
            self.features = features
        return features

    def _read(self, batch: dict[str, list], indices: list[int], training: bool, source: str) -> dict:
        for column in ("question", "context"):
            check_text(batch, column, indices, source)
        try:
            return question_answering.windows(batch, self.processing, self.length, self.arguments.doc_stride, training)
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
        predicted = question_answering.best_spans(starts, ends, self.features, self.examples)
        examples = zip(self.examples["id"], self.examples["answers"])
        references = {row_id: answers["text"] for row_id, answers in examples}
        return question_answering.exact_match_and_f1(predicted, references)
