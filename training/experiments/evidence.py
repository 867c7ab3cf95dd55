"""What a grid says of its cells, as the results.json of a published folder holds it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from modeling_leaner.shapes import heads_of

from ..records import Cell, Evidence, RunResults
from ..running.loading import has_weights
from ..running.results import computed_on, machine_name
from .baselines import best_guess
from .branches import PARTS
from .grid import Grid, is_cut
from .results import GridResults, load_folder
from .statistics import Cells, Summary, summarise
from .timings import config_of, length_of


PEERS = "-transformers"  # a grid's folder with this at its end trains transformers' own model as the reference


def dataset_name(results: RunResults) -> str:
    """The short name of a run's dataset."""
    return results.dataset_config or results.dataset.split("/")[-1]


def baseline_of(evidence: Evidence) -> Cell:
    """The cell that the others are compared with."""
    return next(cell for cell in evidence.cells if cell.shape == evidence.baseline)


def distinct(values: Iterable[object]) -> list[object]:
    """The different values, sorted, without None, which is unknown."""
    return sorted(set(values) - {None})


def cells(results: GridResults, summary: Summary) -> list[Summary]:
    """Each shape of the summary, with its sizes, every seed's value, its memory in bytes and its times in seconds.

    `start`, of cells of a grid of cuts: the weights that its runs started with, in words.
    """
    grid = results.grid
    length = length_of(grid)
    reported = Cells(results)
    times = results.latency.document()["shapes"] if results.latency else {}
    described = []
    for summarised in summary["shapes"]:
        shape = summarised["shape"]
        config, task_head = config_of(grid, shape)
        runs = reported.runs(shape)
        flops = config.count_flops(length, task_head)
        start = None
        if grid.cuts is not None:
            start = "cut" if is_cut(grid, shape) else "its weights" if has_weights(shape) else "new weights"
        cell = {
            **summarised,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": heads_of(config),
            "head_dim": config.head_dim,
            "mlp": config.intermediate_size,
            "length": flops.length,
            "flops_forward": flops.forward,
            "kv_bytes_per_token": config.kv_bytes_per_token(),
            "values": reported.values(shape),
            "peak_memory_bytes": max(runs["peak_memory_bytes"].dropna().tolist(), default=None),
            "jobs": distinct(runs["jobs"].dropna().tolist()),
            "latency": times.get(shape),
            "start": start,
        }
        described.append(cell)
    return described


def reference(grid: Grid) -> Summary | None:
    """Learning rate, n, mean and sd of transformers' own model of the baseline's shape, from the grid that trains it.

    That grid lies beside this one, in its folder's name and PEERS; None without it, or before its first finished run.

    Raises:
        ValueError: that grid trains something else, or in another way.
    """
    folder = Path(grid.output_dir.rstrip("/") + PEERS)
    if not (folder / "results.csv").is_file():
        return None
    peers = load_folder(folder)
    same = ("recipe", "metric", "tuning", "start_from", "learning_rates", "start_seed", "branches")
    alike = {name: getattr(grid, name) for name in same}
    alike |= {"shapes": [grid.baseline], "overrides": {**(grid.overrides or {}), "implementation": "transformers"}}
    for key, expected in alike.items():
        got = getattr(peers.grid, key)
        if got != expected:
            difference = f"expected {expected} as of the reference of {grid.output_dir}, got {got}"
            raise ValueError(f"{folder / 'grid.yaml'}: {key}: {difference}")
    (cell,) = summarise(peers)["shapes"]
    return {name: cell[name] for name in ("learning_rate", "n", "mean", "sd")} if cell["n"] else None


def _fine_tuned(results: GridResults) -> Summary:
    """Of a grid that started from another one's weights: its metric, every seed's value of each shape, the best simple
    guess, whether its baseline learned, and whether weights of it are published."""
    summary = summarise(results)
    reported = Cells(results)
    shown = ("shape", "learning_rate", "n", "mean", "sd", "chance")
    guesses = [*results.guess_values, *(cell["chance"] for cell in summary["shapes"])]
    return {
        "grid": results.name,
        "metric": summary["metric"],
        "higher_is_better": summary["higher_is_better"],
        "published": bool(results.grid.publish),
        "start_seed": results.grid.start_seed,
        "guess": best_guess(guesses, bool(summary["higher_is_better"])),
        "learned": next(cell["learned"] for cell in summary["shapes"] if cell["shape"] == results.grid.baseline),
        "cells": [
            {name: cell[name] for name in shown} | {"values": reported.values(cell["shape"])}
            for cell in summary["shapes"]
        ],
    }


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
    beside = gather(results.beside, chain) if results.beside else None
    # A GPU, or a processor with the threads of one run:
    machines = {computed_on(row.device, row.processor, row.threads): row.device for row in done}
    machines = [machine if machine == device else f"{machine} a run" for machine, device in machines.items()]
    timed_on = results.latency.environment if results.latency else None
    of_grid = "recipe baseline seeds unsound_tuning overrides start_seed margin data data_files hub".split()
    return Evidence(
        grid=results.name,
        **{name: getattr(grid, name) for name in of_grid},
        planned=sum(len(grid.seeds_for(shape)) for shape in grid.shapes),
        learning_rates=summary["learning_rates"],
        tuning=asdict(grid.tuning) if grid.tuning else None,
        start_from=Path(grid.start_from).name if grid.start_from else None,
        beside=beside.document() if beside and beside.metric else None,
        fine_tuned=[_fine_tuned(other) for other in results.fine_tuned],
        metric=summary["metric"],
        higher_is_better=summary["higher_is_better"],
        cells=cells(results, summary),
        curves=summary["curves"] or None,
        readings=summary["readings"] or None,
        reference=reference(grid),
        guesses=results.guesses,
        row_errors=results.row_errors,
        runs=len(rows),
        failed=len(rows) - len(done),
        failures=sum(row.failures or 0 for row in rows),
        # Of a branch its own part, without that of its trunk:
        hours=sum((row.seconds or 0) / (1 if row.branch is None else PARTS) for row in done) / 3600,
        processor=distinct(machines),
        latency_on=machine_name(timed_on.processor, timed_on.threads) if timed_on else None,
        software={name: distinct(getattr(row, name) for row in done) for name in ("python", "torch", "transformers")},
        commits=distinct(row.git_commit for row in done),
    )
