"""curves-GRID-light.svg and -dark.svg: the shapes of a grid with branches over tokens, FLOPs and seconds, and their
contrasts.
"""

import statistics
from typing import NamedTuple

from ..experiments.curves import COST_KINDS, curve_of
from ..records import Cell, Evidence, FigurePanel, Line
from .curve_tables import pair_of
from .gathered_grids import GatheredGrid
from .panels import panels_figure
from .wording.amounts import direction, gain, short_label
from .wording.scoring import best_of


class Axis(NamedTuple):
    """A cost as the axis of a panel; unit: what 1 is on it."""

    title: str
    label: str
    unit: float

    def place_of(self, cost: float) -> float:
        """A cost in the axis's unit, to three significant digits: the ticks show these very numbers."""
        return float(f"{cost / self.unit:.3g}")


AXES = {
    "tokens": Axis("Over tokens", "tokens, millions", 1e6),
    "FLOPs": Axis("Over FLOPs of training", "FLOPs, 10¹²", 1e12),
    "seconds": Axis("Over seconds of training", "seconds", 1.0),
}


def curve_line(gathered: GatheredGrid, cell: Cell, cost_kind: str) -> Line | None:
    """A shape's mean over the seeds at each branch, with their range; None where none has a cost and a value."""
    results = gathered.results
    curves = [curve_of(results, cell.shape, seed, cost_kind) for seed in results.grid.seeds_for(cell.shape)]
    line = Line(label=short_label(cell, gathered.evidence), x=[], y=[], low=[], high=[])
    for branch in results.grid.branches:
        points = [curve[branch] for curve in curves if branch in curve]
        if not points:
            continue
        values = [point.value for point in points]
        line.x.append(AXES[cost_kind].place_of(points[0].cost))  # every seed has the same cost
        line.y.append(statistics.fmean(values))
        line.low.append(min(values))
        line.high.append(max(values))
    if not line.x:
        return None
    return line


def quality_panel(gathered: GatheredGrid, cost_kind: str) -> FigurePanel | None:
    """Every shape over one cost, the best simple guess as a level; None where the cost is not known."""
    evidence = gathered.evidence
    lines = [curve_line(gathered, cell, cost_kind) for cell in evidence.cells]
    lines = [line for line in lines if line is not None]
    if not lines:
        return None
    level = None
    best = best_of(evidence)
    if best is not None:
        level = best.value
    return FigurePanel(
        title=AXES[cost_kind].title,
        x=AXES[cost_kind].label,
        y=f"{evidence.metric}, {direction(evidence)}",
        x_scale="log",
        level=level,
        lines=lines,
    )


def contrast_line(evidence: Evidence, place: int) -> Line | None:
    """A contrast over tokens, plus = better, with its intervals where all budgets have one; None before any pair."""
    contrasts = [(budget.branch, budget.contrasts[place]) for budget in evidence.curves]
    known = [(tokens, contrast) for tokens, contrast in contrasts if contrast.pairs]
    if not known:
        return None
    _, first = known[0]
    line = Line(
        label=pair_of(first, evidence),
        x=[AXES["tokens"].place_of(tokens) for tokens, _ in known],
        y=[gain(contrast.difference, evidence) for _, contrast in known],
    )
    intervals = [contrast.interval for _, contrast in known]
    if None not in intervals:
        limits = [sorted(gain(limit, evidence) for limit in interval) for interval in intervals]
        line.low = [low for low, _ in limits]
        line.high = [high for _, high in limits]
    return line


def contrasts_panel(evidence: Evidence) -> FigurePanel | None:
    """The contrasts over tokens; None before any pair."""
    lines = [contrast_line(evidence, place) for place in range(len(evidence.longest.contrasts))]
    lines = [line for line in lines if line is not None]
    if not lines:
        return None
    return FigurePanel(
        title="Differences at equal tokens",
        x=AXES["tokens"].label,
        y=f"difference in {evidence.metric}, + is better",
        x_scale="log",
        level=0.0,
        lines=lines,
    )


def curves_figure(gathered: GatheredGrid, theme: str, form: str = "svg") -> bytes:
    """Quality over each known cost, and the contrasts; bands are the range over seeds, of a contrast its interval."""
    panels = [quality_panel(gathered, cost_kind) for cost_kind in COST_KINDS]
    panels.append(contrasts_panel(gathered.evidence))
    shown = [panel for panel in panels if panel is not None]
    return panels_figure(shown, f"curves-{gathered.results.name}", theme, form, one_legend=True)
