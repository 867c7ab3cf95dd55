"""Whether heads improve the conditioning of attention, and whether that is a cause: Lean.

Saratchandran, Teney and Lucey ([arXiv 2505.20802](https://arxiv.org/abs/2505.20802)): more heads improve the
conditioning of attention, so depth can fall; for a Gaussian matrix N × D, κ ≈ (√D + √N)/|√D − √N|. To tell cause from
correlation, this study changes κ without touching heads: query, key and value weights start from W, from W + I, from W
plus random orthogonal matrices, from W scaled to the same norm, or from orthogonal matrices as large as W. A small
LeanGPT is trained from each on the bytes of the standard library's prose, at its own best learning rate. It says
nothing about κ later in training, which nothing controls.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from statistics import fmean, geometric_mean
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import AdamW
from transformers import get_cosine_schedule_with_warmup

from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import finite_or_none
from modeling_leaner.layers_leaner import LeanAttention
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM

from ..data.builtin import python_docs
from ..experiments.results import load_folder
from .kappa import MOST_KAPPA, conclude, read_all_cells
from .study import (
    GRIDS_FOLDER,
    GridPair,
    Outcome,
    Study,
    alike,
    best_rate,
    bigram_nats,
    by_interval,
    byte_config,
    double_precision,
    falls,
    grid_pairs,
    line,
    most,
    negated,
    paired,
    rounded,
    together,
    tune,
)


@dataclass(frozen=True)
class Drawn:
    """What is drawn: sizes (N, D) of Gaussian matrices; attention over `tokens` at `width` and at heads of `size`."""

    draws: int = 20
    gaussian: tuple[tuple[int, int], ...] = ((64, 16), (64, 128), (64, 1024), (197, 96), (197, 768), (197, 3072))
    growing: tuple[int, ...] = (4, 8, 16, 64, 256)
    tokens: int = 197
    width: int = 768
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    size: int = 96
    heads_of_size: tuple[int, ...] = (4, 8, 12, 16, 32)


@dataclass(frozen=True)
class Shape:
    """Of the model, and how long its rows are."""

    layers: int = 4
    width: int = 96
    heads: int = 3
    head_size: int = 32
    length: int = 128


@dataclass(frozen=True)
class TrainingPlan:
    """How a run is trained, how often it is looked at, and rows of held-out text that a loss is the mean over."""

    rate: float = 2e-3
    steps: int = 1200
    batch: int = 4
    looks: int = 16
    held_out: int = 128


@dataclass(frozen=True)
class Settings:
    """`heads` are trained at one width and, all of one size, beside it."""

    seed: int = 1
    drawn: Drawn = field(default_factory=Drawn)
    shape: Shape = field(default_factory=Shape)
    training: TrainingPlan = field(default_factory=TrainingPlan)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3, 4e-3)
    tuning_seeds: tuple[int, ...] = (11, 12)
    tuning_steps: int = 240
    heads: tuple[int, ...] = (1, 6, 12)
    heads_seeds: tuple[int, ...] = (1,)
    processes: int = 2


QUICK = Settings(
    drawn=Drawn(5, ((32, 8), (32, 64), (64, 512)), (8, 64, 512), 32, 64, (1, 2, 4), 16, (4, 8, 16)),
    shape=Shape(layers=2, width=32, heads=2, head_size=16, length=64),
    training=TrainingPlan(steps=20, looks=4, held_out=16),
    seeds=(1, 2),
    rates=(2e-3, 4e-3),
    tuning_seeds=(11,),
    tuning_steps=10,
    heads=(1, 4),
    processes=1,
)


def run(study: Study, settings: Settings) -> None:
    with double_precision():
        source = Generator().manual_seed(settings.seed)
        gaussian_matrices(study, settings.drawn, source)
        untrained_attention(study, settings.drawn, source)
    with ProcessPoolExecutor(settings.processes, mp_context=get_context("spawn")) as pool:
        each = map if settings.processes == 1 else pool.map
        rates = {arm: tuned_rate(settings, arm, each) for arm in ARMS}
        arms = {arm: [Run(settings.shape, arm, rates[arm], seed) for seed in settings.seeds] for arm in ARMS}
        looks = run_all([one for runs in arms.values() for one in runs], settings.training, each)
        trained_heads(study, settings, looks, rates[NONE], each)
    finished_grids(study)
    cause(study, settings, {arm: [looks[one] for one in runs] for arm, runs in arms.items()}, rates)


# Gaussian matrices, theorem 3.2, known here at second hand.


def formula(tokens: int, width: int) -> float:
    """κ ≈ (√D + √N)/|√D − √N| of a Gaussian matrix (N, D)."""
    return (math.sqrt(width) + math.sqrt(tokens)) / abs(math.sqrt(width) - math.sqrt(tokens))


def condition_numbers(matrices: Tensor) -> Tensor:
    """κ of each of the matrices (R, N, D): (R); infinite if rank is lost, as `conditioning.Spectrum` has it."""
    values = torch.linalg.svdvals(matrices)
    kappas = values[:, 0] / values[:, -1]
    return kappas.where(kappas < 1 / (max(matrices.shape[1:]) * torch.finfo(matrices.dtype).eps), math.inf)


def gaussian_matrices(study: Study, drawn: Drawn, source: Generator) -> None:
    """The formula; its fall as heads are added; and the size of a language model."""

    def median(tokens: int, width: int, draws: int = drawn.draws) -> float:
        return condition_numbers(torch.randn(draws, tokens, width, generator=source)).median().item()

    kappas = {size: median(*size) for size in drawn.gaussian}
    numbers = {}
    for (tokens, width), kappa in kappas.items():
        numbers[f"κ, N = {tokens}, D = {width}"] = kappa
        numbers[f"formula, N = {tokens}, D = {width}"] = formula(tokens, width)
    study.add(
        "theorem 3.2, second-hand",
        "Of a matrix N × D with Gaussian entries, N ≠ D, κ ≈ (√D + √N)/|√D − √N|.",
        "the median κ within 10% of the formula at every size",
        all(abs(kappa / formula(*size) - 1) <= 0.1 for size, kappa in kappas.items()),
        numbers,
    )
    falling = [median(drawn.tokens, heads * drawn.size) for heads in drawn.growing]
    study.add(
        "theorem 3.2, second-hand",
        "With the head size fixed, κ of the Gaussian matrix falls to 1 as heads are added.",
        "it falls at every step, once D is above N, to less than 1.25",
        falls(falling) and falling[-1] < 1.25,
        {f"κ with {heads} heads": kappa for heads, kappa in zip(drawn.growing, falling)},
    )
    kappa = median(1024, 768, draws=1)
    study.add(
        "theorem 3.2, derived here",
        "In a language model of GPT-2's size, N = 1024 and D = 768, the theorem promises no κ near 1: 13.9.",
        "κ of one Gaussian matrix of that size within 10% of 13.9",
        abs(kappa / 13.9 - 1) <= 0.1,
        {"κ": kappa, "formula": formula(1024, 768)},
    )


# Attention with random weights.


def attention_outputs(
    tokens: int, width: int, heads: int, size: int, is_causal: bool, draws: int, source: Generator
) -> Tensor:
    """The concatenated head outputs (R, N, H·d) of one attention with random weights over random tokens.

    X has entries of N(0, 1); W_Q, W_K and W_V (D, H·d) of N(0, 1/D).
    """
    x = torch.randn(draws, tokens, width, generator=source)
    query, key, value = (
        (x @ torch.randn(draws, width, heads * size, generator=source) / math.sqrt(width))
        .unflatten(-1, (heads, size))
        .transpose(1, 2)
        for _ in range(3)
    )
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2).flatten(2)


def untrained_attention(study: Study, drawn: Drawn, source: Generator) -> None:
    """More heads at one width and with one head size, without and with a causal mask."""
    held = {
        "one width": (f"a width of {drawn.width}", {heads: drawn.width // heads for heads in drawn.heads}),
        "one head size": (f"heads of {drawn.size}", dict.fromkeys(drawn.heads_of_size, drawn.size)),
    }
    lines = []
    for mask in ("bidirectional", "causal"):
        for name, (what, size_of) in held.items():
            kappas = {
                heads: condition_numbers(
                    attention_outputs(drawn.tokens, drawn.width, heads, size, mask == "causal", drawn.draws, source)
                )
                for heads, size in size_of.items()
            }
            each = list(kappas.values())
            study.add(
                "abstract, before training",
                f"More heads improve the conditioning of attention: random weights, {mask}, {what}.",
                f"κ is lower at each step to more heads in {most(drawn.draws)} of {drawn.draws} draws",
                all(int((many < few).sum()) >= most(drawn.draws) for few, many in zip(each, each[1:])),
                {f"median κ with {heads} heads": finite_or_none(k.median().item()) for heads, k in kappas.items()},
            )
            whole = {heads: found for heads, found in kappas.items() if found.isfinite().all()}
            lines.append(line(f"{mask}, {name}", list(whole), list(whole.values())))
    study.plot("κ of the head outputs, random weights", "heads", "κ", lines, log="xy")


# The starts: each of W_Q, W_K and W_V (heads · head size, width) of every layer is changed before the first step. If W
# is not square, I has ones on its main diagonal, and a random orthogonal O has orthonormal rows or columns, whichever
# are fewer: the Frobenius norm of both is √min(heads · head size, width).

NONE = "W"
IDENTITY = "W + 1·I"
RANDOM = "W + 1·O"  # the norm of I without its direction
LARGER = f"W as large as {IDENTITY}"  # κ of W stays what it was
ORTHOGONAL = "O as large as W"  # κ of W becomes 1
ARMS = (NONE, IDENTITY, RANDOM, LARGER, ORTHOGONAL)


def random_orthogonal(like: Tensor, source: Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer, uniform among all."""
    rows, columns = like.shape
    drawn = torch.randn(max(rows, columns), min(rows, columns), generator=source, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(drawn)
    basis = basis * triangle.diagonal().sign()
    return (basis.mT if rows < columns else basis).to(like.dtype)


def started(arm: str, weight: Tensor, source: Generator) -> Tensor:
    """W as an arm of ARMS has it."""
    if arm == NONE:
        return weight
    if arm == ORTHOGONAL:
        return random_orthogonal(weight, source) * weight.norm() / math.sqrt(min(weight.shape))
    if arm == RANDOM:
        return weight + random_orthogonal(weight, source)
    moved = weight + torch.eye(*weight.shape)
    return moved if arm == IDENTITY else weight * (moved.norm() / weight.norm())


# Training. A run is decided by its settings and its seed, on one thread, and measured as it goes.


class Run(NamedTuple):
    """Of a shape, from an arm of ARMS."""

    shape: Shape
    arm: str
    rate: float
    seed: int


class Look(NamedTuple):
    """A run at one step: held-out loss in nats a byte, and κ of the head outputs, the geometric mean over the layers.

    κ of each layer is a median over the first eight held-out rows.
    """

    step: int
    loss: float
    kappa: float


@lru_cache
def text_of(split: str) -> Tensor:
    """All bytes of a split, (N), int64."""
    joined = "\n\n".join(python_docs()[split]["text"]).encode()
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()


def rows_at(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """The rows (B, length) of the text that begin at `starts` (B)."""
    return text[starts[:, None] + torch.arange(length)]


def held_out_rows(count: int, length: int) -> Tensor:
    """Rows (count, length) spread evenly over the test split, the same for every run."""
    text = text_of("test")
    return rows_at(text, torch.linspace(0, len(text) - length, count).long(), length)


@torch.no_grad()
def look_at(model: LeanGPTForCausalLM, rows: Tensor, step: int) -> Look:
    model.eval()
    loss = sum(model(input_ids=some, labels=some).loss.item() * len(some) for some in rows.split(32)) / len(rows)
    kappas = head_condition_numbers(model, input_ids=rows[:8])
    model.train()
    return Look(step, loss, geometric_mean(kappas))


@torch.no_grad()
def new_model(one: Run) -> LeanGPTForCausalLM:
    """Before its first step; runs of one seed have the same weights before they are changed."""
    shape = one.shape
    config = byte_config(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        head_dim=shape.head_size,
        intermediate_size=4 * shape.width,
        max_position_embeddings=shape.length,
    )
    torch.manual_seed(one.seed)
    model = LeanGPTForCausalLM(config)
    source = Generator().manual_seed(1_000_000 + one.seed)
    for attention in model.modules():
        if isinstance(attention, LeanAttention):
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight.copy_(started(one.arm, projection.weight, source))
    return model


def train(one: Run, plan: TrainingPlan) -> list[Look]:
    """Looks before the first step and evenly up to the last. Runs of one seed have the same rows at every step."""
    torch.set_num_threads(1)
    model = new_model(one)
    model.train()
    optimizer = AdamW(model.parameters(), lr=one.rate, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(0.1 * plan.steps), plan.steps)
    text = text_of("train")
    source = Generator().manual_seed(one.seed)
    held_out = held_out_rows(plan.held_out, one.shape.length)
    when = {round(plan.steps * place / plan.looks) for place in range(plan.looks + 1)}
    looks = [look_at(model, held_out, 0)]
    for step in range(1, plan.steps + 1):
        starts = torch.randint(len(text) - one.shape.length, (plan.batch,), generator=source)
        rows = rows_at(text, starts, one.shape.length)
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step in when:
            looks.append(look_at(model, held_out, step))
    return looks


def run_all(runs: list[Run], plan: TrainingPlan, each: Callable = map) -> dict[Run, list[Look]]:
    """Every run, by `map` or that of a pool of processes."""
    found = {}
    for one, looks in zip(runs, each(train, runs, [plan] * len(runs))):
        heads = f"{one.shape.heads} heads of {one.shape.head_size}"
        print(f"{heads}, {one.arm}, rate {one.rate:g}, seed {one.seed}: loss {looks[-1].loss:.4f}", flush=True)
        found[one] = looks
    return found


def tuned_rate(settings: Settings, arm: str, each: Callable) -> float:
    """The best rate of an arm, by shorter runs with seeds that are not reported."""
    plan = replace(settings.training, steps=settings.tuning_steps, looks=1)

    def loss_at(rate: float) -> float:
        runs = [Run(settings.shape, arm, rate, seed) for seed in settings.tuning_seeds]
        return fmean(looks[-1].loss for looks in run_all(runs, plan, each).values())

    return best_rate(tune(loss_at, settings.rates, more=2))


def trained_heads(study: Study, settings: Settings, looks: dict[Run, list[Look]], rate: float, each: Callable) -> None:
    """Whether more heads lower κ through training: the unchanged start, with its own heads and with others."""
    shape = settings.shape
    for held in ("one width", "one head size"):
        shapes = {shape.heads: shape}
        for heads in settings.heads:
            size = shape.width // heads if held == "one width" else shape.head_size
            shapes[heads] = replace(shape, heads=heads, head_size=size)
        runs = [Run(one, NONE, rate, seed) for one in shapes.values() for seed in settings.heads_seeds]
        looks |= run_all([one for one in runs if one not in looks], settings.training, each)
        ends = []
        numbers = {}
        for heads in sorted(shapes):
            found = [looks[one] for one in runs if one.shape.heads == heads]
            start, end = (geometric_mean(seen[place].kappa for seen in found) for place in (0, -1))
            start, end = (kappa if kappa <= MOST_KAPPA else math.inf for kappa in (start, end))
            ends.append(end)
            numbers[f"κ at the start, {heads} heads"] = finite_or_none(start)
            numbers[f"κ at the end, {heads} heads"] = finite_or_none(end)
            numbers[f"loss, {heads} heads"] = fmean(seen[-1].loss for seen in found)
        study.add(
            "asked here, abstract, after training",
            f"More heads improve the conditioning of attention after training, too: causal, {held}.",
            "κ at the end, the geometric mean over layers and seeds, is lower at each step to more heads; one above "
            f"1/ε of float32, {MOST_KAPPA:.1g}, is rounding, and counts as the highest",
            falls(ends),
            numbers,
        )


# The finished grids: heads and κ, κ and quality, half the layers with twice the heads.

MARGINS = {"loss": 0.02, "matthews_correlation": 0.02}  # of no loss of quality, as the grids have them that fix one
GRID_MARGIN = 0.01  # of the other metrics, all shares or correlations


def is_twin(config: LeanConfig, baseline: LeanConfig) -> bool:
    """Whether a shape has half the layers and twice the heads of another, and is the same otherwise."""
    halved = 2 * config.num_hidden_layers == baseline.num_hidden_layers
    return alike(config, baseline) and halved and config.num_attention_heads == 2 * baseline.num_attention_heads


def kept_quality(pair: GridPair) -> Outcome:
    """agrees: worse by less than the margin of its metric, all of the interval; disagrees: worse; else undecided."""
    if by_interval(pair.interval) == "disagrees":
        return "disagrees"
    return "agrees" if pair.interval[0] > -MARGINS.get(pair.metric, GRID_MARGIN) else "undecided"


def finished_grids(study: Study) -> None:
    """What they say of heads, of κ and of the claim."""
    folders = sorted(path.parent for path in GRIDS_FOLDER.glob("*/results.csv"))
    conclusion = conclude(read_all_cells({folder.name: load_folder(folder) for folder in folders}))
    doubling = conclusion.doubling
    study.add(
        "asked here, the finished grids",
        "Twice the heads of half the size lower κ of trained models.",
        "κ at the end is lower in nine of ten pairs of runs",
        doubling.lower_end >= 0.9 * doubling.pairs if doubling.pairs else "not tested",
        doubling._asdict(),
    )
    outcomes, numbers = [], {}
    for among, correlations in (("within a shape", conclusion.within), ("between shapes", conclusion.between)):
        for end, found in correlations.items():
            interval = found.interval
            outcomes.append(by_interval(negated(interval)))
            numbers[f"{among}, κ at the {end}"] = found.value
            if interval:
                numbers[f"{among}, κ at the {end}, low end"] = interval[0]
                numbers[f"{among}, κ at the {end}, high end"] = interval[1]
    study.add(
        "asked here, the finished grids",
        "Runs with a lower κ, before or after training, are better: within a shape and between shapes.",
        "Spearman's correlation of κ and quality is below 0, its 95 % interval too, in all four; disagrees if one is "
        "above 0, its interval too",
        together(outcomes),
        numbers,
    )
    outcomes, numbers = [], {}
    for pair in grid_pairs(is_twin):
        outcomes.append(kept_quality(pair))
        numbers |= pair.numbers(f"gain, {pair.metric}")
        numbers[f"{pair.name}: share of the parameters"] = pair.share
    study.add(
        "abstract",
        "Half the layers with twice the heads keep the quality with 30 to 50 % fewer parameters.",
        f"in every grid the 95 % interval over the seeds lies above minus the margin, {MARGINS['loss']} of a loss and "
        f"of Matthews' correlation, {GRID_MARGIN} of the rest; disagrees if one is worse by an interval that excludes "
        "0",
        together(outcomes),
        numbers,
    )


# Cause or correlation: what the starts have become.

MOVED = 2.0  # times by which κ must differ before its effect is asked for
MARGIN = 0.02  # nats: a smaller difference is none
ORDERED = 0.8  # Spearman's correlation of what has an order


def cause_outcome(difference: float, interval: tuple[float, float]) -> Outcome:
    """Of a difference of losses that is stated to be below 0, and by MARGIN at least."""
    low, high = interval
    if difference <= -MARGIN and high < 0:
        return "agrees"
    return "disagrees" if low > -MARGIN else "undecided"


def steps_to(looks: Sequence[Look], loss: float) -> float | None:
    """The step at which a run first has a loss, by linear interpolation between looks; None if it never has."""
    for before, after in zip(looks, looks[1:]):
        if before.loss <= loss:
            return before.step
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.step + share * (after.step - before.step)
    return None


def cause(study: Study, settings: Settings, arms: dict[str, list[list[Look]]], rates: dict[str, float]) -> None:
    """Whether a lower κ at the start, at equal norm and equal heads, gives a lower loss; `arms` are looks by seed."""
    from scipy.stats import spearmanr  # takes seconds to import

    ends = {arm: [looks[-1].loss for looks in runs] for arm, runs in arms.items()}
    losses = {arm: fmean(each) for arm, each in ends.items()}
    kappas = {arm: geometric_mean(looks[0].kappa for looks in runs) for arm, runs in arms.items()}
    text = text_of("train")
    rows = held_out_rows(settings.training.held_out, settings.shape.length)
    bigram = bigram_nats(text[:-1], text[1:])[rows[:, :-1], rows[:, 1:]].mean().item()
    study.add(
        "asked here",
        "The runs of the intervention have learned more than which byte follows which.",
        "the mean loss at the end of every start is below that of a bigram of the same bytes",
        max(losses.values()) < bigram,
        {"bigram": bigram, "worst start": max(losses.values())},
    )
    for control, why in (
        (RANDOM, "which has the same norm"),
        (LARGER, "which has the same norm, and κ of W unchanged"),
        (NONE, "the unchanged start"),
    ):
        moved = kappas[control] / kappas[IDENTITY]
        difference, interval = paired(ends[IDENTITY], ends[control])
        study.add(
            "asked here, cause or correlation",
            f"A lower κ at the start, with the same heads, gives a lower loss: {IDENTITY} against {control}, {why}.",
            f"κ at the start differs by {MOVED:g} times or more; the loss at the end is lower by {MARGIN} nats or "
            "more on the mean, and the 95 % interval over the seeds excludes 0; disagrees if the interval excludes a "
            "loss lower by that much",
            cause_outcome(difference, interval) if moved >= MOVED else "not tested",
            {"κ moved by": moved, "difference of loss": difference, "low end": interval[0], "high end": interval[1]},
        )
    correlation = float(spearmanr(list(kappas.values()), list(losses.values())).statistic)
    numbers = {}
    for arm, runs in arms.items():
        numbers[f"{arm}: rate"] = rates[arm]
        numbers[f"{arm}: κ at the start"] = kappas[arm]
        numbers[f"{arm}: κ at the end"] = geometric_mean(looks[-1].kappa for looks in runs)
        numbers[f"{arm}: loss"] = losses[arm]
    study.add(
        "asked here, cause or correlation",
        "Over all these starts, the lower κ, the lower the loss.",
        f"Spearman's correlation of their mean κ at the start and mean loss at the end of {ORDERED} or more (by "
        "chance in 8 of the 120 orders of five, 7 %)",
        rounded(correlation) >= ORDERED,  # of exactly 0.8 a computer finds 0.7999999999999999
        {"Spearman's correlation": correlation, **numbers},
    )
    halfway = round(0.5 * (len(arms[NONE][0]) - 1))
    target = fmean(looks[halfway].loss for looks in arms[NONE])
    every = [looks for runs in arms.values() for looks in runs]
    steps = [steps_to(looks, target) for looks in every]
    slowest = [looks[-1].step + 1 if step is None else step for step, looks in zip(steps, every)]
    correlation = float(spearmanr([looks[0].kappa for looks in every], slowest).statistic)
    study.add(
        "asked here, steps to a loss",
        "Runs that start with a lower κ reach a given loss in fewer steps.",
        f"Spearman's correlation over all runs of the intervention of {ORDERED} or more, to the loss that the "
        "unchanged start has after half of its steps; those of one start are alike, so no test",
        rounded(correlation) >= ORDERED,
        {
            "Spearman's correlation": correlation,
            "loss to reach": target,
            "runs that never reach it": steps.count(None),
        },
    )

    def over_training(name: str, first: int) -> list[dict]:
        drawn = []
        for arm, runs in arms.items():
            by_step = list(zip(*runs))[first:]
            values = [[getattr(look, name) for look in looks] for looks in by_step]
            drawn.append(line(arm, [looks[0].step for looks in by_step], values))
        return drawn

    study.plot("κ of the head outputs in training", "step", "κ", over_training("kappa", 0), log="y")
    late = (settings.training.looks + 1) // 4
    study.plot("loss, same heads, other starts", "step", "nats a byte", over_training("loss", late))
