"""The figure of `leaner plan --plot`: parameters against depth and heads, with the advice that can be drawn there.

Each band says which width or size it is for; a star marks a source outside what it measured, as in the table.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

from ..configuration_leaner import LeanConfig
from .advice import (
    DEEP_ENOUGH,
    FIT_OFF,
    LEAN_ROWS,
    MOBILE_OFF,
    MOBILE_SHAPES,
    SOVIT_OFF,
    advise,
    block_parameters,
    critical_depth,
    depth_floor,
    fitted_depth_of_size,
    sovit_shape,
)
from .memory import StepSetting
from .solver import Candidate, Dials, free_path, shape_at, whole_groups, write_new


TITLE = "Parameters against depth and heads, with what can be drawn of the advice (*: outside what was measured)"


def draw_plan(
    candidates: Sequence[Candidate], setting: StepSetting, name: str, start: LeanConfig | None = None
) -> list[Path]:
    """Draws parameters against depth and heads, with advice, to `figure_files`, and returns them.

    Raises ValueError that names --plot where a file exists or cannot be written.

    Left: lines of one width each, from the candidates' narrowest to widest. Right: the widths' heads at fixed depth;
    the line of each head size ends where heads × size is four times the width. Low-Rank is about the head size, not
    the number of heads, so it stands in the legend.
    """
    from matplotlib.figure import Figure

    figure = Figure((12, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    middle = candidates[len(candidates) // 2].config
    length = setting.length_of(middle)
    draw_depths(left, candidates, middle, length, start)
    draw_heads(right, candidates, middle, length, start)
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", ylabel="parameters")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.13), ncols=2, frameon=False)
    figure.suptitle(TITLE, fontsize=11)
    paths = figure_files(name)
    for path in paths:
        drawn = BytesIO()
        figure.savefig(drawn, dpi=120, format=path.suffix[1:])
        write_new(f"--plot {name}", path, drawn.getvalue())
    return paths


def figure_files(name: str) -> list[Path]:
    """NAME.png and NAME.svg; raises ValueError that names --plot where one exists, or its folder does not."""
    stem = name.removesuffix(".png").removesuffix(".svg")
    if not Path(stem).name or stem.endswith("/"):
        raise ValueError(f"--plot {name!r}: expected a file's name")
    return [free_path(f"--plot {name}", Path(f"{stem}.{ending}")) for ending in ("png", "svg")]


def parameters_at(config: LeanConfig, **dials: int) -> int:
    return shape_at(config, Dials(**dials)).count_parameters().total


def marker(middle: LeanConfig, length: int, start: LeanConfig | None) -> Callable[[str], str]:
    """A source's name as in a legend: starred where the middle shape lies outside what the source measured."""
    said = advise(middle, length, start)
    return lambda name: name + "*" * said[name].extrapolated


def draw_depths(
    axis, candidates: Sequence[Candidate], middle: LeanConfig, length: int, start: LeanConfig | None
) -> None:
    """Parameters against layers for three widths; bands are depths that a source names, for the middle shape."""
    named = marker(middle, length, start)
    depths, width = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48), middle.hidden_size
    widths = sorted({each.config.hidden_size for each in candidates})
    for each in sorted({widths[0], width, widths[-1]}):
        line = [parameters_at(middle, layers=depth, width=each) for depth in depths]
        axis.plot(depths, line, "-", color="grey", linewidth=0.5 + (each == width), label=f"width {each}")
    points = [(each.config.num_hidden_layers, each.parameters.total) for each in candidates]
    axis.plot(*zip(*points), "o", color="tab:blue", label="candidates")
    if start is not None:
        axis.plot(start.num_hidden_layers, start.count_parameters().total, "*", color="black", ms=12, label="start")
        draw_lean(axis, 0, start.num_hidden_layers, named("lean"))
    best = fitted_depth_of_size(middle.count_parameters().without_embeddings)
    size = f"{middle.count_parameters().total / 1e6:.3g}M"
    bands = [
        (0.8, depth_floor(width), "tab:red", f"{named('floor')}: too shallow for width {width}"),
        (best - FIT_OFF, best + FIT_OFF, "tab:purple", f"{named('fit')}: best depth ± {FIT_OFF} at {size}"),
        (*DEEP_ENOUGH, "tab:orange", f"{named('narrow')}: converged"),
        (
            MOBILE_SHAPES[0][1] - MOBILE_OFF,
            MOBILE_SHAPES[1][1] + MOBILE_OFF,
            "tab:brown",
            f"{named('mobile')}: its depths",
        ),
    ]
    if middle.model_type == "lean_vit":
        depth = sovit_shape(block_parameters(middle))["layers"]
        bands.append((depth / SOVIT_OFF, depth * SOVIT_OFF, "tab:pink", f"{named('sovit')}: depth ± 20 % at {size}"))
    for low, high, colour, label in bands:
        if high > 0.8:
            axis.axvspan(max(0.8, low), high, alpha=0.2, color=colour, label=label)
    label = f"{named('delusion')}: not deeper at width {width}"
    axis.axvline(critical_depth(width), color="tab:red", linestyle=":", label=label)
    axis.set(xlabel="layers", xlim=(0.8, max(60, *(1.2 * depth for depth, _ in points))))


def draw_lean(axis, index: int, start: int, name: str) -> None:
    """A line at each published multiple of the start's layers (`index` 0) or heads (1): nothing lies between them."""
    for number, multiple in enumerate(sorted({row.shares[index] for row in LEAN_ROWS})):
        label = f"{name}: {('layers', 'heads')[index]} of its rows"
        axis.axvline(multiple * start, color="tab:green", linewidth=0.8, label="_" if number else label)


def draw_heads(
    axis, candidates: Sequence[Candidate], middle: LeanConfig, length: int, start: LeanConfig | None
) -> None:
    """Parameters against heads, a line per head size, whose legend says what depends on the head size alone."""
    width, layers = middle.hidden_size, middle.num_hidden_layers
    for size, colour in zip((16, 32, 64, 128), ("tab:cyan", "tab:blue", "tab:green", "tab:olive")):
        heads = [each for each in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if each * size <= 4 * width]
        heads = [each for each in heads if whole_groups(middle, each) == each]
        if heads:
            shapes = [shape_at(middle, Dials(layers=layers, width=width, heads=each, head_dim=size)) for each in heads]
            said = advise(shapes[0], length)
            label = f"size {size}: kernels {said['kernels'].margin}, low-rank {said['low-rank']}"
            totals = [each.count_parameters().total for each in shapes]
            axis.plot(heads, totals, ".-", color=colour, linewidth=1, label=label)
    points = [(max(each.config.heads_per_layer), each.parameters.total) for each in candidates]
    axis.plot(*zip(*points), "o", color="tab:blue", alpha=0.6, label="candidates")
    if start is not None:
        heads = max(start.heads_per_layer)
        axis.plot(heads, start.count_parameters().total, "*", color="black", ms=12, label="start")
        draw_lean(axis, 1, heads, marker(middle, length, start)("lean"))
    axis.set(
        xlabel=f"heads (lines: {layers} layers × {width})", xlim=(0.8, max(80, *(1.2 * each for each, _ in points)))
    )
