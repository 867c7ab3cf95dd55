"""Which shapes fit a budget or equal a starting point, what each costs, and what the sources advise about it.

Arithmetic only: no model is built. A *dial* is one of layers, width, heads, head size and MLP width; the user fixes
some, the planner walks over depths and head sizes, and solves one more so that the budget is met.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import TypeVar

from ..configuration_leaner import Flops, LeanConfig, ParameterCount
from ..shapes import family_of, load_shape, shapes_folder
from .advice import Verdict, advise, has_fused_kernel
from .memory import StepSetting, TrainingMemory, training_memory


TOLERANCE = 0.01  # of parameters or FLOPs that are to be met
STEPS = (64, 32, 16, 8, 4, 2, 1)  # a solved width is the coarsest multiple that meets the budget
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEAD_SIZES = (32, 64)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2)  # of the starting point's layers
LIMITS = {"width": 2**17, "mlp": 2**20, "layers": 1000, "heads": 2**14}
GIVEN_LIMITS = {
    **LIMITS,
    "head_dim": 256,
    "mlp_ratio": 1024,
}  # beyond these the arithmetic overflows, or takes minutes
MOST_INPUT = 2**24  # tokens, pixels, entries of a vocabulary, items of a batch
UNITS = {
    "": {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12},
    "B": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
    "s": {"S": 1, "MS": 1e-3, "US": 1e-6},
}
EXAMPLES = {"": "30M, 1.5G or 2e9", "B": "8GB or 512MiB", "s": "5ms or 0.1s"}
Shape = TypeVar("Shape")  # a configuration, or one with its costs
SIZES = {"": (1, 1e18), "B": (1, 1e18), "s": (1e-9, 1e6)}  # what makes sense, in units


def parse_size(flag: str, text: str, unit: str = "") -> float:
    """A number with a unit: `""` counts (K, M, G or B, T), `"B"` bytes, `"s"` seconds.

    Raises ValueError, naming the flag, for another unit, no number, nothing above 0, or what is beyond `SIZES`.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    factor = UNITS[unit].get(match[2].upper()) if match else None
    if factor is None or float(match[1]) <= 0:
        raise ValueError(f"{flag} {text}: expected a number above 0 with a unit, as {EXAMPLES[unit]}")
    value, (low, high) = float(match[1]) * factor, SIZES[unit]
    if not low <= value <= high:
        raise ValueError(f"{flag} {text}: expected {low:g}{unit} to {high:g}{unit}, as {EXAMPLES[unit]}")
    return value


@dataclass(frozen=True)
class Dials:
    """What is fixed of a shape; None is free. `mlp_ratio` is the MLP's width over the width."""

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None
    mlp_ratio: float | None = None


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


@dataclass(frozen=True)
class Candidate:
    """A shape with its costs and advice. `flops` is of one sequence or image, `kv_bytes_per_token` in the dtype.

    `parameters_over_start` and `flops_over_start` are None without a starting point.
    """

    config: LeanConfig
    parameters: ParameterCount
    flops: Flops
    memory: TrainingMemory
    kv_bytes_per_token: int | None
    advice: dict[str, Verdict]
    parameters_over_start: float | None = None
    flops_over_start: float | None = None

    @property
    def flops_unit(self) -> float:
        """Forward FLOPs of one token (text) or one image."""
        return flops_unit(self.config, self.flops)

    def document(self) -> dict[str, object]:
        """Everything as JSON."""
        config, flops, divisor = self.config, self.flops, self.flops.forward / self.flops_unit
        return {
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": max(config.heads_per_layer),
            "head_dim": config.head_dim,
            "mlp": config.intermediate_size,
            "parameters": self.parameters.total,
            "parameters_without_embeddings": self.parameters.without_embeddings,
            "parameters_over_start": self.parameters_over_start,
            "flops_forward": self.flops_unit,
            "flops_attention": flops.attention / divisor,
            "flops_linear": flops.linear / divisor,
            "flops_training_step": flops.training_step / divisor,
            "flops_over_start": self.flops_over_start,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "memory": asdict(self.memory),
            "advice": {name: asdict(verdict) for name, verdict in self.advice.items()},
        }


class NoShapeFits(ValueError):
    """No shape meets the budget; the message names the nearest and by how much it misses.

    `nearest` is that shape, and `goal` the name of the budget that it misses; None where no budget is to blame.
    """

    def __init__(self, message: str, nearest: LeanConfig | None = None, goal: str | None = None):
        super().__init__(message)
        self.nearest, self.goal = nearest, goal


def flops_unit(config: LeanConfig, flops: Flops) -> float:
    """Forward FLOPs of one token (text), or of one image."""
    return flops.forward if family_of(config) == "vit" else flops.forward / flops.length


def describe(config: LeanConfig) -> str:
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    sizes = f"{config.num_hidden_layers} layers × {config.hidden_size}, {heads} heads × {config.head_dim}"
    return f"{sizes}, MLP {config.intermediate_size}"


@cache
def field_names(family: str) -> list[str]:
    """The fields that a family's shape files state, in their order."""
    document = json.loads((shapes_folder() / family / "base.json").read_text(encoding="utf-8"))
    return [name for name in document if name not in ("model_type", "architectures")]


def fields_of(config: LeanConfig) -> dict[str, object]:
    """The values of `field_names`; of heads that vary, what holds for layers that are not named."""
    get = config._getattr_without_heterogeneous_validation
    return {name: get(name) for name in field_names(family_of(config))}


# Solving


def key_value_groups(base: LeanConfig) -> int | None:
    """Key-value heads where they are fewer than the heads; they stay. None where they follow the heads."""
    fields = fields_of(base)
    groups = fields.get("num_key_value_heads")
    return None if groups == fields["num_attention_heads"] else groups


def whole_groups(base: LeanConfig, heads: float) -> int:
    """The nearest number of heads from 1 on that the base's key-value heads divide."""
    groups = key_value_groups(base) or 1
    return groups * max(1, round(heads / groups))


def given_or(value: float | None, default: float) -> float:
    """A dial's value, or the default where the dial is free."""
    return default if value is None else value


def shape_at(base: LeanConfig, dials: Dials, free: str | None = None, value: int = 0) -> LeanConfig:
    """The shape of `dials` with the dial `free` at `value`; what neither states is the base's.

    A free width takes the MLP's ratio along, and, where `dials` state no heads, as many heads as fill the width.
    Raises ValueError as the configuration does.
    """
    chosen = dials if free is None else replace(dials, **{free: value})
    width = given_or(chosen.width, base.hidden_size)
    head_dim = given_or(chosen.head_dim, base.head_dim)
    heads = dials.heads
    if heads is None:
        heads = whole_groups(base, given_or(chosen.heads, width / head_dim))
    mlp = chosen.mlp
    if mlp is None:
        ratio = given_or(chosen.mlp_ratio, base.intermediate_size / base.hidden_size)
        mlp = max(1, round(ratio * width))
    fields = fields_of(base)
    fields["hidden_size"] = width
    fields["num_hidden_layers"] = given_or(chosen.layers, base.num_hidden_layers)
    fields["num_attention_heads"] = heads
    fields["head_dim"] = head_dim
    fields["intermediate_size"] = mlp
    if "num_key_value_heads" in fields and key_value_groups(base) is None:
        fields["num_key_value_heads"] = heads
    if "pooler_output_size" in fields and base.pooler_output_size == base.hidden_size:
        fields["pooler_output_size"] = width
    return type(base)(architectures=base.architectures, **fields)


def solve_dial(load: Callable[[int], float], limit: int, tolerance: float = 1e-3) -> float:
    """Where a load that rises with a whole number meets 1, between 1 and `limit`; to within `tolerance` of the load.

    A load is nearly a power of its dial: the power through the last two points says where to look next, strictly
    between the two sides found so far. Heads that fill a width come in steps, hence the bounds on the power.
    """
    low, high, guess, power, last = 0, limit + 1, min(128, limit), 1.5, None
    for _ in range(60):
        now = load(guess)
        low, high = (guess, high) if now < 1 else (low, guess)
        if last is not None:
            power = min(max(log(now / last[1]) / log(guess / last[0]), 0.3), 3.0)
        exact = guess * now ** (-1 / power)
        if abs(now - 1) <= tolerance or high - low <= 1:
            break
        last, guess = (guess, now), min(max(round(exact), low + 1), high - 1)
    return min(max(exact, 1), limit)


def human(value: float) -> str:
    """Three digits and K, M, G or T."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}" if value < 999.5 * factor else f"{value / factor:.0f}{letter}"
    return f"{value:.3g}"


def human_count(value: float) -> str:
    """As `human`, with B for 1e9: parameters are counted in billions."""
    return human(value).replace("G", "B")


def human_bytes(value: float) -> str:
    return human(value) + "B"


@dataclass(frozen=True)
class Goal:
    """One budget: its flag and text, what it measures, and the value not to exceed (`ceiling`) or to reach."""

    name: str
    target: float
    cost: Callable[[LeanConfig], float]
    ceiling: bool = True
    show: Callable[[float], str] = human

    def load(self, config: LeanConfig) -> float:
        return self.cost(config) / self.target

    def miss(self, config: LeanConfig) -> str:
        """The nearest shape and by how much it misses."""
        cost, load = self.cost(config), self.load(config)
        far = f"{load:.3g} times" if load > 2 else f"{abs(load - 1):.1%} {'over' if load > 1 else 'under'}"
        return f"the nearest, {describe(config)}, takes {self.show(cost)}, {far} {self.name}"


def goals_of(budget: Budget, setting: StepSetting, start: LeanConfig | None) -> list[Goal]:
    """The size to reach first, if there is one, then the ceilings.

    Raises ValueError where there is no budget at all, or two sizes to reach.
    """

    def parameters(config: LeanConfig) -> float:
        return config.count_parameters().total

    def flops(config: LeanConfig) -> float:
        return flops_unit(config, config.count_flops(setting.length))

    def memory(config: LeanConfig) -> float:
        return training_memory(config, setting).peak

    if budget.equal is not None and (start is None or budget.parameters is not None):
        raise ValueError(f"--equal {budget.equal}: needs --like SHAPE and no --params, which states another size")
    goals = []
    if budget.parameters is not None:
        goals.append(
            Goal(f"--params {human_count(budget.parameters)}", budget.parameters, parameters, False, human_count)
        )
    elif start is not None and (budget.equal or not (budget.flops or budget.memory)):
        cost, show = (flops, human) if budget.equal == "flops" else (parameters, human_count)
        name = f"{'FLOPs' if budget.equal == 'flops' else 'parameters'} of --like, {show(cost(start))}"
        goals.append(Goal(name, cost(start), cost, False, show))
    if budget.flops is not None:
        goals.append(Goal(f"--flops {human(budget.flops)}", budget.flops, flops))
    if budget.memory is not None:
        goals.append(Goal(f"--memory {human_bytes(budget.memory)}", budget.memory, memory, show=human_bytes))
    if not goals:
        raise ValueError("nothing to plan for: give --params, --flops, --memory, --latency or --like SHAPE")
    return goals


def solve_value(load: Callable[[int], float], free: str, highest: float) -> int:
    """The coarsest multiple of `STEPS` at which a load lies within 1 % of 1 and not above `highest`, else the nearest.

    Layers and heads go in steps of one.
    """
    exact = solve_dial(load, LIMITS[free])
    for step in STEPS if free in ("width", "mlp") else (1,):
        value = max(1, int(exact / step if highest <= 1 else exact / step + 0.5) * step)
        if 1 - TOLERANCE <= load(value) <= highest:
            break
    return value


def solve_shape(base: LeanConfig, dials: Dials, free: str | None, goals: list[Goal], highest: float) -> LeanConfig:
    """The shape of `dials` whose dial `free` meets the goals within 1 %, the first at most `highest` times.

    Without a size to reach the tightest ceiling is used up. A free width becomes a multiple of 64, 32, 16 or 8 that is
    within 4 % of what is needed, and the MLP takes up the rest, unless `dials` fix it or its ratio. The caller checks
    how well the goals are met: a dial in whole layers or heads may not be able to.
    """
    if free is None:
        return shape_at(base, dials)
    binding = goals if goals[0].ceiling else goals[:1]

    def load(dials: Dials, name: str) -> Callable[[int], float]:
        return lambda value: max(goal.load(shape_at(base, dials, name, value)) for goal in binding)

    if free == "width":
        exact = solve_dial(load(dials, free), LIMITS[free], tolerance=TOLERANCE)
        round_width = next((step * round(exact / step) for step in STEPS[:4] if near(exact, step)), 0)
        width = round_width or max(1, round(exact))
        heads = dials.heads or whole_groups(base, width / (dials.head_dim or base.head_dim))
        dials = replace(dials, heads=heads)
        if round_width and not (dials.mlp or dials.mlp_ratio):
            dials, free = replace(dials, width=width), "mlp"
    return shape_at(base, dials, free, solve_value(load(dials, free), free, highest))


def near(exact: float, step: int) -> bool:
    """Whether a multiple of the step lies within 4 % of a number."""
    return abs(step * round(exact / step) / exact - 1) <= 0.04


def free_dials(dials: Dials) -> list[str]:
    """The dials that can be solved: those that are not fixed."""
    fixed = asdict(dials) | {"mlp": dials.mlp or dials.mlp_ratio}
    return [name for name in ("width", "mlp", "heads", "layers") if fixed[name] is None]


def questions(base: LeanConfig, start: LeanConfig | None, dials: Dials) -> Iterator[tuple[Dials, str | None]]:
    """Dials and the one to solve, a pair for each shape that is worth looking at.

    With a starting point and dials: every dial that is left, solved alone, the others as at the start. Without:
    depths and two head sizes, the width solved, or, where it is fixed, the next free dial.
    """
    free = free_dials(dials)
    if start is not None and dials != Dials():
        for name in free or [None]:
            yield like_start(start, dials, name), name
        return
    layers = {max(1, round(share * start.num_hidden_layers)) for share in SHARES} if start else DEPTHS
    sizes = {start.head_dim, 8 * max(1, start.head_dim // 16)} if start else HEAD_SIZES
    chosen = next(iter(free), None)
    for depth in [dials.layers] if dials.layers or chosen == "layers" else sorted(layers):
        for size in [dials.head_dim] if dials.head_dim else sorted(sizes):
            yield replace(dials, layers=depth, head_dim=size), chosen


def like_start(start: LeanConfig, dials: Dials, free: str | None) -> Dials:
    """`dials` with what they leave open as at the start, but for the one to solve.

    Of heads and head size, one that is given keeps the product, the width of the attention, as nearly as multiples of
    8 allow. Where the width is solved the MLP keeps its ratio, and heads that are not given fill the width.
    """
    inner = max(start.heads_per_layer) * start.head_dim
    if dials.heads and not dials.head_dim:
        size = 8 * max(1, round(inner / dials.heads / 8))  # as kernels want it
        dials = replace(dials, head_dim=size)
    head_dim = dials.head_dim or start.head_dim
    heads = dials.heads if free in ("width", "heads") else dials.heads or whole_groups(start, inner / head_dim)
    mlp = dials.mlp if free in ("width", "mlp") or dials.mlp_ratio else dials.mlp or start.intermediate_size
    layers = dials.layers if free == "layers" else dials.layers or start.num_hidden_layers
    width = dials.width if free == "width" else dials.width or start.hidden_size
    return Dials(layers, width, heads, head_dim, mlp, dials.mlp_ratio)


def objection(config: LeanConfig, dials: Dials) -> str | None:
    """Why a shape of the walk is not worth a row: what the user fixed is no objection. None where it is worth one."""
    inner, width = max(config.heads_per_layer) * config.head_dim, config.hidden_size
    chosen = [dials.width, dials.heads, dials.head_dim].count(None) <= 1  # two of three decide heads × size / width
    if not chosen and not 2 / 3 <= inner / width <= 3 / 2:
        return "heads × head size far from the width: give --head-dim with --heads if that is wanted"
    if dials.layers is None and dials.width is None and not 2 <= width / config.num_hidden_layers <= 3000:
        return "far deeper than wide, or the reverse: give --layers or --width if that is wanted"
    return None


def flags(dials: Dials) -> str:
    """The dials that are fixed, as flags."""
    given = {name: value for name, value in asdict(dials).items() if value is not None}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items()) or "none"


def refusal(goals: list[Goal], missed: list[tuple[float, Goal, LeanConfig]], dials: Dials) -> NoShapeFits:
    """What to say where every shape that was tried misses a budget; it does not say that none exists."""
    _, goal, config = min(missed, key=lambda miss: miss[0])
    if len(goals) == 1 or len(missed) == 1:
        return NoShapeFits(f"no shape fits: {goal.miss(config)}", config, goal.name)
    sizes = ", ".join(map(str, sorted({each.head_dim for *_, each in missed})))
    tried = f"none of {len(missed)} shapes tried (fixed: {flags(dials)}; head sizes {sizes})"
    together = " and ".join(each.name for each in goals)
    return NoShapeFits(f"{tried} fits {together} together: {goal.miss(config)}", config, goal.name)


def check_dials(dials: Dials, base: LeanConfig) -> None:
    """Raises ValueError, naming the flag, for sizes beyond `GIVEN_LIMITS`, two MLP widths, a head size without fused
    kernel, or heads that the key-value heads of `base` do not divide.
    """
    for name, value in asdict(dials).items():
        flag, most = "--" + name.replace("_", "-"), GIVEN_LIMITS[name]
        if value is not None and not value > 0:  # also no number
            raise ValueError(f"{flag} {value}: expected a number above 0")
        if name == "head_dim" and value is not None and not has_fused_kernel(value):
            raise ValueError(f"{flag} {value}: no fused attention kernel takes it; expected 8, 16, … 256")
        if value is not None and value > most:
            raise ValueError(f"{flag} {value}: expected at most {most}")
    if dials.mlp is not None and dials.mlp_ratio is not None:
        raise ValueError("--mlp and --mlp-ratio: expected one of them")
    groups = key_value_groups(base) or 1
    if dials.heads is not None and dials.heads % groups:
        raise ValueError(f"--heads {dials.heads}: expected a multiple of the {groups} key-value heads")


def as_given(base: LeanConfig, start: LeanConfig | None, dials: Dials) -> LeanConfig:
    """The shape where no dial is free: nothing is solved. A head size that is left out follows from the width.

    Raises ValueError, naming the flag, where heads do not divide the width and there is no start to keep.
    """
    if start is not None:
        return shape_at(base, like_start(start, dials, None))
    if dials.head_dim is None and dials.width % dials.heads:
        raise ValueError(f"--heads {dials.heads}: does not divide --width {dials.width}; give --head-dim, too")
    return shape_at(base, replace(dials, head_dim=dials.head_dim or dials.width // dials.heads))


def cost_of(config: LeanConfig, setting: StepSetting, start: LeanConfig | None = None) -> Candidate:
    """A shape with its costs and advice; the lengths and the batch are those of `setting`."""
    parameters, flops = config.count_parameters(), config.count_flops(setting.length)
    over = (None, None)
    if start is not None:
        start_flops = flops_unit(start, start.count_flops(setting.length))
        over = (parameters.total / start.count_parameters().total, flops_unit(config, flops) / start_flops)
    cache, advice = config.kv_bytes_per_token(setting.value_bytes), advise(config, setting.length, start)
    return Candidate(config, parameters, flops, training_memory(config, setting), cache, advice, *over)


def plan(
    family: str,
    budget: Budget | None = None,
    dials: Dials | None = None,
    setting: StepSetting | None = None,
    start: LeanConfig | None = None,
    base: LeanConfig | None = None,
    rows: int | None = None,
) -> list[Candidate]:
    """Shapes within a budget or equal to `start`, by depth, then head size; not ranked, for the sources disagree.

    `base` (None: `start`, or the family's `base`) gives vocabulary, positions and everything that is no dial. At most
    `rows` are returned, spread evenly over the walk.

    Raises:
        ValueError: dials, budgets or starting point make no sense, or are of another family; names the flag.
        NoShapeFits: says which shape is nearest, and by how much it misses.
    """
    budget, dials, setting = budget or Budget(), dials or Dials(), setting or StepSetting()
    if start is not None and family_of(start) != family:
        raise ValueError(f"--like: a {family_of(start)} shape; expected one of --family {family}")
    base = base or start or load_shape(f"{family}/base")
    check_dials(dials, base)
    if budget == Budget() and not free_dials(dials):
        return [cost_of(as_given(base, start, dials), setting, start)]
    goals = goals_of(budget, setting, start)
    walk = start is None or dials == Dials()
    highest = 1 if goals[0].ceiling or budget.parameters else 1 + TOLERANCE  # a budget is not exceeded
    fitting, missed, odd = [], [], {}
    for question, free in questions(base, start, dials):
        config = solve_shape(base, question, free, goals, highest)
        wrong = [goal for goal in goals if goal.load(config) > (highest if goal is goals[0] else 1)]
        wrong += [goal for goal in goals if not goal.ceiling and goal.load(config) < 1 - TOLERANCE]
        if wrong:
            missed.append((abs(wrong[0].load(config) - 1), wrong[0], config))
        elif walk and free is not None and (reason := objection(config, dials)):
            odd.setdefault(reason, config)
        else:
            fitting.append(config)
    if not fitting and odd:  # they do fit the budget
        reasons = "; ".join(f"{describe(config)} is {reason}" for reason, config in odd.items())
        raise NoShapeFits(f"no shape worth a row: what fits, as {reasons}")
    if not fitting:
        raise refusal(goals, missed, dials)
    same = describe(start) if start is not None else None
    unique = list({describe(config): config for config in fitting}.values())
    unique = [config for config in unique if describe(config) != same] or unique
    unique.sort(key=lambda config: (config.num_hidden_layers, config.head_dim))
    return [cost_of(config, setting, start) for config in spread(unique, rows)]


def spread(shapes: list[Shape], rows: int | None) -> list[Shape]:
    """At most `rows` of the shapes, evenly spread, the first and the last among them; None: all."""
    if rows is None or rows >= len(shapes):
        return shapes
    step = (len(shapes) - 1) / max(1, rows - 1)
    return [shapes[round(index * step)] for index in range(rows)]


# Writing


def with_inputs(
    config: LeanConfig,
    length: int | None = None,
    image_size: int | None = None,
    vocab_size: int | None = None,
    patch_size: int | None = None,
) -> LeanConfig:
    """The configuration for other data: positions for sequences of `length`, a vocabulary, a size of image or patch.

    Raises ValueError, naming the flag, where the family has no such input, or as the configuration does.
    """
    family, fields = family_of(config), fields_of(config)
    given = {"length": length, "image_size": image_size, "vocab_size": vocab_size, "patch_size": patch_size}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        able = (family == "vit") == (name in ("image_size", "patch_size"))
        expected = "expected a number above 0" if able else f"{family} has no such input"
        if able and value > MOST_INPUT:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected at most {MOST_INPUT}")
        if not able or value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: {expected}")
    if length := given.pop("length", None):  # as many positions as before, unless the sequences are longer
        fields["max_position_embeddings"] = max(length, config.max_position_embeddings)
    fields |= given
    if vocab_size is not None:
        special = [name for name in fields if name.endswith("_token_id") and fields[name] is not None]
        fields |= {name: min(fields[name], vocab_size - 1) for name in special}
    if config.per_layer_attributes:
        heads = enumerate(config.heads_per_layer)
        fields["per_layer_config"] = {index: {"num_attention_heads": number} for index, number in heads}
    try:
        return type(config)(architectures=config.architectures, **fields)
    except ValueError as error:
        named = {"length": length, "image-size": image_size, "vocab-size": vocab_size, "patch-size": patch_size}
        flags = ", ".join(f"--{name} {value}" for name, value in named.items() if value is not None)
        raise ValueError(f"{flags or config.model_type}: {error}") from error


def free_path(flag: str, path: Path) -> Path:
    """The path, where a new file can be; raises ValueError, naming the flag, where it is taken or has no folder."""
    if path.name.startswith("."):
        raise ValueError(f"{flag}: {path} is hidden or no name; expected a file's name")
    try:
        taken, there = path.exists() or path.is_symlink(), path.parent.is_dir()
    except (OSError, ValueError) as error:  # a name too long, a null byte
        raise ValueError(f"{flag}: cannot be written ({error})") from error
    if taken:
        raise ValueError(f"{flag}: {path} exists already; expected a new name")
    if not there:
        raise ValueError(f"{flag}: {path} cannot be written (no folder {path.parent})")
    return path


def write_new(flag: str, path: Path, content: bytes) -> None:
    """Writes a whole file or none, and never over another. Raises ValueError, naming the flag."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_bytes(content)
        path.open("x").close()  # takes the name; then the content arrives at once
        try:
            os.replace(whole, path)
        except OSError:
            path.unlink()
            raise
    except FileExistsError:
        raise ValueError(f"{flag}: {path} exists already; expected a new name") from None
    except OSError as error:
        raise ValueError(f"{flag}: {path} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):  # its name may be too long to exist
            whole.unlink()


def shape_file(name: str) -> Path:
    """Where `write_shape` writes: NAME.json in the working folder, or the path that NAME is.

    Raises ValueError where the file exists or its folder does not.
    """
    is_file = name.lower().endswith(".json")
    if not is_file and "/" not in name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise ValueError(f"--write {name!r}: expected letters, digits, dots and dashes, or a path")
    path = Path(name) if is_file else Path(f"{name}.json")
    return free_path(f"--write {name}", path)


def write_shape(config: LeanConfig, name: str) -> Path:
    """Writes a complete shape file and returns its path, `shape_file`; raises ValueError as that does."""
    path = shape_file(name)
    head = type(config).__name__.removesuffix("Config") + config.task_heads[0]
    document = {"model_type": config.model_type, "architectures": [head], **fields_of(config)}
    write_new(f"--write {name}", path, (json.dumps(document, indent=2) + "\n").encode())
    return path
