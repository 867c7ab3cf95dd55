"""A grid whose runs are trained in this process, for tests of what is published of it."""

import dataclasses
from pathlib import Path

import pytest
from modeling_leaner.training import train
from modeling_leaner.training.data import builtin, sources
from modeling_leaner.training.experiments import runs
from modeling_leaner.training.experiments.grid import Run, load_grid, write_grid
from modeling_leaner.training.experiments.grid_results import write_rows


GRID = {
    "recipe": "listops-short",
    "seeds": [1, 2],
    "learning_rates": [1e-3],
    "overrides": {"max_steps": 6, "max_train_rows": 96, "max_eval_rows": 64, "use_cpu": True},
    "margin": 0.01,
}


def few_rows():
    """ListOps of 200 training rows and 80 test rows."""
    return builtin.listops(builtin.SMALL_LISTOPS, train=200, test=80)


def small_listops(tmp_path_factory):
    """A new working folder in which `listops-short` has `few_rows`, and the patch to undo."""
    patch = pytest.MonkeyPatch()
    place = tmp_path_factory.mktemp("workshop")
    patch.chdir(place)
    patch.setitem(sources.BUILT_IN, "listops-short", few_rows)
    return place, patch


def train_grid(file, local=()):
    """Trains every run to be reported of a grid with one learning rate, and writes its rows and its grid.yaml.

    `local` are the options that say where the data lie.
    """
    grid = load_grid(Path(file))
    rows = {}
    for shape in grid.shapes:
        for seed in grid.seeds:
            run = Run("report", shape, seed, grid.learning_rates[0])
            words = runs.command(grid, run, local)[len(runs.TRAIN_COMMAND) :]
            train.main([*words, "--disable_tqdm", "true"])
            rows[run] = dataclasses.replace(runs.result_row(grid, run), jobs=1)
    write_rows(grid.path("results.csv"), rows.values())
    write_grid(grid)
