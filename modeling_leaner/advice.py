"""What the published sources advise about a shape, side by side: they optimise different costs and are never merged.

Each rule is a small function of numbers, its docstring the formula, units and source; `SOURCES` lists them with what
they optimise and where they are valid. d is the width, L the number of layers, N the parameters without embeddings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

from .configuration_leaner import LeanConfig


@dataclass(frozen=True)
class Verdict:
    """What one source says of one shape: yes (True), no (False) or nothing (None), and how far off in `margin`.

    `extrapolated`: the shape, or its family, lies outside what the source measured.
    """

    agrees: bool | None
    margin: str
    extrapolated: bool = False

    def __str__(self) -> str:
        word = {True: "yes", False: "no", None: "–"}[self.agrees]
        return f"{word} {self.margin}".strip() + ("*" if self.extrapolated else "")


@dataclass(frozen=True)
class Case:
    """A shape under question; `length` in tokens, `start` the shape it would replace, if any."""

    config: LeanConfig
    length: int
    start: LeanConfig | None = None

    @property
    def family(self) -> str:
        return self.config.model_type.removeprefix("lean_")

    @property
    def width(self) -> int:
        return self.config.hidden_size

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def heads(self) -> int:
        return max(self.config.heads_per_layer)

    @property
    def parameters(self) -> int:
        """N, without embeddings."""
        return self.config.count_parameters().without_embeddings


@dataclass(frozen=True)
class Source:
    """One source of advice: name in tables, what it optimises, where it is valid and in which unit it says how far."""

    name: str
    optimises: str
    valid: str
    reference: str
    judge: Callable[[Case], Verdict]


# Depth-Width (Levine et al. 2020, arXiv 2006.12467): the asymptotic floor and the fitted law, which differ greatly.

FIT_A, FIT_B, FIT_DEPTHS = 5.039, 0.0555, (6, 48)


def depth_floor(width: float) -> float:
    """L_th = log3(d), in layers: below it depth is worth far more than width. Asymptotic. Levine et al. 2020."""
    return log(width, 3)


def floor_parameters(layers: int) -> float:
    """The most parameters for which `layers` reach the floor: N = 12·L·9^L, from N = 12·L·d² and L = log3(d)."""
    return 12 * layers * 9**layers


def minimal_depth(parameters: float) -> int:
    """The smallest L with N ≤ 12·L·9^L: the floor for a budget, in layers."""
    layers = 1
    while floor_parameters(layers) < parameters:
        layers += 1
    return layers


def fitted_width(layers: float) -> float:
    """d*(L) = exp(5.039 + 0.0555·L): the width at which L layers are best. Fitted for 6 ≤ L ≤ 48."""
    return exp(FIT_A + FIT_B * layers)


def fitted_depth(width: float) -> float:
    """L = (ln d − 5.039) / 0.0555: the depth that is best at a width, the inverse of `fitted_width`."""
    return (log(width) - FIT_A) / FIT_B


def fitted_parameters(layers: float) -> float:
    """N(L) = 12·L·d*(L)²: the size at which L layers are best."""
    return 12 * layers * fitted_width(layers) ** 2


def fitted_depth_of_size(parameters: float) -> float:
    """L*(N), the depth at which `fitted_parameters` is N; it rises with L, so halving finds it. 0 < N < 1e30."""
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if fitted_parameters(middle) < parameters else (low, middle)
    return low


def judge_floor(case: Case) -> Verdict:
    """Yes from log3(d) layers on; the margin is in layers."""
    margin = case.layers - depth_floor(case.width)
    return Verdict(margin >= 0, f"{margin:+.1f}")


def judge_fit(case: Case) -> Verdict:
    """Yes within one layer of L*(N); the margin is how many layers to add (+) or to take away (−)."""
    margin = fitted_depth_of_size(case.parameters) - case.layers
    low, high = FIT_DEPTHS
    inside = fitted_parameters(low) <= case.parameters <= fitted_parameters(high) and low <= case.layers <= high
    return Verdict(abs(margin) <= 1, f"{margin:+.1f}", not inside or case.family != "gpt")


# One rule each.


def input_rank(config: LeanConfig) -> int:
    """The highest rank of the input: entries of the vocabulary, or values of a patch (channels × height × width)."""
    if config.model_type == "lean_vit":
        return config.num_channels * config.patch_shape[0] * config.patch_shape[1]
    return config.vocab_size


def judge_rank(case: Case) -> Verdict:
    """No where the width exceeds the rank of the input embedding: deepen instead. The margin is width over rank.

    The source speaks of vocabularies; a patch's values as its rank are this project's reading.
    """
    ratio = case.width / input_rank(case.config)
    return Verdict(ratio <= 1, f"{ratio:.2f}", case.family == "vit")


def judge_low_rank(case: Case) -> Verdict:
    """Yes where the head size reaches the sequence length: a smaller head cannot form every attention matrix."""
    ratio = case.config.head_dim / case.length
    return Verdict(ratio >= 1, f"{ratio:.2f}")


# Layers and heads before and after, as printed: XCiT-M (whose printed parameters are those of 16 layers, not 12),
# TNT-B, XCiT-L, BERT, GPT-2.
LEAN_ROWS = (((24, 8), (12, 16)), ((12, 10), (8, 16)), ((24, 16), (12, 24)), ((16, 12), (10, 24)), ((12, 12), (4, 16)))


def judge_lean(case: Case) -> Verdict:
    """Yes where layers fall and heads rise as in at least one published row; the margin is layers, heads over start.

    Extrapolated beyond every row: a smaller share of the layers, or a larger multiple of the heads.
    """
    if case.start is None:
        return Verdict(None, "")
    depth = case.layers / case.start.num_hidden_layers
    heads = case.heads / max(case.start.heads_per_layer)
    rows = [(after[0] / before[0], after[1] / before[1]) for before, after in LEAN_ROWS]
    agrees = any(depth <= row_depth and heads >= row_heads for row_depth, row_heads in rows)
    beyond = depth < min(row[0] for row in rows) or heads > max(row[1] for row in rows)
    return Verdict(agrees, f"{depth:.1f}/{heads:.1f}", agrees and beyond)


KAPLAN_ASPECTS = (1600 / 48, 4288 / 6)  # width over layers of two shapes of one size that are within 3 % in loss


def judge_kaplan(case: Case) -> Verdict:
    """Yes (the shape hardly matters) where width over layers lies between two shapes within 3 %: 33 to 715."""
    aspect, (low, high) = case.width / case.layers, KAPLAN_ASPECTS
    return Verdict(low <= aspect <= high, f"{aspect:.0f}", case.family != "gpt")


DEEP_ENOUGH = (32, 36)  # layers at which the gain from deepening converges


def judge_deep_narrow(case: Case) -> Verdict:
    """No below 32 layers: deepen first; above 36 the gain has converged. The margin is in layers."""
    low, high = DEEP_ENOUGH
    margin = case.layers - min(max(case.layers, low), high)
    return Verdict(margin == 0, f"{margin:+d}" if margin else "", case.family == "vit")


MOBILE_SHAPES = ((125e6, 30), (350e6, 32))  # parameters, layers


def judge_mobile(case: Case) -> Verdict:
    """Yes within two layers of the depth at the nearer published size (30 at 125M, 32 at 350M), total parameters."""
    total = case.config.count_parameters().total
    _, layers = min(MOBILE_SHAPES, key=lambda shape: abs(log(total / shape[0])))
    inside = MOBILE_SHAPES[0][0] / 2 <= total <= 1e9 and case.family == "gpt"
    return Verdict(abs(case.layers - layers) <= 2, f"{case.layers - layers:+d}", not inside)


PETTY_SIZES = (41e6, 374e6)


def judge_petty(case: Case) -> Verdict:
    """Yes where there are fewer layers than at the start: their benefit falls quickly, time is about linear in them.

    The margin is the share of the start's layers, about its share of the time. No threshold is published.
    """
    if case.start is None:
        return Verdict(None, "")
    share = case.layers / case.start.num_hidden_layers
    inside = PETTY_SIZES[0] / 2 <= case.config.count_parameters().total <= 2 * PETTY_SIZES[1] and case.family == "gpt"
    return Verdict(share < 1, f"{share:.2f}", not inside)


SOVIT_EXPONENTS = {"layers": 0.45, "width": 0.22, "mlp": 0.6}
SOVIT_ANCHOR, SOVIT_RANGE = {"layers": 27, "width": 1152, "mlp": 4304}, (150e6, 400e6)


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on SoViT's curve at N = L·(4·d² + 2·d·M).

    Each is its value at 400M (27, 1152, 4304) times t to its exponent (0.45, 0.22, 0.6); t, the compute against that
    shape's, follows from N by halving. The published 150M shape (18, 880, 2320) is met within 6 %.
    """
    low, high = 1e-9, 1e9
    for _ in range(100):
        t = (low * high) ** 0.5
        shape = {name: SOVIT_ANCHOR[name] * t**exponent for name, exponent in SOVIT_EXPONENTS.items()}
        size = shape["layers"] * (4 * shape["width"] ** 2 + 2 * shape["width"] * shape["mlp"])
        low, high = (t, high) if size < parameters else (low, t)
    return shape


def judge_sovit(case: Case) -> Verdict:
    """Yes within 20 % of the curve's depth, width and MLP width at this size; the margin is the depth over its own."""
    if case.family != "vit":
        return Verdict(None, "")
    best = sovit_shape(case.parameters)
    ours = {"layers": case.layers, "width": case.width, "mlp": case.config.intermediate_size}
    agrees = all(1 / 1.2 <= ours[name] / best[name] <= 1.2 for name in best)
    inside = SOVIT_RANGE[0] / 2 <= case.parameters <= 2 * SOVIT_RANGE[1]
    return Verdict(agrees, f"{ours['layers'] / best['layers']:.2f}", not inside)


def critical_depth(width: float) -> float:
    """D_crit = 16·(W/512)^0.44, in layers: beyond it more layers raise the loss. arXiv 2601.20994."""
    return 16 * (width / 512) ** 0.44


def judge_delusion(case: Case) -> Verdict:
    """Yes up to D_crit; the margin is in layers, negative beyond it."""
    margin = critical_depth(case.width) - case.layers
    return Verdict(margin >= 0, f"{margin:+.0f}", case.family != "gpt")


# What runs where. A kernel that pads a head to the next size it has counts as running, and costs the padding.
FLASH = "FlashAttention-2 (SDPA's, too)"
KERNELS: dict[str, Callable[[int], bool]] = {
    "any CPU kernel": lambda size: True,
    FLASH: lambda size: size % 8 == 0 and size <= 256,
    "compiled flex attention": lambda size: size >= 16,
    "vLLM 0.10": lambda size: size in (32, 64, 96, 128, 160, 192, 224, 256),
    "FlashInfer": lambda size: size in (64, 128, 256),
}


def kernels_for(head_dim: int) -> dict[str, bool]:
    """Which attention kernels and servers take a head size; the lists are those of their code and documentation."""
    return {name: takes(head_dim) for name, takes in KERNELS.items()}


def has_fused_kernel(head_dim: int) -> bool:
    """Whether FlashAttention-2 takes the size: a multiple of 8 up to 256."""
    return KERNELS[FLASH](head_dim)


def judge_kernels(case: Case) -> Verdict:
    """Yes where every kernel and server takes the head size; the margin is how many do."""
    takes = kernels_for(case.config.head_dim)
    return Verdict(all(takes.values()), f"{sum(takes.values())}/{len(takes)}")


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "floor",
            "expressiveness per parameter",
            "asymptotic; layers above log3(width)",
            "Depth-Width 2020, 2006.12467",
            judge_floor,
        ),
        Source(
            "fit",
            "language-model loss, equal size",
            "6-48 layers, 3.3M-2.8B; layers to the best",
            "Depth-Width's fit, 2006.12467",
            judge_fit,
        ),
        Source(
            "rank",
            "expressiveness per parameter",
            "vocabularies, patches *; width / rank",
            "Wies 2021, 2105.03928",
            judge_rank,
        ),
        Source(
            "low-rank",
            "every attention matrix can be had",
            "one head, untrained; head size / length",
            "Low-Rank 2020, 2002.07028",
            judge_low_rank,
        ),
        Source(
            "lean",
            "equal accuracy, fewer parameters",
            "one seed; layers / start's, heads / start's",
            "Lean 2025, 2505.20802",
            judge_lean,
        ),
        Source(
            "kaplan",
            "language-model loss, equal size",
            "width / layers 33-715: it hardly matters",
            "Kaplan 2020, 2001.08361",
            judge_kaplan,
        ),
        Source(
            "narrow",
            "fine-tuning T5: deepen first",
            "until 32-36 layers; layers off that",
            "DeepNarrow 2021, 2109.10686",
            judge_deep_narrow,
        ),
        Source(
            "mobile",
            "zero-shot accuracy below 1B",
            "125M: 30 layers, 350M: 32; layers off that",
            "MobileLLM 2024, 2402.14905",
            judge_mobile,
        ),
        Source(
            "petty",
            "compositional generalisation, time",
            "41M-374M, no threshold; layers / start's",
            "Petty 2023, 2310.19956",
            judge_petty,
        ),
        Source(
            "sovit",
            "image accuracy at equal compute",
            "150M-400M, yes ±20 %; depth / best depth",
            "SoViT 2023, 2305.13035",
            judge_sovit,
        ),
        Source(
            "delusion",
            "language-model loss",
            "17M-7B; layers left to 16·(width/512)^0.44",
            "Delusion 2026, 2601.20994",
            judge_delusion,
        ),
        Source(
            "kernels",
            "speed: what takes the head size",
            "of those listed below",
            "code and documentation",
            judge_kernels,
        ),
    )
}


def advise(config: LeanConfig, length: int | None = None, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What every source says of a shape at `length` tokens (None: the longest), in place of `start`."""
    case = Case(config, config.default_length if length is None else length, start)
    return {name: source.judge(case) for name, source in SOURCES.items()}
