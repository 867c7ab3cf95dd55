"""law.png of a grid: the mean of each shape at each budget, and what the law says of it in between."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.figure import Figure

from modeling_leaner.planning.laws import TOKENS, law_of


FIGURE = "law.png"


class Mean(Protocol):
    """The mean of a shape's runs at a budget."""

    shape: str
    tokens: int
    quality: float


def law_figure(document: dict[str, Any], means: Sequence[Mean]) -> bytes:
    """PNG of quality against tokens, a colour per shape: points as measured, lines by the law.

    Where no law of shape was found there is one line, the curve over tokens alone.
    """
    law = law_of(document)
    figure = Figure((8.6, 5), layout="constrained")
    axis = figure.subplots()
    tokens = np.geomspace(*law.ranges[TOKENS], 60)
    for place, (shape, sizes) in enumerate(document["shapes"].items()):
        own = [mean for mean in means if mean.shape == shape]
        colour = f"C{place}"
        axis.plot([mean.tokens for mean in own], [mean.quality for mean in own], "o", color=colour, label=shape)
        if document["found"]:
            axis.plot(tokens, [float(law.at(sizes, each, law.parameters)) for each in tokens], color=colour)
    if not document["found"]:
        sizes = next(iter(document["shapes"].values()))
        values = [float(law.at(sizes, each, law.parameters)) for each in tokens]
        axis.plot(tokens, values, color="grey", label="by tokens alone")
    axis.set(xscale="log", xlabel="training tokens", ylabel=f"{document['quality']} (lower is better)")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.suptitle(textwrap.fill(f"{document['grid']}: {document['sentence']}", 110), fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
