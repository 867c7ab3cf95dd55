"""What is proved of the single-layer model, by numbers: gradients, bounds, identity at zero; and its margin."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from .single_layer import (
    Data,
    Examples,
    Weights,
    constant_steps,
    gradients,
    losses,
    outputs,
    repeated,
    zeros,
)
from .synthetic import generators, normal


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
