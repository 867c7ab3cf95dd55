"""The figure of `leaner inspect`: heat maps with a row per layer and a cell per head."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from ..support.files import free_path
from .layers import LayerReport


WIDTH = 11.0  # inches
NUMBERED_HEADS = 12  # in a layer; with more, numbers do not fit into the cells


def figure_files(name: str) -> list[Path]:
    """NAME.png and NAME.svg; raises ValueError that names --plot if one exists, or its folder does not."""
    stem = name.removesuffix(".png").removesuffix(".svg")
    if not Path(stem).name or stem.endswith("/"):
        raise ValueError(f"--plot {name!r}: expected a file's name")
    return [free_path(f"--plot {name}", Path(f"{stem}.{ending}")) for ending in ("png", "svg")]


def draw_layers(reports: Sequence[LayerReport], form: str) -> bytes:
    """An image in a form of matplotlib's, png or svg: κ of W_Q W_Kᵀ, entropy, similarity, and change, of each head."""
    height = 1.2 + 0.28 * len(reports)
    figure = Figure((WIDTH, 2 * height), layout="constrained")
    axes = figure.subplots(2, 2).flat
    conditions = [[spectrum.condition_number for spectrum in report.query_key] for report in reports]
    entropies = [report.entropy_share for report in reports]
    likenesses = [likeness(report) for report in reports]
    removals = [report.removal for report in reports]
    draw_heads(axes[0], reports, conditions, "condition number κ of W_Q W_Kᵀ", LogNorm())
    draw_heads(axes[1], reports, entropies, "entropy, as a share of the most", Normalize(0, 1))
    draw_heads(axes[2], reports, likenesses, "similarity (CKA) to the other heads, mean", Normalize(0, 1))
    draw_heads(axes[3], reports, removals, "change of the output without the head", Normalize())
    content = BytesIO()
    figure.savefig(content, format=form, dpi=120)
    return content.getvalue()


def likeness(report: LayerReport) -> list[float]:
    """Mean CKA of each head and the others; NaN where a layer has one head."""
    if report.heads == 1:
        return [np.nan]
    similarity = np.array(report.similarity)
    np.fill_diagonal(similarity, np.nan)
    return [float(np.nanmean(row)) if np.isfinite(row).any() else np.nan for row in similarity]


def draw_heads(
    axis: Axes, reports: Sequence[LayerReport], values: list[list[float]], title: str, scale: Normalize
) -> None:
    """One heat map; a cell is empty where a value is not finite, or a layer has fewer heads than another.

    A scale without ends of its own has those of the values.
    """
    most = max(map(len, values))
    cells = np.full((len(values), most), np.nan)
    for row, heads in enumerate(values):
        cells[row, : len(heads)] = heads
    cells[~np.isfinite(cells)] = np.nan
    if not np.isfinite(cells).any():
        scale = Normalize()  # a logarithmic one has no ends here
    axis.set_title(title, fontsize=10)
    axis.set(xlabel="head", ylabel="layer")
    axis.set_xticks(range(most))
    axis.set_yticks(range(len(reports)), [str(report.layer) for report in reports])
    image = axis.imshow(cells, cmap="Blues", aspect="auto", norm=scale)
    axis.figure.colorbar(image, ax=axis, pad=0.01)
    if most <= NUMBERED_HEADS:
        for (row, head), value in np.ndenumerate(cells):
            if np.isfinite(value):
                write_number(axis, (head, row), value, image.norm(value))


def write_number(axis: Axes, place: tuple[int, int], value: float, shade: float) -> None:
    """The number of a cell with two digits, in a colour that is read on its shade from 0 to 1."""
    colour = "black"
    if shade > 0.6:
        colour = "white"
    axis.text(
        *place, f"{value:.2g}" if value < 100 else f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour
    )
