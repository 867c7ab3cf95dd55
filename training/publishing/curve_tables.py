"""Tables of a card of a grid with branches: every shape at each budget, and the model's own branches."""

from ..records import BranchCell, Evidence, PublishedResults
from .rendering import markdown
from .tables import in_bold
from .wording.amounts import millions, number, score, short_label


def budgets(evidence: Evidence) -> list[str]:
    """The branches, the shortest first, as a header names them."""
    return [f"{millions(budget.branch)} tokens" for budget in evidence.curves]


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
