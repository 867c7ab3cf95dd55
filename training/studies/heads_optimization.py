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

from .study import Study, double_precision, line, most


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
    train: int = 100
    test: int = 300


@dataclass(frozen=True)
class Planted:
    """The planted head: labels are the sign of a single-head model of Gaussian tokens, with W* of N(0, 1/d)."""

    tokens: int = 5
    width: int = 5
    train: int = 1000
    test: int = 3000


@dataclass(frozen=True)
class Settings:
    """Examples of `planted` and `mixture` are as in the paper but for quick."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    mixture: Mixture = field(default_factory=Mixture)
    planted: Planted = field(default_factory=Planted)
    heads: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 300
    identity_steps: int = 60


QUICK = Settings(
    seeds=(1, 2, 3),
    mixture=Mixture(test=100),
    planted=Planted(train=200, test=300),
    heads=(1, 4),
    steps=90,
    identity_steps=20,
)


def run(study: Study, settings: Settings) -> None:
    with double_precision():
        mixture = mixture_data(settings.mixture, settings.seeds)
        heads_from_zero(study, mixture, settings)
        speed(
            study,
            {MIXTURE: mixture, PLANTED: planted_data(settings.planted, settings.seeds)},
            settings,
        )


# The single-layer model and its training. Trials stand side by side. Sizes: R trials, H heads, n examples, T tokens, d
# the width; X (R, n, T, d), y (R, n); W (R, H, d, d), keys and queries as one, U (R, H, T, d), values and decoder.


class Examples(NamedTuple):
    x: Tensor
    y: Tensor


class Data(NamedTuple):
    train: Examples
    test: Examples


def outputs(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Φ of every example: (R, n). Heads lie beside rows, so that no product repeats X."""
    heads, tokens, width = u.shape[1:]
    queries = x.flatten(1, 2) @ w.transpose(1, 2).flatten(2)  # (R, n·T, H·d)
    rows = queries.view(*x.shape[:2], tokens * heads, width) @ x.mT
    attended = torch.softmax(rows, -1) @ x
    return (attended.flatten(2) @ u.transpose(1, 2).reshape(len(u), -1, 1)).squeeze(-1) / math.sqrt(heads)


def losses(examples: Examples, w: Tensor, u: Tensor) -> Tensor:
    """The mean logistic loss of each trial: (R,)."""
    return -logsigmoid(examples.y * outputs(examples.x, w, u)).mean(-1)


def train(
    data: Data,
    heads: int,
    optimiser: Callable[[Tensor, Tensor, int], Optimizer],
    looks: list[int],
) -> tuple[Tensor, Tensor, dict[int, dict[str, Tensor]]]:
    """Trains all trials at once from zero weights: W, U, and losses (R,) after `looks` steps, in rising order."""
    trials, _, tokens, width = data.train.x.shape
    w = torch.zeros(trials, heads, width, width, requires_grad=True)
    u = torch.zeros(trials, heads, tokens, width, requires_grad=True)
    optimizer = optimiser(w, u, heads)
    readings = {}
    for step in range(1, looks[-1] + 1):
        optimizer.zero_grad()
        losses(data.train, w, u).sum().backward()
        optimizer.step()
        if step in looks:
            with torch.no_grad():
                readings[step] = {f"{name}_loss": losses(part, w, u) for name, part in data._asdict().items()}
    return w.detach(), u.detach(), readings


# The data models.


def normal(source: list[Generator], *sizes: int) -> Tensor:
    """Standard normal (R, *sizes), trial by trial, so that a trial does not depend on how many there are."""
    return torch.stack([torch.randn(sizes, generator=each) for each in source])


def mixture_data(mixture: Mixture, seeds: tuple[int, ...]) -> Data:
    """Relevant tokens are `signal` times the mean of their class, the same two means for training and test."""
    source = [Generator().manual_seed(seed) for seed in seeds]
    basis, _ = torch.linalg.qr(normal(source, mixture.width, 2))
    parts = []
    for count in (mixture.train, mixture.test):
        labels = torch.stack([torch.randint(0, 2, (count,), generator=each) for each in source])  # (R, n)
        order = torch.stack([torch.rand((count, mixture.tokens), generator=each) for each in source]).argsort(-1)
        noise = normal(source, count, mixture.tokens, mixture.width) * mixture.noise / math.sqrt(mixture.width)
        chosen = torch.gather(basis.mT, 1, labels.unsqueeze(-1).expand(-1, -1, mixture.width))  # (R, n, d)
        relevant = (order < mixture.relevant).unsqueeze(-1)
        x = torch.where(relevant, mixture.signal * chosen.unsqueeze(2), noise)
        parts.append(Examples(x, 2.0 * labels - 1))
    return Data(*parts)


def planted_data(planted: Planted, seeds: tuple[int, ...]) -> Data:
    """Training and test examples of one planted head."""
    source = [Generator().manual_seed(seed) for seed in seeds]
    w = normal(source, 1, planted.width, planted.width) / math.sqrt(planted.width)
    u = normal(source, 1, planted.tokens, planted.width)
    sets = (normal(source, count, planted.tokens, planted.width) for count in (planted.train, planted.test))
    return Data(*(Examples(x, torch.sign(outputs(x, w, u))) for x in sets))


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


def speed(study: Study, data: dict[str, Data], settings: Settings) -> None:
    """Whether more heads are faster, by training loss; and the test loss at the end."""
    trials, steps = len(settings.seeds), settings.steps
    few, many = min(settings.heads), max(settings.heads)
    compared = [max(round(share * steps), 1) for share in SHARES]
    looks = sorted({*(round(steps ** (place / 12)) for place in range(13)), *compared})  # even on a logarithmic axis
    better = {}
    for (name, optimiser), (place, expected) in FIGURES.items():
        curves = {heads: train(data[name], heads, OPTIMISERS[optimiser], looks)[2] for heads in settings.heads}
        lower, numbers = {}, {}
        for quantity in ("train_loss", "test_loss"):
            for step in compared:
                ends = {heads: curves[heads][step][quantity] for heads in (few, many)}
                lower[quantity, step] = int((ends[many] < ends[few]).sum())
                numbers |= {
                    f"{quantity} with H = {heads} after {step} steps": end.mean().item() for heads, end in ends.items()
                }
                which = f"trials of {trials} in which H = {many} is lower after {step} steps"
                numbers[f"{quantity}: {which}"] = lower[quantity, step]
        is_faster = expected == "faster"
        as_said = [lower["train_loss", step] if is_faster else trials - lower["train_loss", step] for step in compared]
        study.add(
            f"{place}, second-hand",
            f"More heads are {expected}: {name}, {optimiser}, from zero weights.",
            f"training loss {'lower' if is_faster else 'higher'} with the most heads than with the fewest in "
            f"{most(trials)} of {trials} trials at each of a tenth, a third and the whole of the steps",
            min(as_said) >= most(trials),
            numbers,
        )
        if is_faster:
            better[f"{name}, {optimiser}: trials with lower test loss at the end"] = lower["test_loss", steps]
        lines = [
            line(
                f"H = {heads}",
                [*each],
                [reading["train_loss"] for reading in each.values()],
            )
            for heads, each in curves.items()
        ]
        study.plot(f"{name}, {optimiser}, from zero", "steps", "training loss", lines, log="xy")
    study.add(
        "asked here, figures 3, 5",
        "Where more heads are said to be faster, their test loss at the end is lower, too (from zero weights).",
        f"in {most(trials)} of {trials} trials, for every data model and optimiser of figures 3 and 5",
        min(better.values()) >= most(trials),
        better,
    )


EXACT = 1e-12  # largest relative error of what is proved


def identity_at_zero(data: Data, heads: int, steps: int) -> tuple[float, float]:
    """Trains H heads by η, and one head u = √H·U by η for u and η/H for W, both from zero.

    Returns:
        the spread of the heads' weights, over their largest entry, and the distance of Φ of the two on the training
        examples, over its largest.
    """

    def one_head(w: Tensor, u: Tensor, _: int) -> Optimizer:
        return SGD([{"params": [u], "lr": STEP}, {"params": [w], "lr": STEP / heads}])

    many = train(data, heads, OPTIMISERS[CONSTANT], [steps])[:2]
    spread = max(((part - part[:, :1]).abs().max() / part.abs().max()).item() for part in many)
    expected = outputs(data.train.x, *train(data, 1, one_head, [steps])[:2])
    return spread, ((outputs(data.train.x, *many) - expected).abs().max() / expected.abs().max()).item()


def heads_from_zero(study: Study, data: Data, settings: Settings) -> None:
    found = [identity_at_zero(data, heads, settings.identity_steps) for heads in settings.heads if heads > 1]
    spread, distance = (max(values) for values in zip(*found))
    study.add(
        "derived here",
        "From zero weights H heads under gradient descent by η are one head u = √H·U by η for u and η/H for W, so the "
        "effect of H in figure 2 is one of step sizes, not of different heads.",
        f"spread of the heads and distance from the one head at most {EXACT:g}, relative",
        max(spread, distance) <= EXACT,
        {"spread": spread, "distance": distance, "steps": settings.identity_steps},
    )
