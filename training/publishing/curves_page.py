"""model_cards/curves.md: the grids with branches, over the length of training, with a figure of each."""

from dataclasses import dataclass
from pathlib import Path

from modeling_leaner.planning.laws import LAW
from modeling_leaner.support.documents import read_json
from modeling_leaner.support.files import write_bytes

from ..experiments.evidence import PEERS
from ..records import Evidence, LawFile, checked
from .curve_tables import contrasts_by_budget, pair_of, scores_by_budget
from .curves_figure import curves_figure
from .figures import THEMES
from .findings import GatheredGrid, Grids
from .rendering import fill
from .wording.curves import FIGURE_TEXT, contrasts_note, law_note, scores_note
from .wording.index_page import grid_about


PAGE = "curves.md"


@dataclass
class GridSection:
    """One grid of the page."""

    name: str
    about: str
    figure_text: str
    scores: str
    scores_note: str
    contrasts: str | None
    contrasts_note: str | None
    law: str | None


@dataclass
class CurvesContext:
    """What `templates/curves.md` names."""

    grids: list[GridSection]


def grids_with_branches(grids: Grids) -> Grids:
    """The grids with a finished run at some branch, without those of references."""
    return {name: gathered for name, gathered in grids.items() if not name.endswith(PEERS) and has_run(gathered)}


def has_run(gathered: GatheredGrid) -> bool:
    """Whether a grid has branches and a run of one has finished."""
    curves = gathered.evidence.curves or []
    return any(cell.n for curve in curves for cell in curve.shapes)


def law_of_grid(gathered: GatheredGrid) -> str | None:
    """What the law of a grid says; None where none was fitted. Raises ValueError where law.json does not fit."""
    path = gathered.results.grid.path(LAW)
    if not path.is_file():
        return None
    return law_note(checked(LawFile, read_json(path), path))


def contrasts_text(evidence: Evidence) -> str | None:
    """`contrasts_note` where a contrast has run."""
    if contrasts_by_budget(evidence) is None:
        return None
    return contrasts_note(evidence, [pair_of(contrast, evidence) for contrast in evidence.curves[-1].contrasts])


def grid_section(name: str, gathered: GatheredGrid) -> GridSection:
    """One grid with its tables."""
    evidence = gathered.evidence
    return GridSection(
        name=name,
        about=grid_about(name, evidence),
        figure_text=FIGURE_TEXT,
        scores=scores_by_budget(evidence),
        scores_note=scores_note(evidence),
        contrasts=contrasts_by_budget(evidence),
        contrasts_note=contrasts_text(evidence),
        law=law_of_grid(gathered),
    )


def render_curves(grids: Grids) -> str:
    """The page's text."""
    context = CurvesContext([grid_section(name, gathered) for name, gathered in grids.items()])
    return fill(PAGE, context).rstrip() + "\n"


def write_curves(cards: Path, grids: Grids) -> None:
    """The page and its figures, where a grid with branches has run."""
    shown = grids_with_branches(grids)
    if not shown:
        return
    for name, gathered in shown.items():
        for theme in THEMES:
            write_bytes(cards / f"curves-{name}-{theme}.svg", curves_figure(gathered, theme))
    write_bytes(cards / PAGE, render_curves(shown).encode())
