"""The figures of the results page: quality over training tokens, and encoders beside rivals.

All are SVG in a grey that is readable on a light and on a dark page; equal content gives equal bytes.
"""

import io
import statistics
from collections.abc import Mapping
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..records import Guess


GREY = "#808890"
BLUE = "#3b82c4"
READING = ["shape", "minus", "equal", "branch", "pairs", "difference", "interval"]
COORDINATES = ["model", "relative_speed", "stsb_test"]
WIDTH = 8.6  # inches: a README's width
STYLE = {
    "svg.fonttype": "path",
    "font.size": 8.5,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "grid.color": GREY,
    "grid.alpha": 0.3,
}


def svg(figure: Figure, name: str) -> bytes:
    """The figure's file, without date and background."""
    content = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()


def curves_figure(summary: Mapping[str, Any], labels: Mapping[str, str], guess: Guess | None) -> bytes:
    """Quality of every shape over the tokens of its training, and the comparisons that were fixed beforehand.

    Lines are means over the seeds. A band is their range, or a difference's 95 % interval.

    Args:
        summary: the grid's summary.json.
        labels: the name of every shape.
        guess: the best baseline without a transformer, drawn as a dotted line.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, 3.8), layout="constrained")
        quality, compared = figure.subplots(1, 2)
        for shape, label in labels.items():
            points = [(b["branch"], cell) for b in summary["curves"] for cell in b["shapes"] if cell["shape"] == shape]
            points = [(tokens, [*cell["values"].values()]) for tokens, cell in points if cell["n"]]
            if points:
                centres = [(tokens, statistics.fmean(v), min(v), max(v)) for tokens, v in points]
                draw_line(quality, centres, label)
        if guess is not None:
            quality.axhline(guess.value, color=GREY, linestyle=":")
        way = "higher" if summary["higher_is_better"] else "lower"
        quality.set_ylabel(f"{summary['metric']}, {way} is better")
        sign = 1 if summary["higher_is_better"] else -1
        readings = pd.DataFrame(summary["readings"] or [], columns=[*READING]).query("equal == 'tokens' and pairs > 0")
        for (shape, minus), group in readings.groupby(["shape", "minus"], sort=False):
            points = []
            for _, _, _, branch, _, centre, interval in group.itertuples(index=False):
                low, high = sorted(sign * limit for limit in interval or [centre, centre])
                points.append((branch, sign * centre, low, high))
            draw_line(compared, points, f"{labels[shape]} − {labels[minus]}")
        compared.axhline(0, color=GREY, linewidth=1)
        compared.set_ylabel("difference at equal tokens, + is better")
        for axis in (quality, compared):
            axis.set(xscale="log", xlabel="training tokens, millions")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            axis.set_xticks([round(budget["branch"] / 1e6, 1) for budget in summary["curves"]])
            axis.grid()
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=7)
    return svg(figure, "curves")


def draw_line(axis: Axes, points: list[tuple[int, float, float, float]], label: str) -> None:
    """A line with its band over millions of tokens."""
    tokens, centre, low, high = zip(*points)
    millions = [count / 1e6 for count in tokens]
    (line,) = axis.plot(millions, centre, ".-", label=label, linewidth=1.2)
    axis.fill_between(millions, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def encoders_figure(rivals: pd.DataFrame, own: Mapping[str, tuple[float, float]]) -> bytes:
    """STS-B test over relative speed, of encoders by others (docs/encoders.csv) and of ours: name → (speed, score)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, 3.8), layout="constrained")
        axes = figure.subplots()
        known = rivals.dropna(subset=["relative_speed", "stsb_test"])
        points = [(name.split("/")[-1], *point, GREY) for name, *point in known[COORDINATES].itertuples(index=False)]
        points += [(name, *point, BLUE) for name, point in own.items()]
        for name, speed, score, color in points:
            axes.plot(speed, score, "o", color=color, markersize=4)
            axes.annotate(name, (speed, score), xytext=(5, 2), textcoords="offset points", color=color, fontsize=7)
        axes.set(xscale="log", xlabel="speed relative to all-MiniLM-L6-v2 in float32", ylabel="STS-B test")
        axes.set_xlim(0.4, 120)
        axes.grid(True)
        return svg(figure, "encoders")
