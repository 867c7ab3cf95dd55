"""The setting `inspect`: the conditioning in the log of a run, which it leaves as it was, and what it costs."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from modeling_leaner.training import train
from modeling_leaner.training.running import card
from modeling_leaner.training.running.callbacks import Inspection, is_due, numbers_of
from modeling_leaner.training.settings import parse
from training_data import read_lines, write_shape

from modeling_leaner import LeanGPTForCausalLM
from modeling_leaner.inspection import inspect_layers, rows_of
from modeling_leaner.shapes import load_shape


DIGITS = """digits --max_steps 6 --per_device_train_batch_size 8 --max_train_rows 64 --max_eval_rows 16 --seed 3
--save_strategy no --logging_steps 1 --eval_strategy no --disable_tqdm true --preprocessing_workers 1
--hardware cpu""".split()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`leaner train digits` of a small shape; returns the lines of metrics.jsonl."""
    monkeypatch.chdir(tmp_path)
    shape = write_shape("vit", tmp_path)

    def train_digits(folder, *words):
        train.main([*DIGITS, "--shape", shape, "--output_dir", folder, *words])
        return read_lines(tmp_path / folder)

    return train_digits


def losses(lines):
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("kind", ["jacobian", pytest.param("heads", marks=pytest.mark.full)])
def test_is_logged_and_changes_nothing(run, kind):
    plain = run("plain", "--dropout", "0.1")
    inspected = run("inspected", "--dropout", "0.1", "--inspect", kind, "--inspect_steps", "0.5")
    measured = [line for line in inspected if "kappa_layer_0" in line]
    assert [line["step"] for line in measured] == [0, 3, 6]
    for line in measured:
        assert {"kappa_layer_1", "kappa_query_key", "kappa_value", "entropy", "similarity", "removal"} <= set(line)
        assert ("jacobian_largest" in line) == ("jacobian_stable_rank" in line) == (kind == "jacobian")
    assert losses(inspected) == losses(plain)
    weights = [Path(name, "model.safetensors").read_bytes() for name in ("plain", "inspected")]
    assert weights[0] == weights[1]
    assert card.kappa_names(inspected) == ["kappa_layer_0", "kappa_layer_1"] and not card.kappa_names(plain)


def test_of_transformers_models_and_of_the_end(run):
    """The same numbers as of this family's model with the same weights, once it is converted."""
    lines = run("theirs", "--implementation", "transformers", "--inspect", "heads", "--inspect_steps", "100")
    assert [line["step"] for line in lines if "kappa_layer_0" in line] == [0, 6]
    results = json.loads(Path("theirs/results.json").read_text())
    assert len(results["condition"]["end"]) == 2


def test_the_curve(tmp_path, monkeypatch):
    """A panel more, with a curve for each layer."""
    lines = [{"step": step, "loss": 1.0, "kappa_layer_0": 5.0 + step, "kappa_layer_10": 9.0} for step in (0, 5, 10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    original = card.draw_kappas
    monkeypatch.setattr(card, "draw_kappas", lambda axis, *more: drawn.append(axis) or original(axis, *more))
    card.plot(tmp_path / "metrics.jsonl", tmp_path / "training.png", "loss", "nats")
    (axis,) = drawn
    assert len(axis.figure.axes) == 2 and (tmp_path / "training.png").stat().st_size > 0
    curves = [list(line.get_ydata()) for line in axis.get_lines()]
    assert curves == [[5, 10, 15], [9, 9, 9]] and axis.get_yscale() == "log"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["layer 0", "layer 10"]


def test_when_it_is_due():
    def steps(interval, last):
        return [
            step for step in range(1, last + 1) if is_due(SimpleNamespace(global_step=step, max_steps=last), interval)
        ]

    assert steps(0.1, 100) == list(range(10, 101, 10))
    assert steps(4, 10) == [4, 8, 10] and steps(1, 3) == [1, 2, 3] and steps(0.01, 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "words, message",
    [
        ("--eval_split none", "inspect: expected evaluation rows that are no stream; set holdout or eval_split"),
        ("--inspect_steps 0", "inspect_steps: 0.0 is not in 1e-06..inf"),
        ("--inspect_steps x", "inspect_steps: invalid float value: 'x'"),
    ],
)
def test_what_is_refused(run, capsys, words, message):
    with pytest.raises(SystemExit):
        run("refused", "--inspect", "heads", *words.split())
    assert message in capsys.readouterr().err and not Path("refused", "metrics.jsonl").exists()


def test_steps_between_no_measurements():
    with pytest.raises(ValueError, match="inspect_steps: expected with inspect"):
        parse("digits", ["--shape", "vit/nano", "--inspect_steps", "2"])


def test_training_imports_it_only_if_a_recipe_asks():
    code = "import sys, modeling_leaner.training.train as _; "
    code += "print([name for name in sys.modules if name.endswith('.inspection')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_rows_that_are_too_short():
    """Before the first step, with the setting's name."""
    model = LeanGPTForCausalLM(load_shape("gpt/nano"))
    callback = Inspection(pytest.fail, {"input_ids": torch.ones(1, 3, dtype=torch.long)})
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    arguments = SimpleNamespace(implementation="lean", inspect="heads")
    with pytest.raises(ValueError, match="inspect: row 1 has 3 tokens, and layer 0 has 4 heads"):
        callback.on_train_begin(arguments, state, None, model=model)


@pytest.mark.full
def test_what_it_costs():
    """Eleven measurements, as the default interval makes, are at most 3 % of a run by the recipe tinystories."""
    arguments = parse("tinystories", ["--shape", "gpt/mini"])
    model = LeanGPTForCausalLM(load_shape("gpt/mini")).train()
    batch = torch.randint(model.config.vocab_size, (arguments.per_device_train_batch_size, arguments.max_length))
    rows = rows_of({"input_ids": batch[:2]})
    seconds = {"step": [], "measurement": []}
    for _ in range(3):  # in turns; seconds of the processor, which other programs do not lengthen
        start = time.process_time()
        model(input_ids=batch, labels=batch).loss.backward()
        seconds["step"].append(time.process_time() - start)
        start = time.process_time()
        assert len(numbers_of(inspect_layers(model, rows, jacobian="none"))) == 14
        seconds["measurement"].append(time.process_time() - start)
    assert 11 * min(seconds["measurement"]) <= 0.03 * arguments.max_steps * min(seconds["step"]), seconds
