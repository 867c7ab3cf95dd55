"""When more heads make gradient descent easier: Heads-Opt.

Deora et al. ([arXiv 2310.12680](https://arxiv.org/abs/2310.12680)) train one layer, Φ(X; W, U) = (1/√H) Σ_h ⟨U_h,
softmax(X W_h Xᵀ) X⟩, on labels ±1 by the logistic loss. Their figures are known here at second hand: from zero weights
more heads are slower under gradient descent with a constant step, and faster with a step ∝ √H, with momentum and with
Adam, on a tokenized mixture and on labels of a planted head. The parameters of both data models are chosen here.

**Proved here**, not the paper's: from zero weights all heads get the same gradient for ever, and H heads under η are
one head u = √H·U with the step η for u and η/H for W: H sets step sizes, and nothing else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid
from torch.optim import SGD, Adam, Optimizer
from transformers.modeling_utils import local_torch_dtype

from .study import Study, most


@dataclass(frozen=True)
class Mixture:
    """The tokenized mixture (DM1): a label is carried by some of an example's tokens, which stand anywhere in it.

    `signal` is the norm of these relevant tokens, `noise` that of the others, on average.
    """

    tokens: int = 10
    width: int = 20
    relevant: int = 1
    signal: float = 2.0
    noise: float = 2.0
    examples: int = 100


@dataclass(frozen=True)
class Planted:
    """The planted head: labels are the sign of a single-head model of Gaussian tokens, with W* of N(0, 1/d)."""

    tokens: int = 5
    width: int = 5
    examples: int = 1000


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    mixture: Mixture = field(default_factory=Mixture)
    planted: Planted = field(default_factory=Planted)
    heads: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 300


QUICK = Settings(seeds=(1, 2, 3), planted=Planted(examples=200), heads=(1, 4), steps=90)


# The single-layer model and its training. Trials stand side by side. Sizes: R trials, H heads, n examples, T tokens, d
# the width; X (R, n, T, d), y (R, n); W (R, H, d, d), keys and queries as one, U (R, H, T, d), values and decoder.


class Examples(NamedTuple):
    x: Tensor
    y: Tensor


def outputs(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Φ of every example: (R, n). Heads lie beside rows, so that no product repeats X."""
    heads, tokens, width = u.shape[1:]
    queries = x.flatten(1, 2) @ w.transpose(1, 2).flatten(2)  # (R, n·T, H·d)
    rows = queries.view(*x.shape[:2], tokens * heads, width) @ x.mT
    attended = torch.softmax(rows, -1) @ x
    return (attended.flatten(2) @ u.transpose(1, 2).reshape(len(u), -1, 1)).squeeze(-1) / math.sqrt(heads)


def train(
    data: Examples, heads: int, optimiser: Callable[[Tensor, Tensor, int], Optimizer], looks: list[int]
) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Trains all trials at once from zero weights: W, U, and losses (R,) after `looks` steps, in rising order."""
    trials, _, tokens, width = data.x.shape
    w = torch.zeros(trials, heads, width, width, requires_grad=True)
    u = torch.zeros(trials, heads, tokens, width, requires_grad=True)
    optimizer = optimiser(w, u, heads)
    found = {}
    for step in range(looks[-1] + 1):
        loss = -logsigmoid(data.y * outputs(data.x, w, u)).mean(-1)  # logistic, (R,)
        if step in looks:
            found[step] = loss.detach()
        if step < looks[-1]:
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
    return w.detach(), u.detach(), found


def normal(source: list[Generator], *sizes: int) -> Tensor:
    """Standard normal (R, *sizes), trial by trial, so that a trial does not depend on how many there are."""
    return torch.stack([torch.randn(sizes, generator=each) for each in source])


def mixture_data(mixture: Mixture, seeds: tuple[int, ...]) -> Examples:
    """Relevant tokens are `signal` times the mean of their class."""
    source = [Generator().manual_seed(seed) for seed in seeds]
    count = mixture.examples
    basis, _ = torch.linalg.qr(normal(source, mixture.width, 2))
    labels = torch.stack([torch.randint(0, 2, (count,), generator=each) for each in source])  # (R, n)
    order = torch.stack([torch.rand((count, mixture.tokens), generator=each) for each in source]).argsort(-1)
    noise = normal(source, count, mixture.tokens, mixture.width) * mixture.noise / math.sqrt(mixture.width)
    chosen = torch.gather(basis.mT, 1, labels.unsqueeze(-1).expand(-1, -1, mixture.width))  # (R, n, d)
    relevant = (order < mixture.relevant).unsqueeze(-1)
    return Examples(torch.where(relevant, mixture.signal * chosen.unsqueeze(2), noise), 2.0 * labels - 1)


# Figures 2, 3 and 5 of the paper.

MIXTURE = "tokenized mixture"
PLANTED = "planted head"
STEP = 1.0  # η of gradient descent with one head
MOMENTUM = 0.9
CONSTANT = "GD, constant step"
ROOT = "GD, step ∝ √H"
WITH_MOMENTUM = "GD with momentum, step ∝ √H"
ADAM = "Adam"
OPTIMISERS: dict[str, Callable[[Tensor, Tensor, int], Optimizer]] = {
    CONSTANT: lambda w, u, heads: SGD([w, u], lr=STEP),
    ROOT: lambda w, u, heads: SGD([w, u], lr=STEP * math.sqrt(heads)),
    # so that the steps add up to those without momentum
    WITH_MOMENTUM: lambda w, u, heads: SGD([w, u], lr=(1 - MOMENTUM) * STEP * math.sqrt(heads), momentum=MOMENTUM),
    ADAM: lambda w, u, heads: Adam([w, u], lr=0.01),
}
FIGURES = {  # data and optimiser → place in the paper, and what it says of more heads
    (MIXTURE, CONSTANT): ("figure 2", "slower"),
    (MIXTURE, ROOT): ("figure 3", "faster"),
    (MIXTURE, ADAM): ("figure 3", "faster"),
    (PLANTED, WITH_MOMENTUM): ("figure 5", "faster"),
    (PLANTED, ADAM): ("figure 5", "faster"),
}
SHARES = (0.1, 1 / 3, 1.0)  # of the steps, at which runs are compared


@local_torch_dtype(torch.float64)
def run(study: Study, settings: Settings) -> None:
    """Whether more heads are faster, by training loss."""
    planted, source = settings.planted, [Generator().manual_seed(seed) for seed in settings.seeds]
    w = normal(source, 1, planted.width, planted.width) / math.sqrt(planted.width)
    u = normal(source, 1, planted.tokens, planted.width)
    x = normal(source, planted.examples, planted.tokens, planted.width)
    data = {
        MIXTURE: mixture_data(settings.mixture, settings.seeds),
        PLANTED: Examples(x, torch.sign(outputs(x, w, u))),
    }

    trials, steps = len(settings.seeds), settings.steps
    few, many = min(settings.heads), max(settings.heads)
    compared = [max(round(share * steps), 1) for share in SHARES]
    looks = sorted({*(round(steps ** (place / 12)) for place in range(13)), *compared})  # even on a logarithmic axis
    for (name, optimiser), (place, expected) in FIGURES.items():
        curves = {heads: train(data[name], heads, OPTIMISERS[optimiser], looks)[2] for heads in settings.heads}
        as_said, numbers = [], {}
        for step in compared:
            ends = {heads: curves[heads][step] for heads in (few, many)}
            lower = int((ends[many] < ends[few]).sum())
            as_said.append(lower if expected == "faster" else trials - lower)
            numbers |= {f"loss with H = {heads} after {step} steps": end.mean().item() for heads, end in ends.items()}
            numbers[f"trials of {trials} in which H = {many} is lower after {step} steps"] = lower
        study.add(
            f"{place}, second-hand",
            f"More heads are {expected}: {name}, {optimiser}, from zero weights.",
            f"training loss {'lower' if expected == 'faster' else 'higher'} with the most heads than with the fewest "
            f"in {most(trials)} of {trials} trials at each of a tenth, a third and the whole of the steps",
            min(as_said) >= most(trials),
            numbers,
        )
        named = {f"H = {heads}": curve for heads, curve in curves.items()}
        study.plot(f"{name}, {optimiser}, from zero", "steps", "training loss", named, log="xy")
