"""When a head is too small for an attention matrix: Low-Rank.

Bhojanapalli et al. ([arXiv 2002.07028](https://arxiv.org/abs/2002.07028)): a head of size d ≥ n can have every
positive attention matrix over n tokens; below n some cannot be had. So fix the head size at the sequence length,
whatever the number of heads, which is strictly more expressive once h > d/d_p. Added here: a head of n − 1 is enough,
and sharp attention, most of it on one key each, is had by heads of a fraction of the length.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from .study import Study, double_precision, line


@dataclass(frozen=True)
class Settings:
    """`sizes` are (n, d) of theorem 1, `joint` (width, heads, head size) of theorem 2; fits are at `length`."""

    seed: int = 1
    draws: int = 100
    sizes: tuple[tuple[int, int], ...] = ((8, 8), (8, 16), (32, 32), (32, 48), (128, 128), (128, 192))
    length: int = 32
    limits: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 30, 31)
    targets: int = 10
    sharpness: tuple[float, ...] = (1.0, 4.0)
    rounds: int = 6
    joint: tuple[tuple[int, int, int], ...] = ((8, 2, 8), (8, 4, 4), (12, 4, 4), (12, 6, 4), (16, 4, 8), (16, 8, 4))


QUICK = Settings(
    draws=10,
    sizes=((8, 8), (8, 16), (32, 32), (32, 48)),
    length=8,
    limits=(1, 2, 4, 6, 7),
    targets=4,
    rounds=2,
    joint=((8, 2, 8), (8, 4, 4)),
)
EXACT = 1e-12
SPREAD = 10.0  # condition number of X in theorem 1
OUT = 1e-6  # a share of ln P that no score matrix has: beyond rounding
MISSED = 0.01  # of the attention: less is as good as none


def run(study: Study, settings: Settings) -> None:
    with double_precision():
        source = Generator().manual_seed(settings.seed)
        large_heads(study, settings, source)
        expressive(study, settings, source)
        small_heads(study, settings, source)


# Theorem 1, d ≥ n. Matrices are column-stochastic, as in the paper: P (B, n, n), a column per query; X (B, d, n), a
# column per token.


def softmax_columns(logits: Tensor) -> Tensor:
    """Over the keys of each query."""
    return torch.softmax(logits, -2)


def random_targets(batch: int, size: int, sharpness: float, source: Generator) -> Tensor:
    """Positive column-stochastic matrices: the softmax of N(0, `sharpness`²): (B, n, n)."""
    return softmax_columns(sharpness * torch.randn(batch, size, size, generator=source))


def tokens(batch: int, width: int, length: int, spread: float, source: Generator) -> Tensor:
    """X (B, d, n) of full column rank, d ≥ n, with singular values evenly from 1 to `spread`."""
    left, _ = torch.linalg.qr(torch.randn(batch, width, length, generator=source))
    right, _ = torch.linalg.qr(torch.randn(batch, length, length, generator=source))
    return left * torch.linspace(1, spread, length) @ right


def construct(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """W_k and W_q (B, d, d) with Softmax[(W_k X)ᵀ(W_q X)/√d] = P, for X (B, d, n) of full column rank.

    As in the proof of theorem 1: W_k = W̃_k X⁺ and W_q = W̃_q X⁺ with W̃_kᵀ W̃_q = √d ln P, here W̃_k the identity, with
    rows of zeros if d > n.
    """
    width, size = x.shape[-2:]
    inverse = torch.linalg.pinv(x)
    queries = torch.zeros(len(x), width, size)
    queries[:, :size] = math.sqrt(width) * target.log()
    return torch.eye(width, size) @ inverse, queries @ inverse


def attention_of(x: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """Softmax[(W_k X)ᵀ(W_q X)/√d] over the columns, d the rows of W_k."""
    return softmax_columns((keys @ x).mT @ (queries @ x) / math.sqrt(keys.shape[-2]))


def one_less(target: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (B, n, n − 1) whose product has the softmax P.

    ln P less its first row has rank n − 1, and no softmax sees what is added to a column.
    """
    logits = target.log() - target.log()[:, :1]
    left = torch.eye(target.shape[-1])[:, 1:].expand(len(target), -1, -1)
    return left, logits[:, 1:].mT


def large_heads(study: Study, settings: Settings, source: Generator) -> None:
    """Theorem 1 by the construction of its proof, and with one rank less."""
    errors = {}
    for length, width in settings.sizes:
        x = tokens(settings.draws, width, length, SPREAD, source)
        target = random_targets(settings.draws, length, 3.0, source)
        error = (attention_of(x, *construct(x, target)) - target).abs().max().item()
        errors[f"largest error, n = {length}, d = {width}"] = error
    study.add(
        "theorem 1, d ≥ n",
        "A head as large as the sequence is long can have every positive attention matrix, for every X of full "
        "column rank.",
        f"the construction of the proof is off by less than {EXACT:g} in every entry of every draw",
        max(errors.values()) < EXACT,
        errors,
    )
    errors = {}
    for length in sorted({length for length, _ in settings.sizes}):
        target = random_targets(settings.draws, length, 3.0, source)
        left, right = one_less(target)
        error = (softmax_columns(left @ right.mT) - target).abs().max().item()
        errors[f"largest error, n = {length}, head size {length - 1}"] = error
    study.add(
        "derived here",
        "Where the width reaches the length, a head of n − 1 has every positive attention matrix, too: a softmax "
        "does not see what is added to a column, which takes one rank.",
        f"error below {EXACT:g} in every entry of every draw",
        max(errors.values()) < EXACT,
        errors,
    )


# Theorem 2, by a rank that the function of a layer decides.


def joint_rank(values: Tensor, scores: Tensor) -> int:
    """How many directions a layer's heads have together, to first order in the scores.

    To first order in its scores a layer computes, besides a mean, Σ_h V_h C M_h x for the query x and the covariance C
    of the tokens, V_h (H, d, d) output and value as one, M_h (H, d, d) key and query as one. Its inputs can have every
    symmetric C and every x, so the layer's function decides Σ_h V_h[o, i] M_h[k, q], made symmetric in i and k; the
    rank is that of this array with (o, q) as rows and (i, k) as columns. A head of size s adds at most s² to it.
    """
    width = values.shape[-1]
    together = torch.einsum("hoi,hkq->oqik", values, scores)
    return int(torch.linalg.matrix_rank(((together + together.mT) / 2).reshape(width**2, width**2)))


def random_heads(heads: int, width: int, size: int, source: Generator) -> tuple[Tensor, Tensor]:
    """V_h and M_h (H, d, d) of random heads of a size: products of Gaussian matrices."""
    parts = torch.randn(4, heads, width, size, generator=source) / math.sqrt(width)
    return parts[0] @ parts[1].mT, parts[2] @ parts[3].mT


def expressive(study: Study, settings: Settings, source: Generator) -> None:
    """Theorem 2."""
    ranks = {}
    agrees = True
    for width, heads, size in settings.joint:
        fixed, usual = (joint_rank(*random_heads(heads, width, each, source)) for each in (size, width // heads))
        ranks[f"rank, width {width}, {heads} heads of {size}"] = fixed
        ranks[f"rank, width {width}, {heads} heads of {width // heads}"] = usual
        agrees &= fixed > usual and usual <= width * width // heads
    study.add(
        "theorem 2",
        "With more than d/d_p heads of a fixed size d_p a layer is strictly more expressive than as many heads of "
        "d/h.",
        "a rank that the layer's function decides, and that heads of d/h cannot raise above d²/h (proved here), is "
        "higher with the fixed size in every case",
        agrees,
        ranks,
    )


# Theorem 1, d < n: what is out of reach, and the best fits below the length.


def permuted_targets(batch: int, size: int, share: float, source: Generator) -> Tensor:
    """Each query has `share` of its attention on one key, no two on the same, the rest evenly: (B, n, n)."""
    order = torch.rand(batch, size, generator=source).argsort(-1)
    rest = (1 - share) / (size - 1)
    return one_hot(order, size).to(torch.get_default_dtype()).mT * (share - rest) + rest


def off(found: Tensor, target: Tensor) -> Tensor:
    """The attention that lies elsewhere, half the absolute difference of each column, mean over the columns: (B,)."""
    return (found - target).abs().sum(-2).mean(-1) / 2


def out_of_reach(x: Tensor, target: Tensor) -> Tensor:
    """How far ln P is from all scores of a width d < n, as a share of its size: (B,). Above 0 P cannot be had.

    Scores are Xᵀ M X for some M, so their rows and columns lie in the row space of X, and a softmax does not see what
    is added to a column: min over M and c of ‖ln P + 1cᵀ − Xᵀ M X‖, over the norm of ln P without its column means. A
    least squares problem, solved exactly.
    """
    size = x.shape[-1]
    basis, _ = torch.linalg.qr(x.mT)  # (B, n, d)
    within = basis @ basis.mT
    logs = target.log()
    ones = torch.ones(len(x), size, 1)
    seen = (ones * (within @ ones)).sum(-2, keepdim=True)  # 1ᵀ Π 1
    matrix = size * torch.eye(size) - seen * within
    right = logs.mT @ ones - within @ logs.mT @ within @ ones
    shifted = logs - ones @ torch.linalg.lstsq(matrix, right).solution.mT
    rest = shifted - within @ shifted @ within
    centred = logs - logs.mean(-2, keepdim=True)
    return rest.flatten(1).norm(dim=1) / centred.flatten(1).norm(dim=1)


def minimise(parameters: list[Tensor], logits: Callable[[], Tensor], target: Tensor, rounds: int) -> Tensor:
    """The attention that scores reach, fitted to P by the cross-entropy of its columns, all of the batch at once."""
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=60, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -(target * torch.log_softmax(logits(), -2)).sum()
        value.backward()
        return value

    for _ in range(rounds):
        optimizer.step(loss)
    with torch.no_grad():
        return softmax_columns(logits())


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
        fits.append(minimise(factors, lambda pair=factors: pair[0] @ pair[1].mT, target, rounds))
    better = off(fits[1], target) < off(fits[0], target)
    return torch.where(better[:, None, None], fits[1], fits[0])


def small_heads(study: Study, settings: Settings, source: Generator) -> None:
    """Below the length n: what no head can have (exact), and what the best fits lose by head size."""
    count, length, rounds = settings.targets, settings.length, settings.rounds
    targets = {
        f"softmax of N(0, {sharpness:g}²)": random_targets(count, length, sharpness, source)
        for sharpness in settings.sharpness
    }
    targets["0.99 on one key each"] = permuted_targets(count, length, 0.99, source)
    unreachable: dict[str, list[float]] = {kind: [] for kind in targets}
    by_head: dict[str, list[Tensor]] = {kind: [] for kind in targets}
    for kind, target in targets.items():
        for size in settings.limits:
            x = torch.randn(count, size, length, generator=source)
            unreachable[kind].append(out_of_reach(x, target).min().item())
            by_head[kind].append(off(fit_head(target, size, rounds, source), target))

    def named(what: str, by_kind: dict[str, list[float]]) -> dict[str, float]:
        return {
            f"{what} {size}, {kind}": value
            for kind, values in by_kind.items()
            for size, value in zip(settings.limits, values)
        }

    study.add(
        "theorem 1, d < n",
        "Below the length, d < n, there are X and P that no head can have.",
        f"for every d tried there is a P whose logarithm is further than {OUT:g} of its size from all scores (exact)",
        max(map(min, unreachable.values())) > OUT,
        named("least share out of reach, d =", unreachable),
    )
    means = {kind: [lost.mean().item() for lost in fits] for kind, fits in by_head.items()}
    halves = sum(size <= length // 2 for size in settings.limits)
    least = [min(lost[:halves]) for lost in means.values()]
    numbers = named("mean attention elsewhere, head size", means)
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
    lines = [line(kind, settings.limits, lost) for kind, lost in by_head.items()]
    study.plot(f"head size d, wide, n = {length}", "d", "attention put elsewhere", lines)
