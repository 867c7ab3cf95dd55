"""Pairs at equal tokens, FLOPs and seconds: by hand, by known curves, and from made-up rows."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from command import leaner
from modeling_leaner.training.experiments import branches
from modeling_leaner.training.experiments.grid import load_grid, reported
from modeling_leaner.training.experiments.grid_results import GridResults
from modeling_leaner.training.experiments.statistics import interpolate, show, summarise
from modeling_leaner.training.records import ResultRow
from scipy import stats
from training_data import write_shape


STEP, BUDGETS = 16 * 32, [10 * 512, 20 * 512, 40 * 512, 80 * 512]
SECONDS = {"deep.json": 0.2, "lean.json": 0.1}


def test_the_line_between_two_points():
    """Over the logarithm: half-way between 1 and 100 is 10; at a point its value; beyond nothing."""
    value, error = interpolate([1, 100], [4.0, 2.0], 10)
    assert value == pytest.approx(3.0) and math.isnan(error)
    assert interpolate([1, 100], [4.0, 2.0], 100) == (2.0, 0.0) and interpolate([7], [1.0], 7) == (1.0, 0.0)
    beyond = [interpolate([1, 100], [4.0, 2.0], cost) for cost in (0.99, 101)]
    assert np.isnan([*beyond, interpolate([], [], 5), interpolate([7], [1.0], 8)]).all()


def test_the_error_is_exact_for_a_parabola():
    places = np.array([1.0, 3.0, 10.0, 40.0])

    def parabola(cost):
        return 5 - 2 * np.log(cost) + 0.3 * np.log(cost) ** 2

    for cost in (2.0, 5.0, 20.0):
        value, error = interpolate(places, parabola(places), cost)
        assert value - parabola(cost) == pytest.approx(error, rel=1e-9)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A deep and a lean shape with four branches, of which rows are made up."""
    monkeypatch.chdir(tmp_path)
    for name, layers in (("deep", 4), ("lean", 2)):
        Path(write_shape("gpt", tmp_path, num_hidden_layers=layers)).rename(f"{name}.json")
    overrides = {"max_length": 32, "max_steps": 64, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "enwik8-text-causal", "shapes": ["deep.json", "lean.json"], "baseline": "deep.json"}
    values |= {"seeds": [1, 2, 3], "learning_rates": [1e-3], "branches": BUDGETS, "overrides": overrides}
    values |= {"output_dir": ".", "contrasts": [["lean.json", "deep.json"]]}
    Path("my.yaml").write_text(yaml.safe_dump(values))
    return load_grid(Path("my.yaml"))


def loss(shape, tokens, seed):
    """Straight lines over log tokens, so that what is read between branches is exact."""
    slope = 0.5 if shape == "deep.json" else 0.3
    return 9 - slope * math.log(tokens / 1e3) + 0.01 * seed + (0.003 * seed**2 if shape == "lean.json" else 0)


def made_up(grid, shapes=("deep.json", "lean.json")):
    found = {}
    for shape in shapes:
        for seed in grid.seeds:
            for branch in grid.branches:
                run = reported(grid, shape, seed, 1e-3, branch)
                cost = branch * (100 if shape == "deep.json" else 60)
                cells = {"status": "finished", "metric": "loss", "value": loss(shape, branch, seed), "tokens": branch}
                cells |= {"higher_is_better": 0, "training_flops": cost, "steps": branch // STEP, "seconds": 1e9}
                found[run] = ResultRow.from_cells({**run._asdict(), **cells})
    return found


def measured(seconds=SECONDS, tokens=STEP):
    shapes = {shape: {"seconds": each, "tokens": tokens} for shape, each in seconds.items()}
    Path(branches.STEP_SECONDS).write_text(json.dumps({"shapes": shapes}))


def test_a_pair_at_equal_costs(grid):
    """The lean shape's branch beside the deep one at the same tokens, at 0.6 of them by FLOPs, at half by seconds."""
    measured()
    found = summarise(GridResults(grid, made_up(grid)))["readings"]
    shares = {"tokens": 1.0, "FLOPs": 0.6, "seconds": 0.5}
    assert [(each["equal"], each["branch"]) for each in found] == [(way, at) for way in shares for at in BUDGETS]
    for each in found:
        tokens = each["branch"] * shares[each["equal"]]
        if tokens < BUDGETS[0]:
            assert (each["pairs"], each["difference"], each["interval"]) == (0, None, None)
            continue
        own = [loss("lean.json", each["branch"], seed) for seed in (1, 2, 3)]
        others = [loss("deep.json", tokens, seed) for seed in (1, 2, 3)]
        assert each["pairs"] == 3 and each["interpolation_error"] == pytest.approx(0, abs=1e-9)
        assert each["difference"] == pytest.approx(np.mean(np.subtract(own, others)))
        assert each["interval"] == pytest.approx([*stats.ttest_rel(own, others).confidence_interval()])


def test_what_is_missing_is_not_read(grid, capsys):
    """No times, no seconds; a seed without the other shape is left out; nothing at all is no error."""
    rows = {run: row for run, row in made_up(grid).items() if (run.shape, run.seed) != ("deep.json", 2)}
    found = summarise(GridResults(grid, rows))
    pairs = {(each["equal"], each["branch"]): each["pairs"] for each in found["readings"]}
    assert pairs["tokens", BUDGETS[0]] == 2 and pairs["seconds", BUDGETS[-1]] == 0
    show(found)
    said = capsys.readouterr().out
    assert "lean.json deep.json" in said and "FLOPs" in said and "–" in said
    assert {each["pairs"] for each in summarise(GridResults(grid, {}))["readings"]} == {0}


def test_times_of_another_step_do_not_count(grid):
    measured(tokens=256)
    readings = summarise(GridResults(grid, made_up(grid)))["readings"]
    assert {each["pairs"] for each in readings if each["equal"] == "seconds"} == {0}


def test_step_times_are_measured(grid, capsys):
    """Of the grid's own step."""
    leaner("bench", "my.yaml", "--rounds", 3)
    held = json.loads(Path(branches.STEP_SECONDS).read_text())
    assert set(held["shapes"]) == set(SECONDS)
    assert all(low <= each["seconds"] <= high for each in held["shapes"].values() for low, high in [each["quartiles"]])
    assert held["rounds"] == 3 and held["environment"]["torch"] and "deep.json: " in capsys.readouterr().err


def test_a_step_is_the_grids_own(grid):
    """Rows, tokens, accumulation and labels as in the training."""
    values = yaml.safe_load(Path("my.yaml").read_text())
    values["overrides"] |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True}
    Path("my.yaml").write_text(yaml.safe_dump(values))
    changed = load_grid(Path("my.yaml"))
    step = branches.training_step(changed, "lean.json")
    assert step.inputs["input_ids"].shape == (4, 32) and step.autocast == torch.bfloat16 and step.accumulate == 4
    before = {name: value.clone() for name, value in step.model.named_parameters()}
    step()
    assert all(not value.equal(before[name]) for name, value in step.model.named_parameters() if value.ndim == 2)
