"""What published sources advise about a shape, side by side: they optimise different costs and are never merged."""

from dataclasses import dataclass
from math import exp, log

from scipy.optimize import brentq

from ..configuration_leaner import LeanConfig
from ..shapes import family_of


# Lean: layers and heads before and after, as printed. The other rows (XCiT-M, TNT-B, GPT-2) do not agree with their
# own parameter counts. The GPT row is this project's own, and its change of the loss in nats.
LEAN_ROWS = {"vit": ((24, 12), (16, 24)), "bert": ((16, 10), (12, 24)), "gpt": ((8, 4), (3, 6))}
LOSS_OF_LEAN_GPT = 0.086
REFUTATION = (
    f"half the layers with twice the heads raised a GPT's loss by {LOSS_OF_LEAN_GPT} at equal tokens here (8 × 3 to "
    "4 × 6, p 1.1e-4, seven seeds, grid enwik8-text-causal-curves)"
)


# SoViT (Alabdulmohsin et al. 2023): each size is its value at 400M times t to its exponent. t, the compute against
# that shape's, follows from N = L·(4·d² + 2·d·M). The published 150M shape (18, 880, 2320) is met within 6 %.
SOVIT_CURVE = {"layers": (27, 0.45), "width": (1152, 0.22), "mlp": (4304, 0.6)}


def sovit_shape(parameters: float) -> dict[str, float]:
    """Layers, width and MLP width on the curve, for so many weights of the blocks."""

    def excess(log_t: float) -> float:
        layers, width, mlp = (anchor * exp(power * log_t) for anchor, power in SOVIT_CURVE.values())
        return log(layers * (4 * width**2 + 2 * width * mlp) / parameters)

    log_t = brentq(excess, -50, 50)
    return {name: anchor * exp(power * log_t) for name, (anchor, power) in SOVIT_CURVE.items()}


# Each with its arXiv number, what it optimises and for which shapes it speaks.
SOURCES = {
    "fit": {
        "title": "Depth-Width 2020, fit",
        "reference": "2006.12467",
        "optimises": "language-model loss at equal size",
        "valid": "best depth ± 1 layer; 3.3M to 2.8B, 6 to 48 layers; known at second hand",
    },
    "lean": {
        "title": "Lean 2025",
        "reference": "2505.20802",
        "optimises": "equal quality, fewer parameters",
        "valid": f"fewer layers, more heads, as in its ViT and BERT rows, one seed each; {REFUTATION}",
    },
    "sovit": {
        "title": "SoViT 2023",
        "reference": "2305.13035",
        "optimises": "image accuracy at equal compute",
        "valid": "its curve ± 20 %; blocks of 129M to 411M",
    },
}


@dataclass(frozen=True)
class Verdict:
    """Whether a source is for a shape, the number of its formula, and whether it measured such a shape."""

    fits: bool
    number: float
    measured: bool


def advise(config: LeanConfig, start: LeanConfig | None = None) -> dict[str, Verdict]:
    """What the sources say of a shape, in place of `start`; those that say nothing of it are left out.

    The ends of printed ranges are rounded: 1 % beyond them counts as inside.
    """
    family, count = family_of(config), config.count_parameters()
    is_gpt = family == "gpt"
    layers, width, mlp = config.num_hidden_layers, config.hidden_size, config.intermediate_size

    # Depth-Width (Levine et al. 2020): L layers are best at 12·L·d*(L)² parameters without embeddings, by the width
    # d*(L) = exp(5.039 + 0.0555·L).
    size = count.without_embeddings
    best_depth = brentq(lambda depth: 12 * depth * exp(5.039 + 0.0555 * depth) ** 2 - size, 0, 400)
    off = layers - best_depth
    verdicts = {"fit": Verdict(-1 <= off <= 1, off, is_gpt and 6 <= best_depth <= 48 and 6 <= layers <= 48)}

    # Lean
    if start is not None and layers < start.num_hidden_layers:
        (layers_before, layers_after), (heads_before, heads_after) = LEAN_ROWS[family]
        off_layers = layers - start.num_hidden_layers * layers_after / layers_before
        off_heads = max(config.heads_per_layer) - max(start.heads_per_layer) * heads_after / heads_before
        if max(abs(off_layers), abs(off_heads)) <= 0.5:  # to the nearest whole ones
            if is_gpt:  # as measured here, 8 layers of 96
                was_ours = (start.num_hidden_layers, start.hidden_size) == (8, 96)
                verdicts["lean"] = Verdict(False, LOSS_OF_LEAN_GPT, was_ours)
            else:  # its rows keep width, MLP and heads × head size, with fewer parameters
                kept, before = [
                    (each.hidden_size, each.intermediate_size, max(each.heads_per_layer) * each.head_dim)
                    for each in (config, start)
                ]
                is_row = kept == before and count.total < start.count_parameters().total
                verdicts["lean"] = Verdict(True, 0.0, is_row)

    # SoViT
    if family == "vit":
        inner = sum(config.heads_per_layer) * config.head_dim
        weights = width * (4 * inner + 2 * mlp * layers)  # of the blocks
        best = sovit_shape(weights)
        ratios = [layers / best["layers"], width / best["width"], mlp / best["mlp"]]
        ratio = max(ratios, key=lambda ratio: abs(log(ratio)))  # whichever is furthest from the curve
        published = 0.99 * 129e6 <= weights <= 1.01 * 411e6  # the two shapes
        verdicts["sovit"] = Verdict(1 / 1.2 <= ratio <= 1.2, ratio, published)
    return verdicts
