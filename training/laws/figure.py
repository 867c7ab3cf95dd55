"""law.png of a grid: the mean of each shape at each budget, and what the law says of it in between."""

import io
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from modeling_leaner.planning.laws import TOKENS, law_of

from ..records import LawFile
from .data import Point


FIGURE = "law.png"


def law_figure(fitted: LawFile, means: Sequence[Point]) -> bytes:
    """PNG of quality against tokens, a colour per shape: points as measured, lines by the law.

    On the right the same less the mean over the shapes at each budget. Where no law of shape was found the only line
    is the curve over tokens alone.

    Args:
        means: of each shape at each budget, over the seeds.
    """
    law = law_of(fitted.document())
    figure = Figure((11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = np.geomspace(*law.ranges[TOKENS], 60)
    lines = {
        shape: np.array([float(law.at(sizes, budget, law.parameters)) for budget in tokens])
        for shape, sizes in fitted.shapes.items()
    }
    middle = np.mean(list(lines.values()), axis=0)
    budgets = dict.fromkeys(mean.tokens for mean in means)
    level = {budget: np.mean([mean.quality for mean in means if mean.tokens == budget]) for budget in budgets}
    for place, (shape, line) in enumerate(lines.items()):
        own = [mean for mean in means if mean.shape == shape]
        dots = [mean.tokens for mean in own]
        colour = f"C{place}"
        left.plot(dots, [mean.quality for mean in own], "o", color=colour, label=shape, markersize=5)
        right.plot(dots, [mean.quality - level[mean.tokens] for mean in own], "o", color=colour, markersize=5)
        if fitted.found:
            left.plot(tokens, line, color=colour)
            right.plot(tokens, line - middle, color=colour)
    if not fitted.found:
        left.plot(tokens, middle, color="grey", label="by tokens alone")
    left.set_ylabel(f"{fitted.quality} (lower is better)")
    right.set_ylabel("less the mean over the shapes")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="training tokens")
        axis.grid(alpha=0.3)
    left.legend(frameon=False, fontsize=8)
    figure.suptitle(textwrap.fill(f"{fitted.grid}: {fitted.sentence}", 130), fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
