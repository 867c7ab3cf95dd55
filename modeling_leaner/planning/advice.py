"""What the published sources advise about a shape, side by side: they optimise different costs and are never merged.

Each rule is a small function of numbers, its docstring the formula, units and source; `SOURCES` lists them with what
they optimise and where they are valid. d is the width, L the number of layers, N the parameters without embeddings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from typing import NamedTuple

from ..configuration_leaner import LeanConfig
from ..registry import IMAGES
from ..shapes import family_of, modality_of
from .laws import GRIDS_FOLDER, TERM_NAMES, Law, OutOfRange, read_laws, sizes_of
from .units import human


VERDICT_WORDS = {True: "yes", False: "no", None: "–"}


@dataclass(frozen=True)
class Verdict:
    """What one source says of one shape: yes (True), no (False) or nothing (None), and how far off.

    `numbers` say how far: none, one or two, each printed as `form`, a format specification. A number of layers is the
    shape's less the source's: + is deeper than it names, − shallower. `extrapolated`: the shape, or its family, lies
    outside what the source measured, as printed in `Source.valid`.
    """

    agrees: bool | None
    numbers: tuple[float, ...] = ()
    form: str = ""
    extrapolated: bool = False

    @property
    def margin(self) -> str:
        """The numbers as tables have them: `+6.0`, `0.12`, `0.6/2.0`; empty where there is none."""
        return "/".join(format(number, self.form) for number in self.numbers)

    @property
    def off(self) -> str:
        """The numbers without their sign: `6.0`."""
        unsigned = self.form.removeprefix("+")
        return "/".join(format(abs(number), unsigned) for number in self.numbers)

    @property
    def side(self) -> str:
        """On which side of what the source names: "above" or "below"."""
        if any(number < 0 for number in self.numbers):
            return "below"
        return "above"

    def document(self) -> dict[str, object]:
        """As JSON."""
        return {"agrees": self.agrees, "margin": self.margin, "extrapolated": self.extrapolated}

    def __str__(self) -> str:
        text = f"{VERDICT_WORDS[self.agrees]} {self.margin}".strip()
        if self.extrapolated:
            text += "*"
        return text


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
    def heads(self) -> int:
        return max(self.config.heads_per_layer)

    @property
    def parameters(self) -> int:
        """N, without embeddings."""
        return self.config.count_parameters().without_embeddings


@dataclass(frozen=True)
class Source:
    """One source of advice: its name in tables, what it optimises, where it is valid, and the unit of its margin.

    `reason` gives a verdict's number in a sentence, for yes and for no: {margin}, {off} and {side} of the verdict,
    {head_dim} of the shape.
    """

    name: str
    optimises: str
    valid: str
    reference: str
    reason: str
    judge: Callable[[Case], Verdict | None]  # None: left out; no published source is
    study: str | None = None  # of this project, which puts the source's statements to the test
    place: str = ""  # in the paper, as the study has it, where others of its statements are not this source's
    is_computed_alone: bool = False  # whether the study only computes its numbers again, and tests no model
    refuse: Callable[[Case], str | None] | None = None  # of a law fitted here: why it says nothing of a shape

    @property
    def paper(self) -> str:
        """Name and year."""
        return self.reference.split(",")[0]

    def explain(self, verdict: Verdict, head_dim: int) -> str:
        """The source and its reason, as a sentence has them: `Wies 2021 (width is 0.12 of the vocabulary)`."""
        said = {"margin": verdict.margin, "off": verdict.off, "side": verdict.side}
        return f"{self.paper} ({self.reason.format(**said, head_dim=head_dim)})"


def within(size: float, low: float, high: float) -> bool:
    """Whether a size lies in a printed range, whose ends are rounded: 1 % beyond them counts as inside."""
    return 0.99 * low <= size <= 1.01 * high


def off_by(layers: float) -> float:
    """Layers as a margin prints them, to a tenth, so that the verdict is that of the printed number; no −0."""
    return round(layers, 1) + 0.0


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
    low = 0.0
    high = 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        if fitted_parameters(middle) < parameters:
            low = middle
        else:
            high = middle
    return low


def judge_floor(case: Case) -> Verdict:
    """Yes from log3(d) layers on; the margin is in layers."""
    margin = off_by(case.layers - depth_floor(case.width))
    return Verdict(margin >= 0, (margin,), "+.1f")


def judge_fit(case: Case) -> Verdict:
    """Yes within `FIT_OFF` layers of L*(N); the margin is in layers. The threshold is this project's."""
    margin = off_by(case.layers - fitted_depth_of_size(case.parameters))
    low, high = FIT_DEPTHS
    inside = fitted_parameters(low) <= case.parameters <= fitted_parameters(high) and low <= case.layers <= high
    return Verdict(abs(margin) <= FIT_OFF, (margin,), "+.1f", not inside or case.family != "gpt")


# One rule each.


def input_rank(config: LeanConfig) -> int:
    """The highest rank of the input: entries of the vocabulary, or values of a patch (channels × height × width)."""
    if modality_of(config) is IMAGES:
        return config.num_channels * config.patch_shape[0] * config.patch_shape[1]
    return config.vocab_size


def judge_rank(case: Case) -> Verdict:
    """No where the width exceeds the rank of the input embedding: deepen instead. The margin is width over rank.

    The source speaks of vocabularies; a patch's values as its rank are this project's reading.
    """
    ratio = case.width / input_rank(case.config)
    return Verdict(ratio <= 1, (ratio,), ".2f", modality_of(case.config) is IMAGES)


def judge_low_rank(case: Case) -> Verdict:
    """Yes where the head size reaches the sequence length: a smaller head cannot form every attention matrix.

    The theorem is about strictly positive matrices, which causal attention never has.
    """
    ratio = case.config.head_dim / case.length
    return Verdict(ratio >= 1, (ratio,), ".2f", case.family == "gpt")


@dataclass(frozen=True)
class LeanRow:
    """One row of Lean's tables: layers and heads before and after, as printed.

    `audited`: the printed parameters are those of the printed layers at fixed width, MLP and heads × head size.
    """

    model: str
    layers: tuple[int, int]
    heads: tuple[int, int]
    family: str
    audited: bool

    @property
    def shares(self) -> tuple[float, float]:
        """Layers and heads, as multiples of those before."""
        return self.layers[1] / self.layers[0], self.heads[1] / self.heads[0]

    def is_change(self, layers: int, new_layers: int, heads: int, new_heads: int) -> bool:
        """Whether layers and heads change as in this row, to the nearest whole ones."""
        layer_share, head_share = self.shares
        return abs(new_layers - layer_share * layers) <= 0.5 and abs(new_heads - head_share * heads) <= 0.5


LEAN_ROWS = (
    LeanRow("XCiT-M", (24, 12), (8, 16), "vit", audited=False),  # its parameters are those of 16 layers, not 12
    LeanRow("TNT-B", (12, 8), (10, 16), "vit", audited=False),  # its parameters need the MLP halved, too
    LeanRow("XCiT-L", (24, 12), (16, 24), "vit", audited=True),
    LeanRow("BERT", (16, 10), (12, 24), "bert", audited=True),
    LeanRow("GPT-2", (12, 4), (12, 16), "gpt", audited=False),  # parameters and loss after are not known here
)


def judge_lean(case: Case) -> Verdict:
    """Yes where layers and heads change as in a published row, to the nearest whole ones; otherwise it says nothing.

    The margin is layers and heads over the start's. Measured is only what an audited row of the same family did: keep
    width, MLP and heads × head size, with fewer parameters. Rows are of one seed each.
    """
    if case.start is None:
        return Verdict(None)
    layers = case.start.num_hidden_layers
    heads = max(case.start.heads_per_layer)
    shares = (case.layers / layers, case.heads / heads)
    rows = [row for row in LEAN_ROWS if row.is_change(layers, case.layers, heads, case.heads)]
    if not rows or case.layers >= layers or case.heads <= heads:
        return Verdict(None, shares, ".1f", extrapolated=True)
    kept = attention_and_widths(case.config) == attention_and_widths(case.start)
    fewer = case.config.count_parameters().total < case.start.count_parameters().total
    same = any(row.audited and row.family == case.family for row in rows)
    return Verdict(True, shares, ".1f", not (kept and fewer and same))


def attention_and_widths(config: LeanConfig) -> tuple[int, int, int]:
    """Width, MLP width, and heads × head size."""
    return config.hidden_size, config.intermediate_size, max(config.heads_per_layer) * config.head_dim


KAPLAN_ASPECTS = (1600 / 48, 4288 / 6)  # width over layers of two shapes of one size that are within 3 % in loss


def judge_kaplan(case: Case) -> Verdict:
    """Yes (the shape hardly matters) where width over layers lies between two shapes within 3 %: 33 to 715.

    It objects to no shape: outside of these it says nothing.
    """
    aspect = case.width / case.layers
    low, high = KAPLAN_ASPECTS
    if low <= aspect <= high:
        return Verdict(True, (aspect,), ".0f", extrapolated=case.family != "gpt")
    return Verdict(None, (aspect,), ".0f", extrapolated=True)


DEEP_ENOUGH = (32, 36)  # layers at which the gain from deepening converges


def judge_deep_narrow(case: Case) -> Verdict:
    """No below 32 layers: deepen first; above 36 the gain has converged. The margin is in layers.

    Measured on fine-tuned T5, which no family here is.
    """
    low, high = DEEP_ENOUGH
    if case.layers < low:
        return Verdict(False, (case.layers - low,), "+d", extrapolated=True)
    if case.layers > high:
        return Verdict(False, (case.layers - high,), "+d", extrapolated=True)
    return Verdict(True, extrapolated=True)


class MobileShape(NamedTuple):
    """The depth that MobileLLM names for a size."""

    parameters: float
    layers: int


MOBILE_SHAPES = (MobileShape(125e6, 30), MobileShape(350e6, 32))
MOBILE_OFF = 2  # layers


def judge_mobile(case: Case) -> Verdict:
    """Yes within `MOBILE_OFF` layers of the depth at the nearer published size (30 at 125M, 32 at 350M parameters).

    The margin is in layers. The threshold is this project's.
    """
    total = case.config.count_parameters().total
    smaller, larger = MOBILE_SHAPES
    nearer = min(MOBILE_SHAPES, key=lambda shape: abs(log(total / shape.parameters)))
    margin = case.layers - nearer.layers
    inside = within(total, smaller.parameters, larger.parameters) and case.family == "gpt"
    return Verdict(abs(margin) <= MOBILE_OFF, (margin,), "+d", not inside)


PETTY_SIZES = (41e6, 374e6)


def judge_petty(case: Case) -> Verdict:
    """Neither yes nor no, for it trades: the margin is the share of the start's layers, about that of its time.

    The deeper generalise better to new compositions, by less and less per layer; time is about linear in layers. No
    threshold is published. Sizes are total parameters, of both shapes.
    """
    if case.start is None:
        return Verdict(None)
    sizes = [config.count_parameters().total for config in (case.config, case.start)]
    inside = all(within(size, *PETTY_SIZES) for size in sizes) and case.family == "gpt"
    return Verdict(None, (case.layers / case.start.num_hidden_layers,), ".2f", not inside)


SOVIT_FAMILY = "vit"
SOVIT_EXPONENTS = {"layers": 0.45, "width": 0.22, "mlp": 0.6}
SOVIT_ANCHOR = {"layers": 27, "width": 1152, "mlp": 4304}
SOVIT_RANGE = (129e6, 411e6)  # parameters of the blocks of the two published shapes, "150M" and "400M"
SOVIT_OFF = 1.2


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on SoViT's curve at N = L·(4·d² + 2·d·M).

    Each is its value at 400M (27, 1152, 4304) times t to its exponent (0.45, 0.22, 0.6); t, the compute against that
    shape's, follows from N by halving. The published 150M shape (18, 880, 2320) is met within 6 %.
    """
    low = 1e-9
    high = 1e9
    for _ in range(100):
        t = (low * high) ** 0.5
        shape = {name: SOVIT_ANCHOR[name] * t**exponent for name, exponent in SOVIT_EXPONENTS.items()}
        size = shape["layers"] * (4 * shape["width"] ** 2 + 2 * shape["width"] * shape["mlp"])
        if size < parameters:
            low = t
        else:
            high = t
    return shape


def block_parameters(config: LeanConfig) -> int:
    """Weights of the blocks, L·(4·d·heads·size + 2·d·M), as `sovit_shape` counts them."""
    inner = sum(config.heads_per_layer) * config.head_dim
    return config.hidden_size * (4 * inner + 2 * config.intermediate_size * config.num_hidden_layers)


def judge_sovit(case: Case) -> Verdict:
    """Yes within 20 % of the curve's depth, width and MLP width at the blocks' size; the threshold is this project's.

    The margin is the depth over the curve's.
    """
    if case.family != SOVIT_FAMILY:
        return Verdict(None)
    size = block_parameters(case.config)
    best = sovit_shape(size)
    ours = {"layers": case.layers, "width": case.width, "mlp": case.config.intermediate_size}
    agrees = all(1 / SOVIT_OFF <= ours[name] / best[name] <= SOVIT_OFF for name in best)
    return Verdict(agrees, (ours["layers"] / best["layers"],), ".2f", not within(size, *SOVIT_RANGE))


DELUSION_SIZES = (17e6, 7e9)


def critical_depth(width: float) -> float:
    """D_crit = 16·(W/512)^0.44, in layers: beyond it more layers raise the loss. arXiv 2601.20994."""
    return 16 * (width / 512) ** 0.44


def judge_delusion(case: Case) -> Verdict:
    """Yes up to D_crit; the margin is in layers. Sizes are total parameters."""
    margin = off_by(case.layers - critical_depth(case.width))
    inside = within(case.config.count_parameters().total, *DELUSION_SIZES) and case.family == "gpt"
    return Verdict(margin <= 0, (margin,), "+.1f", not inside)


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


def judge_kernels(case: Case) -> Verdict:
    """Yes where every kernel and server takes the head size; the margin is how many do."""
    takes = kernels_for(case.config.head_dim)
    return Verdict(all(takes.values()), (sum(takes.values()), len(takes)), "d")


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="floor",
            optimises="expressiveness per parameter",
            valid="asymptotic; layers above log3(width)",
            reference="Depth-Width 2020, 2006.12467",
            reason="{off} layers {side} its least depth",
            judge=judge_floor,
            study="depth-width",
            place="floor",
        ),
        Source(
            name="fit",
            optimises="language-model loss, equal size",
            valid="3.3M-2.8B, 6-48 layers; off best, yes ±1",
            reference="Depth-Width's fit, 2006.12467",
            reason="{off} layers {side} its best depth",
            judge=judge_fit,
            study="depth-width",
            place="fitted law",
            is_computed_alone=True,
        ),
        Source(
            name="rank",
            optimises="expressiveness per parameter",
            valid="vocabularies; width / rank",
            reference="Wies 2021, 2105.03928",
            reason="width is {margin} of the vocabulary",
            judge=judge_rank,
            study="depth-width",
        ),
        Source(
            name="low-rank",
            optimises="every attention matrix can be had",
            valid="one head, not causal; head size / length",
            reference="Low-Rank 2020, 2002.07028",
            reason="heads of {head_dim} are {margin} of the length",
            judge=judge_low_rank,
            study="low-rank",
        ),
        Source(
            name="lean",
            optimises="equal accuracy, fewer parameters",
            valid="its rows, one seed; layers, heads / start's",
            reference="Lean 2025, 2505.20802",
            reason="layers/heads are {margin} of the start's, as in its tables",
            judge=judge_lean,
            study="conditioning",
        ),
        Source(
            name="kaplan",
            optimises="language-model loss, equal size",
            valid="33-715: it hardly matters; width / layers",
            reference="Kaplan 2020, 2001.08361",
            reason="width is {margin} times the layers, its range 33 to 715",
            judge=judge_kaplan,
            study="depth-width",
        ),
        Source(
            name="narrow",
            optimises="fine-tuning: deepen first",
            valid="T5, until 32-36 layers; layers off that",
            reference="DeepNarrow 2021, 2109.10686",
            reason="{off} layers {side} its 32 to 36",
            judge=judge_deep_narrow,
        ),
        Source(
            name="mobile",
            optimises="zero-shot accuracy",
            valid="125M: 30, 350M: 32 layers; off it, yes ±2",
            reference="MobileLLM 2024, 2402.14905",
            reason="{off} layers {side} its best shape",
            judge=judge_mobile,
        ),
        Source(
            name="petty",
            optimises="time; fewer layers generalise less",
            valid="41M-374M; layers / start's, about its time",
            reference="Petty 2023, 2310.19956",
            reason="{margin} of the start's layers",
            judge=judge_petty,
        ),
        Source(
            name="sovit",
            optimises="image accuracy at equal compute",
            valid="blocks 129M-411M, yes ±20 %; depth / best",
            reference="SoViT 2023, 2305.13035",
            reason="depth is {margin} of its curve's",
            judge=judge_sovit,
        ),
        Source(
            name="delusion",
            optimises="language-model loss",
            valid="17M-7B; layers off 16·(width/512)^0.44",
            reference="Delusion 2026, 2601.20994",
            reason="{off} layers {side} its critical depth",
            judge=judge_delusion,
        ),
        Source(
            name="kernels",
            optimises="speed: what takes the head size",
            valid="of those listed below",
            reference="code and documentation",
            reason="{margin} take heads of {head_dim}",
            judge=judge_kernels,
        ),
    )
}


# Laws fitted here, beside the published sources: only of shapes like those that they were fitted on.


def law_refusal(law: Law, case: Case) -> str | None:
    """Why a law says nothing of a shape: there is no start to compare with, or sizes of either were not measured.

    None where the law reaches, and where it is of another family.
    """
    if case.family != law.family:
        return None
    if case.start is None:
        return "it compares a shape with a starting point, which --like names"
    for whose, config in (("", case.config), ("the start's ", case.start)):
        try:
            law.check(sizes_of(config, case.length), law.longest)
        except OutOfRange as error:
            return f"{whose}{error}"
    return None


def judge_law(law: Law, case: Case) -> Verdict | None:
    """Yes where the law's quality is better than the start's after the most tokens of its fit, no where it is worse.

    The margin is the difference, − is better. It says nothing where the interval over seeds includes 0, or where two
    shapes that the law has not seen may be as far apart by its error alone. None where there is no start, the family
    is another, or the law is refused.
    """
    if case.start is None or case.family != law.family:
        return None
    sizes, others = (sizes_of(config, case.length) for config in (case.config, case.start))
    try:
        difference, (low, high) = law.difference(sizes, others, law.longest)
    except OutOfRange:
        return None
    error = sqrt(2) * law.error
    agrees = None
    if high < 0 and difference < -error:
        agrees = True
    if low > 0 and difference > error:
        agrees = False
    return Verdict(agrees, (difference,), "+.4f")


def law_source(name: str, law: Law) -> Source:
    """A law as a source, marked with its evidence and with the sizes that it depends on."""
    knows = " and ".join(TERM_NAMES.get(term, term) for term in law.form.terms)
    return Source(
        name=name,
        optimises=f"{law.quality} after {human(law.longest)} tokens",
        valid=f"its sizes and data: {law.evidence}; it knows {knows} alone; − start's",
        reference=f"the law of {law.grid}, fitted here",
        reason=f"{law.quality} {{off}} {{side}} the start's after {human(law.longest)} tokens",
        judge=lambda case: judge_law(law, case),
        refuse=lambda case: law_refusal(law, case),
    )


@cache
def laws_of(folder: Path) -> dict[str, Source]:
    """The laws of a folder of grids by their names: law, law-2 and so on."""
    named = {}
    for place, law in enumerate(read_laws(folder), 1):
        name = "law"
        if place > 1:
            name = f"law-{place}"
        named[name] = law_source(name, law)
    return named


def all_sources() -> dict[str, Source]:
    """The published sources, and after them the laws found in the grids of the working folder."""
    return SOURCES | laws_of(GRIDS_FOLDER.absolute())


def advise(config: LeanConfig, length: int | None = None, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What every source says of a shape at `length` tokens (None: the longest), in place of `start`.

    A law that was fitted here is left out where it does not reach.
    """
    if length is None:
        length = config.default_length
    case = Case(config, length, start)
    verdicts = {name: source.judge(case) for name, source in all_sources().items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def refusals(config: LeanConfig, length: int, start: LeanConfig | None) -> dict[str, str]:
    """Why laws fitted here say nothing of a shape at `length` tokens, in place of `start` if any, by their names."""
    case = Case(config, length, start)
    reasons = {name: source.refuse(case) for name, source in all_sources().items() if source.refuse is not None}
    return {name: reason for name, reason in reasons.items() if reason is not None}
