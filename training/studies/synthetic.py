"""The two data models of Heads-Opt, made up here, for their parameters are not known to this project.

Tokenized mixture (DM1): a label is carried by some of an example's tokens, which stand anywhere in it; the others are
noise. Planted head: labels are the sign of a single-head model of Gaussian tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .single_layer import Data, Examples, Weights, outputs


@dataclass(frozen=True)
class Mixture:
    """The tokenized mixture: `signal` is the norm of the relevant tokens, `noise` that of the others, on average."""

    tokens: int = 10
    width: int = 20
    relevant: int = 1
    signal: float = 2.0
    noise: float = 2.0
    train: int = 100
    test: int = 300
    fixed_places: bool = False


@dataclass(frozen=True)
class Planted:
    """The planted head: entries of W* are N(0, `sharpness`²/d), so that ⟨x, W* x′⟩ has that deviation times √d."""

    tokens: int = 5
    width: int = 5
    sharpness: float = 1.0
    train: int = 1000
    test: int = 3000


def generators(seeds: list[int]) -> list[Generator]:
    """One for each trial."""
    return [Generator().manual_seed(seed) for seed in seeds]


def normal(source: list[Generator], *sizes: int) -> Tensor:
    """Standard normal (R, *sizes), trial by trial, so that a trial does not depend on how many there are."""
    return torch.stack([torch.randn(sizes, generator=each) for each in source])


def orthonormal_pair(source: list[Generator], width: int) -> Tensor:
    """Two orthonormal vectors of each trial: (R, 2, d)."""
    basis, _ = torch.linalg.qr(normal(source, width, 2))
    return basis.transpose(-1, -2)


def relevant_places(source: list[Generator], count: int, mixture: Mixture) -> Tensor:
    """Which tokens of each example are relevant, drawn anew for each, or the first ones: (R, n, T)."""
    shape = (len(source), count, mixture.tokens)
    if mixture.fixed_places:
        places = torch.zeros(shape, dtype=torch.bool)
        places[..., : mixture.relevant] = True
        return places
    order = torch.stack([torch.rand(shape[1:], generator=each) for each in source]).argsort(-1)
    return order < mixture.relevant


def mixture_examples(source: list[Generator], means: Tensor, count: int, mixture: Mixture) -> Examples:
    """Examples whose relevant tokens are `signal` times the mean of their class; each label with probability half."""
    labels = torch.stack([torch.randint(0, 2, (count,), generator=each) for each in source])  # (R, n)
    relevant = relevant_places(source, count, mixture)
    noise = normal(source, count, mixture.tokens, mixture.width) * mixture.noise / math.sqrt(mixture.width)
    chosen = torch.gather(means, 1, labels.unsqueeze(-1).expand(-1, -1, mixture.width))  # (R, n, d)
    x = torch.where(relevant.unsqueeze(-1), mixture.signal * chosen.unsqueeze(2), noise)
    return Examples(x, 2.0 * labels - 1, relevant)


def mixture_data(mixture: Mixture, seeds: list[int]) -> Data:
    """Training and test examples of the tokenized mixture, with the same two means."""
    source = generators(seeds)
    means = orthonormal_pair(source, mixture.width)
    train = mixture_examples(source, means, mixture.train, mixture)
    return Data(train, mixture_examples(source, means, mixture.test, mixture))


def planted_data(planted: Planted, seeds: list[int]) -> Data:
    """Training and test examples of one planted head."""
    source = generators(seeds)
    w = normal(source, 1, planted.width, planted.width) * planted.sharpness / math.sqrt(planted.width)
    head = Weights(w, normal(source, 1, planted.tokens, planted.width))
    parts = []
    for count in (planted.train, planted.test):
        x = normal(source, count, planted.tokens, planted.width)
        parts.append(Examples(x, torch.sign(outputs(x, head))))
    return Data(*parts, planted=w.squeeze(1))
