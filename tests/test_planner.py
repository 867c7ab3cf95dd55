"""The planner: its sources' numbers, its memory against a profiler, its solver, and `leaner plan`."""

import copy
import json
import random
import re
import shlex
from itertools import accumulate
from pathlib import Path

import pytest
import torch
import transformers
from modeling_leaner.training.benchmarking import Step, made_up
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig
from typer.testing import CliRunner

from modeling_leaner import shapes
from modeling_leaner.cli.app import app
from modeling_leaner.names import SHAPES, shape_names
from modeling_leaner.planning.advice import advise, sovit_shape
from modeling_leaner.planning.costs import parse_count, training_memory
from modeling_leaner.planning.solver import describe, plan, shape_at, with_inputs
from modeling_leaner.shapes import CONFIG_CLASSES, load_config, load_shape


SOVIT_150M = {"layers": 18, "width": 880, "mlp": 2320, "heads": 16, "head_dim": 55}


@pytest.fixture
def leaner():
    return lambda *arguments: CliRunner().invoke(app, ["plan", *map(str, arguments)])


def training_step(config, length: int | None, rows: int) -> Step:
    auto_class = getattr(transformers, f"AutoModel{config.task_heads[0]}")
    model = auto_class.from_config(copy.deepcopy(config), attn_implementation="lean")
    batch = made_up(config, rows, length)
    return Step(model, batch, torch.optim.AdamW(model.parameters(), lr=1e-4))  # not fused, as costs.py counts


def peak_memory(step: Step) -> int:
    """Bytes of tensors at the peak of a step, of which there was one before, by the allocations that are profiled."""
    states = [tensor for state in step.optimizer.state.values() for tensor in state.values()]
    held = [each for each in (*step.model.parameters(), *step.inputs.values(), *states) if each.numel() > 1]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return sum(each.nbytes for each in held) + max(accumulate(changes))


class TestSources:
    """The numbers that follow from the papers' formulas."""

    def test_depth_width(self):
        """At the size of GPT-3, 1.739e11 without embeddings, 80.46 layers are best."""
        gpt3 = shape_at(
            load_shape("gpt/base"), {"layers": 96, "width": 12288, "heads": 96, "mlp": 4 * 12288, "head_dim": 128}
        )
        assert advise(gpt3)["fit"].number == pytest.approx(96 - 80.46, abs=0.01)

    def test_sovit(self):
        """The anchor is exact, and the other published shape within 6 %."""
        assert sovit_shape(27 * (4 * 1152**2 + 2 * 1152 * 4304)) == pytest.approx(
            {"layers": 27, "width": 1152, "mlp": 4304}, rel=1e-6
        )
        assert sovit_shape(18 * (4 * 880**2 + 2 * 880 * 2320)) == pytest.approx(
            {"layers": 18, "width": 880, "mlp": 2320}, rel=0.06
        )

    @pytest.mark.parametrize(
        "name, dials, source, fits, measured",
        [
            ("gpt/base", {}, "fit", False, True),  # 11 layers shallower than it names
            ("gpt/base", {"layers": 17, "width": 400, "heads": 10, "head_dim": 40}, "fit", True, True),
            ("gpt/nano", {}, "fit", False, False),  # below 3.3M
            ("vit/base", {}, "sovit", False, False),  # 86M
            ("vit/base", SOVIT_150M, "sovit", True, True),
        ],
    )
    def test_verdicts(self, name, dials, source, fits, measured):
        verdict = advise(shape_at(load_shape(name), dials))[source]
        assert (verdict.fits, verdict.measured) == (fits, measured)

    @pytest.mark.parametrize(
        "name, dials, fits, measured",
        [
            ("bert/16x12", {"layers": 10, "heads": 24, "head_dim": 32}, True, True),  # its own row
            ("bert/16x12", {"layers": 10, "heads": 24, "head_dim": 32, "width": 960}, True, False),
            ("vit/base", {"layers": 6, "heads": 18, "head_dim": 40}, True, False),
            ("gpt/mini", {"layers": 4, "heads": 6}, False, True),  # what was refuted here
            ("gpt/base", {"layers": 6, "heads": 24}, False, False),
        ],
    )
    def test_lean_is_judged_by_quality(self, name, dials, fits, measured):
        start = load_shape(name)
        verdict = advise(shape_at(start, dials), start)["lean"]
        assert (verdict.fits, verdict.measured) == (fits, measured)

    @pytest.mark.parametrize(
        "name, dials",
        [
            ("bert/base", {}),
            ("vit/base", {"layers": 6, "heads": 24, "head_dim": 32}),  # a row that was not audited
            ("bert/base", {"layers": 12, "heads": 24}),
            ("gpt/base", {"layers": 4, "heads": 16}),
        ],
    )
    def test_lean_says_nothing_of_other_changes(self, name, dials):
        start = load_shape(name)
        assert "lean" not in advise(shape_at(start, dials), start)


class TestMemory:
    @pytest.mark.parametrize(
        ("name", "overrides", "setting"),
        [
            ("bert/tiny", {"num_hidden_layers": 3}, (512, 40)),  # blocks, for dropout
            ("gpt/base", {"num_hidden_layers": 2}, (32, 1)),  # mostly weights
            ("gpt/small", {"num_hidden_layers": 2}, (256, 5)),  # mostly logits
            ("gpt/small", {"num_hidden_layers": 2, "loss_chunk_size": 256}, (256, 24)),
            ("bert/tiny", {"attention_probs_dropout_prob": 0.0}, (256, 48)),
            ("vit/tiny", {"num_hidden_layers": 5, "num_attention_heads": 9}, (None, 200)),
        ],
    )
    @pytest.mark.full
    def test_peak_of_a_step_of_a_gibibyte(self, name, overrides, setting):
        """Within 15 %, by the allocations that the profiler saw."""
        config = load_shape(name, **overrides)
        step = training_step(config, *setting)
        whole, step.inputs = step.inputs, {name: each[-1:] for name, each in step.inputs.items()}
        step()  # for the optimiser's states one item will do
        step.inputs = whole
        peak = peak_memory(step)
        assert peak >= 2**30, f"{peak / 2**30:.2f} GiB: too small to say anything"
        assert training_memory(config, *setting).peak == pytest.approx(peak, rel=0.15)

    def test_a_loss_in_chunks_holds_the_scores_of_one(self):
        whole, chunked = (
            training_memory(load_shape("gpt/small", loss_chunk_size=size), 256, 8) for size in (None, 512)
        )
        left_out = (8 * 256 - 512) * load_shape("gpt/small").vocab_size
        assert whole.activations - chunked.activations == 4 * left_out
        assert whole.peak - chunked.peak == 3 * 4 * left_out  # scores and two gradients


@pytest.mark.parametrize("questions", [40, pytest.param(200, marks=pytest.mark.full)])
def test_random_questions_are_solved_within_one_percent(questions):
    """Random starting points and fixed dials: every candidate has the start's parameters."""
    dice, solved = random.Random(0), 0
    names = [name for name in shape_names() if "nano" not in name]
    while solved < questions:
        start = load_shape(dice.choice(names))
        layers = max(1, round(start.num_hidden_layers * dice.uniform(0.4, 1.6)))
        others = [
            {},
            {"heads": dice.randint(1, 24), "head_dim": dice.choice([16, 32, 64])},
            {"mlp": dice.choice([1, 2, 3]) * start.hidden_size},
        ]
        dials = {"layers": layers, **dice.choice(others)}
        try:
            candidates = plan(shapes.family_of(start), start=start, **dials)
        except ValueError as error:
            assert "the nearest" in str(error)
            continue
        for each in candidates:
            assert abs(each.parameters_over_start - 1) <= 0.01 + 1e-9, (dials, describe(each.config))
            fixed = {"layers": each.config.num_hidden_layers, "head_dim": each.config.head_dim}
            assert all(dials.get(name, value) == value for name, value in fixed.items())
        solved += 1


class TestPlan:
    @pytest.mark.parametrize("family", CONFIG_CLASSES)
    def test_parameters_or_flops(self, family):
        for name, size in (("params", 30e6), ("flops", 5e9 if family == "vit" else 60e6)):
            candidates = plan(family, **{name: size}, length=None if family == "vit" else 128)
            assert len(candidates) >= 10
            costs = [each.parameters.total if name == "params" else each.flops_per_unit for each in candidates]
            assert all(0.99 * size <= cost <= size for cost in costs)
            depths = [each.config.num_hidden_layers for each in candidates]
            assert depths == sorted(depths) and len({describe(each.config) for each in candidates}) == len(candidates)

    def test_starting_point_and_dials(self):
        start = load_shape("bert/base")
        (only,) = plan("bert", start=start, layers=6, heads=24, head_dim=32, mlp=2048)
        config = only.config
        assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (6, 24, 32)
        assert config.intermediate_size == 2048 and config.hidden_size > 768
        assert only.parameters_over_start == pytest.approx(1, abs=0.01)
        solved = plan("bert", start=start, layers=6)  # by width, by MLP, by heads
        assert sorted(each.config.intermediate_size != 3072 for each in solved) == [False, True, True]
        (same,) = plan("bert", start=start, heads=24, width=768, mlp=3072, layers=12)
        assert same.config.head_dim == 32 and same.parameters_over_start == 1
        (half,) = plan("bert", start=start, layers=12, width=768, heads=12, head_dim=64, mlp=1536)  # nothing to solve
        assert half.config.intermediate_size == 1536 and half.parameters_over_start < 0.8

    def test_inputs(self):
        with pytest.raises(ValueError, match="heads share keys and values"):
            plan("gpt", start=load_shape("gpt/base", num_key_value_heads=4), layers=6)
        for each in plan("gpt", start=load_shape("gpt/base"), layers=6, heads=24):
            assert each.config.num_key_value_heads == 24
        config = with_inputs(load_shape("gpt/base"), length=2048, vocab_size=300)
        assert (config.max_position_embeddings, config.vocab_size, config.eos_token_id) == (2048, 300, 299)
        assert with_inputs(load_shape("gpt/base"), length=64).max_position_embeddings == 1024
        varied = load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}})
        assert with_inputs(varied, length=64).heads_per_layer == varied.heads_per_layer
        assert (parse_count("--x", "1.5g"), parse_count("--x", "2e9")) == (1.5e9, 2e9)


class TestBadInput:
    """One line that names the flag and what was expected."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--params 30M", "expected --like SHAPE, or --family and one of"),
            ("--params 30M --family bert --like gpt/base", "expected --like SHAPE, or --family and one of"),
            ("--family gpt", "expected --like SHAPE, or --family and one of"),
            ("--family gpt --params 30M --flops 1G", "expected --like SHAPE, or --family and one of"),
            ("--family gpt --params 30Q", "--params 30Q: expected a number above 0, up to 1e.18, as 30M"),
            ("--like gpt/huge", "gpt/huge: unknown shape .*; did you mean gpt/base."),
            ("--like vit/base --length 8", "--length and --vocab-size are of texts"),
            ("--family gpt --params 30M --head-dim 7", "--head-dim 7: no fused attention kernel takes it"),
            (
                "--family gpt --layers 2 --width 100 --heads 3 --mlp 7",
                "LeanGPTConfig: num_attention_heads=3 does not divide hidden_size=100: give head_dim",
            ),
            (
                "--family gpt --params 30M --layers 2 --width 64",
                "only extreme shapes fit: 2 layers × 64.*; fix more",
            ),
            ("--family gpt --params 10K", "no shape fits: the nearest, 2 layers × 1, .*, 5.18 times --params 10K"),
        ],
    )
    def test_one_line(self, leaner, words, message):
        result = leaner(*words.split())
        assert result.exit_code == 1 and result.stdout == "", result.output
        assert re.match(f"leaner plan: {message}", result.stderr), result.stderr
        assert result.stderr.count("\n") == 1


GOLDEN = json.loads((Path(__file__).parent / "golden/plans.json").read_text())


class TestCommand:
    @pytest.mark.parametrize("words", GOLDEN)
    def test_shapes_and_costs_stay(self, leaner, words):
        """As they were when the file was written; advice and recommendation may change."""
        document = json.loads(leaner(*words.split(), "--json").output)
        for row in filter(None, (document["start"], *document["candidates"])):
            row.pop("advice")
        assert {name: document[name] for name in ("start", "candidates")} == GOLDEN[words]

    def test_the_recommended_row(self, leaner, tmp_path):
        """The nearest to the fit, in the table, in the document and in what --write saves."""
        words = "--family gpt --params 30M --vocab-size 8192 --length 512".split()
        text = leaner(*words).output
        assert re.search(r"^  4  16 × 384 .* recommended$", text, flags=re.MULTILINE)
        assert text.count("Recommended: row 4, nearest to the Depth-Width paper's fit, which puts the best") == 1
        document = json.loads(leaner(*words, "--json").output)
        best = document["candidates"][document["recommended"]["row"] - 1]
        nearest = min(document["candidates"], key=lambda row: abs(row["advice"]["fit"]["number"]))
        assert best == nearest and best["layers"] == 16
        leaner(*words, "--write", tmp_path / "shape.json")
        assert json.loads((tmp_path / "shape.json").read_text())["num_hidden_layers"] == 16

    def test_what_was_refuted_here_is_said(self, leaner):
        text = leaner(*"--like gpt/mini --layers 4 --heads 6 --length 128".split()).output
        assert "enwik8-text-causal-curves" in text and "Recommended: keep the start, for half" in text
        assert "enwik8" not in leaner(*"--like gpt/mini --layers 4 --length 128".split()).output

    def test_write(self, leaner, tmp_path):
        """A complete shape file, which the next command that is printed trains; an existing file stays."""
        path = tmp_path / "thirty.json"
        result = leaner("--family", "vit", "--params", "200K", "--layers", 3, "--head-dim", 32, "--write", path)
        assert result.exit_code == 0, result.output
        (expected,) = plan("vit", params=200e3, layers=3, head_dim=32)
        for loaded in (AutoConfig.from_pretrained(path), load_config(str(path))):
            assert describe(loaded) == describe(expected.config)
            assert loaded.count_parameters() == expected.parameters
        assert json.loads(path.read_text()).keys() == json.loads((SHAPES / "vit/base.json").read_text()).keys()
        before = path.read_bytes()
        again = leaner("--family", "vit", "--params", "200K", "--write", path)
        assert again.exit_code == 1 and "exists already" in again.stderr and path.read_bytes() == before
        words = shlex.split(result.output.partition("Next: leaner ")[2])
        words = [*words[: words.index("--max_steps")], "--max_steps", "1", "--output_dir", str(tmp_path / "run")]
        quick = (
            "--max_train_rows 8 --max_eval_rows 2 --use_cpu true --per_device_train_batch_size 2 --eval_strategy no"
        )
        result = CliRunner().invoke(app, [*words, *quick.split(), "--save_strategy", "no"])
        assert result.exit_code == 0, result.output
        assert (tmp_path / "run" / "model.safetensors").is_file()

    def test_a_shape_is_priced_without_a_start(self, leaner):
        words = "--family gpt --layers 4 --width 96 --heads 3 --mlp 100 --json"
        (only,) = json.loads(leaner(*words.split()).output)["candidates"]
        assert [only[name] for name in ("layers", "width", "heads", "head_dim", "mlp")] == [4, 96, 3, 32, 100]

    def test_a_folder_and_heads_of_each_layer(self, leaner, tmp_path):
        load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}}).save_pretrained(tmp_path)
        document = json.loads(leaner("--like", tmp_path, "--layers", 4, "--heads", 7, "--json").output)
        start = load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}})
        assert document["start"]["parameters"] == start.count_parameters().total
        assert {each["head_dim"] % 8 for each in document["candidates"]} == {0}
