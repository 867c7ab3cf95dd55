"""Panels of lines, two a row, as the figures of studies and of `leaner bench` have them; their numbers are records."""

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator

from ..records import FigurePanel
from .theme import THEMES, WIDTH, Theme, image_of_page


COLUMNS = 2
HEIGHT = 2.7  # inches of a row
SPAN = 100  # of a logarithmic axis, below which it has more than the powers of ten
FEW = 6
LEGEND_ROW = 0.2  # inches
LEGEND_COLUMNS = 3
STYLES = (".-", ".--")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan")


def label_logarithms(axis: Axes, panel: FigurePanel) -> None:
    """Few plain numbers on logarithmic axes; on x each of the places, where they are few."""
    if panel.y_scale == "log":
        low, high = axis.get_ylim()
        parts = (1.0,)
        if high / low < SPAN:
            parts = (1.0, 2.0, 5.0)
        axis.yaxis.set_major_locator(LogLocator(subs=parts))
        axis.yaxis.set_major_formatter("{x:g}")
    if panel.x_scale == "log":
        axis.xaxis.set_major_formatter("{x:g}")
        places = panel.lines[0].x
        if len(places) <= FEW:
            axis.set_xticks(places)
    axis.minorticks_off()


def draw(axis: Axes, panel: FigurePanel, theme: Theme, places: Iterable[int]) -> None:
    """One panel: a line each with its band, in the colour of its place; beyond the last colour lines are dashed."""
    for line, place in zip(panel.lines, places):
        colour = COLOURS[place % len(COLOURS)]
        style = STYLES[place // len(COLOURS) % len(STYLES)]
        axis.plot(line.x, line.y, style, color=colour, label=line.label, linewidth=1.2, markersize=4)
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if panel.level is not None:
        axis.axhline(panel.level, color=theme.faint, linewidth=1, linestyle=":")
    axis.set(xscale=panel.x_scale, yscale=panel.y_scale)
    label_logarithms(axis, panel)
    axis.set_title(panel.title, fontsize=9, color=theme.text)
    axis.set_xlabel(panel.x, fontsize=8, color=theme.text)
    axis.set_ylabel(panel.y, fontsize=8, color=theme.text)
    axis.tick_params(which="both", colors=theme.text, labelsize=7.5)
    axis.grid(alpha=0.25)
    for spine in axis.spines.values():
        spine.set_color(theme.faint)


def write_legend(legend: Legend, theme: Theme) -> None:
    """The colour of a legend's text."""
    for text in legend.get_texts():
        text.set_color(theme.text)


def panels_figure(
    panels: Sequence[FigurePanel], name: str, theme: str, form: str = "svg", one_legend: bool = False
) -> bytes:
    """All panels, two a row; transparent. The same panels and name give the same bytes.

    With `one_legend` a label has the same colour in every panel, and one legend below names them all.
    """
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    rows = math.ceil(len(panels) / COLUMNS)
    below = 0.0
    if one_legend:
        below = LEGEND_ROW * math.ceil(len(labels) / LEGEND_COLUMNS)
    height = HEIGHT * rows + below
    figure = Figure((WIDTH, height))
    figure.subplots_adjust(0.085, (0.5 + below) / height, 0.985, 1 - 0.45 / height, wspace=0.25, hspace=0.55)
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    handles = {}
    for axis, panel in zip(axes, panels):
        if one_legend:
            draw(axis, panel, THEMES[theme], [labels.index(line.label) for line in panel.lines])
            drawn, names = axis.get_legend_handles_labels()
            handles.update(zip(names, drawn))
        else:
            draw(axis, panel, THEMES[theme], range(len(panel.lines)))
            write_legend(axis.legend(frameon=False, fontsize=7), THEMES[theme])
    for axis in axes[len(panels) :]:
        axis.remove()
    if one_legend:
        shown = [handles[label] for label in labels]
        below_all = {"loc": "lower center", "ncols": LEGEND_COLUMNS, "frameon": False, "fontsize": 8}
        write_legend(figure.legend(shown, labels, **below_all), THEMES[theme])
    return image_of_page(figure, name, form)
