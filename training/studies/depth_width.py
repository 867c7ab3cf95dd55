"""The study depth-width: what Depth-Width (Levine et al. 2020, arXiv 2006.12467) states of layers against width."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn, tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning import advice
from modeling_leaner.shapes import load_shape, shape_names

from ..data.builtin import python_docs
from .study import (
    BYTES,
    FACTOR,
    GRIDS_FOLDER,
    FigurePanel,
    Findings,
    GridPair,
    Line,
    Paired,
    Progress,
    Statement,
    Study,
    beyond,
    bigram_nats,
    by_interval,
    by_majority,
    grid_pairs,
    line,
    paired,
    rounded,
    rows_in,
    together,
    verdict,
)


# How strongly attention without its softmax can join two parts of its input: the separation rank, at toy sizes.  The
# separation rank of f(a, b) is the least number of products g(a)·h(b) that add up to f. For random points it is the
# rank of the matrix f(a_i, b_j). Here a and b are two tokens of width d, and f is one number of the first token
# after L layers x_i ← Σ_j ⟨Q x_i, K x_j⟩ V x_j, with one head as wide as the model: a polynomial of degree 3^L,
# which is where log3 comes from. All is computed in whole numbers modulo a prime, so that a rank is exact: it is
# never above that over the rationals, and below it with a chance of at most about rank · 3^L / prime, 3e-5 here
# (Schwartz–Zippel).


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


# Small language models of many depths and widths, trained on prose that every Python has.


HEAD_SIZE = 8
BETAS = (0.9, 0.95)
DECAY = 0.1
CLIP = 1.0
WARMUP = 10  # a part of the steps
MOST_RATES = 6
TUNING_ROWS = 8  # one of so many batches of training text is kept for the choice of rates


@dataclass(frozen=True)
class Training:
    """How every model is trained. Lengths in bytes; `holdout`: every how many-th module is tested on."""

    text_bytes: int
    holdout: int
    length: int
    batch: int
    steps: int
    tuning_steps: int
    rate: float  # the first that is tried


@dataclass(frozen=True)
class Cell:
    """A shape. `shared`: one layer stands in all places; `input_rank`: to what rank the token embedding is cut."""

    layers: int
    width: int
    mlp: int
    shared: bool = False
    input_rank: int | None = None

    @property
    def name(self) -> str:
        words = f"{self.layers}×{self.width}"
        if self.shared:
            words += ", one layer shared"
        if self.input_rank is not None:
            words += f", input of rank {self.input_rank}"
        return words

    @property
    def aspect(self) -> float:
        """Width over layers."""
        return self.width / self.layers

    @property
    def plain(self) -> "Cell":
        """The same shape without what is done to it."""
        return replace(self, shared=False, input_rank=None)


@dataclass(frozen=True)
class Text:
    """Rows (R, length + 1) of bytes: each but the first of a row is predicted from those before it in the row."""

    train: Tensor
    tuning: Tensor
    test: Tensor


def consecutive_rows(texts: list[str], length: int) -> Tensor:
    """Texts end to end, a zero byte after each, cut into rows that share a byte with the next."""
    data = ("\0".join(texts) + "\0").encode()
    ids = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    return ids.unfold(0, length + 1, length)


def read_text(training: Training) -> Text:
    """The text of the Python that runs. Raises ValueError where it is too little."""
    data = python_docs(training.text_bytes, training.holdout)
    too_little = ValueError(f"text_bytes: {training.text_bytes} of python-docs leave no row to test or to tune on")
    if not len(data["test"]):
        raise too_little
    rows = consecutive_rows(data["train"]["text"], training.length)
    is_tuning = torch.arange(len(rows)) // training.batch % TUNING_ROWS == TUNING_ROWS - 1
    if not is_tuning.any():
        raise too_little
    return Text(rows[~is_tuning], rows[is_tuning], consecutive_rows(data["test"]["text"], training.length))


def bigram_loss(text: Text, rows: int) -> float:
    """Nats per byte of a guess by the byte before, counted in so many rows of the training text."""
    left, right = text.train[:rows, :-1].flatten(), text.train[:rows, 1:].flatten()
    nats = bigram_nats(left, right)
    return nats[text.test[:, :-1], text.test[:, 1:]].mean().item()


def config_of(cell: Cell, length: int) -> LeanGPTConfig:
    """Weights start from N(0, 1/width), heads have 8 numbers, whatever the shape."""
    heads = cell.width // HEAD_SIZE
    return LeanGPTConfig(
        hidden_size=cell.width,
        num_hidden_layers=cell.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_SIZE,
        intermediate_size=cell.mlp,
        vocab_size=BYTES,
        max_position_embeddings=length,
        initializer_range=cell.width**-0.5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


def body_parameters(cell: Cell) -> int:
    """N, without embeddings, of layers that are not shared."""
    return config_of(cell, 1).count_parameters().without_embeddings


def cell_at(layers: int, width: int, parameters: int) -> Cell:
    """The shape whose MLP, about four widths, brings it nearest to so many parameters without embeddings."""
    usual = Cell(layers, width, 4 * width)
    per_unit = layers * (2 * width + 1)
    return replace(usual, mlp=usual.mlp + round((parameters - body_parameters(usual)) / per_unit))


def cut_input(model: PreTrainedModel, rank: int) -> None:
    """Lets only `rank` random directions of the token embedding into the model, as large as all of them were."""
    width = model.config.hidden_size
    source = torch.Generator().manual_seed(rank)
    directions, _ = torch.linalg.qr(torch.randn(width, rank, generator=source, dtype=torch.float32))
    kept = math.sqrt(width / rank) * directions @ directions.T
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output @ kept)


def model_of(cell: Cell, length: int, seed: int) -> PreTrainedModel:
    """A new model in float32; a seed gives the same one whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config_of(cell, length), dtype=torch.float32, attn_implementation="sdpa"
        )
    if cell.shared:
        model.model.layers = nn.ModuleList([model.model.layers[0]] * cell.layers)
    if cell.input_rank is not None:
        cut_input(model, cell.input_rank)
    return model


def loss_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Nats per byte of rows (B, length + 1), a mean."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def rate_at(step: int, steps: int) -> float:
    """Share of the learning rate: a warm-up over a tenth of the steps, then half a cosine to zero."""
    warmup = max(steps // WARMUP, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(
    cell: Cell, rate: float, seed: int, steps: int, batch: int, rows: Tensor
) -> tuple[PreTrainedModel, list[float]]:
    """A model trained by AdamW on rows in an order of the seed, the same for every cell; anew when all were read.

    With it the loss of each step, in nats per byte.
    """
    model = model_of(cell, rows.shape[1] - 1, seed)
    model.train()
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    source = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    losses = []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(rows), generator=source)])
        loss = loss_of(model, rows[order[:batch]])
        loss.backward()
        losses.append(loss.item())
        order = order[batch:]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model, losses


def held_out_loss(model: PreTrainedModel, rows: Tensor) -> float:
    """Nats per byte over all rows."""
    model.eval()
    with torch.inference_mode():
        return sum(loss_of(model, part).item() * len(part) for part in rows.split(256)) / len(rows)


def tune(loss_at: Callable[[float], float], first: float) -> dict[float, float]:
    """Losses by rate: the first, its half and its double, and on while the best lies at an edge, six at most.

    A loss that is not finite counts as the worst.
    """
    losses = {}

    def attempt(rate: float) -> None:
        loss = loss_at(rate)
        if not math.isfinite(loss):
            loss = math.inf
        losses[rate] = loss

    for rate in (first / FACTOR, first, first * FACTOR):
        attempt(rate)
    following = beyond(best_rate(losses), losses)
    while following is not None and len(losses) < MOST_RATES:
        attempt(following)
        following = beyond(best_rate(losses), losses)
    return losses


def best_rate(losses: dict[float, float]) -> float:
    """The rate of the least loss."""
    return min(losses, key=losses.__getitem__)


# What trained models say of depth and width, statement by statement: of the study depth-width.


PAPER = "Depth-Width, 2006.12467"
COMPANION = "Wies 2021, 2105.03928"
KAPLAN = "Kaplan 2020, 2001.08361"
ALIKE = 0.01  # of a loss
FEW_PER_CENT = 0.05
KAPLAN_RATIO = 40


@dataclass(frozen=True)
class Trained:
    """Held-out losses, one of each seed, and the rates that were tried, by cell."""

    seeds: tuple[int, ...]
    bigram: float  # of a guess by the byte before, counted in as much text
    losses: dict[Cell, list[float]] = field(default_factory=dict)
    tried: dict[Cell, dict[float, float]] = field(default_factory=dict)
    curves: dict[Cell, list[float]] = field(default_factory=dict)
    """The loss of each training step, mean over the seeds."""

    @property
    def plain(self) -> list[Cell]:
        """The shapes of equal size, from the shallowest."""
        return sorted(self.tried, key=lambda cell: cell.layers)

    @property
    def floor_cell(self) -> Cell:
        """The shallowest of them with log3(d) layers or more."""
        return next(cell for cell in self.plain if cell.layers >= advice.depth_floor(cell.width))

    @property
    def below(self) -> list[Cell]:
        """Those before the floor."""
        return self.plain[: self.plain.index(self.floor_cell)]

    @property
    def above(self) -> list[Cell]:
        """Those from the floor on."""
        return self.plain[self.plain.index(self.floor_cell) :]

    def cut(self, cell: Cell) -> Cell:
        """The same shape with its input cut."""
        return next(one for one in self.losses if one.input_rank is not None and one.plain == cell)

    def mean(self, cell: Cell) -> float:
        return fmean(self.losses[cell])

    def differences(self, cells: Iterable[Cell], other: Cell) -> dict[Cell, Paired]:
        """Of each one's loss and the other's, seed by seed: above 0 where the other is better."""
        return {cell: paired(self.losses[cell], self.losses[other]) for cell in cells}

    def words(self, cells: Iterable[Cell]) -> str:
        """Mean losses with their range."""
        return ", ".join(
            f"{cell.name} {self.mean(cell):.3f} ({min(self.losses[cell]):.3f}-{max(self.losses[cell]):.3f})"
            for cell in cells
        )

    def numbers(self, cells: Iterable[Cell]) -> dict[str, float]:
        """Of each seed."""
        return {
            f"{cell.name}: loss, seed {seed}": rounded(loss)
            for cell in cells
            for seed, loss in zip(self.seeds, self.losses[cell])
        }


def interval_words(statistics: Paired) -> str:
    """A difference with its 95 % interval over the seeds."""
    words = f"{statistics.difference:+.3f}"
    if statistics.interval is not None:
        words += " ({:+.3f} to {:+.3f})".format(*statistics.interval)
    return words


def report(trained: Trained, cell: Cell, rate: float, training: Training, text: Text) -> None:
    """Adds the held-out loss of each seed, and the curve. Raises ValueError where a loss is not finite."""
    losses = []
    curves = []
    for seed in trained.seeds:
        model, curve = train(cell, rate, seed, training.steps, training.batch, text.train)
        loss = held_out_loss(model, text.test)
        if not math.isfinite(loss):
            raise ValueError(f"{cell.name}: the loss of seed {seed} at rate {rate:g} is not finite")
        losses.append(loss)
        curves.append(curve)
    trained.losses[cell] = losses
    trained.curves[cell] = [fmean(step) for step in zip(*curves)]


def tuned(cell: Cell, training: Training, text: Text) -> dict[float, float]:
    """The losses of the rates that were tried, on rows that are neither trained on nor reported."""

    def loss_at(rate: float) -> float:
        model, _ = train(cell, rate, 0, training.tuning_steps, training.batch, text.train)
        return held_out_loss(model, text.tuning)

    return tune(loss_at, training.rate)


def train_all(
    shapes: Iterable[tuple[int, int]], input_rank: int, seeds: tuple[int, ...], training: Training, progress: Progress
) -> Trained:
    """Every shape at its best rate, all of the size of the first; then variants of two, at the rates of these."""
    text = read_text(training)
    trained = Trained(seeds, bigram_loss(text, training.steps * training.batch))
    first, *others = shapes
    start = Cell(*first, 4 * first[1])
    for cell in (start, *(cell_at(*shape, body_parameters(start)) for shape in others)):
        progress(f"{cell.name}: rates, then {len(seeds)} seeds")
        trained.tried[cell] = tuned(cell, training, text)
        report(trained, cell, best_rate(trained.tried[cell]), training, text)
    deep = trained.floor_cell
    for cell, like in (
        (replace(deep, shared=True), deep),
        (replace(deep, layers=1), deep),
        (replace(start, input_rank=input_rank), start),
        (replace(deep, input_rank=input_rank), deep),
    ):
        progress(f"{cell.name}: {len(seeds)} seeds")
        report(trained, cell, best_rate(trained.tried[like]), training, text)
    return trained


def floor_statements(trained: Trained) -> list[Statement]:
    """The minimal depth of the budget, and what is beyond it."""
    size = body_parameters(trained.plain[0])
    best = min(trained.above, key=trained.mean)
    differences = trained.differences(trained.below, best)
    needed = Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement=f"At N = {size:,} shapes below their floor are worse than the best from the floor on.",
        rule="the loss of each is greater by a 95 % interval over the seeds that excludes 0; disagrees where that of "
        "one is less by such an interval",
        verdict=together([by_interval(each.interval) for each in differences.values()]),
        finding=f"The budget's minimal depth is {advice.minimal_depth(size)}. Nats per byte (range over seeds): "
        f"{trained.words(trained.plain)}; a bigram counted in as much text has {trained.bigram:.3f}. Over "
        f"{best.name}: " + ", ".join(f"{cell.name} {interval_words(differences[cell])}" for cell in differences) + ".",
        numbers={"bigram": rounded(trained.bigram), **trained.numbers(trained.plain)},
    )
    off = {cell: trained.mean(cell) / trained.mean(best) - 1 for cell in trained.above}
    alike = Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement="From the floor on depth and width can be traded at equal parameters without loss.",
        rule=f"the mean losses of these shapes lie within {ALIKE:.0%} of the best of them",
        verdict=verdict(max(off.values()) <= ALIKE),
        finding=f"Over {best.name}: " + ", ".join(f"{cell.name} {share:+.1%}" for cell, share in off.items()) + ".",
        numbers=trained.numbers(trained.above),
    )
    return [needed, alike]


def law_at_this_size(trained: Trained) -> Statement:
    """The fitted law far below the sizes of its fit."""
    size = body_parameters(trained.plain[0])
    depth = advice.fitted_depth_of_size(size)
    times = advice.fitted_parameters(advice.FIT_DEPTHS[0]) / size
    first, *deeper = trained.plain
    best = min(trained.plain, key=trained.mean)
    differences = trained.differences(deeper, first)
    return Statement(
        paper=PAPER,
        place="fitted law, carried on below its sizes",
        whose="asked here",
        statement=f"The law also holds at N = {size:,}, {times:.0f} times below its fit, where it names {depth:.1f} "
        "layers: the shallowest is best.",
        rule="the loss of each deeper shape is greater by a 95 % interval over the seeds that excludes 0; disagrees "
        "where that of one is less by such an interval",
        verdict=together([by_interval(each.interval) for each in differences.values()]),
        finding=f"Best is {best.name}; against {first.name}, minus is better: "
        + ", ".join(f"{cell.name} {interval_words(differences[cell])}" for cell in deeper)
        + ". Says nothing of the law where it was fitted.",
        numbers={"layers by the law": rounded(depth), **trained.numbers(trained.plain)},
    )


def flatness_statement(trained: Trained) -> Statement:
    """Kaplan's flatness."""
    gaps = {}
    for pair in combinations(trained.plain, 2):
        aspects = [cell.aspect for cell in pair]
        if max(aspects) <= KAPLAN_RATIO * min(aspects):
            losses = [trained.mean(cell) for cell in pair]
            gaps[pair] = max(losses) / min(losses) - 1
    widest = max(gaps, key=gaps.get)
    return Statement(
        paper=KAPLAN,
        place="shape",
        whose="second-hand",
        statement=f"At equal size the shape hardly matters: an aspect ratio {KAPLAN_RATIO} times as large costs a few "
        "per cent of the loss.",
        rule=f"the mean losses of any two shapes of equal size lie within {FEW_PER_CENT:.0%} where their widths over "
        f"layers differ by up to {KAPLAN_RATIO} times",
        verdict=verdict(gaps[widest] <= FEW_PER_CENT),
        finding=f"Of {len(gaps)} such pairs {' and '.join(cell.name for cell in widest)} lie furthest apart, by "
        f"{gaps[widest]:.1%}: {trained.words(trained.plain)}. At {body_parameters(trained.plain[0]):,} parameters and "
        "this length of training.",
        numbers={
            **{f"{one.name} and {other.name}: apart by": rounded(gap) for (one, other), gap in gaps.items()},
            **trained.numbers(trained.plain),
        },
    )


def vocabulary_statement(trained: Trained) -> Statement:
    """The companion's bottleneck, by a token embedding whose rank is cut."""
    wide = trained.plain[0]
    deep = trained.floor_cell
    cut_wide = trained.cut(wide)
    cut_deep = trained.cut(deep)
    gains = {}
    for low, high in ((wide, deep), (cut_wide, cut_deep)):
        gains[low] = [one - other for one, other in zip(trained.losses[low], trained.losses[high], strict=True)]
    difference = paired(gains[cut_wide], gains[wide])
    cells = (wide, deep, cut_wide, cut_deep)
    return Statement(
        paper=COMPANION,
        place="abstract",
        whose="the paper",
        statement="Where the width exceeds the rank of the input embedding, deepen rather than widen.",
        rule=f"with the token embedding cut to rank {cut_wide.input_rank} the lead of {deep.name} over {wide.name} is "
        "greater than with all of it, by a 95 % interval over the seeds that excludes 0; disagrees where it is "
        "less by such an interval",
        verdict=by_interval(difference.interval),
        finding=f"The lead grows by {interval_words(difference)}: {trained.words(cells)}. Parameters and output are "
        "the same, and the rates are those of the shapes with all of it, not tuned again; the full embedding has a "
        "rank of at most 256, beyond every width here.",
        numbers=trained.numbers(cells),
    )


def sharing_statement(trained: Trained) -> Statement:
    """One layer in all places, as ALBERT has it."""
    deep = trained.floor_cell
    shared = replace(deep, shared=True)
    single = replace(deep, layers=1)
    gained = paired(trained.losses[single], trained.losses[shared])
    lost = paired(trained.losses[shared], trained.losses[deep])
    return Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement=f"Depth helps without further parameters: one layer in {deep.layers} places is better than in one.",
        rule="the loss is lower by a 95 % interval over the seeds that excludes 0; disagrees where it is greater by "
        "such an interval",
        verdict=by_interval(gained.interval),
        finding=f"Gained by {deep.layers} places for one layer: {interval_words(gained)}; lost to layers of their "
        f"own: {interval_words(lost)}. {trained.words((single, shared, deep))}. One layer is trained at the rate of "
        f"{deep.name}, not tuned, and in {deep.layers} places it gets {deep.layers} gradients.",
        numbers=trained.numbers((single, shared, deep)),
    )


NEAR = 0.02  # of a parameter count: 12·L·d² leaves out biases and norms
EXACT = 0.002  # of a printed number: these have three digits or more
PARTS = 20  # of a training, each a point of its curve
MINIMAL = {4: 3.15e5, 5: 3.54e6, 6: 3.83e7, 7: 4.02e8, 8: 4.13e9, 9: 4.18e10, 10: 4.18e11}  # layers → parameters
LAW = {  # what the fitted law gives, as quoted by others
    "d*(95)": (30_077, partial(advice.fitted_width, 95)),
    "L*(N = 1.739e11)": (80.46, partial(advice.fitted_depth_of_size, 1.739e11)),
    "L at d = 768": (28.9, partial(advice.fitted_depth, 768)),
    "N(6)": (3.34e6, partial(advice.fitted_parameters, 6)),
    "N(48)": (2.83e9, partial(advice.fitted_parameters, 48)),
}


@dataclass(frozen=True)
class Settings:
    """What one size of the study runs. `shapes` and `ranks` are (layers, width); the first shape sets the size."""

    seeds: tuple[int, ...]
    training: Training
    shapes: tuple[tuple[int, int], ...]
    input_rank: int
    ranks: tuple[tuple[int, int], ...]


TRAINING = Training(text_bytes=800_000, holdout=10, length=64, batch=16, steps=400, tuning_steps=100, rate=1.6e-2)
RANKS = (
    *((1, width) for width in (1, 2, 3, 4, 6, 8, 10)),
    *((2, width) for width in (1, 2, 3, 4, 6, 8, 10)),
    *((3, width) for width in (1, 2, 3)),
    *((4, width) for width in (1, 2)),
)
DEFAULT = Settings(
    seeds=(11, 12, 13),
    training=TRAINING,
    shapes=((1, 96), (2, 64), (4, 48), (16, 24)),
    input_rank=8,
    ranks=RANKS,
)
QUICK = replace(
    DEFAULT,
    seeds=(11, 12),
    training=replace(TRAINING, text_bytes=300_000, steps=40, tuning_steps=15),
    shapes=((1, 96), (4, 48), (16, 24)),
    ranks=tuple(shape for shape in RANKS if closed_form(*shape) < 300),
)


# Arithmetic of what is quoted.


def size_statement() -> Statement:
    """12·L·d² against this package's models."""
    numbers = {}
    off = []
    for name in shape_names():
        config = load_shape(name)
        width = config.hidden_size
        inner = sum(config.heads_per_layer) * config.head_dim
        is_usual = inner == width * config.num_hidden_layers and config.intermediate_size == 4 * width
        if not is_usual or config.model_type != LeanGPTConfig.model_type:
            continue
        counted = config.count_parameters().without_embeddings
        formula = 12 * config.num_hidden_layers * width**2
        numbers[f"{name}: counted"] = counted
        numbers[f"{name}: 12·L·d²"] = formula
        off.append(abs(formula / counted - 1))
    return Statement(
        paper=PAPER,
        place="size",
        whose="the paper",
        statement="A model of L layers of width d has N = 12·L·d² parameters without embeddings.",
        rule=f"within {NEAR:.0%} of this package's count of every named shape of LeanGPT with an MLP of 4·d and "
        "heads that add up to d",
        verdict=verdict(max(off) <= NEAR),
        finding=f"Off by {min(off):.2%} to {max(off):.2%} over {len(off)} shapes: biases and norms are left out, a "
        "share of about 1.1/d.",
        numbers=numbers,
    )


def budget_statement() -> Statement:
    """The minimal depth of a budget."""
    found = {layers: advice.floor_parameters(layers) for layers in MINIMAL}
    off = max(abs(found[layers] / printed - 1) for layers, printed in MINIMAL.items())
    steps = all(
        advice.minimal_depth(0.999 * size) == layers and advice.minimal_depth(1.001 * size) == layers + 1
        for layers, size in found.items()
    )
    return Statement(
        paper=PAPER,
        place="floor",
        whose="derived here",
        statement="The minimal depth of N parameters is the least L with N ≤ 12·L·9^L: 4 layers up to 3.15e5, 5 "
        "to 3.54e6, 6 to 3.83e7, 7 to 4.02e8, 8 to 4.13e9, 9 to 4.18e10, 10 to 4.18e11.",
        rule=f"each within {EXACT:.1%}, and one layer more just beyond it",
        verdict=verdict(off <= EXACT and steps),
        finding=f"Off by at most {off:.2%}, the rounding of three digits.",
        numbers={f"parameters at {layers} layers": rounded(size) for layers, size in found.items()},
    )


def law_values() -> dict[str, float]:
    """What the fitted law gives for each of LAW."""
    return {name: rounded(compute()) for name, (_, compute) in LAW.items()}


def law_numbers_statement() -> Statement:
    """The fitted law's numbers."""
    found = law_values()
    off = {name: abs(found[name] / printed - 1) for name, (printed, _) in LAW.items()}
    return Statement(
        paper=PAPER,
        place="fitted law",
        whose="second-hand",
        statement="The best depth at a width follows d*(L) = exp(5.039 + 0.0555·L), N(L) = 12·L·d*(L)²: d*(95) = "
        "30,077, L*(1.739e11) = 80.46, 28.9 layers at d = 768.",
        rule=f"computed from a and b, each within {EXACT:.1%}; these values are derived here, not the paper's",
        verdict=verdict(max(off.values()) <= EXACT),
        finding=", ".join(f"{name} = {value:,.5g}" for name, value in found.items())
        + f". Off by at most {max(off.values()):.2%}. That is arithmetic: whether the law holds stands below.",
        numbers=found,
    )


def law_range_statement() -> Statement:
    """The sizes at which it was fitted."""
    found = law_values()
    low, high = advice.FIT_DEPTHS
    return Statement(
        paper=PAPER,
        place="fitted law",
        whose="second-hand",
        statement=f"It was fitted for depths {low}-{high}, N of about 3.3e6 to 2.8e9; outside it is carried on.",
        rule="N(6) and N(48) of the law are these sizes to two digits",
        verdict=verdict(f"{found['N(6)']:.1e} {found['N(48)']:.1e}" == "3.3e+06 2.8e+09"),
        finding=f"N(6) = {found['N(6)']:.3g}, N(48) = {found['N(48)']:.3g}: L = 95 and N = 1.739e11 are carried on.",
        numbers={name: found[name] for name in ("N(6)", "N(48)")},
    )


def floor_and_law_statement() -> Statement:
    """The floor beside the law."""
    floor = advice.depth_floor(768)
    law = advice.fitted_depth(768)
    return Statement(
        paper=PAPER,
        place="floor and law",
        whose="derived here",
        statement="Floor and law differ greatly: at d = 768 they name 6.05 and 28.9 layers, never to be averaged.",
        rule=f"both within {EXACT:.1%}",
        verdict=verdict(max(abs(floor / 6.05 - 1), abs(law / 28.9 - 1)) <= EXACT),
        finding=f"log3(768) = {floor:.3f}; the law has {law:.2f}, {law / floor:.1f} times as many.",
        numbers={"floor": rounded(floor), "law": rounded(law)},
    )


# The separation rank, exact at toy sizes.


def all_ranks(settings: Settings, progress: Progress) -> dict[tuple[int, int], int]:
    """The separation rank of each (layers, width)."""
    ranks = {}
    for layers, width in settings.ranks:
        progress(f"separation rank of {layers} layers of width {width}")
        ranks[layers, width] = separation_rank(layers, width, np.random.default_rng([layers, width]))
    return ranks


def named(ranks: dict[tuple[int, int], int]) -> dict[str, int]:
    """Ranks as results.json has them."""
    return {f"rank of {layers} layers of width {width}": value for (layers, width), value in ranks.items()}


def below_statement(ranks: dict[tuple[int, int], int]) -> Statement:
    """Below the floor, by the greatest width that has one and two layers."""
    width = max(width for layers, width in ranks if layers == 2)
    one = ranks[1, width]
    two = ranks[2, width]
    times = math.log(two) / math.log(one)
    return Statement(
        paper=PAPER,
        place="floor",
        whose="the paper",
        statement="Below log3(d) a layer more at least doubles the logarithm of the separation rank (Depth-Width: "
        "doubly-exponentially efficient).",
        rule="of attention without softmax the logarithm of the separation rank at least doubles with a layer, below "
        "the floor (exact, modulo a prime)",
        verdict=verdict(times >= 2),
        finding=f"From 1 to 2 layers of width {width} (floor {advice.depth_floor(width):.2f}) the rank rises from "
        f"{one} to {two}, its logarithm {times:.1f} times; one layer would need a width of {two - 1}, for its rank "
        "is d + 1. The next layer below the floor, at a width of 28, has a rank beyond 1e10, which is not measured.",
        numbers=named({(1, width): one, (2, width): two}),
    )


def beyond_statement(ranks: dict[tuple[int, int], int]) -> Statement:
    """Above the floor, at the most layers of a width that has three of them or more, and at the next width."""
    layers, width = max(
        (layers, width) for layers, width in ranks if {(layers + 1, width), (layers, width + 1)} <= set(ranks)
    )
    start = math.log(ranks[layers, width])
    deeper = math.log(ranks[layers + 1, width])
    wider = math.log(ranks[layers, width + 1])
    ratio = (deeper - start) / (wider - start)
    grows = deeper / start
    cases = [(layers, width), (layers + 1, width), (layers, width + 1)]
    return Statement(
        paper=PAPER,
        place="floor",
        whose="the paper",
        statement="Above L_th = log3(d) depth and width contribute alike.",
        rule="above the floor a layer and a unit of width add to the logarithm of the separation rank within a factor "
        "of 2, and a layer multiplies it by less than 2",
        verdict=verdict(0.5 <= ratio <= 2 and grows < 2),
        finding=f"From {layers} layers of width {width} (floor {advice.depth_floor(width):.2f}) the rank "
        f"{ranks[layers, width]} rises to {ranks[layers + 1, width]} with a layer and to {ranks[layers, width + 1]} "
        f"with a unit of width; a layer adds {ratio:.2f} times as much, and multiplies the logarithm by {grows:.2f}.",
        numbers=named({case: ranks[case] for case in cases}),
    )


def turn_statement(ranks: dict[tuple[int, int], int]) -> Statement:
    """Where the two meet, by the closed form."""
    same = sum(value == closed_form(*shape) for shape, value in ranks.items())
    gaps = [math.log(2 * width + 1, 3) - advice.depth_floor(width) for _, width in ranks]
    return Statement(
        paper=PAPER,
        place="floor",
        whose="asked here",
        statement="L_th = log3(d) is where one turns into the other, within a layer.",
        rule="all ranks have a closed form that is symmetric in d and (3^L − 1)/2, and these are equal within a layer "
        "of log3(d)",
        verdict=verdict(same == len(ranks) and max(gaps) <= 1),
        finding=f"{same} of {len(ranks)} ranks are the binomial coefficient of d + (3^L − 1)/2 over d. It is "
        "symmetric in d and (3^L − 1)/2: it grows like d^((3^L − 1)/2) where d is the greater, like (3^L)^d where "
        "that is. Both are equal at log3(2d + 1) layers, from 0.63 (large d) to 1 (d = 1) above log3(d).",
        numbers={**named(ranks), "ranks as the closed form has them": same, "ranks": len(ranks)},
    )


# The finished grids.


def is_same_but_for_layers(one: LeanConfig, other: LeanConfig) -> bool:
    """Whether two shapes have all but their depth in common."""
    names = ("model_type", "hidden_size", "intermediate_size", "head_dim")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    heads = {*one.heads_per_layer} == {*other.heads_per_layer}
    return heads and one.num_hidden_layers != other.num_hidden_layers


def more_layers(pair: GridPair) -> GridPair:
    """The pair as its deeper shape against the shallower."""
    if pair.shape.num_hidden_layers < pair.other.num_hidden_layers:
        return pair.reversed
    return pair


def words_of(pair: GridPair) -> str:
    """Grid, layers, metric and gain."""
    return f"{pair.grid} {pair.other.num_hidden_layers} → {pair.shape.num_hidden_layers} {pair.metric} {pair.words}"


def grid_statement(grids: Path) -> Statement:
    """Eight layers against four of width 96, whose floor is 4.2, read from the finished grids."""
    common = {
        "paper": PAPER,
        "place": "floor, on the grids' data",
        "whose": "asked here",
        "statement": "From about the floor on more layers of the same width still help: 8 against 4 of width 96, "
        "whose floor is 4.2.",
    }
    pairs = [more_layers(pair) for pair in grid_pairs(grids, is_same_but_for_layers)]
    if not pairs:
        return Statement(
            **common,
            rule=None,
            verdict="not tested",
            finding=f"No grid of {grids} compares depths at one width.",
            numbers={},
            missing=rows_in(grids),
        )
    outcomes = [pair.outcome for pair in pairs]
    numbers = {}
    for pair in pairs:
        numbers |= pair.numbers("gain of more layers")
    return Statement(
        **common,
        rule="better, with a 95 % interval over the seeds that excludes 0, in more than half of the grids; disagrees "
        "where worse in more than half",
        verdict=by_majority(outcomes),
        finding=f"Better in {outcomes.count('agrees')}, worse in {outcomes.count('disagrees')} of {len(pairs)}: "
        f"{'; '.join(map(words_of, pairs))} (plus: more layers are "
        "better). They have twice the parameters outside embeddings.",
        numbers=numbers,
    )


def not_tested() -> list[Statement]:
    """What needs more time than a study has."""
    return [
        Statement(
            paper=PAPER,
            place="fitted law",
            whose="second-hand",
            statement="Where the width is above d*(L) deepening helps; below it a model is too deep for its width (L "
            "of 6 to 48, N of 3.34e6 to 2.83e9).",
            rule=None,
            verdict="not tested",
            finding="The smallest model of the fit has 3.34e6 parameters, 6 layers of width 215.",
            numbers={},
            missing="at 6 FLOPs a parameter and token and 20 GFLOP/s a core about 19 core-hours for one training of "
            "3.34e6 parameters on 20 tokens each; three shapes, three seeds and the choice of rates about 225",
        ),
        Statement(
            paper=KAPLAN,
            place="shape",
            whose="second-hand",
            statement="6 layers of width 4288 are within 3 % of the loss of 48 layers of width 1600.",
            rule=None,
            verdict="not tested",
            finding="By 12·L·d² they have 1.32 and 1.47 billion parameters.",
            numbers={},
            missing="about 230,000 core-hours: 1.4 billion parameters, 1 billion tokens, two shapes, at 6 FLOPs a "
            "parameter and token and 20 GFLOP/s a core",
        ),
    ]


# The whole.


def panels_of(trained: Trained, ranks: dict[tuple[int, int], int]) -> list[FigurePanel]:
    """Losses over depth and over rates, ranks, and what floor and law name."""
    depths = [cell.layers for cell in trained.plain]
    losses = [tensor(trained.losses[cell]) for cell in trained.plain]
    rates = [
        Line(label=cell.name, x=sorted(tried), y=[rounded(tried[rate]) for rate in sorted(tried)])
        for cell, tried in trained.tried.items()
    ]
    part = max(len(trained.curves[trained.plain[0]]) // PARTS, 1)
    curves = []
    for cell in trained.plain:
        steps = trained.curves[cell]
        ends = range(part, len(steps) + 1, part)
        curves.append(Line(label=cell.name, x=[*ends], y=[rounded(fmean(steps[end - part : end])) for end in ends]))
    by_depth = []
    for layers in sorted({layers for layers, _ in ranks}):
        widths = [width for depth, width in ranks if depth == layers]
        by_depth.append(Line(label=f"L = {layers}", x=widths, y=[float(ranks[layers, width]) for width in widths]))
    widths = [64, 128, 256, 512, 768, 1024, 2048, 3072]
    within = [width for width in widths if advice.fitted_depth(width) > 1]
    named_depths = [
        Line(label="floor log3(d)", x=widths, y=[rounded(advice.depth_floor(width)) for width in widths]),
        Line(label="fitted law", x=within, y=[rounded(advice.fitted_depth(width)) for width in within]),
    ]
    return [
        FigurePanel(
            title="equal parameters: held-out loss by depth",
            x="layers",
            y="nats per byte",
            x_scale="log",
            lines=[line("each at its best rate", depths, losses)],
        ),
        FigurePanel(title="training loss", x="steps", y="nats per byte", lines=curves),
        FigurePanel(title="the choice of rates", x="learning rate", y="nats per byte", x_scale="log", lines=rates),
        FigurePanel(
            title="separation rank, attention without softmax",
            x="width",
            y="rank",
            y_scale="log",
            lines=by_depth,
        ),
        FigurePanel(
            title="what floor and law name", x="width", y="layers", x_scale="log", y_scale="log", lines=named_depths
        ),
    ]


def run(settings: Settings, progress: Progress) -> Findings:
    """The whole study; grids are those of the working folder. Raises GridError where one of them does not fit."""
    progress("the rows of the grids")
    layers_of_grids = grid_statement(GRIDS_FOLDER)
    ranks = all_ranks(settings, progress)
    trained = train_all(settings.shapes, settings.input_rank, settings.seeds, settings.training, progress)
    statements = [
        size_statement(),
        below_statement(ranks),
        beyond_statement(ranks),
        turn_statement(ranks),
        budget_statement(),
        *floor_statements(trained),
        layers_of_grids,
        law_numbers_statement(),
        law_range_statement(),
        floor_and_law_statement(),
        law_at_this_size(trained),
        flatness_statement(trained),
        vocabulary_statement(trained),
        sharing_statement(trained),
        *not_tested(),
    ]
    return Findings(statements, panels_of(trained, ranks), list(settings.seeds))


ABOUT = (
    "Levine et al. ([arXiv 2006.12467](https://arxiv.org/abs/2006.12467)): below log3(d) layers depth is "
    "doubly-exponentially efficient, above it depth and width contribute alike. With N = 12·L·d² parameters "
    "this gives a least depth for a budget (derived here). A law fitted to trained models of 6 to 48 layers, "
    "known here at second hand, names the best depth, d*(L) = exp(5.039 + 0.0555·L). Wies et al. "
    "([2105.03928](https://arxiv.org/abs/2105.03928)): if the width exceeds the rank of the input embedding, "
    "deepen rather than widen. Kaplan et al. ([2001.08361](https://arxiv.org/abs/2001.08361)), second hand: "
    "at equal size the shape hardly matters. This study counts the separation rank exactly at toy sizes (a "
    "count, not a proof) and trains small models of equal parameters on bytes. All end a little below a "
    "bigram's loss, with three seeds, so losses show how soon a shape learns more than how much; the fitted "
    "law is not tested at its own sizes."
)
STUDY = Study(
    name="depth-width",
    title="When more layers pay: the floor and the fitted law of Depth-Width, at equal parameters",
    about=ABOUT,
    quick=QUICK,
    default=DEFAULT,
    run=run,
)
