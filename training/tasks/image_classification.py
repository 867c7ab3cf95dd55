"""The task on images: bytes on the disk and the host; scaled, cropped, mirrored and mixed on the device."""

from functools import partial

import numpy as np
import torch
from datasets import Image
from PIL import Image as PILImage
from torch.nn import functional as F

from modeling_leaner.registry import IMAGES
from modeling_leaner.support.images import with_channels

from ..data.images import decoded_image, with_encoded_images
from ..data.sources import Rows
from .base import Batch, Generators, column_kinds, features_of, find_column, prepared_rows, require_columns
from .classification import Classification


class ImageClassification(Classification):
    """Images as bytes on the disk and the host; scaled, cropped, mirrored and mixed on the device."""

    name = "image-classification"
    hub_name = "image-classification"
    title = "Image classification"
    head = "ForImageClassification"
    modality = IMAGES
    held_out_unit = "images"
    trained_unit = "images"
    has_full_rows = True
    does = "sorts images into the classes of its training set"
    not_for = "other classes"

    def columns(self) -> list[str]:
        return [self.image_column, self.label_column]

    def configure(self, train: Rows) -> dict[str, object]:
        features = features_of(train)
        images = [name for name, kind in features.items() if isinstance(kind, Image)]
        if self.arguments.image_column is None and features and not images:
            raise ValueError(f"image_column: no column holds images: {column_kinds(train)}; or name one of numbers")
        self.image_column = find_column(train, self.arguments.image_column, "image_column", images)
        if self.arguments.label_column is None and list(features) == [self.image_column]:
            raise ValueError("label_column: images alone, expected labels, or two folders and more, each a class")
        labels = super().configure(train)
        if self.regression:
            raise ValueError(f"label_column: {self.label_column} holds numbers with a fraction, expected classes")
        return labels

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        height, width = self.config.image_shape
        if self.arguments.train_resize and self.arguments.train_resize < max(height, width):
            raise ValueError(f"train_resize: {self.arguments.train_resize} is below the image size {height}×{width}")
        if training and self.arguments.train_resize:
            height = width = self.arguments.train_resize
        feature = features_of(rows).get(self.label_column)
        function = partial(self._read, source=source, size=(height, width), feature=feature)
        settings = (self.image_column, self.label_key(), height, width, self.config.num_channels)
        key = (settings, self.processing.to_json_string())
        rows = with_encoded_images(rows, self.image_column)
        return prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"images of {source}")

    @property
    def resampling(self) -> int:
        """How images are resized, a number of PIL.Image.Resampling: the processor's, bilinear where it states none."""
        if self.processing.resample is None:
            return PILImage.Resampling.BILINEAR
        return self.processing.resample

    def _read(
        self, batch: dict[str, list], indices: list[int], source: str, size: tuple[int, int], feature: object
    ) -> dict:
        pixels = []
        for index, value in zip(indices, batch[self.image_column]):
            where = f"{source}: {self.image_column}, row {index + 1}"
            image = decoded_image(value, where)
            if not isinstance(image, PILImage.Image) or image.mode[0] in "FI":
                image = self._from_numbers(image, where)
            image = with_channels(image, self.config.num_channels)
            if image.size != size[::-1]:
                image = image.resize(size[::-1], self.resampling)
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
        if array.size == 0 or array.shape[2:] not in ((), (1,), (3,), (4,)):
            raise ValueError(f"{where}: expected (height, width[, 1, 3 or 4 channels]), got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{where}: NaN or infinite pixels")
        if array.min() < 0 or array.max() > 255:
            raise ValueError(f"{where}: pixels {array.min():g}..{array.max():g} are outside 0..255")
        if (array % 1).any() and array.max() <= 1:
            raise ValueError(f"{where}: pixels are fractions of 0..1, expected 0..255")
        if array.shape[2:] == (1,):
            array = array[:, :, 0]
        return PILImage.fromarray(np.uint8(np.round(array)))

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
        """Crop, mirror and mixup while training; always the processor's scale, mean and deviation, where it has them.

        Of the four numbers drawn for a row the fourth is not read: it stays, so that what the same generator draws
        next, mixup's share, is what it was in earlier runs.
        """
        pixels = batch["pixel_values"]
        labels = batch["labels"]
        if training:
            draws = self._random(generators, (4,), pixels)  # (B, 4): row, column, mirror, not read
            pixels = self._crop(pixels, draws[:, :2])
            if self.arguments.horizontal_flip:
                pixels = torch.where((draws[:, 2] < 0.5)[:, None, None, None], pixels.flip(-1), pixels)
        pixels = pixels.float()
        if self.processing.do_rescale:
            pixels = pixels * self.processing.rescale_factor
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
