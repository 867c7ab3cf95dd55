"""The figure of `leaner plan --plot`: parameters against depth and heads, with the advice that can be drawn there.

Each band says which width or size it is for; a star marks a source outside what it measured, as in the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from ..configuration_leaner import LeanConfig
from ..shapes import family_of
from ..support.files import free_path, write_all_new
from .advice import (
    DEEP_ENOUGH,
    FIT_OFF,
    LEAN_ROWS,
    MOBILE_OFF,
    MOBILE_SHAPES,
    SOVIT_FAMILY,
    SOVIT_OFF,
    advise,
    block_parameters,
    critical_depth,
    depth_floor,
    fitted_depth_of_size,
    sovit_shape,
)
from .dials import Dials, shape_at, whole_groups
from .memory import StepSetting
from .solver import Candidate


DEPTHS_DRAWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
HEADS_DRAWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LEAST_DEPTH = 0.8  # the left end of the axis
COLOURS_OF_SIZES = {16: "tab:cyan", 32: "tab:blue", 64: "tab:green", 128: "tab:olive"}
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
    images = {}
    for path in paths:
        image = BytesIO()
        figure.savefig(image, dpi=120, format=path.suffix[1:])
        images[path] = image.getvalue()
    write_all_new(f"--plot {name}", images)
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
    verdicts = advise(middle, length, start)

    def marked(name: str) -> str:
        if verdicts[name].extrapolated:
            return name + "*"
        return name

    return marked


@dataclass(frozen=True)
class Band:
    """A range of depths that a source names."""

    low: float
    high: float
    colour: str
    label: str


def depth_bands(middle: LeanConfig, marked: Callable[[str], str]) -> list[Band]:
    """What the sources say of the depth, for the width and the size of the middle shape."""
    width = middle.hidden_size
    parameters = middle.count_parameters()
    size = f"{parameters.total / 1e6:.3g}M"
    best = fitted_depth_of_size(parameters.without_embeddings)
    mobile_depths = [shape.layers for shape in MOBILE_SHAPES]
    mobile_low = min(mobile_depths) - MOBILE_OFF
    mobile_high = max(mobile_depths) + MOBILE_OFF
    bands = [
        Band(LEAST_DEPTH, depth_floor(width), "tab:red", f"{marked('floor')}: too shallow for width {width}"),
        Band(best - FIT_OFF, best + FIT_OFF, "tab:purple", f"{marked('fit')}: best depth ± {FIT_OFF} at {size}"),
        Band(*DEEP_ENOUGH, "tab:orange", f"{marked('narrow')}: converged"),
        Band(mobile_low, mobile_high, "tab:brown", f"{marked('mobile')}: its depths"),
    ]
    if family_of(middle) == SOVIT_FAMILY:
        depth = sovit_shape(block_parameters(middle))["layers"]
        label = f"{marked('sovit')}: depth ± 20 % at {size}"
        bands.append(Band(depth / SOVIT_OFF, depth * SOVIT_OFF, "tab:pink", label))
    return bands


def draw_depths(
    axis, candidates: Sequence[Candidate], middle: LeanConfig, length: int, start: LeanConfig | None
) -> None:
    """Parameters against layers for three widths; bands are depths that a source names, for the middle shape."""
    marked = marker(middle, length, start)
    width = middle.hidden_size
    widths = [candidate.config.hidden_size for candidate in candidates]
    for drawn in sorted({min(widths), width, max(widths)}):
        totals = [parameters_at(middle, layers=depth, width=drawn) for depth in DEPTHS_DRAWN]
        line = 1.5 if drawn == width else 0.5
        axis.plot(DEPTHS_DRAWN, totals, "-", color="grey", linewidth=line, label=f"width {drawn}")
    depths = [candidate.config.num_hidden_layers for candidate in candidates]
    totals = [candidate.parameters.total for candidate in candidates]
    axis.plot(depths, totals, "o", color="tab:blue", label="candidates")
    if start is not None:
        axis.plot(start.num_hidden_layers, start.count_parameters().total, "*", color="black", ms=12, label="start")
        shares = {row.shares[0] for row in LEAN_ROWS}
        draw_lean(axis, start.num_hidden_layers, shares, f"{marked('lean')}: layers of its rows")
    for band in depth_bands(middle, marked):
        if band.high > LEAST_DEPTH:
            axis.axvspan(max(LEAST_DEPTH, band.low), band.high, alpha=0.2, color=band.colour, label=band.label)
    label = f"{marked('delusion')}: not deeper at width {width}"
    axis.axvline(critical_depth(width), color="tab:red", linestyle=":", label=label)
    axis.set(xlabel="layers", xlim=(LEAST_DEPTH, max(60, 1.2 * max(depths))))


def draw_lean(axis, start: int, shares: set[float], label: str) -> None:
    """A line at each published multiple of the start's layers or heads: nothing lies between them."""
    for share in sorted(shares):
        axis.axvline(share * start, color="tab:green", linewidth=0.8, label=label)
        label = "_nolegend_"  # one entry for all lines


def draw_heads(
    axis, candidates: Sequence[Candidate], middle: LeanConfig, length: int, start: LeanConfig | None
) -> None:
    """Parameters against heads, a line per head size, whose legend says what depends on the head size alone."""
    width = middle.hidden_size
    layers = middle.num_hidden_layers
    for size, colour in COLOURS_OF_SIZES.items():
        heads = [number for number in HEADS_DRAWN if number * size <= 4 * width]
        heads = [number for number in heads if whole_groups(middle, number) == number]
        if heads:
            shapes = [shape_at(middle, Dials(layers, width, number, head_dim=size)) for number in heads]
            verdicts = advise(shapes[0], length)
            label = f"size {size}: kernels {verdicts['kernels'].margin}, low-rank {verdicts['low-rank']}"
            totals = [shape.count_parameters().total for shape in shapes]
            axis.plot(heads, totals, ".-", color=colour, linewidth=1, label=label)
    most_heads = [max(candidate.config.heads_per_layer) for candidate in candidates]
    totals = [candidate.parameters.total for candidate in candidates]
    axis.plot(most_heads, totals, "o", color="tab:blue", alpha=0.6, label="candidates")
    if start is not None:
        heads_of_start = max(start.heads_per_layer)
        axis.plot(heads_of_start, start.count_parameters().total, "*", color="black", ms=12, label="start")
        marked = marker(middle, length, start)
        shares = {row.shares[1] for row in LEAN_ROWS}
        draw_lean(axis, heads_of_start, shares, f"{marked('lean')}: heads of its rows")
    axis.set(xlabel=f"heads (lines: {layers} layers × {width})", xlim=(LEAST_DEPTH, max(80, 1.2 * max(most_heads))))
