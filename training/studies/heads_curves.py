"""Training runs of the study heads-optimization: figures 2 to 5 of the paper, from zero and random weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..records import Line, Statement
from .single_layer import (
    Data,
    Reading,
    Rule,
    Weights,
    adam_steps,
    constant_steps,
    momentum_steps,
    train,
    zeros,
)
from .synthetic import generators, normal
from .trials import line, most, rounded, verdict


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
