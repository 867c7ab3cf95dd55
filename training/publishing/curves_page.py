"""model_cards/curves.md: the grids with branches, over the length of training, with a figure of each."""

from dataclasses import dataclass
from pathlib import Path

from modeling_leaner.support.files import replace_files

from ..experiments.evidence import PEERS, with_runs
from .curve_tables import contrasts_by_budget, pair_of, scores_by_budget
from .curves_figure import curves_figure
from .gathered_grids import GatheredGrid, Grids
from .rendering import fill, pages_beside
from .tables import all_cells
from .theme import THEMES
from .wording.curves import FIGURE_TEXT, contrasts_note, scores_note
from .wording.index_page import grid_text


PAGE = "curves.md"


@dataclass
class Noted:
    """A table and what it says."""

    note: str
    table: str


@dataclass
class GridSection:
    """One grid of the page."""

    name: str
    about: str
    figure_text: str
    scores: str
    scores_note: str
    contrasts: Noted | None
    cells: str


@dataclass
class CurvesContext:
    """What `templates/curves.md` names."""

    grids: list[GridSection]
    pages: list[str]


def grids_with_branches(grids: Grids) -> Grids:
    """The grids with a finished run at some branch, without those of references."""
    return {name: gathered for name, gathered in grids.items() if not name.endswith(PEERS) and finished_runs(gathered)}


def finished_runs(gathered: GatheredGrid) -> int:
    """The runs to report that have finished, of all branches; 0 of a grid without branches."""
    curves = gathered.evidence.curves or []
    return sum(cell.n for curve in curves for cell in curve.shapes)


def planned_pairs(gathered: GatheredGrid) -> list[tuple[str, int]]:
    """Of each contrast its name, and how many seeds both of its shapes are to have."""
    grid = gathered.results.grid
    planned = []
    for contrast in gathered.evidence.longest.contrasts:
        shared = set(grid.seeds_for(contrast.shape)) & set(grid.seeds_for(contrast.minus))
        planned.append((pair_of(contrast, gathered.evidence), len(shared)))
    return planned


def contrasts_of(gathered: GatheredGrid) -> Noted | None:
    """The contrasts at each budget; None where none has run."""
    table = contrasts_by_budget(gathered.evidence)
    if table is None:
        return None
    return Noted(contrasts_note(gathered.evidence, planned_pairs(gathered)), table)


def grid_section(name: str, gathered: GatheredGrid) -> GridSection:
    """One grid with its tables."""
    evidence = gathered.evidence
    return GridSection(
        name=name,
        about=grid_text(evidence),
        figure_text=FIGURE_TEXT,
        scores=scores_by_budget(evidence),
        scores_note=scores_note(evidence),
        contrasts=contrasts_of(gathered),
        cells=all_cells({name: with_runs(evidence)}),
    )


def render_curves(cards: Path, grids: Grids) -> str:
    """The page's text, in the folder of cards."""
    sections = [grid_section(name, gathered) for name, gathered in grids.items()]
    context = CurvesContext(sections, pages_beside(cards))
    return fill(PAGE, context).rstrip() + "\n"


def write_curves(cards: Path, grids: Grids) -> None:
    """The page and its figures, of the grids with branches that have run; those of an earlier time go."""
    shown = grids_with_branches(grids)
    files = {}
    for name, gathered in shown.items():
        for theme in THEMES:
            files[cards / f"curves-{name}-{theme}.svg"] = curves_figure(gathered, theme)
    if shown:
        files[cards / PAGE] = render_curves(cards, shown).encode()
    replace_files(files, [cards / PAGE, *cards.glob("curves-*.svg")])
