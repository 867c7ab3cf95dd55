"""`leaner bench` in miniature: its cells and ratios, what a cell says that cannot run, and what is refused."""

from importlib.metadata import version

import pandas as pd
import pytest
import torch
from command import leaner
from modeling_leaner.training import benchmarking
from transformers import ViTConfig

from modeling_leaner.models import take_turns
from modeling_leaner.shapes import load_shape


MINIATURE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
TEXT = {"vocab_size": 40, "max_position_embeddings": 12}
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
SIZES = {
    "vit": {"image_size": 8, "patch_size": 4, "pooler_output_size": 16, "num_labels": 3},
    "bert": TEXT,
    "gpt": {**TEXT, **TOKENS, "num_key_value_heads": 2},
}
SHORT = ("--attentions", "sdpa", "--phases", "inference")


@pytest.fixture
def shape(tmp_path):
    """Writes a miniature shape, a config file."""

    def write(family, name=None, **fields):
        config = load_shape(f"{family}/nano", **{**MINIATURE, "intermediate_size": 32, **SIZES[family], **fields})
        path = tmp_path / f"{name or family}.json"
        config.to_json_file(path, use_diff=False)
        return str(path)

    return write


@pytest.fixture
def run(tmp_path, capsys):
    """`leaner bench` in three rounds; the cells of its file, and what it printed."""
    threads = torch.get_num_threads()

    def measure(*words):
        path = tmp_path / "cells.csv"
        path.unlink(missing_ok=True)
        leaner("bench", *words, "--rounds", 3, "--csv", path)
        return pd.read_csv(path, comment="#"), capsys.readouterr().out

    yield measure
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", SIZES)
def test_every_cell_of_a_family(run, shape, family):
    cells, printed = run("--shapes", shape(family), "--dtypes", "float32", "bfloat16", "--batch", 2)
    ways = [("modeling_leaner", each) for each in ("lean", "sdpa", "eager")]
    ways += [("transformers", each) for each in ("sdpa", "eager")]
    found = [*cells[["dtype", "phase", "library", "attention"]].itertuples(index=False, name=None)]
    phases = ("training", "inference")
    assert found == [(dtype, phase, *way) for dtype in ("float32", "bfloat16") for phase in phases for way in ways]
    assert cells["note"].isna().all() and (cells["rounds"] == 3).all() and cells["parameters"].nunique() == 1
    assert (cells["milliseconds_low"] <= cells["milliseconds"]).all()
    assert (cells["milliseconds"] <= cells["milliseconds_high"]).all()
    assert cells["items_per_second"].to_numpy() == pytest.approx(2e3 / cells["milliseconds"].to_numpy())
    assert (cells["relative_time"][::5] == 1).all() and printed.count(", ratio 1.00") >= 4


def test_the_file_says_where_it_was_measured(run, shape, tmp_path):
    run("--shapes", shape("bert"), *SHORT, "--length", 6)
    path = tmp_path / "cells.csv"
    provenance = dict(line[2:].split(": ", 1) for line in path.read_text().splitlines() if line.startswith("# "))
    assert provenance["torch"] == version("torch") and "processor_flags" in provenance
    with pytest.raises(SystemExit, match="cells.csv exists already"):
        leaner("bench", "--shapes", shape("bert"), *SHORT, "--csv", path)


def test_models_beside_each_other(run, shape, tmp_path):
    """Their times are over the first one's."""
    models = shape("gpt"), shape("gpt", "deep", num_hidden_layers=3), shape("bert")
    cells, _ = run(*models, *SHORT, "--length", 4, 8)
    assert [*cells["shape"]] == [*models] * 2 and set(cells["phase"]) == {"inference"}
    assert cells["relative_time"][0] == 1 and cells["note"].isna().all()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    for layers in (1, 2):
        ViTConfig(num_hidden_layers=layers, **sizes).save_pretrained(tmp_path / f"vit-{layers}")
    cells, _ = run(tmp_path / "vit-1", tmp_path / "vit-2", *SHORT)
    assert cells["note"].isna().all() and [*cells["length"]] == [5, 5]


def test_one_that_cannot_run_stops_no_other(run, shape, monkeypatch):
    """A shape that the peer cannot have; and a kernel that is missing."""
    cells, printed = run("--shapes", shape("gpt", head_dim=4), *SHORT)
    needs = "head_dim=4 × num_attention_heads=2 is not hidden_size=16, as gpt2 needs"
    assert [*cells["note"].fillna("")] == ["", needs] and f"cannot run: {needs}" in printed
    assert (cells["milliseconds"].isna() == cells["note"].notna()).all()

    def broken(*_):
        raise RuntimeError("no kernel\n for Half")

    monkeypatch.setattr(benchmarking, "from_lean_config", broken)
    cells, _ = run("--shapes", shape("bert"), *SHORT)
    assert [*cells["note"].fillna("")] == ["", "no kernel for Half"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shapes", "vit/nanoo"), "did you mean vit/nano?"),
        (("vit/nanoo",), "did you mean vit/nano?"),
        (("--shapes", "bert/nano", "--phases", "inference", "--attentions", "no_such"), "none of the 2 cells can run"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(SystemExit) as refused:
        leaner("bench", *words)
    assert message in str(refused.value)


def test_turns_go_forth_and_back():
    order = []
    seconds = take_turns([lambda name=name: order.append(name) or 1.0 for name in "abc"], 4, warm_up=0, limit=2.5)
    assert "".join(order) == "abccbaabc" and seconds.shape == (3, 3)
