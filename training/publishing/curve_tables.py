"""Tables of a grid with branches: every shape and every contrast at each of its budgets."""

from modeling_leaner.support.terminal import plural

from ..records import BranchCell, Contrast, Evidence, PublishedResults, Reading
from .rendering import markdown
from .tables import in_bold, paired_difference
from .wording.amounts import gain, millions, number, score, short_label


def budgets(evidence: Evidence) -> list[str]:
    """The branches, the shortest first, as a header names them."""
    return [f"{millions(budget.branch)} tokens" for budget in evidence.curves]


def label_of(shape: str, evidence: Evidence) -> str:
    """A shape's `short_label`."""
    return short_label(next(cell for cell in evidence.cells if cell.shape == shape), evidence)


def pair_of(contrast: Contrast | Reading, evidence: Evidence) -> str:
    """`4 × 6 against 8 × 3`."""
    return f"{label_of(contrast.shape, evidence)} against {label_of(contrast.minus, evidence)}"


def branch_score(cell: BranchCell) -> str:
    """Mean ± sd (seeds), and how many runs failed."""
    text = score(cell, ".4f")
    if cell.failed:
        text += f", {len(cell.failed)} failed"
    return text


def scores_by_budget(evidence: Evidence, own: str | None = None) -> str:
    """`branch_score` of every shape of which a run has ended, a line each, `own` in bold."""
    lines = []
    for cell in evidence.cells:
        branches = [budget.cell(cell.shape) for budget in evidence.curves]
        if not any(branch.n or branch.failed for branch in branches):
            continue
        line = [short_label(cell, evidence), number(cell.parameters, ",d"), *map(branch_score, branches)]
        if cell.shape == own:
            line = [in_bold(value) for value in line]
        lines.append(line)
    return markdown(("layers × heads", "parameters", *budgets(evidence)), lines)


def contrasts_by_budget(evidence: Evidence) -> str | None:
    """The contrasts that have run, at equal tokens, FLOPs and seconds, plus = better; None without any."""
    if evidence.readings is None:
        return None
    lines = []
    for contrast in evidence.longest.contrasts:
        pair = pair_of(contrast, evidence)  # on the first line of its readings alone
        own = [each for each in evidence.readings if (each.shape, each.minus) == (contrast.shape, contrast.minus)]
        for equal in dict.fromkeys(reading.equal for reading in own):
            readings = [reading for reading in own if reading.equal == equal]
            if any(reading.pairs for reading in readings):
                differences = [paired_difference(reading, evidence) for reading in readings]
                lines.append((pair, equal, pairs_of(readings), *differences))
                pair = ""
    if not lines:
        return None
    header = ("first against second, + where the first is better", "at equal", "pairs", *budgets(evidence))
    return markdown(header, lines)


def contrasts_in_short(evidence: Evidence) -> str:
    """Of each contrast that has run: at the shortest and the longest budget, and at the FLOPs of the longest."""
    parts = []
    for contrast in evidence.longest.contrasts:
        known = {
            (reading.equal, reading.branch): f"{gain(reading.difference, evidence):+.3f}"
            for reading in evidence.readings or ()
            if (reading.shape, reading.minus) == (contrast.shape, contrast.minus) and reading.pairs
        }
        branches = [branch for equal, branch in known if equal == "tokens"]
        if not branches:
            continue
        first, last = min(branches), max(branches)
        text = f"{pair_of(contrast, evidence)} {known['tokens', first]} at {millions(first)} tokens"
        if last != first:
            text += f", {known['tokens', last]} at {millions(last)}"
        if ("FLOPs", last) in known:
            text += f", {known['FLOPs', last]} at the FLOPs of these"
        parts.append(f"{text} ({plural(contrast.pairs, 'pair')})")
    if not parts:
        return ""
    return f": {'; '.join(parts)}"


def pairs_of(readings: list[Reading]) -> str:
    """Of how many pairs of runs the differences are the means: one number, or the least and the greatest."""
    counts = [reading.pairs for reading in readings if reading.pairs]
    if min(counts) == max(counts):
        return str(counts[0])
    return f"{min(counts)} to {max(counts)}"


def own_branches(results: PublishedResults) -> str | None:
    """What the run of a published folder scored at each budget, and the hash of its weights there."""
    if results.branches is None:
        return None
    lines = []
    for branch in results.branches:
        tokens_per_parameter = f"{branch.tokens / results.parameters:,.1f}"
        held = branch.weights_sha256
        if held is None:
            held = "not kept"
        lines.append((f"{branch.tokens:,}", tokens_per_parameter, f"{branch.value:.4f}", held))
    return markdown(("tokens", "tokens a parameter", results.evidence.metric, "SHA-256 of model.safetensors"), lines)
