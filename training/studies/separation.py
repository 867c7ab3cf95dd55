"""How strongly attention without its softmax can join two parts of its input: the separation rank, at toy sizes.

The separation rank of f(a, b) is the least number of products g(a)·h(b) that add up to f. For random points it is the
rank of the matrix f(a_i, b_j). Here a and b are two tokens of width d, and f is one number of the first token after L
layers x_i ← Σ_j ⟨Q x_i, K x_j⟩ V x_j, with one head as wide as the model: a polynomial of degree 3^L, which
is where log3 comes from. All is computed in whole numbers modulo a prime, so that a rank is exact: it is never above
that over the rationals, and below it with a chance of at most about rank · 3^L / prime, 3e-5 here (Schwartz–Zippel).
"""

import math

import numpy as np


PRIME = 2**31 - 1
SPARE = 10  # points beyond the expected rank, by which a higher one would show


def product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """x (…, k) @ matrix (k, n), modulo the prime."""
    total = np.zeros((*x.shape[:-1], matrix.shape[1]), dtype=np.int64)
    for place, row in enumerate(matrix):
        total = (total + x[..., place, None] * row) % PRIME
    return total


def layer(x: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Attention without softmax over the tokens x (…, T, d), modulo the prime."""
    queries, keys, values = (product(x, matrix) for matrix in (query, key, value))
    out = np.zeros_like(x)
    for token in range(x.shape[-2]):
        scores = np.zeros(x.shape[:-1], dtype=np.int64)
        for place in range(x.shape[-1]):
            scores = (scores + queries[..., place] * keys[..., token, None, place]) % PRIME
        out = (out + scores[..., None] * values[..., token, None, :]) % PRIME
    return out


def rank(matrix: np.ndarray) -> int:
    """The rank of a matrix of whole numbers modulo the prime, by elimination."""
    rest = matrix % PRIME
    found = 0
    while rest.size:
        places = np.flatnonzero(rest[:, 0])
        if len(places) == 0:
            rest = rest[:, 1:]
            continue
        rest[[0, places[0]]] = rest[[places[0], 0]]
        factors = rest[1:, 0] * pow(int(rest[0, 0]), -1, PRIME) % PRIME
        rest = (rest[1:, 1:] - factors[:, None] * rest[0, 1:] % PRIME) % PRIME
        found += 1
    return found


def closed_form(layers: int, width: int) -> int:
    """What was found in every case: d + (3^L − 1)/2 over d, a binomial coefficient, symmetric in d and (3^L − 1)/2."""
    return math.comb(width + (3**layers - 1) // 2, width)


def separation_rank(layers: int, width: int, source: np.random.Generator) -> int:
    """Of random weights, for two tokens of which each is a part."""
    points = closed_form(layers, width) + SPARE
    a, b = source.integers(0, PRIME, (2, points, width))
    x = np.stack(np.broadcast_arrays(a[:, None], b[None]), 2)  # (points, points, 2, d)
    for _ in range(layers):
        x = layer(x, *source.integers(0, PRIME, (3, width, width)))
    return rank(x[..., 0, 0])
