"""A cut of a published model, trained and published: its card, with its parent, and what a verification compares."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from command import leaner
from huggingface_hub import ModelCard
from modeling_leaner.training.experiments.cuts import make_cuts
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.publishing import publish
from modeling_leaner.training.publishing.folders import results_in
from modeling_leaner.training.reading import read_yaml
from modeling_leaner.training.running.evaluation import evaluate
from training_data import write_shape
from workshop import GRID, small_listops, train_grid

from modeling_leaner.files import sha256


pytestmark = pytest.mark.full
CELL = "model_cards/grids/slim/cells/one"
CUT = "model_cards/leanbert-one"
LONGER = {**GRID, "seeds": [1], "learning_rates": [3e-3]}  # so that scores differ
LONGER["overrides"] = {**GRID["overrides"], "max_steps": 60, "eval_strategy": "no"}


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm_stranger):
    """A published model of two layers, and one published that keeps its second layer, after a training."""
    place, patch = small_listops(tmp_path_factory)
    write_shape("bert", place, num_hidden_layers=2, max_position_embeddings=128)
    parent = {**LONGER, "shapes": ["bert.json"], "baseline": "bert.json"}
    parent |= {"output_dir": "model_cards/grids/whole", "publish": {"bert.json": "leanbert-two"}}
    slim = {**LONGER, "shapes": [CELL, f"{CELL}/config.json"], "baseline": CELL}
    slim |= {"cut_from": "model_cards/leanbert-two", "cuts": {CELL: {"keep": [1]}}, "publish": {CELL: "leanbert-one"}}
    slim |= {"overrides": {**slim["overrides"], "teacher": "model_cards/leanbert-two"}}
    slim |= {"output_dir": "model_cards/grids/slim"}
    Path("whole.yaml").write_text(yaml.safe_dump(parent))
    Path("slim.yaml").write_text(yaml.safe_dump(slim))
    train_grid("whole.yaml")
    leaner("publish", "whole.yaml")
    make_cuts(load_grid(Path("slim.yaml")))
    train_grid("slim.yaml")
    leaner("publish", "slim.yaml")
    yield place
    patch.undo()


def test_a_cut_is_shown_beside_its_parent(project):
    """Sizes, scores and steps of the parent, of the cut before its training and of the model, each measured here."""
    parent = results_in(Path("model_cards/leanbert-two/results.json"))
    own = results_in(Path(CUT, "results.json"))
    shutil.copytree(CUT, "untrained")
    shutil.copyfile(f"{CELL}/model.safetensors", "untrained/model.safetensors")
    untrained = evaluate("untrained", [])["metrics"]["eval_accuracy"]
    assert own.cut_parent.untrained_metrics["eval_accuracy"] == pytest.approx(untrained, abs=1e-6)
    scores = [parent.metrics["eval_accuracy"], untrained, own.metrics["eval_accuracy"]]
    assert len(set(scores)) == 3
    text = Path(CUT, "README.md").read_text()
    assert all(f"{score:.4g}" in text for score in scores)
    card = ModelCard(text)
    assert card.data.base_model == "OWNER/leanbert-two" and card.data.base_model_relation == "finetune"


def test_its_commands_make_it_again(project):
    """The command of the card cuts the same weights, from which its `leaner train` starts."""
    text = Path(CUT, "README.md").read_text()
    command = (
        "leaner slim model_cards/leanbert-two runs/leanbert-one-cut --keep-layers 1 --lean --no-training --data FOLDER"
    )
    assert command in text and read_yaml(Path(CUT, "recipe.yaml"))["shape"] == "runs/leanbert-one-cut"
    leaner(*command.replace("FOLDER", "listops-short").split()[1:])
    made = Path("runs/leanbert-one-cut/model.safetensors").read_bytes()
    assert made == Path(CELL, "model.safetensors").read_bytes()


def test_a_parent_that_was_replaced_is_found_by_its_hash(project):
    file, cut = Path("model_cards/leanbert-two/results.json"), results_in(Path(CUT, "results.json"))
    recorded = cut.cut_parent.weights_sha256
    parent = sha256(Path("model_cards/leanbert-two/model.safetensors"))
    assert recorded == json.loads(Path(CELL, "slim.json").read_text())["parent_weights_sha256"] == parent
    kept = file.read_text()
    file.write_text(kept.replace(recorded, "0" * 64))
    with pytest.raises(ValueError, match=f"parent_weights_sha256 is {recorded}, but .*leanbert-two"):
        publish.cut_parent(load_grid(Path("slim.yaml")), CELL)
    file.write_text(kept)
