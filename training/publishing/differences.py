"""Differences of shapes from their baselines: of some grids for the forest plot, of any for the report."""

import statistics
from dataclasses import dataclass

from ..experiments.evidence import baseline_of, kind
from ..records import Cell, Evidence
from .wording.amounts import gain, interval_of
from .wording.scoring import best_of, has_outliers, outliers


# Of the forest plot: for each task and data set one grid in which both depths have run with both numbers of heads, by
# accuracy or loss. Left out are sst2-from-scratch and listops-short-heads, whose data have a grid here already, and
# CoLA, for its metric is a correlation.
TITLES = {
    "cifar10": "LeanViT, CIFAR-10, 2 epochs",
    "enwik8-text-causal": "LeanGPT, enwik8, causal",
    "enwik8-text-masked": "LeanBERT, enwik8, masked",
    "sst2": "LeanBERT, SST-2, pretrained",
    "listops-short": "LeanBERT, ListOps, 10-30 tokens",
}
KIND_NAMES = {
    "more heads": "twice the heads",
    "fewer layers": "half the layers",
    "both": "half the layers, twice the heads",
}


@dataclass
class Comparison:
    """One line of the forest plot; differences and interval with plus = better."""

    group: str
    name: str
    metric: str
    difference: float
    interval: list[float] | None
    differences: list[float]  # of each seed
    margin: float | None
    baseline: float
    guess: float | None
    learned: bool | None
    outliers: int = 0  # seeds of this cell with one; if any cell has one, all differences are medians without interval


def comparisons(grids: dict[str, Evidence]) -> list[Comparison]:
    """The lines of the forest plot, from the evidence of each grid by its name."""
    lines = []
    for grid, title in TITLES.items():
        evidence = grids.get(grid)
        if evidence is None:
            continue
        for cell in evidence.cells:
            name = KIND_NAMES.get(kind(cell, evidence))
            if name is not None and cell.difference is not None:
                lines.append(compared(title, name, cell, evidence))
    return lines


def compared(title: str, name: str, cell: Cell, evidence: Evidence) -> Comparison:
    """One cell against the baseline; the median of the seeds where a run is an outlier."""
    base = baseline_of(evidence)
    seeds = [seed for seed in cell.values if seed in base.values]
    differences = [gain(cell.values[seed] - base.values[seed], evidence) for seed in seeds]
    outlier_seeds = {*outliers(cell, evidence), *outliers(base, evidence)}
    if has_outliers(evidence):
        difference = statistics.median(differences)
        interval = None
        baseline = statistics.median(base.values.values())
    else:
        difference = gain(cell.difference, evidence)
        interval = interval_of(cell, evidence)
        baseline = base.mean
    guess = None
    best = best_of(evidence)
    if best is not None:
        guess = best.value
    return Comparison(
        group=title,
        name=f"{name}: {cell.layers} × {cell.heads_text}",
        metric=evidence.metric,
        difference=difference,
        interval=interval,
        differences=differences,
        margin=evidence.margin,
        baseline=baseline,
        guess=guess,
        learned=base.learned,
        outliers=len(outlier_seeds),
    )
