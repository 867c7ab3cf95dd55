"""The setting `inspect`: the conditioning in the log of a run, which it leaves as it was, and what it costs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from modeling_leaner.training import train
from modeling_leaner.training.running.callbacks import Inspection, is_due
from training_data import read_lines, write_shape

from modeling_leaner import LeanGPTForCausalLM
from modeling_leaner.shapes import load_shape


DIGITS = """digits --max_steps 6 --per_device_train_batch_size 8 --max_train_rows 64 --max_eval_rows 16 --seed 3
--save_strategy no --logging_steps 1 --eval_strategy no --disable_tqdm true --preprocessing_workers 1
--use_cpu true""".split()


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


def test_is_logged_and_changes_nothing(run):
    plain = run("plain", "--dropout", "0.1")
    inspected = run("inspected", "--dropout", "0.1", "--inspect", "heads", "--inspect_steps", "0.5")
    measured = [line for line in inspected if "kappa_layer_0" in line]
    assert [line["step"] for line in measured] == [0, 3, 6]
    for line in measured:
        assert {"kappa_layer_1", "kappa_query_key", "kappa_value", "entropy", "similarity", "removal"} <= set(line)
    assert losses(inspected) == losses(plain)
    weights = [Path(name, "model.safetensors").read_bytes() for name in ("plain", "inspected")]
    assert weights[0] == weights[1]


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


def test_rows_that_are_too_short():
    """Before the first step, with the setting's name."""
    model = LeanGPTForCausalLM(load_shape("gpt/nano"))
    callback = Inspection(pytest.fail, {"input_ids": torch.ones(1, 3, dtype=torch.long)})
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    arguments = SimpleNamespace(implementation="lean", inspect="heads")
    with pytest.raises(ValueError, match="inspect: row 1 has 3 tokens, and layer 0 has 4 heads"):
        callback.on_train_begin(arguments, state, None, model=model)
