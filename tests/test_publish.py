"""From a finished grid to a published folder, its card, its verification, and the index; each with what must fail."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import leaner
from huggingface_hub import ModelCard
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources
from modeling_leaner.training.experiments import runs
from modeling_leaner.training.experiments.grid import Run, load_grid
from modeling_leaner.training.experiments.grid_results import load_results
from modeling_leaner.training.publishing import cards, publish, reevaluate, verify
from safetensors.torch import load_file, save_file
from training_data import write_shape
from workshop import GRID, small_listops, train_grid

from modeling_leaner.files import sha256, whole_folder


GRID_FOLDER = "model_cards/grids/tiny"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, warm_stranger):
    """A grid of two small shapes, run and published."""
    place, patch = small_listops(tmp_path_factory)
    for name, layers in (("deep", 2), ("shallow", 1)):
        (place / name).mkdir()
        write_shape("bert", place / name, num_hidden_layers=layers, max_position_embeddings=128)
    shapes = ["deep/bert.json", "shallow/bert.json"]
    grid = {**GRID, "shapes": shapes, "baseline": shapes[0], "output_dir": GRID_FOLDER}
    grid["publish"] = {shapes[0]: "leanbert-deep", shapes[1]: "leanbert-shallow"}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    train_grid("grid.yaml")
    leaner("publish", "grid.yaml", "--license", "mit")
    yield place
    patch.undo()


@pytest.fixture
def folder(workshop, tmp_path):
    """A copy of a published folder, to be damaged."""
    copy = tmp_path / "leanbert-shallow"
    shutil.copytree(workshop / "model_cards" / "leanbert-shallow", copy)
    return copy


def change(folder, **values):
    path = folder / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1, ensure_ascii=False) + "\n")


def test_a_published_folder_holds_what_is_pushed(workshop):
    for name in ("leanbert-deep", "leanbert-shallow"):
        files = {path.name for path in (workshop / "model_cards" / name).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "results.json", "README.md"} <= files
        assert {"modeling_lean_bert.py", "layers_leaner.py", "recipe.yaml", "training.png"} <= files
        config = json.loads((workshop / "model_cards" / name / "config.json").read_text())
        assert "AutoModel" in config["auto_map"] and "AutoModelForMaskedLM" in config["auto_map"]
        for path in (workshop / "model_cards" / name).rglob("*.yaml"):
            assert str(workshop) not in path.read_text()


def test_without_a_grid_every_folder_is_renewed(workshop, capsys):
    """What the rows say is taken from them, the rest stays; a folder of another shape or other weights is refused."""
    target, loaded = workshop / "model_cards/leanbert-deep", load_results(load_grid(Path("grid.yaml")))
    before = {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png"}
    results = json.loads(before["results.json"])
    change(target, evidence={**results["evidence"], "mean": 0.5, "cells": []})
    leaner("publish")
    assert before == {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png"}
    assert "leanbert-deep\nmodel_cards/leanbert-shallow\n" in capsys.readouterr().out
    change(target, cell="shallow/bert.json")
    with pytest.raises(ValueError, match="leanbert-deep exists already, not of deep/bert.json in the grid tiny"):
        publish.renew(loaded, loaded.grid.baseline)
    weights = before["model.safetensors"]
    (target / "results.json").write_bytes(before["results.json"])
    (target / "model.safetensors").write_bytes(weights[:-4] + bytes(4))
    try:
        with pytest.raises(ValueError, match="its hash differs"):
            publish.renew(loaded, loaded.grid.baseline)
    finally:
        (target / "model.safetensors").write_bytes(weights)


def test_the_licence_is_that_of_the_owner_of_the_weights(workshop):
    """As given; left out, what the folder says; none where none was given."""
    target = workshop / "model_cards/leanbert-deep"
    before = {path: path.read_bytes() for path in target.iterdir() if path.suffix != ".png"}

    def stated(*words):
        leaner("publish", "grid.yaml", *words)
        return ModelCard((target / "README.md").read_text()).data.license

    assert stated("--replace") == "mit"
    assert before == {path: path.read_bytes() for path in target.iterdir() if path.suffix != ".png"}
    assert stated("--license", "apache-2.0") == stated() == "apache-2.0"
    shutil.rmtree(target)
    assert stated() is None
    assert stated("--license", "mit") == "mit"


def test_what_no_run_depends_on_is_taken_from_the_grid_as_it_is_now(workshop):
    """Whatever a run depends on must be as it was."""
    folder, saved = workshop / "model_cards/leanbert-deep", workshop / "model_cards/grids/tiny/grid.yaml"
    before, loaded = saved.read_bytes(), load_grid(Path("grid.yaml"))
    try:
        publish.renew(load_results(dataclasses.replace(loaded, data="trees of another wood")), loaded.baseline)
        assert "another wood" in (folder / "README.md").read_text() and b"another wood" in saved.read_bytes()
        for change in ({"margin": 0.5}, {"overrides": None}):
            with pytest.raises(ValueError):
                publish.renew(load_results(dataclasses.replace(loaded, **change)), loaded.baseline)
    finally:
        saved.write_bytes(before)
        publish.renew(load_results(load_grid(saved)), loaded.baseline)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError("disk full"), ValueError), (KeyboardInterrupt("disk full"), KeyboardInterrupt)],
    ids=["full", "Ctrl-C"],
)
def test_a_folder_takes_the_place_of_another_or_nothing_changes(error, expected, tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("before")
    rename = Path.rename

    def fails(path, place):
        if place == target and path.name == "target":
            raise error
        return rename(path, place)

    def replace():
        with whole_folder(target, replace=True) as folder:
            folder.mkdir()
            (folder / "file").write_text("after")

    with monkeypatch.context() as patch, pytest.raises(expected, match="disk full"):
        patch.setattr(Path, "rename", fails)
        replace()
    assert (target / "file").read_text() == "before"
    replace()
    assert (target / "file").read_text() == "after" and [*tmp_path.iterdir()] == [target]


def test_a_changed_tensor_is_found(folder):
    """By its hash; and by its metrics where somebody has mended the hash."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.bias"] = tensors["classifier.bias"].clone()
    tensors["classifier.bias"][0] += 5
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ValueError, match="its hash differs"):
        verify.verify(folder, {})
    change(folder, weights_sha256=sha256(path))
    (folder / "README.md").write_text(cards.render(folder))
    with pytest.raises(ValueError, match=r"results.json: metrics.eval_\w+ is .*, the weights give"):
        verify.verify(folder, {})


def test_the_evaluator_sees_no_results(folder, monkeypatch):
    """Whoever evaluates has neither the numbers nor the package."""
    code = "import runpy, sys\nsys.argv, sys.modules['torch'] = [*'12345'], None  # at which it stops\n"
    code += f"try:\n  runpy.run_path({reevaluate.__file__!r}, run_name='__main__')\n"
    code += "except ImportError:\n  import modeling_leaner"
    process = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "import of modeling_leaner halted" in process.stderr
    seen = {}

    def run(command, **options):
        seen["files"] = {path.name for path in Path(command[3]).iterdir()}
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: stopped here")

    monkeypatch.setattr(verify.subprocess, "run", run)
    with pytest.raises(ValueError, match="without the package failed: ValueError: stopped here"):
        verify.verify(folder, {})
    assert "model.safetensors" in seen["files"] and not {"results.json", "README.md"} & seen["files"]


def test_other_data_are_said_to_differ(folder, monkeypatch):
    rules = data.SMALL_LISTOPS
    monkeypatch.setitem(sources.BUILT_IN, "listops-short", lambda: data.listops(rules, train=200, test=80, seed=9))
    with pytest.raises(
        ValueError, match="data_sha256: 64 rows of listops-short with .* differ from the card's data, 64 rows with"
    ):
        verify.verify(folder, {})


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("recipe.yaml", "learning_rate: 0.001", "learning_rate: 0.9"), ("README.md", "| **0", "| **1")],
)
def test_an_edited_recipe_or_card_is_found(folder, name, before, after):
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace(before, after))
    with pytest.raises(ValueError, match=f"{name}: not what leaner publish writes"):
        verify.verify(folder, {})


def test_commands_end_with_one_line(folder, workshop, capsys):
    with pytest.raises(SystemExit, match="--data: expected NAME=FOLDER"):
        leaner("verify", "--data_files", "folder")
    (folder / "recipe.yaml").write_text("task: [")
    with pytest.raises(SystemExit, match="1 of 2 failed"):
        leaner("verify", folder, workshop / "model_cards/leanbert-deep")
    said = capsys.readouterr()
    assert "recipe.yaml: no YAML file" in said.err and "leanbert-deep: accuracy " in said.out
    for changed in ({"publish": None}, {"output_dir": "elsewhere"}):
        Path("other.yaml").write_text(yaml.safe_dump({**yaml.safe_load(Path("grid.yaml").read_text()), **changed}))
        with pytest.raises(SystemExit, match="other.yaml: expected publish, "):
            leaner("publish", "other.yaml")


def test_a_grid_that_starts_from_another(workshop, tmp_path):
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    Path("later.yaml").write_text(yaml.safe_dump(later))
    loaded = load_grid(Path("later.yaml"))
    for phase, seed, expected in (("report", 2, "seed2"), ("tune", 0, "seed1")):
        start = runs.shape_option(loaded, Run(phase, grid["shapes"][0], seed, 1e-3))
        assert start.endswith(f"deep-bert-{expected}-lr0.001") and Path(start, "model.safetensors").is_file()
    with pytest.raises(ValueError, match="start_from: expected the weights .*seed5"):
        runs.shape_option(loaded, Run("report", grid["shapes"][0], 5, 1e-3))


def test_a_grid_that_starts_from_published_weights(workshop, tmp_path):
    """Of one seed for all: its run's folder where that is there, else the folder that was published of it."""
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    shape = grid["shapes"][0]
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    starts = {}
    for seed in (1, 2):
        Path("later.yaml").write_text(yaml.safe_dump({**later, "start_seed": seed}))
        starts[seed] = load_grid(Path("later.yaml"))
    of = [Run("tune", shape, 0, 1e-3), Run("report", shape, 5, 1e-3)]
    kept = Path("model_cards/grids/tiny/runs")
    own = Run("report", shape, 2, 1e-3).folder(load_grid(Path("grid.yaml")))
    assert {runs.shape_option(starts[2], run) for run in of} == {str(own)}
    kept.rename(tmp_path / "runs")
    try:
        assert {runs.shape_option(starts[1], run) for run in of} == {f"model_cards/{grid['publish'][shape]}"}
        with pytest.raises(ValueError, match="start_from: .*seed2.*, found none; leaner sweep .* trains them"):
            runs.shape_option(starts[2], of[0])
    finally:
        (tmp_path / "runs").rename(kept)
