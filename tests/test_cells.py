"""`leaner cut-cells`: the cells of a grid over the cuts of one encoder, which leaner sweep then trains."""

import json
import re

import pytest
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.settings.arguments import RECIPES
from training_data import documents, save_encoder
from typer.testing import CliRunner

from modeling_leaner.cli import cells
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import load_lean


GRIDS = sorted((RECIPES.parent / "grids" / "cuts").glob("*.yaml"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small encoder as deep as MiniLM, of four heads, and rows."""
    save_encoder(tmp_path / "source", num_hidden_layers=6, initializer_range=0.3)
    documents(24, 1, words=12).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leaner(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_cells(folder):
    result = leaner("cut-cells", "source", "runs/minilm", "--data", "rows.parquet")
    assert result.exit_code == 0, result.output
    described = json.loads((folder / "runs/minilm/cells.json").read_text())
    heads = {name: cell["heads_per_layer"] for name, cell in described.items()}
    assert heads["6x2"] == [2] * 6 and sum(heads["6x2-unequal"]) == 12 and heads["3x8"] == [8] * 3
    assert [len(heads[name]) for name in ("teacher", "4x4", "3x4", "2x4")] == [6, 4, 3, 2]
    assert described["3x8"]["change"] == pytest.approx(described["3x4"]["change"], rel=1e-4)
    assert described["3x4-wide"]["change"] == pytest.approx(described["3x4"]["change"], rel=1e-4)
    off = described["3x4-wide"]["parameters"] - described["3x8"]["parameters"]
    assert abs(off) < 3 * 2 * 32  # of a neuron in each layer
    assert described["3x4"]["change"] <= min(described[f"3x4-even-{end}"]["change"] for end in ("first", "last"))
    for name, cell in described.items():
        assert load_lean(folder / "runs/minilm" / name).num_parameters() == cell["parameters"]
    again = leaner("cut-cells", "source", "runs/minilm", "--data", "rows.parquet")
    assert again.exit_code == 1 and "exists already" in again.stderr


@pytest.mark.parametrize("grid", GRIDS, ids=lambda path: path.stem)
def test_the_grids_name_the_cells(grid, folder):
    """Those of twelve heads, three times as many as here."""
    assert leaner("cut-cells", "source", "few", "--data", "rows.parquet").exit_code == 0
    for cell in (folder / "few").iterdir():
        name = re.sub(r"x(\d+)", lambda heads: f"x{3 * int(heads[1])}", cell.name)
        (folder / "runs" / "minilm" / name).mkdir(parents=True)
    assert load_grid(grid).overrides["max_steps"] == 1500


def test_an_interrupted_command_leaves_nothing(folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "write_json", interrupt)
    assert leaner("cut-cells", "source", "runs/minilm", "--data", "rows.parquet").exit_code != 0
    assert not list((folder / "runs").iterdir())


def test_a_depth_that_cannot_be_shared(folder):
    save_encoder(folder / "four", num_hidden_layers=4)
    result = leaner("cut-cells", "four", "runs/minilm", "--data", "rows.parquet")
    assert result.exit_code == 1 and "expected a bare encoder of equal layers" in result.stderr
    assert not (folder / "runs").exists()
