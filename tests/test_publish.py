"""From a finished grid to a published folder, its card, its verification, and the index; each with what must fail."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from command import leaner
from datasets import Dataset
from huggingface_hub import ModelCard
from modeling_leaner.training import settings as recipes
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources
from modeling_leaner.training.experiments import baselines, runs
from modeling_leaner.training.experiments.grid import GridError, Run, load_grid
from modeling_leaner.training.experiments.results import load_results
from modeling_leaner.training.publishing import cards, publish, reevaluate, verify
from modeling_leaner.training.publishing.folders import check_folder, results_in
from modeling_leaner.training.running import loading
from safetensors.torch import load_file, save_file
from training_data import write_shape
from workshop import GRID, small_listops, train_grid

from modeling_leaner.files import sha256, whole_folder
from modeling_leaner.shapes import load_config


WORDS = "--max_steps 6 --max_train_rows 96 --max_eval_rows 64 --per_device_train_batch_size 8 --logging_steps 2"

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


def test_a_second_time_changes_nothing_but_the_evidence(workshop):
    """The weights that are there stay; a folder that is another's, or whose weights were swapped, is refused."""
    target = workshop / "model_cards/leanbert-deep"
    before = {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png" and path.is_file()}
    loaded = load_grid(Path("grid.yaml"))
    publish.renew(load_results(loaded), loaded.baseline)
    after = {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png" and path.is_file()}
    assert {name for name in before if before[name] != after[name]} == set() and before.keys() == after.keys()
    assert not list((workshop / "model_cards").glob(".unfinished-*"))
    with pytest.raises(ValueError, match="leanbert-deep exists already, of deep/bert.json in the grid tiny"):
        publish.read_target(target, loaded, "shallow/bert.json")
    with pytest.raises(ValueError, match="grids exists already"):
        publish.read_target(workshop / "model_cards/grids", loaded, loaded.baseline)
    weights = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(weights[:-4] + bytes(4))
    try:
        with pytest.raises(ValueError, match="its hash differs"):
            publish.renew(load_results(loaded), loaded.baseline)
    finally:
        (target / "model.safetensors").write_bytes(weights)


def test_without_a_grid_every_folder_is_renewed(workshop, capsys):
    target = workshop / "model_cards/leanbert-deep"
    before = (target / "results.json").read_text()
    results = json.loads(before)
    change(target, evidence={**results["evidence"], "mean": 0.5, "cells": []})
    assert (target / "results.json").read_text() != before
    leaner("publish")
    assert (target / "results.json").read_text() == before
    assert "leanbert-deep\nmodel_cards/leanbert-shallow\n" in capsys.readouterr().out
    saved = workshop / "model_cards/grids/tiny/grid.yaml"
    held = saved.read_text()
    saved.write_text(held.replace("leanbert-deep", "another"))
    with pytest.raises(SystemExit, match="leanbert-deep: model_cards/grids/tiny/grid.yaml does not have it under"):
        leaner("publish")
    saved.write_text(held)
    with pytest.raises(SystemExit, match="^2$"):
        leaner("publish", "--replace")


def test_the_licence_is_that_of_the_owner_of_the_weights(workshop):
    """As given; left out, what the folder says; none where none was given. What the Hub does not know is refused."""
    target = workshop / "model_cards/leanbert-deep"
    before = {path: path.read_bytes() for path in target.iterdir() if path.is_file()}

    def stated(*words):
        leaner("publish", "grid.yaml", *words)
        text = (target / "README.md").read_text()
        return ModelCard(text).data.license

    assert stated() == stated("--replace") == "mit"
    assert stated("--license", "cc-by-4.0") == "cc-by-4.0"
    assert stated("--license", "apache-2.0") == "apache-2.0"
    shutil.rmtree(target)
    assert stated() is None
    verify.verify(target, {}, short=True)
    stated("--license", "mit")
    assert before.keys() == {path for path in target.iterdir() if path.is_file()}
    for path, content in before.items():
        assert path.suffix == ".png" or path.read_bytes() == content


def test_what_no_run_depends_on_is_taken_from_the_grid_as_it_is_now(workshop):
    """Whatever a run depends on must be as it was; a renewal that fails leaves folder and grid as they were."""
    folder, saved = workshop / "model_cards/leanbert-deep", workshop / "model_cards/grids/tiny/grid.yaml"
    before, loaded = saved.read_bytes(), load_grid(Path("grid.yaml"))
    try:
        publish.renew(load_results(dataclasses.replace(loaded, data="trees of another wood")), loaded.baseline)
        assert results_in(folder / "results.json").evidence.data == "trees of another wood"
        assert "another wood" in (folder / "README.md").read_text()
        kept = saved.read_bytes()
        for change in ({"margin": 0.5}, {"overrides": None}):
            with pytest.raises(GridError):
                publish.renew(load_results(dataclasses.replace(loaded, **change)), loaded.baseline)
        config = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(config.replace(b'"hidden_size": ', b'"hidden_size": "x", "other": '))
        with pytest.raises(ValueError, match="model_cards/leanbert-deep/config.json"):
            publish.renew(load_results(dataclasses.replace(loaded, data="twigs")), loaded.baseline)
        (folder / "config.json").write_bytes(config)
        assert saved.read_bytes() == kept
    finally:
        saved.write_bytes(before)
        publish.renew(load_results(load_grid(saved)), loaded.baseline)


def test_another_recipe_is_found(folder):
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("learning_rate: 0.001", "learning_rate: 0.9"))
    with pytest.raises(ValueError, match="recipe.yaml: not the recipe of"):
        verify.verify(folder, {})


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt("disk full")], ids=["full", "Ctrl-C"])
def test_a_folder_takes_the_place_of_another_or_nothing_changes(error, tmp_path, monkeypatch):
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

    with monkeypatch.context() as patch, pytest.raises(type(error), match="disk full"):
        patch.setattr(Path, "rename", fails)
        replace()
    assert (target / "file").read_text() == "before"
    replace()
    assert (target / "file").read_text() == "after" and [*tmp_path.iterdir()] == [target]


def test_verification_finds_the_same_numbers(workshop, folder):
    assert verify.verify(folder, {}).startswith("accuracy ")


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
    cards.write_card(folder)
    with pytest.raises(ValueError, match=r"results.json: metrics.eval_\w+ is .*, the weights give"):
        verify.verify(folder, {})


def test_the_evaluator_sees_no_results(folder, monkeypatch):
    """Whoever evaluates has neither the numbers nor the package."""
    code = f"import sys; sys.argv=['x']; exec(open({reevaluate.__file__!r}).read().split('def main')[0])\n"
    code += "sys.meta_path.insert(0, NoPackage())\nimport modeling_leaner"
    process = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'modeling_leaner'" in process.stderr
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


def test_an_edited_card_is_found(folder):
    text = (folder / "README.md").read_text()
    (folder / "README.md").write_text(text.replace("| **0", "| **1"))
    with pytest.raises(ValueError, match="README.md: not what leaner publish writes"):
        verify.verify(folder, {})


@pytest.mark.parametrize("values", [{"parameters": 7}, {"evidence": {}}])
def test_numbers_that_do_not_fit_make_no_card(folder, values):
    before = (folder / "README.md").read_text()
    change(folder, **values)
    with pytest.raises(ValueError, match="results.json: "):
        cards.write_card(folder)
    assert (folder / "README.md").read_text() == before


def test_weights_of_another_shape(folder, workshop):
    shutil.copyfile(workshop / "model_cards/leanbert-deep/model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match="the weights do not fit config.json, such as model.layers.1"):
        check_folder(folder)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="model.safetensors: damaged or not safetensors"):
        check_folder(folder)


def test_commands_end_with_one_line(folder, workshop, capsys):
    with pytest.raises(SystemExit, match="--data: expected NAME=FOLDER"):
        leaner("verify", "--data_files", "folder")
    with pytest.raises(SystemExit, match="--data: listopps is no dataset of these folders, expected one of list"):
        leaner("verify", "--data_files", "listopps=folder")
    (folder / "recipe.yaml").write_text("task: [")
    with pytest.raises(SystemExit, match="1 of 2 failed"):
        leaner("verify", folder, workshop / "model_cards/leanbert-deep")
    said = capsys.readouterr()
    assert "recipe.yaml: no YAML file" in said.err and "leanbert-deep: accuracy " in said.out
    Path("bare.yaml").write_text(yaml.safe_dump({**yaml.safe_load(Path("grid.yaml").read_text()), "publish": None}))
    with pytest.raises(SystemExit, match="bare.yaml: expected publish, "):
        leaner("publish", "bare.yaml")


@pytest.mark.parametrize("told_by", ["first token only", "length only", "bag of tokens"])
def test_guesses_find_what_tells_the_label(told_by):
    """Rows whose label is one simple thing are solved by the guess that reads it, and by no other.

    But the bag of tokens, a share of each, knows the length by the share of the mark of the beginning.
    """
    rng = np.random.default_rng(0)

    def rows(count):
        ids, labels = [], []
        for label in rng.integers(3, size=count):
            length = 4 * 2**label if told_by == "length only" else rng.integers(3, 30)
            body = rng.integers(10, 20, size=length)
            if told_by == "first token only":
                body[0] = 5 + label
                body[-2:] = 5 + (label + 1) % 3, 5 + (label + 2) % 3  # so that the bag has every mark once
            elif told_by == "bag of tokens":
                body[rng.integers(1, length, size=length // 2)] = 5 + label
            ids.append([1, *body])
            labels.append(label)
        return Dataset.from_dict({"input_ids": ids, "length": [len(each) for each in ids], "labels": labels})

    task = SimpleNamespace(processing=range(20), metric="accuracy", regression=False)
    task.score = lambda said: {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}
    train, held_out = rows(2000), rows(500)
    features = baselines.text_features(task, train, held_out)
    found = {each.name: each.value for each in baselines.fitted_guesses(task, features, train, held_out)}
    assert found.pop(told_by) > 0.95, found
    assert all(value < 0.6 for name, value in found.items() if (told_by, name) != ("length only", "bag of tokens"))


def test_a_tokenizer_that_is_kept_says_the_length_of_the_new_training(workshop):
    words = ["--shape", "model_cards/leanbert-deep", "--max_length", "16", "--output_dir", "unused"]
    kept = loading.load_processing(recipes.parse("listops-short", words), load_config("deep/bert.json"), None)
    assert kept.model_max_length == 16


def test_a_grid_that_starts_from_another(workshop, tmp_path):
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    Path("later.yaml").write_text(yaml.safe_dump(later))
    loaded = load_results(load_grid(Path("later.yaml")))
    for phase, seed, expected in (("report", 2, "seed2"), ("tune", 0, "seed1")):
        start = runs.shape_option(loaded, Run(phase, grid["shapes"][0], seed, 1e-3))
        assert start.endswith(f"deep-bert-{expected}-lr0.001") and Path(start, "model.safetensors").is_file()
    with pytest.raises(GridError, match="start_from: expected the weights .*seed5"):
        runs.shape_option(loaded, Run("report", grid["shapes"][0], 5, 1e-3))


def test_what_a_published_run_started_from_is_compared(workshop, monkeypatch):
    """The weights that it began with must be those of the folder that the card names."""
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    shape = grid["shapes"][0]
    monkeypatch.setattr(publish, "CARDS", workshop / "model_cards")
    monkeypatch.setattr(publish, "load_grid", lambda path: load_grid(Path("grid.yaml")))
    started = SimpleNamespace(start_from="model_cards/grids/tiny", cuts=None)
    run = workshop / "begun"
    run.mkdir()
    folder = workshop / "model_cards/leanbert-deep"

    def begun_from(place):
        (run / "results.json").write_text(json.dumps({"shape": str(place)}))
        return publish.reproducible_shape(started, shape, run)

    assert publish.reproducible_shape(SimpleNamespace(start_from=None, cuts=None), shape, run) == shape
    first, second = (Run("report", shape, seed, 1e-3).folder(load_grid(Path("grid.yaml"))) for seed in (1, 2))
    assert begun_from(first) == begun_from(folder) == str(folder)
    with pytest.raises(ValueError, match="start_from: .*leanbert-deep does not hold the weights of .*seed2"):
        begun_from(second)


def test_a_grid_that_starts_from_published_weights(workshop, tmp_path):
    """Of one seed for all: its run's folder where that is there, else the folder that was published of it."""
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    shape = grid["shapes"][0]
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    starts = {}
    for seed in (1, 2):
        Path("later.yaml").write_text(yaml.safe_dump({**later, "start_seed": seed}))
        starts[seed] = load_results(load_grid(Path("later.yaml")))
    of = [Run("tune", shape, 0, 1e-3), Run("report", shape, 5, 1e-3)]
    kept = Path("model_cards/grids/tiny/runs")
    assert {runs.shape_option(starts[2], run) for run in of} == {str(kept / Run("report", shape, 2, 1e-3).name)}
    kept.rename(tmp_path / "runs")
    try:
        assert {runs.shape_option(starts[1], run) for run in of} == {f"model_cards/{grid['publish'][shape]}"}
        with pytest.raises(GridError, match="start_from: .*seed2.*, found none; leaner sweep .* trains them"):
            runs.shape_option(starts[2], of[0])
    finally:
        (tmp_path / "runs").rename(kept)
