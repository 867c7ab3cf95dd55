"""When more layers pay: Depth-Width.

Levine et al. ([arXiv 2006.12467](https://arxiv.org/abs/2006.12467)): below log3(d) layers depth is
doubly-exponentially efficient, above it depth and width contribute alike. With N = 12·L·d² parameters this gives a
least depth for a budget (derived here). A law fitted to trained models of 6 to 48 layers, known here at second hand,
names the best depth, d*(L) = exp(5.039 + 0.0555·L). Wies et al. ([2105.03928](https://arxiv.org/abs/2105.03928)): if
the width exceeds the rank of the input embedding, deepen rather than widen. Kaplan et al.
([2001.08361](https://arxiv.org/abs/2001.08361)), second hand: at equal size the shape hardly matters. This study
counts the separation rank exactly at toy sizes (a count, not a proof) and trains small models of equal parameters on
bytes.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.names import shape_names
from modeling_leaner.planning import advice
from modeling_leaner.shapes import load_shape

from ..data.builtin import python_docs
from .study import (
    Study,
    alike,
    best_rate,
    bigram_nats,
    by_interval,
    by_majority,
    byte_config,
    grid_pairs,
    line,
    paired,
    together,
    tune,
)


@dataclass(frozen=True)
class Training:
    """How every model is trained. Lengths in bytes; `holdout`: every how many-th module is tested on."""

    text_bytes: int = 800_000
    holdout: int = 10
    length: int = 64
    batch: int = 16
    steps: int = 400
    tuning_steps: int = 100
    rate: float = 1.6e-2  # its half and its double are tried, too


@dataclass(frozen=True)
class Settings:
    """`shapes` and `ranks` are (layers, width); the first shape sets the size of all."""

    seeds: tuple[int, ...] = (11, 12, 13)
    training: Training = field(default_factory=Training)
    shapes: tuple[tuple[int, int], ...] = ((1, 96), (2, 64), (4, 48), (16, 24))
    input_rank: int = 8
    ranks: tuple[tuple[int, int], ...] = (
        *((1, width) for width in (1, 2, 3, 4, 6, 8, 10)),
        *((2, width) for width in (1, 2, 3, 4, 6, 8, 10)),
        *((3, width) for width in (1, 2, 3)),
        *((4, width) for width in (1, 2)),
    )


def run(study: Study, settings: Settings) -> None:
    size(study)
    separation(study, settings)
    finished_grids(study)
    trained = train_all(settings)
    floor_in_training(study, trained)
    law_and_flatness(study, trained)
    variants(study, trained)
    depths = [cell.layers for cell in trained.plain]
    losses = [trained.losses[cell] for cell in trained.plain]
    study.plot("equal parameters", "layers", "nats per byte", [line("each at its best rate", depths, losses)], log="x")
    rates = [
        line(cell.name, sorted(tried), [[tried[rate]] for rate in sorted(tried)])
        for cell, tried in trained.tried.items()
    ]
    study.plot("the choice of rates", "learning rate", "nats per byte", rates, log="x")


def size(study: Study) -> None:
    """N = 12·L·d² against this package's shapes."""
    numbers, off = {}, []
    for name in shape_names():
        config = load_shape(name)
        layers, width = config.num_hidden_layers, config.hidden_size
        is_usual = config.intermediate_size == 4 * width and (
            sum(config.heads_per_layer) * config.head_dim == width * layers
        )
        if is_usual and config.model_type == LeanGPTConfig.model_type:
            counted = config.count_parameters().without_embeddings
            formula = 12 * layers * width**2
            numbers |= {f"{name}: counted": counted, f"{name}: 12·L·d²": formula}
            off.append(abs(formula / counted - 1))
    study.add(
        "size",
        "A model of L layers of width d has N = 12·L·d² parameters without embeddings.",
        "within 2% of this package's count of every named shape of LeanGPT with an MLP of 4·d and heads that add up "
        "to d",
        max(off) <= 0.02,
        numbers,
    )


# How strongly attention without its softmax can join two parts of its input: the separation rank, at toy sizes. The
# separation rank of f(a, b) is the least number of products g(a)·h(b) that add up to f. For random points it is the
# rank of the matrix f(a_i, b_j). Here a and b are two tokens of width d, and f is one number of the first token after
# L layers x_i ← Σ_j ⟨Q x_i, K x_j⟩ V x_j, with one head as wide as the model: a polynomial of degree 3^L, which is
# where log3 comes from. All is computed in whole numbers modulo a prime, so that a rank is exact: it is never above
# that over the rationals, and below it with a chance of at most about rank · 3^L / prime, 3e-5 here (Schwartz–Zippel).

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


def separation(study: Study, settings: Settings) -> None:
    """Below the floor, above it, and where the one turns into the other."""
    ranks = {shape: separation_rank(*shape, np.random.default_rng(list(shape))) for shape in settings.ranks}

    def named(*shapes: tuple[int, int]) -> dict[str, int]:
        return {f"rank of {layers} layers of width {width}": ranks[layers, width] for layers, width in shapes}

    width = max(width for layers, width in ranks if layers == 2)
    study.add(
        "floor",
        "Below log3(d) a layer more at least doubles the logarithm of the separation rank (Depth-Width: "
        "doubly-exponentially efficient).",
        "of attention without softmax the logarithm of the separation rank at least doubles with a layer, below the "
        "floor (exact, modulo a prime)",
        math.log(ranks[2, width]) / math.log(ranks[1, width]) >= 2,
        named((1, width), (2, width)),
    )
    layers, width = max(
        (layers, width) for layers, width in ranks if {(layers + 1, width), (layers, width + 1)} <= {*ranks}
    )
    cases = (layers, width), (layers + 1, width), (layers, width + 1)
    start, deeper, wider = (math.log(ranks[case]) for case in cases)
    study.add(
        "floor",
        "Above L_th = log3(d) depth and width contribute alike.",
        "above the floor a layer and a unit of width add to the logarithm of the separation rank within a factor of "
        "2, and a layer multiplies it by less than 2",
        0.5 <= (deeper - start) / (wider - start) <= 2 and deeper / start < 2,
        named(*cases),
    )
    same = sum(value == closed_form(*shape) for shape, value in ranks.items())
    study.add(
        "asked here",
        "L_th = log3(d) is where one turns into the other, within a layer.",
        "all ranks have a closed form that is symmetric in d and (3^L − 1)/2, and these are equal within a layer of "
        "log3(d)",
        same == len(ranks) and all(math.log(2 * width + 1, 3) - advice.depth_floor(width) <= 1 for _, width in ranks),
        {**named(*ranks), "ranks as the closed form has them": same, "ranks": len(ranks)},
    )
    by_depth = []
    for layers in sorted({layers for layers, _ in ranks}):
        widths = [width for depth, width in ranks if depth == layers]
        by_depth.append(line(f"L = {layers}", widths, [[ranks[layers, width]] for width in widths]))
    study.plot("separation rank, attention without softmax", "width", "rank", by_depth, log="y")


def is_same_but_for_layers(one: LeanConfig, other: LeanConfig) -> bool:
    same_heads = {*one.heads_per_layer} == {*other.heads_per_layer}
    return alike(one, other, "head_dim") and same_heads and one.num_hidden_layers != other.num_hidden_layers


def finished_grids(study: Study) -> None:
    """More layers of one width; they have twice the parameters outside embeddings."""
    pairs = list(grid_pairs(is_same_but_for_layers, more="num_hidden_layers"))
    study.add(
        "asked here, on the grids' data",
        "From about the floor on more layers of the same width still help: 8 against 4 of width 96, whose floor is "
        "4.2.",
        "better, with a 95 % interval over the seeds that excludes 0, in more than half of the grids; disagrees if "
        "worse in more than half",
        by_majority([by_interval(pair.interval) for pair in pairs]),
        {name: value for pair in pairs for name, value in pair.numbers("gain of more layers").items()},
    )


# Small language models of many depths and widths, trained on prose that every Python has.

HEAD_SIZE = 8
TUNING_ROWS = 8  # one of so many batches of training text is kept for the choice of rates


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
        words = f"{self.layers}×{self.width}" + (", one layer shared" if self.shared else "")
        return words if self.input_rank is None else f"{words}, input of rank {self.input_rank}"

    def config(self, length: int) -> LeanGPTConfig:
        """Weights start from N(0, 1/width)."""
        return byte_config(
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // HEAD_SIZE,
            head_dim=HEAD_SIZE,
            intermediate_size=self.mlp,
            max_position_embeddings=length,
            initializer_range=self.width**-0.5,
        )

    @property
    def parameters(self) -> int:
        """Without embeddings, of layers that are not shared."""
        return self.config(1).count_parameters().without_embeddings


def cell_at(layers: int, width: int, parameters: int) -> Cell:
    """The shape whose MLP, about four widths, brings it nearest to so many parameters without embeddings."""
    usual = Cell(layers, width, 4 * width)
    per_unit = layers * (2 * width + 1)
    return replace(usual, mlp=usual.mlp + round((parameters - usual.parameters) / per_unit))


def consecutive_rows(texts: list[str], length: int) -> Tensor:
    """Texts end to end, a zero byte after each, cut into rows (R, length + 1) that share a byte with the next.

    Each byte but the first of a row is predicted from those before it in the row.
    """
    data = ("\0".join(texts) + "\0").encode()
    ids = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    return ids.unfold(0, length + 1, length)


def model_of(cell: Cell, length: int, seed: int) -> PreTrainedModel:
    """A new model in float32; a seed gives the same one whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(cell.config(length), dtype=torch.float32, attn_implementation="sdpa")
    if cell.shared:
        model.model.layers = nn.ModuleList([model.model.layers[0]] * cell.layers)
    if cell.input_rank is not None:  # only so many random directions of the embedding go in, as large as all were
        source = torch.Generator().manual_seed(cell.input_rank)
        drawn = torch.randn(cell.width, cell.input_rank, generator=source, dtype=torch.float32)
        directions, _ = torch.linalg.qr(drawn)
        kept = math.sqrt(cell.width / cell.input_rank) * directions @ directions.T
        model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output @ kept)
    return model


def loss_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Nats per byte of rows (B, length + 1), a mean."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def rate_at(step: int, steps: int) -> float:
    """Share of the learning rate: a warm-up over a tenth of the steps, then half a cosine to zero."""
    warmup = max(steps // 10, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(cell: Cell, rate: float, seed: int, steps: int, batch: int, rows: Tensor) -> PreTrainedModel:
    """A model trained by AdamW on rows in an order of the seed, the same for every cell; anew when all were read."""
    model = model_of(cell, rows.shape[1] - 1, seed)
    model.train()
    groups = [
        {"params": [weight for weight in model.parameters() if weight.ndim > 1], "weight_decay": 0.1},
        {"params": [weight for weight in model.parameters() if weight.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    source = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(rows), generator=source)])
        loss_of(model, rows[order[:batch]]).backward()
        order = order[batch:]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def held_out_loss(model: PreTrainedModel, rows: Tensor) -> float:
    """Nats per byte over all rows."""
    model.eval()
    with torch.inference_mode():
        return sum(loss_of(model, part).item() * len(part) for part in rows.split(256)) / len(rows)


@dataclass
class Trained:
    """What training gives: held-out losses by cell, one of each seed; and the rates that were tried."""

    seeds: tuple[int, ...]
    bigram: float  # nats per byte of a guess by the byte before, counted in as much text
    losses: dict[Cell, list[float]] = field(default_factory=dict)
    tried: dict[Cell, dict[float, float]] = field(default_factory=dict)

    @property
    def plain(self) -> list[Cell]:
        """The shapes of equal size, from the shallowest."""
        return sorted(self.tried, key=lambda cell: cell.layers)

    @property
    def deep(self) -> Cell:
        """The shallowest of them with log3(d) layers or more."""
        return next(cell for cell in self.plain if cell.layers >= advice.depth_floor(cell.width))

    def mean(self, cell: Cell) -> float:
        return fmean(self.losses[cell])

    def is_worse(self, cell: Cell, other: Cell) -> str:
        """The verdict on the statement that its loss is greater than the other's, seed by seed."""
        return by_interval(paired(self.losses[cell], self.losses[other])[1])

    def numbers(self, cells: list[Cell]) -> dict[str, float]:
        """Of each seed."""
        return {
            f"{cell.name}: loss, seed {seed}": loss
            for cell in cells
            for seed, loss in zip(self.seeds, self.losses[cell])
        }


def train_all(settings: Settings) -> Trained:
    """Every shape at its best rate, all of the size of the first; then variants of two, at the rates of these."""
    training = settings.training
    data = python_docs(training.text_bytes, training.holdout)
    rows = consecutive_rows(data["train"]["text"], training.length)
    is_tuning = torch.arange(len(rows)) // training.batch % TUNING_ROWS == TUNING_ROWS - 1
    rows, tuning = rows[~is_tuning], rows[is_tuning]
    test = consecutive_rows(data["test"]["text"], training.length)
    counted = rows[: training.steps * training.batch]
    nats = bigram_nats(counted[:, :-1].flatten(), counted[:, 1:].flatten())
    trained = Trained(settings.seeds, nats[test[:, :-1], test[:, 1:]].mean().item())

    def report(cell: Cell, rate: float) -> None:
        trained.losses[cell] = [
            held_out_loss(train(cell, rate, seed, training.steps, training.batch, rows), test)
            for seed in settings.seeds
        ]
        print(f"{cell.name} at rate {rate:g}: {trained.mean(cell):.4f} nats per byte", flush=True)

    (layers, width), *others = settings.shapes
    start = Cell(layers, width, 4 * width)
    for cell in (start, *(cell_at(*shape, start.parameters) for shape in others)):

        def tuning_loss(rate: float, cell: Cell = cell) -> float:
            return held_out_loss(train(cell, rate, 0, training.tuning_steps, training.batch, rows), tuning)

        trained.tried[cell] = tune(tuning_loss, (training.rate / 2, training.rate, training.rate * 2), more=3)
        report(cell, best_rate(trained.tried[cell]))
    deep = trained.deep
    for variant, like in (
        (replace(deep, shared=True), deep),
        (replace(deep, layers=1), deep),
        (replace(start, input_rank=settings.input_rank), start),
        (replace(deep, input_rank=settings.input_rank), deep),
    ):
        report(variant, best_rate(trained.tried[like]))
    return trained


BY_AN_INTERVAL = "by a 95 % interval over the seeds that excludes 0; disagrees if "
ALL_WORSE = f"greater {BY_AN_INTERVAL}that of one is less by such an interval"


def floor_in_training(study: Study, trained: Trained) -> None:
    """Below the budget's floor, and from it on."""
    place = trained.plain.index(trained.deep)
    below, above = trained.plain[:place], trained.plain[place:]
    best = min(above, key=trained.mean)
    study.add(
        "asked here, floor in training",
        f"At N = {trained.plain[0].parameters:,} shapes below their floor are worse than the best from the floor on.",
        f"the loss of each is {ALL_WORSE}",
        together([trained.is_worse(cell, best) for cell in below]),
        {"bigram": trained.bigram, **trained.numbers(trained.plain)},
    )
    study.add(
        "asked here, floor in training",
        "From the floor on depth and width can be traded at equal parameters without loss.",
        "the mean losses of these shapes lie within 1% of the best of them",
        max(trained.mean(cell) for cell in above) / trained.mean(best) - 1 <= 0.01,
        trained.numbers(above),
    )


def law_and_flatness(study: Study, trained: Trained) -> None:
    """The fitted law far below the sizes of its fit; and whether the shape matters at all."""
    first, *deeper = trained.plain
    depth = advice.fitted_depth_of_size(first.parameters)
    times = advice.fitted_parameters(advice.FIT_DEPTHS[0]) / first.parameters
    study.add(
        "asked here, fitted law below its sizes",
        f"The law also holds at N = {first.parameters:,}, {times:.0f} times below its fit, where it names "
        f"{depth:.1f} layers: the shallowest is best.",
        f"the loss of each deeper shape is {ALL_WORSE}",
        together([trained.is_worse(cell, first) for cell in deeper]),
        {"layers by the law": depth, **trained.numbers(trained.plain)},
    )
    gaps = {}
    for pair in combinations(trained.plain, 2):
        aspects = [cell.width / cell.layers for cell in pair]
        losses = [trained.mean(cell) for cell in pair]
        if max(aspects) <= 40 * min(aspects):
            gaps[f"{pair[0].name} and {pair[1].name}: apart by"] = max(losses) / min(losses) - 1
    study.add(
        "Kaplan 2020 (2001.08361), second-hand",
        "At equal size the shape hardly matters: an aspect ratio 40 times as large costs a few per cent of the loss.",
        "the mean losses of any two shapes of equal size lie within 5% if their widths over layers differ by up to 40 "
        "times",
        max(gaps.values()) <= 0.05,
        {**gaps, **trained.numbers(trained.plain)},
    )


def variants(study: Study, trained: Trained) -> None:
    """The companion's bottleneck, by a token embedding whose rank is cut; and one layer in all places."""
    wide, deep = trained.plain[0], trained.deep
    cut_wide, cut_deep = (cell for cell in trained.losses if cell.input_rank is not None)
    gain = np.subtract(trained.losses[wide], trained.losses[deep])
    gain_of_cut = np.subtract(trained.losses[cut_wide], trained.losses[cut_deep])
    study.add(
        "Wies 2021 (2105.03928), abstract",
        "Where the width exceeds the rank of the input embedding, deepen rather than widen.",
        f"with the token embedding cut to rank {cut_wide.input_rank} the lead of {deep.name} over {wide.name} is "
        f"greater than with all of it, {BY_AN_INTERVAL}it is less by such an interval",
        by_interval(paired(gain_of_cut, gain)[1]),
        trained.numbers([wide, deep, cut_wide, cut_deep]),
    )
    single, shared = replace(deep, layers=1), replace(deep, shared=True)
    study.add(
        "asked here, floor in training",
        f"Depth helps without further parameters: one layer in {deep.layers} places is better than in one.",
        f"the loss is lower {BY_AN_INTERVAL}it is greater by such an interval",
        trained.is_worse(single, shared),
        trained.numbers([single, shared, deep]),
    )


QUICK = Settings(
    seeds=(11, 12),
    training=Training(text_bytes=300_000, steps=40, tuning_steps=15),
    shapes=((1, 96), (4, 48), (16, 24)),
    ranks=tuple(shape for shape in Settings().ranks if closed_form(*shape) < 300),
)
