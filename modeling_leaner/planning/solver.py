"""Which shapes fit a budget or equal a starting point. Arithmetic only: no model is built.

The user fixes some dials (layers, width, heads, head size, MLP width). The planner walks over depths and head sizes,
and solves one more dial so that the budget is met.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import log

from ..configuration_leaner import Flops, LeanConfig, ParameterCount
from ..family import FAMILIES, IMAGES
from ..files import read_json
from ..names import shapes_folder
from ..shapes import family_of, heads_of, load_shape, modality_of
from .advice import FLASH, Verdict, advise, kernels_for
from .costs import (
    DEFAULT_STEP,
    StepSetting,
    TrainingMemory,
    human,
    human_bytes,
    human_count,
    training_flops,
    training_memory,
)


LIMITS = {"width": 2**17, "mlp": 2**20, "layers": 1000, "heads": 2**14, "head_dim": 256}
MOST_INPUT = 2**24  # tokens, pixels, entries of a vocabulary
TOLERANCE = 0.01  # of parameters or FLOPs that are to be met
STEPS = (64, 32, 16, 8, 4, 2, 1)  # a solved width is the coarsest multiple that meets the budget
ROUND_STEPS = (64, 32, 16, 8)
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEAD_SIZES = (32, 64)
MOST_OF_WIDTH = 64  # the MLP of T5-11B over its width (Raffel et al. 2020, arXiv 1910.10683)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2)  # of the starting point's layers


@dataclass(frozen=True)
class Dials:
    """What is fixed of a shape; None is free."""

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None

    @property
    def given(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def free(self) -> list[str]:
        """The dials that can be solved: those that are not fixed. The head size is chosen, never solved."""
        return [name for name in ("width", "mlp", "heads", "layers") if name not in self.given]

    def __str__(self) -> str:
        """The dials that are fixed, as flags."""
        return " ".join(f"{flag_of(name)} {value}" for name, value in self.given.items()) or "none"


ALL_FREE = Dials()


def flag_of(name: str) -> str:
    """The command line's flag of a setting: `head_dim` → `--head-dim`."""
    return "--" + name.replace("_", "-")


def describe(config: LeanConfig) -> str:
    """A shape in a sentence: `12 layers × 768, 12 heads × 64, MLP 3072`; distinct numbers of heads are listed."""
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    sizes = f"{config.num_hidden_layers} layers × {config.hidden_size}, {heads} heads × {config.head_dim}"
    return f"{sizes}, MLP {config.intermediate_size}"


# Shapes


@cache
def field_names(family: str) -> list[str]:
    """The fields that a family's shape files state, in their order."""
    document = read_json(shapes_folder() / family / "base.json")
    return [name for name in document if name not in ("model_type", "architectures")]


def fields_of(config: LeanConfig) -> dict[str, object]:
    """The values of `field_names`; of heads that vary, what holds for layers that are not named."""
    get = config._getattr_without_heterogeneous_validation
    return {name: get(name) for name in field_names(family_of(config))}


def heads_by_layer(heads: Sequence[int]) -> dict[int, dict[str, int]]:
    """The heads of each layer as `per_layer_config` states them."""
    return {layer: {"num_attention_heads": number} for layer, number in enumerate(heads)}


def head_multiple(fields: dict[str, object]) -> int:
    """What divides every number of heads: the key-value heads if they are fewer, which stay; else 1."""
    shared = fields.get("num_key_value_heads")
    return 1 if shared in (None, fields["num_attention_heads"]) else shared


def whole_groups(base: LeanConfig, heads: float) -> int:
    """The nearest number of heads from 1 on that the base's key-value heads divide."""
    multiple = head_multiple(fields_of(base))
    return multiple * max(1, round(heads / multiple))


def shape_at(base: LeanConfig, dials: Dials, free: str | None = None, value: int = 0) -> LeanConfig:
    """The shape of `dials` with the dial `free` at `value`; what neither states is the base's.

    A free width takes the MLP's ratio along, and, if `dials` state no heads, as many heads as fill the width.
    Raises ValueError as the configuration does.
    """
    chosen = dials if free is None else replace(dials, **{free: value})
    fields = fields_of(base)
    multiple = head_multiple(fields)
    width = chosen.width or base.hidden_size
    head_dim = chosen.head_dim or base.head_dim
    wanted = (chosen.heads or width / head_dim) / multiple
    heads = dials.heads or multiple * max(1, round(wanted))
    fields["hidden_size"] = width
    fields["num_hidden_layers"] = chosen.layers or base.num_hidden_layers
    fields["head_dim"] = head_dim
    fields["intermediate_size"] = chosen.mlp or max(1, round(base.intermediate_size / base.hidden_size * width))
    fields["num_attention_heads"] = heads
    if "num_key_value_heads" in fields and multiple == 1:
        fields["num_key_value_heads"] = heads
    if "pooler_output_size" in fields and base.pooler_output_size == base.hidden_size:
        fields["pooler_output_size"] = width
    return type(base)(architectures=base.architectures, **fields)


def like_start(start: LeanConfig, dials: Dials, free: str | None) -> Dials:
    """`dials` with what they leave open as at the start, except for the one to solve.

    Of heads and head size, one that is given keeps the product, the width of the attention, as nearly as multiples of
    8 allow. If the width is solved, the MLP keeps its ratio, and heads that are not given fill the width.
    """
    attention = max(start.heads_per_layer) * start.head_dim
    head_dim = dials.head_dim or start.head_dim
    if dials.head_dim is None and dials.heads is not None:
        head_dim = 8 * max(1, round(attention / dials.heads / 8))  # as kernels want it
    kept = {"layers": start.num_hidden_layers}
    if free != "width":
        heads = whole_groups(start, attention / head_dim)
        kept |= {"width": start.hidden_size, "mlp": start.intermediate_size, "heads": heads}
    kept.pop(free, None)
    return Dials(**{**kept, **dials.given, "head_dim": head_dim})


def check_dials(dials: Dials, base: LeanConfig) -> None:
    """Raises ValueError, naming the flag, for sizes out of `LIMITS`, a head size without fused kernel, or heads that
    the key-value heads of `base` do not divide.
    """
    for name, value in dials.given.items():
        if not 1 <= value <= LIMITS[name]:
            raise ValueError(f"{flag_of(name)} {value}: expected 1 to {LIMITS[name]}")
    if dials.head_dim is not None and not kernels_for(dials.head_dim)[FLASH]:
        raise ValueError(f"--head-dim {dials.head_dim}: no fused attention kernel takes it; expected 8, 16, … 256")
    multiple = head_multiple(fields_of(base))
    if dials.heads is not None and dials.heads % multiple:
        raise ValueError(f"--heads {dials.heads}: expected a multiple of the {multiple} key-value heads")


def with_inputs(config: LeanConfig, **inputs: int | None) -> LeanConfig:
    """The configuration for other data: `length`, `vocab_size`, `image_size`, `patch_size`; None stays.

    Raises ValueError, naming the flag, if the family has no such input, or as the configuration does.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    for name, value in given.items():
        if name not in FAMILIES[family_of(config)].modality.inputs:
            raise ValueError(f"{flag_of(name)} {value}: {family_of(config)} has no such input")
        if not 1 <= value <= MOST_INPUT:
            raise ValueError(f"{flag_of(name)} {value}: expected 1 to {MOST_INPUT}")
    fields = fields_of(config) | {name: value for name, value in given.items() if name != "length"}
    if "length" in given:  # as many positions as before, unless the sequences are longer
        fields["max_position_embeddings"] = max(given["length"], config.max_position_embeddings)
    if "vocab_size" in given:
        last = given["vocab_size"] - 1  # which ids beyond the vocabulary become
        for name, ids in fields.items():
            if name.endswith("_token_id") and ids is not None:
                fields[name] = [min(each, last) for each in ids] if isinstance(ids, list) else min(ids, last)
    if config.per_layer_attributes:
        fields["per_layer_config"] = heads_by_layer(config.heads_per_layer)
    try:
        return type(config)(architectures=config.architectures, **fields)
    except ValueError as error:
        culprit = ", ".join(f"{flag_of(name)} {value}" for name, value in given.items()) or config.model_type
        raise ValueError(f"{culprit}: {error}") from error


# Budgets


@dataclass(frozen=True)
class Budget:
    """What shapes may cost. `parameters` (all, with the pretraining head) is a size to reach within 1 %; the others
    are ceilings, of which the tightest is used up if there is no size to reach.

    `flops`: forward, of one token, or one image. `memory`: bytes, peak of the tensors of a training step.
    """

    parameters: float | None = None
    flops: float | None = None
    memory: float | None = None


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Goal:
    """One budget: what it measures, and the value to reach or, with `ceiling`, not to exceed.

    `slack` is the share of the target by which it may be exceeded.
    """

    name: str
    target: float
    cost: Callable[[LeanConfig], float]
    show: Callable[[float], str] = human
    ceiling: bool = True
    slack: float = 0

    def load(self, config: LeanConfig) -> float:
        """The cost over the target."""
        return self.cost(config) / self.target

    def is_missed(self, config: LeanConfig) -> bool:
        load = self.load(config)
        return load - 1 > self.slack or (not self.ceiling and 1 - load > TOLERANCE)

    def miss(self, config: LeanConfig) -> str:
        """The shape as the nearest one, and by how much it misses: `5.18 times`, `45.7% under`."""
        load = self.load(config)
        off = f"{load:.3g} times" if load > 2 else f"{abs(load - 1):.1%} {'over' if load > 1 else 'under'}"
        return f"the nearest, {describe(config)}, takes {self.show(self.cost(config))}, {off} {self.name}"


class NoShapeFits(ValueError):
    """No shape meets the budget; the message names the nearest, if there is one, and by how much it misses."""

    def __init__(self, message: str, nearest: LeanConfig | None = None):
        super().__init__(message)
        self.nearest = nearest


def flops_per_unit(config: LeanConfig, flops: Flops) -> float:
    """Forward FLOPs of one token (text), or of one image."""
    return flops.forward if modality_of(config) is IMAGES else flops.forward / flops.length


def goals_of(budget: Budget, setting: StepSetting, start: LeanConfig | None) -> list[Goal]:
    """The size to reach first, if there is one, then the ceilings. Raises ValueError if there is no budget at all."""

    def parameters(config: LeanConfig) -> float:
        return config.count_parameters().total

    def flops(config: LeanConfig) -> float:
        return flops_per_unit(config, config.count_flops(setting.length))

    def memory(config: LeanConfig) -> float:
        return training_memory(config, setting).peak

    if budget == NO_BUDGET:
        if start is None:
            raise ValueError("nothing to plan for: give --params, --flops, --memory, --latency or --like SHAPE")
        target = parameters(start)
        name = f"parameters of --like, {human_count(target)}"
        return [Goal(name, target, parameters, human_count, ceiling=False, slack=TOLERANCE)]
    goals = [
        Goal(f"--params {human_count(budget.parameters or 0)}", budget.parameters, parameters, human_count, False),
        Goal(f"--flops {human(budget.flops or 0)}", budget.flops, flops),
        Goal(f"--memory {human_bytes(budget.memory or 0)}", budget.memory, memory, human_bytes),
    ]
    return [goal for goal in goals if goal.target is not None]


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
    def flops_per_unit(self) -> float:
        """Forward FLOPs of one token (text) or one image."""
        return flops_per_unit(self.config, self.flops)

    def document(self) -> dict[str, object]:
        """Everything as JSON."""
        config = self.config
        flops = self.flops
        divisor = flops.forward / self.flops_per_unit
        return {
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": heads_of(config),
            "head_dim": config.head_dim,
            "mlp": config.intermediate_size,
            "parameters": self.parameters.total,
            "parameters_without_embeddings": self.parameters.without_embeddings,
            "parameters_over_start": self.parameters_over_start,
            "flops_forward": self.flops_per_unit,
            "flops_attention": flops.attention / divisor,
            "flops_linear": flops.linear / divisor,
            "flops_training_step": training_flops(config, flops.length) / divisor,
            "flops_over_start": self.flops_over_start,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "memory": asdict(self.memory),
            "advice": {name: asdict(verdict) for name, verdict in self.advice.items()},
        }


def cost_of(config: LeanConfig, setting: StepSetting, start: LeanConfig | None = None) -> Candidate:
    """A shape with its costs and advice; the lengths and the batch are those of `setting`."""
    parameters, flops = config.count_parameters(), config.count_flops(setting.length)
    over_start = (None, None)
    if start is not None:
        start_flops = flops_per_unit(start, start.count_flops(setting.length))
        over_start = (
            parameters.total / start.count_parameters().total,
            flops_per_unit(config, flops) / start_flops,
        )
    return Candidate(
        config,
        parameters,
        flops,
        training_memory(config, setting),
        config.kv_bytes_per_token(setting.value_bytes),
        advise(config, setting.length, start),
        *over_start,
    )


# Solving one dial


def solve_dial(load: Callable[[int], float], limit: int, tolerance: float = 1e-3) -> float:
    """Where a load that rises with a whole number meets 1, between 1 and `limit`; to within `tolerance` of the load.

    A load is nearly a power of its dial: the power through the last two points gives the next guess, strictly between
    the nearest guess that is too low and the nearest that is too high. Heads that fill a width come in steps, hence
    the bounds on the power.
    """
    low, high = 0, limit + 1
    guess = min(128, limit)
    power = 1.5
    previous = None
    for _ in range(60):
        now = load(guess)
        low, high = (guess, high) if now < 1 else (low, guess)
        if previous is not None:
            last_guess, last_load = previous
            power = min(max(log(now / last_load) / log(guess / last_guess), 0.3), 3.0)
        exact = guess * now ** (-1 / power)
        if abs(now - 1) <= tolerance or high - low <= 1:
            break
        previous = (guess, now)
        guess = min(max(round(exact), low + 1), high - 1)
    return min(max(exact, 1, low), limit, high)


def solve_value(load: Callable[[int], float], free: str, slack: float) -> int:
    """The coarsest multiple of `STEPS` at which a load is at most 1 % below 1 and `slack` above it, else the nearest.

    Layers and heads go in steps of one.
    """
    exact = solve_dial(load, LIMITS[free])
    for step in STEPS if free in ("width", "mlp") else (1,):
        value = max(1, step * int(exact / step + (0.5 if slack else 0)))
        if -TOLERANCE <= load(value) - 1 <= slack:
            break
    if value > 1 and load(value) - 1 > slack:  # a load that goes in steps
        value -= 1
    return value


def solve_shape(base: LeanConfig, dials: Dials, free: str | None, goals: list[Goal]) -> LeanConfig:
    """The shape of `dials` whose dial `free` meets the goals within 1 %.

    Without a size to reach the tightest ceiling is used up. A free width becomes a multiple of 64, 32, 16 or 8 that is
    within 4 % of what is needed, and the MLP takes up the rest, unless `dials` fix it. The caller checks how well the
    goals are met: a dial in whole layers or heads may not be able to.
    """
    if free is None:
        return shape_at(base, dials)
    binding = goals if goals[0].ceiling else goals[:1]

    def load(dials: Dials, name: str) -> Callable[[int], float]:
        return lambda value: max(goal.load(shape_at(base, dials, name, value)) for goal in binding)

    if free == "width":
        exact = solve_dial(load(dials, free), LIMITS[free], tolerance=TOLERANCE)
        multiples = (step * round(exact / step) for step in ROUND_STEPS)
        rounded = next((multiple for multiple in multiples if abs(multiple / exact - 1) <= 0.04), None)
        if dials.heads is None:
            width = rounded or max(1, round(exact))
            dials = replace(dials, heads=whole_groups(base, width / (dials.head_dim or base.head_dim)))
        if rounded is not None and dials.mlp is None:
            dials = replace(dials, width=rounded)
            free = "mlp"
    return shape_at(base, dials, free, solve_value(load(dials, free), free, goals[0].slack))


# The walk


def trials(start: LeanConfig | None, dials: Dials) -> Iterator[tuple[Dials, str | None]]:
    """Dials and the one to solve, a pair for each shape that is worth looking at.

    With a starting point and dials: every dial that is left, solved alone, the others as at the start. Without:
    depths and two head sizes, the width solved, or, if it is fixed, the next free dial.
    """
    free = dials.free
    if start is not None and dials != ALL_FREE:
        for name in free or [None]:
            yield like_start(start, dials, name), name
        return
    solved = next(iter(free), None)
    depths: Sequence[int | None] = [dials.layers]
    if dials.layers is None and solved != "layers":
        depths = DEPTHS
        if start is not None:
            depths = sorted({max(1, round(each * start.num_hidden_layers)) for each in SHARES})
    sizes: Sequence[int] = HEAD_SIZES if start is None else sorted({start.head_dim, 8 * max(1, start.head_dim // 16)})
    if dials.head_dim is not None:
        sizes = [dials.head_dim]
    for depth in depths:
        for size in sizes:
            yield replace(dials, layers=depth, head_dim=size), solved


def objection(config: LeanConfig, dials: Dials, solved: str | None, solves_all: bool) -> str | None:
    """Why a shape of the walk is not worth a row, or None; what the user fixed is no objection.

    With `solves_all` the walk chose everything that the user left open.
    """
    width = config.hidden_size
    attention = max(config.heads_per_layer) * config.head_dim
    if solved == "mlp" and config.intermediate_size > MOST_OF_WIDTH * width:
        return f"has an MLP of more than {MOST_OF_WIDTH} times the width: give --mlp if that is wanted"
    if solved == "heads" and attention > MOST_OF_WIDTH * width:
        return f"has heads × head size of more than {MOST_OF_WIDTH} times the width: give --heads if that is wanted"
    if solved is None or not solves_all:
        return None
    decides_attention = [dials.width, dials.heads, dials.head_dim].count(None) <= 1  # two of the three decide it
    if not decides_attention and not 2 / 3 <= attention / width <= 3 / 2:
        return "has heads × head size far from the width: give --head-dim with --heads if that is wanted"
    if dials.layers is None and dials.width is None and not 2 <= width / config.num_hidden_layers <= 3000:
        return "is far deeper than wide, or the reverse: give --layers or --width if that is wanted"
    return None


def fitting_shapes(base: LeanConfig, start: LeanConfig | None, dials: Dials, goals: list[Goal]) -> list[LeanConfig]:
    """The shapes of the walk that meet every goal and are worth a row.

    Raises NoShapeFits if there is none; it does not claim that no other shape would fit.
    """
    fitting = []
    misses = []
    objections: dict[str, LeanConfig] = {}  # the first shape for each
    for trial, solved in trials(start, dials):
        config = solve_shape(base, trial, solved, goals)
        reason = objection(config, dials, solved, start is None or dials == ALL_FREE)
        missed = [goal for goal in goals if goal.is_missed(config)]
        if missed:  # first those that are exceeded
            misses.append((max(missed, key=lambda goal: goal.load(config) > 1), config))
        elif reason is not None:
            objections.setdefault(reason, config)
        else:
            fitting.append(config)
    if fitting:
        return fitting
    if objections:  # these do fit the budget
        reasons = "; ".join(f"{describe(config)} {reason}" for reason, config in objections.items())
        raise NoShapeFits(f"what fits is no shape to recommend: {reasons}")
    goal, nearest = min(misses, key=lambda miss: abs(miss[0].load(miss[1]) - 1))
    what = "no shape fits"
    if len(goals) > 1 and len(misses) > 1:
        sizes = ", ".join(map(str, sorted({config.head_dim for _, config in misses})))
        together = " and ".join(each.name for each in goals)
        what = f"none of {len(misses)} shapes tried (fixed: {dials}; head sizes {sizes}) fits {together} together"
    raise NoShapeFits(f"{what}: {goal.miss(nearest)}", nearest)


def spread(shapes: list[Candidate], rows: int) -> list[Candidate]:
    """At most `rows` of the shapes, evenly spread, the first and the last among them."""
    if rows >= len(shapes):
        return shapes
    step = (len(shapes) - 1) / max(1, rows - 1)
    return [shapes[round(index * step)] for index in range(rows)]


def plan(
    family: str,
    budget: Budget = NO_BUDGET,
    dials: Dials = ALL_FREE,
    setting: StepSetting = DEFAULT_STEP,
    start: LeanConfig | None = None,
    base: LeanConfig | None = None,
) -> list[Candidate]:
    """Shapes within a budget or equal to `start`, by depth, then head size; not ranked, for the sources disagree.

    `base` (None: `start`, or the family's `base`) gives vocabulary, positions and everything that is no dial.

    Raises:
        ValueError: dials, budgets or starting point make no sense; names the flag.
        NoShapeFits: says which shape is nearest, and by how much it misses.
    """
    base = base or start or load_shape(f"{family}/base")
    check_dials(dials, base)
    if budget == NO_BUDGET and not dials.free:  # nothing is solved
        if start is not None:
            dials = like_start(start, dials, None)
        elif dials.head_dim is None:
            if dials.width % dials.heads:
                raise ValueError(f"--heads {dials.heads}: does not divide --width {dials.width}; give --head-dim, too")
            dials = replace(dials, head_dim=dials.width // dials.heads)
        return [cost_of(shape_at(base, dials), setting, start)]
    fitting = fitting_shapes(base, start, dials, goals_of(budget, setting, start))
    unique = {describe(config): config for config in fitting}
    if start is not None and len(unique) > 1:
        unique.pop(describe(start), None)
    configs = sorted(unique.values(), key=lambda config: (config.num_hidden_layers, config.head_dim))
    return [cost_of(config, setting, start) for config in configs]
