"""Tables of a grid with branches: every shape and every contrast at each of its budgets."""

from ..records import BranchCell, Contrast, Evidence, PublishedResults, Reading
from .rendering import markdown
from .tables import in_bold
from .wording.amounts import gain, millions, number, score, short_label


def budgets(evidence: Evidence) -> list[str]:
    """The branches, the shortest first, as a header names them."""
    return [f"{millions(curve.branch)} tokens" for curve in evidence.curves]


def label_of(shape: str, evidence: Evidence) -> str:
    """A shape's `short_label`."""
    return short_label(next(cell for cell in evidence.cells if cell.shape == shape), evidence)


def pair_of(contrast: Contrast | Reading, evidence: Evidence) -> str:
    """`4 × 6 − 8 × 3`."""
    return f"{label_of(contrast.shape, evidence)} − {label_of(contrast.minus, evidence)}"


def scores_by_budget(evidence: Evidence, own: str | None = None) -> str:
    """Mean ± sd (seeds) of every shape that has run, a line each, `own` in bold."""
    lines = []
    for cell in evidence.cells:
        branches = [branch_cell(cell.shape, curve.shapes) for curve in evidence.curves]
        if not any(branch.n for branch in branches):
            continue
        scores = [score(branch, ".4f") for branch in branches]
        line = [short_label(cell, evidence), number(cell.parameters, ",d"), *scores]
        if cell.shape == own:
            line = [in_bold(value) for value in line]
        lines.append(line)
    return markdown(("layers × heads", "parameters", *budgets(evidence)), lines)


def branch_cell(shape: str, cells: list[BranchCell]) -> BranchCell:
    """The cell of a shape."""
    return next(cell for cell in cells if cell.shape == shape)


def contrasts_by_budget(evidence: Evidence) -> str | None:
    """The contrasts that have run, at equal tokens, FLOPs and seconds, plus = better; None without any."""
    if evidence.readings is None:
        return None
    lines = []
    for contrast in evidence.curves[-1].contrasts:
        pair = pair_of(contrast, evidence)
        own = [each for each in evidence.readings if (each.shape, each.minus) == (contrast.shape, contrast.minus)]
        for equal in dict.fromkeys(reading.equal for reading in own):
            readings = [reading for reading in own if reading.equal == equal]
            if any(reading.pairs for reading in readings):
                lines.append((pair, equal, *(difference_of(reading, evidence) for reading in readings)))
                pair = ""  # on its first line alone
    if not lines:
        return None
    return markdown(("first − second, + is better", "at equal", *budgets(evidence)), lines)


def difference_of(reading: Reading | Contrast, evidence: Evidence) -> str:
    """A difference, plus = better, with its interval, or with the number of pairs where there is none."""
    if not reading.pairs:
        return "–"
    text = f"{gain(reading.difference, evidence):+.3f}"
    if reading.interval is None:
        return f"{text} (one pair)"
    low, high = sorted(gain(limit, evidence) for limit in reading.interval)
    return f"{text} ({low:+.3f} to {high:+.3f})"


def own_branches(results: PublishedResults) -> str | None:
    """What the run of a published folder scored at each budget, and the hash of its weights there."""
    if results.branches is None:
        return None
    lines = []
    for branch in results.branches:
        a_parameter = f"{branch.tokens / results.parameters:.2g}"
        lines.append((f"{branch.tokens:,}", a_parameter, f"{branch.value:.4f}", branch.weights_sha256))
    return markdown(("tokens", "tokens a parameter", results.metric, "SHA-256 of model.safetensors"), lines)
