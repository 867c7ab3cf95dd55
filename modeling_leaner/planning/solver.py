"""Which shapes reach a number of parameters or FLOPs, or equal a starting point. Arithmetic: no model is built.

The user fixes some dials (layers, width, heads, head size, MLP width). The planner walks over depths and head sizes,
and solves one more dial so that the target is met.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import log

from ..configuration_leaner import Flops, LeanConfig, ParameterCount
from ..family import IMAGES
from ..files import read_json
from ..names import SHAPES
from ..shapes import family_of, heads_of, load_shape, modality_of
from .advice import Verdict, advise
from .costs import SIZE, TrainingMemory, human, training_flops, training_memory


LIMITS = {"width": 2**17, "mlp": 2**20, "layers": 1000, "heads": 2**14}
HEAD_DIMS = range(8, 257, 8)  # that fused attention kernels take
SOLVED = ("width", "mlp", "heads", "layers")  # in this order; the head size is chosen, never solved
TOLERANCE = 0.01  # of the target
STEPS = (64, 32, 16, 8, 4, 2, 1)  # a solved width is the coarsest multiple that meets the target
ROUND_STEPS = STEPS[:4]
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEAD_SIZES = (32, 64)
MOST_OF_WIDTH = 64  # the MLP of T5-11B over its width (Raffel et al. 2020, arXiv 1910.10683)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2)  # of the starting point's layers

Dials = dict[str, int]  # what is fixed of a shape: keys of LIMITS, and head_dim


def describe(config: LeanConfig) -> str:
    """A shape in a sentence: `12 layers × 768, 12 heads × 64, MLP 3072`; distinct numbers of heads are listed."""
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    sizes = f"{config.num_hidden_layers} layers × {config.hidden_size}, {heads} heads × {config.head_dim}"
    return f"{sizes}, MLP {config.intermediate_size}"


# Shapes


def fields_of(config: LeanConfig) -> dict[str, object]:
    """The fields that a family's shape files state, in their order, and the heads of each layer where they vary."""
    document = read_json(SHAPES / family_of(config) / "base.json")
    get = config._getattr_without_heterogeneous_validation
    fields = {name: get(name) for name in document if name not in ("model_type", "architectures")}
    if config.per_layer_attributes:
        layers = enumerate(config.heads_per_layer)
        fields["per_layer_config"] = {layer: {"num_attention_heads": heads} for layer, heads in layers}
    return fields


def shape_at(base: LeanConfig, dials: Dials) -> LeanConfig:
    """The shape of `dials`; what they do not state is the base's, of the MLP its ratio to the width.

    Heads that they do not state fill the width.
    """
    fields = fields_of(base)
    fields.pop("per_layer_config", None)
    width = dials.get("width", base.hidden_size)
    head_dim = dials.get("head_dim", base.head_dim)
    heads = dials.get("heads", max(1, round(width / head_dim)))
    if "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = heads
    if "pooler_output_size" in fields and base.pooler_output_size == base.hidden_size:
        fields["pooler_output_size"] = width
    fields |= {
        "hidden_size": width,
        "num_hidden_layers": dials.get("layers", base.num_hidden_layers),
        "head_dim": head_dim,
        "intermediate_size": dials.get("mlp", max(1, round(base.intermediate_size / base.hidden_size * width))),
        "num_attention_heads": heads,
    }
    return type(base)(architectures=base.architectures, **fields)


def like_start(start: LeanConfig, dials: Dials, free: str | None) -> Dials:
    """`dials` with what they leave open as at the start, except for the one to solve.

    Of heads and head size, one that is given keeps the product, the width of the attention, as nearly as multiples of
    8 allow. If the width is solved, the MLP keeps its ratio, and heads that are not given fill the width.
    """
    attention = max(start.heads_per_layer) * start.head_dim
    if "heads" in dials and "head_dim" not in dials:
        head_dim = min(8 * max(1, round(attention / dials["heads"] / 8)), HEAD_DIMS[-1])
    else:
        head_dim = dials.get("head_dim", start.head_dim)
    kept = {"layers": start.num_hidden_layers}
    if free != "width":
        heads = max(1, round(attention / head_dim))
        kept |= {"width": start.hidden_size, "mlp": start.intermediate_size, "heads": heads}
    kept.pop(free, None)
    return kept | dials | {"head_dim": head_dim}


def with_inputs(config: LeanConfig, length: int | None = None, vocab_size: int | None = None) -> LeanConfig:
    """The configuration for other texts. Raises ValueError for images, which have neither."""
    if length is None and vocab_size is None:
        return config
    if modality_of(config) is IMAGES:
        raise ValueError("--length and --vocab-size are of texts; --like SHAPE takes the inputs of a shape")
    fields = fields_of(config)
    if length is not None:  # as many positions as before, unless the sequences are longer
        fields["max_position_embeddings"] = max(length, config.max_position_embeddings)
    if vocab_size is not None:
        fields["vocab_size"] = vocab_size
        for name, ids in fields.items():  # those beyond the vocabulary become its last
            if name.endswith("_token_id") and ids is not None:
                last = vocab_size - 1
                fields[name] = [min(each, last) for each in ids] if isinstance(ids, list) else min(ids, last)
    return type(config)(architectures=config.architectures, **fields)


# Costs


def flops_per_unit(config: LeanConfig, length: int | None) -> float:
    """Forward FLOPs of one token (text), or of one image."""
    flops = config.count_flops(length)
    return flops.forward if modality_of(config) is IMAGES else flops.forward / flops.length


@dataclass(frozen=True)
class Goal:
    """A number to reach within 1 %, from below unless `slack` allows as much above it."""

    name: str
    target: float
    cost: Callable[[LeanConfig], float]
    slack: float = 0


@dataclass(frozen=True)
class Candidate:
    """A shape with its costs and advice. `flops` is of one sequence or image, `kv_bytes_per_token` in float32.

    `flops_per_unit` are forward, of one token (text) or one image.
    `parameters_over_start` and `flops_over_start` are None without a starting point.
    """

    config: LeanConfig
    parameters: ParameterCount
    flops: Flops
    flops_per_unit: float
    memory: TrainingMemory
    kv_bytes_per_token: int | None
    advice: dict[str, Verdict]
    parameters_over_start: float | None = None
    flops_over_start: float | None = None

    def document(self) -> dict[str, object]:
        """Everything as JSON."""
        config, flops = self.config, self.flops
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


def cost_of(config: LeanConfig, length: int | None = None, start: LeanConfig | None = None) -> Candidate:
    """A shape with its costs and advice, at `length` tokens (None: the longest)."""
    parameters, per_unit = config.count_parameters(), flops_per_unit(config, length)
    return Candidate(
        config,
        parameters,
        config.count_flops(length),
        per_unit,
        training_memory(config, length),
        config.kv_bytes_per_token(SIZE),
        advise(config, start),
        parameters_over_start=start and parameters.total / start.count_parameters().total,
        flops_over_start=start and per_unit / flops_per_unit(start, length),
    )


# Solving one dial


def solve_dial(load: Callable[[int], float], limit: int, tolerance: float = 1e-3) -> float:
    """Where a load that rises with a whole number meets 1, between 1 and `limit`; to within `tolerance` of the load.

    A load is nearly a power of its dial: the power through the last two points gives the next guess, strictly between
    the nearest guess that is too low and the nearest that is too high. Heads that fill a width come in steps, hence
    the bounds on the power.
    """
    low, high, guess, power = 0, limit + 1, min(128, limit), 1.5
    last = None
    while True:
        now = load(guess)
        low, high = (guess, high) if now < 1 else (low, guess)
        if last is not None:
            power = min(max(log(now / last[1]) / log(guess / last[0]), 0.3), 3.0)
        exact = guess * now ** (-1 / power)
        if abs(now - 1) <= tolerance or high - low <= 1:
            return min(max(exact, 1, low), limit, high)
        last = (guess, now)
        guess = min(max(round(exact), low + 1), high - 1)


def solve_shape(base: LeanConfig, dials: Dials, free: str | None, goal: Goal) -> LeanConfig:
    """The shape of `dials` whose dial `free` meets the goal, as nearly as whole layers and heads can.

    A free width becomes a multiple of 64, 32, 16 or 8 that is within 4 % of what is needed, and the MLP takes up the
    rest, unless `dials` fix it. Width and MLP become the coarsest multiple of `STEPS` that meets the goal.
    """
    if free is None:
        return shape_at(base, dials)

    def load(value: int) -> float:
        return goal.cost(shape_at(base, dials | {free: value})) / goal.target

    if free == "width":
        exact = solve_dial(load, LIMITS[free], TOLERANCE)
        multiples = (step * round(exact / step) for step in ROUND_STEPS)
        rounded = next((multiple for multiple in multiples if abs(multiple / exact - 1) <= 0.04), None)
        if "heads" not in dials:
            width = rounded or max(1, round(exact))
            dials = dials | {"heads": max(1, round(width / dials.get("head_dim", base.head_dim)))}
        if rounded is not None and "mlp" not in dials:
            dials, free = dials | {"width": rounded}, "mlp"

    exact = solve_dial(load, LIMITS[free])
    for step in STEPS if free in ("width", "mlp") else (1,):
        value = max(1, step * int(exact / step + (0.5 if goal.slack else 0)))
        if -TOLERANCE <= load(value) - 1 <= goal.slack:
            break
    overshoots = load(value) - 1 > goal.slack  # a load that goes in steps
    return shape_at(base, dials | {free: value - 1 if value > 1 and overshoots else value})


# The walk


def trials(start: LeanConfig | None, dials: Dials) -> Iterator[tuple[Dials, str | None]]:
    """Dials and the one to solve, a pair for each shape that is worth looking at.

    With a starting point and dials: every dial that is left, solved alone, the others as at the start. Without:
    depths and two head sizes, the width solved, or, if it is fixed, the next free dial.
    """
    free = [name for name in SOLVED if name not in dials]
    if start is not None and dials:
        for name in free or [None]:
            yield like_start(start, dials, name), name
        return
    if start is None:
        depths, sizes = DEPTHS, HEAD_SIZES
    else:
        depths = sorted({max(1, round(each * start.num_hidden_layers)) for each in SHARES})
        sizes = sorted({start.head_dim, 8 * max(1, start.head_dim // 16)})
    if free[:1] == ["layers"]:
        walked = [{"head_dim": size} for size in sizes]
    else:
        walked = [{"layers": depth, "head_dim": size} for depth in depths for size in sizes]
    for each in dict.fromkeys(tuple((each | dials).items()) for each in walked):
        yield dict(each), next(iter(free), None)


def fitting_shapes(base: LeanConfig, start: LeanConfig | None, dials: Dials, goal: Goal) -> list[LeanConfig]:
    """The shapes of the walk that meet the goal and are not extreme; what the user fixed is no objection."""
    walk = [(solve_shape(base, trial, solved, goal), solved) for trial, solved in trials(start, dials)]
    loads = [goal.cost(config) / goal.target for config, _ in walk]
    meeting = [each for each, load in zip(walk, loads) if -TOLERANCE <= load - 1 <= goal.slack]
    chooses_all = start is None or not dials  # everything that the user left open
    fixes_attention = len({"width", "heads", "head_dim"} & dials.keys()) >= 2  # two of the three decide it
    fixes_aspect = bool({"layers", "width"} & dials.keys())
    fitting = []
    for config, solved in meeting:
        width, attention = config.hidden_size, max(config.heads_per_layer) * config.head_dim
        is_large = {"mlp": config.intermediate_size, "heads": attention}.get(solved, 0) > MOST_OF_WIDTH * width
        is_usual = (fixes_attention or 2 / 3 <= attention / width <= 3 / 2) and (
            fixes_aspect or 2 <= width / config.num_hidden_layers <= 3000
        )
        if not is_large and (is_usual or solved is None or not chooses_all):
            fitting.append(config)
    if fitting:
        return fitting
    if meeting:
        shapes = "; ".join(describe(config) for config, _ in meeting[:3])
        problem = f"only extreme shapes fit: {shapes}; fix more of --layers, --width, --heads, --head-dim, --mlp"
    else:
        load, (nearest, _) = min(zip(loads, walk), key=lambda each: abs(each[0] - 1))
        cost = f"{human(goal.cost(nearest))}, {load:.3g} times {goal.name} {human(goal.target)}"
        problem = f"no shape fits: the nearest, {describe(nearest)}, takes {cost}"
    raise ValueError(problem)


def plan(
    family: str,
    params: float | None = None,
    flops: float | None = None,
    length: int | None = None,
    start: LeanConfig | None = None,
    base: LeanConfig | None = None,
    **dials: int,
) -> list[Candidate]:
    """Shapes of a size or equal to `start`, by depth, then head size; not ranked, for the sources disagree.

    One of `params`, `flops`, `start` and all dials is needed.

    Args:
        params: all parameters, with the pretraining head; reached within 1 %, from below.
        flops: forward, of one token or one image, instead.
        length: tokens of a sequence; None for the longest.
        base: gives vocabulary, positions and everything that is no dial; `start`, or the family's `base`, if left out.
        dials: what is fixed: layers, width, heads, head_dim, mlp.
    """
    base = base or start or load_shape(f"{family}/base")
    fields = fields_of(base)
    if fields.get("num_key_value_heads") not in (None, fields["num_attention_heads"]):
        raise ValueError("--like: a shape whose heads share keys and values; the planner has none of these")
    nothing_to_solve = params is None and flops is None and all(name in dials for name in SOLVED)
    if nothing_to_solve and start is not None:
        dials = like_start(start, dials, None)
    elif nothing_to_solve and "head_dim" not in dials:
        dials["head_dim"] = type(base)(hidden_size=dials["width"], num_attention_heads=dials["heads"]).head_dim
    if dials.get("head_dim", 8) not in HEAD_DIMS:
        raise ValueError(f"--head-dim {dials['head_dim']}: no fused attention kernel takes it; expected 8, 16, … 256")
    if nothing_to_solve:
        return [cost_of(shape_at(base, dials), length, start)]
    if params is not None:
        goal = Goal("--params", params, lambda config: config.count_parameters().total)
    elif flops is not None:
        goal = Goal("--flops", flops, lambda config: flops_per_unit(config, length))
    else:
        total = start.count_parameters().total
        goal = Goal("the parameters of --like,", total, lambda config: config.count_parameters().total, TOLERANCE)
    unique = {describe(config): config for config in fitting_shapes(base, start, dials, goal)}
    if start is not None and len(unique) > 1:
        unique.pop(describe(start), None)
    configs = sorted(unique.values(), key=lambda config: (config.num_hidden_layers, config.head_dim))
    return [cost_of(config, length, start) for config in configs]
