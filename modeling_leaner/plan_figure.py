"""The figure of `leaner plan --plot`: parameters against depth and heads, with the advice as bands."""

from collections.abc import Sequence
from pathlib import Path

from .advice import (
    DEEP_ENOUGH,
    LEAN_ROWS,
    MOBILE_SHAPES,
    critical_depth,
    depth_floor,
    fitted_depth_of_size,
    kernels_for,
)
from .configuration_leaner import LeanConfig
from .memory import StepSetting
from .planner import Candidate, Dials, shape_at


def draw_plan(
    candidates: Sequence[Candidate], setting: StepSetting, name: str, start: LeanConfig | None = None
) -> list[Path]:
    """Draws parameters against depth and heads, the advice as bands, to NAME.png and NAME.svg, and returns the paths.

    Left: lines of one width each, from the candidates' narrowest to widest. Right: the widths' heads at fixed depth;
    the line of each head size ends where heads × size is four times the width.
    """
    from matplotlib.figure import Figure

    figure = Figure((12, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    middle = candidates[len(candidates) // 2].config
    draw_depths(left, candidates, middle, start)
    draw_heads(right, candidates, middle, setting.length_of(middle), start)
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", ylabel="parameters")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.13), ncols=2, frameon=False)
    figure.suptitle("Parameters against depth and heads, and what each source advises for its own cost", fontsize=11)
    stem = name.removesuffix(".png").removesuffix(".svg")
    paths = [Path(f"{stem}.png"), Path(f"{stem}.svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths


def parameters_at(config: LeanConfig, **dials: int) -> int:
    return shape_at(config, Dials(**dials)).count_parameters().total


def draw_depths(axis, candidates: Sequence[Candidate], middle: LeanConfig, start: LeanConfig | None) -> None:
    """Parameters against layers for three widths; bands are depths that a source advises, at the middle width."""
    depths, width = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48), middle.hidden_size
    widths = sorted({each.config.hidden_size for each in candidates})
    for each in sorted({widths[0], width, widths[-1]}):
        line = [parameters_at(middle, layers=depth, width=each) for depth in depths]
        axis.plot(depths, line, "-", color="grey", linewidth=0.5 + (each == width), label=f"width {each}")
    points = [(each.config.num_hidden_layers, each.parameters.total) for each in candidates]
    axis.plot(*zip(*points), "o", color="tab:blue", label="candidates")
    if start is not None:
        axis.plot(start.num_hidden_layers, start.count_parameters().total, "*", color="black", ms=12, label="start")
        rows = [after[0] / before[0] * start.num_hidden_layers for before, after in LEAN_ROWS]
        axis.axvspan(min(rows), max(rows), alpha=0.15, color="tab:green", label="lean: layers of its rows")
    best = fitted_depth_of_size(middle.count_parameters().without_embeddings)
    axis.axvspan(0.8, depth_floor(width), alpha=0.15, color="tab:red", label=f"floor: too shallow for width {width}")
    axis.axvspan(max(0.8, best - 1), best + 1, alpha=0.25, color="tab:purple", label="fit: best depth ± 1")
    axis.axvspan(*DEEP_ENOUGH, alpha=0.2, color="tab:orange", label="narrow: converged")
    axis.axvspan(MOBILE_SHAPES[0][1] - 2, MOBILE_SHAPES[1][1] + 2, alpha=0.15, color="tab:brown", label="mobile")
    axis.axvline(critical_depth(width), color="tab:red", linestyle=":", label="delusion: not deeper")
    axis.set(xlabel="layers", xlim=(0.8, 60))


def draw_heads(
    axis, candidates: Sequence[Candidate], middle: LeanConfig, length: int, start: LeanConfig | None
) -> None:
    """Parameters against heads: of a fixed head size, and of the size that keeps heads × size at the width."""
    width, layers = middle.hidden_size, middle.num_hidden_layers
    for size, colour in zip((16, 32, 64, 128), ("tab:cyan", "tab:blue", "tab:green", "tab:olive")):
        heads = [each for each in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if each * size <= 4 * width]
        if heads:
            line = [parameters_at(middle, layers=layers, width=width, heads=each, head_dim=size) for each in heads]
            served = sum(kernels_for(size).values())
            label = f"head size {size}: {served} of {len(kernels_for(size))} kernels"
            axis.plot(heads, line, ".-", color=colour, linewidth=1, label=label)
    points = [(max(each.config.heads_per_layer), each.parameters.total) for each in candidates]
    axis.plot(*zip(*points), "o", color="tab:blue", alpha=0.6, label="candidates")
    fewest = max(1.0, width / length)
    axis.axvspan(0.8, fewest, alpha=0.15, color="tab:purple", label="low-rank: width / heads ≥ length")
    if start is not None:
        heads = max(start.heads_per_layer)
        axis.plot(heads, start.count_parameters().total, "*", color="black", ms=12, label="start")
        rows = [after[1] / before[1] * heads for before, after in LEAN_ROWS]
        axis.axvspan(min(rows), max(rows), alpha=0.15, color="tab:green", label="lean: heads of its rows")
    axis.set(xlabel=f"heads (lines: {layers} layers × {width})", xlim=(0.8, 80))
