"""`make demo` in miniature: a few steps, the whole path."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
from modeling_leaner.training import demo
from transformers import ProgressCallback


def shortened(make_task, rows=48):
    """The task with a few rows and steps."""
    task = make_task()
    return replace(
        task,
        train=task.train.select(range(rows)),
        test=task.test.select(range(min(rows, len(task.test)))),
        chance=task.chance[: min(rows, len(task.test))],
        recipe={**task.recipe, "max_steps": 2},
    )


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """The folder in which a shortened demo ran, and the last line that it printed."""
    folder, patch, stdout = tmp_path_factory.mktemp("demo"), pytest.MonkeyPatch(), io.StringIO()
    patch.chdir(folder)
    python_docs, listops = demo.data.python_docs, demo.data.listops
    patch.setattr(demo.data, "python_docs", lambda: python_docs(max_bytes=200_000, holdout=3))
    patch.setattr(demo.data, "listops", lambda rules, **_: listops(rules, train=100, test=50))
    for name in ("digits_task", "listops_task", "python_docs_task"):
        make_task = getattr(demo, name)
        patch.setattr(demo, name, lambda make_task=make_task: shortened(make_task))
    with redirect_stdout(stdout):
        demo.main()
    yield folder, stdout.getvalue().splitlines()[-1]
    patch.undo()


def test_the_whole_path(demo_run):
    folder, last_line = demo_run
    document = json.loads(last_line)
    assert document["verdict"] == "one seed: no conclusion" and len(document["rows"]) == 6
    for row in document["rows"]:
        files = {path.name for path in (folder / row["folder"]).iterdir()}
        processing = "preprocessor_config.json" if row["family"] == "vit" else "tokenizer.json"
        assert {"model.safetensors", "config.json", "README.md", "layers_leaner.py", processing} <= files
        assert not any(name.endswith(".bin") for name in files)
        assert row["training_seconds"] > 0 and row["inference_items_per_second"] > 0 and row["said"]
        assert (row["kv_bytes_per_token"] is not None) == (row["family"] == "gpt")
    for base, twin in zip(document["rows"][::2], document["rows"][1::2]):
        assert twin["parameters"] <= 0.7 * base["parameters"]
        assert twin["difference"] == pytest.approx(twin["quality"] - base["quality"], abs=1e-4)
        assert not base["learned"] or base["family"] != "bert"  # two steps of ListOps teach nothing
    assert (folder / document["figure"]).stat().st_size > 5000


def test_training_shows_a_progress_bar(tmp_path):
    task = shortened(demo.digits_task)
    _, trainer, _ = demo.train_one(task, "nano", tmp_path / "nano")
    assert any(isinstance(callback, ProgressCallback) for callback in trainer.callback_handler.callbacks)


def test_learned_needs_more_than_noise():
    chance = np.array([0.0, 100.0] * 50)
    assert not demo.beats_chance(chance, chance, True)
    assert demo.beats_chance(np.full(100, 100.0), chance, True)
    assert not demo.beats_chance(np.full(100, 100.0), chance, False)
