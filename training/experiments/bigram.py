"""An interpolated bigram: a language model that reads nothing but the token on the left."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix


def neighbours(rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and those that follow them in the same row, (N,) each, of 10,000 rows at a time."""
    for batch in rows.with_format("arrow").iter(10_000):
        column = batch["input_ids"].combine_chunks()
        ids = column.flatten().to_numpy()  # of all rows, one after the other
        later_starts = np.cumsum(column.value_lengths().to_numpy())[:-1]  # of all rows but the first
        in_one_row = np.ones(len(ids) - 1, dtype=bool)
        in_one_row[later_starts - 1] = False
        yield ids[:-1][in_one_row], ids[1:][in_one_row]


@dataclass
class Bigram:
    """Counts of tokens that follow each other, and the frequency of each token where nothing is known.

    A pair that was seen c times after a token that was seen n times, before t different ones, has the probability
    (c + t · frequency) / (n + t): interpolation by Witten and Bell (1991). V: the size of the vocabulary.
    """

    pairs: csr_matrix  # (V, V), left × right
    frequency: np.ndarray  # (V,)

    @classmethod
    def fit(cls, rows: Dataset, vocabulary: int, ignored: list[int]) -> "Bigram":
        """From prepared rows; tokens of `ignored` are never predicted."""
        pairs = csr_matrix((vocabulary, vocabulary), dtype=np.int64)
        for left, right in neighbours(rows):
            kept = ~np.isin(right, ignored)
            ones = np.ones(kept.sum(), dtype=np.int64)
            pairs += csr_matrix((ones, (left[kept], right[kept])), shape=pairs.shape)
        counts_plus_one = np.asarray(pairs.sum(0)).ravel() + 1
        return cls(pairs, counts_plus_one / counts_plus_one.sum())

    def nats(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(N,): the loss of each token `right` after `left`."""
        pair_count = np.asarray(self.pairs[left, right]).ravel()  # c
        left_count = np.asarray(self.pairs.sum(1)).ravel()[left]  # n
        followers = np.diff(self.pairs.indptr)[left]  # t, the entries of a row of the matrix
        frequency = self.frequency[right]
        with np.errstate(invalid="ignore"):  # 0 / 0 after tokens that were never seen
            interpolated = (pair_count + followers * frequency) / (left_count + followers)
        return -np.log(np.where(left_count == 0, frequency, interpolated))
