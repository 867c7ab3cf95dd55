"""Vectors of texts: how a model makes them, and what is measured on them, whatever model they are of.

Here is what needs neither a task's settings nor a teacher: the mean over the tokens of rows that are padded together,
vectors of length one, Spearman's correlation of their likeness, ranks among other vectors. Shapes: N rows, B of them
read together, T tokens, D width, Q queries.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats
from transformers import PreTrainedModel

from modeling_leaner.slimming.measures import mean_over_tokens

from .base import ROWS_AT_ONCE, batches_by_length


RANKS = 10  # of the mean reciprocal rank


def padded_batches(ids: list[list[int]]) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Rows of token ids by length: their places, and the ids and the mask of what is no padding, each (B, T)."""
    for places in batches_by_length([len(row) for row in ids], ROWS_AT_ONCE):
        longest = len(ids[places[-1]])
        padded = torch.zeros(len(places), longest, dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, place in enumerate(places):
            length = len(ids[place])
            padded[row, :length] = torch.as_tensor(ids[place])
            mask[row, :length] = 1
        yield places, padded, mask


@torch.no_grad()
def mean_vectors(ids: list[list[int]], model: PreTrainedModel) -> list[np.ndarray]:
    """The mean over tokens of the last states, in float32: (D) for each row of token ids, in the order of the rows."""
    vectors: dict[int, np.ndarray] = {}  # by the place of the row
    for places, padded, mask in padded_batches(ids):
        mask = mask.to(model.device)
        states = model(input_ids=padded.to(model.device), attention_mask=mask).last_hidden_state.float()
        means = mean_over_tokens(states, mask).cpu().numpy()
        vectors.update(zip(places, means))
    return [vectors[place] for place in range(len(ids))]


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """(N, D), each of length one, in float64."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def spearman(cosines: np.ndarray, numbers: np.ndarray) -> float:
    """Spearman's correlation of (N) and (N); 0 where it is undefined, since one side is constant."""
    if np.ptp(cosines) == 0 or np.ptp(numbers) == 0:
        return 0.0
    return float(stats.spearmanr(cosines, numbers).statistic)


def reciprocal_ranks(queries: np.ndarray, documents: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(Q, D), (N, D) and the place of each query's document, (Q), → (Q): 1/rank, 0 beyond rank 10.

    Documents that are exactly as near as the right one, such as the same text again, do not count against it. NaN
    where a likeness is not finite: it is neither more nor less than another.
    """
    found = np.zeros(len(queries))
    for index, query in enumerate(queries):
        likeness = documents @ query
        if not np.isfinite(likeness).all():
            found[index] = np.nan
            continue
        rank = 1 + int((likeness > likeness[right[index]] + 1e-9).sum())
        if rank <= RANKS:
            found[index] = 1 / rank
    return found


def mean_reciprocal_rank(queries: np.ndarray, documents: np.ndarray) -> float:
    """Of query i among all documents, document i being the right one: the mean of `reciprocal_ranks`."""
    return float(reciprocal_ranks(queries, documents, np.arange(len(queries))).mean())
