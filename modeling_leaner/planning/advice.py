"""What published sources advise about a shape, side by side: they optimise different costs and are never merged."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log

from scipy.optimize import brentq

from ..configuration_leaner import LeanConfig
from ..shapes import family_of


def within(size: float, low: float, high: float) -> bool:
    """Whether a size lies in a printed range, whose ends are rounded: 1 % beyond them counts as inside."""
    return 0.99 * low <= size <= 1.01 * high


def is_gpt(config: LeanConfig) -> bool:
    return family_of(config) == "gpt"


# Depth-Width (Levine et al. 2020): N(L) = 12·L·d*(L)² parameters without embeddings, at which L layers are best, by
# the width d*(L) = exp(5.039 + 0.0555·L).


def fitted_parameters(layers: float) -> float:
    return 12 * layers * exp(5.039 + 0.0555 * layers) ** 2


def fitted_depth(parameters: float) -> float:
    """The depth at which `fitted_parameters` is this."""
    return brentq(lambda layers: fitted_parameters(layers) - parameters, 0, 400)


def layers_off_the_fit(config: LeanConfig, start: LeanConfig | None) -> float:
    return config.num_hidden_layers - fitted_depth(config.count_parameters().without_embeddings)


def fit_measured(config: LeanConfig, start: LeanConfig | None) -> bool:
    size = config.count_parameters().without_embeddings
    size_is_in = fitted_parameters(6) <= size <= fitted_parameters(48)
    return size_is_in and 6 <= config.num_hidden_layers <= 48 and is_gpt(config)


# Lean: layers and heads before and after, as printed. The other rows (XCiT-M, TNT-B, GPT-2) do not agree with their
# own parameter counts. The GPT row is this project's own, and its change of the loss in nats.
LEAN_ROWS = {"vit": ((24, 12), (16, 24)), "bert": ((16, 10), (12, 24)), "gpt": ((8, 4), (3, 6))}
LOSS_OF_LEAN_GPT = 0.086
REFUTATION = (
    f"half the layers with twice the heads raised a GPT's loss by {LOSS_OF_LEAN_GPT} at equal tokens here (8 × 3 to "
    "4 × 6, p 1.1e-4, seven seeds, grid enwik8-text-causal-curves)"
)


def lean_loss(config: LeanConfig, start: LeanConfig | None) -> float | None:
    """By how much the change from the start raises the loss: as measured here (GPT), or 0 as the paper has it."""
    if start is None or config.num_hidden_layers >= start.num_hidden_layers:
        return None
    layers, heads = LEAN_ROWS[family_of(config)]
    off_layers = config.num_hidden_layers - start.num_hidden_layers * layers[1] / layers[0]
    off_heads = max(config.heads_per_layer) - max(start.heads_per_layer) * heads[1] / heads[0]
    if max(abs(off_layers), abs(off_heads)) > 0.5:  # to the nearest whole ones
        return None
    return LOSS_OF_LEAN_GPT if is_gpt(config) else 0.0


def lean_measured(config: LeanConfig, start: LeanConfig) -> bool:
    """What an audited row did: keep width, MLP and heads × head size, with fewer parameters. Here: 8 layers of 96."""
    if is_gpt(config):
        return (start.num_hidden_layers, start.hidden_size) == (8, 96)
    kept = [
        (each.hidden_size, each.intermediate_size, max(each.heads_per_layer) * each.head_dim)
        for each in (config, start)
    ]
    return kept[0] == kept[1] and config.count_parameters().total < start.count_parameters().total


# SoViT (Alabdulmohsin et al. 2023): each size is its value at 400M times t to its exponent. t, the compute against
# that shape's, follows from N = L·(4·d² + 2·d·M). The published 150M shape (18, 880, 2320) is met within 6 %.
SOVIT_CURVE = {"layers": (27, 0.45), "width": (1152, 0.22), "mlp": (4304, 0.6)}


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on the curve, for so many weights of the blocks."""

    def shape(log_t: float) -> dict[str, float]:
        return {name: anchor * exp(power * log_t) for name, (anchor, power) in SOVIT_CURVE.items()}

    def excess(log_t: float) -> float:
        each = shape(log_t)
        return log(each["layers"] * (4 * each["width"] ** 2 + 2 * each["width"] * each["mlp"]) / parameters)

    return shape(brentq(excess, -50, 50))


def block_weights(config: LeanConfig) -> int:
    """L·(4·d·heads·size + 2·d·M)."""
    inner = sum(config.heads_per_layer) * config.head_dim
    return config.hidden_size * (4 * inner + 2 * config.intermediate_size * config.num_hidden_layers)


def sovit_ratio(config: LeanConfig, start: LeanConfig | None) -> float | None:
    """Layers, width or MLP width over the curve's, whichever is furthest from it; None of texts."""
    if family_of(config) != "vit":
        return None
    best = sovit_shape(block_weights(config))
    ours = {"layers": config.num_hidden_layers, "width": config.hidden_size, "mlp": config.intermediate_size}
    return max((ours[name] / best[name] for name in best), key=lambda ratio: abs(log(ratio)))


@dataclass(frozen=True)
class Source:
    """One source of advice: its arXiv number, what it optimises, what it says in words and as a formula.

    It is for a shape whose `formula` is from `low` to `high`, and says nothing if that is None. `measured`: whether
    the source measured such a shape. Both read a configuration and the one that it would replace, if any.
    """

    title: str
    reference: str
    optimises: str
    valid: str
    formula: Callable[[LeanConfig, LeanConfig | None], float | None]
    low: float
    high: float
    measured: Callable[[LeanConfig, LeanConfig | None], bool]


SOURCES = {
    "fit": Source(
        title="Depth-Width 2020, fit",
        reference="2006.12467",
        optimises="language-model loss at equal size",
        valid="best depth ± 1 layer; 3.3M to 2.8B, 6 to 48 layers; known at second hand",
        formula=layers_off_the_fit,
        low=-1,
        high=1,
        measured=fit_measured,
    ),
    "lean": Source(
        title="Lean 2025",
        reference="2505.20802",
        optimises="equal quality, fewer parameters",
        valid=f"fewer layers, more heads, as in its ViT and BERT rows, one seed each; {REFUTATION}",
        formula=lean_loss,
        low=-inf,
        high=0,
        measured=lean_measured,
    ),
    "sovit": Source(
        title="SoViT 2023",
        reference="2305.13035",
        optimises="image accuracy at equal compute",
        valid="its curve ± 20 %; blocks of 129M to 411M",
        formula=sovit_ratio,
        low=1 / 1.2,
        high=1.2,
        measured=lambda config, start: within(block_weights(config), 129e6, 411e6),  # the two published shapes
    ),
    "delusion": Source(
        title="Depth Delusion 2026",
        reference="2601.20994",
        optimises="language-model loss",
        valid="at most 16·(width/512)^0.44 layers; 17M to 7B",
        formula=lambda config, start: config.num_hidden_layers - 16 * (config.hidden_size / 512) ** 0.44,
        low=-inf,
        high=0,
        measured=lambda config, start: is_gpt(config) and within(config.count_parameters().total, 17e6, 7e9),
    ),
}


@dataclass(frozen=True)
class Verdict:
    """Whether a source is for a shape, the number of its formula, and whether it measured such a shape."""

    fits: bool
    number: float
    measured: bool


def advise(config: LeanConfig, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What the sources say of a shape, in place of `start`; those that say nothing of it are left out."""
    verdicts = {}
    for name, source in SOURCES.items():
        number = source.formula(config, start)
        if number is not None:
            verdicts[name] = Verdict(source.low <= number <= source.high, number, source.measured(config, start))
    return verdicts
