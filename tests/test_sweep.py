"""`leaner sweep`, with a script of a few milliseconds in the place of the training."""

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
import yaml
from command import leaner
from filelock import lock_descriptor
from modeling_leaner.training.data.sources import load_training
from modeling_leaner.training.experiments import runs, sweep
from modeling_leaner.training.experiments.grid import Run, load_grid
from modeling_leaner.training.experiments.grid_results import read_rows
from modeling_leaner.training.settings import RecipeArguments


# Accuracy falls with the distance from the shape's best rate, and differs by seed; STUB holds what a test wants.
STUB = """
import json, math, os, sys, time
words, options = sys.argv[1:], {}
for word in words[1:]:
    if word.startswith("--"):
        key, *value = word[2:].split("=", 1)
        options[key] = values = value
    else:
        values.append(word)
shape, seed, rate, folder = (options[key][0] for key in ("shape", "seed", "learning_rate", "output_dir"))
wanted, name = json.loads(os.environ["STUB"]), os.path.basename(folder)
with open(os.environ["CALLS"], "a") as calls:
    call = {"words": words, "options": options, "name": name, "start": time.time()}
    call |= {"device": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": os.environ.get("OMP_NUM_THREADS")}
    calls.write(json.dumps(call) + chr(10))
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "checkpoint"), "a").close()
try:
    print("hello from", name)
    time.sleep(wanted.get("sleep", {}).get(name, 0))
    end = time.time() + 60
    while len(open(os.environ["CALLS"]).readlines()) < wanted.get("until_calls", {}).get(name, 0):
        assert time.time() < end, "the runs that this one waits for never started"
        time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(0.2 + wanted.get("linger", {}).get(name, 0))  # in which a second interrupt would be fatal
    open(os.path.join(folder, "interrupted"), "a").write("x")
    sys.exit(130)
if name in wanted.get("fail", []):
    print("10%\\r20%\\rValueError: the loss is not finite", file=sys.stderr)
    sys.exit(1)
best = wanted.get("best", {}).get(shape, 1e-3)
accuracy = 0.9 - 0.1 * abs(math.log10(float(rate) / best)) - 0.001 * int(seed) ** 1.5 * len(shape)
loss = 1 - accuracy if name not in wanted.get("nan", []) else math.nan
accuracy = 0.5 if shape in wanted.get("same", []) else accuracy
results = {"task": "x", "shape": shape, "seed": int(seed), "learning_rate": float(rate), "main_metric": "accuracy"}
results |= {"higher_is_better": True, "metrics": {"eval_accuracy": accuracy, "eval_loss": loss}}
results |= {"parameters": 1000 if "lean" not in shape else 600, "rows": 500, "chance": {"value": 0.1}}
results["train"] = {"steps": 3, "seconds": 2.5, "items_per_second": 9.0, "peak_memory_bytes": 7, "loss": 1.0}
results["environment"] = {"git_commit": "1e10", "torch": "2.13.0", "python": "3.11.7"}
with open(os.path.join(folder, "results.json"), "w") as file:
    json.dump(results | wanted.get("results", {}), file)
"""
BASE, LEAN = "vit/tiny", "vit/lean-tiny"


class Bench:
    """A grid file in a folder of its own, and what the script was called with."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.patch, self.calls_file, self.processes = patch, folder / "calls.jsonl", []
        self.loaded: list[list[str]] = []  # the data files that the sweep itself has looked for; the script reads none
        self.grid = {
            "recipe": "digits",
            "shapes": [BASE, LEAN],
            "baseline": BASE,
            "seeds": [1, 2],
            "learning_rates": [3e-4, 1e-3, 3e-3],
            "tuning": {"seeds": [0], "holdout": 50, "overrides": {"max_steps": 30}},
            "overrides": {"max_steps": 60, "bf16": True, "label_names": ["a", "b"], "data_files": {"train": "x.csv"}},
            "output_dir": "out",
        }
        self.output = folder / "out"
        (folder / "stub.py").write_text(STUB)
        patch.chdir(folder)
        patch.setattr(runs, "TRAIN_COMMAND", [sys.executable, "-S", str(folder / "stub.py")])
        patch.setattr(sweep, "POLL_SECONDS", 0.005)
        patch.setattr(sweep, "load_training", self.load)
        patch.setenv("CALLS", str(self.calls_file))
        for name in ("CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"):
            patch.delenv(name, raising=False)
        self.want()

    def load(self, arguments: RecipeArguments) -> None:
        self.loaded.append(arguments.data_files)

    def want(self, **behaviour) -> None:
        self.patch.setenv("STUB", json.dumps(behaviour))

    def run(self, *words: str, **changes) -> None:
        """Runs the grid with some keys replaced; None takes a key out."""
        self.grid = {key: value for key, value in {**self.grid, **changes}.items() if value is not None}
        Path("grid.yaml").write_text(yaml.safe_dump(self.grid))
        leaner("sweep", "grid.yaml", *words)

    def calls(self) -> list[dict]:
        """What the script was called with since the last time this was asked."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def rows(self) -> list[dict[str, str]]:
        with (self.output / "results.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def summary(self) -> dict[str, dict]:
        return {row["shape"]: row for row in json.loads((self.output / "summary.json").read_text())["shapes"]}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    for process in bench.processes:
        process.kill()


def names(calls):
    return [call["name"] for call in calls]


# The phases


def test_each_shape_is_reported_at_its_own_best_rate(bench, capsys):
    bench.want(best={BASE: 1e-3, LEAN: 2.5e-3})
    bench.run(tuning={"seeds": [0], "holdout": 50, "extend": 0})
    report = [row for row in bench.rows() if row["phase"] == "report"]
    assert {(row["shape"], row["seed"], row["learning_rate"]) for row in report} == {
        *((BASE, seed, "0.001") for seed in "12"),
        *((LEAN, seed, "0.003") for seed in "12"),
    }
    assert [len(bench.summary()[shape]["notes"]) for shape in (LEAN, BASE)] == [1, 0]  # the edge of the grid
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "out/summary.json" and "{" not in printed.out
    assert "[tune 6/6]" in printed.err and "[report 4/4]" in printed.err


def test_a_loss_is_minimised(bench):
    """And one that is not finite is a failure, as a rate that did not finish."""
    bench.want(results={"main_metric": "loss", "higher_is_better": False}, nan=["tune-vit-tiny-seed0-lr0.003"])
    bench.run()
    assert {row["learning_rate"] for row in bench.rows() if row["phase"] == "report"} == {"0.001"}
    finished = [row for row in bench.rows() if row["status"] == "finished"]
    assert all(float(row["value"]) == float(row["eval_loss"]) for row in finished)
    assert [row["error"] for row in bench.rows() if row["status"] == "failed"] == ["loss is nan"]


def test_the_grid_grows_at_its_edges_for_all_shapes(bench):
    """The baseline's best is far below, the twin's far above; 3 values below are allowed, one is needed above."""
    bench.want(best={BASE: 1e-5, LEAN: 8e-3})
    bench.run(learning_rates=[1e-3, 2e-3, 5e-3], seeds=[1])
    tuned = {shape: [row for row in bench.rows() if row["phase"] == "tune" and row["shape"] == shape] for shape in
             (BASE, LEAN)}  # fmt: skip
    expected = [0.000125, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.0125, 0.03125]
    for rows in tuned.values():
        assert [float(row["learning_rate"]) for row in rows] == expected
    summary = json.loads((bench.output / "summary.json").read_text())
    assert summary["learning_rates"] == expected
    assert [row["learning_rate"] for row in summary["shapes"]] == [0.000125, 0.0125]
    assert [bool(row["notes"]) for row in summary["shapes"]] == [True, False]
    assert [row["phase"] for row in bench.rows()].count("report") == 2  # none before the tuning was over


def test_tuning_never_sees_what_is_reported(bench):
    bench.run()
    for call in bench.calls():
        given, tunes = call["options"], call["name"].startswith("tune-")
        assert call["words"][0] == "digits"
        assert given.get("tuning_holdout") == (["50"] if tunes else None)
        assert given["seed"] in ([["0"]] if tunes else [["1"], ["2"]])
        assert given["max_steps"] == ["30" if tunes else "60"]
        assert (given["bf16"], given["label_names"], given["data_files"]) == (["true"], ["a", "b"], ["train=x.csv"])
        assert "resume" not in given and Path(given["output_dir"][0]) == Path("out/runs") / call["name"]


# Rows, restarts, failures


def test_a_finished_sweep_is_not_run_again(bench, capsys):
    bench.run()
    rows, first = bench.rows(), capsys.readouterr().out
    assert len(bench.calls()) == len(rows) == 10
    bench.run()
    assert bench.calls() == [] and bench.rows() == rows
    bench.run("--summary")
    assert bench.calls() == [] and capsys.readouterr().out == 2 * first


def test_seeds_shapes_and_rates_may_be_added(bench):
    bench.want(best={BASE: 1e-3, LEAN: 1e-3})
    bench.run(shapes=[BASE], seeds=[1])
    bench.calls()
    bench.run(shapes=[LEAN, BASE], seeds=[1, 2], learning_rates=["3e-4", 1e-3, 2e-3, 3e-3])
    assert sorted(names(bench.calls())) == sorted(
        [f"tune-vit-lean-tiny-seed0-lr{rate}" for rate in (0.0003, 0.001, 0.002, 0.003)]
        + ["tune-vit-tiny-seed0-lr0.002", "report-vit-tiny-seed2-lr0.001"]
        + [f"report-vit-lean-tiny-seed{seed}-lr0.001" for seed in (1, 2)]
    )
    assert load_grid(Path("grid.yaml")).learning_rates == [3e-4, 1e-3, 2e-3, 3e-3]


def test_unfinished_runs_are_resumed_and_lost_rows_picked_up(bench):
    bench.run(learning_rates=[1e-3], tuning=None)
    bench.calls()
    rows, results = bench.rows(), bench.output / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-2]))  # two rows are lost
    lost = [f"report-vit-{row['shape'][4:]}-seed{row['seed']}-lr0.001" for row in rows[-2:]]
    (bench.output / "runs" / lost[0] / "results.json").unlink()  # and one of the runs had not finished
    bench.run()
    calls = bench.calls()
    assert names(calls) == [lost[0]] and calls[0]["words"][-1] == "--resume"
    assert bench.rows() == rows


def test_runs_of_other_data_are_not_averaged(bench, capsys):
    """A run that read other rows than those before it fails; rows that are mixed already are refused."""
    one_rate = {"learning_rates": [1e-3], "tuning": None}
    bench.want(results={"data_sha256": "a" * 64})
    bench.run(seeds=[1], **one_rate)
    bench.want(results={"data_sha256": "b" * 64})
    with pytest.raises(SystemExit):
        bench.run(seeds=[1, 2])
    said = capsys.readouterr().err
    assert said.count("results.csv: data_sha256: runs of the phase report were evaluated on 2 different sets") == 2
    assert [row["status"] for row in bench.rows()] == ["finished", "failed"] * 2
    shutil.rmtree(bench.output / "runs" / "report-vit-tiny-seed2-lr0.001")
    shutil.rmtree(bench.output / "runs" / "report-vit-lean-tiny-seed2-lr0.001")
    bench.want(results={"data_sha256": "a" * 64})
    bench.run()
    assert {row["status"] for row in bench.rows()} == {"finished"}
    results = bench.output / "results.csv"
    results.write_text(results.read_text().replace("a" * 64, "b" * 64, 1))
    with pytest.raises(SystemExit, match="results.csv: data_sha256: .* name another output_dir for other data"):
        bench.run("--summary")


def test_a_failed_run_is_a_row_and_is_tried_again(bench, capsys):
    """A failed rate is the worst of all; a failed seed is left out."""
    failing = ["tune-vit-tiny-seed0-lr0.003", "report-vit-lean-tiny-seed2-lr0.001"]
    bench.want(best={BASE: 3e-3}, fail=failing)
    with pytest.raises(SystemExit) as exit:
        bench.run(tuning={"seeds": [0], "holdout": 5, "extend": 0})
    assert exit.value.code == 1
    failed = [row for row in bench.rows() if row["status"] == "failed"]
    assert [(row["phase"], row["shape"], row["value"]) for row in failed] == [("tune", BASE, ""), ("report", LEAN, "")]
    assert {row["error"] for row in failed} == {"ValueError: the loss is not finite"}
    assert bench.summary()[BASE]["learning_rate"] == 0.001
    assert (bench.summary()[LEAN]["n"], bench.summary()[LEAN]["pairs"]) == (1, 1)
    assert bench.summary()[LEAN]["notes"] == ["failed seeds: 2"]
    printed = capsys.readouterr()
    assert "failed runs: 2" in printed.out and "failed: ValueError: the loss is not finite" in printed.err
    failed = json.loads((bench.output / "summary.json").read_text())["failed"]
    assert failed[0]["error"] == "ValueError: the loss is not finite"
    bench.calls()

    bench.want(fail=[failing[0]])  # the baseline's best rate stays, so that no more runs are needed
    bench.run()
    assert names(bench.calls()) == failing
    assert [row["status"] for row in bench.rows()].count("failed") == 1 and len(bench.rows()) == 10
    bench.want()
    bench.run()
    calls = bench.calls()
    assert names(calls) == failing[:1] and calls[0]["words"][-1] == "--resume"
    assert {row["status"] for row in bench.rows()} == {"finished"}


# Processes


def forked(bench, *words, **changes):
    """The sweep in a process of its own, what it says in the file said.txt."""

    def target():
        os.setpgrp()
        with open("said.txt", "w") as said, redirect_stdout(said), redirect_stderr(said):
            bench.run(*words, **changes)

    bench.processes.append(multiprocessing.get_context("fork").Process(target=target))
    bench.processes[-1].start()
    return bench.processes[-1]


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def refuses(bench, *words, **changes):
    """The line that a sweep ends with."""
    with pytest.raises(SystemExit) as exit:
        bench.run(*words, **changes)
    assert isinstance(exit.value.code, str) and "\n" not in exit.value.code
    return exit.value.code


def test_the_extra_ray_is_named(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refuses(bench, "--engine", "ray", tuning=None, learning_rates=[1e-3])
    assert '--engine ray (pip install ".[ray]"' in said


def test_a_killed_sweep_goes_on(bench):
    """Its table is whole, and nothing starts while the run that it left behind still writes."""
    last = "report-vit-tiny-seed2-lr0.001"
    bench.want(sleep={last: 2})
    process = forked(bench, learning_rates=[1e-3], tuning=None)
    until(lambda: (bench.output / "runs" / last / "checkpoint").exists())
    process.kill()
    process.join()
    bench.grid |= {"learning_rates": [1e-3]}
    assert len(read_rows(bench.output / "results.csv")) == 2
    assert "is in use by another sweep" in refuses(bench, tuning=None)
    until((bench.output / "runs" / last / "results.json").exists)
    with (bench.output / ".lock").open("a") as lock:
        lock_descriptor(lock.fileno())  # until it ends
    bench.calls()
    bench.run()
    assert names(bench.calls()) == ["report-vit-lean-tiny-seed2-lr0.001"]  # the other had finished
    assert len(bench.rows()) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_reaches_the_runs_and_keeps_the_rows(bench, number):
    """Two runs under way, of which one takes its time to end, and two that must not start any more."""
    order = [f"report-{shape}-seed{seed}-lr0.001" for seed in (1, 2, 3) for shape in ("vit-tiny", "vit-lean-tiny")]
    logs = [bench.output / f"runs/{name}.log" for name in order[2:4]]
    bench.want(sleep=dict.fromkeys(order[2:4], 30), linger={order[3]: 0.5})
    process = forked(bench, "--jobs", "2", learning_rates=[1e-3], tuning=None, seeds=[1, 2, 3])
    until(lambda: all(log.exists() and "hello" in log.read_text() for log in logs))
    os.killpg(process.pid, number)  # as Ctrl-C does
    process.join(20)
    assert process.exitcode == 130
    assert [(bench.output / "runs" / name / "interrupted").read_text() for name in order[2:4]] == ["x", "x"]
    assert "interrupted; the same command continues" in Path("said.txt").read_text()
    assert [row["status"] for row in bench.rows()] == ["finished"] * 2
    assert sorted(names(bench.calls())) == sorted(order[:4])
    bench.want()
    bench.run(learning_rates=[1e-3], tuning=None, seeds=[1, 2, 3])
    calls = [(call["name"], call["words"][-1] == "--resume") for call in bench.calls()]
    assert calls == list(zip(order[2:], [True, True, False, False]))


def test_jobs(bench, monkeypatch):
    """Two at a time, on two devices, as CUDA_VISIBLE_DEVICES names them; they share out the cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    order = [f"report-{shape}-seed{seed}-lr0.001" for seed in (1, 2) for shape in ("vit-tiny", "vit-lean-tiny")]
    bench.want(until_calls={order[0]: 2, order[1]: 4})  # the second run begins beside the first, and ends last
    bench.run("--jobs", "2", learning_rates=[1e-3], tuning=None)
    calls = sorted(bench.calls(), key=lambda call: call["start"])
    assert names(calls)[2:] == order[2:]
    by_name = {call["name"]: call["device"] for call in calls}
    assert {call["threads"] for call in calls} == {"2"}
    assert [by_name[name] for name in order] == ["5", "7", "5", "5"]  # the long run keeps its device
    assert [(row["status"], row["jobs"]) for row in bench.rows()] == [("finished", "2")] * 4


# What is refused


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"learning_rate": [1]}, r"learning_rate: unknown key; did you mean learning_rates\?"),
        ({"shapes": [BASE, "vit/leantiny"]}, r"shapes: .* got vit/leantiny; did you mean vit/lean-tiny\?"),
        ({"baseline": "vit/base"}, "baseline: expected shapes of the grid, got vit/base"),
        ({"seeds": [2, True]}, "seeds.1: "),
        ({"tuning": None}, "tuning: missing, expected "),
        ({"tuning": {"seeds": [0, 1, 2], "holdout": 5}}, "tuning.seeds: expected seeds that are not in seeds"),
        ({"overrides": {"seed": 1}}, "overrides: .*expected none of shape, seed, "),
        ({"publish": {"vit/tiny": "a/b"}}, "publish.vit/tiny: .*expected a folder's name"),
        ({"shapes": [BASE, "vit-tiny.json"]}, "shapes: two have the same run folder"),
        ({"overrides": {"eval_split": "none"}}, "overrides: eval_split none and no holdout"),
        ({"overrides": {"max_stepz": 5}}, "vit/tiny by recipe digits: max_stepz: unknown key"),
    ],
)
def test_refused_grids(bench, changes, message):
    Path("vit-tiny.json").write_text("{}")
    assert re.match(f"leaner sweep: grid.yaml: {message}", refuses(bench, **changes))
    assert bench.calls() == [] and not bench.output.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": None},
        {"contrasts": [[LEAN, BASE]]},
        {"seeds": [1]},
        {"learning_rates": [1e-3, 3e-3]},
    ],
)
def test_another_grid_is_refused(bench, changes):
    bench.output.mkdir()
    Path("grid.yaml").write_text(yaml.safe_dump(bench.grid))
    with pytest.MonkeyPatch.context() as patch:  # one run is enough
        run = Run("tune", BASE, 0, 1e-3)
        patch.setattr(runs, "missing_runs", lambda results: [] if run in results.rows else [run])
        patch.setattr(sweep, "show", lambda _: None)
        with pytest.raises(SystemExit):
            leaner("sweep", "grid.yaml")
    bench.calls()
    before = (bench.output / "grid.yaml").read_text()
    for words in ([], ["--summary"]):
        message = refuses(bench, *words, **changes)
        assert (
            message.startswith(f"leaner sweep: {next(iter(changes))}: expected ") and "another output_dir" in message
        )
    assert bench.calls() == [] and (bench.output / "grid.yaml").read_text() == before


def test_missing_data_are_found_once_before_the_first_process(bench, monkeypatch):
    """With one line, and no row; what the command line names takes the place of the grid's."""
    monkeypatch.setattr(sweep, "load_training", load_training)
    expected = "leaner sweep: recipe digits: no run was started (--data names a local copy): y.csv (train): Unable"
    assert refuses(bench, "--data", "train=y.csv").startswith(expected)
    assert bench.calls() == [] and os.listdir(bench.output) == [".lock"]
