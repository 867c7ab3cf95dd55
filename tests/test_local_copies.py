"""A grid that holds rows out of its training split, published from a local copy: the same rows are held out again."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from command import leaner
from training_data import documents, write_shape
from workshop import train_grid


GRID = "model_cards/grids/held-out"
HELD_OUT = 6


@pytest.fixture(scope="module")
def published(tmp_path_factory, warm_stranger):
    """A project whose one model was scored on rows of its training split."""
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("project"))
    for copy, seed in (("data", 1), ("other", 2)):
        Path(copy).mkdir()
        documents(24, seed=seed).to_parquet(f"{copy}/train.parquet")
        documents(8, seed=3).to_parquet(f"{copy}/validation.parquet")
    write_shape("gpt", Path())
    Path("text.yaml").write_text(yaml.safe_dump({"task": "causal-lm", "dataset": "someone/text", "holdout": HELD_OUT}))
    overrides = {"tokenizer": "byte-bpe", "max_length": 32, "max_steps": 2, "use_cpu": True}
    overrides["per_device_train_batch_size"] = 4
    grid = {"recipe": "text.yaml", "overrides": overrides, "shapes": ["gpt.json"], "baseline": "gpt.json"}
    grid |= {"seeds": [1], "learning_rates": [1e-3], "output_dir": GRID, "publish": {"gpt.json": "leangpt-held-out"}}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    train_grid("grid.yaml", ["--data_files", "data"])
    leaner("publish", "grid.yaml", "--data", "data")
    yield Path("model_cards/leangpt-held-out")
    patch.undo()


def test_the_rows_held_out_are_those_of_the_run(published, capsys):
    results = json.loads((published / "results.json").read_text())
    assert results["recipe"]["holdout"] == HELD_OUT
    leaner("verify", published, "--data_files", "text=data")
    assert f"on {results['rows']} rows" in capsys.readouterr().out


def test_evaluate_can_hold_them_out(published, capsys):
    """`leaner evaluate` is told --holdout; the other commands read it from the grid or results.json."""
    leaner("evaluate", published, "--data_files", "data", "--holdout", HELD_OUT)
    found = json.loads((published / "results.json").read_text())["metrics"]["eval_loss"]
    assert f"{found:.4f}" in capsys.readouterr().out


def test_a_copy_of_other_rows_is_refused_before_anything_is_written(published):
    shutil.copytree(published, "before")
    message = r"^leaner publish: .*data_sha256: .* rows of other with [0-9a-f]{64} differ"
    with pytest.raises(SystemExit, match=message):
        leaner("publish", "grid.yaml", "--replace", "--data", "other")
    for file in Path("before").iterdir():
        assert file.is_dir() or (published / file.name).read_bytes() == file.read_bytes()
