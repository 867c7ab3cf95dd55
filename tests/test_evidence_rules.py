"""What a grid must hold to before it is believed: a sound tuning, contrasts fixed beforehand, failures counted."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from command import leaner
from modeling_leaner.training import train
from modeling_leaner.training.experiments import summary, summary_tables
from modeling_leaner.training.experiments.grid import GridError, load_grid
from modeling_leaner.training.experiments.grid_results import GridResults
from modeling_leaner.training.experiments.rows import RowsByRun, Run
from modeling_leaner.training.experiments.soundness import check_tuning
from modeling_leaner.training.experiments.tuning import tune
from modeling_leaner.training.records import CellSummary, ResultRow
from modeling_leaner.training.running import results
from scipy import stats
from training_data import labelled, write_shape

from modeling_leaner import LeanBERTForSequenceClassification
from modeling_leaner.conditioning import head_condition_numbers


BASE, LEAN, SHALLOW = "bert/mini", "bert/lean-mini", "bert/shallow-mini"
SOUND = {
    "recipe": "listops-short",
    "shapes": [BASE, SHALLOW, LEAN],
    "baseline": BASE,
    "seeds": [1, 2, 3, 4],
    "learning_rates": [5e-4, 1e-3],
    "tuning": {"seeds": [0, 9], "holdout": 50, "extend": 0, "overrides": {"max_steps": 100}},
    "overrides": {"max_steps": 400, "warmup_steps": 40},
}


def grid_of(folder: Path, **changes):
    """The grid with some keys replaced; None takes a key out."""
    values = {**SOUND, "output_dir": str(folder), **changes}
    text = yaml.safe_dump({key: value for key, value in values.items() if value is not None})
    (folder / "my.yaml").write_text(text)
    return load_grid(folder / "my.yaml")


def summarised(grid, rows):
    return summary.summarise(GridResults(grid, rows))


def row(run: Run, value: float | None, **cells):
    known = {"status": "failed"} if value is None else {"status": "finished", "metric": "accuracy", "value": value}
    return ResultRow.from_cells(
        {**run._asdict(), **known, "higher_is_better": 1, "chance": 0.15, "rows": 400, **cells}
    )


def tuned(values: dict[tuple[str, float], list[float | None]], **cells) -> RowsByRun:
    """Rows of the tuning seeds 0 and 9."""
    found = [(Run("tune", shape, seed, rate), value) for (shape, rate), pair in values.items()
             for seed, value in zip((0, 9), pair)]  # fmt: skip
    return {run: row(run, value, **cells) for run, value in found}


def reported(values: dict[str, list[float | None]], rate: float = 1e-3) -> RowsByRun:
    found = [(Run("report", shape, seed, rate), value) for shape, each in values.items()
             for seed, value in zip((1, 2, 3, 4), each)]  # fmt: skip
    return {run: row(run, value) for run, value in found}


# The tuning


def test_the_best_rate_is_that_of_the_mean_over_the_tuning_seeds(tmp_path, capsys):
    """One seed would have chosen otherwise; a lead within what seeds differ by is a tie, a clear one is none."""
    grid = grid_of(tmp_path)
    rows = tuned({(BASE, 5e-4): [0.50, 0.20], (BASE, 1e-3): [0.40, 0.38],
                  (SHALLOW, 5e-4): [0.30, 0.31], (SHALLOW, 1e-3): [0.40, 0.42],
                  (LEAN, 5e-4): [0.40, 0.41], (LEAN, 1e-3): [0.40, 0.42]})  # fmt: skip
    choices = tune(grid, rows).choices
    assert choices[BASE] == (1e-3, pytest.approx(0.04), pytest.approx(0.30)) and choices[BASE].tie
    assert choices[SHALLOW] == (1e-3, pytest.approx(0.105), pytest.approx(0.02)) and not choices[SHALLOW].tie
    assert choices[LEAN] == (1e-3, pytest.approx(0.005), pytest.approx(0.02)) and choices[LEAN].tie
    cells = {cell.shape: cell for cell in summarised(grid, rows).shapes}
    assert (cells[LEAN].tuning_lead, cells[LEAN].tuning_spread) == pytest.approx((0.005, 0.02))
    tie = "tie: the best learning rate leads by no more than the tuning seeds differ"
    assert tie in cells[LEAN].notes and tie not in cells[SHALLOW].notes
    summary_tables.show(summarised(grid, rows))
    said = capsys.readouterr().out
    assert f"{LEAN}: learning rate 0.001 leads by 0.0050, the tuning seeds differ by 0.0200\n{LEAN}: " in said


@pytest.mark.parametrize(
    "verdict, learned, shown",
    [
        ("baseline", False, "baseline, not learned"),
        ("baseline", None, "baseline"),
        ("baseline", True, "baseline"),
        ("no verdict", True, "no verdict"),  # since the baseline has not learned, whatever the shape itself has
        ("no verdict", False, "no verdict"),
    ],
)
def test_not_learned_is_said_of_the_baseline(verdict, learned, shown):
    cell = CellSummary.model_construct(verdict=verdict, learned=learned)
    assert summary_tables.verdict_of(cell) == shown


def test_what_the_choice_needs(tmp_path):
    """Every seed of a rate; of equal means the lower loss, then the lower rate; one seed has no spread."""
    grid = grid_of(tmp_path, shapes=[BASE])
    rows = tuned({(BASE, 5e-4): [0.3, 0.3], (BASE, 1e-3): [0.9, None]})
    assert tune(grid, rows).choices[BASE] == (5e-4, None, None) and not tune(grid, rows).choices[BASE].tie
    assert [run.seed for run in tune(grid, {}).due] == [0, 9, 0, 9]
    equal = tuned({(BASE, 5e-4): [0.3, 0.3], (BASE, 1e-3): [0.3, 0.3]})
    assert tune(grid, equal).best[BASE] == 5e-4
    for run in equal:
        equal[run].eval_loss = 1 / run.learning_rate
    assert tune(grid, equal).best[BASE] == 1e-3
    alone = grid_of(tmp_path, shapes=[BASE], tuning={**SOUND["tuning"], "seeds": [9]}, unsound_tuning="one seed")
    assert tune(alone, equal).choices[BASE] == (1e-3, 0.0, None)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, None),
        ({"tuning": {"seed": 0, "holdout": 5, "overrides": {"max_steps": 100}}},
         "tuning.seeds: expected two seeds or more, got [0]"),
        ({"learning_rates": [5e-4, 1e-3, 3e-3]},
         "learning_rates: expected a factor of 2 or less, got 0.001 and 0.003"),
        ({"learning_rates": [1e-4, 2e-4, 4e-4]}, None),
        ({"tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": 99}}},
         "tuning.overrides: max_steps: expected a quarter or more of the 400 of the reported runs, got 99"),
        ({"overrides": {"max_steps": 400}}, "warmup_steps: expected steps, the same in tuning, got 0.1"),
        ({"overrides": {"max_steps": 400, "warmup_steps": 0}}, None),
        ({"tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": 100, "warmup_steps": 10}}},
         "tuning.overrides: warmup_steps is 10.0, and 40.0 in the reported runs"),
        ({"tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": 100, "lr_scheduler_type": "linear"}}},
         "tuning.overrides: lr_scheduler_type is linear, and cosine in the reported runs"),
        ({"overrides": {"max_steps": 400, "warmup_steps": 40, "lr_scheduler_type": "warmup_stable_decay",
                        "lr_scheduler_kwargs": {"num_decay_steps": 80}},
          "tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": 100, "lr_scheduler_kwargs":
                                                                  {"num_decay_steps": 20}}}},
         "tuning.overrides: lr_scheduler_kwargs is {'num_decay_steps': 20}, and {'num_decay_steps': 80} in the "
         "reported runs"),
        ({"tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": -1, "num_train_epochs": 1}}},
         "max_steps: expected in overrides and tuning.overrides, or in neither"),
        ({"overrides": {"num_train_epochs": 2, "warmup_steps": 9},
          "tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"max_steps": 100}}},
         "max_steps: expected in overrides and tuning.overrides, or in neither"),
        ({"overrides": {"num_train_epochs": 2, "warmup_steps": 9},
          "tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"num_train_epochs": 0.4}}},
         "tuning.overrides: num_train_epochs: expected a quarter or more of the 2 of the reported runs, got 0.4"),
        ({"overrides": {"num_train_epochs": 2, "warmup_steps": 9},
          "tuning": {"seeds": [0, 9], "holdout": 5, "overrides": {"num_train_epochs": 0.5}}}, None),
        ({"learning_rates": [1e-3], "tuning": None, "overrides": None}, None),
        ({"tuning": {"seed": 0, "holdout": 5}, "unsound_tuning": "it was so"}, None),
    ],
)  # fmt: skip
def test_an_unsound_tuning_is_refused(tmp_path, changes, message):
    grid = grid_of(tmp_path, **changes)
    if message is None:
        check_tuning(grid)
        return
    with pytest.raises(GridError) as error:
        check_tuning(grid)
    assert str(error.value) == f"{message}; or say in unsound_tuning why the rates may not be the best"


@pytest.mark.parametrize("words", [[], ["--summary"]])
def test_the_sweep_refuses_it(tmp_path, words):

    grid_of(tmp_path, learning_rates=[1e-3, 4e-3])
    with pytest.raises(SystemExit, match="learning_rates: expected a factor of 2 or less"):
        leaner("sweep", tmp_path / "my.yaml", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]


def test_the_reason_may_be_added_to_a_grid_that_has_run(tmp_path):
    """And one that is left out takes nothing from the rows."""
    from modeling_leaner.training.experiments.grid import check_unchanged, write_grid

    changes = {"tuning": {"seed": 0, "holdout": 5}}
    before, now = grid_of(tmp_path, **changes), grid_of(tmp_path, **changes, unsound_tuning="one seed")
    write_grid(before)
    rows = reported({BASE: [0.5]})
    check_unchanged(now, rows.values())
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**SOUND, **changes}))  # as it was written by earlier releases
    check_unchanged(now, rows.values())


# What the rows say


def test_contrasts_by_scipy(tmp_path, capsys):
    """Each paired, over the seeds that both have; p corrected together by Holm; the error by rows beside them."""
    pairs = [[LEAN, SHALLOW], [LEAN, BASE], [SHALLOW, BASE]]
    grid = grid_of(tmp_path, contrasts=pairs, tuning=None, learning_rates=[1e-3])
    values = {BASE: [0.40, 0.42, 0.43, 0.39], SHALLOW: [0.41, 0.44, 0.43, None], LEAN: [0.45, 0.46, 0.48, 0.47]}
    found = summarised(grid, reported(values))
    first, second, third = found.contrasts
    assert [[each.shape, each.minus] for each in found.contrasts] == pairs
    expected = stats.ttest_rel(values[LEAN][:3], values[SHALLOW][:3])
    assert (first.pairs, second.pairs, third.pairs) == (3, 4, 3)
    assert first.p == pytest.approx(expected.pvalue)
    assert first.interval == pytest.approx([*expected.confidence_interval()])
    assert first.difference == pytest.approx(sum(values[LEAN][:3]) / 3 - sum(values[SHALLOW][:3]) / 3)
    raw = [stats.ttest_rel(values[a][:n], values[b][:n]).pvalue for (a, b), n in zip(pairs, (3, 4, 3))]
    low, middle, high = sorted(raw)
    steps = [3 * low, max(3 * low, 2 * middle), max(3 * low, 2 * middle, high)]
    assert [each.p_corrected for each in found.contrasts] == pytest.approx([steps[sorted(raw).index(p)] for p in raw])
    means = [sum(values[shape][:3]) / 3 for shape in (LEAN, SHALLOW)]
    assert first.row_error == pytest.approx(sum(mean * (1 - mean) / 400 for mean in means) ** 0.5)
    summary_tables.show(found)
    said = capsys.readouterr().out
    assert f"{LEAN} − {SHALLOW}: +0.0367, 95 % interval" in said and "corrected" in said
    assert f"choice of rows at most {first.row_error:.4f}" in said
    assert json.loads(said.splitlines()[-1])["contrasts"] == [each.document() for each in found.contrasts]


def test_contrasts_of_few_runs(tmp_path):
    grid = grid_of(tmp_path, contrasts=[[LEAN, BASE], [SHALLOW, BASE]], tuning=None, learning_rates=[1e-3])
    found = summarised(grid, reported({BASE: [0.4, 0.5], LEAN: [0.3]})).contrasts
    assert [(each.pairs, each.p, each.p_corrected) for each in found] == [(1, None, None), (0, None, None)]
    assert found[1].difference is found[1].row_error is None
    assert all("–" in summary_tables.contrast_line(each) for each in found)


def test_a_contrast_that_has_not_run_counts_in_the_correction(tmp_path):
    """What was fixed beforehand is corrected together, however much of it there is."""
    grid = grid_of(tmp_path, contrasts=[[LEAN, BASE], [SHALLOW, BASE]], tuning=None, learning_rates=[1e-3])
    found = summarised(grid, reported({BASE: [0.40, 0.41, 0.43], LEAN: [0.45, 0.47, 0.48]})).contrasts
    assert found[0].p_corrected == pytest.approx(2 * found[0].p) and found[1].p_corrected is None


def test_failures_are_counted_and_the_median_is_beside_the_mean(tmp_path):
    """A failure is a run that broke off, or one worse than the best simple guess; without guesses, than `chance`."""
    grid = grid_of(tmp_path, tuning=None, learning_rates=[1e-3])
    rows = reported({BASE: [0.40, 0.10, 0.376, 0.377], SHALLOW: [0.4, None, 0.5, 0.6], LEAN: [0.45] * 4})

    def cells():
        return {cell.shape: cell for cell in summarised(grid, rows).shapes}

    assert [cells()[shape].failure_rate for shape in (BASE, SHALLOW, LEAN)] == [0.25, 0.25, 0.0]
    (tmp_path / "guesses.json").write_text('[{"name": "a", "value": 0.2}, {"name": "bag of tokens", "value": 0.377}]')
    assert [cells()[shape].failure_rate for shape in (BASE, SHALLOW, LEAN)] == [0.5, 0.25, 0.0]
    assert cells()[BASE].median == pytest.approx(0.3765) and cells()[BASE].mean == pytest.approx(0.31325)
    for each in rows.values():
        each.chance = None
    assert cells()[BASE].failure_rate == 0.5
    (tmp_path / "guesses.json").unlink()
    assert cells()[BASE].failure_rate is None
    assert summary.failure_rate([0.2], [], 0) is None
    (tmp_path / "guesses.json").write_text("{}")
    with pytest.raises(ValueError, match="guesses.json: expected a list of name and value"):
        summarised(grid, rows)
    lower = [ResultRow.from_cells({"value": value, "chance": 6.5, "higher_is_better": 0}) for value in (6.4, 6.6)]
    (tmp_path / "guesses.json").unlink()
    assert summary.failure_rate([], lower, 0) == 0.5


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
    --learning_rate 1e-2 --eval_strategy no --save_strategy no --output_dir {tmp_path / "run"} --hardware cpu
    --attn_implementation eager --disable_tqdm true --preprocessing_workers 1 --bf16 true"""
    train.main(words.split())
    found = json.loads((tmp_path / "run" / "results.json").read_text())["condition"]
    model = LeanBERTForSequenceClassification.from_pretrained(tmp_path / "run", attn_implementation="eager")
    assert found["end"] == pytest.approx(head_condition_numbers(model, **seen[-1][0]), rel=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = head_condition_numbers(model, **seen[-1][0])
    assert found["end"] != pytest.approx(rounded, rel=1e-2) and found["start"] == pytest.approx(seen[0][1])
