"""`make demo` in miniature: a few steps, the whole path."""

import json
from dataclasses import replace

import numpy as np
import pytest
from modeling_leaner.training import demo


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


def test_the_whole_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "OUTPUT", tmp_path / "demo")
    for name in ("digits_task", "listops_task", "python_docs_task"):
        make_task = getattr(demo, name)
        monkeypatch.setattr(demo, name, lambda make_task=make_task: shortened(make_task))
    monkeypatch.setattr(demo.data, "python_docs", lambda: PYTHON_DOCS(max_bytes=200_000, holdout=3))
    listops = demo.data.listops
    monkeypatch.setattr(demo.data, "listops", lambda rules, **_: listops(rules, train=100, test=50))
    demo.main()
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["verdict"] == "one seed: no conclusion" and len(document["rows"]) == 6
    for row in document["rows"]:
        files = {path.name for path in (tmp_path / "demo" / f"{row['family']}-{row['shape']}").iterdir()}
        processing = "preprocessor_config.json" if row["family"] == "vit" else "tokenizer.json"
        assert {"model.safetensors", "config.json", "README.md", "layers_leaner.py", processing} <= files
        assert not any(name.endswith(".bin") for name in files)
        assert row["training_seconds"] > 0 and row["inference_items_per_second"] > 0 and row["said"]
        assert (row["kv_bytes_per_token"] is not None) == (row["family"] == "gpt")
    for base, twin in zip(document["rows"][::2], document["rows"][1::2]):
        assert twin["parameters"] <= 0.7 * base["parameters"]
        assert twin["difference"] == pytest.approx(twin["quality"] - base["quality"], abs=1e-4)
        assert not base["learned"] or base["family"] != "bert"  # two steps of ListOps teach nothing
    assert (tmp_path / "demo" / "pairs.png").stat().st_size > 5000


PYTHON_DOCS = demo.data.python_docs


def test_learned_needs_more_than_noise():
    chance = np.array([0.0, 100.0] * 50)
    assert not demo.beats_chance(chance, chance, True)
    assert demo.beats_chance(np.full(100, 100.0), chance, True)
    assert not demo.beats_chance(np.full(100, 100.0), chance, False)
