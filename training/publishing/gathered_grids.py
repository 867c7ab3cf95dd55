"""The grids that have rows, each with the evidence gathered from them."""

from dataclasses import dataclass, replace
from pathlib import Path

from ..experiments.evidence import gather
from ..experiments.grid import GridError
from ..experiments.grid_results import GridResults, load_folder
from ..records import Evidence


@dataclass
class GatheredGrid:
    """A grid with its rows, and the evidence gathered from them."""

    results: GridResults
    evidence: Evidence


Grids = dict[str, GatheredGrid]


def read_grids(cards: Path) -> Grids:
    """Each grid that has rows, with its evidence. Raises ValueError or GridError where its files do not fit."""
    grids = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        results = load_folder(path.parent)
        results.grid = replace(results.grid, beside=None)  # which has lines of its own
        try:
            grids[path.parent.name] = GatheredGrid(results, gather(results))
        except GridError as error:
            raise GridError(f"{path.parent}: {error}") from error
    return grids


def read_grids_of_shapes(cards: Path) -> Grids:
    """As `read_grids`, without cuts of a trained model, which answer another question: docs/slimming.md has them."""
    return {name: gathered for name, gathered in read_grids(cards).items() if not gathered.results.grid.cuts}
