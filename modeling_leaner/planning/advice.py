"""What the published sources advise about a shape, side by side: they optimise different costs and are never merged.

A source favours a shape only if it names an optimum and the shape is near it; a bound that is kept is no objection.
d is the width, L the number of layers, N the parameters without embeddings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log

from scipy.optimize import brentq

from ..configuration_leaner import LeanConfig
from ..shapes import family_of


FAVOURS = "in favour"
NO_OBJECTION = "no objection"
OPPOSES = "against"


@dataclass(frozen=True)
class Verdict:
    """What one source says of one shape: `FAVOURS`, `NO_OBJECTION`, `OPPOSES`, or None for nothing.

    `number` is the value of the source's formula (`Source.formula`).
    `outside`: the shape, or its family, is not one that the source measured.
    """

    says: str | None
    number: float | None = None
    outside: bool = False


@dataclass(frozen=True)
class Case:
    """A shape under question; `start` is the shape it would replace, if any."""

    config: LeanConfig
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

    @property
    def inner_size(self) -> int:
        """Parameters without embeddings."""
        return self.config.count_parameters().without_embeddings

    @property
    def block_size(self) -> int:
        """Weights of the blocks, L·(4·d·heads·size + 2·d·M), as `sovit_shape` counts them."""
        inner = sum(self.config.heads_per_layer) * self.config.head_dim
        return self.width * (4 * inner + 2 * self.config.intermediate_size * self.layers)


def within(size: float, low: float, high: float) -> bool:
    """Whether a size lies in a printed range, whose ends are rounded: 1 % beyond them counts as inside."""
    return 0.99 * low <= size <= 1.01 * high


def is_gpt(case: Case) -> bool:
    return case.family == "gpt"


# Depth-Width (Levine et al. 2020, arXiv 2006.12467): the asymptotic floor and the fitted law, which differ greatly.

FIT_DEPTHS = (6, 48)  # layers of the models that were fitted


def depth_floor(width: float) -> float:
    """L_th = log3(d), in layers: below it depth is worth far more than width. Asymptotic."""
    return log(width, 3)


def fitted_parameters(layers: float) -> float:
    """N(L) = 12·L·d*(L)², the size at which L layers are best, by the width d*(L) = exp(5.039 + 0.0555·L)."""
    return 12 * layers * exp(5.039 + 0.0555 * layers) ** 2


def fitted_depth_of_size(parameters: float) -> float:
    """L*(N), the depth at which `fitted_parameters` is N."""
    return brentq(lambda layers: fitted_parameters(layers) - parameters, 0, 400)


def fit_measured(case: Case) -> bool:
    low, high = FIT_DEPTHS
    size_is_in = fitted_parameters(low) <= case.inner_size <= fitted_parameters(high)
    return size_is_in and low <= case.layers <= high and is_gpt(case)


# Lean (arXiv 2505.20802): layers and heads before and after, as printed. The other rows (XCiT-M, TNT-B, GPT-2) do not
# agree with their own parameter counts. The GPT row is this project's own, and its change of the loss in nats.
LEAN_ROWS = {"vit": ((24, 12), (16, 24)), "bert": ((16, 10), (12, 24)), "gpt": ((8, 4), (3, 6))}
LOSS_OF_LEAN_GPT = 0.086
REFUTATION = (
    f"half the layers with twice the heads raised a GPT's loss by {LOSS_OF_LEAN_GPT} at equal tokens here (8 × 3 to "
    "4 × 6, p 1.1e-4, seven seeds, grid enwik8-text-causal-curves)"
)


def lean_loss(case: Case) -> float | None:
    """By how much the change from the start raises the loss: as measured here (GPT), or 0 as the paper has it.

    None for changes of which neither says anything.
    """
    start = case.start
    if start is None or case.layers >= start.num_hidden_layers:
        return None
    layers, heads = LEAN_ROWS[case.family]
    off_layers = case.layers - start.num_hidden_layers * layers[1] / layers[0]
    off_heads = max(case.config.heads_per_layer) - max(start.heads_per_layer) * heads[1] / heads[0]
    if max(abs(off_layers), abs(off_heads)) > 0.5:  # to the nearest whole ones
        return None
    return LOSS_OF_LEAN_GPT if is_gpt(case) else 0.0


def lean_measured(case: Case) -> bool:
    """What an audited row did: keep width, MLP and heads × head size, with fewer parameters. Here: 8 layers of 96."""
    start = case.start
    if start is None:
        return True
    if is_gpt(case):
        return (start.num_hidden_layers, start.hidden_size) == (8, 96)
    kept = [
        (each.hidden_size, each.intermediate_size, max(each.heads_per_layer) * each.head_dim)
        for each in (case.config, start)
    ]
    return kept[0] == kept[1] and case.size < start.count_parameters().total


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on SoViT's curve at N = L·(4·d² + 2·d·M).

    Each is its value at 400M (27, 1152, 4304) times t to its exponent (0.45, 0.22, 0.6); t, the compute against that
    shape's, follows from N. The published 150M shape (18, 880, 2320) is met within 6 %.
    """

    def shape(log_t: float) -> dict[str, float]:
        curve = {"layers": (27, 0.45), "width": (1152, 0.22), "mlp": (4304, 0.6)}
        return {name: anchor * exp(power * log_t) for name, (anchor, power) in curve.items()}

    def excess(log_t: float) -> float:
        each = shape(log_t)
        return log(each["layers"] * (4 * each["width"] ** 2 + 2 * each["width"] * each["mlp"]) / parameters)

    return shape(brentq(excess, -50, 50))


def sovit_ratio(case: Case) -> float | None:
    """Layers, width or MLP width over the curve's, whichever is furthest from it; None of texts."""
    if case.family != "vit":
        return None
    best = sovit_shape(case.block_size)
    ours = {"layers": case.layers, "width": case.width, "mlp": case.config.intermediate_size}
    return max((ours[name] / best[name] for name in best), key=lambda ratio: abs(log(ratio)))


def critical_depth(width: float) -> float:
    """D_crit = 16·(W/512)^0.44, in layers: beyond it more layers raise the loss. arXiv 2601.20994."""
    return 16 * (width / 512) ** 0.44


@dataclass(frozen=True)
class Source:
    """One source of advice: its arXiv number, what it optimises, what it says, and the formula that decides.

    `formula` is compared with `low` and `high`: within them the source is in favour if it names an `optimum`, else it
    has no objection; out of them it is against, unless it never `objects`. None says nothing of a shape.
    `measured`: whether the source measured such a shape.
    """

    title: str
    reference: str
    optimises: str
    valid: str
    formula: Callable[[Case], float | None]
    low: float = -inf
    high: float = inf
    optimum: bool = False
    objects: bool = True
    measured: Callable[[Case], bool] = lambda case: True

    def judge(self, case: Case) -> Verdict:
        number = self.formula(case)
        if number is None:
            return Verdict(None)
        if self.low <= number <= self.high:
            says = FAVOURS if self.optimum else NO_OBJECTION
        elif self.objects:
            says = OPPOSES
        else:
            return Verdict(None, number)
        return Verdict(says, number, outside=not self.measured(case))


SOURCES = {
    "floor": Source(
        title="Depth-Width 2020, floor",
        reference="2006.12467",
        optimises="expressiveness per parameter",
        valid="at least log3(width) layers, asymptotically",
        formula=lambda case: case.layers - depth_floor(case.width),
        low=0,
    ),
    "fit": Source(
        title="Depth-Width 2020, fit",
        reference="2006.12467",
        optimises="language-model loss at equal size",
        valid="best depth ± 1 layer; 3.3M to 2.8B, 6 to 48 layers; known at second hand",
        formula=lambda case: case.layers - fitted_depth_of_size(case.inner_size),
        low=-1,
        high=1,
        optimum=True,
        measured=fit_measured,
    ),
    "lean": Source(
        title="Lean 2025",
        reference="2505.20802",
        optimises="equal quality, fewer parameters",
        valid=f"fewer layers, more heads, as in its ViT and BERT rows, one seed each; {REFUTATION}",
        formula=lean_loss,
        high=0,
        measured=lean_measured,
    ),
    "kaplan": Source(
        title="Kaplan 2020",
        reference="2001.08361",
        optimises="language-model loss at equal size",
        valid="width 33 to 715 times the layers hardly matters",
        formula=lambda case: case.width / case.layers,
        low=33,
        high=722,  # of two shapes of one size within 3 % in loss, 1600 / 48 and 4288 / 6
        objects=False,
        measured=is_gpt,
    ),
    "sovit": Source(
        title="SoViT 2023",
        reference="2305.13035",
        optimises="image accuracy at equal compute",
        valid="its curve ± 20 %; blocks of 129M to 411M",
        formula=sovit_ratio,
        low=1 / 1.2,
        high=1.2,
        optimum=True,
        measured=lambda case: within(case.block_size, 129e6, 411e6),  # the two published shapes
    ),
    "delusion": Source(
        title="Depth Delusion 2026",
        reference="2601.20994",
        optimises="language-model loss",
        valid="at most 16·(width/512)^0.44 layers; 17M to 7B",
        formula=lambda case: case.layers - critical_depth(case.width),
        high=0,
        measured=lambda case: is_gpt(case) and within(case.size, 17e6, 7e9),
    ),
}


def advise(config: LeanConfig, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What every source says of a shape, in place of `start`."""
    return {name: source.judge(Case(config, start)) for name, source in SOURCES.items()}
