"""The study conditioning: is κ of the head outputs what heads change, and is it a cause? Lean (arXiv 2505.20802)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, geometric_mean

import torch
from torch import Generator, Tensor, tensor
from torch.optim import AdamW
from transformers import get_cosine_schedule_with_warmup

from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.layers_leaner import LeanAttention
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM

from ..data.builtin import python_docs
from ..experiments.grid_results import load_folder
from ..experiments.kappa import MOST_KAPPA, Conclusion, Correlation, conclude, read_all_cells
from .study import (
    BYTES,
    GRIDS_FOLDER,
    FigurePanel,
    Findings,
    GridPair,
    Line,
    Outcome,
    Paired,
    Progress,
    Statement,
    Study,
    beyond,
    bigram_nats,
    by_interval,
    double_precision,
    grid_pairs,
    line,
    most,
    paired,
    rounded,
    rows_in,
    together,
    untested,
    verdict,
)


# A small LeanGPT on the bytes of the standard library's prose, which every installation has.  Runs differ in their
# start. Each is decided by its settings and its seed, on one thread, and measured as it goes: loss on held-out text,
# κ of the head outputs.


ROWS_OF_KAPPA = 8  # held-out rows over which κ is a median
WARMUP = 0.1  # of the steps
DECAY = 0.1  # weight decay


@dataclass(frozen=True)
class Shape:
    """Of the model, and how long its rows are."""

    layers: int
    width: int
    heads: int
    head_size: int
    length: int

    def config(self) -> LeanGPTConfig:
        """Without dropout, as a comparison of one pass over the text wants it."""
        return LeanGPTConfig(
            vocab_size=BYTES,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            head_dim=self.head_size,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )


@dataclass(frozen=True)
class TrainingPlan:
    """How a run is trained and how often it is looked at."""

    rate: float
    steps: int
    batch: int
    looks: int
    held_out: int
    """Rows of held-out text that a loss is the mean over."""


@dataclass(frozen=True)
class Look:
    """A run at one step: held-out loss in nats a byte, and κ of each layer from the first, a median over rows."""

    step: int
    loss: float
    kappas: list[float]

    @property
    def kappa(self) -> float:
        """The geometric mean over the layers."""
        return geometric_mean(self.kappas)


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
    """What a run is at one step."""
    model.eval()
    loss = sum(model(input_ids=some, labels=some).loss.item() * len(some) for some in rows.split(32)) / len(rows)
    kappas = head_condition_numbers(model, input_ids=rows[:ROWS_OF_KAPPA])
    model.train()
    return Look(step, loss, kappas)


def look_steps(steps: int, looks: int) -> set[int]:
    """When a run is looked at: before the first step, and evenly up to the last."""
    return {round(steps * place / looks) for place in range(looks + 1)}


def train_bytes(
    shape: Shape, plan: TrainingPlan, seed: int, change: Callable[[LeanGPTForCausalLM, Generator], None]
) -> list[Look]:
    """One run; `change` is done to the weights before the first step, with a source of random numbers of its own.

    Runs of one seed have the same weights before the change, and the same rows at every step.
    """
    torch.manual_seed(seed)
    model = LeanGPTForCausalLM(shape.config())
    change(model, Generator().manual_seed(1_000_000 + seed))
    model.train()
    optimizer = AdamW(model.parameters(), lr=plan.rate, weight_decay=DECAY)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(WARMUP * plan.steps), plan.steps)
    text = text_of("train")
    source = Generator().manual_seed(seed)
    held_out = held_out_rows(plan.held_out, shape.length)
    when = look_steps(plan.steps, plan.looks)
    looks = [look_at(model, held_out, 0)]
    for step in range(1, plan.steps + 1):
        starts = torch.randint(len(text) - shape.length, (plan.batch,), generator=source)
        rows = rows_at(text, starts, shape.length)
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step in when:
            looks.append(look_at(model, held_out, step))
    return looks


def steps_to(looks: Sequence[Look], loss: float) -> float | None:
    """The step at which a run first has a loss, by linear interpolation between looks; None where it never has."""
    for before, after in zip(looks, looks[1:]):
        if before.loss <= loss:
            return before.step
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.step + share * (after.step - before.step)
    return None


def bigram_loss(length: int, held_out: int) -> float:
    """Held-out loss in nats of a guess that reads one byte: how often the training text has each byte after it."""
    text = text_of("train")
    nats = bigram_nats(text[:-1], text[1:])
    rows = held_out_rows(held_out, length)
    return nats[rows[:, :-1], rows[:, 1:]].mean().item()


# κ is changed without touching heads, to tell cause from correlation: starts of one model that differ in W alone.
# Each of W_Q, W_K and W_V of every layer is changed before the first step. W is (heads · head size, width). Where it
# is not square, I is the matrix with ones on its main diagonal, and a random orthogonal matrix is one with
# orthonormal rows or columns, whichever are fewer: the Frobenius norm of both is √min(heads · head size, width).


def random_orthogonal(like: Tensor, source: Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer, uniform among all."""
    rows, columns = like.shape
    drawn = torch.randn(max(rows, columns), min(rows, columns), generator=source, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(drawn)
    basis = basis * triangle.diagonal().sign()
    if rows < columns:
        basis = basis.mT
    return basis.to(like.dtype)


def unchanged(weight: Tensor, source: Generator) -> Tensor:
    """W."""
    return weight


def plus_identity(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W + λ·I."""
    return lambda weight, source: weight + amount * torch.eye(*weight.shape)


def plus_orthogonal(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W + λ·O of a random orthogonal O: the norm of λ·I without its direction."""
    return lambda weight, source: weight + amount * random_orthogonal(weight, source)


def as_large(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W times the number that gives it the Frobenius norm of W + λ·I: κ of W stays what it was."""
    return lambda weight, source: weight * (plus_identity(amount)(weight, source).norm() / weight.norm())


def made_orthogonal(weight: Tensor, source: Generator) -> Tensor:
    """A random orthogonal matrix of the Frobenius norm of W: κ of W becomes 1."""
    return random_orthogonal(weight, source) * weight.norm() / math.sqrt(min(weight.shape))


AMOUNT = 1.0  # λ
IDENTITY = f"W + {AMOUNT:g}·I"
RANDOM = f"W + {AMOUNT:g}·O"
LARGER = f"W as large as {IDENTITY}"
NONE = "W"
ORTHOGONAL = "O as large as W"
ARMS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    NONE: unchanged,
    IDENTITY: plus_identity(AMOUNT),
    RANDOM: plus_orthogonal(AMOUNT),
    LARGER: as_large(AMOUNT),
    ORTHOGONAL: made_orthogonal,
}


@torch.no_grad()
def change_start(model: LeanGPTForCausalLM, source: Generator, arm: str) -> None:
    """Changes W_Q, W_K and W_V of every layer as an arm of ARMS says."""
    for attention in model.modules():
        if isinstance(attention, LeanAttention):
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight.copy_(ARMS[arm](projection.weight, source))


@dataclass(frozen=True)
class Run:
    """One run: a shape, an arm of ARMS, how it is trained, a seed."""

    shape: Shape
    arm: str
    plan: TrainingPlan
    seed: int


def execute(run: Run) -> list[Look]:
    """On one thread."""
    torch.set_num_threads(1)
    return train_bytes(run.shape, run.plan, run.seed, lambda model, source: change_start(model, source, run.arm))


Looks = dict[Run, list[Look]]


def run_all(runs: list[Run], processes: int, progress: Progress) -> Looks:
    """Every run, so many at a time, each in a process that starts anew; one process is this one."""
    if processes == 1:
        return dict(told(runs, map(execute, runs), progress))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return dict(told(runs, pool.map(execute, runs), progress))


def told(runs: list[Run], found: Iterator[list[Look]], progress: Progress) -> Iterator[tuple[Run, list[Look]]]:
    """The runs with what was seen of them, each told as it ends."""
    for number, (run, looks) in enumerate(zip(runs, found), 1):
        progress(
            f"{number} of {len(runs)}: {run.shape.heads} heads of {run.shape.head_size}, {run.arm}, rate "
            f"{run.plan.rate:g}, seed {run.seed}: loss {looks[-1].loss:.4f}"
        )
        yield run, looks


def best_rates(tuning: Looks) -> dict[str, float]:
    """Of each arm the rate with the least mean loss at the end; one whose loss is not finite is the last choice."""
    losses: dict[str, dict[float, list[float]]] = {}
    for run, looks in tuning.items():
        loss = looks[-1].loss
        if not math.isfinite(loss):
            loss = math.inf
        losses.setdefault(run.arm, {}).setdefault(run.plan.rate, []).append(loss)
    return {arm: min(by_rate, key=lambda rate: fmean(by_rate[rate])) for arm, by_rate in losses.items()}


# κ of matrices that nothing has trained: Gaussian ones, as in theorem 3.2 of Lean, and real attention.


PAPER = "Lean, 2505.20802"
CLOSE = 0.1  # of κ by the formula
NEAR_ONE = 1.25  # κ that is taken for 1


def formula(tokens: int, width: int) -> float:
    """κ ≈ (√D + √N)/|√D − √N| of a Gaussian matrix (N, D)."""
    return (math.sqrt(width) + math.sqrt(tokens)) / abs(math.sqrt(width) - math.sqrt(tokens))


def condition_numbers(matrices: Tensor) -> Tensor:
    """κ of each of the matrices (R, N, D): (R); infinite where rank is lost, as `conditioning.Spectrum` has it."""
    values = torch.linalg.svdvals(matrices)
    most = 1 / (max(matrices.shape[1:]) * torch.finfo(matrices.dtype).eps)
    kappas = values[:, 0] / values[:, -1]
    return kappas.where(kappas < most, math.inf)


def resolved(kappa: float) -> float:
    """κ in float32, infinite above MOST_KAPPA: there it is rounding."""
    return kappa if kappa <= MOST_KAPPA else math.inf


def known_kappa(kappa: float, digits: int = 6) -> float | None:
    """What is stored, to so many digits; None of a κ that is infinite."""
    return None if math.isinf(kappa) else rounded(kappa, digits)


def kappa_words(kappa: float, form: str = ".3g") -> str:
    """What is printed of a κ."""
    return "rank lost" if math.isinf(kappa) else format(kappa, form)


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
    outputs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return outputs.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Drawn:
    """What is drawn: sizes (N, D) of Gaussian matrices; attention over `tokens` at `width` and at heads of `size`."""

    draws: int
    gaussian: tuple[tuple[int, int], ...]
    growing: tuple[int, ...]
    tokens: int
    width: int
    heads: tuple[int, ...]
    size: int
    heads_of_size: tuple[int, ...]


def gaussian_kappas(sizes: tuple[tuple[int, int], ...], draws: int, source: Generator) -> dict[tuple[int, int], float]:
    """The median κ over the draws, by size."""
    return {
        (tokens, width): condition_numbers(torch.randn(draws, tokens, width, generator=source)).median().item()
        for tokens, width in sizes
    }


def gaussian_statement(drawn: Drawn, source: Generator) -> Statement:
    """Theorem 3.2 where N ≠ D."""
    kappas = gaussian_kappas(drawn.gaussian, drawn.draws, source)
    numbers = {}
    for (tokens, width), kappa in kappas.items():
        numbers[f"κ, N = {tokens}, D = {width}"] = rounded(kappa)
        numbers[f"formula, N = {tokens}, D = {width}"] = rounded(formula(tokens, width))
    off = {size: abs(kappa / formula(*size) - 1) for size, kappa in kappas.items()}
    farthest = max(off, key=off.get)
    others = max(share for size, share in off.items() if size != farthest)
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="second-hand",
        statement="Of a matrix N × D with Gaussian entries, N ≠ D, κ ≈ (√D + √N)/|√D − √N|.",
        rule=f"the median κ within {CLOSE:.0%} of the formula at every size",
        verdict=verdict(off[farthest] <= CLOSE),
        finding=f"Off by {off[farthest]:.1%} at {farthest[0]} × {farthest[1]}, by at most {others:.1%} at the other "
        f"{len(kappas) - 1} sizes, {drawn.draws} draws each: the formula is the limit of large N and D.",
        numbers=numbers,
    )


def growing_statement(drawn: Drawn, source: Generator) -> Statement:
    """With the head size fixed."""
    sizes = tuple((drawn.tokens, heads * drawn.size) for heads in drawn.growing)
    kappas = list(gaussian_kappas(sizes, drawn.draws, source).values())
    falls = all(later < earlier for earlier, later in zip(kappas, kappas[1:]))
    words = ", ".join(f"{kappa:.3g} with {heads}" for heads, kappa in zip(drawn.growing, kappas))
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="second-hand",
        statement="With the head size fixed, κ of the Gaussian matrix falls to 1 as heads are added.",
        rule=f"it falls at every step, once D is above N, to less than {NEAR_ONE:g}",
        verdict=verdict(falls and kappas[-1] < NEAR_ONE),
        finding=f"N = {drawn.tokens}, heads of {drawn.size}: {words} heads.",
        numbers={f"κ with {heads} heads": rounded(kappa) for heads, kappa in zip(drawn.growing, kappas)},
    )


def language_model_statement(source: Generator) -> Statement:
    """D ≫ N, which the theorem needs, in a language model."""
    size = (1024, 768)
    kappa = gaussian_kappas((size,), 1, source)[size]
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="derived here",
        statement="In a language model of GPT-2's size, N = 1024 and D = 768, the theorem promises no κ near 1: 13.9.",
        rule=f"κ of one Gaussian matrix of that size within {CLOSE:.0%} of 13.9",
        verdict=verdict(abs(kappa / 13.9 - 1) <= CLOSE),
        finding=f"{kappa:.3g}; {formula(*size):.3g} by the formula.",
        numbers={"κ": rounded(kappa), "formula": rounded(formula(*size))},
    )


Kappas = dict[int, Tensor]  # by heads, of each draw (R)


@dataclass(frozen=True)
class AttentionKappas:
    """κ of real attention with random weights, by heads: at one width or with heads of one size."""

    is_causal: bool
    has_one_head_size: bool
    """So that more heads are wider together."""
    kappas: Kappas

    @property
    def mask(self) -> str:
        """Its name."""
        return "causal" if self.is_causal else "bidirectional"

    @property
    def held(self) -> str:
        """What all numbers of heads have in common."""
        return "one head size" if self.has_one_head_size else "one width"

    def line(self) -> Line:
        """Of the figure, where no draw has lost rank."""
        whole = {heads: kappas for heads, kappas in self.kappas.items() if kappas.isfinite().all()}
        return line(f"{self.mask}, {self.held}", list(whole), list(whole.values()))

    def statement(self, drawn: Drawn) -> Statement:
        """Whether more heads lower κ."""
        heads = list(self.kappas)
        counts = [int((self.kappas[many] < self.kappas[few]).sum()) for few, many in zip(heads, heads[1:])]
        size = f"heads of {drawn.size}" if self.has_one_head_size else f"a width of {drawn.width}"
        medians = {count: values.median().item() for count, values in self.kappas.items()}
        words = ", ".join(f"{kappa_words(kappa)} with {count}" for count, kappa in medians.items())
        return Statement(
            paper=PAPER,
            place="abstract, before training",
            whose="the paper",
            statement=f"More heads improve the conditioning of attention: random weights, {self.mask}, {size}.",
            rule=f"κ is lower at each step to more heads in {most(drawn.draws)} of {drawn.draws} draws",
            verdict=verdict(min(counts) >= most(drawn.draws)),
            finding=f"N = {drawn.tokens}, median κ {words} heads; lower in {', '.join(map(str, counts))} draws.",
            numbers={f"median κ with {count} heads": known_kappa(kappa) for count, kappa in medians.items()},
        )


def attention_kappas(drawn: Drawn, source: Generator) -> list[AttentionKappas]:
    """All four: at one width and with one head size, without and with a causal mask."""
    found = []
    for is_causal in (False, True):
        for has_one_head_size in (False, True):
            sizes = {heads: drawn.width // heads for heads in drawn.heads}
            if has_one_head_size:
                sizes = dict.fromkeys(drawn.heads_of_size, drawn.size)
            kappas = {
                heads: condition_numbers(
                    attention_outputs(drawn.tokens, drawn.width, heads, size, is_causal, drawn.draws, source)
                )
                for heads, size in sizes.items()
            }
            found.append(AttentionKappas(is_causal, has_one_head_size, kappas))
    return found


# What the finished grids say of Lean: heads and κ, κ and quality, half the layers with twice the heads.


MARGINS = {"loss": 0.02, "matthews_correlation": 0.02}  # of no loss of quality, as the grids have them that fix one
GRID_MARGIN = 0.01  # of the other metrics, all shares or correlations


def is_twin(config: LeanConfig, baseline: LeanConfig) -> bool:
    """Whether a shape has half the layers and twice the heads of another, and is the same otherwise."""
    same = ("model_type", "hidden_size", "intermediate_size")
    if any(getattr(config, name) != getattr(baseline, name) for name in same):
        return False
    halved = 2 * config.num_hidden_layers == baseline.num_hidden_layers
    return halved and config.num_attention_heads == 2 * baseline.num_attention_heads


def kept_quality(pair: GridPair) -> Outcome:
    """agrees: worse by less than the margin of its metric, all of the interval; disagrees: worse; else undecided."""
    low, _ = pair.interval
    if pair.is_worse:
        return "disagrees"
    if low > -MARGINS.get(pair.metric, GRID_MARGIN):
        return "agrees"
    return "undecided"


def claim_statement(grids: Path) -> Statement:
    """The paper's claim itself, by the rows that are there."""
    common = {
        "paper": PAPER,
        "place": "abstract",
        "whose": "the paper",
        "statement": "Half the layers with twice the heads keep the quality with 30 to 50 % fewer parameters.",
    }
    pairs = list(grid_pairs(grids, is_twin))
    if not pairs:
        return Statement(**common, rule=None, verdict="not tested", finding="", numbers={}, missing=rows_in(grids))
    outcomes = [kept_quality(pair) for pair in pairs]
    numbers = {}
    for pair in pairs:
        numbers |= pair.numbers(f"gain, {pair.metric}")
        numbers[f"{pair.name}: share of the parameters"] = rounded(pair.share, 3)
    return Statement(
        **common,
        rule=f"in every grid the 95 % interval over the seeds lies above minus the margin, {MARGINS['loss']} of a "
        f"loss and of Matthews' correlation, {GRID_MARGIN} of the rest; disagrees where one is worse by an "
        "interval that excludes 0",
        verdict=together(outcomes),
        finding=f"Worse in {outcomes.count('disagrees')} of {len(pairs)} grids, kept within the margin in "
        f"{outcomes.count('agrees')}, undecided in {outcomes.count('undecided')}; plus is better, and the share of "
        "the parameters: "
        + "; ".join(f"{pair.grid} {pair.metric} {pair.words} with {pair.share:.0%}" for pair in pairs)
        + ". Small models after short training.",
        numbers=numbers,
    )


def all_grid_statements(grids: Path) -> list[Statement]:
    """What the finished grids say of heads, of κ and of the claim. Raises GridError where one of them does not fit."""
    return [*grid_statements(grids), claim_statement(grids)]


def correlation_words(found: Correlation) -> str:
    """Its value with its interval."""
    words = f"{found.value:+.2f}"
    if found.interval is not None:
        words += " ({:+.2f} to {:+.2f})".format(*found.interval)
    return words


def grid_statements(grids: Path) -> list[Statement]:
    """What the finished grids say of heads, κ and quality."""
    heads = {
        "paper": PAPER,
        "place": "the finished grids: heads",
        "whose": "asked here",
        "statement": "Twice the heads of half the size lower κ of trained models.",
    }
    quality = {
        "paper": PAPER,
        "place": "the finished grids: quality",
        "whose": "asked here",
        "statement": "Runs with a lower κ, before or after training, are better: within a shape and between shapes.",
    }
    folders = sorted(path.parent for path in grids.glob("*/results.csv"))
    conclusion = conclude(read_all_cells({folder.name: load_folder(folder) for folder in folders}))
    if not conclusion.doubling.pairs or conclusion.within["end"].value is None:
        return [
            Statement(**common, rule=None, verdict="not tested", finding="", numbers={}, missing=rows_in(grids))
            for common in (heads, quality)
        ]
    return [doubling_statement(conclusion, heads), quality_statement(conclusion, quality)]


def doubling_statement(conclusion: Conclusion, common: dict) -> Statement:
    """Pairs of runs of one seed."""
    doubling = conclusion.doubling
    return Statement(
        **common,
        rule="κ at the end is lower in nine of ten pairs of runs",
        verdict=verdict(doubling.lower_end >= 0.9 * doubling.pairs),
        finding=f"Lower at the start in {doubling.lower_start} and at the end in {doubling.lower_end} of "
        f"{doubling.pairs} pairs; {doubling.better} of these {doubling.lower_end} were better, too (pairs of one grid "
        "share shapes and data, so no test; the mean difference of each is in the grids).",
        numbers=doubling._asdict(),
    )


def quality_statement(conclusion: Conclusion, common: dict) -> Statement:
    """Rank correlations: below 0, lower κ was better."""
    found = {
        f"{among}, κ at the {end}": correlations[end]
        for among, correlations in (("within a shape", conclusion.within), ("between shapes", conclusion.between))
        for end in correlations
    }
    outcomes = [
        by_interval(each.interval and [-limit for limit in reversed(each.interval)]) for each in found.values()
    ]
    known = {name: each for name, each in found.items() if each.value is not None}
    numbers: dict[str, float | None] = {}
    for name, each in known.items():
        numbers[name] = rounded(each.value, 4)
        if each.interval is not None:
            numbers[f"{name}, low end"] = rounded(each.interval[0], 4)
            numbers[f"{name}, high end"] = rounded(each.interval[1], 4)
    return Statement(
        **common,
        rule="Spearman's correlation of κ and quality is below 0, its 95 % interval too, in all four; disagrees where "
        "one is above 0, its interval too",
        verdict=together(outcomes),
        finding="; ".join(f"{name} {correlation_words(each)}" for name, each in known.items())
        + f"; {conclusion.runs} runs; between shapes the interval is over seeds, for these very shapes.",
        numbers=numbers,
    )


# What Lean's tables state and a study cannot train, each with the paper's numbers and what a test would need.


IMAGENET = "ImageNet-1k and about 300 epochs of it on several GPUs"
ROWS = (
    (
        "table of images",
        "On ImageNet fewer layers with more heads lose nothing: XCiT-M 24 layers × 8 heads to 12 × 16, 81.4 to 81.7, "
        "84.4M to 59.0M parameters; TNT-B 12 × 10 to 8 × 16, 82.3 to 82.3, 65.4M to 30.9M; XCiT-L 24 × 16 to "
        "12 × 24, 82.1 to 82.4, 189.1M to 103.8M.",
        IMAGENET,
    ),
    (
        "table of images",
        "On ImageNet five blocks in place of nine in the third stage lose nothing: DaViT-B 83.3 to 83.5, 88.0M to "
        "62.0M parameters; DaViT-L 83.6 to 83.6, 196.8M to 140.0M.",
        IMAGENET,
    ),
    (
        "table of GLUE",
        "Crammed BERT with 10 layers × 24 heads in place of 16 × 12 keeps GLUE's mean of 78.6, with 84M parameters in "
        "place of 119M.",
        "a day of pretraining on one GPU for each of the two, and GLUE's training rows of MNLI, QNLI and QQP",
    ),
    (
        "table of TinyStories",
        "GPT-2 with 4 layers × 16 heads in place of 12 × 12 has a better validation loss on TinyStories.",
        "the whole of TinyStories and a GPU: 89M parameters",
    ),
    (
        "table of ListOps",
        "Nyströmformer with 8 heads in place of 2 has 37.4 % in place of 36.4 % on ListOps, and one layer with four "
        "heads or more beats two layers.",
        "Long Range Arena's ListOps of up to 2,000 tokens; the shorter expressions of training/grids/"
        "listops-short-heads.yaml are another task",
    ),
)


def not_tested() -> list[Statement]:
    """A statement each."""
    return [untested(PAPER, "second-hand", *row) for row in ROWS]


MOVED = 2.0  # times by which κ must differ before its effect is asked for
MARGIN = 0.02  # nats: a smaller difference is none
ORDERED = 0.8  # Spearman's correlation of what has an order
EXTENSIONS = 2  # of the rates, where the best is at an edge
HALFWAY = 0.5  # of the steps of the unchanged start, whose loss there all runs have to reach


@dataclass(frozen=True)
class Settings:
    """What one size of the study runs. `heads` are trained at one width and, all of one size, beside it."""

    seed: int
    drawn: Drawn
    shape: Shape
    training: TrainingPlan
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    tuning_steps: int
    heads: tuple[int, ...]
    heads_seeds: tuple[int, ...]
    processes: int


QUICK = Settings(
    seed=1,
    drawn=Drawn(
        draws=5,
        gaussian=((32, 8), (32, 64), (64, 512)),
        growing=(8, 64, 512),
        tokens=32,
        width=64,
        heads=(1, 2, 4),
        size=16,
        heads_of_size=(4, 8, 16),
    ),
    shape=Shape(layers=2, width=32, heads=2, head_size=16, length=64),
    training=TrainingPlan(rate=2e-3, steps=20, batch=4, looks=4, held_out=16),
    seeds=(1, 2),
    rates=(2e-3, 4e-3),
    tuning_seeds=(11,),
    tuning_steps=10,
    heads=(1, 4),
    heads_seeds=(1,),
    processes=1,
)
DEFAULT = Settings(
    seed=1,
    drawn=Drawn(
        draws=20,
        gaussian=((64, 16), (64, 128), (64, 1024), (197, 96), (197, 768), (197, 3072)),
        growing=(4, 8, 16, 64, 256),
        tokens=197,
        width=768,
        heads=(1, 2, 4, 8, 16, 32),
        size=96,
        heads_of_size=(4, 8, 12, 16, 32),
    ),
    shape=Shape(layers=4, width=96, heads=3, head_size=32, length=128),
    training=TrainingPlan(rate=2e-3, steps=1200, batch=4, looks=16, held_out=128),
    seeds=(1, 2, 3, 4, 5),
    rates=(5e-4, 1e-3, 2e-3, 4e-3),
    tuning_seeds=(11, 12),
    tuning_steps=240,
    heads=(1, 6, 12),
    heads_seeds=(1,),
    processes=2,
)


def tuning_runs(settings: Settings, rates: dict[str, list[float]]) -> list[Run]:
    """Every arm at its rates, shorter and looked at only at the end, with seeds that are not reported."""
    plan = replace(settings.training, steps=settings.tuning_steps, looks=1)
    return [
        Run(settings.shape, arm, replace(plan, rate=rate), seed)
        for arm, tried in rates.items()
        for rate in tried
        for seed in settings.tuning_seeds
    ]


def tune(settings: Settings, progress: Progress) -> dict[str, float]:
    """The best rate of every arm; where it is the least or the greatest tried, half or twice of it is tried, too."""
    due = {arm: list(settings.rates) for arm in ARMS}
    found: Looks = {}
    for _ in range(1 + EXTENSIONS):
        found |= run_all(tuning_runs(settings, due), settings.processes, progress)
        best = best_rates(found)
        following = {arm: beyond(best[arm], rates_of(found, arm)) for arm in ARMS}
        due = {arm: [rate] for arm, rate in following.items() if rate is not None}
    return best


def rates_of(found: Looks, arm: str) -> set[float]:
    """The rates at which an arm was tried."""
    return {run.plan.rate for run in found if run.arm == arm}


def arm_runs(settings: Settings, rates: dict[str, float]) -> list[Run]:
    """Every arm at its own rate."""
    return [
        Run(settings.shape, arm, replace(settings.training, rate=rates[arm]), seed)
        for arm in ARMS
        for seed in settings.seeds
    ]


def shapes_of_heads(settings: Settings) -> dict[str, list[Shape]]:
    """The shape with other heads: as wide together, and each as large as before; sorted by heads."""
    shape = settings.shape
    return {
        "one width": [replace(shape, heads=heads, head_size=shape.width // heads) for heads in settings.heads],
        "one head size": [replace(shape, heads=heads) for heads in settings.heads],
    }


def heads_runs(settings: Settings, rate: float) -> list[Run]:
    """The unchanged start with other heads, all at its rate."""
    plan = replace(settings.training, rate=rate)
    return [
        Run(shape, NONE, plan, seed)
        for shapes in shapes_of_heads(settings).values()
        for shape in shapes
        for seed in settings.heads_seeds
    ]


@dataclass(frozen=True)
class Arms:
    """The reported runs of the intervention, by arm, each looked at as it went on; and the rates they had."""

    runs: dict[str, list[list[Look]]]
    rates: dict[str, float]

    @classmethod
    def of(cls, found: Looks, rates: dict[str, float]) -> "Arms":
        runs: dict[str, list[list[Look]]] = {}
        for run, looks in found.items():
            runs.setdefault(run.arm, []).append(looks)
        return cls(runs, rates)

    def losses(self, arm: str) -> list[float]:
        """At the end, by seed."""
        return [found[-1].loss for found in self.runs[arm]]

    def kappa(self, arm: str, place: int) -> float:
        """The geometric mean over the seeds, at one of the looks."""
        return geometric_mean(found[place].kappa for found in self.runs[arm])

    def difference(self, arm: str, other: str) -> Paired:
        """Of the losses at the end, arm − other, pair by pair of a seed."""
        return paired(self.losses(arm), self.losses(other))

    @property
    def target(self) -> float:
        """The mean loss of the unchanged start halfway."""
        halfway = round(HALFWAY * (len(self.runs[NONE][0]) - 1))
        return fmean(found[halfway].loss for found in self.runs[NONE])

    def numbers(self) -> dict[str, float | None]:
        """Rate, κ at both ends and loss of every arm."""
        numbers: dict[str, float | None] = {}
        for arm in self.runs:
            numbers[f"{arm}: rate"] = self.rates[arm]
            numbers[f"{arm}: κ at the start"] = rounded(self.kappa(arm, 0), 4)
            numbers[f"{arm}: κ at the end"] = rounded(self.kappa(arm, -1), 4)
            numbers[f"{arm}: loss"] = rounded(fmean(self.losses(arm)))
        return numbers


def cause_statement(arms: Arms, control: str, why: str) -> Statement:
    """Whether a lower κ at the start, at equal norm and equal heads, gives a lower loss."""
    moved = arms.kappa(control, 0) / arms.kappa(IDENTITY, 0)
    found = arms.difference(IDENTITY, control)
    low, high = found.interval
    common = {
        "paper": PAPER,
        "place": f"cause or correlation: {IDENTITY} against {control}",
        "whose": "asked here",
        "statement": f"A lower κ at the start, with the same heads, gives a lower loss: {IDENTITY} against {control}, "
        f"{why}.",
        "numbers": {
            **arms.numbers(),
            "κ moved by": rounded(moved, 4),
            "difference of loss": rounded(found.difference),
            "low end": rounded(low),
            "high end": rounded(high),
            "p": rounded(found.p, 3),
        },
    }
    words = (
        f"κ at the start {arms.kappa(IDENTITY, 0):.0f} against {arms.kappa(control, 0):.0f}, loss "
        f"{fmean(arms.losses(IDENTITY)):.4f} against {fmean(arms.losses(control)):.4f}, {found.difference:+.4f} "
        f"({low:+.4f} to {high:+.4f}), {found.pairs} seeds."
    )
    if moved < MOVED:
        return Statement(
            **common, rule=None, verdict="not tested", finding=words, missing=f"κ to differ by {MOVED:g} times"
        )
    return Statement(
        **common,
        rule=f"κ at the start differs by {MOVED:g} times or more; the loss at the end is lower by {MARGIN} nats or "
        "more on the mean, and the 95 % interval over the seeds excludes 0; disagrees where the interval excludes a "
        "loss lower by that much",
        verdict=cause_outcome(found),
        finding=words,
    )


def cause_outcome(found: Paired) -> Outcome:
    """Of a difference of losses that is stated to be below 0, and by MARGIN at least."""
    low, high = found.interval
    if found.difference <= -MARGIN and high < 0:
        return "agrees"
    if low > -MARGIN:
        return "disagrees"
    return "undecided"


def is_ordered(correlation: float) -> bool:
    """Whether a rank correlation is `ORDERED` or more: of exactly 0.8 a computer finds 0.7999999999999999."""
    return rounded(correlation) >= ORDERED


def order_statement(arms: Arms) -> Statement:
    """Whether the arms rank by loss as they rank by κ."""
    from scipy.stats import spearmanr  # takes seconds to import

    kappas = [arms.kappa(arm, 0) for arm in arms.runs]
    losses = [fmean(arms.losses(arm)) for arm in arms.runs]
    correlation = float(spearmanr(kappas, losses).statistic)
    by_kappa = sorted(arms.runs, key=lambda arm: arms.kappa(arm, 0))
    words = ", ".join(f"{arm} {arms.kappa(arm, 0):.0f} and {fmean(arms.losses(arm)):.4f}" for arm in by_kappa)
    return Statement(
        paper=PAPER,
        place="cause or correlation: all starts",
        whose="asked here",
        statement="Over all these starts, the lower κ, the lower the loss.",
        rule=f"Spearman's correlation of their mean κ at the start and mean loss at the end of {ORDERED} or more (by "
        "chance in 8 of the 120 orders of five, 7 %)",
        verdict=verdict(is_ordered(correlation)),
        finding=f"{correlation:+.2f} over {len(by_kappa)} starts; κ and loss: {words}.",
        numbers={**arms.numbers(), "Spearman's correlation": rounded(correlation, 4)},
    )


def speed_statement(arms: Arms) -> Statement:
    """κ at the start against the steps to a loss, over runs."""
    from scipy.stats import spearmanr  # takes seconds to import

    target = arms.target
    pairs = []
    missed = 0
    for runs in arms.runs.values():
        for found in runs:
            steps = steps_to(found, target)
            if steps is None:
                missed += 1
                steps = float(found[-1].step + 1)
            pairs.append((found[0].kappa, steps))
    correlation = float(spearmanr(*zip(*pairs)).statistic)
    return Statement(
        paper=PAPER,
        place="steps to a loss",
        whose="asked here",
        statement="Runs that start with a lower κ reach a given loss in fewer steps.",
        rule=f"Spearman's correlation over all runs of the intervention of {ORDERED} or more; those of one start are "
        "alike, so no test",
        verdict=verdict(is_ordered(correlation)),
        finding=f"{correlation:+.2f} over {len(pairs)} runs of {len(arms.runs)} starts, no test, to a loss of "
        f"{target:.3f}, which the unchanged start has after {HALFWAY:.0%} of its steps; {missed} never had it and "
        "count as the slowest.",
        numbers={
            "Spearman's correlation": rounded(correlation, 4),
            "loss to reach": rounded(target),
            "runs that never reach it": missed,
        },
    )


def learned_statement(arms: Arms, settings: Settings) -> Statement:
    """Whether what is compared has learned anything."""
    guess = bigram_loss(settings.shape.length, settings.training.held_out)
    worst = max(fmean(arms.losses(arm)) for arm in arms.runs)
    return Statement(
        paper=PAPER,
        place="cause or correlation: all starts",
        whose="asked here",
        statement="The runs of the intervention have learned more than which byte follows which.",
        rule="the mean loss at the end of every start is below that of a bigram of the same bytes",
        verdict=verdict(worst < guess),
        finding=f"The bigram has {guess:.3f} nats a byte, the worst start {worst:.3f}.",
        numbers={"bigram": rounded(guess), "worst start": rounded(worst)},
    )


def trained_statements(settings: Settings, runs: Looks) -> list[Statement]:
    """Whether more heads lower κ through training: the unchanged start, with its own heads and with others."""
    statements = []
    seeds = "one seed" if len(settings.heads_seeds) == 1 else f"{len(settings.heads_seeds)} seeds"
    for held, shapes in shapes_of_heads(settings).items():
        by_heads: dict[int, list[list[Look]]] = {}
        for shape in sorted({settings.shape, *shapes}, key=lambda shape: shape.heads):
            by_heads[shape.heads] = [
                looks
                for run, looks in runs.items()
                if (run.shape, run.arm) == (shape, NONE) and run.seed in settings.heads_seeds
            ]
        kappas = {
            heads: [resolved(geometric_mean(looks[place].kappa for looks in found)) for place in (0, -1)]
            for heads, found in by_heads.items()
        }
        numbers: dict[str, float | None] = {}
        for heads, (start, end) in kappas.items():
            numbers[f"κ at the start, {heads} heads"] = known_kappa(start, 4)
            numbers[f"κ at the end, {heads} heads"] = known_kappa(end, 4)
            numbers[f"loss, {heads} heads"] = rounded(fmean(found[-1].loss for found in by_heads[heads]))
        ends = [end for _, end in kappas.values()]
        words = "; ".join(
            f"{heads} heads {kappa_words(start, '.0f')} to {kappa_words(end, '.0f')}"
            for heads, (start, end) in kappas.items()
        )
        statements.append(
            Statement(
                paper=PAPER,
                place="abstract, after training",
                whose="asked here",
                statement=f"More heads improve the conditioning of attention after training, too: causal, {held}.",
                rule="κ at the end, the geometric mean over layers and seeds, is lower at each step to more heads; "
                f"one above 1/ε of float32, {MOST_KAPPA:.1g}, is rounding, and counts as the highest",
                verdict=verdict(all(later < earlier for earlier, later in zip(ends, ends[1:]))),
                finding=f"From the start to the end of training: {words}; {seeds}.",
                numbers=numbers,
            )
        )
    return statements


def over_training(label: str, runs: Iterable[list[Look]], name: str) -> Line:
    """One quantity of several runs over their steps."""
    looks = list(zip(*runs))
    steps = [look[0].step for look in looks]
    return line(label, steps, [tensor([getattr(one, name) for one in look]) for look in looks])


def panels_of(arms: Arms, attention: Iterable[Line]) -> list[FigurePanel]:
    """κ by heads before training; κ and loss of the starts over training."""
    panels = [
        FigurePanel(
            title="κ of the head outputs, random weights",
            x="heads",
            y="κ",
            x_scale="log",
            y_scale="log",
            lines=list(attention),
        ),
        FigurePanel(
            title="κ of the head outputs in training",
            x="step",
            y="κ",
            y_scale="log",
            lines=[over_training(arm, runs, "kappa") for arm, runs in arms.runs.items()],
        ),
    ]
    late = {arm: [found[len(found) // 4 :] for found in runs] for arm, runs in arms.runs.items()}
    panels.append(
        FigurePanel(
            title="loss on held-out text, same heads, other starts",
            x="step",
            y="nats a byte",
            lines=[over_training(arm, runs, "loss") for arm, runs in late.items()],
        )
    )
    return panels


def run(settings: Settings, progress: Progress) -> Findings:
    """The whole study; grids are those of the working folder. Raises GridError where one of them does not fit."""
    with double_precision():
        source = Generator().manual_seed(settings.seed)
        progress("Gaussian matrices, and attention with random weights")
        gaussian = [
            gaussian_statement(settings.drawn, source),
            growing_statement(settings.drawn, source),
            language_model_statement(source),
        ]
        attention = attention_kappas(settings.drawn, source)
    progress("the rates of the starts")
    rates = tune(settings, progress)
    progress("the starts")
    started = run_all(arm_runs(settings, rates), settings.processes, progress)
    arms = Arms.of(started, rates)
    progress("other heads")
    heads = run_all(heads_runs(settings, rates[NONE]), settings.processes, progress)
    statements = [
        *gaussian,
        *(kappas.statement(settings.drawn) for kappas in attention),
        *trained_statements(settings, started | heads),
        *all_grid_statements(GRIDS_FOLDER),
        learned_statement(arms, settings),
        cause_statement(arms, RANDOM, "which has the same norm"),
        cause_statement(arms, LARGER, "which has the same norm, and κ of W unchanged"),
        cause_statement(arms, NONE, "the unchanged start"),
        order_statement(arms),
        speed_statement(arms),
        *not_tested(),
    ]
    panels = panels_of(arms, (kappas.line() for kappas in attention))
    return Findings(statements, panels, list(settings.seeds))


ABOUT = (
    "Saratchandran, Teney and Lucey ([arXiv 2505.20802](https://arxiv.org/abs/2505.20802)): more heads "
    "improve the conditioning of attention, so depth can fall; for a Gaussian matrix N × D, κ ≈ (√D + √N)/|√D "
    "− √N|. To tell cause from correlation, this study changes κ without touching heads: query, key and value "
    "weights start from W, from W + I, from W plus random orthogonal matrices, from W scaled to the same "
    "norm, or from orthogonal matrices as large as W. A small LeanGPT is trained from each, at its own best "
    "learning rate, with five seeds. The result speaks against κ at the start as what decides the loss. It "
    "says nothing about κ later in training, which nothing controlled: W + I starts with the lowest κ but "
    "ends with a higher κ than the starts of the same norm."
)
STUDY = Study(
    name="conditioning",
    title="Whether heads improve the conditioning of attention, and whether that is a cause: the statements of Lean",
    about=ABOUT,
    quick=QUICK,
    default=DEFAULT,
    run=run,
)
