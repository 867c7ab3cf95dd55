"""The single-layer multi-head model of Heads-Opt (arXiv 2310.12680), its gradients in closed form, and its training.

Φ(X; W, U) = (1/√H) Σ_h ⟨U_h, softmax(X W_h Xᵀ) X⟩, the softmax over each row. Labels are ±1, the loss is the mean of
ln(1 + exp(−yΦ)). Trials stand side by side. Sizes: R trials, H heads, n examples, T tokens, d the width;
X (R, n, T, d), y (R, n), W (R, H, d, d), U (R, H, T, d).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, logsigmoid


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
        relevant = self.relevant
        if relevant is not None:
            relevant = relevant[one]
        return Examples(self.x[one], self.y[one], relevant)

    def first(self, count: int) -> "Examples":
        """The first examples of each trial."""
        relevant = self.relevant
        if relevant is not None:
            relevant = relevant[:, :count]
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
