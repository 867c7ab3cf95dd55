"""What a published folder says of its grid, its run and its parent, beside the rows in model_cards/grids/."""

import contextlib
import math
from pathlib import Path

from modeling_leaner.files import flat

from ..experiments.evidence import gather
from ..experiments.grid import Grid, is_cut, load_grid
from ..experiments.grid_results import GridResults, load_folder, load_results
from ..experiments.rows import finished_row, reported
from ..experiments.run_settings import run_arguments
from ..records import Evidence, PublishedResults, ResultRow
from ..records.results import RESULTS
from .cut_parents import check_same_record, parent_fields
from .folders import LOCAL


def same_value(held: object, fresh: object) -> bool:
    """Whether two values are equal, but for rounding."""
    if type(held) is type(fresh) is float and math.isclose(held, fresh, rel_tol=1e-6, abs_tol=1e-12):
        return True
    return held == fresh


def difference(held: object, fresh: object, name: str) -> str | None:
    """The first field in which two documents differ, as a sentence; None where they are the same but for rounding."""
    parts = []
    if isinstance(held, dict) and isinstance(fresh, dict):
        parts = [(f"{name}.{key}", held.get(key), fresh.get(key)) for key in {**held, **fresh}]
    elif isinstance(held, list) and isinstance(fresh, list) and len(held) == len(fresh):
        parts = [(f"{name}.{index}", *both) for index, both in enumerate(zip(held, fresh))]
    elif not same_value(held, fresh):
        return f"{name} is {held!r:.100}, {fresh!r:.100}"
    differences = (difference(held_part, fresh_part, place) for place, held_part, fresh_part in parts)
    return next((text for text in differences if text is not None), None)


def of_the_project(grids: Path) -> contextlib.chdir:
    """The folder that the paths in grid files are relative to, as the working directory."""
    return contextlib.chdir(grids.parent.parent)


def has_rows_beside(folder: Path, results: PublishedResults) -> bool:
    """Whether the rows of its grid are among the grids beside a folder; another project may keep them elsewhere."""
    grids = folder.resolve().parent / "grids"
    if results.is_own:
        return grids.is_dir()
    return (grids / results.evidence.grid).is_dir()


def check_evidence(folder: Path, evidence: Evidence) -> None:
    """Raises ValueError where the evidence is not what the grids beside the folder say now."""
    file = folder / RESULTS
    grids = folder.resolve().parent / "grids"
    path = grids / evidence.grid / "grid.yaml"
    if not path.is_file():
        raise ValueError(f"{file}: evidence.grid is {evidence.grid}, {grids} has no such grid")
    with of_the_project(grids):
        fresh = gather(load_results(load_grid(path)))
    stale = difference(evidence.document(), fresh.document(), "evidence")
    if stale is not None:
        raise ValueError(f"{file}: {stale} by the rows in {grids}; leaner publish renews it")


def expected_parent(folder: Path, grid: Grid, cell: str) -> dict[str, object]:
    """What a published folder must say of the parent that it was cut from, or that it has none.

    Raises:
        ValueError: its slim.json is not that of its cell; or as of `parent_fields`.
    """
    if not is_cut(grid, cell):
        return {"cut_parent": None}
    grids = folder.resolve().parent / "grids"
    with of_the_project(grids):
        fields = parent_fields(grid, cell)
        cut = Path(cell).absolute()
    check_same_record(folder, cut)
    return {f"cut_parent.{name}": value for name, value in fields.items()}


def value_of(row: ResultRow | None) -> float | None:
    """The metric of a row; None without one."""
    if row is None:
        return None
    return row.value


def branch_fields(held: GridResults, results: PublishedResults) -> dict[str, object]:
    """What a published folder must say of the budgets of its run, by field; of a grid without branches, nothing.

    Only the weights of the longest one are there to be compared.
    """
    budgets = held.grid.branches
    if budgets is None:
        return {"branches": None}
    last = len(budgets) - 1
    expected = {f"branches.{last}.weights_sha256": results.weights_sha256, f"branches.{last + 1}": None}
    for place, tokens in enumerate(budgets):
        run = reported(held.grid, results.cell, results.seed, results.learning_rate, tokens)
        expected[f"branches.{place}.tokens"] = tokens
        expected[f"branches.{place}.value"] = value_of(finished_row(held.rows, run))
    return expected


def check_run(folder: Path, results: PublishedResults) -> None:
    """Raises ValueError where name, partners, settings or counts are not those of the grid and of the run's row."""
    file = folder / RESULTS
    grids = folder.resolve().parent / "grids"
    with of_the_project(grids):
        held = load_folder(grids / results.evidence.grid)
        grid = held.grid
        asked = run_arguments(grid, results.cell).settings
    own = next(cell for cell in results.evidence.cells if cell.shape == results.cell)
    run = reported(grid, results.cell, results.seed, own.learning_rate)
    row = held.rows.get(run)
    if row is None:
        of_grid = grids / results.evidence.grid
        raise ValueError(f"{file}: no row of {results.cell} with seed {results.seed} in {of_grid}")
    name = None
    if grid.publish is not None:
        name = grid.publish.get(results.cell)
    expected = {
        "name": name,
        "partners": grid.partners(results.cell),
        "learning_rate": own.learning_rate,
        "train.steps": row.steps,
        "rows": row.rows,
        "data_sha256": row.data_sha256,
    }
    asked |= {"seed": results.seed, "learning_rate": own.learning_rate}
    chosen = {"seed", "learning_rate"}  # what is not a default
    if grid.overrides is not None:
        chosen.update(grid.overrides)
    expected |= {f"recipe.{key}": asked.get(key) for key in results.recipe if key in chosen and key not in LOCAL}
    expected |= expected_parent(folder, grid, results.cell)
    expected |= branch_fields(held, results)
    values = flat(file, results.document())
    for field, value in expected.items():
        stated = values.get(field)
        if stated != value:
            raise ValueError(f"{file}: {field} is {stated!r}, expected {value!r}, as of its grid and its row there")
