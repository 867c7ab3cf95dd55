"""What the rows of all grids say together, for the index: verdicts corrected over all, and κ beside quality."""

from collections.abc import Sequence

from ..experiments.kappa import KappaCell, conclude, conclude_by_task, doubling, read_all_cells
from ..experiments.non_inferiority import non_inferiority
from .gathered_grids import Grids
from .wording.findings import doubling_paragraph, kappa_paragraph, verdicts


def findings(grids: Grids, kappa: str | None, pages: Sequence[str]) -> list[str]:
    """Paragraphs for the index.

    Args:
        kappa: `kappa_and_quality` of the grids.
        pages: those that may be linked.
    """
    evidence = {name: gathered.evidence for name, gathered in grids.items()}
    decided = verdicts(evidence, non_inferiority(evidence), pages)
    doubled = doubling([cell for cell in kappa_cells(grids) if cell.ended])
    paragraphs = [f"**Verdicts.** {decided}", doubling_paragraph(doubled), kappa]
    return [paragraph for paragraph in paragraphs if paragraph]


def kappa_cells(grids: Grids) -> list[KappaCell]:
    """The cells of which κ is compared with quality."""
    return read_all_cells({name: gathered.results for name, gathered in grids.items()})


def kappa_and_quality(grids: Grids) -> str | None:
    """Whether κ went along with quality; None where nothing can be ranked."""
    cells = kappa_cells(grids)
    conclusion = conclude(cells)
    if conclusion.within["end"].value is None and conclusion.between["end"].value is None:
        return None
    return kappa_paragraph(conclusion, conclude_by_task(cells))
