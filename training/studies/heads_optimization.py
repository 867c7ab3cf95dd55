"""When more heads make gradient descent easier: Heads-Opt.

Deora et al. ([arXiv 2310.12680](https://arxiv.org/abs/2310.12680)) train one layer, Φ(X; W, U) = (1/√H) Σ_h ⟨U_h,
softmax(X W_h Xᵀ) X⟩, on labels ±1 by the logistic loss. Their figures are known here at second hand: from zero weights
more heads are slower under gradient descent with a constant step, and faster with a step ∝ √H, with momentum and with
Adam, on a tokenized mixture and on labels of a planted head. There are guarantees for training and generalisation.
Where the paper is silent (sizes, the parameters of both data models, rates, how weights are drawn) the values are
chosen here, after pilot runs; variants show how far a verdict depends on the choice.

**Proved here**, not the paper's, with ‖x_t‖ ≤ R: the closed form is ∇_{U_h} Φ = softmax(X W_h Xᵀ) X/√H and
∇_{W_h} Φ = (1/√H) Σ_t x_t u_{h,t}ᵀ Xᵀ S′ X with S′ = diag(s) − s sᵀ, s the row of token t. The bounds are
‖∇_U Φ‖ ≤ √T·R; ‖∇_W Φ‖ ≤ R³√(T/H)·‖U‖; ‖∇²Φ‖ ≤ β = (R³√T/√H)(1 + 2R² max_h ‖U_h‖); λ_min(∇²L) ≥ −β·L;
‖∇L‖ ≤ R√T·√(1 + R⁴‖U‖²/H)·L. From zero weights all heads get the same gradient for ever, and H heads under η are one
head u = √H·U with the step η for u and η/H for W: H sets step sizes, and nothing else.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Generator, Tensor
from torch.nn.functional import cosine_similarity, logsigmoid

from .study import Study, double_precision, line, most, slope


@dataclass(frozen=True)
class Mixture:
    """The tokenized mixture (DM1): a label is carried by some of an example's tokens, which stand anywhere in it.

    `signal` is the norm of these relevant tokens, `noise` that of the others, on average.
    """

    tokens: int = 10
    width: int = 20
    relevant: int = 1
    signal: float = 2.0
    noise: float = 2.0
    train: int = 100
    test: int = 300
    fixed_places: bool = False


@dataclass(frozen=True)
class Planted:
    """The planted head: labels are the sign of a single-head model of Gaussian tokens.

    Entries of W* are N(0, `sharpness`²/d), so that ⟨x, W* x′⟩ has that deviation times √d.
    """

    tokens: int = 5
    width: int = 5
    sharpness: float = 1.0
    train: int = 1000
    test: int = 3000


@dataclass(frozen=True)
class Settings:
    """Examples of `planted` and `mixture` are as in the paper but for quick."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    mixture: Mixture = field(default_factory=Mixture)
    planted: Planted = field(default_factory=Planted)
    heads: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 300
    gap_examples: tuple[int, ...] = (25, 50, 100, 200, 400)
    margin_examples: int = 100
    margin_heads: tuple[int, ...] = (1, 4, 16)
    margin_radii: tuple[float, ...] = (1.0, 2.0, 4.0)
    draws: int = 1000
    identity_steps: int = 60
    variants: bool = True


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
    variants=False,
)
MIXTURE = "tokenized mixture"
PLANTED = "planted head"


def run(study: Study, settings: Settings) -> None:
    with double_precision():
        exact(study, settings)
        curves = train_all(settings)
        speed(study, settings, curves)
        course(study, curves)
        if settings.variants:
            variants(study, settings)
        generalisation(study, settings)
        kernel_margins(study, settings)


# The single-layer model, its gradients in closed form, and its training. Trials stand side by side. Sizes: R trials,
# H heads, n examples, T tokens, d the width; X (R, n, T, d), y (R, n), W (R, H, d, d), U (R, H, T, d).


class Weights(NamedTuple):
    """W (R, H, d, d), keys and queries as one matrix, and U (R, H, T, d), values and decoder as one."""

    w: Tensor
    u: Tensor

    def less(self, gradient: "Weights", step_w: float, step_u: float) -> "Weights":
        """These weights less a step."""
        return Weights(self.w - step_w * gradient.w, self.u - step_u * gradient.u)


class Examples(NamedTuple):
    """X (R, n, T, d) with labels y (R, n); `relevant` (R, n, T) marks the tokens that carry the label, if any do."""

    x: Tensor
    y: Tensor
    relevant: Tensor | None = None

    def first(self, count: int) -> "Examples":
        """The first examples of each trial, unmarked."""
        return Examples(self.x[:, :count], self.y[:, :count])


def attention(x: Tensor, w: Tensor) -> Tensor:
    """softmax(X W_h Xᵀ) over each row: (R, n, T, H, T); heads beside rows, so that no product repeats X."""
    trials, count, tokens, width = x.shape
    heads = w.shape[1]
    beside = w.transpose(1, 2).reshape(trials, width, heads * width)
    queries = x.reshape(trials, count * tokens, width) @ beside
    rows = queries.view(trials, count, tokens * heads, width) @ x.mT
    return torch.softmax(rows, -1).view(trials, count, tokens, heads, tokens)


def attend(softmax: Tensor, x: Tensor) -> Tensor:
    """softmax(X W_h Xᵀ) X: (R, n, T, H, d)."""
    trials, count, tokens, heads, _ = softmax.shape
    return (softmax.flatten(2, 3) @ x).view(trials, count, tokens, heads, -1)


def combine(attended: Tensor, weights: Weights) -> Tensor:
    """Φ from the heads' outputs: (R, n)."""
    trials, count, *_ = attended.shape
    u = weights.u.transpose(1, 2).reshape(trials, -1, 1)
    return (attended.reshape(trials, count, -1) @ u).squeeze(-1) / weights.w.shape[1] ** 0.5


def outputs(x: Tensor, weights: Weights) -> Tensor:
    """Φ of every example: (R, n)."""
    return combine(attend(attention(x, weights.w), x), weights)


def losses(phi: Tensor, y: Tensor) -> Tensor:
    """The mean logistic loss of each trial: (R,)."""
    return -logsigmoid(y * phi).mean(-1)


def gradients(examples: Examples, weights: Weights, coefficients: Tensor | None = None) -> Weights:
    """Σ_i c_i ∇Φ(X_i), in closed form; without `coefficients` c (R, n) those of the mean logistic loss.

    ∇_{U_h} Φ = softmax(X W_h Xᵀ) X / √H, and ∇_{W_h} Φ = (1/√H) Σ_t x_t u_{h,t}ᵀ Xᵀ S′ X with S′ = diag(s) − s sᵀ,
    s the row of token t.
    """
    x = examples.x
    trials, count, tokens, width = x.shape
    heads = weights.w.shape[1]
    softmax = attention(x, weights.w)
    attended = attend(softmax, x)
    if coefficients is None:
        phi = combine(attended, weights)
        coefficients = -examples.y * torch.sigmoid(-examples.y * phi) / count
    scaled = coefficients / heads**0.5
    of_u = (scaled.unsqueeze(1) @ attended.reshape(trials, count, -1)).view(trials, tokens, heads, width)
    beside = weights.u.transpose(1, 2).reshape(trials, 1, tokens * heads, width)
    values = (beside @ x.mT).view_as(softmax)  # ⟨u_t, x_s⟩
    weighted = softmax * values
    inner = weighted - softmax * weighted.sum(-1, keepdim=True)  # S′ X u_t, a row per token t
    inner = inner * scaled[:, :, None, None, None]
    moved = attend(inner, x).reshape(trials, count * tokens, heads * width)
    of_w = x.reshape(trials, count * tokens, width).mT @ moved
    return Weights(of_w.view(trials, width, heads, width).transpose(1, 2), of_u.transpose(1, 2))


def zeros(trials: int, heads: int, tokens: int, width: int) -> Weights:
    return Weights(torch.zeros(trials, heads, width, width), torch.zeros(trials, heads, tokens, width))


# The data models.


@dataclass(frozen=True)
class Data:
    """Training and test examples of a data model, and its planted W* (R, d, d), if it has one."""

    train: Examples
    test: Examples
    planted: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Trials, tokens, width."""
        trials, _, tokens, width = self.train.x.shape
        return trials, tokens, width


def generators(seeds: Iterable[int]) -> list[Generator]:
    """One for each trial."""
    return [Generator().manual_seed(seed) for seed in seeds]


def normal(source: list[Generator], *sizes: int) -> Tensor:
    """Standard normal (R, *sizes), trial by trial, so that a trial does not depend on how many there are."""
    return torch.stack([torch.randn(sizes, generator=each) for each in source])


def mixture_examples(source: list[Generator], means: Tensor, count: int, mixture: Mixture) -> Examples:
    """Examples whose relevant tokens are `signal` times the mean of their class; each label with probability half."""
    labels = torch.stack([torch.randint(0, 2, (count,), generator=each) for each in source])  # (R, n)
    if mixture.fixed_places:
        order = torch.arange(mixture.tokens).expand(len(source), count, -1)
    else:
        places = (count, mixture.tokens)
        order = torch.stack([torch.rand(places, generator=each) for each in source]).argsort(-1)
    relevant = order < mixture.relevant  # (R, n, T)
    noise = normal(source, count, mixture.tokens, mixture.width) * mixture.noise / math.sqrt(mixture.width)
    chosen = torch.gather(means, 1, labels.unsqueeze(-1).expand(-1, -1, mixture.width))  # (R, n, d)
    x = torch.where(relevant.unsqueeze(-1), mixture.signal * chosen.unsqueeze(2), noise)
    return Examples(x, 2.0 * labels - 1, relevant)


def mixture_data(mixture: Mixture, seeds: Iterable[int]) -> Data:
    """Training and test examples of the tokenized mixture, with the same two means."""
    source = generators(seeds)
    basis, _ = torch.linalg.qr(normal(source, mixture.width, 2))
    train, test = (mixture_examples(source, basis.mT, count, mixture) for count in (mixture.train, mixture.test))
    return Data(train, test)


def planted_data(planted: Planted, seeds: Iterable[int]) -> Data:
    """Training and test examples of one planted head."""
    source = generators(seeds)
    w = normal(source, 1, planted.width, planted.width) * planted.sharpness / math.sqrt(planted.width)
    head = Weights(w, normal(source, 1, planted.tokens, planted.width))
    parts = []
    for count in (planted.train, planted.test):
        x = normal(source, count, planted.tokens, planted.width)
        parts.append(Examples(x, torch.sign(outputs(x, head))))
    return Data(*parts, planted=w.squeeze(1))


def data_of(name: str, settings: Settings) -> Data:
    if name == MIXTURE:
        return mixture_data(settings.mixture, settings.seeds)
    return planted_data(settings.planted, settings.seeds)


# Training runs: figures 2 to 5 of the paper, from zero weights and from random ones, which it does not state.

STEP = 1.0  # η of gradient descent with one head
MOMENTUM = 0.9
CONSTANT = "GD, constant step"
ROOT = "GD, step ∝ √H"
WITH_MOMENTUM = "GD with momentum, step ∝ √H"
ADAM = "Adam"
OPTIMISERS: dict[str, Callable[[Weights, int], torch.optim.Optimizer]] = {  # by the number of heads
    CONSTANT: lambda weights, heads: torch.optim.SGD(weights, lr=STEP),
    ROOT: lambda weights, heads: torch.optim.SGD(weights, lr=STEP * math.sqrt(heads)),
    # so that the steps add up to those without momentum
    WITH_MOMENTUM: lambda weights, heads: torch.optim.SGD(
        weights, lr=(1 - MOMENTUM) * STEP * math.sqrt(heads), momentum=MOMENTUM
    ),
    ADAM: lambda weights, heads: torch.optim.Adam(weights, lr=0.01),
}
FIGURES = {  # data and optimiser → place in the paper, and what it says of more heads
    (MIXTURE, CONSTANT): ("figure 2", "slower"),
    (MIXTURE, ROOT): ("figure 3", "faster"),
    (MIXTURE, ADAM): ("figure 3", "faster"),
    (PLANTED, WITH_MOMENTUM): ("figure 5", "faster"),
    (PLANTED, ADAM): ("figure 5", "faster"),
}
FIGURE_4 = (PLANTED, ROOT)  # of which no outcome is known here
STARTS = ("zero", "random")
SHARES = (0.1, 1 / 3, 1.0)  # of the steps, at which runs are compared

Reading = dict[str, Tensor]
"""A look at all trials: training and test loss (R,); and the share of attention on relevant tokens, or the alignment,
the cosine of W_h with the planted one, mean over the heads."""
Curves = dict[int, dict[int, Reading]]  # by heads and step


def read(weights: Weights, data: Data) -> Reading:
    """What there is to see of the weights now."""
    found = {
        "train_loss": losses(outputs(data.train.x, weights), data.train.y),
        "test_loss": losses(outputs(data.test.x, weights), data.test.y),
    }
    if data.test.relevant is not None:
        on_relevant = attention(data.test.x, weights.w) * data.test.relevant[:, :, None, None, :]
        found["relevant_mass"] = on_relevant.sum(-1).mean((1, 2, 3))
    if data.planted is not None:
        planted = data.planted.flatten(1).unsqueeze(1)
        found["alignment"] = cosine_similarity(weights.w.flatten(2), planted, dim=-1).mean(1)
    return found


def train(data: Data, weights: Weights, optimiser: str, looks: list[int]) -> dict[int, Reading]:
    """Trains all trials at once, in place, and looks at them after so many steps, `looks` in rising order."""
    optimizer = OPTIMISERS[optimiser](weights, weights.w.shape[1])
    readings = {0: read(weights, data)}
    for number in range(1, looks[-1] + 1):
        weights.w.grad, weights.u.grad = gradients(data.train, weights)
        optimizer.step()
        if number in looks:
            readings[number] = read(weights, data)
    return readings


def random_weights(heads: int, data: Data, seeds: Iterable[int]) -> Weights:
    """W_h with entries of N(0, 1/d) and U_h of N(0, 1/(T·d)), so that each has a norm of about √d and 1."""
    _, tokens, width = data.sizes
    source = generators(1_000_000 + seed for seed in seeds)  # apart from those of the examples
    w = normal(source, heads, width, width) / math.sqrt(width)
    return Weights(w, normal(source, heads, tokens, width) / math.sqrt(tokens * width))


def compared_steps(steps: int) -> list[int]:
    return [max(round(share * steps), 1) for share in SHARES]


def train_curves(data: Data, optimiser: str, start: str, heads: Iterable[int], settings: Settings) -> Curves:
    """Every number of heads, all trials at once, looked at about evenly on a logarithmic axis."""
    steps = settings.steps
    looks = sorted({0, *(round(steps ** (place / 12)) for place in range(13)), *compared_steps(steps)})
    trials, tokens, width = data.sizes
    curves = {}
    for number in heads:
        weights = zeros(trials, number, tokens, width)
        if start == "random":
            weights = random_weights(number, data, settings.seeds)
        curves[number] = train(data, weights, optimiser, looks)
    return curves


Runs = dict[tuple[str, str, str], Curves]  # by data, optimiser and start


def train_all(settings: Settings) -> Runs:
    """The training runs of all figures from both starts."""
    runs = {}
    for name, optimiser in (*FIGURES, FIGURE_4):
        data = data_of(name, settings)
        for start in STARTS:
            print(f"{name}, {optimiser}, from {start} weights", flush=True)
            runs[name, optimiser, start] = train_curves(data, optimiser, start, settings.heads, settings)
    return runs


def trials_lower(curves: Curves, quantity: str, is_more: bool = True) -> list[int]:
    """In how many trials a loss is lower with the most heads than with the fewest, at each of the compared steps.

    The reverse if not `is_more`.
    """
    few, many = curves[min(curves)], curves[max(curves)]
    low, high = (many, few) if is_more else (few, many)
    return [int((low[step][quantity] < high[step][quantity]).sum()) for step in compared_steps(max(few))]


def is_as_said(curves: Curves, expected: str, trials: int) -> bool:
    """Whether more heads are `expected` (faster, slower) by training loss, in most trials at every compared step."""
    return min(trials_lower(curves, "train_loss", expected == "faster")) >= most(trials)


def speed(study: Study, settings: Settings, runs: Runs) -> None:
    """Figures 2, 3 and 5, from zero and then from random weights; and the test loss at the end."""
    trials = len(settings.seeds)
    for start in STARTS:
        for (data, optimiser), (place, expected) in FIGURES.items():
            curves = runs[data, optimiser, start]
            few, many = min(curves), max(curves)
            numbers = {}
            for quantity in ("train_loss", "test_loss"):
                for step, lower in zip(compared_steps(settings.steps), trials_lower(curves, quantity)):
                    for heads in (few, many):
                        mean = curves[heads][step][quantity].mean().item()
                        numbers[f"{quantity} with H = {heads} after {step} steps"] = mean
                    name = f"trials of {trials} in which H = {many} is lower after {step} steps"
                    numbers[f"{quantity}: {name}"] = lower
            of_paper = ", which the paper does not state" if start == "random" else ""
            study.add(
                f"{place}, second-hand" if start == "zero" else f"asked here, {place}",
                f"More heads are {expected}: {data}, {optimiser}, from {start} weights{of_paper}.",
                f"training loss {'lower' if expected == 'faster' else 'higher'} with the most heads than with the "
                f"fewest in {most(trials)} of {trials} trials at each of a tenth, a third and the whole of the steps",
                is_as_said(curves, expected, trials),
                numbers,
            )
            if start == "zero":
                lines = [
                    line(f"H = {heads}", [*each][1:], [reading["train_loss"] for reading in [*each.values()][1:]])
                    for heads, each in curves.items()
                ]
                study.plot(f"{data}, {optimiser}, from zero", "steps", "training loss", lines, log="xy")
    better = {
        f"{data}, {optimiser}: trials with lower test loss at the end": trials_lower(
            runs[data, optimiser, "zero"], "test_loss"
        )[-1]
        for (data, optimiser), (_, expected) in FIGURES.items()
        if expected == "faster"
    }
    study.add(
        "asked here, figures 3, 5",
        "Where more heads are said to be faster, their test loss at the end is lower, too (from zero weights).",
        f"in {most(trials)} of {trials} trials, for every data model and optimiser of figures 3 and 5",
        min(better.values()) >= most(trials),
        better,
    )


def course(study: Study, runs: Runs) -> None:
    """How fast losses fall; where the heads turn, and what they attend to."""
    slopes = {}
    for heads, readings in runs[MIXTURE, CONSTANT, "zero"].items():
        late = [step for step in readings if step >= max(readings) * SHARES[1] - 1]
        slopes[f"slope with H = {heads}"] = slope(late, [readings[step]["train_loss"].mean().item() for step in late])
    study.add(
        "figure 2, second-hand",
        f"The training loss falls as O(1/t): {MIXTURE}, {CONSTANT}, from zero weights.",
        "slope of ln loss over ln t in the last two thirds of the steps at most -0.9 for every H",
        max(slopes.values()) <= -0.9,
        slopes,
    )
    rises, numbers = [], {}
    for start in STARTS:
        for heads, readings in runs[*FIGURE_4, start].items():
            first, *_, last = (readings[step]["alignment"] for step in compared_steps(max(readings)))
            rises.append(bool((last > first).all()))
            numbers[f"alignment with H = {heads} from {start} weights"] = last.mean().item()
    study.add(
        "asked here, figure 4, which plots it; its outcome is not known here",
        f"The heads turn towards the planted one: {PLANTED}, {ROOT}.",
        "mean cosine higher at the end than after a tenth of the steps in every trial, for every H and both starts",
        all(rises),
        numbers,
    )
    more, masses = [], {}
    for optimiser in (CONSTANT, ROOT, ADAM):
        curves = runs[MIXTURE, optimiser, "zero"]
        mass = {heads: readings[max(readings)]["relevant_mass"].mean().item() for heads, readings in curves.items()}
        more.append(mass[max(mass)] >= mass[min(mass)])
        masses |= {f"mass with H = {heads}, {optimiser}": each for heads, each in mass.items()}
    study.add(
        "asked here, figures 2, 3, which plot it; its outcome is not known here",
        f"More heads put more attention on the relevant tokens: {MIXTURE}, from zero weights.",
        "mean mass at the end higher with the most heads than with the fewest, for every optimiser",
        all(more),
        masses,
    )


VARIANTS = {  # data model → its field of Settings, and what is changed in it
    MIXTURE: (
        "mixture",
        ({"noise": 1.0}, {"relevant": 3}, {"signal": 4.0}, {"tokens": 20}, {"width": 40}, {"fixed_places": True}),
    ),
    PLANTED: ("planted", ({"sharpness": 2.0}, {"sharpness": 0.5}, {"tokens": 8}, {"width": 8})),
}


def variants(study: Study, settings: Settings) -> None:
    """Figures 2, 3 and 5 with other parameters of the generators."""
    ends = (min(settings.heads), max(settings.heads))
    numbers, alike = {}, []
    for (name, optimiser), (place, expected) in FIGURES.items():
        part, changes = VARIANTS[name]
        agree = 0
        for change in changes:
            print(f"{name} with {change}, {optimiser}", flush=True)
            data = data_of(name, replace(settings, **{part: replace(getattr(settings, part), **change)}))
            curves = train_curves(data, optimiser, "zero", ends, settings)
            agree += is_as_said(curves, expected, len(settings.seeds))
        alike.append(agree in (0, len(changes)))
        numbers[f"{place}, {name}, {optimiser}: agrees in"] = agree
        numbers[f"{place}, {name}, {optimiser}: variants"] = len(changes)
    study.add(
        "asked here, figures 2, 3, 5",
        "The verdicts on figures 2, 3 and 5 do not depend on the generators' parameters, all chosen here.",
        "each agrees in all variants of its generator, or in none",
        all(alike),
        numbers,
    )


# Generalisation, and the margin of the kernel features after one step.


def generalisation(study: Study, settings: Settings) -> None:
    """Test loss less training loss after all steps of gradient descent, by the number of examples."""
    data = mixture_data(replace(settings.mixture, train=max(settings.gap_examples)), settings.seeds)
    trials, tokens, width = data.sizes
    gaps = {}
    for count in settings.gap_examples:
        weights = zeros(trials, max(settings.margin_heads), tokens, width)
        end = train(Data(data.train.first(count), data.test), weights, CONSTANT, [settings.steps])[settings.steps]
        gaps[count] = end["test_loss"] - end["train_loss"]
    fewest, *_, greatest = gaps.values()
    means = {count: gap.mean().item() for count, gap in gaps.items()}
    study.add(
        "generalisation guarantee, second-hand",
        f"The gap of test and training loss closes with more examples: {MIXTURE}, {CONSTANT}.",
        f"smaller with the most examples than with the fewest in {most(trials)} of {trials} trials",
        int((greatest < fewest).sum()) >= most(trials),
        {
            "slope": slope(list(means), list(means.values())) if min(means.values()) > 0 else None,
            **{f"gap with {count} examples": mean for count, mean in means.items()},
        },
    )


def kernel_features(x: Tensor, weights: Weights) -> Tensor:
    """∇Φ(X_i) with respect to all weights, for the examples x (n, T, d) of one trial: (n, parameters)."""
    count = len(x)
    same = Weights(*(part.expand(count, -1, -1, -1) for part in weights))
    return flat(gradients(Examples(x.unsqueeze(1), torch.ones(count, 1)), same, torch.ones(count, 1)))


def margin(features: Tensor, labels: Tensor) -> float:
    """The largest γ with y_i ⟨feature_i, θ⟩ ≥ γ for all i and some θ of norm 1; 0 if the labels are not separable.

    The dual of the hard-margin machine without offset: with Q_ij = y_i y_j ⟨feature_i, feature_j⟩ and α ≥ 0 that
    maximise Σα − αᵀQα/2, γ = 1/√Σα; a problem of non-negative least squares.
    """
    signed = (features * labels.unsqueeze(1)).numpy()
    gram = signed @ signed.T
    gram += 1e-12 * np.trace(gram) / len(gram) * np.eye(len(gram))
    lower = np.linalg.cholesky(gram)
    dual, _ = nnls(lower.T, np.linalg.solve(lower, np.ones(len(gram))))
    direction = signed.T @ dual
    size = np.linalg.norm(direction)
    return max(float((signed @ direction).min() / size), 0.0) if size else 0.0


def step_margins(data: Data, heads: int, radius: float, seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """The margin of each trial, (R,), before and after one step of gradient descent, which is random.

    From W = 0 and U_h with entries of N(0, 1/(T·d)); tokens are scaled so that a trial's largest norm is `radius`.
    """
    trials, tokens, width = data.sizes
    factor = (radius / data.train.x.norm(dim=-1).amax((1, 2)))[:, None, None, None]
    examples = Examples(data.train.x * factor, data.train.y)
    u = normal(generators(seeds), heads, tokens, width) / math.sqrt(tokens * width)
    weights = Weights(torch.zeros(trials, heads, width, width), u)
    after = weights.less(gradients(examples, weights), STEP, STEP)
    before, behind = (
        torch.tensor([margin(kernel_features(x, Weights(w, u)), y) for x, y, w, u in zip(*examples[:2], *state)])
        for state in (weights, after)
    )
    return before, behind


def kernel_margins(study: Study, settings: Settings) -> None:
    """Whether the examples are separable by ∇Φ after the step, and by how much."""
    few, many = min(settings.margin_heads), max(settings.margin_heads)
    largest = max(settings.margin_radii)
    wider, summary, lines = [], {}, []
    for name, source in ((MIXTURE, "margin after one step, second-hand"), (PLANTED, "asked here, margin")):
        data = data_of(name, settings)
        data = Data(data.train.first(settings.margin_examples), data.test)
        after: dict[tuple[int, float], Tensor] = {}
        numbers = {}
        for radius in settings.margin_radii:
            for heads in settings.margin_heads:
                before, after[heads, radius] = step_margins(data, heads, radius, settings.seeds)
                named = f"margin with H = {heads}, R = {radius:g}"
                numbers[f"{named}, before the step"] = before.mean().item()
                numbers[f"{named}, after it"] = after[heads, radius].mean().item()
        study.add(
            source,
            f"After one random gradient step the examples are separable by ∇Φ with a margin: {name}.",
            "a margin above 0 in every trial, for every H and R",
            all(bool((found > 0).all()) for found in after.values()),
            numbers,
        )
        means = {key: found.mean().item() for key, found in after.items()}
        wider += [means[many, radius] > means[few, radius] for radius in settings.margin_radii]
        by_radius = [means[many, radius] for radius in settings.margin_radii]
        if min(by_radius) > 0:
            summary[f"slope of ln margin over ln R with H = {many}, {name}"] = slope(settings.margin_radii, by_radius)
        for heads in (few, many):
            summary[f"margin with H = {heads}, R = {largest:g}, {name}"] = means[heads, largest]
        for radius in (settings.margin_radii[0], settings.margin_radii[-1]):
            by_heads = [after[heads, radius] for heads in settings.margin_heads]
            lines.append(line(f"{name}, R = {radius:g}", settings.margin_heads, by_heads))
    study.add(
        "asked here, margin after one step",
        "The margin after the step grows with the number of heads.",
        "mean margin wider with the most heads than with the fewest, for every R and both data models",
        all(wider),
        summary,
    )
    study.plot("margin of ∇Φ after one step", "heads", "margin", lines, log="xy")


# What is proved here, by random draws.

EXACT = 1e-12  # largest relative error of what is proved
BOUND_SIZES = ((1, 4, 3, 3), (2, 3, 3, 3), (3, 2, 2, 4), (4, 3, 4, 2), (2, 4, 4, 4))  # heads, examples, tokens, width
BOUNDS = ("‖∇_U Φ‖", "‖∇_W Φ‖", "‖∇²Φ‖", "−λ_min(∇²L)", "‖∇L‖")


def draw(trials: int, heads: int, count: int, tokens: int, width: int, source: Generator) -> tuple[Examples, Weights]:
    """Gaussian examples and weights, each trial on a scale of its own between 1/3 and 3; labels ±1 at random."""
    scales = torch.exp((2 * torch.rand(3, trials, generator=source) - 1) * math.log(3))
    x = torch.randn(trials, count, tokens, width, generator=source) * scales[0, :, None, None, None]
    y = 2.0 * torch.randint(0, 2, (trials, count), generator=source) - 1
    w = torch.randn(trials, heads, width, width, generator=source) * scales[1, :, None, None, None]
    u = torch.randn(trials, heads, tokens, width, generator=source) * scales[2, :, None, None, None]
    return Examples(x, y), Weights(w, u)


def differing(weights: Weights) -> Weights:
    """The same, for autograd."""
    return Weights(*(part.clone().requires_grad_() for part in weights))


def gradient_error(examples: Examples, weights: Weights) -> float:
    """The largest difference of the closed gradients of the loss from autograd's, over their largest entry."""
    free = differing(weights)
    expected = torch.autograd.grad(losses(outputs(examples.x, free), examples.y).sum(), free)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(gradients(examples, weights), expected))


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    """Gradients with respect to W and U side by side: (R, parameters)."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def hessians(value: Tensor, weights: Weights) -> Tensor:
    """Of a value (R,) that depends on the weights, trial by trial: (R, parameters, parameters)."""
    gradient = flat(torch.autograd.grad(value.sum(), weights, create_graph=True))
    rows = []
    for number in range(gradient.shape[1]):
        row = torch.autograd.grad(gradient[:, number].sum(), weights, retain_graph=True, materialize_grads=True)
        rows.append(flat(row).detach())
    return torch.stack(rows, 1)


def bound_ratios(examples: Examples, weights: Weights) -> dict[str, Tensor]:
    """Each of BOUNDS as a share of its bound, (R,); at most 1 if the bound holds. Φ is that of the first example.

    With ‖x_t‖ ≤ R: √T·R; R³ √(T/H) ‖U‖; β = (R³ √T/√H)(1 + 2R² max_h ‖U_h‖); β·L; R √T √(1 + R⁴ ‖U‖²/H) · L.
    """
    x = examples.x
    tokens = x.shape[2]
    heads = weights.w.shape[1]
    weights = differing(weights)
    norms = weights.u.detach().flatten(2).norm(dim=-1)  # (R, H)
    radius = x.norm(dim=-1).amax((1, 2))
    first_radius = x[:, 0].norm(dim=-1).amax(1)
    phi = outputs(x, weights)
    of_w, of_u = torch.autograd.grad(phi[:, 0].sum(), weights, retain_graph=True)
    loss = losses(phi, examples.y)
    of_loss = flat(torch.autograd.grad(loss.sum(), weights, retain_graph=True)).norm(dim=1)
    curvature = torch.linalg.eigvalsh(hessians(phi[:, 0], weights))
    least = torch.linalg.eigvalsh(hessians(loss, weights))[:, 0]
    value = loss.detach()

    def smoothness(reach: Tensor) -> Tensor:
        return reach**3 * math.sqrt(tokens / heads) * (1 + 2 * reach**2 * norms.amax(1))

    whole = norms.norm(dim=1)
    steepest = radius * math.sqrt(tokens) * torch.sqrt(1 + radius**4 * whole**2 / heads)
    measured = (of_u.flatten(1).norm(dim=1), of_w.flatten(1).norm(dim=1), curvature.abs().amax(1), -least, of_loss)
    allowed = (
        math.sqrt(tokens) * first_radius,
        first_radius**3 * math.sqrt(tokens / heads) * whole,
        smoothness(first_radius),
        smoothness(radius) * value,
        steepest * value,
    )
    return {name: size / most for name, size, most in zip(BOUNDS, measured, allowed)}


def identity_at_zero(data: "Data", heads: int, step: float, steps: int) -> tuple[float, float]:
    """Trains H heads by η, and one head u = √H·U by η for u and η/H for W, both from zero.

    Returns:
        the spread of the heads' weights, over their largest entry, and the distance of Φ of the two on the training
        examples, over its largest.
    """
    trials, tokens, width = data.sizes
    many = zeros(trials, heads, tokens, width)
    one = zeros(trials, 1, tokens, width)
    for _ in range(steps):
        many = many.less(gradients(data.train, many), step, step)
        one = one.less(gradients(data.train, one), step / heads, step)
    spread = max((part - part[:, :1]).abs().max().item() / part.abs().max().item() for part in many)
    expected = outputs(data.train.x, one)
    distance = (outputs(data.train.x, many) - expected).abs().max() / expected.abs().max()
    return spread, distance.item()


def exact(study: Study, settings: Settings) -> None:
    """The closed gradients, the bounds, and that heads from zero are one."""
    source = Generator().manual_seed(settings.seeds[0])
    each = settings.draws // len(BOUND_SIZES)
    draws = [draw(each, *sizes, source) for sizes in BOUND_SIZES]
    error = max(gradient_error(*one) for one in draws)
    study.add(
        "derived here",
        "The gradients of the model have a closed form.",
        f"largest error against autograd, over the largest entry, at most {EXACT:g}",
        error <= EXACT,
        {"largest error": error, "draws": each * len(draws)},
    )
    ratios = [bound_ratios(*one) for one in draws]
    largest = {name: max(ratio[name].max().item() for ratio in ratios) for name in BOUNDS}
    study.add(
        "derived here",
        "Gradient, curvature and self-bounded weak convexity have bounds in R, T, H and ‖U‖, proved here; they are "
        "not the paper's, whose constants are not known here.",
        "no draw above its bound",
        max(largest.values()) <= 1 + EXACT,
        {f"{name} over its bound": value for name, value in largest.items()},
    )
    data = data_of(MIXTURE, settings)
    found = [identity_at_zero(data, heads, STEP, settings.identity_steps) for heads in settings.heads if heads > 1]
    spread, distance = (max(values) for values in zip(*found))
    study.add(
        "derived here",
        "From zero weights H heads under gradient descent by η are one head u = √H·U by η for u and η/H for W, so the "
        "effect of H in figure 2 is one of step sizes, not of different heads.",
        f"spread of the heads and distance from the one head at most {EXACT:g}, relative",
        max(spread, distance) <= EXACT,
        {"spread": spread, "distance": distance, "steps": settings.identity_steps},
    )
