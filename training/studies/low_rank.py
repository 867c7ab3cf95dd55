"""The study low-rank: what Low-Rank (Bhojanapalli et al. 2020, arXiv 2002.07028) states of the size of heads."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from modeling_leaner.configuration_lean_bert import LeanBERTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.family import IMAGES
from modeling_leaner.shapes import modality_of

from .study import (
    GRIDS_FOLDER,
    FigurePanel,
    Findings,
    GridPair,
    Progress,
    Statement,
    Study,
    by_majority,
    double_precision,
    grid_pairs,
    line,
    rounded,
    rows_in,
    untested,
    verdict,
)


# Attention matrices that a head can have and those it can't: Theorem 1 of Low-Rank, and best fits below its size.
#
# Matrices are column-stochastic, as the paper has them: P (n, n), a column per query; X (d, n), a column per token. A
# batch of them stands in front: (B, n, n).


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


PAPER = "Low-Rank, 2002.07028"
EXACT = 1e-12
SPREAD = 10.0  # condition number of X in Theorem 1
OUT = 1e-6  # a share of ln P that no score matrix has: beyond rounding
MISSED = 0.01  # of the attention: less is as good as none
NEAR = 0.01  # a parameter count is met within one per cent
VOCABULARY = 30522
POSITIONS = 512
LAYERS = 24
TABLES = {  # (width, heads, head size, FFN) → million parameters as printed
    (1024, 8, 128, 4096): 336,
    (1024, 16, 64, 4096): 336,
    (1024, 32, 32, 4096): 336,
    (512, 8, 128, 4096): 168,
    (512, 12, 128, 4096): 193,
    (512, 16, 128, 4096): 218,
    (512, 32, 128, 4096): 319,
    (512, 8, 32, 4096): 130,
    (512, 8, 64, 4096): 142,
    (512, 8, 256, 4096): 218,
    (768, 8, 128, 3072): 214,
    (768, 12, 128, 3072): 252,
    (768, 16, 128, 3072): 290,
    (768, 20, 128, 3072): 327,
}
MADE_UP = ("listops",)  # recipes whose rows are no real text
PERMUTED = "0.99 on one key each"


@dataclass(frozen=True)
class Settings:
    """What one size of the study runs. `sizes` are (n, d) of Theorem 1; the curves are at the length `length`."""

    seed: int
    draws: int
    sizes: tuple[tuple[int, int], ...]
    length: int
    limits: tuple[int, ...]
    targets: int
    sharpness: tuple[float, ...]
    rounds: int
    joint: tuple[tuple[int, int, int], ...]  # width, heads, head size


QUICK = Settings(
    seed=1,
    draws=10,
    sizes=((8, 8), (8, 16), (32, 32), (32, 48)),
    length=8,
    limits=(1, 2, 4, 6, 7),
    targets=4,
    sharpness=(1.0, 4.0),
    rounds=2,
    joint=((8, 2, 8), (8, 4, 4)),
)
DEFAULT = Settings(
    seed=1,
    draws=100,
    sizes=((8, 8), (8, 16), (32, 32), (32, 48), (128, 128), (128, 192)),
    length=32,
    limits=(1, 2, 4, 8, 12, 16, 24, 30, 31),
    targets=10,
    sharpness=(1.0, 4.0),
    rounds=6,
    joint=((8, 2, 8), (8, 4, 4), (12, 4, 4), (12, 6, 4), (16, 4, 8), (16, 8, 4)),
)


def theorem_statement(settings: Settings, source: Generator) -> Statement:
    """Theorem 1, d ≥ n, by its construction."""
    numbers = {}
    for length, width in settings.sizes:
        x = tokens(settings.draws, width, length, SPREAD, source)
        target = random_targets(settings.draws, length, 3.0, source)
        error = (attention_of(x, *construct(x, target)) - target).abs().max().item()
        numbers[f"largest error, n = {length}, d = {width}"] = error
    return Statement(
        paper=PAPER,
        place="theorem 1, d ≥ n",
        whose="the paper",
        statement="A head as large as the sequence is long can have every positive attention matrix, for every X of "
        "full column rank.",
        rule=f"the construction of the proof is off by less than {EXACT:g} in every entry of every draw",
        verdict=verdict(max(numbers.values()) < EXACT),
        finding=f"The largest error is {max(numbers.values()):.1e} over {settings.draws} draws of each of "
        f"{len(numbers)} sizes, float64, X with a condition number of {SPREAD:g}: rounding grows with it.",
        numbers=numbers,
    )


Limited = dict[int, Tensor]  # head size or width → a value of each draw (B,)


@dataclass(frozen=True)
class Fits:
    """What is lost below the length, by width and by head size, for each kind of target."""

    unreachable: dict[str, Limited]  # `out_of_reach` of a width d < n
    by_width: dict[str, Limited]  # `off` of the best fit
    by_head: dict[str, Limited]


def targets_of(settings: Settings, source: Generator) -> dict[str, Tensor]:
    """Attention matrices to be fitted, by their kind."""
    kinds = {
        f"softmax of N(0, {sharpness:g}²)": random_targets(settings.targets, settings.length, sharpness, source)
        for sharpness in settings.sharpness
    }
    kinds[PERMUTED] = permuted_targets(settings.targets, settings.length, 0.99, source)
    return kinds


def all_fits(settings: Settings, source: Generator, progress: Progress) -> Fits:
    """Both curves, for every kind of target and every size below the length."""
    fits = Fits({}, {}, {})
    for kind, target in targets_of(settings, source).items():
        for curves in (fits.unreachable, fits.by_width, fits.by_head):
            curves[kind] = {}
        for size in settings.limits:
            progress(f"{kind}: size {size} of {settings.length}")
            x = torch.randn(settings.targets, size, settings.length, generator=source)
            fits.unreachable[kind][size] = out_of_reach(x, target)
            fits.by_width[kind][size] = off(fit_width(x, target, settings.rounds), target)
            fits.by_head[kind][size] = off(fit_head(target, size, settings.rounds, source), target)
    return fits


def limit_statement(settings: Settings, fits: Fits) -> Statement:
    """Theorem 1, d < n."""
    least = {}
    for kind, limited in fits.unreachable.items():
        for size, shares in limited.items():
            least[f"least share out of reach, d = {size}, {kind}"] = rounded(shares.min().item())
    least_of = {
        kind: min(shares.min().item() for shares in limited.values()) for kind, limited in fits.unreachable.items()
    }
    hardest = max(least_of, key=least_of.get)
    middle = settings.limits[len(settings.limits) // 2]
    words = ", ".join(f"{fits.by_width[kind][middle].mean().item():.2f} ({kind})" for kind in fits.by_width)
    return Statement(
        paper=PAPER,
        place="theorem 1, d < n",
        whose="the paper",
        statement="Below the length, d < n, there are X and P that no head can have.",
        rule=f"for every d tried there is a P whose logarithm is further than {OUT:g} of its size from all scores "
        "(exact)",
        verdict=verdict(least_of[hardest] > OUT),
        finding=f"At least {least_of[hardest]:.2g} of ln P is out of reach for each of the {len(settings.limits)} d "
        f"tried, up to {max(settings.limits)}, of {hardest}. Attention that the best fit with d = {middle} puts "
        f"elsewhere: {words}.",
        numbers=least,
    )


def lost_below(settings: Settings, limited: Limited) -> list[float]:
    """The mean attention that fits put elsewhere, of head sizes up to half the length."""
    return [lost.mean().item() for size, lost in limited.items() if size <= settings.length // 2]


def bottleneck_statements(settings: Settings, fits: Fits) -> list[Statement]:
    """A head below the length in a wide model: for some attention, and for every kind of it."""
    numbers = {}
    for kind, limited in fits.by_head.items():
        for size, lost in limited.items():
            numbers[f"mean attention elsewhere, head size {size}, {kind}"] = rounded(lost.mean().item())
    curves = [
        f"{kind}: {', '.join(f'{lost.mean().item():.1g} at {size}' for size, lost in limited.items())}"
        for kind, limited in fits.by_head.items()
    ]
    least = {kind: min(lost_below(settings, limited)) for kind, limited in fits.by_head.items()}
    near = [kind for kind, lost in least.items() if lost <= MISSED]
    common = {"paper": PAPER, "place": "rank bottleneck", "numbers": numbers}
    some = Statement(
        **common,
        whose="the paper",
        statement="A head smaller than the sequence is long is limited by its rank, however wide the model.",
        rule=f"for some kind of matrix the best fit found misses more than {MISSED:.0%} of the attention with every "
        f"head size up to half the length, {settings.length // 2}",
        verdict=verdict(max(least.values()) > MISSED),
        finding="Attention that the best fit found puts elsewhere, by head size; " + "; ".join(curves) + ".",
    )
    every = Statement(
        **common,
        whose="asked here",
        statement="That holds for every kind of attention, the sharp kinds, too.",
        rule="the same for every kind of matrix",
        verdict=verdict(not near),
        finding=f"Missed is less with some head size up to half the length in {len(near)} of {len(least)} kinds: "
        + ", ".join(f"{kind} {lost:.1g}" for kind, lost in least.items())
        + " at the least.",
    )
    return [some, every]


def one_less_statement(settings: Settings, source: Generator) -> Statement:
    """n − 1 is enough in a wide model."""
    numbers = {}
    for length in sorted({length for length, _ in settings.sizes}):
        target = random_targets(settings.draws, length, 3.0, source)
        left, right = one_less(target)
        error = (softmax_columns(left @ right.transpose(-1, -2)) - target).abs().max().item()
        numbers[f"largest error, n = {length}, head size {length - 1}"] = error
    return Statement(
        paper=PAPER,
        place="theorem 1",
        whose="derived here",
        statement="Where the width reaches the length, a head of n − 1 has every positive attention matrix, too: a "
        "softmax does not see what is added to a column, which takes one rank.",
        rule=f"error below {EXACT:g} in every entry of every draw",
        verdict=verdict(max(numbers.values()) < EXACT),
        finding=f"The largest error is {max(numbers.values()):.1e} over {settings.draws} draws of each length.",
        numbers=numbers,
    )


def expressive_statement(settings: Settings, source: Generator) -> Statement:
    """Theorem 2, by a rank that the function decides."""
    numbers = {}
    more = []
    for width, heads, size in settings.joint:
        fixed = joint_rank(*random_heads(heads, width, size, source))
        usual = joint_rank(*random_heads(heads, width, width // heads, source))
        numbers[f"rank, width {width}, {heads} heads of {size}"] = fixed
        numbers[f"rank, width {width}, {heads} heads of {width // heads}"] = usual
        more.append(fixed > usual and usual <= width * width // heads)
    return Statement(
        paper=PAPER,
        place="theorem 2",
        whose="the paper",
        statement="With more than d/d_p heads of a fixed size d_p a layer is strictly more expressive than as many "
        "heads of d/h.",
        rule="a rank that the layer's function decides, and that heads of d/h cannot raise above d²/h (proved "
        "here), is higher with the fixed size in every case",
        verdict=verdict(all(more)),
        finding="; ".join(f"{name} {value}" for name, value in numbers.items()) + ". The reverse needs no test: a "
        "smaller head is a larger one with zeros.",
        numbers=numbers,
    )


def bert_parameters(width: int, heads: int, size: int, ffn: int) -> int:
    """Of this package's LeanBERT with a head for masked tokens, 24 layers, the vocabulary of uncased BERT."""
    config = LeanBERTConfig(
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        head_dim=size,
        intermediate_size=ffn,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
    )
    return config.count_parameters("ForMaskedLM").total


def table_statement() -> Statement:
    """The parameters of the paper's tables."""
    numbers = {}
    shares = []
    for (width, heads, size, ffn), printed in TABLES.items():
        counted = bert_parameters(width, heads, size, ffn)
        numbers[f"d = {width}, {heads} heads of {size}: counted"] = counted
        numbers[f"d = {width}, {heads} heads of {size}: printed, millions"] = printed
        shares.append(abs(counted / (printed * 1e6) - 1))
    return Statement(
        paper=PAPER,
        place="tables of BERT",
        whose="the paper",
        statement="FixedMultiHead has 4·d·h·d_p parameters a layer, and BERT with it the printed parameters.",
        rule=f"this package's count within {NEAR:.0%} of every printed one",
        verdict=verdict(max(shares) <= NEAR),
        finding=f"Off by at most {max(shares):.2%} over {len(shares)} rows: the paper's pooler and head are not "
        "counted. Feed-forward widths of d = 1024 (4096) and d = 768 (3072) are not known here; these fit.",
        numbers=numbers,
    )


def is_same_but_for_heads(one: LeanConfig, other: LeanConfig) -> bool:
    """Whether two shapes have all but heads and head size in common, and so the same parameters."""
    names = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    return one.count_parameters().total == other.count_parameters().total and one.head_dim != other.head_dim


def more_heads(pair: GridPair) -> GridPair:
    """The pair as its shape with more heads against that with fewer."""
    if pair.shape.num_attention_heads < pair.other.num_attention_heads:
        return pair.reversed
    return pair


def is_text(pair: GridPair) -> bool:
    """Whether its grid reads real text."""
    return modality_of(pair.shape) is not IMAGES and not pair.grid.startswith(MADE_UP)


def words_of(pair: GridPair) -> str:
    """Grid, heads and sizes, metric and gain."""
    sizes = " → ".join(f"{shape.num_attention_heads}×{shape.head_dim}" for shape in (pair.other, pair.shape))
    return f"{pair.grid} {sizes} {pair.metric} {pair.words}"


def grid_statement(grids: Path) -> Statement:
    """Heads against head size at equal parameters, read from the finished grids."""
    common = {
        "paper": PAPER,
        "place": "table of d = 1024, on other data",
        "whose": "asked here",
        "statement": "At equal parameters more and smaller heads are worse, on real text.",
    }
    pairs = [more_heads(pair) for pair in grid_pairs(grids, is_same_but_for_heads) if is_text(pair)]
    if not pairs:
        return Statement(
            **common,
            rule=None,
            verdict="not tested",
            finding=f"No grid of {grids} compares heads with head size.",
            numbers={},
            missing=rows_in(grids),
        )
    outcomes = [pair.reversed.outcome for pair in pairs]  # of fewer heads: that they are better
    numbers = {}
    for pair in pairs:
        numbers |= pair.numbers(f"gain of more heads, {pair.metric}")
    return Statement(
        **common,
        rule="worse, with a 95 % interval over the seeds that excludes 0, in more than half of the grids of real "
        "text; disagrees where better in more than half",
        verdict=by_majority(outcomes),
        finding=f"Worse in {outcomes.count('agrees')}, better in {outcomes.count('disagrees')} of {len(pairs)}: "
        + "; ".join(map(words_of, pairs))
        + " (plus: more heads are better).",
        numbers=numbers,
    )


SCORES = "the training rows of SQuAD and MNLI"
PRETRAINING = (
    "and the pretraining of 24 layers: at 6 FLOPs a parameter and token and 25 GFLOP/s a core about 11,000 "
    "core-hours for a billion tokens of the smallest model, 130M"
)


def not_tested() -> list[Statement]:
    """What needs data or time that are not here, each with the paper's numbers."""
    rows = (
        (
            "table of d = 1024",
            "At d = 1024 and heads of d/h, more heads than 8 are worse: with 8, 16, 32 heads SQuAD F1 90.89, 90.61, "
            "90.45, EM 84.1, 83.75, 83.48 and MNLI 85, 84.5, 84.4.",
            f"{SCORES}, {PRETRAINING}",
        ),
        (
            "table of d = 512, d_p = 128",
            "At d = 512 and heads of 128, more heads are better: with 8, 12, 16, 32 heads SQuAD F1 89.6, 90.25, "
            "90.43, 90.95, EM 82.73, 83.18, 83.59, 84.4 and MNLI 83.5, 84.2, 83.9, 84.9.",
            f"{SCORES}, {PRETRAINING}, or a grid with more heads of one size",
        ),
        (
            "table of d = 512, 8 heads",
            "At d = 512 and 8 heads, larger heads are better: with heads of 32, 64, 128, 256 SQuAD F1 88.53, 89.51, "
            "89.6, 90.33, EM 81.19, 82.41, 82.73, 83.36 and MNLI 82.5, 83.4, 83.5, 83.9.",
            f"{SCORES}, {PRETRAINING}, or a grid with larger heads at one number of them",
        ),
        (
            "table of d = 768, d_p = 128",
            "At d = 768 and heads of 128, 8, 12, 16, 20 heads reach SQuAD F1 90.35, 90.48, 90.92, 90.89, EM 83.37, "
            "83.67, 84.16, 84.29 and MNLI 84.4, 84.4, 84.7, 85.1.",
            f"{SCORES}, {PRETRAINING}",
        ),
        (
            "LM1B",
            "At d = 256 heads of d/h lose beyond 16 heads, and heads of 32 keep gaining up to 70 (6 layers, length "
            "256).",
            "the text of LM1B, and about 700 core-hours for one pass of 0.8 billion words and one number of heads, "
            "at 25 GFLOP/s a core",
        ),
    )
    return [untested(PAPER, "the paper", *row) for row in rows]


def panels_of(settings: Settings, fits: Fits) -> list[FigurePanel]:
    """What is lost below the length: by width, and by head size in a wide model."""
    titles = {
        f"width = head size = d, n = {settings.length}\n(best fit, convex)": fits.by_width,
        f"head size d in a width of at least n = {settings.length}\n(best fit found)": fits.by_head,
    }
    return [
        FigurePanel(
            title=title,
            x="d",
            y="attention put elsewhere",
            lines=[line(kind, list(limited), list(limited.values())) for kind, limited in curves.items()],
        )
        for title, curves in titles.items()
    ]


def run(settings: Settings, progress: Progress) -> Findings:
    """The whole study; grids are those of the working folder. Raises GridError where one of them does not fit."""
    with double_precision():
        source = Generator().manual_seed(settings.seed)
        progress("theorems 1 and 2 by construction")
        exact = [
            theorem_statement(settings, source),
            one_less_statement(settings, source),
            expressive_statement(settings, source),
        ]
        fits = all_fits(settings, source, progress)
    progress("parameters, and the rows of the grids")
    statements = [
        exact[0],
        limit_statement(settings, fits),
        exact[1],
        *bottleneck_statements(settings, fits),
        exact[2],
        table_statement(),
        grid_statement(GRIDS_FOLDER),
        *not_tested(),
    ]
    return Findings(statements, panels_of(settings, fits), [settings.seed])


ABOUT = (
    "Bhojanapalli et al. ([arXiv 2002.07028](https://arxiv.org/abs/2002.07028)): a head of size d ≥ n can "
    "have every positive attention matrix over n tokens; below n some cannot be had. So fix the head size at "
    "the sequence length, whatever the number of heads, which is strictly more expressive once h > d/d_p. "
    "Their BERTs gain with more heads of one size and lose with more heads of d/h. Added here: a head of n − "
    "1 is enough, and sharp attention, most of it on one key each, is had by heads of a fraction of the "
    "length. A small head is far off only if attention is spread out."
)
STUDY = Study(
    name="low-rank",
    title="When a head is too small for an attention matrix: the theorems and tables of Low-Rank",
    about=ABOUT,
    quick=QUICK,
    default=DEFAULT,
    run=run,
)
