"""Is a shape worse than its baseline by less than the margin? The tests of all grids, corrected together."""

from typing import NamedTuple

from ..records import Cell, Evidence
from .evidence import baseline_of
from .run_statistics import MAX_P, MIN_PAIRS, holm


class NonInferiority(NamedTuple):
    """The test of one cell, and of its opposite, that it is worse by more than the margin.

    Both p values are corrected by Holm's method, over the tests of all grids.
    """

    grid: str
    evidence: Evidence
    cell: Cell
    corrected: float
    corrected_opposite: float

    @property
    def passes(self) -> bool:
        """Whether the corrected p value is low enough."""
        return self.corrected < MAX_P

    @property
    def is_worse(self) -> bool:
        """Whether that of the opposite is."""
        return self.corrected_opposite < MAX_P

    @property
    def baseline_learned(self) -> bool:
        """Whether the baseline is known to have learned, without which nothing is decided."""
        return baseline_of(self.evidence).learned is True


def is_tested(cell: Cell, evidence: Evidence) -> bool:
    """Whether a cell has a p value, from all seeds of its grid and from enough of them."""
    seeds = len(evidence.seeds)
    return cell.p_non_inferiority is not None and seeds >= MIN_PAIRS and cell.pairs == seeds


def non_inferiority(grids: dict[str, Evidence]) -> list[NonInferiority]:
    """The tests of all grids, grid by grid.

    The correction counts every comparison with enough seeds and a margin, also those whose baseline has not learned:
    what becomes known after the margins were fixed makes no test easier.
    """
    tested = [
        (grid, evidence, cell)
        for grid, evidence in grids.items()
        for cell in evidence.cells
        if is_tested(cell, evidence)
    ]
    chances = [cell.p_non_inferiority for _, _, cell in tested]
    corrected = zip(holm(chances), holm([1 - chance for chance in chances]))
    return [NonInferiority(*case, *both) for case, both in zip(tested, corrected)]
