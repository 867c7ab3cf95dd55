"""What the simple guesses of texts and images read of prepared rows: one thing each, as columns for a regression."""

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix

from ..tasks.classification import ImageClassification


BAG_SCALE = 30  # times a token's share of its row, so that the penalty of a regression does not outweigh it
PIXELS = 16  # the sides that images are averaged down to


def bag_of_tokens(rows: Dataset, vocabulary: int) -> csr_matrix:
    """(rows, vocabulary): the share of each token in the row, times BAG_SCALE."""
    ids = [np.asarray(row) for row in rows.with_format("numpy")["input_ids"]]
    row_of_token = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    shares = np.concatenate([np.full(len(row), 1 / len(row)) for row in ids])
    return BAG_SCALE * csr_matrix((shares, (row_of_token, np.concatenate(ids))), shape=(len(ids), vocabulary))


def length_bins(rows: Dataset) -> np.ndarray:
    """(rows, 1): the bin of each row's length, each bin about a tenth longer than the one before."""
    lengths = np.asarray(rows["length"][:], dtype=float)
    return np.floor(10 * np.log(lengths))[:, None]


def first_tokens(rows: Dataset) -> np.ndarray:
    """(rows, 2): the first two tokens, of which one may be the tokenizer's mark of the beginning; -1 where none is."""
    return np.stack([np.append(row, -1)[:2] for row in rows.with_format("numpy")["input_ids"]])


def token_overlap(rows: Dataset, separator: int) -> np.ndarray:
    """(rows, 1): of the different tokens of a pair of texts, the share that both have.

    A row is a mark of the beginning, the first text, the separator, the second text and perhaps the separator again.
    """
    shares = []
    for row in rows.with_format("numpy")["input_ids"]:
        middle = np.flatnonzero(row == separator)[0]
        first = set(row[1:middle].tolist())
        second = set(row[middle + 1 :].tolist()) - {separator}
        shares.append(len(first & second) / max(1, len(first | second)))
    return np.array(shares)[:, None]


def small_images(task: ImageClassification, rows: Dataset) -> np.ndarray:
    """(rows, channels × PIXELS²): pixels of 0..1, averaged over tiles where the images are larger than PIXELS.

    What does not fill a tile at the right and at the bottom is cut off.
    """
    height, width = task.config.image_shape
    tile_height = max(1, height // PIXELS)
    tile_width = max(1, width // PIXELS)
    tiles_down = height // tile_height
    tiles_across = width // tile_width
    batches = []
    for batch in rows.with_format("numpy").iter(1000):
        images = np.stack(list(batch["pixels"])).reshape(-1, task.config.num_channels, height, width) / 255
        images = images[:, :, : tiles_down * tile_height, : tiles_across * tile_width]
        tiles = images.reshape(*images.shape[:2], tiles_down, tile_height, tiles_across, tile_width)
        batches.append(tiles.mean((3, 5), dtype=np.float32).reshape(len(images), -1))
    return np.concatenate(batches)
