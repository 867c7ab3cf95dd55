"""The `leaner` command, as its users run it."""

import json
import subprocess
import sys
from statistics import median
from time import perf_counter

import pytest
import transformers
from typer.testing import CliRunner

from modeling_leaner import __version__
from modeling_leaner.cli import app
from modeling_leaner.shapes import load_shape, shape_names


@pytest.fixture
def leaner():
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


def test_version(leaner):
    assert leaner("--version").output == f"leaner {__version__}\n"


def test_shapes(leaner):
    rows = json.loads(leaner("shapes", "--json").output)
    assert [row["shape"] for row in rows] == shape_names()
    base = next(row for row in rows if row["shape"] == "gpt/base")
    assert (base["parameters"], base["heads"], base["head_dim"], base["length"]) == (124_439_808, 12, 64, 1024)
    assert base["flops_per_token"] == load_shape("gpt/base").count_flops(1024).forward / 1024
    assert base["kv_bytes_per_token"] == 2 * 12 * 768 * 2
    table = leaner("shapes", "--family", "vit").output
    assert "vit/lean-base" in table and "24×32" in table and "gpt/" not in table
    assert "–" in table  # no cache


def test_shapes_refuses_an_unknown_family(leaner):
    result = leaner("shapes", "--family", "rnn")
    assert result.exit_code == 1 and result.stderr == "leaner: --family rnn: expected one of vit, bert, gpt\n"


def test_convert(leaner, tmp_path):
    config = transformers.GPT2Config(n_embd=24, n_layer=1, n_head=2, vocab_size=30, bos_token_id=1, eos_token_id=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    result = leaner("convert", tmp_path / "gpt2", tmp_path / "lean")
    assert result.exit_code == 0 and "LeanGPTForCausalLM" in result.output
    for source, output, message in (("gpt2", "lean", "lean exists already"), ("nothing", "new", "nothing")):
        result = leaner("convert", tmp_path / source, tmp_path / output)
        assert result.exit_code == 1 and message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.full
def test_shapes_is_quick():
    """At most 1.5 s over what importing PreTrainedModel takes, the two taking turns."""
    alone = [sys.executable, "-c", "from transformers.modeling_utils import PreTrainedModel"]
    shapes = [sys.executable, "-m", "modeling_leaner.cli", "shapes"]
    times = {"alone": [], "shapes": []}
    for _ in range(5):
        for name, command in (("alone", alone), ("shapes", shapes)):
            start = perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(perf_counter() - start)
    assert median(times["shapes"]) - median(times["alone"]) <= 1.5, times


def test_shapes_builds_no_model(leaner, monkeypatch):
    monkeypatch.setattr(transformers.PreTrainedModel, "__init__", lambda *_: pytest.fail("a model was built"))
    assert leaner("shapes").exit_code == 0
