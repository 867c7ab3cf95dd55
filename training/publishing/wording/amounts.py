"""How numbers and sizes are written."""

from modeling_leaner.support.terminal import plural

from ...experiments import run_statistics
from ...experiments.evidence import baseline_of
from ...records import BranchCell, Cell, CellScore, Evidence, FineTuned, PairedStatistics, Reference, RunResults


def number(value: float | None, form: str) -> str:
    """A formatted number, a dash where it is unknown."""
    if value is None:
        return "–"
    return format(value, form)


def duration(hours: float) -> str:
    """Hours, or minutes where they are fewer than one hour."""
    if hours >= 1:
        return f"{hours:.1f} hours"
    return plural(round(60 * hours), "minute")


def millions(count: float) -> str:
    """`4.1M`; below a million with thousands separated."""
    if count >= 1e6:
        return f"{count / 1e6:.1f}M"
    return f"{count:,.0f}"


def direction(evidence: Evidence | FineTuned | RunResults) -> str:
    """`higher is better`, or lower."""
    if evidence.higher_is_better:
        return "higher is better"
    return "lower is better"


def score(cell: Cell | CellScore | BranchCell | Reference, form: str) -> str:
    """Mean ± sd (n) of a cell."""
    if cell.mean is None:
        return "not run"
    text = f"{cell.mean:{form}}"
    if cell.sd is not None:
        text += f" ± {cell.sd:{form}}"
    return f"{text} ({cell.n})"


def is_under_way(evidence: Evidence) -> bool:
    """Whether runs of a grid that are to be reported have still to finish."""
    return evidence.planned is not None and sum(cell.n for cell in evidence.cells) < evidence.planned


def seed_counts(evidence: Evidence) -> str:
    """How many seeds a cell has, or is to have: `7`, or `3 to 7`."""
    most = len(evidence.seeds)
    if is_under_way(evidence):
        return str(most)
    least = min(cell.n for cell in evidence.cells)
    if least < most:
        return f"{least} to {most}"
    return str(most)


def gain(value: float, evidence: Evidence) -> float:
    """A value of the metric, or a difference of two, such that more is better."""
    return run_statistics.gain(value, evidence.higher_is_better)


def interval_of(compared: PairedStatistics, evidence: Evidence) -> list[float] | None:
    """The interval of a difference, plus = better; None where there is none."""
    if compared.interval is None:
        return None
    return sorted(gain(limit, evidence) for limit in compared.interval)


def excludes_zero(interval: list[float]) -> bool:
    """Whether both limits of an interval lie on the same side of 0."""
    return interval[0] * interval[1] > 0


def sizes(cell: Cell) -> str:
    """A cell's layers and heads."""
    return f"{cell.layers} layers × {cell.heads_text} heads of {cell.head_dim}"


def with_start(text: str, cell: Cell) -> str:
    """The text, and in a grid of cuts the weights that the cell's runs started with."""
    if cell.start is None:
        return text
    return f"{text} ({cell.start})"


def label(cell: Cell, evidence: Evidence) -> str:
    """`sizes`, with `other_width` and the start."""
    return with_start(sizes(cell) + other_width(cell, evidence), cell)


def short_label(cell: Cell, evidence: Evidence) -> str:
    """Layers × heads, × head size where all heads together are not as wide as the model, and `other_width`."""
    text = f"{cell.layers} × {cell.heads_text}"
    if isinstance(cell.heads, int) and cell.heads * cell.head_dim != cell.width:
        text += f" × {cell.head_dim}"
    return text + other_width(cell, evidence)


def other_width(cell: Cell, evidence: Evidence) -> str:
    """` of width 64 with MLP 96`, each where it is not the baseline's, the MLP's in proportion to the width."""
    base = baseline_of(evidence)
    text = ""
    if cell.width != base.width:
        text += f" of width {cell.width}"
    if cell.mlp * base.width != base.mlp * cell.width:
        text += f" with MLP {cell.mlp}"
    return text
