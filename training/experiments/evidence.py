"""What a grid says of its cells, as the results.json of a published folder holds it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from ..records import (
    Cell,
    CellScore,
    Evidence,
    FineTuned,
    Latency,
    LatencyFile,
    Reference,
    ResultRow,
    RunResults,
    TuningSettings,
)
from ..running.environment import machine_name
from . import latency
from .grid import Grid, load_grid
from .guesses import best_guess, guess_values, read_guesses, read_row_errors
from .rows import Rows, finished_row, read_rows, reported
from .summary import summarise
from .tuning import tune


PEERS = "-transformers"  # the output_dir of the grid that trains transformers' own model as the reference

KINDS = ("baseline", "more heads", "fewer layers", "both")


def dataset_name(results: RunResults) -> str:
    """The short name of a run's dataset."""
    if results.dataset_config:
        return results.dataset_config
    return results.dataset.split("/")[-1]


def baseline_of(evidence: Evidence) -> Cell:
    """The cell that the others are compared with."""
    return next(cell for cell in evidence.cells if cell.shape == evidence.baseline)


def kind(cell: Cell, evidence: Evidence) -> str | None:
    """How a cell differs from the baseline, one of KINDS, where more heads are twice as many; None for any other."""
    base = baseline_of(evidence)
    if cell.width != base.width or cell.mlp != base.mlp:
        return None
    if cell.heads not in (base.heads, 2 * base.heads) or cell.layers > base.layers:
        return None
    more_heads = cell.heads > base.heads
    fewer_layers = cell.layers < base.layers
    if more_heads and fewer_layers:
        return "both"
    if more_heads:
        return "more heads"
    if fewer_layers:
        return "fewer layers"
    return "baseline"


def finished(grid: Grid, shape: str, rate: float | None, rows: Rows) -> list[ResultRow]:
    """The rows that the cell of a shape is the mean of, in the order of the grid's seeds."""
    done = [finished_row(rows, reported(grid, shape, seed, rate)) for seed in grid.seeds_for(shape)]
    return [row for row in done if row is not None]


def values_of(done: list[ResultRow]) -> dict[str, float]:
    """Seed → value, the seed as JSON's keys are."""
    return {str(row.seed): row.value for row in done}


def distinct(values: Iterable[object]) -> list[object]:
    """The different values, sorted, without what is unknown."""
    return sorted(set(values) - {None})


def _latency_of(timing: LatencyFile | None, shape: str) -> Latency | None:
    """What `latency.read` says of a shape; None where it was not measured."""
    if timing is None:
        return None
    return timing.shapes.get(shape)


def cells(grid: Grid, rows: Rows) -> list[Cell]:
    """Of each shape: sizes, counts, every seed's value, the paired comparison, conditioning, time and memory."""
    timing = latency.read(grid)
    length = latency.length_of(grid)
    described = []
    for cell in summarise(grid, rows)["shapes"]:
        shape = cell["shape"]
        config, head = latency.config_of(grid, shape)
        done = finished(grid, shape, cell["learning_rate"], rows)
        flops = config.count_flops(length, head)
        memory = [row.peak_memory_bytes for row in done if row.peak_memory_bytes]
        full = Cell(
            **cell,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.heads_per_layer[0],
            head_dim=config.head_dim,
            mlp=config.intermediate_size,
            length=flops.length,
            flops_forward=flops.forward,
            kv_bytes_per_token=config.kv_bytes_per_token(),
            values=values_of(done),
            peak_memory_bytes=max(memory, default=None),
            jobs=distinct(row.jobs for row in done),
            latency=_latency_of(timing, shape),
        )
        described.append(full)
    return described


def reference(grid: Grid) -> Reference | None:
    """Learning rate, n, mean and sd of transformers' own model of the baseline's shape, from the grid that trains it.

    That grid lies beside this one, in its folder's name and PEERS; None without it, or before its first finished run.

    Raises:
        ValueError: that grid trains something else, or in another way.
    """
    folder = Path(grid.output_dir.rstrip("/") + PEERS)
    if not (folder / "results.csv").is_file():
        return None
    peers = load_grid(folder / "grid.yaml")
    overrides = {}
    if grid.overrides is not None:
        overrides |= grid.overrides
    overrides["implementation"] = "transformers"
    alike = {
        "shapes": [grid.baseline],
        "recipe": grid.recipe,
        "tuning": grid.tuning,
        "start_from": grid.start_from,
        "learning_rates": grid.learning_rates,
        "start_seed": grid.start_seed,
        "branches": grid.branches,
        "overrides": overrides,
    }
    for key, expected in alike.items():
        if getattr(peers, key) != expected:
            difference = f"expected {expected} as of the reference of {grid.output_dir}, got {getattr(peers, key)}"
            raise ValueError(f"{folder / 'grid.yaml'}: {key}: {difference}")
    (cell,) = summarise(peers, read_rows(folder / "results.csv"))["shapes"]
    if cell["n"] == 0:
        return None
    return Reference(**{name: cell[name] for name in ("learning_rate", "n", "mean", "sd")})


def _fine_tuned_grid(name: str, grid: Grid, rows: Rows) -> FineTuned:
    """What `fine_tuned` says of one grid, whose folder has the name."""
    summary = summarise(grid, rows)
    shapes = summary["shapes"]
    chances = [shape["chance"] for shape in shapes]
    cells = []
    for shape in shapes:
        cell = {key: shape[key] for key in ("shape", "learning_rate", "n", "mean", "sd", "chance")}
        done = finished(grid, shape["shape"], shape["learning_rate"], rows)
        cells.append(CellScore(**cell, values=values_of(done)))
    return FineTuned(
        grid=name,
        metric=summary["metric"],
        higher_is_better=summary["higher_is_better"],
        published=bool(grid.publish),
        start_seed=grid.start_seed,
        guess=best_guess([*guess_values(grid), *chances], bool(summary["higher_is_better"])),
        learned=next(shape["learned"] for shape in shapes if shape["shape"] == grid.baseline),
        cells=cells,
    )


def fine_tuned(grid: Grid) -> list[FineTuned]:
    """Of each grid that started from this one's weights: its metric, every seed's value of each shape, whether its
    baseline learned, and whether weights of it are published."""
    grids = []
    for path in sorted(Path(grid.output_dir).parent.glob("*/results.csv")):
        other = load_grid(path.parent / "grid.yaml")
        rows = read_rows(path)
        if rows and other.start_from is not None and Path(other.start_from) == Path(grid.output_dir):
            grids.append(_fine_tuned_grid(path.parent.name, other, rows))
    return grids


def _folder_name(path: str | None) -> str | None:
    """The name of a folder without those above it; None of none."""
    if path is None:
        return None
    return Path(path).name


def _total(values: Iterable[float | None]) -> float:
    """The sum of the values, without what is unknown."""
    return sum(value for value in values if value is not None)


def _machines(done: list[ResultRow]) -> list[str]:
    """The machines that runs were made on."""
    return sorted({f"{machine_name(row.processor, row.threads)} a run" for row in done})


def _software(done: list[ResultRow]) -> dict[str, list[str]]:
    """The versions of each package that runs were made with."""
    return {
        "python": distinct(row.python for row in done),
        "torch": distinct(row.torch for row in done),
        "transformers": distinct(row.transformers for row in done),
    }


def _beside(grid: Grid, around: tuple[str, ...]) -> Evidence | None:
    """The evidence of the grid in `beside`; None without one, and while no metric of it is known yet."""
    if grid.beside is None:
        return None
    evidence = gather(load_grid(Path(grid.beside) / "grid.yaml"), around)
    if evidence.metric is None:
        return None
    return evidence


def gather(grid: Grid, around: tuple[str, ...] = ()) -> Evidence:
    """The evidence of a grid.

    Args:
        around: the names of the grids that show this one beside them, the outermost first.

    Raises:
        GridError, ValueError: no run of it, or of a grid beside it, has ended, or the grids go in a circle.
    """
    around = (*around, Path(grid.output_dir).name)
    if around[-1] in around[:-1]:
        raise ValueError(f"beside: goes in a circle: {' → '.join(around)}")
    rows = read_rows(grid.path("results.csv"))
    if not rows:
        raise ValueError(f"{grid.path('results.csv')}: no run has ended yet")
    done = [row for row in rows.values() if row.has_finished]
    timing = latency.read(grid)
    latency_on = None
    if timing is not None:
        latency_on = machine_name(timing.environment.processor, timing.environment.threads)
    summary = summarise(grid, rows)
    tuning = None
    if grid.tuning is not None:
        tuning = TuningSettings(**asdict(grid.tuning))
    return Evidence(
        grid=Path(grid.output_dir).name,
        recipe=grid.recipe,
        baseline=grid.baseline,
        seeds=grid.seeds,
        planned=sum(len(grid.seeds_for(shape)) for shape in grid.shapes),
        learning_rates=tune(grid, rows).learning_rates,
        tuning=tuning,
        overrides=grid.overrides,
        start_from=_folder_name(grid.start_from),
        start_seed=grid.start_seed,
        beside=_beside(grid, around),
        fine_tuned=fine_tuned(grid),
        margin=grid.margin,
        data=grid.data,
        data_files=grid.data_files,
        hub=grid.hub,
        metric=summary["metric"],
        higher_is_better=summary["higher_is_better"],
        cells=cells(grid, rows),
        reference=reference(grid),
        guesses=read_guesses(grid),
        row_errors=read_row_errors(grid),
        runs=len(rows),
        failed=len(rows) - len(done),
        failures=_total(row.failures for row in rows.values()),
        hours=_total(row.seconds for row in done) / 3600,
        processor=_machines(done),
        latency_on=latency_on,
        software=_software(done),
        commits=distinct(row.git_commit for row in done),
    )
