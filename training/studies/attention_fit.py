"""Attention matrices that a head can have and those it can't: Theorem 1 of Low-Rank, and best fits below its size.

Matrices are column-stochastic, as the paper has them: P (n, n), a column per query; X (d, n), a column per token. A
batch of them stands in front: (B, n, n).
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor


ITERATIONS = 60  # of L-BFGS at a time
HISTORY = 20


def softmax_columns(logits: Tensor) -> Tensor:
    """Over the keys of each query."""
    return torch.softmax(logits, -2)


def random_targets(batch: int, size: int, sharpness: float, source: Generator) -> Tensor:
    """Positive column-stochastic matrices: the softmax of N(0, `sharpness`²): (B, n, n)."""
    return softmax_columns(sharpness * torch.randn(batch, size, size, generator=source))


def permuted_targets(batch: int, size: int, share: float, source: Generator) -> Tensor:
    """Each query has `share` of its attention on one key, no two on the same, the rest evenly: (B, n, n)."""
    order = torch.rand(batch, size, generator=source).argsort(-1)
    on_key = torch.nn.functional.one_hot(order, size).to(torch.get_default_dtype()).transpose(-1, -2)
    rest = (1 - share) / (size - 1)
    return on_key * (share - rest) + rest


def off(found: Tensor, target: Tensor) -> Tensor:
    """The attention that lies elsewhere, half the absolute difference of each column, mean over the columns: (B,)."""
    return (found - target).abs().sum(-2).mean(-1) / 2


def tokens(batch: int, width: int, length: int, spread: float, source: Generator) -> Tensor:
    """X (B, d, n) of full column rank, d ≥ n, with singular values evenly from 1 to `spread`."""
    left, _ = torch.linalg.qr(torch.randn(batch, width, length, generator=source))
    right, _ = torch.linalg.qr(torch.randn(batch, length, length, generator=source))
    return left * torch.linspace(1, spread, length) @ right


def construct(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """W_k and W_q (B, d, d) with Softmax[(W_k X)ᵀ(W_q X)/√d] = P, for X (B, d, n) of full column rank.

    As in the proof of Theorem 1: W_k = W̃_k X⁺ and W_q = W̃_q X⁺ with W̃_kᵀ W̃_q = √d ln P, here W̃_k the identity, with
    rows of zeros where d > n.
    """
    width, size = x.shape[-2:]
    inverse = torch.linalg.pinv(x)
    keys = torch.eye(width, size).expand(len(x), -1, -1)
    queries = torch.zeros(len(x), width, size)
    queries[:, :size] = math.sqrt(width) * target.log()
    return keys @ inverse, queries @ inverse


def attention_of(x: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """Softmax[(W_k X)ᵀ(W_q X)/√d] over the columns, d the rows of W_k."""
    scores = (keys @ x).transpose(-1, -2) @ (queries @ x)
    return softmax_columns(scores / math.sqrt(keys.shape[-2]))


def one_less(target: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (B, n, n − 1) whose product has the softmax P.

    ln P less its first row has rank n − 1, and no softmax sees what is added to a column. So a head of n − 1 is enough
    where X has full column rank; the theorem asks for n.
    """
    logits = target.log() - target.log()[:, :1]
    left = torch.eye(target.shape[-1])[:, 1:].expand(len(target), -1, -1)
    return left, logits[:, 1:].transpose(-1, -2)


def out_of_reach(x: Tensor, target: Tensor) -> Tensor:
    """How far ln P is from all scores of a width d < n, as a share of its size: (B,). Above 0 P cannot be had.

    Scores are Xᵀ M X for some M, so their rows and columns lie in the row space of X, and a softmax does not see what
    is added to a column: min over M and c of ‖ln P + 1cᵀ − Xᵀ M X‖, over the norm of ln P without its column means. A
    least squares problem, solved exactly.
    """
    size = x.shape[-1]
    basis, _ = torch.linalg.qr(x.transpose(-1, -2))  # (B, n, d)
    within = basis @ basis.transpose(-1, -2)
    logs = target.log()
    ones = torch.ones(len(x), size, 1)
    seen = (ones * (within @ ones)).sum(-2, keepdim=True)  # 1ᵀ Π 1
    matrix = size * torch.eye(size) - seen * within
    right = logs.transpose(-1, -2) @ ones - within @ logs.transpose(-1, -2) @ within @ ones
    shifted = logs - ones @ torch.linalg.lstsq(matrix, right).solution.transpose(-1, -2)
    rest = shifted - within @ shifted @ within
    centred = logs - logs.mean(-2, keepdim=True)
    return rest.flatten(1).norm(dim=1) / centred.flatten(1).norm(dim=1)


def minimise(parameters: list[Tensor], logits: Callable[[], Tensor], target: Tensor, rounds: int) -> Tensor:
    """Fits scores to P by the cross-entropy of its columns, all of the batch at once: the attention that was reached.

    Raises ValueError where the fit is not finite.
    """
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ITERATIONS, history_size=HISTORY, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -(target * torch.log_softmax(logits(), -2)).sum()
        value.backward()
        return value

    for _ in range(rounds):
        optimizer.step(loss)
    with torch.no_grad():
        found = softmax_columns(logits())
    if not torch.isfinite(found).all():
        raise ValueError("the fit of an attention matrix is not finite")
    return found


def fit_width(x: Tensor, target: Tensor, rounds: int) -> Tensor:
    """The best attention of a head as wide as the model, d < n, with scores Xᵀ M X: convex in M: (B, n, n)."""
    basis, _ = torch.linalg.qr(x.transpose(-1, -2))
    width = basis.shape[-1]
    inner = torch.zeros(len(x), width, width, requires_grad=True)
    return minimise([inner], lambda: basis @ inner @ basis.transpose(-1, -2), target, rounds)


def fit_head(target: Tensor, size: int, rounds: int, source: Generator) -> Tensor:
    """The best attention found for a head of `size` in a wide model, whose scores have that rank: (B, n, n).

    Not convex: the better of two starts, the singular vectors of ln P without its column means, and small random ones.
    """
    logs = target.log()
    left, values, right = torch.linalg.svd(logs - logs.mean(-2, keepdim=True))
    root = values[:, None, :size].sqrt()
    batch, length, _ = target.shape
    starts = (
        (left[:, :, :size] * root, right.transpose(-1, -2)[:, :, :size] * root),
        tuple(0.5 * torch.randn(2, batch, length, size, generator=source)),
    )
    best = None
    for start in starts:
        factors = [part.clone(memory_format=torch.contiguous_format).requires_grad_() for part in start]
        found = minimise(factors, lambda pair=factors: pair[0] @ pair[1].transpose(-1, -2), target, rounds)
        if best is None:
            best = found
        better = off(found, target) < off(best, target)
        best = torch.where(better[:, None, None], found, best)
    return best


def joint_rank(values: Tensor, scores: Tensor) -> int:
    """How many directions a layer's heads have together, to first order in the scores.

    To first order in its scores a layer computes, besides a mean, Σ_h V_h C M_h x for the query x and the covariance C
    of the tokens, V_h (H, d, d) output and value as one, M_h (H, d, d) key and query as one. Its inputs can have every
    symmetric C and every x, so the layer's function decides Σ_h V_h[o, i] M_h[k, q], made symmetric in i and k; the
    rank is that of this array with (o, q) as rows and (i, k) as columns. A head of size s adds at most s² to it.
    """
    width = values.shape[-1]
    together = torch.einsum("hoi,hkq->oqik", values, scores)
    symmetric = (together + together.transpose(-1, -2)) / 2
    return int(torch.linalg.matrix_rank(symmetric.reshape(width**2, width**2)))


def random_heads(heads: int, width: int, size: int, source: Generator) -> tuple[Tensor, Tensor]:
    """V_h and M_h (H, d, d) of random heads of a size: products of Gaussian matrices."""
    parts = torch.randn(4, heads, width, size, generator=source) / math.sqrt(width)
    return parts[0] @ parts[1].transpose(-1, -2), parts[2] @ parts[3].transpose(-1, -2)
