"""Which shapes fit a budget or equal a starting point, and what each costs. Arithmetic only: no model is built.

The user fixes some dials, the planner walks over depths and head sizes, and solves one more dial so that the budget is
met.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import log

from ..configuration_leaner import Flops, LeanConfig, ParameterCount
from ..family import IMAGES
from ..shapes import family_of, heads_of, load_shape, modality_of
from .advice import Verdict, advise
from .dials import (
    ALL_FREE,
    LIMITS,
    Dials,
    as_given,
    attention_width,
    check_dials,
    describe,
    like_start,
    shape_at,
    whole_groups,
)
from .flops import training_flops
from .memory import DEFAULT_STEP, StepSetting, TrainingMemory, training_memory
from .units import human, human_bytes, human_count


TOLERANCE = 0.01  # of parameters or FLOPs that are to be met
STEPS = (64, 32, 16, 8, 4, 2, 1)  # a solved width is the coarsest multiple that meets the budget
ROUND_STEPS = (64, 32, 16, 8)
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEAD_SIZES = (32, 64)
MOST_OF_WIDTH = 64  # the MLP of T5-11B over its width (Raffel et al. 2020, arXiv 1910.10683)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2)  # of the starting point's layers


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

    def distance(self, config: LeanConfig) -> float:
        return abs(self.load(config) - 1)

    def miss(self, config: LeanConfig) -> str:
        """The shape as the nearest one, and by how much it misses: `5.18 times`, `45.7% under`."""
        load = self.load(config)
        off = f"{load:.3g} times" if load > 2 else f"{abs(load - 1):.1%} {'over' if load > 1 else 'under'}"
        return f"the nearest, {describe(config)}, takes {self.show(self.cost(config))}, {off} {self.name}"


class NoShapeFits(ValueError):
    """No shape meets the budget; the message names the nearest and by how much it misses.

    `nearest` is that shape, and `goal` what it misses; None if no budget is to blame.
    """

    def __init__(self, message: str, nearest: LeanConfig | None = None, goal: Goal | None = None):
        super().__init__(message)
        self.nearest = nearest
        self.goal = goal


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

    goals = []
    if budget.parameters is not None:
        name = f"--params {human_count(budget.parameters)}"
        goals.append(Goal(name, budget.parameters, parameters, human_count, ceiling=False))
    if budget.flops is not None:
        goals.append(Goal(f"--flops {human(budget.flops)}", budget.flops, flops))
    if budget.memory is not None:
        goals.append(Goal(f"--memory {human_bytes(budget.memory)}", budget.memory, memory, human_bytes))
    if not goals and start is not None:
        target = parameters(start)
        name = f"parameters of --like, {human_count(target)}"
        goals.append(Goal(name, target, parameters, human_count, ceiling=False, slack=TOLERANCE))
    if not goals:
        raise ValueError("nothing to plan for: give --params, --flops, --memory, --latency or --like SHAPE")
    return goals


def refusal(goals: list[Goal], misses: list[tuple[Goal, LeanConfig]], dials: Dials) -> NoShapeFits:
    """The error if every shape that was tried misses a budget; it does not claim that no other would fit."""
    goal, nearest = min(misses, key=lambda miss: miss[0].distance(miss[1]))
    if len(goals) == 1 or len(misses) == 1:
        return NoShapeFits(f"no shape fits: {goal.miss(nearest)}", nearest, goal)
    sizes = ", ".join(map(str, sorted({config.head_dim for _, config in misses})))
    tried = f"none of {len(misses)} shapes tried (fixed: {dials}; head sizes {sizes})"
    together = " and ".join(goal.name for goal in goals)
    return NoShapeFits(f"{tried} fits {together} together: {goal.miss(nearest)}", nearest, goal)


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
    candidate = Candidate(
        config=config,
        parameters=config.count_parameters(),
        flops=config.count_flops(setting.length),
        memory=training_memory(config, setting),
        kv_bytes_per_token=config.kv_bytes_per_token(setting.value_bytes),
        advice=advise(config, setting.length, start),
    )
    if start is None:
        return candidate
    start_flops = flops_per_unit(start, start.count_flops(setting.length))
    return replace(
        candidate,
        parameters_over_start=candidate.parameters.total / start.count_parameters().total,
        flops_over_start=candidate.flops_per_unit / start_flops,
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
            power = clamp(log(now / last_load) / log(guess / last_guess), 0.3, 3.0)
        exact = guess * now ** (-1 / power)
        if abs(now - 1) <= tolerance or high - low <= 1:
            break
        previous = (guess, now)
        guess = clamp(round(exact), low + 1, high - 1)
    return clamp(exact, max(1, low), min(limit, high))


def clamp(value: float, low: float, high: float) -> float:
    """The nearest value between two bounds."""
    return min(max(value, low), high)


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


def round_width(exact: float) -> int | None:
    """The multiple of 64, 32, 16 or 8 that lies within 4 % of a width, the coarsest step first; None without one."""
    multiples = (step * round(exact / step) for step in ROUND_STEPS)
    return next((multiple for multiple in multiples if abs(multiple / exact - 1) <= 0.04), None)


def solve_shape(base: LeanConfig, dials: Dials, free: str | None, goals: list[Goal]) -> LeanConfig:
    """The shape of `dials` whose dial `free` meets the goals within 1 %.

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
        rounded = round_width(exact)
        if dials.heads is None:
            width = max(1, round(exact)) if rounded is None else rounded
            dials = replace(dials, heads=whole_groups(base, width / (dials.head_dim or base.head_dim)))
        if rounded is not None and not dials.fixes_mlp:
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
        depths = (
            DEPTHS if start is None else sorted({max(1, round(each * start.num_hidden_layers)) for each in SHARES})
        )
    sizes: Sequence[int] = HEAD_SIZES
    if dials.head_dim is not None:
        sizes = [dials.head_dim]
    elif start is not None:
        sizes = sorted({start.head_dim, 8 * max(1, start.head_dim // 16)})
    for depth in depths:
        for size in sizes:
            yield replace(dials, layers=depth, head_dim=size), solved


def objection(config: LeanConfig, dials: Dials, solved: str | None) -> str | None:
    """Why a shape of the walk is not worth a row: what the user fixed is no objection. None if it is worth one."""
    width = config.hidden_size
    if solved == "mlp" and config.intermediate_size > MOST_OF_WIDTH * width:
        return f"has an MLP of more than {MOST_OF_WIDTH} times the width: give --mlp if that is wanted"
    if solved == "heads" and attention_width(config) > MOST_OF_WIDTH * width:
        return f"has heads × head size of more than {MOST_OF_WIDTH} times the width: give --heads if that is wanted"
    return None


def proportion_objection(config: LeanConfig, dials: Dials) -> str | None:
    """As `objection`, for shapes of which the walk chose everything that the user left open."""
    width = config.hidden_size
    decides_attention = [dials.width, dials.heads, dials.head_dim].count(None) <= 1  # two of the three decide it
    if not decides_attention and not 2 / 3 <= attention_width(config) / width <= 3 / 2:
        return "has heads × head size far from the width: give --head-dim with --heads if that is wanted"
    if dials.layers is None and dials.width is None and not 2 <= width / config.num_hidden_layers <= 3000:
        return "is far deeper than wide, or the reverse: give --layers or --width if that is wanted"
    return None


def fitting_shapes(base: LeanConfig, start: LeanConfig | None, dials: Dials, goals: list[Goal]) -> list[LeanConfig]:
    """The shapes of the walk that meet every goal and are worth a row; raises NoShapeFits if there is none."""
    fitting = []
    misses = []
    objections: dict[str, LeanConfig] = {}  # the first shape for each
    solves_all = start is None or dials == ALL_FREE
    for trial, solved in trials(start, dials):
        config = solve_shape(base, trial, solved, goals)
        reason = objection(config, dials, solved)
        if reason is None and solves_all and solved is not None:
            reason = proportion_objection(config, dials)
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
    raise refusal(goals, misses, dials)


def spread(shapes: list[Candidate], rows: int | None) -> list[Candidate]:
    """At most `rows` of the shapes, evenly spread, the first and the last among them; None: all."""
    if rows is None or rows >= len(shapes):
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
    rows: int | None = None,
) -> list[Candidate]:
    """Shapes within a budget or equal to `start`, by depth, then head size; not ranked, for the sources disagree.

    `base` (None: `start`, or the family's `base`) gives vocabulary, positions and everything that is no dial. At most
    `rows` are returned, spread evenly over the walk.

    Raises:
        ValueError: dials, budgets or starting point make no sense, or are of another family; names the flag.
        NoShapeFits: says which shape is nearest, and by how much it misses.
    """
    if start is not None and family_of(start) != family:
        raise ValueError(f"--like: a {family_of(start)} shape; expected one of --family {family}")
    base = base or start or load_shape(f"{family}/base")
    check_dials(dials, base)
    if budget == NO_BUDGET and not dials.free:
        return [cost_of(as_given(base, start, dials), setting, start)]
    unique = {
        describe(config): config for config in fitting_shapes(base, start, dials, goals_of(budget, setting, start))
    }
    if start is not None and len(unique) > 1:
        unique.pop(describe(start), None)
    configs = sorted(unique.values(), key=lambda config: (config.num_hidden_layers, config.head_dim))
    return spread([cost_of(config, setting, start) for config in configs], rows)
