"""Whether heads improve the conditioning of attention, and whether that is a cause: Lean.

Saratchandran, Teney and Lucey ([arXiv 2505.20802](https://arxiv.org/abs/2505.20802)): more heads improve the
conditioning of attention, so depth can fall. To tell cause from correlation, this study changes κ without touching
heads: query, key and value weights start from W, from W + I, from W plus random orthogonal matrices, or from W scaled
to the same norm. A small LeanGPT is trained from each on the bytes of the standard library's prose, at its own best
learning rate. It says nothing about κ later in training, which nothing controls.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import NamedTuple

import pandas as pd
import torch
from torch import Generator, Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import AdamW
from transformers import get_cosine_schedule_with_warmup
from transformers.modeling_utils import local_torch_dtype

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.files import finite_or_none
from modeling_leaner.inspection import Spectrum, head_condition_numbers
from modeling_leaner.layers_leaner import LeanAttention
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM
from modeling_leaner.shapes import load_config

from ..data.builtin import python_docs
from ..experiments.grid import PEERS
from ..experiments.grid_results import GridResults, gain, load_folder
from ..experiments.statistics import frame, paired_statistics, reported_rows
from .study import Outcome, Study, most


@dataclass(frozen=True)
class Settings:
    """`drawn` are tokens and width of untrained attention. Runs are looked at evenly, `looks` times after the start,
    by the mean loss over `held_out` rows."""

    seed: int = 1
    draws: int = 20
    drawn: tuple[int, int] = (197, 768)
    drawn_heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    layers: int = 4
    width: int = 96
    heads: int = 3
    head_size: int = 32
    length: int = 128
    steps: int = 1200
    batch: int = 4
    looks: int = 16
    held_out: int = 128
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3, 4e-3)
    tuning_seeds: tuple[int, ...] = (11, 12)
    tuning_steps: int = 240


FACTOR = 2.0  # between learning rates that are tried
BYTES = 256  # the vocabulary of a text of bytes
QUICK = Settings(
    draws=5,
    drawn=(32, 64),
    drawn_heads=(1, 2, 4),
    layers=2,
    width=32,
    heads=2,
    head_size=16,
    length=64,
    steps=20,
    looks=4,
    held_out=16,
    seeds=(1, 2),
    rates=(2e-3, 4e-3),
    tuning_seeds=(11,),
    tuning_steps=10,
)


def run(study: Study, settings: Settings) -> None:
    untrained_attention(study, settings)
    finished_grids(study)

    # The best rate of each arm, by shorter runs with seeds that are not reported.
    shorter = replace(settings, steps=settings.tuning_steps, looks=1)
    rates = {
        arm: tune(
            lambda rate, arm=arm: fmean(train(shorter, arm, rate, seed)[-1].loss for seed in settings.tuning_seeds),
            settings.rates,
            more=2,
        )[0]
        for arm in ARMS
    }
    cause(study, settings, {arm: [train(settings, arm, rates[arm], seed) for seed in settings.seeds] for arm in ARMS})


@local_torch_dtype(torch.float64)
def untrained_attention(study: Study, settings: Settings) -> None:
    """More heads at one width, without and with a causal mask; X is of N(0, 1), W_Q, W_K and W_V of N(0, 1/D)."""
    draws, (tokens, width), curves = settings.draws, settings.drawn, {}
    source = Generator().manual_seed(settings.seed)
    for mask in ("bidirectional", "causal"):
        kappas = {}
        for heads in settings.drawn_heads:
            x = torch.randn(draws, tokens, width, generator=source)  # (R, N, D)
            query, key, value = (
                (x @ torch.randn(draws, width, width, generator=source) / math.sqrt(width))
                .unflatten(-1, (heads, width // heads))
                .transpose(1, 2)
                for _ in range(3)
            )
            attended = scaled_dot_product_attention(query, key, value, is_causal=mask == "causal")
            outputs = attended.transpose(1, 2).flatten(2)
            kappas[heads] = torch.tensor([Spectrum.of(matrix).condition_number for matrix in outputs])
        study.add(
            "abstract, before training",
            f"More heads improve the conditioning of attention: random weights, {mask}, a width of {width}.",
            f"κ is lower at each step to more heads in {most(draws)} of {draws} draws",
            all(int((many < few).sum()) >= most(draws) for few, many in pairwise(kappas.values())),
            {f"median κ with {heads} heads": finite_or_none(k.median().item()) for heads, k in kappas.items()},
        )
        curves[mask] = {heads: found for heads, found in kappas.items() if found.isfinite().all()}
    study.plot("κ of the head outputs, random weights", "heads", "κ", curves, log="xy")


# κ in the finished runs of the grids, at the start and the end of training. Quality is a gain: more is better.


def read_all_cells(grids: Mapping[str, GridResults]) -> pd.DataFrame:
    """The finished runs of the grids whose runs have all ended, with the columns of results.csv, `grid`, `gain` and
    `fresh`: whether the weights started at random. Without grids of cuts, which were trained before, and of
    transformers' own models; of a grid with branches those of the longest."""
    tables = [frame([]).assign(grid="", gain=0.0, fresh=True)]
    for name, results in grids.items():
        grid = results.grid
        runs = reported_rows(results)
        all_ended = len(runs) == sum(len(grid.seeds_for(shape)) for shape in grid.shapes)
        if all_ended and not grid.cuts and not name.endswith(PEERS):
            runs = runs[runs["status"] == "finished"]
            gains = gain(runs["value"], results.any_reported and results.any_reported.higher_is_better)
            tables.append(runs.assign(grid=name, gain=gains, fresh=grid.start_from is None))
    return pd.concat(tables)


class Doubling(NamedTuple):
    """Pairs of runs that differ in twice the heads alone, of one seed, from random weights, κ known at both ends.

    `lower_start`, `lower_end`: pairs in which κ is lower with more heads. `better`: those of `lower_end` in which the
    quality is higher, too.
    """

    pairs: int
    lower_start: int
    lower_end: int
    better: int


def doubling(runs: pd.DataFrame) -> Doubling:
    """What twice the heads did to κ, and in how many pairs quality rose where κ fell."""
    compared = ["kappa_start", "kappa_end", "gain"]
    same = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size")
    differences = [pd.DataFrame(columns=compared, dtype=float)]
    known = runs[runs["fresh"].astype(bool)].dropna(subset=compared)
    for _, grid in known.groupby("grid"):
        shapes = {shape: cell.set_index("seed")[compared] for shape, cell in grid.groupby("shape")}
        for few, many in permutations(shapes, 2):
            own, other = load_config(few), load_config(many)
            doubled = [2 * heads for heads in own.heads_per_layer] == list(other.heads_per_layer)
            doubled = doubled and own.head_dim == 2 * other.head_dim
            if doubled and all(getattr(own, name) == getattr(other, name) for name in same):
                differences.append((shapes[many] - shapes[few]).dropna())
    found = pd.concat(differences)
    lower_end = found["kappa_end"] < 0
    return Doubling(
        pairs=len(found),
        lower_start=int((found["kappa_start"] < 0).sum()),
        lower_end=int(lower_end.sum()),
        better=int((lower_end & (found["gain"] > 0)).sum()),
    )


def finished_grids(study: Study) -> None:
    """What twice the heads did to κ in the finished grids."""
    folders = sorted(path.parent for path in Path("model_cards/grids").glob("*/results.csv"))
    found = doubling(read_all_cells({folder.name: load_folder(folder) for folder in folders}))
    study.add(
        "asked here, the finished grids",
        "Twice the heads of half the size lower κ of trained models.",
        "κ at the end is lower in nine of ten pairs of runs",
        found.lower_end >= 0.9 * found.pairs if found.pairs else "not tested",
        found._asdict(),
    )


# The starts: each of W_Q, W_K and W_V (heads · head size, width) of every layer is changed before the first step. If W
# is not square, I has ones on its main diagonal, and a random orthogonal O has orthonormal rows or columns, whichever
# are fewer: the Frobenius norm of both is √min(heads · head size, width).

NONE = "W"
IDENTITY = "W + 1·I"
RANDOM = "W + 1·O"  # the norm of I without its direction
LARGER = f"W as large as {IDENTITY}"  # κ of W stays what it was
ARMS = (NONE, IDENTITY, RANDOM, LARGER)


def started(arm: str, weight: Tensor, source: Generator) -> Tensor:
    """W as an arm of ARMS has it."""
    if arm == NONE:
        return weight
    if arm == RANDOM:
        rows, columns = weight.shape
        drawn = torch.randn(max(rows, columns), min(rows, columns), generator=source, dtype=torch.float64)
        basis, triangle = torch.linalg.qr(drawn)
        basis = basis * triangle.diagonal().sign()  # uniform among all
        return weight + (basis.mT if rows < columns else basis).to(weight.dtype)
    moved = weight + torch.eye(*weight.shape)
    return moved if arm == IDENTITY else weight * (moved.norm() / weight.norm())


# Training. A run is decided by its settings and its seed, on one thread, and measured as it goes.


class Look(NamedTuple):
    """A run at one step: held-out loss in nats a byte, and κ of the head outputs, the geometric mean over the layers.

    κ of each layer is a median over the first eight held-out rows.
    """

    step: int
    loss: float
    kappa: float


def text_and_rows(settings: Settings) -> tuple[Tensor, Tensor]:
    """All bytes of the training split, (N), and rows (held_out, length) spread evenly over the test split: int64."""
    texts = ("\n\n".join(python_docs()[split]["text"]).encode() for split in ("train", "test"))
    text, test = (torch.frombuffer(bytearray(each), dtype=torch.uint8).long() for each in texts)
    starts = torch.linspace(0, len(test) - settings.length, settings.held_out).long()
    return text, test[starts[:, None] + torch.arange(settings.length)]


@torch.no_grad()
def new_model(settings: Settings, arm: str, seed: int) -> LeanGPTForCausalLM:
    """Before its first step; runs of one seed have the same weights before they are changed."""
    torch.manual_seed(seed)
    config = LeanGPTConfig(
        num_hidden_layers=settings.layers,
        hidden_size=settings.width,
        num_attention_heads=settings.heads,
        head_dim=settings.head_size,
        max_position_embeddings=settings.length,
        intermediate_size=4 * settings.width,
        vocab_size=BYTES,
        bos_token_id=None,
        eos_token_id=None,
        hidden_dropout_prob=0.0,  # which would hide small differences
        attention_probs_dropout_prob=0.0,
    )
    model = LeanGPTForCausalLM(config)
    source = Generator().manual_seed(1_000_000 + seed)
    for attention in model.modules():
        if isinstance(attention, LeanAttention):
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight.copy_(started(arm, projection.weight, source))
    return model


def train(settings: Settings, arm: str, rate: float, seed: int) -> list[Look]:
    """Looks before the first step and evenly up to the last. Runs of one seed have the same rows at every step."""
    steps, length = settings.steps, settings.length
    model = new_model(settings, arm, seed)
    optimizer = AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(0.1 * steps), steps)
    text, held_out = text_and_rows(settings)
    source = Generator().manual_seed(seed)
    when = {round(steps * place / settings.looks) for place in range(settings.looks + 1)}
    looks = []
    for step in range(steps + 1):
        if step in when:
            model.eval()
            with torch.no_grad():
                sums = [model(input_ids=some, labels=some).loss.item() * len(some) for some in held_out.split(32)]
                kappas = head_condition_numbers(model, input_ids=held_out[:8])
            looks.append(Look(step, sum(sums) / len(held_out), geometric_mean(kappas)))
            model.train()
        if step == steps:
            break
        starts = torch.randint(len(text) - length, (settings.batch,), generator=source)
        rows = text[starts[:, None] + torch.arange(length)]  # (B, length)
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    print(f"{arm}, rate {rate:g}, seed {seed}: loss {looks[-1].loss:.4f}", flush=True)
    return looks


def tune(loss_at: Callable[[float], float], rates: Sequence[float], more: int) -> tuple[float, dict[float, float]]:
    """The best rate and the losses of all: of `rates`, and on while the best lies at an edge, at most so many more.

    A loss that is not finite counts as the worst.
    """
    losses: dict[float, float] = {}
    due = list(rates)
    while due and len(losses) < len(rates) + more:
        for rate in due:
            loss = loss_at(rate)
            losses[rate] = loss if math.isfinite(loss) else math.inf
        best = min(losses, key=losses.__getitem__)
        beyond = {min(losses): best / FACTOR, max(losses): best * FACTOR}
        due = [beyond[best]] if best in beyond else []
    return best, losses


# Cause or correlation: what the starts have become.

MOVED = 2.0  # times by which κ must differ before its effect is asked for
MARGIN = 0.02  # nats: a smaller difference is none


def cause_outcome(difference: float, interval: tuple[float, float]) -> Outcome:
    """Of a difference of losses that is stated to be below 0, and by MARGIN at least."""
    low, high = interval
    if difference <= -MARGIN and high < 0:
        return "agrees"
    return "disagrees" if low > -MARGIN else "undecided"


def cause(study: Study, settings: Settings, arms: dict[str, list[list[Look]]]) -> None:
    """Whether a lower κ at the start, at equal norm and equal heads, gives a lower loss; `arms` are looks by seed."""
    ends = {arm: [looks[-1].loss for looks in runs] for arm, runs in arms.items()}
    kappas = {arm: geometric_mean(looks[0].kappa for looks in runs) for arm, runs in arms.items()}
    text, rows = text_and_rows(settings)
    pairs = torch.bincount(text[:-1] * BYTES + text[1:], minlength=BYTES**2).view(BYTES, BYTES).double() + 0.1
    shares = pairs / pairs.sum(dim=1, keepdim=True)  # of the bytes that follow each byte, smoothed
    bigram = -shares[rows[:, :-1], rows[:, 1:]].log().mean().item()
    worst = max(map(fmean, ends.values()))
    study.add(
        "asked here",
        "The runs of the intervention have learned more than which byte follows which.",
        "the mean loss at the end of every start is below that of a bigram of the same bytes",
        worst < bigram,
        {"bigram": bigram, "worst start": worst},
    )
    for control, why in (
        (RANDOM, "which has the same norm"),
        (LARGER, "which has the same norm, and κ of W unchanged"),
        (NONE, "the unchanged start"),
    ):
        moved = kappas[control] / kappas[IDENTITY]
        compared = paired_statistics(ends[IDENTITY], ends[control])
        difference, interval = compared["difference"], compared["interval"]
        study.add(
            "asked here, cause or correlation",
            f"A lower κ at the start, with the same heads, gives a lower loss: {IDENTITY} against {control}, {why}.",
            f"κ at the start differs by {MOVED:g} times or more; the loss at the end is lower by {MARGIN} nats or "
            "more on the mean, and the 95 % interval over the seeds excludes 0; disagrees if the interval excludes a "
            "loss lower by that much",
            cause_outcome(difference, interval) if moved >= MOVED else "not tested",
            {"κ moved by": moved, "difference of loss": difference, "low end": interval[0], "high end": interval[1]},
        )
    for title, y, name, first, log in (
        ("κ of the head outputs in training", "κ", "kappa", 0, "y"),
        ("loss, same heads, other starts", "nats a byte", "loss", (settings.looks + 1) // 4, ""),
    ):
        curves = {
            arm: {looks[0].step: [getattr(look, name) for look in looks] for looks in list(zip(*runs))[first:]}
            for arm, runs in arms.items()
        }
        study.plot(title, "step", y, curves, log)
