"""When a head is too small for an attention matrix: Low-Rank.

Bhojanapalli et al. ([arXiv 2002.07028](https://arxiv.org/abs/2002.07028)): a head of size d ≥ n can have every
positive attention matrix over n tokens; below n some cannot be had. So fix the head size at the sequence length,
whatever the number of heads. Added here: a head of n − 1 is enough, and sharp attention, most of it on one key each,
is had by heads of a fraction of the length.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot
from transformers.modeling_utils import local_torch_dtype

from .study import Study


@dataclass(frozen=True)
class Settings:
    """`sizes` are lengths n of heads of n − 1; fits are at `length`."""

    seed: int = 1
    draws: int = 100
    sizes: tuple[int, ...] = (8, 32, 128)
    length: int = 32
    limits: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 30, 31)
    targets: int = 10
    sharpness: tuple[float, ...] = (1.0, 4.0)
    rounds: int = 6


QUICK = Settings(draws=10, sizes=(8, 32), length=8, limits=(1, 4, 7), targets=2, rounds=1)
EXACT = 1e-12
MISSED = 0.01  # of the attention: less is as good as none


@local_torch_dtype(torch.float64)
def run(study: Study, settings: Settings) -> None:
    source = Generator().manual_seed(settings.seed)
    large_heads(study, settings, source)

    # What the best fits below the length lose by head size.
    count, length, rounds = settings.targets, settings.length, settings.rounds
    sizes = (count, length, length)
    targets = {  # P (B, n, n), a column per query, as in the paper: the softmax is over the keys, axis −2
        f"softmax of N(0, {sharpness:g}²)": torch.softmax(sharpness * torch.randn(sizes, generator=source), -2)
        for sharpness in settings.sharpness
    }
    order = torch.rand(count, length, generator=source).argsort(-1)  # no two queries have the same key
    rest = (1 - 0.99) / (length - 1)
    targets["0.99 on one key each"] = one_hot(order, length).double().mT * (0.99 - rest) + rest

    lost = {
        kind: {size: off(fit_head(target, size, rounds, source), target) for size in settings.limits}
        for kind, target in targets.items()
    }
    means = {kind: [each.mean().item() for each in fits.values()] for kind, fits in lost.items()}
    halves = sum(size <= length // 2 for size in settings.limits)
    least = [min(each[:halves]) for each in means.values()]
    numbers = {
        f"mean attention elsewhere, head size {size}, {kind}": mean
        for kind, each in means.items()
        for size, mean in zip(settings.limits, each)
    }
    study.add(
        "rank bottleneck",
        "A head smaller than the sequence is long is limited by its rank, however wide the model.",
        f"for some kind of matrix the best fit found misses more than {MISSED:.0%} of the attention with every head "
        f"size up to half the length, {length // 2}",
        max(least) > MISSED,
        numbers,
    )
    study.add(
        "asked here",
        "That holds for every kind of attention, the sharp kinds, too.",
        "the same for every kind of matrix",
        min(least) > MISSED,
        numbers,
    )
    study.plot(f"head size d, wide, n = {length}", "d", "attention put elsewhere", lost)


def large_heads(study: Study, settings: Settings, source: Generator) -> None:
    """Theorem 1, d ≥ n, with one rank less: ln P less its first row has rank n − 1, and the same softmax."""
    errors = {}
    for length in settings.sizes:
        target = torch.softmax(3.0 * torch.randn(settings.draws, length, length, generator=source), -2)
        logits = target.log() - target.log()[:, :1]
        left, right = torch.eye(length)[:, 1:].expand(len(target), -1, -1), logits[:, 1:].mT  # (B, n, n − 1)
        error = (torch.softmax(left @ right.mT, -2) - target).abs().max().item()
        errors[f"largest error, n = {length}, head size {length - 1}"] = error
    study.add(
        "derived here",
        "Where the width reaches the length, a head of n − 1 has every positive attention matrix, too: a softmax "
        "does not see what is added to a column, which takes one rank.",
        f"error below {EXACT:g} in every entry of every draw",
        max(errors.values()) < EXACT,
        errors,
    )


def off(found: Tensor, target: Tensor) -> Tensor:
    """The attention that lies elsewhere, half the absolute difference of each column, mean over the columns: (B,)."""
    return (found - target).abs().sum(-2).mean(-1) / 2


def minimise(left: Tensor, right: Tensor, target: Tensor, rounds: int) -> Tensor:
    """The attention that scores left · rightᵀ reach, fitted to P by cross-entropy, all of the batch at once."""
    optimizer = torch.optim.LBFGS(
        [left, right], max_iter=60, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -(target * torch.log_softmax(left @ right.mT, -2)).sum()
        value.backward()
        return value

    for _ in range(rounds):
        optimizer.step(loss)
    return torch.softmax(left @ right.mT, -2).detach()


def fit_head(target: Tensor, size: int, rounds: int, source: Generator) -> Tensor:
    """The best attention found for a head of `size` in a wide model, whose scores have that rank: (B, n, n).

    Not convex: the better of two starts, the singular vectors of ln P without its column means, and small random ones.
    """
    logs = target.log()
    left, values, right = torch.linalg.svd(logs - logs.mean(-2, keepdim=True))
    root = values[:, None, :size].sqrt()
    starts = (
        (left[:, :, :size] * root, right.mT[:, :, :size] * root),
        0.5 * torch.randn(2, len(target), target.shape[1], size, generator=source),
    )
    fits = []
    for start in starts:
        factors = [part.clone(memory_format=torch.contiguous_format).requires_grad_() for part in start]
        fits.append(minimise(*factors, target, rounds))
    better = off(fits[1], target) < off(fits[0], target)
    return torch.where(better[:, None, None], fits[1], fits[0])
