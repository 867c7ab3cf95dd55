"""`python -m modeling_leaner.training.experiments.shift ONE.yaml OTHER.yaml`: by how much a pair's difference shifts.

For two grids that differ in one setting, such as the precision: each contrast's difference in the first grid minus
that in the second, seed by seed. The last line is one JSON document.
"""

import json
import sys
from pathlib import Path

from ..settings.repeated import CommandParser
from .comparison import cells_of, paired_statistics
from .grid import Grid, GridError, load_grid
from .runs import read_rows, tune


def differences(grid: Grid) -> dict[tuple[str, str], dict[int, float]]:
    """Of each contrast of a grid, the difference of each seed that both shapes finished."""
    rows = read_rows(grid.path("results.csv"))
    finished = cells_of(grid, rows, tune(grid, rows).best).finished
    return {
        (shape, other): {
            seed: row["value"] - finished[other][seed]["value"]
            for seed, row in finished[shape].items()
            if seed in finished[other]
        }
        for shape, other in grid.contrasts or []
    }


def shifts(one: Grid, other: Grid) -> list[dict[str, object]]:
    """The shift of each contrast that both grids have, paired over their seeds.

    Raises:
        GridError: they have no contrast in common, or no seed that all four cells finished.
    """
    here, there = differences(one), differences(other)
    found = []
    for pair in here.keys() & there.keys():
        seeds = sorted(here[pair].keys() & there[pair].keys())
        if not seeds:
            raise GridError(f"{' − '.join(pair)}: expected seeds that both grids have finished, got none")
        result = paired_statistics(*([side[pair][seed] for seed in seeds] for side in (here, there)))
        about = {"shape": pair[0], "minus": pair[1], "seeds": seeds, "shift": result["difference"]}
        found.append({**about, "interval": result["interval"]})
    if not found:
        raise GridError(f"contrasts: expected one that both grids have, {one.output_dir} and {other.output_dir}")
    return sorted(found, key=lambda each: (each["shape"], each["minus"]))


def main(argv: list[str]) -> None:
    """The command; status 1 after one line where there is nothing to compare."""
    parser = CommandParser(prog="shift", description=__doc__.split("\n")[0])
    parser.add_argument("grids", nargs=2, type=Path, help="two grid files, YAML")
    try:
        found = shifts(*map(load_grid, parser.parse_args(argv).grids))
    except GridError as error:
        raise SystemExit(f"shift: {error}") from error
    for each in found:
        print(f"{each['shape']} − {each['minus']}: {each['shift']:+.4f} over seeds {each['seeds']}", file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
