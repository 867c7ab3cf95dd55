"""Budgets, the goals that they set for a shape, and the error where no shape meets them."""

from collections.abc import Callable
from dataclasses import dataclass

from ..configuration_leaner import Flops, LeanConfig
from ..registry import IMAGES
from ..shapes import modality_of
from .dials import Dials, describe
from .memory import StepSetting, training_memory
from .units import human, human_bytes, human_count


TOLERANCE = 0.01  # of parameters or FLOPs that are to be met


@dataclass(frozen=True)
class Budget:
    """What shapes may cost. `parameters` (all, with the pretraining head) is a size to reach within 1 %; the others
    are ceilings, of which the tightest is used up where there is no size to reach.

    `flops`: forward, of one token, or one image. `memory`: bytes, peak of the tensors of a training step. `equal` is
    "params" or "flops": what shapes are to have in common with the starting point.
    """

    parameters: float | None = None
    flops: float | None = None
    memory: float | None = None
    equal: str | None = None


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Goal:
    """One budget: what it measures, and the value not to exceed (`ceiling`) or to reach.

    `budget` is the field of `Budget` that sets it, "equal" also where equality with the start goes without saying;
    `name` is how messages call it. `slack` is the share of the target by which it may be exceeded.
    """

    budget: str
    name: str
    target: float
    cost: Callable[[LeanConfig], float]
    ceiling: bool = True
    show: Callable[[float], str] = human
    slack: float = 0

    def cost_over_target(self, config: LeanConfig) -> float:
        return self.cost(config) / self.target

    def is_exceeded(self, config: LeanConfig) -> bool:
        return self.cost_over_target(config) - 1 > self.slack

    def is_out_of_reach(self, config: LeanConfig) -> bool:
        """Whether a shape is too small for a size to reach; a ceiling may be kept by any distance."""
        return not self.ceiling and 1 - self.cost_over_target(config) > TOLERANCE


class NoShapeFits(ValueError):
    """No shape meets the budget; the message names the nearest and by how much it misses.

    `nearest` is that shape, and `goal` what it misses; None where no budget is to blame.
    """

    def __init__(self, message: str, nearest: LeanConfig | None = None, goal: Goal | None = None):
        super().__init__(message)
        self.nearest = nearest
        self.goal = goal


@dataclass(frozen=True)
class Miss:
    """A shape that was tried, and the first goal that it misses."""

    goal: Goal
    config: LeanConfig

    @property
    def distance(self) -> float:
        return abs(self.goal.cost_over_target(self.config) - 1)

    def __str__(self) -> str:
        """The shape as the nearest one, and by how much it misses."""
        load = self.goal.cost_over_target(self.config)
        cost = self.goal.show(self.goal.cost(self.config))
        return f"the nearest, {describe(self.config)}, takes {cost}, {off_target(load)} {self.goal.name}"


def off_target(load: float) -> str:
    """How far a cost is from its target: `5.18 times`, `45.7% under`."""
    if load > 2:
        return f"{load:.3g} times"
    if load > 1:
        return f"{load - 1:.1%} over"
    return f"{1 - load:.1%} under"


def flops_per_unit(config: LeanConfig, flops: Flops) -> float:
    """Forward FLOPs of one token (text), or of one image."""
    if modality_of(config) is IMAGES:
        return flops.forward
    return flops.forward / flops.length


def total_parameters(config: LeanConfig) -> int:
    return config.count_parameters().total


def goals_of(budget: Budget, setting: StepSetting, start: LeanConfig | None) -> list[Goal]:
    """The size to reach first, if there is one, then the ceilings.

    Raises ValueError where there is no budget at all, or two sizes to reach.
    """
    if budget.equal is not None and (start is None or budget.parameters is not None):
        raise ValueError(f"--equal {budget.equal}: needs --like SHAPE and no --params, which states another size")

    def flops(config: LeanConfig) -> float:
        return flops_per_unit(config, config.count_flops(setting.length))

    def memory(config: LeanConfig) -> float:
        return training_memory(config, setting).peak

    ceilings = []
    if budget.flops is not None:
        ceilings.append(Goal("flops", f"--flops {human(budget.flops)}", budget.flops, flops))
    if budget.memory is not None:
        name = f"--memory {human_bytes(budget.memory)}"
        ceilings.append(Goal("memory", name, budget.memory, memory, show=human_bytes))
    if budget.parameters is not None:
        name = f"--params {human_count(budget.parameters)}"
        size = Goal("parameters", name, budget.parameters, total_parameters, ceiling=False, show=human_count)
        return [size, *ceilings]
    if budget.equal == "flops":
        return [equal_to("FLOPs", start, flops, human), *ceilings]
    if budget.equal is not None or (start is not None and not ceilings):
        return [equal_to("parameters", start, total_parameters, human_count), *ceilings]
    if not ceilings:
        raise ValueError("nothing to plan for: give --params, --flops, --memory, --latency or --like SHAPE")
    return ceilings


def equal_to(
    quantity: str, start: LeanConfig, cost: Callable[[LeanConfig], float], show: Callable[[float], str]
) -> Goal:
    """What the starting point costs as a goal, met within 1 % on either side."""
    target = cost(start)
    name = f"{quantity} of --like, {show(target)}"
    return Goal("equal", name, target, cost, ceiling=False, show=show, slack=TOLERANCE)


def first_missed(config: LeanConfig, goals: list[Goal]) -> Goal | None:
    """The goal that a shape misses: first those that it exceeds, then those that it does not reach. None: it fits."""
    for goal in goals:
        if goal.is_exceeded(config):
            return goal
    for goal in goals:
        if goal.is_out_of_reach(config):
            return goal
    return None


def refusal(goals: list[Goal], misses: list[Miss], dials: Dials) -> NoShapeFits:
    """The error where every shape that was tried misses a budget; it does not claim that no other would fit."""
    nearest = min(misses, key=lambda miss: miss.distance)
    if len(goals) == 1 or len(misses) == 1:
        return NoShapeFits(f"no shape fits: {nearest}", nearest.config, nearest.goal)
    sizes = ", ".join(map(str, sorted({miss.config.head_dim for miss in misses})))
    tried = f"none of {len(misses)} shapes tried (fixed: {dials}; head sizes {sizes})"
    together = " and ".join(goal.name for goal in goals)
    return NoShapeFits(f"{tried} fits {together} together: {nearest}", nearest.config, nearest.goal)
