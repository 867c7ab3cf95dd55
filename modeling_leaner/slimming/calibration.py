"""Rows on which a model is run to see what it can spare: batches from texts or images, half of them held out."""

import copy
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ..layers_leaner import LeanPreTrainedModel
from ..models import with_channels
from .measures import Batch
from .operations import SlimError


BATCH_SIZE = 32
LEAST_ROWS = 8


def make_batches(
    model: LeanPreTrainedModel, processor: object, rows: Sequence, max_length: int, least: int = LEAST_ROWS
) -> list[Batch]:
    """Texts (tokens up to `max_length`) or PIL images as batches of 32.

    Raises SlimError for rows of another kind than the model reads, or fewer than `least`.
    """
    if len(rows) < least:
        raise SlimError(f"expected at least {least} rows, got {len(rows)}")
    reads_images = model.main_input_name == "pixel_values"
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) == reads_images:
            expected = "images" if reads_images else "texts"
            raise SlimError(f"row {number} is of type {type(row).__name__}, expected {expected}")
    groups = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
    if reads_images:
        return [read_images(processor, group, model.config.num_channels) for group in groups]
    tokenizer = padding_tokenizer(processor)
    options = {"max_length": min(max_length, model.config.max_position_embeddings), "return_tensors": "pt"}
    read = [tokenizer(list(group), padding=True, truncation=True, **options) for group in groups]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in read]


def read_images(processor: object, images: Sequence, channels: int) -> Batch:
    """One batch: pixel_values (B, channels, height, width)."""
    return dict(processor([with_channels(image, channels) for image in images], return_tensors="pt"))


def padding_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy that pads at the right, for padding and truncation stay set in a tokenizer, which is saved with the cut.

    Without padding token it pads with its end token, which the mask leaves out.
    """
    padding = copy.deepcopy(tokenizer)
    if padding.pad_token is None:
        padding.pad_token = padding.eos_token
    padding.padding_side = "right"
    return padding


def halves(rows: Sequence) -> tuple[Sequence, Sequence]:
    """Every other row to choose by, the others held out."""
    return rows[0::2], rows[1::2]
