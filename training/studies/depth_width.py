"""The study depth-width: what Depth-Width (Levine et al. 2020, arXiv 2006.12467) states of layers against width."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from torch import tensor

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning import advice
from modeling_leaner.registry import shape_names
from modeling_leaner.shapes import load_shape

from ..records import FigurePanel, Line, Statement
from .depth_trained import (
    KAPLAN,
    PAPER,
    Trained,
    flatness_statement,
    floor_statements,
    law_at_this_size,
    sharing_statement,
    train_all,
    vocabulary_statement,
)
from .depth_training import Training
from .grid_pairs import GridPair, grid_pairs, rows_in
from .separation import closed_form, separation_rank
from .study import GRIDS_FOLDER, Findings, Progress, Study
from .trials import by_majority, line, rounded, verdict


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
FULL = replace(
    DEFAULT,
    seeds=(11, 12, 13, 14, 15),
    training=replace(TRAINING, text_bytes=4_000_000, steps=4000, tuning_steps=1000),
    shapes=((1, 96), (2, 64), (3, 56), (4, 48), (6, 40), (16, 24), (36, 16)),
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


STUDY = Study(
    name="depth-width",
    title="When more layers pay: the floor and the fitted law of Depth-Width, at equal parameters",
    sizes={"quick": QUICK, "default": DEFAULT, "full": FULL},
    run=run,
    of_grids=lambda grids: [grid_statement(grids)],
    threads=1,
)
