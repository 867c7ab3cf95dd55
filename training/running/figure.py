"""training.png of a run: its losses, its metric and its conditioning against steps."""

import io
import json
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_leaner.files import write_bytes

from ..records import Guess


KAPPA = "kappa_layer_"  # the name of κ of a layer's head outputs in the log, before the layer's number
SHARES = ("accuracy", "f1", "exact_match")  # metrics from 0 to 1
LEGEND = {"fontsize": 9, "handlelength": 1.4, "columnspacing": 1.2}
MANY = 60  # points of a curve; more than these are drawn small


def plot(metrics_file: Path, output: Path, metric: str, loss_unit: str, guess: Guess | None = None) -> None:
    """PNG of a run against its steps: the training and the held-out loss; beside it the held-out `metric`, and κ.

    A metric that is the loss, or that was measured once at most, has no panel of its own; κ has one where the run
    logged it (`inspect`).

    Args:
        loss_unit: what the loss is measured in, as `Task.loss_unit` says it.
        guess: what the metric should be better than; drawn with the metric.
    """
    metric = metric.removeprefix("eval_")
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    has_metric = metric != "loss" and len(points_of(rows, f"eval_{metric}")) > 1
    kappas = kappa_names(rows)
    panels = 1 + has_metric + bool(kappas)
    figure = Figure((max(8.6, 4.3 * panels), 3.4), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if kappas:
        draw_kappas(axes.pop(), rows, kappas)
    if has_metric:
        draw_curve(axes[1], rows, f"eval_{metric}", "held-out", "tab:orange")
        axes[1].set_ylabel(metric.replace("_", " "))
        if metric in SHARES:
            axes[1].set_ylim(0, 1)
    draw_curve(axes[0], rows, "loss", "training", "tab:blue")
    draw_curve(axes[0], rows, "eval_loss", "held-out", "tab:orange")
    axes[0].set_ylabel(f"loss, {loss_unit}")
    if guess is not None and (metric == "loss" or has_metric):
        label = f"best guess: {guess.name}, {guess.value:.3f}"
        axes[-1].axhline(guess.value, color="grey", linestyle=":", label=label)
    steps = max(axis.get_xlim()[1] for axis in figure.axes)
    figure.axes[0].margins(y=0.08)
    for axis in figure.axes:
        axis.set(xlim=(-0.02 * steps, 1.02 * steps), xlabel="training step (updates of the weights)")
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, **LEGEND)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    write_bytes(output, content.getvalue())


def points_of(rows: list[dict[str, Any]], name: str) -> dict[int, float]:
    """Step → value of `name`; the last one where a step is repeated."""
    return {row["step"]: row[name] for row in rows if row.get(name) is not None}


def kappa_names(rows: list[dict[str, Any]]) -> list[str]:
    """The names under which κ of the head outputs was logged, from the first layer to the last."""
    return sorted({name for row in rows for name in row if name.startswith(KAPPA)}, key=layer_number)


def layer_number(name: str) -> int:
    """Of a name under which κ was logged."""
    return int(name.removeprefix(KAPPA))


def draw_kappas(axis: Axes, rows: list[dict[str, Any]], names: list[str]) -> None:
    """κ of the head outputs against steps, a curve per layer, the later the darker; first and last are named."""
    shades = colormaps["viridis_r"].resampled(len(names) + 1)
    for place, name in enumerate(names):
        label = f"layer {layer_number(name)}" if place in (0, len(names) - 1) else None
        points = sorted(points_of(rows, name).items())
        axis.plot(*zip(*points), ".-", color=shades(place + 1), label=label, markersize=5)
    axis.set(ylabel="κ of the head outputs", yscale="log")


def draw_curve(axis: Axes, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """The values of `name` against steps; a single one is named in the legend."""
    points = points_of(rows, name)
    size = 2 if len(points) > MANY else 6
    if not points:
        label += ": none"
    elif len(points) == 1:
        size = 14
        label += f": {points[max(points)]:.3f}"
    steps = sorted(points)
    axis.plot(steps, [points[step] for step in steps], ".-", color=colour, label=label, markersize=size)
