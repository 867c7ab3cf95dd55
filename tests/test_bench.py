"""`leaner bench` in miniature: its cells, its comparisons, what a cell says that cannot run, and its curves."""

import csv
import re
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from command import leaner
from modeling_leaner.training.benchmarking import contestants, machine, measure
from modeling_leaner.training.benchmarking.comparison import comparisons, geometric_means
from modeling_leaner.training.benchmarking.contestants import OURS, Contestant
from modeling_leaner.training.benchmarking.decoding import generation
from modeling_leaner.training.benchmarking.measure import Measured, Step
from modeling_leaner.training.benchmarking.workload import Workload
from modeling_leaner.training.records import BenchFile
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertPreTrainedModel
from transformers.utils import is_torchvision_available

from modeling_leaner.shapes import load_config, load_shape
from modeling_leaner.support.turns import take_turns


MINIATURE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
TEXT = {"vocab_size": 40, "max_position_embeddings": 12}
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
SIZES = {
    "vit": {"image_size": 8, "patch_size": 4, "pooler_output_size": 16, "num_labels": 3},
    "bert": TEXT,
    "gpt": {**TEXT, **TOKENS, "num_key_value_heads": 2},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The matrix products take no time."""
    monkeypatch.setattr(machine, "SIDES", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(machine, "SECONDS", 1e-3)


@pytest.fixture
def shape(tmp_path):
    """Writes a miniature shape, a config file."""

    def write(family, **fields):
        config = load_shape(f"{family}/nano", **{**MINIATURE, "intermediate_size": 32, **SIZES[family], **fields})
        path = tmp_path / f"{family}.json"
        config.to_json_file(path, use_diff=False)
        return str(path)

    return write


@pytest.fixture
def bench(capsys):
    """`leaner bench`, uncompiled and of three rounds unless told; the document in its last line."""

    threads = torch.get_num_threads()

    def run(*words, mode="eager", rounds=3, batch=(2,)):
        leaner("bench", "--modes", mode, "--batch", *batch, "--rounds", rounds, *words)
        return BenchFile.model_validate_json(capsys.readouterr().out.splitlines()[-1])

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", SIZES)
def test_every_cell_of_a_family(bench, shape, family):
    both = ("--dtypes", "float32", "bfloat16")
    document = bench("--shapes", shape(family), *both, "--new-tokens", 4)
    libraries = [OURS, "transformers"]
    if family == "vit" and find_spec("timm"):
        libraries.append("timm")
    found = [(each.dtype, each.phase, each.library, each.attention) for each in document.cells]
    dtypes = ("float32", "bfloat16")
    phases = ["training", "inference"]
    if family == "gpt":
        phases.append("decoding")
    pairs = [(OURS, "eager"), (OURS, "sdpa"), (OURS, "lean")]
    pairs += [(library, attention) for library in libraries[1:] for attention in ("eager", "sdpa")]
    assert found == [(dtype, phase, *pair) for dtype in dtypes for phase in phases for pair in pairs]
    for each in document.cells:
        assert each.note is None and each.rounds == 3
        assert 0 < each.milliseconds_low <= each.milliseconds <= each.milliseconds_high
        items = 2
        if each.phase == "decoding":
            items = 2 * 4
            assert (each.length, each.new_tokens) == (8, 4)
        assert each.items_per_second == pytest.approx(items * 1e3 / each.milliseconds)
        assert each.parameters == document.cells[0].parameters
        assert each.peak_memory_bytes > each.parameters * 2
        rate = each.flops * 1e3 / each.milliseconds
        assert each.matrix_product_share == pytest.approx(rate / document.matrix_product_flops[each.dtype])
        if each.library == OURS and each.attention == "sdpa":
            assert each.relative_time == each.relative_time_low == each.relative_time_high == 1
    training = document.cells[0]
    inference = document.cells[len(pairs)]
    assert 2 * inference.flops < training.flops <= 3 * inference.flops
    precisions = {(each.dtype, each.phase): each.precision for each in document.cells}
    assert precisions.pop(("bfloat16", "training")) == "autocast"
    assert {kind for (dtype, _), kind in precisions.items() if dtype == "bfloat16"} == {"cast"}
    assert {each.against for each in document.comparisons} == {
        "best peer",
        "transformers' default",
    }


def test_the_csv_file(bench, shape, tmp_path):
    words = ("--shapes", shape("bert"), "--dtypes", "float32", "--length", 6)
    document = bench(*words, "--csv", tmp_path / "cells.csv")
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    provenance = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    assert provenance["torch"] == torch.__version__
    assert provenance["processor_flags"].split() == document.processor_flags
    rate = document.matrix_product_flops["float32"]
    assert float(provenance["matrix_product_flops float32"]) == pytest.approx(rate, rel=1e-3)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert [float(row["milliseconds"]) for row in rows] == [each.milliseconds for each in document.cells]
    assert {row["length"] for row in rows} == {"6"}
    with pytest.raises(SystemExit, match=r"--csv: .*cells.csv exists already"):
        bench(*words, "--csv", tmp_path / "cells.csv")


def test_a_shape_that_a_peer_cannot_have(bench, shape):
    """The peer's cells say so; this family's are measured."""
    document = bench("--shapes", shape("gpt", head_dim=4), "--dtypes", "float32", "--new-tokens", 4)
    for each in document.cells:
        if each.library == OURS:
            assert each.milliseconds > 0
        else:
            assert each.milliseconds is None and each.rounds == 0
            assert each.note == "head_dim=4 × num_attention_heads=2 is not hidden_size=16, as gpt2 needs"
    assert document.comparisons == [] and document.geometric_means == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_a_device_that_is_not_there(bench, shape):
    with pytest.raises(SystemExit, match="--device gpu: this machine has no CUDA device; expected cpu"):
        bench("--shapes", shape("bert"), "--device", "gpu", "--dtypes", "float32")


def test_units_of_the_processor_decide_the_dtypes(bench, shape, monkeypatch):
    """Without units for bfloat16 it is far slower than float32."""
    words = ("--shapes", shape("vit"), "--phases", "inference", "--attentions", "sdpa")
    for flags, dtypes in ((["avx2"], ["float32"]), (["avx2", "amx_bf16"], ["float32", "bfloat16"])):
        monkeypatch.setattr(machine, "processor_flags", lambda flags=flags: flags)
        assert [dtype for (dtype,) in seen(bench(*words).cells, "dtype")] == dtypes
    assert machine.usual_dtypes("gpu") == ["float32", "bfloat16"]


def test_memory_of_what_keeps_its_weights(shape):
    """Tokens × tokens of eager attention; the scores of every token in inference, and in decoding keys and values."""
    config = load_config(shape("gpt", max_position_embeddings=64, attention_probs_dropout_prob=0))
    weights = 4 * config.count_parameters().total
    inference = Workload("inference", "gpt.json", config, "float32", 2, 32, torch.device("cpu"))
    assert inference.needed_memory("sdpa") == weights + 4 * 2 * 32 * 40
    pairs = 2 * 32 * 32
    assert inference.needed_memory("eager") - inference.needed_memory("flex_attention") == 2 * 4 * 2 * pairs
    kept = decoding(config, new_tokens=8, length=32).needed_memory("lean") - weights
    assert kept == 2 * 40 * config.kv_bytes_per_token(4)
    training = replace(inference, phase="training")
    assert training.needed_memory("eager") > training.needed_memory("lean")


def test_too_little_memory(bench, shape, monkeypatch, capsys):
    monkeypatch.setattr(measure, "free_memory", lambda device: 1000)
    with pytest.raises(SystemExit, match="none of the 10 cells can run: needs about 0.0 GB of memory"):
        bench("--shapes", shape("bert"), "--dtypes", "float32")
    assert capsys.readouterr().out.count("cannot run: needs about 0.0 GB of memory") == 10


class Broken(Exception):
    """What a compiler raises, say."""


def test_one_that_breaks_stops_no_other(bench, shape, monkeypatch):
    """A dtype without a kernel, say."""

    def broken(config, attention):
        raise Broken("no kernel\n for Half")

    monkeypatch.setitem(contestants.BUILDERS, "transformers", broken)
    document = bench("--shapes", shape("bert"), "--dtypes", "float32")
    notes = {each.library: each.note for each in document.cells}
    assert notes == {OURS: None, "transformers": "no kernel for Half"}


def test_one_that_breaks_while_it_is_timed_stops_no_other(bench, shape, monkeypatch):
    """Its warm-up went well, and then there is too little memory, say."""
    once = Step.run
    steps = Counter()

    def run(step):
        steps[step] += 1
        if isinstance(step.call, BertPreTrainedModel) and steps[step] > measure.WARM_UP + 1:
            raise Broken("no room\n left")
        once(step)

    monkeypatch.setattr(Step, "run", run)
    document = bench("--shapes", shape("bert"), "--dtypes", "float32")
    notes = {each.library: each.note for each in document.cells}
    assert notes == {OURS: None, "transformers": "no room left"}
    assert all((each.milliseconds is None) == (each.note is not None) for each in document.cells)


def test_one_that_breaks_when_its_memory_is_measured_stops_no_other(bench, shape, monkeypatch):
    """The last step of all: its times are there, and not shown, for it cannot be said what they cost."""
    once = measure.peak_memory

    def peak_memory(run, tensors, optimizer, device):
        if isinstance(run.__self__.call, BertPreTrainedModel):
            raise Broken("no room left")
        return once(run, tensors, optimizer, device)

    monkeypatch.setattr(measure, "peak_memory", peak_memory)
    document = bench("--shapes", shape("bert"), "--dtypes", "float32")
    assert {each.library: each.note for each in document.cells} == {OURS: None, "transformers": "no room left"}


def test_every_contestant_keeps_its_attention(bench, shape):
    """from_config writes it into the configuration that it is given."""
    unknown = bench("--shapes", shape("bert"), "--attentions", "sdpa", "paged|eager", "--dtypes", "float32")
    assert [each.note is None for each in unknown.cells] == [True, False] * 4
    with pytest.raises(SystemExit, match="none of the 2 cells can run: "):
        bench("--shapes", shape("bert"), "--attentions", "paged|eager", "--dtypes", "float32", "--phases", "inference")
    config = load_shape("bert/nano")
    for library in (OURS, "transformers"):
        models = [Contestant(library, attention, "eager").build(config) for attention in ("eager", "sdpa")]
        assert [model.config._attn_implementation for model in models] == ["eager", "sdpa"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dtypes", "float23"), "--dtypes float23: expected float32, bfloat16, float16; did you mean float32?"),
        (("--shapes", "vit/nanoo"), "unknown shape 'vit/nanoo'; did you mean vit/nano?"),
        (("--shapes", "bert/nano", "--length", 9999), "length must be in 1..256, got 9999"),
        (("--shapes", "bert/nano", "--length", 8, 300), "bert/nano: length must be in 1..256, got 300; "),
        (
            ("--shapes", "gpt/nano", "--phases", "decoding", "--length", 250, "--new-tokens", 16),
            "gpt/nano: length must be in 1..240 before 16 new tokens, got 250; or give --positions 266",
        ),
        (("--shapes", "gpt/nano", "--new-tokens", 256), "expected fewer than the 256 positions of gpt/nano, or more"),
        (("--shapes", "vit/nano", "--phases", "decoding"), "none of --shapes generates text"),
        (("--shapes", "gpt/nano", "--head-dim", 12), "gpt/nano: --head-dim 12: no fused attention kernel takes it"),
        (("--shapes", "gpt/nano", "--modes", "eager", "eager"), "--modes eager: given twice"),
        (("--shapes", "gpt/nano", "--head-dim", 8, 16, 8), "--head-dim 8: given twice"),
        (("--shapes", "gpt/nano", "--attentions", "leen"), "--attentions leen: expected eager, flash_attention"),
        (("--shapes", "gpt/nano", "--attentions", "leen"), "sdpa; did you mean lean?"),
        (("--phases", "decode"), "--phases decode: expected training, inference, decoding; did you mean decoding?"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(SystemExit) as refused:
        leaner("bench", *words)
    assert message in str(refused.value)


def test_without_a_peer_there_is_no_comparison(shape, capsys):
    words = ("--attentions", "lean", "--modes", "eager", "--dtypes", "float32", "--phases", "inference", "--rounds", 3)
    leaner("bench", "--shapes", shape("bert"), *words)
    printed = capsys.readouterr().out
    assert "no comparison: no peer ran; --attentions sdpa" in printed
    assert not BenchFile.model_validate_json(printed.splitlines()[-1]).comparisons


def seen(cells, *names):
    """What the columns have, each once, in order."""
    return list(dict.fromkeys(tuple(getattr(cell, name) for name in names) for cell in cells))


SHORT = ("--dtypes", "float32", "--attentions", "sdpa")


def test_every_combination_of_batches_and_lengths(bench, shape):
    """An image has the length of its patches, once."""
    words = ("--phases", "inference", *SHORT, "--length", 4, 8)
    texts = bench("--shapes", shape("gpt"), *words, batch=(1, 3))
    assert seen(texts.cells, "batch", "length") == [(1, 4), (1, 8), (3, 4), (3, 8)]
    assert seen(texts.comparisons, "batch", "length") == [(1, 4), (1, 8), (3, 4), (3, 8)]
    flops = {(cell.batch, cell.length): cell.flops for cell in texts.cells}
    assert flops[3, 8] == 3 * flops[1, 8] > 6 * flops[1, 4]
    images = bench("--shapes", shape("vit"), *words, batch=(1, 3))
    assert seen(images.cells, "batch", "length") == [(1, 5), (3, 5)]


def test_depths_heads_and_head_sizes(bench, shape):
    """Heads × head size stays what it was, unless both are given; those models are built."""
    start = shape("gpt", hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16)
    words = ("--shapes", start, "--phases", "inference", *SHORT)
    sizes = ("layers", "heads", "head_dim")
    heads = bench(*words, "--heads", 1, 4, "--layers", 1, 2)
    assert seen(heads.cells, *sizes) == [(1, 1, 32), (1, 4, 8), (2, 1, 32), (2, 4, 8)]
    assert all(cell.note is None for cell in heads.cells)
    assert seen(bench(*words, "--head-dim", 8).cells, *sizes) == [(1, 4, 8)]
    both = bench(*words, "--heads", 3, "--head-dim", 24)
    assert seen(both.cells, *sizes) == [(1, 3, 24)]
    assert {cell.library for cell in both.cells if cell.note is None} == {OURS}  # no relative has that


def test_more_positions(bench, shape):
    """For a longer text; of an image nothing changes."""
    words = ("--phases", "inference", *SHORT)
    for family, length, further in (("gpt", 20, 8), ("vit", 5, 0)):  # of 12 positions, and of 5 patches
        usual, *_ = bench("--shapes", shape(family), *words).cells
        longer, *_ = bench("--shapes", shape(family), *words, "--positions", 20, "--length", 20).cells
        assert longer.length == length and longer.note is None
        assert longer.parameters == usual.parameters + further * MINIATURE["hidden_size"]


def decoding(config, new_tokens=4, length=5):
    """A workload of two texts."""
    return Workload("decoding", "gpt.json", config, "float32", 2, length, torch.device("cpu"), new_tokens)


def greedy(model, ids, steps):
    """What follows, without a cache; a token that ends texts is one as any other."""
    for _ in range(steps):
        ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    return ids


@pytest.fixture
def traced_only(monkeypatch):
    """Compilation ends with the graphs, which must be whole: no code is generated for them."""

    def generation_of(new_tokens, compiled):
        settings = generation(new_tokens, compiled)
        if compiled:
            settings.compile_config.fullgraph = True
            settings.compile_config.backend = "eager"
            settings.compile_config.mode = "default"
        return settings

    monkeypatch.setattr(measure, "generation", generation_of)


@pytest.mark.parametrize("library", [OURS, "transformers"])
@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_decoding_is_greedy(shape, traced_only, library, mode):
    """By a cache that grows, or compiled over one of a fixed size: the tokens of no cache at all."""
    config = load_config(shape("gpt", initializer_range=0.5, num_hidden_layers=2, tie_word_embeddings=False))
    step = Step(Contestant(library, "sdpa", mode), decoding(config, new_tokens=6))
    with torch.inference_mode():
        generated = step.call(**step.batch)
        expected = greedy(step.call.__self__, step.batch["input_ids"], 6)
    assert torch.equal(generated, expected) and generated.shape == (2, 11)
    assert len(expected[:, 5:].unique()) > 3  # not the same token over and over
    assert hasattr(step.call.__self__, "_compiled_call") == (mode == "compile")


def test_no_token_ends_a_text(shape):
    """Also where the shape has one that does: here every token."""
    config = load_config(shape("gpt", eos_token_id=[*range(40)]))
    step = Step(Contestant(OURS, "sdpa", "eager"), decoding(config))
    with torch.inference_mode():
        assert step.call(**step.batch).shape == (2, 9)


@pytest.mark.parametrize("library", [OURS, "transformers"])
@pytest.mark.parametrize("new_tokens", [1, 4])
def test_flops_of_decoding_are_those_that_are_multiplied(shape, library, new_tokens):
    workload = decoding(load_config(shape("gpt", num_hidden_layers=3)), new_tokens)
    step = Step(Contestant(library, "eager", "eager"), workload)
    with FlopCounterMode(display=False) as counter:
        step.run()
    assert counter.get_total_flops() == workload.flops()


@pytest.mark.parametrize("library", [OURS, "transformers"])
def test_flops_of_masked_training_are_those_that_are_multiplied(shape, library):
    """This family scores the masked tokens alone, transformers all of them."""
    config = load_config(shape("bert", max_position_embeddings=40))
    workload = Workload("training", "bert.json", config, "float32", 2, 40, torch.device("cpu"))
    contestant = Contestant(library, "eager", "eager")
    step = Step(contestant, workload)
    with FlopCounterMode(display=False) as counter:
        step.run()
    assert counter.get_total_flops() == workload.flops(contestant.scores_masked_tokens_only)
    assert (workload.flops(contestant.scores_masked_tokens_only) < workload.flops()) == (library == OURS)


def measured_as(library, attention, mode, *seconds):
    return Measured(Contestant(library, attention, mode), np.array(seconds))


def test_comparisons_are_with_the_best():
    config = load_shape("bert/nano")
    workload = Workload("training", "bert/nano", config, "float32", 2, 8, torch.device("cpu"))
    found = comparisons(
        workload,
        [
            measured_as(OURS, "eager", "eager", 0.1, 0.1, 0.1),  # never ours
            measured_as(OURS, "sdpa", "eager", 1.0, 2.0, 1.0),
            measured_as(OURS, "sdpa", "compile", 0.5, 0.5, 0.5),
            measured_as("transformers", "eager", "eager", 1.5, 2.0, 2.0),
            measured_as("transformers", "sdpa", "eager", 4.0, 4.0, 4.0),
            measured_as("transformers", "sdpa", "compile", 1.0, 1.0, 1.0),
            Measured(Contestant("transformers", "eager", "compile"), note="broke"),
        ],
    )
    assert {each.against: (each.peer, each.speedup) for each in found} == {
        "best uncompiled peer": ("transformers, eager attention, uncompiled", 1.5),  # of the rounds 1.5, 1 and 2
        "best compiled peer": ("transformers, sdpa attention, compiled", 2.0),
        "best peer": ("transformers, sdpa attention, compiled", 2.0),
        "transformers' default": ("transformers, sdpa attention, uncompiled", 4.0),
    }
    assert (found[0].speedup_low, found[0].speedup_high) == (1.25, 1.75)
    leaner_one = [measured_as(OURS, "sdpa", "eager", 1.0), measured_as(OURS, "lean", "eager", 2.0)]
    peer = measured_as("transformers", "sdpa", "eager", 6.0)
    found_again = comparisons(workload, [*leaner_one, peer])
    assert [(each.ours, each.speedup) for each in found_again] == [("lean attention, uncompiled", 3.0)] * 2
    other = found[0].model_copy(update={"speedup": 6.0})
    assert geometric_means([found[0], other]) == {"training float32, best uncompiled peer": pytest.approx(3.0)}


class Ticking:
    """A call that takes a second more at each call, and tells when it ran."""

    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.calls = 0

    def __call__(self):
        self.log.append(self.name)
        self.calls += 1
        return float(self.calls)


def test_turns_run_forth_and_back_until_a_limit():
    log = []
    taken = take_turns([Ticking("a", log), Ticking("b", log)], 4, warm_up=1)
    assert taken.tolist() == [[2.0, 3.0, 4.0, 5.0]] * 2
    assert "".join(log) == "ab" + "abba" * 2
    assert take_turns([Ticking("a", log)], 99, warm_up=0, limit=10).shape == (1, 5)
    assert take_turns([Ticking("a", log)], 99, warm_up=0, limit=0).shape == (1, 3)
    assert take_turns([], 99).size == 0


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
def test_timm_refuses_what_it_cannot_have():
    with pytest.raises(ValueError, match="head_dim=5"):
        Contestant("timm", "sdpa", "eager").build(load_shape("vit/nano", head_dim=5))


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
def test_timm_without_torchvision_is_the_same_model(shape):
    """As `build` checks by its parameters; no stand-in is left."""
    config = load_shape("vit/nano")
    model = Contestant("timm", "sdpa", "eager").build(config)
    assert model(torch.zeros(1, config.num_channels, *config.image_shape)).logits.shape == (1, config.num_labels)
    assert is_torchvision_available() or find_spec("torchvision") is None
    assert not [name for name, module in sys.modules.items() if type(module).__name__ == "Placeholder"]


@pytest.mark.full
def test_the_family_is_faster_where_it_scores_masked_tokens_only(bench, shape):
    """A check for regressions by a ratio of the same rounds: nearly all of this step is the vocabulary.

    It is about 6 on one thread, and falls to 1.1 where two threads wait for each other on a busy machine.
    """
    path = shape("bert", vocab_size=20_000, max_position_embeddings=256)
    options = ("--phases", "training", "--dtypes", "float32", "--attentions", "sdpa", "--threads", "1")
    document = bench("--shapes", path, *options, rounds=9)
    (speedup,) = {each.speedup for each in document.comparisons}
    assert speedup > 3


@pytest.mark.full
def test_compiled_decoding(bench, shape):
    words = ("--phases", "decoding", "--dtypes", "float32", "--attentions", "sdpa", "--new-tokens", 4)
    document = bench("--shapes", shape("gpt"), *words, mode="compile")
    assert {(each.mode, each.note) for each in document.cells} == {("compile", None)}
    assert {each.against for each in document.comparisons} == {"best peer"}


@pytest.mark.full
def test_compiled(bench, shape):
    document = bench("--shapes", shape("vit"), "--dtypes", "float32", "--attentions", "sdpa", mode="compile")
    assert {each.mode for each in document.cells} == {"compile"} and {each.note for each in document.cells} == {None}
    assert {each.against for each in document.comparisons} == {"best peer"}


SPEED = Path(__file__).parent.parent / "docs" / "speed"


def rows_of(path):
    """The cells of a file, below its provenance."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def table_of(path):
    """The lines of the page's table: medians of this family's attentions, the best peer, and its time over lean's."""
    for name, ours, best, theirs in compared_in(path):
        numbers = [f"{each:.0f}" for each in ours]
        ratio = f"{theirs / ours[-1]:.2f}"
        yield f"| {' | '.join((*name, *numbers, f'{theirs:.0f}, {best[0]} {best[1]}', ratio))} |"


def compared_in(path, phases=("training", "inference")):
    """Of each workload its name, the medians of this family's attentions, the best peer and its median."""
    workloads = {}
    for row in rows_of(path):
        if row["phase"] not in phases:
            continue
        name = (row["shape"].removesuffix(".json"), row["length"], row["phase"], row["dtype"])
        cells = workloads.setdefault(name, {})
        cells[row["library"], row["attention"]] = float(row["milliseconds"])
    for name, cells in workloads.items():
        ours = [cells.pop((OURS, attention)) for attention in ("eager", "sdpa", "lean")]
        best = min(cells, key=cells.get)
        yield name, ours, best, cells[best]


def test_the_page_has_the_numbers_of_its_file():
    lines = SPEED.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    expected = list(table_of(SPEED / "cells.csv"))
    assert len(expected) == 24
    table = [line for line in lines if re.match(r"\| (vit|bert|gpt)-\w+ \| \d+ \|", line)]
    assert table == expected


def lines_over(path, size_of, number_of, attentions=("sdpa", "eager")):
    """A line for each size: this family's training and inference with each attention."""
    columns = [(phase, attention) for phase in ("training", "inference") for attention in attentions]
    cells = {}
    for row in rows_of(path):
        column = (row["phase"], row["attention"])
        if row["library"] == OURS and column in columns:
            cells.setdefault(size_of(row), {})[column] = number_of(row)
    for size, numbers in cells.items():
        yield f"| {' | '.join([size, *(numbers[column] for column in columns)])} |"


def milliseconds(row):
    return f"{float(row['milliseconds']):.0f}"


def megabytes(row):
    return f"{milliseconds(row)} ({int(row['peak_memory_bytes']) / 1e6:.0f})"


def test_the_page_has_the_curves_of_its_files():
    lines = SPEED.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    heads = lines_over(SPEED / "heads.csv", lambda row: f"{row['heads']} × {row['head_dim']}", milliseconds)
    assert [line for line in lines if re.match(r"\| \d+ × \d+ \|", line)] == list(heads)
    lengths = lines_over(SPEED / "length.csv", lambda row: f"{int(row['length']):,}", megabytes)
    assert [line for line in lines if re.match(r"\| [\d,]+ \|", line)] == list(lengths)
    depths = lines_over(SPEED / "layers.csv", lambda row: f"{row['layers']} × 8 × 64", megabytes, ["sdpa"])
    sizes = lines_over(SPEED / "head-size.csv", lambda row: f"4 × 8 × {row['head_dim']}", megabytes, ["sdpa"])
    assert [line for line in lines if re.match(r"\| \d+ × \d+ × \d+ \|", line)] == [*depths, *sizes]


def test_the_page_has_the_memory_of_its_file():
    rows = rows_of(SPEED / "memory.csv")
    table = [f"| {row['library']} {row['attention']} | {megabytes(row)} |" for row in rows]
    page = SPEED.with_suffix(".md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if re.match(r"\| (modeling_leaner|transformers) \w+ \|", line)] == table
    with_sdpa = {row["library"]: row for row in rows if row["attention"] == "sdpa"}
    memory, time = (
        float(with_sdpa[OURS][name]) / float(with_sdpa["transformers"][name])
        for name in ("peak_memory_bytes", "milliseconds")
    )
    assert f"That is {memory:.2f} of the memory of transformers' GPT-2 and {time:.2f} of its time" in page


def page_in_one_line():
    return " ".join(SPEED.with_suffix(".md").read_text(encoding="utf-8").split())


def test_the_page_sums_its_table_up():
    """How much less time than the best peer, in percent; the smaller and the larger of the cells."""
    saved = {}
    for (shape, _, phase, _), ours, _, theirs in compared_in(SPEED / "cells.csv"):
        saved.setdefault((shape[:3], phase), []).append(100 * (1 - ours[-1] / theirs))
    least, most = ({cell: round(chosen(each)) for cell, each in saved.items()} for chosen in (min, max))
    page = page_in_one_line()
    bert, gpt, vit = ((least[family, "training"], most[family, "training"]) for family in ("ber", "gpt", "vit"))
    assert f"takes {bert[0]} to {bert[1]} % less time than with the best peer for LeanBERT" in page
    as_long = f"and as long, within {max(-vit[0], vit[1])} %, for LeanViT."
    assert f"{gpt[0]} to {gpt[1]} % less for LeanGPT, {as_long}" in page
    assert f"Inference takes {least['gpt', 'inference']} to {most['gpt', 'inference']} % less for LeanGPT" in page
    others = [each for family in ("ber", "vit") for each in saved[family, "inference"]]
    assert f"as long, within {round(max(map(abs, others)))} %, for LeanBERT and LeanViT" in page


MEAN = "# geometric mean of speedups, "


def test_the_page_has_the_means_of_its_file():
    lines = (SPEED / "cells.csv").read_text(encoding="utf-8").splitlines()
    means = dict(line.removeprefix(MEAN).split(": ") for line in lines if line.startswith(MEAN))

    def both(workload):
        peers = ("best peer", "transformers' default")
        return " and ".join(f"{float(means[f'{workload}, {peer}']):.2f}" for peer in peers)

    training = f"training in float32 {both('training float32')}, in bfloat16 {both('training bfloat16')}"
    inference = f"inference in float32 {both('inference float32')}, in bfloat16 {both('inference bfloat16')}"
    assert f"transformers' default: {training}; {inference}." in page_in_one_line()


def test_the_page_has_the_shares_of_its_file():
    """What the machine's own matrix products need of a step by `lean`."""
    shares = {}
    for row in rows_of(SPEED / "cells.csv"):
        if row["library"] == OURS and row["attention"] == "lean" and row["dtype"] == "float32":
            shares[row["shape"][:3], row["phase"], row["heads"]] = f"{float(row['matrix_product_share']):.2f}"
    page = page_in_one_line()
    for name, family in (("LeanViT", "vit"), ("LeanBERT", "ber"), ("LeanGPT", "gpt")):
        order = [(phase, heads) for phase in ("training", "inference") for heads in ("4", "16")]
        cells = " | ".join(shares[family, *each] for each in order)
        assert f"| {name}, float32 | {cells} |" in page


def test_no_share_is_above_one():
    """In what was measured since the rate is the best of all moments."""
    for name in ("cells", "base-bfloat16", "twins", "heads-bfloat16"):
        assert all(float(row["matrix_product_share"]) < 1 for row in rows_of(SPEED / f"{name}.csv")), name


def test_the_page_has_the_dropout_of_heads():
    """Sixteen heads over four in training, by `lean`."""
    times = {name: ours[-1] for name, ours, _, _ in compared_in(SPEED / "cells.csv")}
    more = {}
    for shape, length, phase, dtype in times:
        if phase == "training" and shape.endswith("x16"):
            few = (shape.replace("x16", "x4"), length, phase, dtype)
            more[shape[:3], dtype] = times[shape, length, phase, dtype] / times[few]
    page = page_in_one_line()
    bert, gpt, vit = (f"{more[family, 'float32']:.2f}" for family in ("ber", "gpt", "vit"))
    assert f"take {bert} times as long in LeanBERT and {gpt} in LeanGPT" in page and f"without, {vit}." in page
    dropped = [each for (family, _), each in more.items() if family != "vit"]
    assert f"a training step {min(dropped):.2f} to {max(dropped):.2f} times as long with dropout" in page
    times = {
        row["heads"]: float(row["milliseconds"])
        for row in rows_of(SPEED / "heads-bfloat16.csv")
        if row["library"] == OURS and row["attention"] == "lean"
    }
    whole = [times["32"] / times["8"], *(each for (family, _), each in more.items() if family == "vit")]
    assert f"by `lean` {min(whole):.2f} to {max(whole):.2f} times without" in page


def test_the_page_has_the_decoding_of_its_files():
    times = {}
    for row in rows_of(SPEED / "decoding.csv"):
        times[row["library"], row["attention"], row["mode"], row["batch"]] = float(row["milliseconds"])

    def ratios(ours, theirs):
        return " and ".join(
            f"{times['transformers', *theirs, batch] / times[OURS, *ours, batch]:.2f}" for batch in ("1", "16")
        )

    page = page_in_one_line()
    uncompiled, compiled = (ratios(("sdpa", mode), ("sdpa", mode)) for mode in ("eager", "compile"))
    said = f"GPT-2 takes {uncompiled} times this family's time uncompiled, at batch 1 and 16, and {compiled} compiled"
    assert said in page
    gains = [
        1 - times[*who, "compile", batch] / times[*who, "eager", batch]
        for batch in ("1", "16")
        for who in ((OURS, "sdpa"), (OURS, "lean"), ("transformers", "sdpa"))
    ]
    assert f"gains {min(gains[:3]):.2f} to {max(gains[:3]):.2f} of the time at batch 1" in page
    assert max(gains[3:5]) < 0.05 and f"at 16 for GPT-2 alone, {gains[5]:.2f}" in page
    quiet = {}
    for row in rows_of(SPEED / "cells.csv"):
        if row["phase"] == "decoding":
            cell = quiet.setdefault((row["dtype"], row["shape"]), {})
            cell[row["library"], row["attention"]] = float(row["milliseconds"])
    longer = {}
    for (dtype, _), cell in quiet.items():
        longer.setdefault(dtype, []).append(f"{cell['transformers', 'sdpa'] / cell[OURS, 'lean']:.2f}")
    float32, bfloat16 = (" and ".join(sorted(longer[dtype])) for dtype in ("float32", "bfloat16"))
    assert f"GPT-2 takes {float32} times as long in float32 and {bfloat16} in bfloat16" in page


def test_the_page_has_the_shares_of_base_shapes():
    shares = {row["shape"]: float(row["matrix_product_share"]) for row in rows_of(SPEED / "base-bfloat16.csv")}
    vit, bert, gpt = (f"{shares[f'{family}/base']:.2f}" for family in ("vit", "bert", "gpt"))
    page = " ".join(SPEED.with_suffix(".md").read_text(encoding="utf-8").split())
    assert f"needs {vit} in LeanViT, {bert} in LeanBERT and {gpt} in LeanGPT of its time" in page


def test_the_page_has_what_heads_cost_in_bfloat16():
    """32 heads of 16 over 8 of 64, by library and attention."""
    times = {}
    for row in rows_of(SPEED / "heads-bfloat16.csv"):
        times.setdefault((row["library"], row["attention"]), {})[row["heads"]] = float(row["milliseconds"])
    ratios = {who: f"{of_heads['32'] / of_heads['8']:.2f}" for who, of_heads in times.items()}
    lean, sdpa, eager = (ratios[OURS, attention] for attention in ("lean", "sdpa", "eager"))
    page = " ".join(SPEED.with_suffix(".md").read_text(encoding="utf-8").split())
    assert f"take {lean} times as long as eight of 64 with `lean`, {sdpa} with SDPA, {eager} with eager" in page
    theirs = [ratios["transformers", attention] for attention in ("sdpa", "eager")]
    assert f"and {theirs[0]} and {theirs[1]} in transformers' GPT-2" in page


def test_the_page_has_what_was_measured_on_a_gpu():
    page = SPEED.with_suffix(".md").read_text(encoding="utf-8")
    base = {
        (row["shape"], row["library"]): row for row in rows_of(SPEED / "gpu-base.csv") if row["attention"] == "sdpa"
    }
    for (_, library), row in base.items():
        gigabytes = float(row["peak_memory_bytes"]) / 1e9
        cells = f"{float(row['milliseconds']):.1f} | {float(row['matrix_product_share']):.2f} | {gigabytes:.1f}"
        assert f"| {library} | {cells} |" in page
    own, theirs = (base["gpt/base", library] for library in (OURS, "transformers"))
    time, memory = (float(own[name]) / float(theirs[name]) for name in ("milliseconds", "peak_memory_bytes"))
    assert f"takes {time:.2f} of the time of GPT-2 and {memory:.2f} of its memory" in page
    vit, timm = (float(base["vit/base", library]["milliseconds"]) for library in (OURS, "timm"))
    assert f"LeanViT takes {vit / timm:.2f} times as long as timm's" in page
    times = {}
    for row in rows_of(SPEED / "gpu-heads.csv"):
        times.setdefault(row["library"], {})[row["heads"]] = float(row["milliseconds"])
    for library, of_heads in times.items():
        assert f"| {library} | {' | '.join(f'{of_heads[heads]:.1f}' for heads in of_heads)} |" in page
    small, theirs = (times[library]["48"] / times[library]["12"] for library in (OURS, "transformers"))
    assert f"take {small:.2f} times as long as twelve of 64, in GPT-2 {theirs:.2f} (" in page.replace("[", "(")


def test_the_page_has_what_kept_memory_gains():
    times = {
        name: {(row["shape"], row["library"], row["attention"]): float(row["milliseconds"]) for row in rows_of(path)}
        for name, path in (("kept", SPEED / "kept.csv"), ("back", SPEED / "given-back.csv"))
    }
    page = SPEED.with_suffix(".md").read_text(encoding="utf-8")
    ratios = []
    for shape in ("gpt-6x4", "gpt-6x16"):
        for name, *who in (("`lean`", OURS, "lean"), ("transformers", "transformers", "sdpa")):
            back, kept = (times[each][f"{shape}.json", *who] for each in ("back", "kept"))
            ratios.append(f"{kept / back:.2f}")
            assert f"| `{shape}`, {name} | {back:.0f} | {kept:.0f} | {ratios[-1]} |" in page
    assert f"a step took {min(ratios)} to {max(ratios)} of the time" in page_in_one_line()


def test_the_page_has_the_memory_of_the_attentions():
    """Of a training step with 16 heads in bfloat16, that of `lean` over that of SDPA."""
    memory = {}
    for row in rows_of(SPEED / "cells.csv"):
        if row["library"] == OURS and (row["phase"], row["heads"], row["dtype"]) == ("training", "16", "bfloat16"):
            memory[row["shape"][:3], row["attention"]] = int(row["peak_memory_bytes"])
    bert, gpt, vit = (f"{memory[family, 'lean'] / memory[family, 'sdpa']:.2f}" for family in ("ber", "gpt", "vit"))
    told = f"with dropout `lean` needs {bert} (BERT) and {gpt} (GPT) of SDPA's; without (ViT) {vit} of it"
    assert told in page_in_one_line()


def test_the_page_has_the_memory_of_training():
    """With dropout, that of `lean` over that of the fastest peer, the least and the most."""
    cells = {}
    for row in rows_of(SPEED / "cells.csv"):
        if row["phase"] == "training" and not row["shape"].startswith("vit"):
            numbers = (float(row["milliseconds"]), int(row["peak_memory_bytes"]))
            cells.setdefault((row["shape"], row["dtype"]), {})[row["library"], row["attention"]] = numbers
    ratios = {}
    for (shape, _), cell in cells.items():
        peers = [numbers for (library, _), numbers in cell.items() if library != OURS]
        ratios.setdefault(shape[:3], []).append(cell[OURS, "lean"][1] / min(peers)[1])
    bert, gpt = (f"{min(ratios[family]):.2f} to {max(ratios[family]):.2f}" for family in ("ber", "gpt"))
    said = f"takes {bert} of the memory of the fastest peer's for LeanBERT and {gpt} for LeanGPT"
    assert said in page_in_one_line()


def test_the_page_has_what_grows_with_the_heads():
    """Of a step with 16 of them, as 16/12 of what 12 more of them add to four."""
    times = {name: ours[-1] for name, ours, _, _ in compared_in(SPEED / "cells.csv")}
    bert, gpt = (
        f"{(1 - times[f'{family}-6x4', *step] / times[f'{family}-6x16', *step]) * 16 / 12:.2f}"
        for family in ("bert", "gpt")
        for step in [("256", "training", "float32")]
    )
    page = page_in_one_line()
    assert f"is {bert} of LeanBERT's training step with 16 heads in float32, and {gpt} of LeanGPT's" in page


def test_the_page_has_the_twins_of_its_file():
    times = {(row["shape"], row["phase"]): float(row["milliseconds"]) for row in rows_of(SPEED / "twins.csv")}
    page = SPEED.with_suffix(".md").read_text(encoding="utf-8")
    for family in ("vit", "bert", "gpt"):
        pairs = [
            [times[f"{family}/{name}", phase] for name in ("mini", "lean-mini")] for phase in ("training", "inference")
        ]
        numbers = " | ".join(f"{whole:.0f} → {lean:.0f} | {whole / lean:.2f}" for whole, lean in pairs)
        assert f"| `{family}/mini` → `{family}/lean-mini` | {numbers} |" in page


def test_the_page_has_the_compiled_times_of_its_file():
    cells = {}
    for row in rows_of(SPEED / "compiled.csv"):
        times = cells.setdefault((row["shape"].removesuffix(".json"), row["phase"]), {})
        times[row["library"], row["attention"], row["mode"]] = float(row["milliseconds"])
    page = SPEED.with_suffix(".md").read_text(encoding="utf-8")
    for (shape, phase), times in cells.items():
        ours, theirs = (
            [times[*who, mode] for mode in ("eager", "compile")] for who in ((OURS, "lean"), ("transformers", "sdpa"))
        )
        numbers = " | ".join(f"{time:.0f}" for time in (*ours, *theirs))
        assert f"| {shape} | {phase} | {numbers} | {min(theirs) / min(ours):.2f} |" in page
