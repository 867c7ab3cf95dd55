"""The figure of a cut: the scores of each layer, each choice of layers and each head."""

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..support.files import write_bytes
from .measures import BLOCK_INFLUENCE, EVENLY_SPACED, LayerChoice, layer_names
from .scores import HeadScores, LayerScores, Scores


WIDTH = 8.3  # inches, of a README's column
KEPT = "tab:blue"
REMOVED = "lightgrey"
RIVAL = "tab:orange"
NUMBERED_HEADS = 16  # in a layer; with more, numbers do not fit into the cells
THOUSANDTHS = 1000


def draw_scores(scores: Scores, folder: Path) -> list[Path]:
    """Draws `scores.png` and `scores.svg` into a folder and returns them; nothing where nothing was measured."""
    if scores.is_empty():
        return []
    heights = []
    if scores.layers is not None:
        heights.append(2.9)
    if scores.heads is not None:
        heights.append(1.1 + 0.28 * len(scores.heads.layers))
    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if scores.layers is not None:
        draw_layers(parts[0].subplots(1, 3, width_ratios=(1, 1, 1.2)), scores.layers)
    if scores.heads is not None:
        draw_heads(parts[-1].subplots(), scores.heads)
    paths = []
    for ending in ("png", "svg"):
        content = BytesIO()
        figure.savefig(content, format=ending, dpi=120)
        paths.append(folder / f"scores.{ending}")
        write_bytes(paths[-1], content.getvalue())
    return paths


def draw_layers(axes: np.ndarray, scores: LayerScores) -> None:
    """Two bars for each layer, in a panel each, and one for each choice of layers."""
    without, influence, choices = axes
    layers = range(len(scores.alone))
    colours = [KEPT if layer in scores.kept else REMOVED for layer in layers]
    without.bar(layers, scores.alone, color=colours)
    without.set(title="one layer left out", ylabel="change of the output")
    influence.bar(layers, scores.influence, color=colours)
    influence.set(title=BLOCK_INFLUENCE, ylabel="1 − cosine, input to output")
    for axis in (without, influence):
        axis.set_xlabel("layer")
        axis.locator_params(axis="x", integer=True)
    draw_choices(choices, scores)
    for axis in axes:
        axis.title.set_fontsize(10)
        axis.yaxis.label.set_fontsize(9)
    marks = [Patch(color=KEPT, label="stays"), Patch(color=REMOVED, label="goes")]
    without.legend(handles=marks, frameon=False, fontsize=8)


def draw_choices(axis: Axes, scores: LayerScores) -> None:
    """The change of each choice of layers with its number; the first at the top."""
    places = range(len(scores.choices))
    colours = [choice_colour(choice, scores) for choice in scores.choices]
    bars = axis.barh(places, [choice.change for choice in scores.choices], color=colours)
    axis.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    axis.set_yticks(places, [two_lines(choice) for choice in scores.choices], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set(title="layers that stay", xlabel="change of the output")


def two_lines(choice: LayerChoice) -> str:
    """The layers of a choice, below the rule that they are chosen by where there is one."""
    if choice.rule is None:
        return layer_names(choice.layers)
    return f"{choice.rule}\n{layer_names(choice.layers)}"


def choice_colour(choice: LayerChoice, scores: LayerScores) -> str:
    if scores.is_made(choice):
        return KEPT
    if choice.rule == EVENLY_SPACED:
        return RIVAL
    return REMOVED


def draw_heads(axis: Axes, scores: HeadScores) -> None:
    """A cell for each head, the darker the more its absence adds; those that go are crossed out."""
    most = max(map(len, scores.added))
    cells = np.full((len(scores.layers), most), np.nan)
    for row, added in enumerate(scores.added):
        cells[row, : len(added)] = THOUSANDTHS * np.array(added)
    image = axis.imshow(cells, cmap="Blues", aspect="auto")
    for row, added in enumerate(scores.added):
        for head in range(len(added)):
            if most <= NUMBERED_HEADS:
                write_number(axis, (head, row), cells[row, head], image.norm(cells[row, head]))
            if head not in scores.kept[row]:
                axis.plot([head - 0.45, head + 0.45], [row - 0.4, row + 0.4], color="tab:red", linewidth=1)
    axis.set_yticks(range(len(scores.layers)), [str(layer) for layer in scores.layers])
    axis.set(xlabel="head", ylabel="layer")
    axis.locator_params(axis="x", integer=True)
    axis.set_title("what the absence of one head adds to the change, in thousandths; crossed out: goes", fontsize=10)
    axis.figure.colorbar(image, ax=axis, pad=0.01)


def write_number(axis: Axes, place: tuple[int, int], value: float, shade: float) -> None:
    """The number of a cell, in a colour that is read on its shade from 0 to 1."""
    colour = "white" if shade > 0.6 else "black"
    text = f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    axis.text(*place, text, ha="center", va="center", fontsize=8, color=colour)
