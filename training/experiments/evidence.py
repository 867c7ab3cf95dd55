"""What a grid says of its cells, as the results.json of a published folder holds it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from modeling_leaner.shapes import heads_of

from ..records import (
    Cell,
    CellScore,
    CellSummary,
    Evidence,
    FineTuned,
    LatencyFile,
    Reference,
    ResultRow,
    RunResults,
    TuningSettings,
)
from ..running.environment import computed_on, machine_name
from ..running.loading import has_weights
from .baselines import best_guess
from .branches import PARTS
from .grid import Grid, is_cut
from .grid_cells import cells_of
from .grid_results import GridResults, load_folder
from .summary import Summary, summarise
from .timings import config_of, length_of


PEERS = "-transformers"  # a grid's folder with this at its end trains transformers' own model as the reference
KINDS = ("baseline", "more heads", "fewer layers", "both")  # of cells: how they differ from the baseline


def dataset_name(results: RunResults) -> str:
    """The short name of a run's dataset."""
    if results.dataset_config:
        return results.dataset_config
    return results.dataset.split("/")[-1]


def baseline_of(evidence: Evidence) -> Cell:
    """The cell that the others are compared with."""
    return next(cell for cell in evidence.cells if cell.shape == evidence.baseline)


def kind(cell: Cell, evidence: Evidence) -> str | None:
    """One of KINDS, where more heads are twice as many; None for a cell that differs in another way."""
    base = baseline_of(evidence)
    if (cell.width, cell.mlp, cell.start) != (base.width, base.mlp, base.start):
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


def distinct(values: Iterable[object]) -> list[object]:
    """The different values, sorted, without None, which is unknown."""
    return sorted(set(values) - {None})


def start_in_words(grid: Grid, shape: str) -> str | None:
    """In a grid of cuts the weights that a cell's runs started with, in words; None in other grids."""
    if grid.cuts is None:
        return None
    if is_cut(grid, shape):
        return "cut"
    if has_weights(shape):
        return "its weights"
    return "new weights"


def cells(results: GridResults, summary: Summary) -> list[Cell]:
    """Each shape of the summary, with its sizes, its counts, every seed's value, its memory and its times."""
    length = length_of(results.grid)
    reported = cells_of(results)
    times = {}
    if results.latency is not None:
        times = results.latency.shapes
    described = []
    for summarised in summary.shapes:
        shape = summarised.shape
        config, task_head = config_of(results.grid, shape)
        done = reported.finished[shape].values()
        flops = config.count_flops(length, task_head)
        memory = [row.peak_memory_bytes for row in done if row.peak_memory_bytes]
        cell = Cell(
            **summarised.document(),
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=heads_of(config),
            head_dim=config.head_dim,
            mlp=config.intermediate_size,
            length=flops.length,
            flops_forward=flops.forward,
            kv_bytes_per_token=config.kv_bytes_per_token(),
            values=reported.values(shape),
            peak_memory_bytes=max(memory, default=None),
            jobs=distinct(row.jobs for row in done),
            latency=times.get(shape),
            start=start_in_words(results.grid, shape),
        )
        described.append(cell)
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
    peers = load_folder(folder)
    _check_reference(folder / "grid.yaml", peers.grid, grid)
    (cell,) = summarise(peers).shapes
    if cell.n == 0:
        return None
    return Reference(learning_rate=cell.learning_rate, n=cell.n, mean=cell.mean, sd=cell.sd)


def _check_reference(file: Path, peers: Grid, grid: Grid) -> None:
    """Raises ValueError where `peers`, read from `file`, train something else than the baseline, or in another way."""
    overrides = {}
    if grid.overrides is not None:
        overrides |= grid.overrides
    overrides["implementation"] = "transformers"
    alike = {
        "shapes": [grid.baseline],
        "recipe": grid.recipe,
        "metric": grid.metric,
        "tuning": grid.tuning,
        "start_from": grid.start_from,
        "learning_rates": grid.learning_rates,
        "start_seed": grid.start_seed,
        "branches": grid.branches,
        "overrides": overrides,
    }
    for key, expected in alike.items():
        got = getattr(peers, key)
        if got != expected:
            difference = f"expected {expected} as of the reference of {grid.output_dir}, got {got}"
            raise ValueError(f"{file}: {key}: {difference}")


def _cell_score(cell: CellSummary, values: dict[str, float]) -> CellScore:
    """The score of a shape alone, of these values by seed."""
    return CellScore(
        shape=cell.shape,
        learning_rate=cell.learning_rate,
        n=cell.n,
        mean=cell.mean,
        sd=cell.sd,
        chance=cell.chance,
        values=values,
    )


def _fine_tuned(results: GridResults) -> FineTuned:
    """Of a grid that started from another one's weights: its metric, every seed's value of each shape, whether its
    baseline learned, and whether weights of it are published."""
    summary = summarise(results)
    reported = cells_of(results)
    chances = [cell.chance for cell in summary.shapes]
    return FineTuned(
        grid=results.name,
        metric=summary.metric,
        higher_is_better=summary.higher_is_better,
        published=bool(results.grid.publish),
        start_seed=results.grid.start_seed,
        guess=best_guess([*results.guess_values, *chances], bool(summary.higher_is_better)),
        learned=summary.baseline.learned,
        cells=[_cell_score(cell, reported.values(cell.shape)) for cell in summary.shapes],
    )


def _folder_name(path: str | None) -> str | None:
    """The name of a folder without those above it; None of none."""
    if path is None:
        return None
    return Path(path).name


def _total(values: Iterable[float | None]) -> float:
    """The sum of the values, without what is unknown."""
    return sum(value for value in values if value is not None)


def _own_seconds(row: ResultRow) -> float | None:
    """The seconds of a run; of a branch its own part, without that of its trunk; None where they are unknown."""
    if row.seconds is None or row.branch is None:
        return row.seconds
    return row.seconds / PARTS


def _beside(results: GridResults, chain: tuple[str, ...]) -> Evidence | None:
    """The evidence of the grid in `beside`; None without one, and while no metric of it is known yet.

    Args:
        chain: the names of the grids that show it, the outermost first and this one last.
    """
    if results.beside is None:
        return None
    evidence = gather(results.beside, chain)
    if evidence.metric is None:
        return None
    return evidence


def _machine(row: ResultRow) -> str:
    """What a run was trained on: a GPU, or a processor with the threads of one run."""
    machine = computed_on(row.device, row.processor, row.threads)
    if machine == row.device:
        return machine
    return f"{machine} a run"


def _latency_on(timing: LatencyFile | None) -> str | None:
    """The machine on which inference was timed; None where it was not."""
    if timing is None:
        return None
    return machine_name(timing.environment.processor, timing.environment.threads)


def _tuning_settings(grid: Grid) -> TuningSettings | None:
    """How learning rates were chosen; None where there was one alone."""
    if grid.tuning is None:
        return None
    return TuningSettings(**asdict(grid.tuning))


def gather(results: GridResults, around: tuple[str, ...] = ()) -> Evidence:
    """The evidence of a grid.

    Args:
        around: the names of the grids that show this one beside them, the outermost first.

    Raises:
        GridError, ValueError: no run of it, or of a grid beside it, has ended, or the grids go in a circle.
    """
    grid = results.grid
    chain = (*around, results.name)
    if results.name in around:
        raise ValueError(f"beside: goes in a circle: {' → '.join(chain)}")
    rows = results.rows.values()
    if not rows:
        raise ValueError(f"{grid.path('results.csv')}: no run has ended yet")
    done = [row for row in rows if row.has_finished]
    summary = summarise(results)
    return Evidence(
        grid=results.name,
        recipe=grid.recipe,
        baseline=grid.baseline,
        seeds=grid.seeds,
        planned=sum(len(grid.seeds_for(shape)) for shape in grid.shapes),
        learning_rates=summary.learning_rates,
        tuning=_tuning_settings(grid),
        unsound_tuning=grid.unsound_tuning,
        overrides=grid.overrides,
        start_from=_folder_name(grid.start_from),
        start_seed=grid.start_seed,
        beside=_beside(results, chain),
        fine_tuned=[_fine_tuned(other) for other in results.fine_tuned],
        margin=grid.margin,
        data=grid.data,
        data_files=grid.data_files,
        hub=grid.hub,
        metric=summary.metric,
        higher_is_better=summary.higher_is_better,
        cells=cells(results, summary),
        curves=summary.curves or None,
        readings=summary.readings or None,
        reference=reference(grid),
        guesses=results.guesses,
        row_errors=results.row_errors,
        runs=len(rows),
        failed=len(rows) - len(done),
        failures=_total(row.failures for row in rows),
        hours=_total(map(_own_seconds, done)) / 3600,
        processor=distinct(map(_machine, done)),
        latency_on=_latency_on(results.latency),
        software={name: distinct(getattr(row, name) for row in done) for name in ("python", "torch", "transformers")},
        commits=distinct(row.git_commit for row in done),
    )
