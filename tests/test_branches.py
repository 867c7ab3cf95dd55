"""One long run that ends at several budgets: a branch is a run of its own, to the last bit of its weights."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from command import leaner
from modeling_leaner.training import train
from modeling_leaner.training.experiments import branches, runs, sweep
from modeling_leaner.training.experiments.grid import Run, load_grid, reported
from modeling_leaner.training.experiments.grid_results import load_results
from modeling_leaner.training.experiments.runs import options_of_run, result_row
from modeling_leaner.training.experiments.statistics import summarise
from modeling_leaner.training.running.run_folder import whole_checkpoints
from training_data import documents, write_shape

from modeling_leaner.shapes import load_config


STEP = 8 * 32  # tokens of a step
FIRST, SECOND = 10 * STEP, 20 * STEP  # their decay begins at steps 8 and 16
OVERRIDES = {
    "tokenizer": "byte-bpe",
    "max_length": 32,
    "max_steps": 16,  # the last branch begins where the trunk ends
    "warmup_steps": 3,
    "lr_scheduler_type": "warmup_stable_decay",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "dropout": 0.1,
    "eval_strategy": "no",
    "save_strategy": "steps",
    "save_steps": 5,
    "save_total_limit": 1,
    "logging_steps": 1,
    "disable_tqdm": True,
    "use_cpu": True,
    "preprocessing_workers": 1,
}


def write_grid(**changes):
    """grid.yaml with some keys replaced; None takes a key out."""
    values = {"recipe": "text.yaml", "shapes": ["gpt.json"], "baseline": "gpt.json", "seeds": [1, 2]}
    values |= {"learning_rates": [3e-3], "branches": [FIRST, SECOND], "output_dir": "out", "overrides": OVERRIDES}
    kept = {key: value for key, value in {**values, **changes}.items() if value is not None}
    Path("grid.yaml").write_text(yaml.safe_dump(kept))


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """Writes a grid file over one small shape, with documents to train on; returns its Grid."""
    monkeypatch.chdir(tmp_path)
    for split, count, seed in (("train", 24, 0), ("validation", 6, 1)):
        documents(count, seed).to_parquet(f"{split}.parquet")
    write_shape("gpt", Path())
    recipe = {"task": "causal-lm", "data_files": {name: f"{name}.parquet" for name in ("train", "validation")}}
    Path("text.yaml").write_text(yaml.safe_dump(recipe))

    def grid(**changes):
        write_grid(**changes)
        return load_grid(Path("grid.yaml"))

    return grid


def trained(grid, run, *words):
    """One run of the grid, in this process."""
    run.folder(grid).parent.mkdir(parents=True, exist_ok=True)
    train.main([*runs.command(grid, run)[len(runs.TRAIN_COMMAND) :], *words])
    return run.folder(grid)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


# Weights


@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
def test_a_branch_ends_with_the_weights_of_a_whole_run(workshop):
    """Bit for bit, of either branch; also where a branch is killed on its way, or before its folder was whole."""
    grid = workshop()
    trunk = Run("trunk", "gpt.json", 1, 3e-3)
    folder = trained(grid, trunk)
    assert [path.name for path in whole_checkpoints(folder)] == ["checkpoint-8", "checkpoint-15", "checkpoint-16"]
    rates = {}
    for tokens, steps in ((FIRST, 10), (SECOND, 20)):
        branch = reported(grid, "gpt.json", 1, 3e-3, tokens)
        folder_of_branch = branch.folder(grid)
        half = folder_of_branch.with_name(f".{folder_of_branch.name}.begun")
        (half / "checkpoint-8").mkdir(parents=True)  # what a killed sweep leaves
        begun = trained(grid, branch)
        assert not half.exists()
        asked = options_of_run(grid, branch, branch.shape)
        asked[asked.index("--output_dir") + 1] = f"whole-{tokens}"
        train.main([grid.recipe, *asked])
        whole = Path(f"whole-{tokens}")
        assert weights(begun) == weights(whole) != weights(folder)
        assert json.loads((begun / "results.json").read_text())["train"]["steps"] == steps
        settings = [yaml.safe_load((each / "recipe.yaml").read_text()) for each in (begun, whole)]
        assert settings[0] == settings[1]
        lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
        rates[tokens] = [line["learning_rate"] for line in lines if "learning_rate" in line]
    stable = rates[SECOND][3:16]
    assert set(stable) == {3e-3} and rates[FIRST][:9] == rates[SECOND][:9] and rates[FIRST][9] < 3e-3

    branch = reported(grid, "gpt.json", 1, 3e-3, SECOND)
    kept = weights(branch.folder(grid))
    for name in ("results.json", "model.safetensors"):
        (branch.folder(grid) / name).unlink()
    last = whole_checkpoints(branch.folder(grid))[-1]
    shutil.rmtree(last)
    shutil.copytree(folder / "checkpoint-16", branch.folder(grid) / "checkpoint-16")
    assert weights(trained(grid, branch)) == kept


@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
def test_a_row_of_a_branch(workshop):
    """Tokens and FLOPs; seconds are the trunk's until there and its own."""
    grid = workshop()
    trunk = Run("trunk", "gpt.json", 1, 3e-3)
    branch = reported(grid, "gpt.json", 1, 3e-3, FIRST)
    trained(grid, trunk), trained(grid, branch)
    rows = {run: result_row(grid, run) for run in (trunk, branch)}
    row, flops = rows[branch], branches.step_of(grid, "gpt.json").flops
    assert (row.branch, row.steps, row.tokens, row.training_flops) == (FIRST, 10, FIRST, 10 * flops)
    assert row.tokens_per_parameter == FIRST / row.parameters
    assert (rows[trunk].branch, rows[trunk].tokens) == (None, 16 * STEP)
    before = json.loads((trunk.folder(grid) / "checkpoint-8" / "seconds.json").read_text())
    assert row.seconds > before > 0
    scores = json.loads((branch.folder(grid) / "results.json").read_text())["metrics"]
    assert row.loss_other == scores["eval_loss_other"]
    assert row.loss_repeated_bigram == scores.get("eval_loss_repeated_bigram")


def test_flops_of_a_step(workshop):
    """Those of the configuration, for whole rows; none of a task whose rows differ in length."""
    grid = workshop()
    config = load_config("gpt.json")
    assert branches.step_of(grid, "gpt.json") == (STEP, 8 * config.count_flops(32).training_step, 32)
    pictures = workshop(recipe="digits", shapes=["vit/nano"], baseline="vit/nano", overrides=None, branches=None)
    length = load_config("vit/nano").count_flops().length
    assert branches.step_of(pictures, "vit/nano").tokens % length == 0
    texts = workshop(recipe="sst2", shapes=["bert/nano"], baseline="bert/nano", overrides=None, branches=None)
    assert branches.step_of(texts, "bert/nano") is None


# The sweep


STUB = """
import json, os, sys
words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
def option(name):
    place = words.index("--" + name) + 1
    end = next((i for i in range(place, len(words)) if words[i].startswith("--")), len(words))
    return words[place:end]
folder, seed = option("output_dir")[0], int(option("seed")[0])
name, wanted = os.path.basename(folder), json.loads(os.environ["STUB"])
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps({"name": name, "words": words}) + chr(10))
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "started.json"), "w").write("{}")
starts = [int(step) for step in option("checkpoint_steps")] if "--checkpoint_steps" in words else []
for step in [step for step in starts if step <= wanted.get("until", {}).get(name, 10**9)]:
    place = os.path.join(folder, f"checkpoint-{step}")
    os.makedirs(place, exist_ok=True)
    text = f"{name} {step} {wanted.get('salt', '')}"
    open(os.path.join(place, "model.safetensors"), "w").write(text)
    json.dump({"model.safetensors": len(text)}, open(os.path.join(place, "complete.json"), "w"))
if name in wanted.get("fail", []):
    sys.exit("the loss is not finite")
steps = int(option("max_steps")[0])
results = {"main_metric": "loss", "higher_is_better": False, "seed": seed, "parameters": 1000, "rows": 50}
results |= {"learning_rate": float(option("learning_rate")[0]), "chance": {"value": 9.0}, "environment": {}}
results |= {"metrics": {"eval_loss": 5 - steps / 100 + seed / 1000}, "train": {"steps": steps, "seconds": steps / 2}}
json.dump(results, open(os.path.join(folder, "results.json"), "w"))
"""


@pytest.fixture
def bench(workshop, tmp_path, monkeypatch):
    """The sweep with a script in the place of the training; returns the names of what it started."""
    Path("stub.py").write_text(STUB)
    monkeypatch.setattr(runs, "TRAIN_COMMAND", [sys.executable, "-S", "stub.py"])
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.005)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(sweep, "show", lambda _: None)

    def run(*words, wanted=None, **changes):
        monkeypatch.setenv("STUB", json.dumps(wanted or {}))
        write_grid(**changes)
        Path("calls").unlink(missing_ok=True)
        leaner("sweep", "grid.yaml", *words)
        return calls()

    return run


def calls():
    lines = Path("calls").read_text().splitlines() if Path("calls").exists() else []
    return [json.loads(line)["name"] for line in lines]


def name(phase, seed, tokens=None):
    return f"{phase}-gpt-seed{seed}-lr0.003" + (f"-tokens{tokens}" if tokens else "")


def all_names(seed):
    return [name("trunk", seed), name("report", seed, FIRST), name("report", seed, SECOND)]


def rows():
    with open("out/results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_trunk_then_its_branches_seed_by_seed(bench, capsys):
    assert bench() == all_names(1) + all_names(2)
    assert [(row["phase"], row["seed"], row["branch"], row["tokens"]) for row in rows()] == [
        *(("trunk", seed, "", str(16 * STEP)) for seed in "12"),
        *(("report", seed, str(tokens), str(tokens)) for seed in "12" for tokens in (FIRST, SECOND)),
    ]
    assert bench() == [] and "2,560 tokens: loss" in capsys.readouterr().err
    summary = json.loads(Path("out/summary.json").read_text())
    assert [curve["branch"] for curve in summary["curves"]] == [FIRST, SECOND]
    first, second = ({cell["shape"]: cell for cell in curve["shapes"]}["gpt.json"] for curve in summary["curves"])
    assert first["values"] == pytest.approx({"1": 4.901, "2": 4.902}) and second["mean"] == pytest.approx(4.8015)
    assert summary["shapes"][0]["mean"] == second["mean"] and summary["shapes"][0]["n"] == 2
    assert first["seconds"] == 5.0


def test_lost_rows_and_killed_sweeps(bench):
    bench()
    kept = Path("out/results.csv").read_text()
    lines = kept.splitlines(keepends=True)
    Path("out/results.csv").write_text("".join(line for line in lines if not line.startswith("report")))
    shutil.rmtree(f"out/runs/{name('report', 1, FIRST)}")
    Path(f"out/runs/{name('report', 2, FIRST)}/results.json").unlink()
    assert bench() == [name("report", 1, FIRST), name("report", 2, FIRST)]
    assert Path("out/results.csv").read_text() == kept


def test_a_trunk_that_fails_has_the_branches_that_came_before(bench):
    """The later ones have failed with it, and the seed is missing there; both are tried again."""
    trunk = name("trunk", 1)
    with pytest.raises(SystemExit):
        bench(wanted={"fail": [trunk], "until": {trunk: 8}})
    assert calls() == [trunk, name("report", 1, FIRST), *all_names(2)]
    found = load_results(load_grid(Path("grid.yaml")))
    found = summarise(found)
    cells = [curve["shapes"][0] for curve in found["curves"]]
    assert [(list(cell["values"]), cell["failed"]) for cell in cells] == [(["1", "2"], []), (["2"], [1])]
    assert found["shapes"][0]["notes"] == ["failed seeds: 1"]
    assert bench() == [trunk, name("report", 1, SECOND)]


def test_seeds_by_shape(bench):
    """Fewer for one shape; its own are complete."""
    Path("wide").mkdir()
    write_shape("gpt", Path("wide"), intermediate_size=32)
    changes = {"shapes": ["gpt.json", "wide/gpt.json"], "seeds_of": {"wide/gpt.json": [2]}}
    started = bench(**changes)
    assert [each for each in started if "wide" in each] == [each.replace("gpt", "wide-gpt") for each in all_names(2)]
    assert len(bench(**{**changes, "seeds_of": None})) == 3


def test_tuning_at_a_branch(workshop):
    """Whole runs by the schedule of that branch."""
    grid = workshop(
        learning_rates=[1e-3, 2e-3], tuning={"seeds": [0, 9], "holdout": 2, "tokens": FIRST}, shapes=["gpt.json"]
    )
    tuned = options_of_run(grid, Run("tune", "gpt.json", 9, 1e-3), "gpt.json")
    asked = options_of_run(grid, reported(grid, "gpt.json", 1, 1e-3, FIRST), "gpt.json")
    for key in ("--max_steps", "--warmup_steps", "--lr_scheduler_type"):
        (setting,) = [word for word in asked if word.startswith(f"{key}=")]
        assert setting in tuned
    for options in (tuned, asked):
        (setting,) = [word for word in options if word.startswith("--lr_scheduler_kwargs=")]
        assert json.loads(setting.partition("=")[2]) == {"num_decay_steps": 2}
    assert "--checkpoint_steps" not in tuned + asked and "--tuning_holdout" in tuned


# What is refused


def changed(**values):
    return {"overrides": {key: value for key, value in {**OVERRIDES, **values}.items() if value is not None}}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"branches": [FIRST, 25 * STEP]}, "branches: 6400: .* decay begins .at step 20. between "),
        (changed(lr_scheduler_type="cosine"), "branches: expected lr_scheduler_type: .* got cosine"),
        ({"branches": [FIRST + 1]}, "branches: 2561: expected multiples of 1,280 tokens, .*nearest: 2560"),
        (
            {
                "recipe": "sst2",
                "shapes": ["bert/nano"],
                "baseline": "bert/nano",
                "overrides": {"lr_scheduler_type": "warmup_stable_decay", "max_steps": 9, "warmup_steps": 1},
            },
            "branches: expected .* a task whose rows are all as long",
        ),
    ],
)
def test_refused_branches(bench, changes, message):
    with pytest.raises(SystemExit, match=f"leaner sweep: grid.yaml: .*{message}"):
        bench(**changes)
    assert calls() == [] and not Path("out").exists()
