"""The study heads-optimization: what Heads-Opt (arXiv 2310.12680) states of heads and gradient descent.

Where the paper is silent (sizes, the generators' parameters, rates, how weights are drawn) the values are chosen here;
`VARIANTS` has others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..records import FigurePanel, Statement
from .heads_curves import ADAM, CONSTANT, PAPER, ROOT, STEP, WITH_MOMENTUM, speed_statement, train_curves
from .heads_statements import (
    FIGURES,
    MIXTURE,
    ONLY_DRAWN,
    PLANTED,
    STARTS,
    Runs,
    alignment_statement,
    attention_statement,
    realizable_statement,
    speed_statements,
    test_loss_statement,
    trend_statement,
)
from .heads_theory import (
    BOUNDS,
    StepMargins,
    bound_ratios,
    draw,
    gradient_error,
    identity_at_zero,
    margins,
    scaled,
)
from .single_layer import Data, constant_steps, train, zeros
from .study import Findings, Progress, Study, double_precision
from .synthetic import Mixture, Planted, mixture_data, planted_data
from .trials import line, most, rounded, slope, verdict


EXACT = 1e-12  # largest relative error of what is proved
BOUND_SIZES = ((1, 4, 3, 3), (2, 3, 3, 3), (3, 2, 2, 4), (4, 3, 4, 2), (2, 4, 4, 4))  # heads, examples, tokens, width
MIXTURE_VARIANTS = (
    {"noise": 1.0},
    {"relevant": 3},
    {"signal": 4.0},
    {"tokens": 20},
    {"width": 40},
    {"fixed_places": True},
)
PLANTED_VARIANTS = ({"sharpness": 2.0}, {"sharpness": 0.5}, {"tokens": 8}, {"width": 8})
AXES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "norm_w": "mean ‖W_h‖",
    "norm_u": "mean ‖U_h‖",
    "relevant_mass": "attention on relevant tokens",
    "alignment": "mean cosine of W_h with W*",
}


@dataclass(frozen=True)
class Settings:
    """What one size of the study runs. Examples of `planted` and `mixture` are as in the paper but for quick."""

    seeds: tuple[int, ...]
    mixture: Mixture
    planted: Planted
    heads: tuple[int, ...]
    steps: int
    gap_examples: tuple[int, ...]
    margin_examples: int
    margin_heads: tuple[int, ...]
    margin_radii: tuple[float, ...]
    draws: int
    identity_steps: int
    variants: bool


QUICK = Settings(
    seeds=(1, 2, 3),
    mixture=Mixture(test=100),
    planted=Planted(train=200, test=300),
    heads=(1, 4),
    steps=90,
    gap_examples=(25, 50, 100),
    margin_examples=30,
    margin_heads=(1, 4),
    margin_radii=(1.0, 4.0),
    draws=100,
    identity_steps=60,
    variants=False,
)
DEFAULT = Settings(
    seeds=(1, 2, 3, 4, 5),
    mixture=Mixture(),
    planted=Planted(),
    heads=(1, 2, 4, 8),
    steps=300,
    gap_examples=(25, 50, 100, 200, 400),
    margin_examples=100,
    margin_heads=(1, 4, 16),
    margin_radii=(1.0, 2.0, 4.0),
    draws=1000,
    identity_steps=60,
    variants=True,
)
FULL = replace(DEFAULT, heads=(1, 2, 4, 8, 16, 32), steps=1000, gap_examples=(25, 50, 100, 200, 400, 800))


def data_of(name: str, settings: Settings) -> Data:
    """The examples of a data model."""
    seeds = list(settings.seeds)
    if name == MIXTURE:
        return mixture_data(settings.mixture, seeds)
    return planted_data(settings.planted, seeds)


def all_curves(settings: Settings, progress: Progress) -> Runs:
    """The training runs of all figures from both starts."""
    runs = {}
    for name in (MIXTURE, PLANTED):
        data = data_of(name, settings)
        for of_data, optimiser in (*FIGURES, *ONLY_DRAWN):
            if of_data == name:
                for start in STARTS:
                    progress(f"{name}, {optimiser}, from {start} weights")
                    runs[name, optimiser, start] = train_curves(
                        name, data, optimiser, start, settings.heads, settings.steps, list(settings.seeds)
                    )
    return runs


def varied(settings: Settings, name: str) -> Iterator[tuple[str, Settings]]:
    """The settings with one parameter of a data model's generator changed, and what was changed."""
    if name == MIXTURE:
        for change in MIXTURE_VARIANTS:
            yield str(change), replace(settings, mixture=replace(settings.mixture, **change))
    else:
        for change in PLANTED_VARIANTS:
            yield str(change), replace(settings, planted=replace(settings.planted, **change))


@dataclass(frozen=True)
class Held:
    """In how many of the variants of its data model one figure's statement agrees."""

    name: str
    agrees: int
    variants: int

    @property
    def is_settled(self) -> bool:
        return self.agrees in (0, self.variants)


def held_in_variants(settings: Settings, progress: Progress) -> list[Held]:
    """Figures 2, 3 and 5 from zero weights, with the most heads and the fewest."""
    ends = (min(settings.heads), max(settings.heads))
    seeds = list(settings.seeds)
    found = []
    for (name, optimiser), (place, expected) in FIGURES.items():
        verdicts = []
        for change, changed in varied(settings, name):
            progress(f"{name} with {change}, {optimiser}")
            data = data_of(name, changed)
            curves = train_curves(name, data, optimiser, "zero", ends, settings.steps, seeds)
            verdicts.append(speed_statement(curves, expected, place).verdict)
        found.append(Held(f"{place}, {name}, {optimiser}", verdicts.count("agrees"), len(verdicts)))
    return found


def variant_statement(settings: Settings, progress: Progress) -> Statement:
    """Figures 2, 3 and 5 with other parameters of the generators; not tested by --quick."""
    statement = "The verdicts on figures 2, 3 and 5 do not depend on the generators' parameters, all chosen here."
    common = {"paper": PAPER, "place": "figures 2, 3, 5", "whose": "asked here", "statement": statement}
    if not settings.variants:
        return Statement(
            **common,
            rule=None,
            verdict="not tested",
            finding="Left out by --quick.",
            numbers={},
            missing="about 0.1 core-hours: the default size",
        )
    found = held_in_variants(settings, progress)
    numbers = {}
    for one in found:
        numbers[f"{one.name}: agrees in"] = one.agrees
        numbers[f"{one.name}: variants"] = one.variants
    return Statement(
        **common,
        rule="each agrees in all variants of its generator, or in none",
        verdict=verdict(all(one.is_settled for one in found)),
        finding="; ".join(f"{one.name} agrees in {one.agrees} of {one.variants}" for one in found) + ".",
        numbers=numbers,
    )


def gap_by_examples(settings: Settings, progress: Progress) -> dict[int, Tensor]:
    """Test loss less training loss (R,) after all steps of gradient descent, by the number of examples."""
    most_examples = max(settings.gap_examples)
    data = mixture_data(replace(settings.mixture, train=most_examples), list(settings.seeds))
    heads = max(settings.margin_heads)
    gaps = {}
    for count in settings.gap_examples:
        progress(f"test gap with {count} examples")
        part = Data(data.train.first(count), data.test)
        weights = zeros(part.sizes[0], heads, *part.sizes[1:])
        readings, _ = train(part, weights, constant_steps(STEP), [settings.steps])
        gaps[count] = readings[-1].test_loss - readings[-1].train_loss
    return gaps


def gap_statement(gaps: dict[int, Tensor]) -> Statement:
    """Generalisation against the number of examples."""
    fewest = gaps[min(gaps)]
    narrower = int((gaps[max(gaps)] < fewest).sum())
    means = {count: gap.mean().item() for count, gap in gaps.items()}
    rate = None
    falls = "is not above 0 everywhere"
    if min(means.values()) > 0:
        rate = slope(list(means), list(means.values()))
        falls = f"falls as n to the power {rate:.2f}"
    return Statement(
        paper=PAPER,
        place="generalisation guarantee",
        whose="second-hand",
        statement=f"The gap of test and training loss closes with more examples: {MIXTURE}, {CONSTANT}.",
        rule=f"smaller with the most examples than with the fewest in {most(len(fewest))} of {len(fewest)} trials",
        verdict=verdict(narrower >= most(len(fewest))),
        finding=f"Smaller in {narrower} of {len(fewest)}; the mean {falls}. The paper's rate and constants are not "
        "known here.",
        numbers={"slope": rate, **{f"gap with {count} examples": rounded(mean) for count, mean in means.items()}},
    )


MarginsOfData = dict[tuple[int, float], StepMargins]  # by heads and radius
Margins = dict[str, MarginsOfData]  # by data model


def all_margins(settings: Settings, progress: Progress) -> Margins:
    """Margins of the kernel features of both data models, before and after one step from random weights."""
    seeds = list(settings.seeds)
    found = {}
    for name in (MIXTURE, PLANTED):
        data = data_of(name, settings)
        data = Data(data.train.first(settings.margin_examples), data.test)
        found[name] = {}
        for radius in settings.margin_radii:
            progress(f"margin of {name} with tokens up to {radius}")
            for heads in settings.margin_heads:
                found[name][heads, radius] = margins(scaled(data, radius), heads, STEP, seeds)
    return found


def margin_numbers(of_data: MarginsOfData) -> dict[str, float]:
    """The mean margins."""
    numbers = {}
    for (heads, radius), found in of_data.items():
        name = f"margin with H = {heads}, R = {radius:g}"
        numbers[f"{name}, before the step"] = rounded(found.before.mean().item())
        numbers[f"{name}, after it"] = rounded(found.after.mean().item())
    return numbers


def separable_statement(name: str, of_data: MarginsOfData, known: str) -> Statement:
    """Whether the features ∇Φ are separable after one random step."""
    positive = sum(int((found.after > 0).sum()) for found in of_data.values())
    trials = sum(len(found.after) for found in of_data.values())
    wider = sum(int((found.after > found.before).sum()) for found in of_data.values())
    return Statement(
        paper=PAPER,
        place="margin after one step",
        whose=known,
        statement=f"After one random gradient step the examples are separable by ∇Φ with a margin: {name}.",
        rule="a margin above 0 in every trial, for every H and R",
        verdict=verdict(positive == trials),
        finding=f"Above 0 in {positive} of {trials}; in {wider} of them the step widened it.",
        numbers=margin_numbers(of_data),
    )


def margin_statement(found: Margins, settings: Settings) -> Statement:
    """How the margin depends on heads and radius, as a question."""
    few = min(settings.margin_heads)
    many = max(settings.margin_heads)
    largest = max(settings.margin_radii)
    numbers = {}
    wider = []
    for name, of_data in found.items():
        after = {key: one.after.mean().item() for key, one in of_data.items()}
        for radius in settings.margin_radii:
            wider.append(after[many, radius] > after[few, radius])
        by_radius = [after[many, radius] for radius in settings.margin_radii]
        if min(by_radius) > 0:
            steep = slope(settings.margin_radii, by_radius)
            numbers[f"slope of ln margin over ln R with H = {many}, {name}"] = steep
        for heads in (few, many):
            numbers[f"margin with H = {heads}, R = {largest:g}, {name}"] = rounded(after[heads, largest])
    return Statement(
        paper=PAPER,
        place="margin after one step",
        whose="asked here",
        statement="The margin after the step grows with the number of heads.",
        rule="mean margin wider with the most heads than with the fewest, for every R and both data models",
        verdict=verdict(all(wider)),
        finding=f"Wider in {sum(wider)} of {len(wider)}; "
        + "; ".join(f"{key}: {value:.3g}" for key, value in numbers.items())
        + ".",
        numbers=numbers,
    )


def exact_statements(settings: Settings, progress: Progress) -> list[Statement]:
    """What is proved here, by random draws."""
    progress("gradients, bounds and the identity at zero")
    source = torch.Generator().manual_seed(settings.seeds[0])
    each = settings.draws // len(BOUND_SIZES)
    draws = [draw(each, *sizes, source) for sizes in BOUND_SIZES]
    error = max(map(gradient_error, draws))
    common = {"paper": PAPER, "place": "single-layer model", "whose": "derived here"}
    gradient = Statement(
        **common,
        statement="The gradients of the model have a closed form (docs/heads-optimization.md).",
        rule=f"largest error against autograd, over the largest entry, at most {EXACT:g}",
        verdict=verdict(error <= EXACT),
        finding=f"{error:.1e} over {each * len(draws):,} draws, in float64.",
        numbers={"largest error": error, "draws": each * len(draws)},
    )
    ratios = [bound_ratios(one) for one in draws]
    largest = {name: max(ratio[name].max().item() for ratio in ratios) for name in BOUNDS}
    bounds = Statement(
        **common,
        statement="Gradient, curvature and self-bounded weak convexity have bounds in R, T, H and ‖U‖, proved here; "
        "they are not the paper's, whose constants are not known here.",
        rule="no draw above its bound",
        verdict=verdict(max(largest.values()) <= 1 + EXACT),
        finding="The largest as a share of its bound: "
        + ", ".join(f"{name} {value:.2g}" for name, value in largest.items())
        + ".",
        numbers={f"{name} over its bound": rounded(value) for name, value in largest.items()},
    )
    return [gradient, bounds, *identity_statements(settings, common)]


def identity_statements(settings: Settings, common: dict[str, str]) -> list[Statement]:
    """From zero weights H heads are one."""
    data = data_of(MIXTURE, settings)
    several = [heads for heads in settings.heads if heads > 1]
    found = {heads: identity_at_zero(data, heads, STEP, settings.identity_steps) for heads in several}
    spread = max(one.spread for one in found.values())
    distance = max(one.distance for one in found.values())
    statement = (
        "From zero weights H heads under gradient descent by η are one head u = √H·U by η for u and η/H for W, so "
        "the effect of H in figure 2 is one of step sizes, not of different heads."
    )
    return [
        Statement(
            **common,
            statement=statement,
            rule=f"spread of the heads and distance from the one head at most {EXACT:g}, relative",
            verdict=verdict(max(spread, distance) <= EXACT),
            finding=f"Spread {spread:.1e}, distance of Φ {distance:.1e} after {settings.identity_steps} steps.",
            numbers={"spread": spread, "distance": distance, "steps": settings.identity_steps},
        )
    ]


def constants_statement() -> Statement:
    """What cannot be compared, for it is not known here."""
    return Statement(
        paper=PAPER,
        place="theorems",
        whose="second-hand",
        statement="Training loss and test gap are bounded, with the paper's constants, widths and step sizes.",
        rule=None,
        verdict="not tested",
        finding="Measured are the loss against 1/t, the gap against n and the margin against H and R, without a "
        "constant to compare them with.",
        numbers={},
        missing="the paper's constants and conditions, which are not known to this project; no core-hours",
    )


def panels_of(runs: Runs, gaps: dict[int, Tensor], found: Margins, settings: Settings) -> list[FigurePanel]:
    """The figure: a column on the left for what is stated, on the right for what it goes with."""
    drawn = (
        (MIXTURE, CONSTANT, "zero", "train_loss"),
        (MIXTURE, CONSTANT, "zero", "relevant_mass"),
        (MIXTURE, CONSTANT, "zero", "norm_w"),
        (MIXTURE, CONSTANT, "zero", "norm_u"),
        (MIXTURE, ROOT, "zero", "train_loss"),
        (MIXTURE, ROOT, "zero", "test_loss"),
        (MIXTURE, ADAM, "zero", "train_loss"),
        (MIXTURE, ADAM, "zero", "test_loss"),
        (PLANTED, ROOT, "zero", "alignment"),
        (PLANTED, ROOT, "random", "alignment"),
        (PLANTED, WITH_MOMENTUM, "zero", "train_loss"),
        (PLANTED, ADAM, "zero", "train_loss"),
        (MIXTURE, CONSTANT, "random", "train_loss"),
        (MIXTURE, ROOT, "random", "train_loss"),
    )
    panels = []
    for data, optimiser, start, name in drawn:
        scale = "linear"
        if name.endswith("loss"):
            scale = "log"
        lines = runs[data, optimiser, start].lines(name, least=1)
        title = f"{data}, {optimiser},\nfrom {start} weights"
        panels.append(FigurePanel(title=title, x="steps", y=AXES[name], x_scale="log", y_scale=scale, lines=lines))
    gap = line(CONSTANT, list(gaps), list(gaps.values()))
    panels.append(
        FigurePanel(
            title=f"{MIXTURE}: gap after {settings.steps} steps",
            x="examples",
            y="test − training loss",
            x_scale="log",
            lines=[gap],
        )
    )
    heads = settings.margin_heads
    by_heads = [
        line(f"{name}, R = {radius:g}", heads, [of_data[number, radius].after for number in heads])
        for name, of_data in found.items()
        for radius in (settings.margin_radii[0], settings.margin_radii[-1])
    ]
    panels.append(
        FigurePanel(
            title="margin of ∇Φ after one step", x="heads", y="margin", x_scale="log", y_scale="log", lines=by_heads
        )
    )
    return panels


def run(settings: Settings, progress: Progress) -> Findings:
    """The whole study."""
    with double_precision():
        exact = exact_statements(settings, progress)
        runs = all_curves(settings, progress)
        gaps = gap_by_examples(settings, progress)
        found = all_margins(settings, progress)
        statements = [
            *speed_statements(runs),
            trend_statement(runs),
            alignment_statement(runs),
            attention_statement(runs),
            test_loss_statement(runs),
            variant_statement(settings, progress),
            realizable_statement(runs),
            gap_statement(gaps),
            separable_statement(MIXTURE, found[MIXTURE], "second-hand"),
            separable_statement(PLANTED, found[PLANTED], "asked here"),
            margin_statement(found, settings),
            *exact,
            constants_statement(),
        ]
        return Findings(statements, panels_of(runs, gaps, found, settings), list(settings.seeds))


STUDY = Study(
    name="heads-optimization",
    title="When more heads make gradient descent easier: the single-layer model of Heads-Opt",
    sizes={"quick": QUICK, "default": DEFAULT, "full": FULL},
    run=run,
    threads=1,
)
