"""What a grid says of its cells, as the results.json of a published folder holds it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import latency, report
from .comparison import summarise
from .folders import check_fields
from .grid import Grid, load_grid
from .guesses import best_guess, read_guesses, read_row_errors
from .runs import Row, Run, read_rows, reported, tune


PEERS = "-transformers"  # the output_dir of the grid that trains transformers' own model as the reference

EVIDENCE = {  # the fields; what ends in ? may be missing or null
    str: "grid recipe baseline metric data? data_files? start_from? latency_on?",
    list: "seeds learning_rates cells fine_tuned processor commits guesses? row_errors?",
    dict: "tuning? overrides? beside? reference? software",
    bool: "hub higher_is_better",
    int: "runs failed failures planned? start_seed?",
    float: "margin? hours",
}
CELL = {
    str: "shape verdict",
    list: "notes jobs interval?",
    dict: "values latency?",
    int: "n layers heads head_dim width mlp length parameters? kv_bytes_per_token? pairs? peak_memory_bytes?",
    float: "learning_rate? mean? sd? difference? p_non_inferiority? parameters_over_baseline? flops_forward seconds? "
    "kappa_start? kappa_end? chance?",
    bool: "learned?",
}
FINE_TUNED = {
    str: "grid metric",
    bool: "higher_is_better published learned?",
    list: "cells",
    int: "start_seed?",
    float: "guess?",
}
KINDS = ("baseline", "more heads", "fewer layers", "both")


def dataset_name(results: dict[str, Any]) -> str:
    """The short name of a run's dataset."""
    return results.get("dataset_config") or results["dataset"].split("/")[-1]


def baseline_of(evidence: dict[str, Any]) -> dict[str, Any]:
    """The cell that the others are compared with."""
    return next(cell for cell in evidence["cells"] if cell["shape"] == evidence["baseline"])


def kind(cell: dict[str, Any], evidence: dict[str, Any]) -> str | None:
    """How a cell differs from the baseline, one of KINDS; None for any other difference."""
    base = baseline_of(evidence)
    same = all(cell[name] == base[name] for name in ("width", "mlp"))
    more, equal = cell["heads"] > base["heads"], cell["heads"] == base["heads"]
    fewer, deep = cell["layers"] < base["layers"], cell["layers"] == base["layers"]
    fits = (equal and deep, more and deep, equal and fewer, more and fewer)
    return KINDS[fits.index(True)] if same and any(fits) else None


def finished(grid: Grid, cell: dict[str, object], rows: dict[Run, Row]) -> list[Row]:
    """The rows that a cell of `summarise` is the mean of, in the order of the grid's seeds."""
    shape, rate = cell["shape"], cell["learning_rate"]
    runs = [rows.get(reported(grid, shape, seed, rate), {}) for seed in grid.seeds_for(shape)]
    return [row for row in runs if row.get("status") == "finished"]


def values_of(done: list[Row]) -> dict[str, float]:
    """Seed → value, the seed as JSON's keys are."""
    return {str(row["seed"]): row["value"] for row in done}


def distinct(rows: Iterable[Row], name: str) -> list[object]:
    """The different values of a column, sorted, without what is unknown."""
    return sorted({row[name] for row in rows} - {None})


def cells(grid: Grid, rows: dict[Run, Row]) -> list[dict[str, object]]:
    """Of each shape: sizes, counts, every seed's value, the paired comparison, conditioning, time and memory."""
    timing, found = latency.read(grid), []
    length = latency.length_of(grid)
    for said in summarise(grid, rows)["shapes"]:
        config, head = latency.config_of(grid, said["shape"])
        done = finished(grid, said, rows)
        flops = config.count_flops(length, head)
        memory = [row["peak_memory_bytes"] for row in done if row["peak_memory_bytes"]]
        found.append(
            said
            | {"layers": config.num_hidden_layers, "width": config.hidden_size, "heads": config.heads_per_layer[0]}
            | {"head_dim": config.head_dim, "mlp": config.intermediate_size, "length": flops.length}
            | {"flops_forward": flops.forward}
            | {"kv_bytes_per_token": config.kv_bytes_per_token()}
            | {"values": values_of(done)}
            | {"peak_memory_bytes": max(memory, default=None), "jobs": distinct(done, "jobs")}
            | {"latency": timing["shapes"].get(said["shape"]) if timing else None}
        )
    return found


def reference(grid: Grid) -> dict[str, object] | None:
    """transformers' own model of the baseline's shape, tuned and trained alike in the grid beside; None without.

    Raises:
        ValueError: that grid trains something else, or otherwise.
    """
    folder = Path(grid.output_dir.rstrip("/") + PEERS)
    if not (folder / "results.csv").is_file():
        return None
    peers = load_grid(folder / "grid.yaml")
    alike = {"shapes": [grid.baseline], "recipe": grid.recipe, "tuning": grid.tuning, "start_from": grid.start_from}
    alike |= {"learning_rates": grid.learning_rates, "start_seed": grid.start_seed}
    alike |= {"branches": grid.branches}
    alike |= {"overrides": {**(grid.overrides or {}), "implementation": "transformers"}}
    for key, expected in alike.items():
        if getattr(peers, key) != expected:
            said = f"expected {expected} as of the reference of {grid.output_dir}, got {getattr(peers, key)}"
            raise ValueError(f"{folder / 'grid.yaml'}: {key}: {said}")
    (cell,) = summarise(peers, read_rows(folder / "results.csv"))["shapes"]
    return {name: cell[name] for name in ("learning_rate", "n", "mean", "sd")} if cell["n"] else None


def fine_tuned(grid: Grid) -> list[dict[str, object]]:
    """Of each grid that started from this one's weights: its metric, every seed's value of each shape, whether its
    baseline learned, and whether weights of it are published."""
    found = []
    for path in sorted(Path(grid.output_dir).parent.glob("*/results.csv")):
        other = load_grid(path.parent / "grid.yaml")
        rows = read_rows(path)
        if other.start_from is None or Path(other.start_from) != Path(grid.output_dir) or not rows:
            continue
        said = summarise(other, rows)
        names = ("shape", "learning_rate", "n", "mean", "sd", "chance")
        cells = [
            {name: cell[name] for name in names} | {"values": values_of(finished(other, cell, rows))}
            for cell in said["shapes"]
        ]
        about = {name: said[name] for name in ("metric", "higher_is_better")}
        about |= {"published": bool(other.publish), "start_seed": other.start_seed}
        known = [each["value"] for each in read_guesses(other) or ()]
        chance = [cell["chance"] for cell in said["shapes"]]
        about |= {"guess": best_guess([*known, *chance], bool(said["higher_is_better"]))}
        about |= {"learned": next(cell["learned"] for cell in said["shapes"] if cell["shape"] == other.baseline)}
        found.append({"grid": path.parent.name, **about, "cells": cells})
    return found


def gather(grid: Grid, around: tuple[str, ...] = ()) -> dict[str, object]:
    """The evidence of a grid, `around` which others are shown.

    Raises:
        GridError, ValueError: no run of it, or of a grid beside it, has ended, or the grids go in a circle.
    """
    around = (*around, Path(grid.output_dir).name)
    if around[-1] in around[:-1]:
        raise ValueError(f"beside: goes in a circle: {' → '.join(around)}")
    rows = read_rows(grid.path("results.csv"))
    if not rows:
        raise ValueError(f"{grid.path('results.csv')}: no run has ended yet")
    done = [row for row in rows.values() if row["status"] == "finished"]
    timing, summary = latency.read(grid), summarise(grid, rows)
    other = None if grid.beside is None else gather(load_grid(Path(grid.beside) / "grid.yaml"), around)
    return {
        "grid": Path(grid.output_dir).name,
        "recipe": grid.recipe,
        "baseline": grid.baseline,
        "seeds": grid.seeds,
        "planned": sum(len(grid.seeds_for(shape)) for shape in grid.shapes),
        "learning_rates": tune(grid, rows).learning_rates,
        "tuning": None if grid.tuning is None else asdict(grid.tuning),
        "overrides": grid.overrides,
        "start_from": None if grid.start_from is None else Path(grid.start_from).name,
        "start_seed": grid.start_seed,
        "beside": other if other and other["metric"] else None,  # nothing to show before its first reported run
        "fine_tuned": fine_tuned(grid),
        "margin": grid.margin,
        "data": grid.data,
        "data_files": grid.data_files,
        "hub": grid.hub,
        "metric": summary["metric"],
        "higher_is_better": summary["higher_is_better"],
        "cells": cells(grid, rows),
        "reference": reference(grid),
        "guesses": read_guesses(grid),
        "row_errors": read_row_errors(grid),
        "runs": len(rows),
        "failed": len(rows) - len(done),
        "failures": sum(row["failures"] or 0 for row in rows.values()),
        "hours": sum(row["seconds"] or 0 for row in done) / 3600,
        "processor": sorted({f"{report.machine(row)} a run" for row in done}),
        "latency_on": timing and report.machine(timing["environment"]),
        "software": {name: distinct(done, name) for name in ("python", "torch", "transformers")},
        "commits": distinct(done, "git_commit"),
    }


def check_evidence_fields(file: Path, values: dict[str, Any], prefix: str) -> None:
    """Raises ValueError, naming file and field, where an evidence, or what is beside it, lacks something.

    Args:
        values: `report.flat` of the file's document; the names of the evidence's fields begin with `prefix`.
    """
    check_fields(file, values, EVIDENCE, prefix)
    for name in ("seeds", "cells"):
        report.require(values[prefix + name], file, prefix + name, values[prefix + name], "at least one")
    for index in range(len(values[f"{prefix}cells"])):
        check_fields(file, values, CELL, f"{prefix}cells.{index}.")
        for batch in values.get(f"{prefix}cells.{index}.latency") or ():
            timed = {float: "seconds items_per_second"}
            check_fields(file, values, timed, f"{prefix}cells.{index}.latency.{batch}.")
    shapes = [values[f"{prefix}cells.{index}.shape"] for index in range(len(values[f"{prefix}cells"]))]
    base = values[f"{prefix}baseline"]
    report.require(base in shapes, file, f"{prefix}baseline", base, f"one of {shapes}")
    for index in range(len(values[f"{prefix}fine_tuned"])):
        check_fields(file, values, FINE_TUNED, f"{prefix}fine_tuned.{index}.")
    if values.get(f"{prefix}beside") is not None:
        check_evidence_fields(file, values, f"{prefix}beside.")
