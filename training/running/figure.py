"""training.png of a run: its losses and its metric against steps."""

import io
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_leaner.support.files import write_bytes


SHARES = ("accuracy", "f1", "exact_match")  # metrics from 0 to 1
SQUARED_ERRORS = ("pearson", "spearman", "squared_error")  # metrics of tasks whose loss is the squared error


def plot(metrics_file: Path, output: Path, metric: str, guess: tuple[str, float] | None = None) -> None:
    """PNG of two panels against steps: the training and the held-out loss, and the held-out `metric`.

    Args:
        guess: name and value of a guess that the metric should be better than; drawn with the metric.
    """
    metric = metric.removeprefix("eval_")
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    loss_label = "loss, nats"
    if metric in SQUARED_ERRORS:
        loss_label = "loss, squared error"
    metric_label = metric.replace("_", " ")
    if metric == "loss":
        metric_label = loss_label
    figure = Figure((10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_curve(left, rows, "loss", "training", "tab:blue")
    draw_curve(left, rows, "eval_loss", "held-out", "tab:orange")
    draw_curve(right, rows, f"eval_{metric}", "held-out", "tab:orange")
    for axis, label in ((left, loss_label), (right, metric_label)):
        axis.set(xlabel="training step (updates of the weights)", ylabel=label)
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
    if guess is not None:
        right.axhline(guess[1], color="grey", linestyle=":", label=f"best guess: {guess[0]}")
    widen(left, right, metric)
    for axis in (left, right):
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_bytes(output, content.getvalue())


def draw_curve(axis: Axes, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """The values of `name` against steps; a single one with its number."""
    points = {row["step"]: row[name] for row in rows if row.get(name) is not None}  # the last, where repeated
    if not points:
        label += ": none"
    size = 6
    if len(points) == 1:
        size = 14
    steps = sorted(points)
    axis.plot(steps, [points[step] for step in steps], ".-", color=colour, label=label, markersize=size)
    if len(points) == 1:
        ((step, value),) = points.items()
        axis.annotate(f"{value:.3f}", (step, value), (-6, 8), textcoords="offset points", ha="right")


def widen(left: Axes, right: Axes, metric: str) -> None:
    """Sets limits between which a single point is well seen: steps from 0, a share from 0 to 1, both losses alike."""
    steps = max(axis.get_xlim()[1] for axis in (left, right))
    for axis in (left, right):
        axis.set_xlim(-0.02 * steps, 1.02 * steps)
    if metric == "loss":
        lows, highs = zip(left.get_ylim(), right.get_ylim())
        right.set_ylim(min(lows), max(highs))
    elif metric in SHARES:
        right.set_ylim(0, 1)
