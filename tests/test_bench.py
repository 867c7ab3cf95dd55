"""`leaner bench` in miniature: its cells and ratios, what a cell says that cannot run, and what is refused."""

from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command import leaner
from modeling_leaner.training import benchmarking
from modeling_leaner.training.benchmarking import OURS, Step
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertPreTrainedModel
from transformers.utils import is_torchvision_available

from modeling_leaner.models import take_turns
from modeling_leaner.shapes import load_config, load_shape


MINIATURE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
TEXT = {"vocab_size": 40, "max_position_embeddings": 12}
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
SIZES = {
    "vit": {"image_size": 8, "patch_size": 4, "pooler_output_size": 16, "num_labels": 3},
    "bert": TEXT,
    "gpt": {**TEXT, **TOKENS, "num_key_value_heads": 2},
}
SHORT = ("--dtypes", "float32", "--attentions", "sdpa", "--phases", "inference")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The matrix products take no time."""
    monkeypatch.setattr(benchmarking, "SIDES", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(benchmarking, "RATE_SECONDS", 1e-3)


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
    """`leaner bench`, uncompiled and of three rounds unless told; the cells of its file, and what it printed."""
    threads = torch.get_num_threads()

    def measure(*words, mode="eager", batch=(2,)):
        path = tmp_path / "cells.csv"
        path.unlink(missing_ok=True)
        leaner("bench", *words, "--modes", mode, "--batch", *batch, "--rounds", 3, "--csv", path)
        lines = path.read_text().splitlines(keepends=True)
        cells = pd.read_csv(StringIO("".join(line for line in lines if not line.startswith("# "))))
        return cells, capsys.readouterr().out

    yield measure
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", SIZES)
def test_every_cell_of_a_family(run, shape, family):
    cells, printed = run("--shapes", shape(family), "--dtypes", "float32", "bfloat16", "--new-tokens", 4)
    libraries = [OURS, "transformers"]
    if family == "vit" and find_spec("timm") and is_torchvision_available():
        libraries.append("timm")
    phases = ["training", "inference"] + ["decoding"] * (family == "gpt")
    ways = [(library, attention) for library in libraries for attention in ("eager", "sdpa", "lean")]
    ways = [(library, attention) for library, attention in ways if library == OURS or attention != "lean"]
    cells = cells[cells["library"].isin(libraries)]
    found = [*cells[["dtype", "phase", "library", "attention"]].itertuples(index=False, name=None)]
    assert found == [(dtype, phase, *way) for dtype in ("float32", "bfloat16") for phase in phases for way in ways]
    assert cells["note"].isna().all() and (cells["rounds"] == 3).all() and cells["parameters"].nunique() == 1
    assert (cells["milliseconds_low"] <= cells["milliseconds"]).all()
    assert (cells["milliseconds"] <= cells["milliseconds_high"]).all()
    decoding = cells["phase"] == "decoding"
    items = np.where(decoding, 2 * 4, 2)
    assert cells["items_per_second"].to_numpy() == pytest.approx(items * 1e3 / cells["milliseconds"].to_numpy())
    assert (cells["peak_memory_bytes"] > 2 * cells["parameters"]).all()
    own = (cells["library"] == OURS) & (cells["attention"] == "sdpa")
    assert (cells[own]["relative_time"] == 1).all() and (cells[~decoding]["matrix_product_share"] > 0).all()
    precision = cells[cells["dtype"] == "bfloat16"].groupby("phase")["precision"].agg(set)
    assert precision["training"] == {"autocast"} and precision["inference"] == {"cast"}
    assert printed.count("geometric mean, ") == 2 * len(phases) * 2
    assert "processor flags: " in printed


def test_the_file_says_where_it_was_measured(run, shape, tmp_path):
    run("--shapes", shape("bert"), *SHORT, "--length", 6)
    path = tmp_path / "cells.csv"
    provenance = dict(line[2:].split(": ", 1) for line in path.read_text().splitlines() if line.startswith("# "))
    assert provenance["torch"] == version("torch") and float(provenance["matrix_product_flops float32"]) > 0
    with pytest.raises(SystemExit, match="cells.csv exists already"):
        leaner("bench", "--shapes", shape("bert"), *SHORT, "--csv", path)


def test_the_columns_are_those_of_the_files_in_docs():
    for path in Path(__file__).parent.parent.glob("docs/speed/*.csv"):
        header = next(line for line in path.read_text().splitlines() if not line.startswith("#"))
        assert header.split(",") == benchmarking.COLUMNS


def test_models_beside_each_other(run, shape):
    """Their times are over the first one's; one of another family is timed, too."""
    models = shape("gpt"), shape("gpt", "deep", num_hidden_layers=3), shape("bert")
    cells, printed = run(*models, *SHORT, "--length", 8)
    assert [*cells["shape"]] == [*models] and set(cells["phase"]) == {"inference"}
    assert cells["relative_time"][0] == 1 and cells["relative_time"].notna().all() and "geometric" not in printed
    assert [*cells["layers"]] == [1, 3, 1]


def test_ratios_by_hand():
    """Times over this family's SDPA; how many times as fast `lean` is as the fastest peer and as the default."""
    known = {(OURS, "lean"): 1.0, (OURS, "sdpa"): 2.0, ("transformers", "sdpa"): 3.0, ("timm", "eager"): 2.5}
    cells = [
        {"library": library, "attention": attention, "mode": "eager", "milliseconds": time, "times": np.full(3, time)}
        for (library, attention), time in known.items()
    ]
    benchmarking.relate(cells, cells[1])
    assert [each["relative_time"] for each in cells] == [0.5, 1, 1.5, 1.25]
    assert benchmarking.peers(cells) == {"best peer": 2.5, "transformers' default": 3}
    assert benchmarking.peers(cells[:2]) == {}


def test_a_shape_that_a_peer_cannot_have(run, shape):
    """The peer's cells say so; this family's are measured."""
    cells, printed = run("--shapes", shape("gpt", head_dim=4), *SHORT)
    ours, theirs = (cells[cells["library"] == name] for name in (OURS, "transformers"))
    assert (ours["milliseconds"] > 0).all() and theirs["milliseconds"].isna().all()
    needs = "head_dim=4 × num_attention_heads=2 is not hidden_size=16, as gpt2 needs"
    assert set(theirs["note"]) == {needs} and "geometric" not in printed and f"cannot run: {needs}" in printed


def test_one_that_breaks_stops_no_other(run, shape, monkeypatch):
    """While it is built, say for want of a kernel; or while it is timed, say for want of memory."""

    def broken(*_):
        raise RuntimeError("no kernel\n for Half")

    monkeypatch.setitem(benchmarking.BUILDERS, "transformers", broken)
    cells, _ = run("--shapes", shape("bert"), *SHORT)
    assert [*cells["note"].fillna("")] == ["", "no kernel for Half"]
    monkeypatch.undo()
    once, steps = Step.run, Counter()

    def run_some(step):
        steps[step] += 1
        if isinstance(step.call, BertPreTrainedModel) and steps[step] > benchmarking.WARM_UP + 1:
            raise RuntimeError("no room\n left")
        once(step)

    monkeypatch.setattr(Step, "run", run_some)
    cells, _ = run("--shapes", shape("bert"), *SHORT)
    assert [*cells["note"].fillna("")] == ["", "no room left"]
    assert (cells["milliseconds"].isna() == cells["note"].notna()).all()


def test_units_of_the_processor_decide_the_dtypes(run, shape, monkeypatch):
    """Without units for bfloat16 it is far slower than float32."""
    words = ("--shapes", shape("vit"), "--phases", "inference", "--attentions", "sdpa")
    for flags, dtypes in ((["avx2"], ["float32"]), (["avx2", "amx_bf16"], ["float32", "bfloat16"])):
        monkeypatch.setattr(benchmarking, "processor_flags", lambda flags=flags: flags)
        assert [*run(*words)[0]["dtype"].unique()] == dtypes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shapes", "vit/nanoo"), "did you mean vit/nano?"),
        (("vit/nanoo",), "did you mean vit/nano?"),
        (("--shapes", "vit/nano", "--phases", "decoding"), "none of --shapes generates text"),
        (("--shapes", "gpt/nano", "--heads", 3), "gpt/nano: num_attention_heads 3: "),
        (("--shapes", "bert/nano", *SHORT[:2], *SHORT[4:], "--attentions", "no_such"), "none of the 4 cells can run"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(SystemExit) as refused:
        leaner("bench", *words)
    assert message in str(refused.value)


def test_every_combination_of_sizes(run, shape):
    """Heads × head size stays what it was unless both are given; an image has the length of its patches, once."""
    start = shape("gpt", hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16)
    words = ("--shapes", start, *SHORT)

    def sizes(cells, *names):
        return [*cells[[*names]].drop_duplicates().itertuples(index=False, name=None)]

    cells, _ = run(*words, "--heads", 1, 4, "--layers", 1, 2)
    expected = [(1, 1, 32), (1, 4, 8), (2, 1, 32), (2, 4, 8)]
    assert sorted(sizes(cells, "layers", "heads", "head_dim")) == expected and cells["note"].isna().all()
    assert sizes(run(*words, "--head-dim", 8)[0], "heads", "head_dim") == [(4, 8)]
    texts, _ = run(*words, "--length", 4, 20, batch=(1, 3))
    assert sizes(texts, "batch", "length") == [(1, 4), (1, 20), (3, 4), (3, 20)]  # 20 is beyond its positions
    flops = texts.groupby(["batch", "length"])["flops"].first()
    assert flops[3, 20] == 3 * flops[1, 20] > 15 * flops[1, 4]
    assert sizes(run("--shapes", shape("vit"), *SHORT, "--length", 4, 8)[0], "length") == [(5,)]


@pytest.mark.parametrize("family", SIZES)
def test_flops_are_those_that_torch_counts(shape, family):
    config = load_config(shape(family))
    length = getattr(config, "default_length", None) or config.max_position_embeddings
    step = Step("inference", family, config, "float32", 2, length, 0, torch.device("cpu"), attention="eager")
    step.build()
    with FlopCounterMode(display=False) as counter:
        step.run()
    assert step.flops() == pytest.approx(counter.get_total_flops(), rel=0.05)


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_decoding_gives_as_many_tokens(shape, mode):
    if mode == "compile":
        pytest.importorskip("torch._inductor")
    config = load_config(shape("gpt"))
    model = benchmarking.build_ours(config, "sdpa").eval()
    model.generation_config = benchmarking.generation(4, False)
    assert model.generate(input_ids=torch.ones(2, 8, dtype=torch.long)).shape == (2, 12)
    assert benchmarking.generation(4, mode == "compile").cache_implementation == (
        "static" if mode == "compile" else None
    )


def test_turns_go_forth_and_back():
    order = []
    seconds = take_turns([lambda name=name: order.append(name) or 1.0 for name in "abc"], 4, warm_up=0, limit=2.5)
    assert "".join(order) == "abccbaabc" and seconds.shape == (3, 3)
