"""What the rows of a grid say: by scipy and by hand; contrasts fixed beforehand."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from modeling_leaner.training import train
from modeling_leaner.training.experiments import statistics
from modeling_leaner.training.experiments.grid import Run, load_grid
from modeling_leaner.training.experiments.grid_results import GridResults, RowsByRun
from modeling_leaner.training.records import ResultRow
from modeling_leaner.training.running import results
from scipy import stats
from training_data import labelled, write_shape

from modeling_leaner import LeanBERTForSequenceClassification
from modeling_leaner.inspection import head_condition_numbers


BASE, LEAN, SHALLOW = "bert/mini", "bert/lean-mini", "bert/shallow-mini"
GRID = {
    "recipe": "listops-short",
    "shapes": [BASE, SHALLOW, LEAN],
    "baseline": BASE,
    "seeds": [1, 2, 3, 4],
    "learning_rates": [5e-4, 1e-3],
    "tuning": {"seeds": [0, 9], "holdout": 50, "extend": 0, "overrides": {"max_steps": 100}},
    "overrides": {"max_steps": 400, "warmup_steps": 40},
}
ONE_RATE = {"tuning": None, "learning_rates": [1e-3]}


def grid_of(folder: Path, **changes):
    """The grid with some keys replaced; None takes a key out."""
    values = {**GRID, "output_dir": str(folder), **changes}
    text = yaml.safe_dump({key: value for key, value in values.items() if value is not None})
    (folder / "my.yaml").write_text(text)
    return load_grid(folder / "my.yaml")


def summarised(grid, rows):
    return statistics.summarise(GridResults(grid, rows))


def cells(grid, rows):
    return {cell["shape"]: cell for cell in summarised(grid, rows)["shapes"]}


def row(value: float | None, run: Run | None = None, **changes) -> ResultRow:
    known = {"status": "failed"} if value is None else {"status": "finished", "metric": "accuracy", "value": value}
    shared = {"higher_is_better": 1, "chance": 0.15, "rows": 400}
    return ResultRow.from_cells({**(run._asdict() if run else {}), **known, **shared, **changes})


def tuned(values: dict[tuple[str, float], list[float | None]]) -> RowsByRun:
    """Rows of the tuning seeds 0 and 9."""
    found = [(Run("tune", shape, seed, rate), value) for (shape, rate), pair in values.items()
             for seed, value in zip((0, 9), pair)]  # fmt: skip
    return {run: row(value, run) for run, value in found}


def reported(values: dict[str, list[float | None]], rate: float = 1e-3) -> RowsByRun:
    found = [(Run("report", shape, seed, rate), value) for shape, each in values.items()
             for seed, value in enumerate(each, 1)]  # fmt: skip
    return {run: row(value, run) for run, value in found}


# Pairs


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_pairs_by_scipy(higher_is_better):
    random = np.random.default_rng(0)
    base = random.normal(0.8, 0.02, 8)
    values = base + random.normal(-0.004, 0.006, 8)
    found = statistics.paired_statistics(values, base, 0.01, higher_is_better)
    expected = stats.ttest_rel(values, base)
    assert found["pairs"] == 8 and found["difference"] == pytest.approx((values - base).mean())
    assert found["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert found["interval"] == pytest.approx([*expected.confidence_interval(0.95)], rel=1e-9)
    loss = base - values if higher_is_better else values - base
    by_scipy = stats.ttest_1samp(loss, 0.01, alternative="less").pvalue
    assert found["p_non_inferiority"] == pytest.approx(by_scipy, rel=1e-9)


@pytest.mark.parametrize("shift, p, p_non_inferiority", [(0.0, 1, 0), (-0.02, 0, 1), (-0.005, 0, 0)])
def test_differences_without_spread(shift, p, p_non_inferiority):
    base = [0.7, 0.1, 90.0, 3.3]  # their differences differ by rounding
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = statistics.paired_statistics([value + shift for value in base], base, 0.01)
    assert (found["p"], found["p_non_inferiority"]) == pytest.approx((p, p_non_inferiority), abs=1e-6)
    assert found["interval"] == pytest.approx([shift, shift], abs=1e-9)


LOSS = {"metric": "loss", "higher_is_better": 0, "chance": 6.0}


@pytest.mark.parametrize(
    "values, changes, guess, expected",
    [
        ([0.5, 0.52], {}, None, True),
        ([0.15, 0.16], {"chance": 0.1, "rows": 100}, None, False),  # within three binomial standard errors
        ([0.1, 0.9], {"rows": 10_000}, None, False),  # the seeds disagree
        ([6.2, 6.3], LOSS, None, False),
        ([5.99], LOSS, None, None),
        ([0.5], {"chance": None}, None, None),
        ([0.5, 0.52], {"rows": 100}, 0.45, False),  # the best of guesses must be beaten
        ([5.0, 5.1], LOSS, 4.8, False),
        ([0.5, 0.52], {"chance": None}, 0.2, True),
    ],
)
def test_what_counts_as_learned(values, changes, guess, expected):
    assert statistics.learned(statistics.frame([row(value, **changes) for value in values]), guess) is expected


# The tuning


def test_the_best_rate_is_that_of_the_mean_over_the_tuning_seeds(tmp_path):
    """One seed would have chosen otherwise; a lead within what seeds differ by is a tie, a clear one is none."""
    grid = grid_of(tmp_path)
    rows = tuned({(BASE, 5e-4): [0.50, 0.20], (BASE, 1e-3): [0.40, 0.38],
                  (SHALLOW, 5e-4): [0.30, 0.31], (SHALLOW, 1e-3): [0.40, 0.42],
                  (LEAN, 5e-4): [0.40, 0.41], (LEAN, 1e-3): [0.40, 0.42]})  # fmt: skip
    choices = GridResults(grid, rows).tuning.choices
    assert choices[BASE] == (1e-3, pytest.approx(0.04), pytest.approx(0.30))
    assert choices[SHALLOW] == (1e-3, pytest.approx(0.105), pytest.approx(0.02))
    found = cells(grid, rows)
    assert (found[LEAN]["tuning_lead"], found[LEAN]["tuning_spread"]) == pytest.approx((0.005, 0.02))
    assert found[LEAN]["notes"][-1].startswith("tie") and not any("tie" in note for note in found[SHALLOW]["notes"])


def test_what_the_choice_needs(tmp_path):
    """Every seed of a rate; of equal means the lower loss, then the lower rate; one seed has no spread."""
    grid = grid_of(tmp_path, shapes=[BASE])
    rows = tuned({(BASE, 5e-4): [0.3, 0.3], (BASE, 1e-3): [0.9, None]})
    assert GridResults(grid, rows).tuning.choices[BASE] == (5e-4, None, None)
    assert [run.seed for run in GridResults(grid, {}).tuning.due] == [0, 9, 0, 9]
    equal = tuned({(BASE, 5e-4): [0.3, 0.3], (BASE, 1e-3): [0.3, 0.3]})
    assert GridResults(grid, equal).tuning.best[BASE] == 5e-4
    for run in equal:
        equal[run].eval_loss = 1 / run.learning_rate
    assert GridResults(grid, equal).tuning.best[BASE] == 1e-3
    alone = grid_of(tmp_path, shapes=[BASE], tuning={**GRID["tuning"], "seeds": [9]})
    assert GridResults(alone, equal).tuning.choices[BASE] == (1e-3, 0.0, None)


# What the rows say


def test_contrasts_by_scipy(tmp_path, capsys):
    """Each paired, over the seeds that both have; p corrected together by Holm; the error by rows beside them."""
    pairs = [[LEAN, SHALLOW], [LEAN, BASE], [SHALLOW, BASE]]
    grid = grid_of(tmp_path, contrasts=pairs, **ONE_RATE)
    values = {BASE: [0.40, 0.42, 0.43, 0.39], SHALLOW: [0.41, 0.44, 0.43, None], LEAN: [0.45, 0.46, 0.48, 0.47]}
    found = summarised(grid, reported(values))
    first, second, third = found["contrasts"]
    assert [[each["shape"], each["minus"]] for each in found["contrasts"]] == pairs
    assert (first["pairs"], second["pairs"], third["pairs"]) == (3, 4, 3)
    expected = stats.ttest_rel(values[LEAN][:3], values[SHALLOW][:3])
    assert first["p"] == pytest.approx(expected.pvalue)
    assert first["interval"] == pytest.approx([*expected.confidence_interval()])
    raw = [stats.ttest_rel(values[a][:n], values[b][:n]).pvalue for (a, b), n in zip(pairs, (3, 4, 3))]
    low, middle, high = sorted(raw)
    steps = [3 * low, max(3 * low, 2 * middle), max(3 * low, 2 * middle, high)]
    corrected = [each["p_corrected"] for each in found["contrasts"]]
    assert corrected == pytest.approx([steps[sorted(raw).index(p)] for p in raw])
    statistics.show(found)
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if f"{LEAN} {SHALLOW}" in line)
    assert "0.03667" in line


# κ


def test_conditioning_is_not_of_the_rounding_of_bfloat16(tmp_path, monkeypatch):
    """κ after a bfloat16 training is that of the saved float32 weights, without autocast."""
    seen = []

    def kept(model, **inputs):
        seen.append((inputs, head_condition_numbers(model, **inputs)))
        return seen[-1][1]

    monkeypatch.setattr(results, "head_condition_numbers", kept)
    labelled(64, 0, ("sentence",), 2).to_parquet(tmp_path / "train.parquet")
    words = f"""--task sequence-classification --tokenizer wordpiece --shape {write_shape("bert", tmp_path)}
    --data_files train={tmp_path / "train.parquet"} --holdout 16 --max_steps 3 --per_device_train_batch_size 8
    --learning_rate 1e-2 --eval_strategy no --save_strategy no --output_dir {tmp_path / "run"} --use_cpu true
    --attn_implementation eager --disable_tqdm true --preprocessing_workers 1 --bf16 true"""
    train.main(words.split())
    found = json.loads((tmp_path / "run" / "results.json").read_text())["condition"]
    model = LeanBERTForSequenceClassification.from_pretrained(tmp_path / "run", attn_implementation="eager")
    assert found["end"] == pytest.approx(head_condition_numbers(model, **seen[-1][0]), rel=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = head_condition_numbers(model, **seen[-1][0])
    assert found["end"] != pytest.approx(rounded, rel=1e-2) and found["start"] == pytest.approx(seen[0][1])
