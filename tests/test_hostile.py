"""Folders and repositories of strangers: names that command a terminal, binary texts, pickles, weights that lie."""

import json
import shutil
from pathlib import Path

import pytest
from hub_server import LocalHub, reached
from modeling_leaner.training.running import evaluation
from typer.testing import CliRunner

from modeling_leaner import hub as hub_files
from modeling_leaner.cli.app import app
from modeling_leaner.layers_leaner import INDEX
from modeling_leaner.terminal import visible


GOLDEN = Path(__file__).parent / "golden"
CARD = Path(__file__).parent.parent / "model_cards" / "leanvit-lean-mini-cifar10"
REPOSITORY = "someone/a-model"


@pytest.fixture
def folder(tmp_path):
    """A published folder."""
    return Path(shutil.copytree(CARD, tmp_path / "f"))


def refused(*words: object) -> str:
    """The line in which a command refuses something."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    lines = [line for line in result.stderr.splitlines() if line and "%|" not in line]  # but for bars of downloads
    assert result.exit_code == 1 and len(lines) == 1, result.output + result.stderr
    return lines[0]


def test_visible():
    assert visible("a b é × →") == "a b é × →"
    assert visible("a\nb\x1b[31m\udcff\u202e") == "a\\nb\\x1b[31m\\udcff\\u202e"


def test_errors_say_what_was_given():
    """No emoji, no markup, no command to the terminal."""
    for name, shown in (("a:x:b", "a:x:b"), ("a[red]b", "a[red]b"), ("a\x1b[31mb", "a\\x1b[31mb")):
        result = CliRunner().invoke(app, ["verify", name])
        assert result.exit_code == 2 and f"'{shown}' does not exist" in result.output


def test_a_repository_of_a_pickle(tmp_path):
    config = (GOLDEN / "gpt" / "config.json").read_bytes()
    with LocalHub() as hub, reached(hub, tmp_path / "home"):
        hub_files.commit({"config.json": config, "pytorch_model.bin": b"x"}, REPOSITORY, "a pickle")
        named = f"{REPOSITORY}: no model.safetensors"
        assert named in refused("convert", REPOSITORY, tmp_path / "out")
        assert named in refused("evaluate", REPOSITORY, "--task", "causal-lm", "--dataset", "python-docs")
    assert not (tmp_path / "out").exists()


def test_weights_are_looked_at_before_the_data(folder):
    """An index that leads out of the folder."""
    weights = folder / "model.safetensors"
    weights.unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": "../../x.safetensors"}}))
    with pytest.raises(OSError, match="'../../x.safetensors' is not the name of a file in this folder"):
        evaluation.prepare_evaluation(str(folder), ["--data_files", "nowhere"], "")
