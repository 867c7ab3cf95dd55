"""What the published sources advise about a shape, side by side: they optimise different costs and are never merged.

A source favours a shape only if it names an optimum and the shape is near it; a bound that is kept is no objection.
d is the width, L the number of layers, N the parameters without embeddings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

from scipy.optimize import brentq
from scipy.special import lambertw

from ..configuration_leaner import LeanConfig
from ..family import IMAGES
from ..shapes import family_of, modality_of


FAVOURS = "favours"
NO_OBJECTION = "no objection"
OPPOSES = "opposes"


@dataclass(frozen=True)
class Verdict:
    """What one source says of one shape: `FAVOURS`, `NO_OBJECTION`, `OPPOSES`, or None for nothing.

    `number` is how far off, in the unit of `Source.valid`; a number of layers is the shape's less the source's.
    `outside`: the shape, or its family, is not one that the source measured.
    """

    says: str | None
    number: float | None = None
    outside: bool = False


NOTHING = Verdict(None)


@dataclass(frozen=True)
class Case:
    """A shape under question; `length` in tokens, `start` the shape it would replace, if any."""

    config: LeanConfig
    length: int
    start: LeanConfig | None = None

    @property
    def family(self) -> str:
        return family_of(self.config)

    @property
    def width(self) -> int:
        return self.config.hidden_size

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def size(self) -> int:
        """All parameters."""
        return self.config.count_parameters().total


def within(size: float, low: float, high: float) -> bool:
    """Whether a size lies in a printed range, whose ends are rounded: 1 % beyond them counts as inside."""
    return 0.99 * low <= size <= 1.01 * high


def near(distance: float, tolerance: float) -> str:
    """The verdict of a source that names an optimum."""
    return FAVOURS if abs(distance) <= tolerance else OPPOSES


def bound(kept: bool) -> str:
    """The verdict of a source that names a bound."""
    return NO_OBJECTION if kept else OPPOSES


# Depth-Width (Levine et al. 2020, arXiv 2006.12467): the asymptotic floor and the fitted law, which differ greatly.

FIT_A = 5.039
FIT_B = 0.0555
FIT_DEPTHS = (6, 48)
FIT_OFF = 1  # layers


def depth_floor(width: float) -> float:
    """L_th = log3(d), in layers: below it depth is worth far more than width. Asymptotic. Levine et al. 2020."""
    return log(width, 3)


def floor_parameters(layers: int) -> float:
    """The most parameters for which `layers` reach the floor: N = 12·L·9^L, from N = 12·L·d² and L = log3(d)."""
    return 12 * layers * 9**layers


def minimal_depth(parameters: float) -> int:
    """The smallest L with N ≤ 12·L·9^L: the floor for a budget, in layers."""
    return next(layers for layers in range(1, 100) if floor_parameters(layers) >= parameters)


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
    """L*(N), the depth at which `fitted_parameters` is N: 2bL·exp(2bL) = 2bN / (12·exp(2a)), by Lambert's W."""
    return float(lambertw(2 * FIT_B * parameters / (12 * exp(2 * FIT_A))).real / (2 * FIT_B))


def judge_floor(case: Case) -> Verdict:
    margin = case.layers - depth_floor(case.width)
    return Verdict(bound(margin >= 0), margin)


def judge_fit(case: Case) -> Verdict:
    parameters = case.config.count_parameters().without_embeddings
    margin = case.layers - fitted_depth_of_size(parameters)
    low, high = FIT_DEPTHS
    inside = fitted_parameters(low) <= parameters <= fitted_parameters(high) and low <= case.layers <= high
    return Verdict(near(margin, FIT_OFF), margin, not inside or case.family != "gpt")


def input_rank(config: LeanConfig) -> int:
    """The highest rank of the input: entries of the vocabulary, or values of a patch (channels × height × width)."""
    if modality_of(config) is IMAGES:
        return config.num_channels * config.patch_shape[0] * config.patch_shape[1]
    return config.vocab_size


def judge_rank(case: Case) -> Verdict:
    """The source speaks of vocabularies; a patch's values as its rank are this project's reading."""
    ratio = case.width / input_rank(case.config)
    return Verdict(bound(ratio <= 1), ratio, modality_of(case.config) is IMAGES)


def judge_low_rank(case: Case) -> Verdict:
    """A head smaller than the length cannot form every attention matrix; of strictly positive ones, not causal."""
    ratio = case.config.head_dim / case.length
    return Verdict(bound(ratio >= 1), ratio, case.family == "gpt")


# Lean (arXiv 2505.20802): layers and heads before and after, as printed. The other rows (XCiT-M, TNT-B, GPT-2) do not
# agree with their own parameter counts.
LEAN_ROWS = {"vit": ((24, 12), (16, 24)), "bert": ((16, 10), (12, 24))}
REFUTED = ((8, 4), (3, 6))  # a gpt of width 96
REFUTATION = (
    "half the layers with twice the heads raised a GPT's loss by 0.086 at equal tokens here (8 × 3 to 4 × 6, "
    "p 1.1e-4, seven seeds, grid enwik8-text-causal-curves)"
)


def is_change(case: Case, layers: tuple[int, int], heads: tuple[int, int]) -> bool:
    """Whether layers and heads change from the start as in a row, to the nearest whole ones."""
    expected_layers = case.start.num_hidden_layers * layers[1] / layers[0]
    expected_heads = max(case.start.heads_per_layer) * heads[1] / heads[0]
    off_heads = max(case.config.heads_per_layer) - expected_heads
    return abs(case.layers - expected_layers) <= 0.5 and abs(off_heads) <= 0.5


def judge_lean(case: Case) -> Verdict:
    """Judged by its statement about quality: a language model's half the layers with twice the heads failed here.

    Inside is only what an audited row of the same family did: keep width, MLP and heads × head size, with fewer
    parameters. Any other change it says nothing about.
    """
    start = case.start
    if start is None or case.layers >= start.num_hidden_layers:
        return NOTHING
    share = case.layers / start.num_hidden_layers
    if case.family == "gpt":
        if not is_change(case, *REFUTED):
            return NOTHING
        return Verdict(OPPOSES, share, outside=(start.num_hidden_layers, start.hidden_size) != (8, 96))
    if not is_change(case, *LEAN_ROWS[case.family]):
        return NOTHING
    kept = attention_and_widths(case.config) == attention_and_widths(start)
    return Verdict(NO_OBJECTION, share, not (kept and case.size < start.count_parameters().total))


def attention_and_widths(config: LeanConfig) -> tuple[int, int, int]:
    """Width, MLP width, and heads × head size."""
    return config.hidden_size, config.intermediate_size, max(config.heads_per_layer) * config.head_dim


KAPLAN_ASPECTS = (1600 / 48, 4288 / 6)  # width over layers of two shapes of one size that are within 3 % in loss


def judge_kaplan(case: Case) -> Verdict:
    aspect = case.width / case.layers
    if within(aspect, *KAPLAN_ASPECTS):
        return Verdict(NO_OBJECTION, aspect, case.family != "gpt")
    return Verdict(None, aspect)


DEEP_ENOUGH = (32, 36)  # layers at which the gain from deepening converges


def judge_deep_narrow(case: Case) -> Verdict:
    """Measured on fine-tuned T5, which no family here is."""
    low, high = DEEP_ENOUGH
    margin = min(case.layers - low, 0) + max(case.layers - high, 0)
    return Verdict(near(margin, 0), margin, outside=True)


MOBILE_SHAPES = {125e6: 30, 350e6: 32}  # parameters, layers
MOBILE_OFF = 2  # layers


def judge_mobile(case: Case) -> Verdict:
    nearest = min(MOBILE_SHAPES, key=lambda size: abs(log(case.size / size)))
    margin = case.layers - MOBILE_SHAPES[nearest]
    inside = within(case.size, *MOBILE_SHAPES) and case.family == "gpt"
    return Verdict(near(margin, MOBILE_OFF), margin, not inside)


SOVIT_EXPONENTS = {"layers": 0.45, "width": 0.22, "mlp": 0.6}
SOVIT_ANCHOR = {"layers": 27, "width": 1152, "mlp": 4304}
SOVIT_RANGE = (129e6, 411e6)  # parameters of the blocks of the two published shapes, "150M" and "400M"
SOVIT_OFF = 1.2


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on SoViT's curve at N = L·(4·d² + 2·d·M).

    Each is its value at 400M (27, 1152, 4304) times t to its exponent (0.45, 0.22, 0.6); t, the compute against that
    shape's, follows from N. The published 150M shape (18, 880, 2320) is met within 6 %.
    """

    def shape(log_t: float) -> dict[str, float]:
        return {name: SOVIT_ANCHOR[name] * exp(power * log_t) for name, power in SOVIT_EXPONENTS.items()}

    def excess(log_t: float) -> float:
        each = shape(log_t)
        return log(each["layers"] * (4 * each["width"] ** 2 + 2 * each["width"] * each["mlp"]) / parameters)

    return shape(brentq(excess, -50, 50))


def block_parameters(config: LeanConfig) -> int:
    """Weights of the blocks, L·(4·d·heads·size + 2·d·M), as `sovit_shape` counts them."""
    inner = sum(config.heads_per_layer) * config.head_dim
    return config.hidden_size * (4 * inner + 2 * config.intermediate_size * config.num_hidden_layers)


def judge_sovit(case: Case) -> Verdict:
    """Depth, width and MLP width have to be near; the number is the depth over the curve's."""
    if case.family != "vit":
        return NOTHING
    size = block_parameters(case.config)
    best = sovit_shape(size)
    ours = {"layers": case.layers, "width": case.width, "mlp": case.config.intermediate_size}
    furthest = max(abs(log(ours[name] / best[name])) for name in best)
    return Verdict(near(furthest, log(SOVIT_OFF)), ours["layers"] / best["layers"], not within(size, *SOVIT_RANGE))


DELUSION_SIZES = (17e6, 7e9)


def critical_depth(width: float) -> float:
    """D_crit = 16·(W/512)^0.44, in layers: beyond it more layers raise the loss. arXiv 2601.20994."""
    return 16 * (width / 512) ** 0.44


def judge_delusion(case: Case) -> Verdict:
    margin = case.layers - critical_depth(case.width)
    inside = within(case.size, *DELUSION_SIZES) and case.family == "gpt"
    return Verdict(bound(margin <= 0), margin, not inside)


@dataclass(frozen=True)
class Source:
    """One source of advice: what it optimises, what it says and where it was measured, and its arXiv number."""

    title: str
    reference: str
    optimises: str
    valid: str
    judge: Callable[[Case], Verdict]


SOURCES = {
    "floor": Source(
        "Depth-Width 2020, floor",
        "2006.12467",
        "expressiveness per parameter",
        "at least log3(width) layers, asymptotically",
        judge_floor,
    ),
    "fit": Source(
        "Depth-Width 2020, fit",
        "2006.12467",
        "language-model loss at equal size",
        "best depth ± 1 layer; 3.3M to 2.8B, 6 to 48 layers; known at second hand",
        judge_fit,
    ),
    "rank": Source(
        "Wies 2021",
        "2105.03928",
        "expressiveness per parameter",
        "width at most the vocabulary",
        judge_rank,
    ),
    "low-rank": Source(
        "Low-Rank 2020",
        "2002.07028",
        "every attention matrix can be formed",
        "head size at least the length; one head, not causal",
        judge_low_rank,
    ),
    "lean": Source(
        "Lean 2025",
        "2505.20802",
        "equal quality, fewer parameters",
        f"fewer layers, more heads, as in its ViT and BERT rows, one seed each; {REFUTATION}",
        judge_lean,
    ),
    "kaplan": Source(
        "Kaplan 2020",
        "2001.08361",
        "language-model loss at equal size",
        "width 33 to 715 times the layers hardly matters",
        judge_kaplan,
    ),
    "narrow": Source(
        "DeepNarrow 2021",
        "2109.10686",
        "fine-tuned quality",
        "32 to 36 layers; T5",
        judge_deep_narrow,
    ),
    "mobile": Source(
        "MobileLLM 2024",
        "2402.14905",
        "zero-shot accuracy",
        "30 layers at 125M, 32 at 350M, ± 2",
        judge_mobile,
    ),
    "sovit": Source(
        "SoViT 2023",
        "2305.13035",
        "image accuracy at equal compute",
        "its curve ± 20 %; blocks of 129M to 411M",
        judge_sovit,
    ),
    "delusion": Source(
        "Depth Delusion 2026",
        "2601.20994",
        "language-model loss",
        "at most 16·(width/512)^0.44 layers; 17M to 7B",
        judge_delusion,
    ),
}


def advise(config: LeanConfig, length: int | None = None, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What every source says of a shape at `length` tokens (None: the longest), in place of `start`."""
    case = Case(config, length or config.default_length, start)
    return {name: source.judge(case) for name, source in SOURCES.items()}


# Kernels and servers by the head sizes they take. One that pads a head to the next size it has counts as taking it,
# and costs the padding.
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
