"""`leaner shift ONE.yaml OTHER.yaml`: by how much a pair's difference shifts.

For two grids that differ in one setting, such as the precision: each contrast's difference in the first grid minus
that in the second, seed by seed. The last line is one JSON document.
"""

import json
import sys
from pathlib import Path

from .grid import Grid, GridError, load_grid
from .grid_cells import cells_of
from .grid_results import load_results
from .run_statistics import paired_statistics


def differences(grid: Grid) -> dict[tuple[str, str], dict[int, float]]:
    """The difference of each contrast of a grid, by the seeds that both shapes finished."""
    cells = cells_of(load_results(grid))
    by_contrast = {}
    for shape, other in grid.contrasts or []:
        pairs = cells.pairs(shape, other)
        by_contrast[shape, other] = {row.seed: row.value - other_row.value for row, other_row in pairs}
    return by_contrast


def shifts(one: Grid, other: Grid) -> list[dict[str, object]]:
    """The shift of each contrast that both grids have, paired over their seeds.

    Raises:
        GridError: they have no contrast in common, or no seed that all four cells finished.
    """
    here = differences(one)
    there = differences(other)
    if not here.keys() & there.keys():
        raise GridError(f"contrasts: expected one that both grids have, {one.output_dir} and {other.output_dir}")
    shifted = []
    for shape, minus in sorted(here.keys() & there.keys()):
        first = here[shape, minus]
        second = there[shape, minus]
        seeds = sorted(first.keys() & second.keys())
        if not seeds:
            raise GridError(f"{shape} − {minus}: expected seeds that both grids have finished, got none")
        statistics = paired_statistics([first[seed] for seed in seeds], [second[seed] for seed in seeds])
        shifted.append(
            {
                "shape": shape,
                "minus": minus,
                "seeds": seeds,
                "shift": statistics.difference,
                "interval": statistics.interval,
            }
        )
    return shifted


def compare(one: Path, other: Path) -> None:
    """Prints the shifts between the grids of two files. Raises GridError as `load_grid` and `shifts` do."""
    shifted = shifts(load_grid(one), load_grid(other))
    for row in shifted:
        print(f"{row['shape']} − {row['minus']}: {row['shift']:+.4f} over seeds {row['seeds']}", file=sys.stderr)
    print(json.dumps(shifted))
