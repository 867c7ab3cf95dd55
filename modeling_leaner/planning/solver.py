"""Which shapes fit a budget or equal a starting point, what each costs, and what the sources advise about it.

Arithmetic only: no model is built. The user fixes some dials, the planner walks over depths and head sizes, and
solves one more dial so that the budget is met.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from typing import TypeVar

from ..configuration_leaner import Flops, LeanConfig, ParameterCount
from ..shapes import family_of, heads_of, load_shape
from .advice import Verdict, advise
from .dials import (
    ALL_FREE,
    LIMITS,
    Dials,
    as_given,
    attention_width,
    check_dials,
    describe,
    flag_of,
    given_or,
    like_start,
    shape_at,
    whole_groups,
)
from .flops import training_flops
from .goals import (
    NO_BUDGET,
    TOLERANCE,
    Budget,
    Goal,
    Miss,
    NoShapeFits,
    first_missed,
    flops_per_unit,
    goals_of,
    refusal,
)
from .memory import DEFAULT_STEP, StepSetting, TrainingMemory, training_memory


STEPS = (64, 32, 16, 8, 4, 2, 1)  # a solved width is the coarsest multiple that meets the budget
ROUND_STEPS = (64, 32, 16, 8)
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEAD_SIZES = (32, 64)
MOST_OF_WIDTH = 64  # the MLP of T5-11B over its width (Raffel et al. 2020, arXiv 1910.10683)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2)  # of the starting point's layers
Shape = TypeVar("Shape")  # a configuration, or one with its costs


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
            "advice": {name: verdict.document() for name, verdict in self.advice.items()},
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


def clamp(value: float, low: float, high: float) -> float:
    """The nearest value between two bounds."""
    return min(max(value, low), high)


def solve_dial(load: Callable[[int], float], limit: int, tolerance: float = 1e-3) -> float:
    """Where a load that rises with a whole number meets 1, between 1 and `limit`; to within `tolerance` of the load.

    A load is nearly a power of its dial: the power through the last two points gives the next guess, strictly between
    the nearest guess that is too low and the nearest that is too high. Heads that fill a width come in steps, hence
    the bounds on the power.
    """
    low = 0
    high = limit + 1
    guess = min(128, limit)
    power = 1.5
    previous = None
    for _ in range(60):
        now = load(guess)
        if now < 1:
            low = guess
        else:
            high = guess
        if previous is not None:
            last_guess, last_load = previous
            power = clamp(log(now / last_load) / log(guess / last_guess), 0.3, 3.0)
        exact = guess * now ** (-1 / power)
        if abs(now - 1) <= tolerance or high - low <= 1:
            break
        previous = (guess, now)
        guess = clamp(round(exact), low + 1, high - 1)
    return clamp(exact, max(1, low), min(limit, high))


def solve_value(load: Callable[[int], float], free: str, slack: float) -> int:
    """The coarsest multiple of `STEPS` at which a load is at most 1 % below 1 and `slack` above it, else the nearest.

    Layers and heads go in steps of one.
    """
    exact = solve_dial(load, LIMITS[free])
    steps = STEPS if free in ("width", "mlp") else (1,)
    for step in steps:
        multiple = int(exact / step + 0.5) if slack else int(exact / step)
        value = max(1, multiple * step)
        if -TOLERANCE <= load(value) - 1 <= slack:
            break
    if value > 1 and load(value) - 1 > slack:  # a load that goes in steps
        value -= 1
    return value


def round_width(exact: float) -> int | None:
    """The multiple of 64, 32, 16 or 8 that lies within 4 % of a width, the coarsest step first; None without one."""
    for step in ROUND_STEPS:
        multiple = step * round(exact / step)
        if abs(multiple / exact - 1) <= 0.04:
            return multiple
    return None


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
        return lambda value: max(goal.cost_over_target(shape_at(base, dials, name, value)) for goal in binding)

    if free == "width":
        exact = solve_dial(load(dials, free), LIMITS[free], tolerance=TOLERANCE)
        rounded = round_width(exact)
        width = given_or(rounded, max(1, round(exact)))
        if dials.heads is None:
            head_dim = given_or(dials.head_dim, base.head_dim)
            dials = replace(dials, heads=whole_groups(base, width / head_dim))
        if rounded is not None and not dials.fixes_mlp:
            dials = replace(dials, width=width)
            free = "mlp"
    return shape_at(base, dials, free, solve_value(load(dials, free), free, goals[0].slack))


# The walk


def trials(start: LeanConfig | None, dials: Dials) -> Iterator[tuple[Dials, str | None]]:
    """Dials and the one to solve, a pair for each shape that is worth looking at.

    With a starting point and dials: every dial that is left, solved alone, the others as at the start. Without:
    depths and two head sizes, the width solved, or, where it is fixed, the next free dial.
    """
    free = dials.free
    if start is not None and dials != ALL_FREE:
        for name in free:
            yield like_start(start, dials, name), name
        if not free:
            yield like_start(start, dials, None), None
        return
    solved = next(iter(free), None)
    depths = [dials.layers]
    if dials.layers is None and solved != "layers":
        depths = depths_to_try(start)
    for depth in depths:
        for size in head_sizes_to_try(start, dials):
            yield replace(dials, layers=depth, head_dim=size), solved


def depths_to_try(start: LeanConfig | None) -> Sequence[int]:
    if start is None:
        return DEPTHS
    return sorted({max(1, round(share * start.num_hidden_layers)) for share in SHARES})


def head_sizes_to_try(start: LeanConfig | None, dials: Dials) -> Sequence[int]:
    """The head size that is fixed; else the start's and about half of it, or `HEAD_SIZES` without a start."""
    if dials.head_dim is not None:
        return [dials.head_dim]
    if start is None:
        return HEAD_SIZES
    return sorted({start.head_dim, 8 * max(1, start.head_dim // 16)})


def excess(config: LeanConfig, solved: str | None) -> str | None:
    """Why an MLP, or heads, that were solved are too wide to be worth a row; None where they are not."""
    wide = {"mlp": ("an MLP", config.intermediate_size), "heads": ("heads × head size", attention_width(config))}
    if solved not in wide:
        return None
    name, size = wide[solved]
    if size <= MOST_OF_WIDTH * config.hidden_size:
        return None
    return f"has {name} of more than {MOST_OF_WIDTH} times the width: give {flag_of(solved)} if that is wanted"


def objection(config: LeanConfig, dials: Dials) -> str | None:
    """Why a shape of the walk is not worth a row: what the user fixed is no objection. None where it is worth one."""
    width = config.hidden_size
    decides_attention = [dials.width, dials.heads, dials.head_dim].count(None) <= 1  # two of the three decide it
    if not decides_attention and not 2 / 3 <= attention_width(config) / width <= 3 / 2:
        return "has heads × head size far from the width: give --head-dim with --heads if that is wanted"
    if dials.layers is None and dials.width is None and not 2 <= width / config.num_hidden_layers <= 3000:
        return "is far deeper than wide, or the reverse: give --layers or --width if that is wanted"
    return None


def fitting_shapes(base: LeanConfig, start: LeanConfig | None, dials: Dials, goals: list[Goal]) -> list[LeanConfig]:
    """The shapes of the walk that meet every goal and are worth a row; raises NoShapeFits where there is none."""
    fitting = []
    misses = []
    objections: dict[str, LeanConfig] = {}  # the first shape for each
    solves_all = start is None or dials == ALL_FREE
    for trial, free in trials(start, dials):
        config = solve_shape(base, trial, free, goals)
        reason = excess(config, free)
        if reason is None and solves_all and free is not None:
            reason = objection(config, dials)
        goal = first_missed(config, goals)
        if goal is not None:
            misses.append(Miss(goal, config))
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


def without_repeats(configs: list[LeanConfig], start: LeanConfig | None) -> list[LeanConfig]:
    """Each shape once, without the starting point, unless that alone is left."""
    unique = {describe(config): config for config in configs}
    if start is not None and len(unique) > 1:
        unique.pop(describe(start), None)
    return list(unique.values())


def spread(shapes: list[Shape], rows: int | None) -> list[Shape]:
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
    if base is None:
        base = start
    if base is None:
        base = load_shape(f"{family}/base")
    check_dials(dials, base)
    if budget == NO_BUDGET and not dials.free:
        return [cost_of(as_given(base, start, dials), setting, start)]
    fitting = fitting_shapes(base, start, dials, goals_of(budget, setting, start))
    configs = without_repeats(fitting, start)
    configs.sort(key=lambda config: (config.num_hidden_layers, config.head_dim))
    return [cost_of(config, setting, start) for config in spread(configs, rows)]
