"""`make demo` in miniature: a few steps, the whole path."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from modeling_leaner.training import demo, slim


FEW = " --max_steps 2 --max_train_rows 48 --max_eval_rows 32 --per_device_train_batch_size 8 --warmup_steps 1"
PAIR = ("vit-nano", "vit-lean-nano")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A shortened demo in a folder where one ran before: the folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setenv("COLUMNS", "80")
    shipped = Path(__file__).parents[1] / "model_cards"
    patch.setattr(demo, "FASTER", demo.FASTER.replace("model_cards", str(shipped)))
    patch.setattr(slim, "measured_plan", lambda *_: {"steps": 2, "bf16": False})
    patch.setattr(slim, "CALIBRATION_ROWS", 64)
    patch.setattr(slim, "HELD_OUT_ROWS", 64)
    patch.setattr(demo, "TRAIN", demo.TRAIN + FEW)
    for path in ("vit-nano/of-an-earlier-demo", "own/notes"):
        (demo.OUTPUT / path).parent.mkdir(parents=True)
        (demo.OUTPUT / path).touch()
    with redirect_stdout(io.StringIO()) as stdout:
        demo.main()
    patch.undo()
    runs = [json.loads((folder / demo.OUTPUT / name / "results.json").read_text()) for name in PAIR]
    return SimpleNamespace(folder=folder / demo.OUTPUT, runs=runs, stdout=stdout.getvalue())


def test_a_shipped_model_is_made_faster(finished):
    config = json.loads((finished.folder / "faster" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"] and config["num_hidden_layers"] < 8


def test_an_earlier_demo_is_replaced_and_nothing_else(finished):
    assert not (finished.folder / "vit-nano" / "of-an-earlier-demo").exists()
    assert {path.name for path in finished.folder.iterdir()} == {*PAIR, "faster", "own"}
    assert (finished.folder / "own" / "notes").exists()


def test_a_pair_differs_in_its_shape_alone(finished):
    base, twin = finished.runs
    assert twin["parameters"] <= 0.7 * base["parameters"]
    assert twin["recipe"] == base["recipe"] and twin["data_sha256"] == base["data_sha256"]
    assert (base["shape"], twin["shape"]) == ("vit/nano", "vit/lean-nano")


def test_a_fresh_process_predicts(finished):
    assert re.search(r"^prints: \d$", finished.stdout, re.MULTILINE)
