"""The planner: its sources' numbers, its counts against built modules and profilers, its solver, and `leaner plan`."""

import json
import os
import random
import re
import shlex
from pathlib import Path

import pytest
import torch
import transformers
from modeling_leaner.training.benchmarking import measured_shapes
from modeling_leaner.training.benchmarking.measured_shapes import Bench, made_up_batch, measure
from modeling_leaner.training.settings.recipes import read_recipe
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig
from typer.testing import CliRunner

import modeling_leaner
from modeling_leaner import shapes
from modeling_leaner.cli.app import app
from modeling_leaner.cli.plan import training_command
from modeling_leaner.family import FAMILIES
from modeling_leaner.planning import advice
from modeling_leaner.planning import solver as planner
from modeling_leaner.planning.advice import FAVOURS, NO_OBJECTION, OPPOSES, advise
from modeling_leaner.planning.dials import Dials, describe, shape_at, with_inputs
from modeling_leaner.planning.flops import training_flops
from modeling_leaner.planning.memory import DEFAULT_STEP, StepSetting, training_memory
from modeling_leaner.planning.solver import Budget, NoShapeFits, cost_of, plan
from modeling_leaner.planning.units import human, parse_size
from modeling_leaner.shapes import CONFIG_CLASSES, load_config, load_shape, shape_names


SOVIT_400M = {"layers": 27, "width": 1152, "mlp": 4304, "heads": 16, "head_dim": 72}
SOVIT_150M = {"layers": 18, "width": 880, "mlp": 2320, "heads": 16, "head_dim": 55}


@pytest.fixture
def leaner():
    return lambda *arguments: CliRunner().invoke(app, ["plan", *map(str, arguments)])


def random_shape(family: str, dice: random.Random):
    """A small shape of any proportions, from the family's tiny one."""
    dials = Dials(
        layers=dice.randint(1, 6),
        width=dice.randrange(8, 200),
        heads=dice.randint(1, 9),
        head_dim=dice.randrange(8, 65, 8),
        mlp=dice.randrange(8, 400),
    )
    inputs = {"image_size": 4 * dice.randint(2, 6)} if family == "vit" else {"vocab_size": dice.randint(50, 600)}
    return shape_at(with_inputs(load_shape(f"{family}/tiny"), **inputs), dials)


class TestSources:
    """The numbers that follow from the papers' formulas."""

    def test_fitted_law(self):
        assert advice.fitted_width(95) == pytest.approx(30_077, rel=1e-4)
        assert advice.fitted_depth_of_size(1.739e11) == pytest.approx(80.46, abs=0.005)
        assert advice.fitted_depth(768) == pytest.approx(28.9, abs=0.05)
        assert advice.fitted_parameters(6) == pytest.approx(3.34e6, rel=2e-3)
        assert advice.fitted_parameters(48) == pytest.approx(2.83e9, rel=2e-3)
        for layers in (6, 20, 48):
            assert advice.fitted_depth(advice.fitted_width(layers)) == pytest.approx(layers)
            assert advice.fitted_depth_of_size(advice.fitted_parameters(layers)) == pytest.approx(layers)

    def test_floor(self):
        limits = {4: 3.15e5, 5: 3.54e6, 6: 3.83e7, 7: 4.02e8, 8: 4.13e9, 9: 4.18e10, 10: 4.18e11}
        for layers, parameters in limits.items():
            assert advice.floor_parameters(layers) == pytest.approx(parameters, rel=2e-3)
            assert advice.minimal_depth(0.99 * parameters) == layers
            assert advice.minimal_depth(1.01 * parameters) == layers + 1
        assert advice.depth_floor(768) == pytest.approx(6.05, abs=0.005)

    def test_sovit(self):
        """The anchor is exact, and the other published shape within 6 %."""
        assert advice.sovit_shape(27 * (4 * 1152**2 + 2 * 1152 * 4304)) == pytest.approx(
            {"layers": 27, "width": 1152, "mlp": 4304}, rel=1e-6
        )
        assert advice.sovit_shape(18 * (4 * 880**2 + 2 * 880 * 2320)) == pytest.approx(
            {"layers": 18, "width": 880, "mlp": 2320}, rel=0.06
        )

    def test_critical_depth(self):
        assert advice.critical_depth(512) == 16
        assert advice.critical_depth(1024) == pytest.approx(16 * 2**0.44)

    @pytest.mark.parametrize(
        "name, dials, source, says, outside",
        [
            ("gpt/base", {}, "floor", NO_OBJECTION, False),
            ("gpt/base", {"layers": 6}, "floor", OPPOSES, False),
            ("gpt/base", {}, "fit", OPPOSES, False),  # 11 layers shallower than it names
            ("gpt/base", {"layers": 49}, "fit", OPPOSES, True),
            (
                "gpt/base",
                {"layers": 17, "width": 400, "heads": 10, "head_dim": 40, "mlp": 1600},
                "fit",
                FAVOURS,
                False,
            ),
            ("gpt/nano", {}, "fit", OPPOSES, True),  # below 3.3M
            ("gpt/base", {}, "rank", NO_OBJECTION, False),
            ("vit/tiny", {}, "rank", OPPOSES, True),  # patches of 4×4×3
            ("bert/base", {"head_dim": 128, "heads": 6}, "low-rank", OPPOSES, False),
            ("gpt/base", {}, "kaplan", NO_OBJECTION, False),
            ("gpt/base", {"layers": 48, "width": 1500}, "kaplan", None, False),  # it objects to no shape
            ("bert/base", {}, "kaplan", NO_OBJECTION, True),
            ("gpt/base", {"layers": 32}, "narrow", FAVOURS, True),  # no family here is T5
            ("gpt/base", {"layers": 31}, "narrow", OPPOSES, True),
            ("gpt/base", {"layers": 37}, "narrow", OPPOSES, True),
            ("gpt/base", {"layers": 30, "width": 576, "heads": 9, "head_dim": 64}, "mobile", FAVOURS, False),
            ("gpt/base", {"layers": 12}, "mobile", OPPOSES, False),  # 124M
            ("gpt/base", {"layers": 10}, "mobile", OPPOSES, True),  # 110M
            ("vit/base", {}, "sovit", OPPOSES, True),  # 86M
            ("vit/base", SOVIT_400M, "sovit", FAVOURS, False),
            ("vit/base", SOVIT_150M, "sovit", FAVOURS, False),
            ("gpt/base", {}, "sovit", None, False),
            ("gpt/base", {}, "delusion", NO_OBJECTION, False),
            ("gpt/base", {"layers": 20}, "delusion", OPPOSES, False),
            ("gpt/base", {"layers": 2, "width": 64}, "delusion", NO_OBJECTION, True),  # below 17M
        ],
    )
    def test_verdicts(self, name, dials, source, says, outside):
        verdict = advise(shape_at(load_shape(name), Dials(**dials)))[source]
        assert (verdict.says, verdict.outside) == (says, outside)

    def test_only_an_optimum_favours(self):
        """Over depths, widths and families."""
        favouring = set()
        for family in CONFIG_CLASSES:
            for layers in (1, 4, 8, 12, 16, 27, 32, 48):
                for width in (64, 256, 512, 1152, 1600):
                    said = advise(shape_at(load_shape(f"{family}/base"), Dials(layers, width)))
                    favouring |= {name for name, verdict in said.items() if verdict.says == FAVOURS}
        assert favouring == {"fit", "narrow", "mobile", "sovit"}

    @pytest.mark.parametrize(
        "name, dials, says, outside",
        [
            ("bert/16x12", {"layers": 10, "heads": 24, "head_dim": 32}, NO_OBJECTION, False),  # its own row
            ("bert/16x12", {"layers": 10, "heads": 24, "head_dim": 32, "width": 960}, NO_OBJECTION, True),
            ("vit/base", {"layers": 6, "heads": 18, "head_dim": 40}, NO_OBJECTION, True),
            ("vit/base", {"layers": 6, "heads": 24, "head_dim": 32}, None, False),  # a row that was not audited
            ("bert/base", {"layers": 4, "heads": 24}, None, False),
            ("bert/base", {"layers": 12, "heads": 24}, None, False),
            ("gpt/mini", {"layers": 4, "heads": 6}, OPPOSES, False),  # what was refuted here
            ("gpt/base", {"layers": 6, "heads": 24}, OPPOSES, True),
            ("gpt/base", {"layers": 4, "heads": 16}, None, False),
        ],
    )
    def test_lean_is_judged_by_quality(self, name, dials, says, outside):
        start = load_shape(name)
        verdict = advise(shape_at(start, Dials(**dials)), None, start)["lean"]
        assert (verdict.says, verdict.outside) == (says, outside)
        assert advise(start)["lean"].says is None

    def test_signs_are_one_way(self):
        """+ is deeper than the source names, − shallower."""
        for layers, sign in ((90, 1), (2, -1)):
            said = advise(load_shape("gpt/base", num_hidden_layers=layers))
            for name in ("floor", "fit", "narrow", "mobile", "delusion"):
                assert said[name].number * sign > 0, name

    def test_head_sizes(self):
        able = {size: sum(advice.kernels_for(size).values()) for size in (7, 8, 16, 32, 64, 128, 264)}
        assert able == {7: 1, 8: 2, 16: 3, 32: 4, 64: 5, 128: 5, 264: 2}
        assert [advice.has_fused_kernel(size) for size in (7, 8, 256, 264)] == [False, True, True, False]


@pytest.mark.parametrize("shapes", [10, pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.parametrize("family", CONFIG_CLASSES)
def test_random_shapes_are_counted_as_built(family, shapes):
    """Parameters exactly; products within 1 % of torch's count: eager, causal attention full, forward and backward."""
    dice = random.Random(family)
    setting = StepSetting(batch_size=2, length=None if family == "vit" else 24, attention="eager")
    for _ in range(shapes):
        config = random_shape(family, dice)
        candidate = cost_of(config, setting)
        config._attn_implementation = "eager"
        model = getattr(modeling_leaner, config.architectures[0])(config).train()
        assert candidate.parameters.total == model.num_parameters(), describe(config)
        batch = made_up_batch(config, setting, 2, torch.device("cpu"))
        if family == "bert":  # every token is counted as scored
            batch["labels"] = batch["input_ids"]
        with FlopCounterMode(display=False) as counter:
            loss = model(**batch).loss
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        flops = candidate.flops
        assert forward == pytest.approx(2 * flops.forward, rel=0.01), describe(config)
        assert forward + counter.get_total_flops() == pytest.approx(2 * flops.training_step, rel=0.01)


OTHER_STEPS_OF_A_GIBIBYTE = [
    ("gpt/small", {"num_hidden_layers": 2}, StepSetting(5, 256)),  # mostly logits
    ("gpt/small", {"num_hidden_layers": 2, "loss_chunk_size": 256}, StepSetting(24, 256)),
    ("gpt/tiny", {"num_hidden_layers": 3, "vocab_size": 500}, StepSetting(26, 448, attention="eager")),
    ("bert/tiny", {"attention_probs_dropout_prob": 0.0}, StepSetting(48, 256)),
    ("vit/tiny", {"num_hidden_layers": 5, "num_attention_heads": 9}, StepSetting(200)),
]


class TestMemory:
    @pytest.mark.parametrize(
        ("name", "overrides", "setting"),
        [
            ("gpt/base", {"num_hidden_layers": 2}, StepSetting(1, 32)),  # mostly weights
            ("bert/tiny", {"num_hidden_layers": 3}, StepSetting(40, 512)),  # blocks, for dropout
            *(pytest.param(*case, marks=pytest.mark.full) for case in OTHER_STEPS_OF_A_GIBIBYTE),
        ],
    )
    def test_peak_of_a_step_of_a_gibibyte(self, name, overrides, setting):
        """Within 15 %, by the allocations that the profiler saw."""
        config = load_shape(name, **overrides)
        bench = Bench(config, setting)
        whole, bench.batch = bench.batch, made_up_batch(config, setting, 1, bench.device)
        bench.train()  # for the optimiser's states one item will do
        bench.batch = whole
        peak = bench.peak_memory()
        assert peak >= 2**30, f"{peak / 2**30:.2f} GiB: too small to say anything"
        assert training_memory(config, setting).peak == pytest.approx(peak, rel=0.15)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("attention", ["lean", "sdpa", "eager"])
    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    @pytest.mark.parametrize("name", ["gpt/lean-tiny", "bert/lean-tiny", "vit/lean-tiny"])
    def test_what_autograd_keeps(self, name, dropout, attention, dtype):
        """Distinct tensors that are saved when the forward pass ends, without weights, and without the input ids."""
        setting = StepSetting(4, None if "vit" in name else 64, dtype, attention)
        config = load_shape(name, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        bench, kept = Bench(config, setting), {}
        weights = {each.data_ptr() for each in bench.model.parameters()}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        bench.model.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = bench.model(**bench.batch).loss
        assert loss.isfinite()
        assert sum(kept.values()) == pytest.approx(training_memory(config, setting).activations, rel=0.05)

    def test_a_loss_in_chunks_holds_the_scores_of_one(self):
        setting = StepSetting(8, 256, "bfloat16")
        whole, chunked = (
            training_memory(load_shape("gpt/small", loss_chunk_size=size), setting) for size in (None, 512)
        )
        left_out = (8 * 256 - 512) * load_shape("gpt/small").vocab_size
        assert whole.activations - chunked.activations == 4 * left_out
        assert whole.peak - chunked.peak == (3 * 4 + 2) * left_out  # scores, two gradients, logits in bfloat16

    def test_dropout_on_a_cpu_keeps_a_byte_a_score(self):
        config = load_shape("gpt/base")
        cpu, gpu = (training_memory(config, StepSetting(8, 1024, device=each)) for each in ("cpu", "gpu"))
        pairs = 12 * 8 * 12 * 1024**2
        assert cpu.activations == gpu.activations + pairs  # the mask, where SDPA keeps none


@pytest.mark.parametrize("questions", [40, pytest.param(200, marks=pytest.mark.full)])
def test_random_questions_are_solved_within_one_percent(questions):
    """Random starting points and fixed dials: every candidate has the start's parameters."""
    dice, solved = random.Random(0), 0
    names = [name for name in shape_names() if "nano" not in name]
    while solved < questions:
        start = load_shape(dice.choice(names))
        family = shapes.family_of(start)
        layers = max(1, round(start.num_hidden_layers * dice.uniform(0.4, 1.6)))
        dials = dice.choice(
            [
                Dials(layers=layers),
                Dials(layers=layers, heads=dice.randint(1, 24), head_dim=dice.choice([16, 32, 64])),
                Dials(layers=layers, mlp_ratio=dice.choice([1, 2, 3, 4])),
                Dials(heads=dice.randint(1, 24), head_dim=dice.choice([16, 32, 64]), mlp_ratio=2),
            ]
        )
        try:
            candidates = plan(family, dials=dials, start=start)
        except NoShapeFits as error:
            assert "the nearest" in str(error)
            assert dials.mlp_ratio is None or start.hidden_size < 128, f"{start.name_or_path} {dials}: {error}"
            continue
        for each in candidates:
            assert abs(each.parameters_over_start - 1) <= 0.01 + 1e-9, (dials, describe(each.config))
            fixed = {"layers": each.config.num_hidden_layers, "head_dim": each.config.head_dim}
            assert all(getattr(dials, name) in (None, value) for name, value in fixed.items())
        solved += 1


class TestPlan:
    @pytest.mark.parametrize("family", CONFIG_CLASSES)
    def test_budget_of_parameters(self, family):
        candidates = plan(family, Budget(parameters=30e6))
        assert len(candidates) >= 10
        assert all(0.99 * 30e6 <= each.parameters.total <= 30e6 for each in candidates)
        depths = [each.config.num_hidden_layers for each in candidates]
        assert depths == sorted(depths) and len({describe(each.config) for each in candidates}) == len(candidates)

    def test_ceilings(self):
        """The tightest is used up; none is exceeded."""
        setting = StepSetting(8, 128)
        candidates = plan("bert", Budget(flops=50e6, memory=2e9), setting=setting)
        for each in candidates:
            assert each.flops_per_unit <= 50e6 and each.memory.peak <= 2e9
            assert max(each.flops_per_unit / 50e6, each.memory.peak / 2e9) >= 0.99
        every = plan("gpt", Budget(parameters=30e6), setting=setting)
        ceiling = sorted(each.flops_per_unit for each in every)[len(every) // 2]
        both = plan("gpt", Budget(parameters=30e6, flops=ceiling), setting=setting)
        assert 0 < len(both) < len(every) and all(each.flops_per_unit <= ceiling for each in both)

    def test_starting_point_and_dials(self):
        start = load_shape("bert/base")
        (only,) = plan("bert", dials=Dials(layers=6, heads=24, head_dim=32, mlp_ratio=2), start=start)
        config = only.config
        assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (6, 24, 32)
        assert config.intermediate_size == 2 * config.hidden_size
        assert only.parameters_over_start == pytest.approx(1, abs=0.01)
        solved = plan("bert", dials=Dials(layers=6), start=start)  # by width, by MLP, by heads
        assert sorted(each.config.intermediate_size != 3072 for each in solved) == [False, True, True]
        (same,) = plan("bert", dials=Dials(heads=24, width=768, mlp=3072, layers=12), start=start)
        assert same.config.head_dim == 32 and same.parameters_over_start == 1
        (half,) = plan("bert", dials=Dials(12, 768, 12, 64, mlp=1536), start=start)  # nothing to solve
        assert half.config.intermediate_size == 1536 and half.parameters_over_start < 0.8

    def test_costs_are_the_configurations(self):
        setting = StepSetting(4, 256, "bfloat16")
        for each in plan("gpt", Budget(parameters=30e6), setting=setting, rows=3):
            config, row = each.config, json.loads(json.dumps(each.document()))
            flops = config.count_flops(256)
            assert row["parameters"] == config.count_parameters().total
            assert row["flops_forward"] == flops.forward / 256
            assert row["flops_training_step"] == pytest.approx(flops.training_step / 256)
            assert row["flops_attention"] + row["flops_linear"] == pytest.approx(row["flops_forward"])
            assert row["kv_bytes_per_token"] == config.kv_bytes_per_token(2)
        image = plan("vit", Budget(parameters=30e6), rows=1)[0]
        assert image.flops_per_unit == image.config.count_flops().forward and image.kv_bytes_per_token is None

    def test_three_digits(self):
        assert list(map(human, (9.996, 999.4, 999.7, 999_600))) == ["10", "999", "1000", "1000K"]

    def test_a_load_that_goes_in_steps_stays_below_its_ceiling(self):
        """Heads in whole groups of four: eight are too many, four are not."""

        def load(heads):
            return 0.6 * -(-heads // 4)

        heads = planner.solve_value(load, "heads", 0)
        assert load(heads) == pytest.approx(0.6)

    def test_grouped_heads_stay_grouped(self):
        start = load_shape("gpt/base", num_key_value_heads=4)
        (only,) = plan("gpt", dials=Dials(layers=6, heads=24, mlp_ratio=4), start=start)
        assert only.config.num_key_value_heads == 4
        (only,) = plan("gpt", dials=Dials(layers=6, heads=24, mlp_ratio=4), start=load_shape("gpt/base"))
        assert only.config.num_key_value_heads == 24
        for dials in (Dials(), Dials(layers=6)):
            for each in plan("gpt", dials=dials, start=start):
                assert each.config.num_key_value_heads == 4 and each.config.num_attention_heads % 4 == 0

    def test_inputs(self):
        config = with_inputs(load_shape("gpt/base"), length=2048, vocab_size=300)
        assert (config.max_position_embeddings, config.vocab_size, config.eos_token_id) == (2048, 300, 299)
        several = load_shape("gpt/base", eos_token_id=[50256, 7])
        assert with_inputs(several, vocab_size=300).eos_token_id == [299, 7]
        assert with_inputs(load_shape("gpt/base"), length=64).max_position_embeddings == 1024
        assert with_inputs(load_shape("vit/base"), image_size=384).num_patches == 576
        varied = load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}})
        assert with_inputs(varied, length=64).heads_per_layer == varied.heads_per_layer

    @pytest.mark.parametrize(
        ("text", "unit", "value"),
        [
            ("30M", "", 30e6),
            ("1.5g", "", 1.5e9),
            ("2e9", "", 2e9),
            ("8GB", "B", 8e9),
            ("2 GiB", "B", 2**31),
            ("5ms", "s", 5e-3),
        ],
    )
    def test_units(self, text, unit, value):
        assert parse_size("--x", text, unit) == pytest.approx(value)


class TestBadInput:
    """One line that names the flag and what was expected."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--params 30M", "--family: expected one of vit, bert, gpt, or --like SHAPE"),
            ("--family gpt", "nothing to plan for: give --params"),
            ("--family gpt --params 30Q", "--params 30Q: expected a number above 0 with a unit, as 30M"),
            ("--family gpt --params -3M", "--params -3M"),
            ("--family gpt --memory 8", "--memory 8: .* as 8GB or 512MiB"),
            ("--family gpt --latency 5", "--latency 5: .* as 5ms"),
            ("--family gpt --like bert/base", "--like bert/base: a bert shape, but --family is gpt"),
            ("--like gpt/huge", "--like gpt/huge: unknown shape .*; did you mean gpt/base."),
            ("--like mine.json", "--like mine.json: "),
            ("--like gpt/base --image-size 8", "--like gpt/base: --image-size 8: gpt has no such input"),
            ("--family gpt --params 30M --head-dim 7", "--head-dim 7: no fused attention kernel takes it"),
            ("--family gpt --params 30M --layers 0", "--layers 0: expected a number above 0"),
            ("--family gpt --params 30M --mlp 64 --mlp-ratio 2", "--mlp and --mlp-ratio: expected one of them"),
            ("--family vit --params 30M --image-size 30", "--image-size 30: .*: height 30 is not a multiple"),
            ("--family gpt --params 30M --pick 99 --write x.json", "--pick 99: expected a row from 1 to 6"),
            ("--family gpt --params 30M --pick 2", "--pick 2: .* --write NAME"),
            ("--family gpt --params 1e300", "--params 1e300: expected 1 to 1e.18, as 30M"),
            ("--family gpt --params 30M --mlp-ratio nan", "--mlp-ratio nan: expected a number above 0"),
            ("--family gpt --params 30M --layers 100000", "--layers 100000: expected at most 1000"),
            ("--family gpt --params 30M --width 99999999999999999999999999", "--width 9*: expected at most 131072"),
            ("--family gpt --params 30M --write ..", "--write '..'"),
            ("--family gpt --layers 2 --width 100 --heads 3 --mlp 7", "--heads 3: does not divide --width 100; give"),
            ("--family gpt --params 30M --layers 2 --width 64", "what fits is no shape to recommend: .*give --mlp"),
            ("--family bert --params 400M --width 64 --mlp 256", "what fits [^;]* give --heads"),
            ("--family gpt --params 1B --layers 1 --width 8", "no shape fits: .* under --params 1B"),
            ("--family gpt --params 10K", "no shape fits: the nearest, 2 layers × 1, .*, 5.18 times --params 10K"),
            (
                "--family gpt --params 30M --memory 100MB",
                r"none of 20 shapes tried \(fixed: none; head sizes 32, 64\) fits --params 30M and --memory 100MB "
                "together: the nearest, .* times --memory 100MB",
            ),
            (
                "--family gpt --params 30M --layers 4 --width 256 --heads 4 --head-dim 64 --mlp 1024",
                "no shape fits: the nearest, 4 layers × 256, .*, takes 16.3M, 45.7% under --params 30M",
            ),
        ],
    )
    def test_one_line(self, leaner, words, message):
        result = leaner(*words.split())
        assert result.exit_code == 1 and result.stdout == "", result.output
        assert re.match(f"leaner plan: {message}", result.stderr), result.stderr
        assert result.stderr.count("\n") == 1

    def test_heads_that_are_wanted_are_no_objection(self):
        """Heads × size three times the width, and one layer per value of the width, where the dials say so."""
        (wide,) = plan("gpt", Budget(parameters=30e6), Dials(layers=6, heads=24, head_dim=64))
        assert wide.config.num_attention_heads * 64 > 1.5 * wide.config.hidden_size
        deep = shape_at(load_shape("gpt/base"), Dials(300, 64, 8, 8))
        assert "far deeper than wide" in planner.proportion_objection(deep, Dials())
        assert planner.proportion_objection(deep, Dials(layers=300)) is None
        assert planner.proportion_objection(deep, Dials(width=64)) is None
        with pytest.raises(NoShapeFits, match="heads × head size far from the width: give --head-dim with --heads"):
            plan("gpt", Budget(parameters=30e6), Dials(heads=64))

    @staticmethod
    def least_memory(head_dim):
        """Of the language models of 30M parameters with this head size, in bytes."""
        candidates = plan("gpt", Budget(parameters=30e6), Dials(head_dim=head_dim))
        return min(training_memory(each.config, DEFAULT_STEP).peak for each in candidates)

    def test_no_claim_beyond_what_was_tried(self):
        """With another head size there is a shape for what none of the shapes tried fits."""
        least = {size: self.least_memory(size) for size in (32, 64, 128)}
        assert least[128] < least[64] < least[32]
        budget = Budget(parameters=30e6, memory=(least[128] + least[64]) / 2)
        with pytest.raises(NoShapeFits, match=r"none of 20 shapes tried \(fixed: none; head sizes 32, 64\)") as caught:
            plan("gpt", budget)
        assert caught.value.goal.name == f"--memory {human(budget.memory)}B"
        assert plan("gpt", budget, Dials(head_dim=128))
        with pytest.raises(NoShapeFits, match="fixed: --layers 12 --mlp-ratio 4"):
            plan("gpt", budget, Dials(layers=12, mlp_ratio=4))

    def test_another_familys_start(self):
        with pytest.raises(ValueError, match="--like: a bert shape; expected one of --family gpt"):
            plan("gpt", start=load_shape("bert/base"))


GOLDEN = json.loads((Path(__file__).parent / "golden/plans.json").read_text())


class TestCommand:
    QUESTION = ("--family", "gpt", "--params", "30M", "--layers", 6)

    @pytest.mark.parametrize("words", GOLDEN)
    def test_shapes_and_costs_stay(self, leaner, words):
        """As they were when the file was written; advice and recommendation may change."""
        document = json.loads(leaner(*words.split(), "--json").output)
        for row in filter(None, (document["start"], *document["candidates"])):
            row.pop("advice")
        assert {name: document[name] for name in ("start", "candidates")} == GOLDEN[words]

    @pytest.mark.parametrize(
        "words",
        [
            "--family vit --params 10M",
            "--family gpt --params 30M --advice",
            "--family bert --params 30M --advice --vocab-size 8192 --length 512",
            "--like vit/base --flops 20G --memory 800GB --batch 999 --advice",
        ],
    )
    def test_columns_fit(self, leaner, words):
        text = leaner(*words.split()).output
        assert text and "…" not in text
        assert max(len(line) for line in text.splitlines() if not line.startswith(("Save", "Try"))) <= 110

    def test_the_recommended_row(self, leaner):
        """The nearest to the fit, in the table, in the document and in what --write saves."""
        words = "--family gpt --params 30M --vocab-size 8192 --length 512".split()
        assert re.search(r"^  4  12 × 416 .* recommended$", leaner(*words).output, flags=re.MULTILINE)
        document = json.loads(leaner(*words, "--json").output)
        best = document["candidates"][document["recommended"]["row"] - 1]
        nearest = min(document["candidates"], key=lambda row: abs(row["advice"]["fit"]["number"]))
        assert best == nearest and best["layers"] == 16

    def test_what_was_refuted_here_is_said(self, leaner):
        text = leaner(*"--like gpt/mini --layers 4 --heads 6 --length 128".split()).output
        assert "enwik8-text-causal-curves" in text and "recommended" not in text
        assert "enwik8" not in leaner(*"--like gpt/mini --layers 4 --length 128".split()).output

    def test_advice_names_rows(self, leaner):
        """Each source with the rows that it favours or opposes, by their verdicts."""
        words = "--family gpt --params 30M --vocab-size 8192 --length 512".split()
        lines = leaner(*words, "--advice").output.splitlines()
        (delusion,) = (line for line in lines if line.startswith("Depth Delusion"))
        assert re.match(r"Depth Delusion 2026  +1 2 3 4  +5 6  +language", delusion)

    @pytest.mark.parametrize(
        "question",
        [
            "--family vit --params 200K --image-size 8 --patch-size 4",
            pytest.param("--like bert/nano --layers 2 --length 128", marks=pytest.mark.full),
        ],
    )
    def test_the_next_two_commands(self, leaner, tmp_path, monkeypatch, question):
        """What is printed last runs when it is pasted; another time another file is named, for nothing is replaced."""
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            lines = leaner(*question.split()).output.splitlines()
            save, train = (shlex.split(line.split(":", 1)[1], comments=False) for line in lines[-2:])
            train = train[: train.index("--max_steps") + 2]
            assert save[:2] == ["leaner", "plan"] and train[:2] == ["leaner", "train"]
            path = Path(f"{save[-1]}.json")
            assert not path.exists()
            result = CliRunner().invoke(app, save[1:])
            assert result.exit_code == 0, result.output
            row = int(save[save.index("--pick") + 1])
            shown = re.search(rf"^ *{row} +\d+ × (\d+)", result.output, flags=re.MULTILINE)
            assert load_config(str(path)).hidden_size == int(shown[1])
        assert path.stem.endswith("-2")
        train[train.index("--max_steps") + 1] = "1"
        quick = ["--max_train_rows", "8", "--max_eval_rows", "2", "--hardware", "cpu"]
        quick += ["--per_device_train_batch_size", "2", "--eval_strategy", "no", "--save_strategy", "no"]
        result = CliRunner().invoke(app, [*train[1:], *quick])
        assert result.exit_code == 0, result.output
        assert list(tmp_path.glob("runs/*/*/model.safetensors"))

    @pytest.mark.parametrize("family", ["vit", "bert", "gpt"])
    def test_the_first_training_takes_minutes(self, family):
        """Its steps are as many as two minutes of a laptop allow, by the rows and tokens of the recipe's own steps."""
        first = FAMILIES[family].first_recipe
        _, recipe = read_recipe(first.name)
        assert first.rows == recipe["per_device_train_batch_size"]
        assert family == "vit" or first.tokens <= recipe["max_length"]
        config = load_shape(f"{family}/base")
        steps = int(training_command(config, Path("x.json")).split()[-1])
        length = config.default_length if first.tokens is None else first.tokens
        flops = steps * first.rows * training_flops(config, length)
        assert steps == 1 or flops <= 1.2e13, steps
        assert flops > 0.5e13, steps

    def test_write(self, leaner, tmp_path, monkeypatch):
        """A name is a file of the working folder, else a path; an existing file stays."""
        monkeypatch.chdir(tmp_path)
        expected = plan("gpt", Budget(parameters=30e6), Dials(layers=6))[1].config
        fields = json.loads((shapes.shapes_folder() / "gpt/base.json").read_text()).keys()
        for name, path in (
            (tmp_path / "a.json", tmp_path / "a.json"),
            ("thirty", Path("thirty.json")),
            ("MINE.JSON", Path("MINE.JSON")),
        ):
            result = leaner(*self.QUESTION, "--pick", 2, "--write", name)
            assert result.exit_code == 0, result.output
            for loaded in (AutoConfig.from_pretrained(path), load_config(str(path))):
                assert describe(loaded) == describe(expected)
                assert loaded.count_parameters() == expected.count_parameters()
            assert json.loads(path.read_text()).keys() == fields
            before = path.read_bytes()
            again = leaner(*self.QUESTION, "--pick", 2, "--write", name)
            assert again.exit_code == 1 and "exists already" in again.stderr
            assert path.read_bytes() == before
        result = leaner(*self.QUESTION, "--write", tmp_path / "no" / "c.json")
        assert result.exit_code == 1 and "cannot be written" in result.stderr, result.stderr

    def test_nothing_is_written_by_halves(self, leaner, tmp_path, monkeypatch):
        """A disk that is full when the file is to appear leaves no file, and no temporary one."""

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        result = leaner(*self.QUESTION, "--write", tmp_path / "x.json")
        assert result.exit_code == 1 and "No space left" in result.stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_a_terminal_that_cannot_show_it(self, form, tmp_path):
        words = ["plan", *map(str, self.QUESTION), "--write", str(tmp_path / "é.json"), *form]
        result = CliRunner(charset="ascii").invoke(app, words)
        assert result.exit_code == 0 and (tmp_path / "é.json").is_file(), result.stderr

    def test_a_shape_is_priced_without_a_start(self, leaner):
        words = "--family gpt --layers 4 --width 96 --heads 3 --mlp 100 --json"
        (only,) = json.loads(leaner(*words.split()).output)["candidates"]
        assert [only[name] for name in ("layers", "width", "heads", "head_dim", "mlp")] == [4, 96, 3, 32, 100]

    def test_heads_and_groups(self, leaner, tmp_path):
        """Heads that vary are shown as such, and refusals name the flag."""
        load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}}).save_pretrained(tmp_path / "varied")
        fewest = min(load_config(str(tmp_path / "varied")).heads_per_layer)
        assert f" {fewest}-9 ×" in leaner("--like", tmp_path / "varied", "--layers", 4).output
        load_shape("gpt/base", num_key_value_heads=4).save_pretrained(tmp_path / "grouped")
        result = leaner("--like", tmp_path / "grouped", "--heads", 7)
        assert result.stderr == "leaner plan: --heads 7: expected a multiple of the 4 key-value heads\n"

    def test_a_folder_and_heads_of_each_layer(self, leaner, tmp_path):
        load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}}).save_pretrained(tmp_path)
        document = json.loads(leaner("--like", tmp_path, "--layers", 4, "--heads", 7, "--json").output)
        start = load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}})
        assert document["start"]["parameters"] == start.count_parameters().total
        assert {each["head_dim"] % 8 for each in document["candidates"]} == {0}

    def test_arithmetic_builds_no_model(self, leaner, monkeypatch):
        monkeypatch.setattr(transformers.PreTrainedModel, "__init__", lambda *_: pytest.fail("a model was built"))
        assert leaner("--family", "vit", "--params", "20M").exit_code == 0


class TestMeasure:
    SMALL = ("--like", "gpt/nano", "--length", 16, "--batch", 2, "--layers", 3, "--measure")

    def test_measurements(self):
        configs = [load_shape("gpt/nano"), load_shape("gpt/nano", num_hidden_layers=1)]
        setting = StepSetting(2, 32)
        deep, shallow = measure(configs, setting, rounds=3)
        assert deep["training_step_s"] > shallow["training_step_s"] > deep["inference_s"] / 10 > 0
        assert deep["training_items_per_second"] == 2 / deep["training_step_s"]
        assert deep["latency_s"] > 0 and deep["latency_s_spread"] >= 0
        for row, config in ((deep, configs[0]), (shallow, configs[1])):
            assert row["peak_memory_bytes"] == pytest.approx(training_memory(config, setting).peak, rel=0.15)

    def test_table_and_json(self, leaner):
        assert " ± " in leaner(*self.SMALL).output
        document = json.loads(leaner(*self.SMALL, "--json").output)
        assert document["start"]["measured"]["training_step_s"] > 0
        assert document["candidates"][0]["measured"]["peak_memory_bytes"] > 0

    TINY = ("--family", "gpt", "--vocab-size", 64, "--length", 16, "--batch", 1)

    @pytest.fixture
    def one_thread(self):
        """Several threads wait for one another where other work has the cores: then milliseconds become tenths."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    @pytest.mark.full
    def test_latency(self, leaner, one_thread):
        """A ceiling in time: what is kept is below it; one that nothing meets names the nearest."""
        words = (*self.TINY, "--layers", 2)
        result = leaner(*words, "--latency", "30ms", "--json")
        assert result.exit_code == 0, result.output
        candidates = json.loads(result.stdout)["candidates"]
        assert candidates and all(each["measured"]["latency_s"] <= 0.03 for each in candidates)
        result = leaner(*words, "--latency", "1us")
        assert result.exit_code == 1 and "no shape that was measured fits: the nearest, 2 layers" in result.stderr
        assert "--latency 0.001ms" in result.stderr and "--flops" not in result.stderr
        result = leaner(*words, "--latency", "1us", "--flops", "1")
        assert "times --flops 1" in result.stderr, result.stderr

    @pytest.fixture
    def clock(self, monkeypatch):
        """Sets how long a FLOP takes, of a width, and how much slower it is in the measurement; holds what it said."""

        def set_to(pace, slower=1):
            said = []

            def latencies(configs, setting):
                return [pace(each.hidden_size) * cost_of(each, setting).flops_per_unit for each in configs]

            def made_up_measure(configs, setting):
                said.append([slower * each for each in latencies(configs, setting)])
                names = ("training_step_s", "inference_s", "latency_s", "peak_memory_bytes")
                names += ("training_items_per_second", "inference_items_per_second")
                return [dict.fromkeys((*names, *(f"{name}_spread" for name in names)), each) for each in said[-1]]

            monkeypatch.setattr(measured_shapes, "latencies", latencies)
            monkeypatch.setattr(measured_shapes, "measure", made_up_measure)
            return said

        return set_to

    DIALS = {"width": ("--layers", 2), "layers": ("--width", 128, "--heads", 4, "--mlp", 512)}  # by what is free

    @pytest.mark.parametrize(
        "free, limit, slower, measurements",
        [("width", 0.03, *each) for each in ((1, 1), (1.1, 1), (2, 2), (8, 3), (200, 4))]
        + [("layers", 0.002, *each) for each in ((2, 2), (200, 3))],  # one layer is the least
    )
    def test_a_machine_that_slows_down(self, leaner, clock, free, limit, slower, measurements):
        """Shapes above the limit when they are measured at last are made smaller, a bounded number of times."""
        said = clock(lambda width: 1e-10, slower)
        result = leaner(*self.TINY, *self.DIALS[free], "--latency", f"{limit}s", "--json")
        assert len(said) == measurements, result.output
        if slower == 200:
            assert result.exit_code == 1 and f"times --latency {1e3 * limit:g}ms" in result.stderr
            return
        rows = json.loads(result.stdout)["candidates"]
        for row in rows:  # each beside its own measurement
            assert row["measured"]["latency_s"] == pytest.approx(slower * 1e-10 * row["flops_forward"])
            assert limit / 3 < row["measured"]["latency_s"] <= limit
        assert rows

    @pytest.mark.parametrize("free", DIALS)
    @pytest.mark.parametrize("of_small", [1 / 3, 3])
    def test_the_search_follows_the_clock(self, leaner, clock, free, of_small):
        """The base's FLOPs a second, from which it begins, are not those of smaller shapes."""
        clock(lambda width: 1e-10 * (1 if width > 500 else of_small))
        result = leaner(*self.TINY, *self.DIALS[free], "--latency", "2ms", "--json")
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)["candidates"]
        assert rows and all(0.0012 < row["measured"]["latency_s"] <= 0.002 for row in rows)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
    def test_a_gpu_is_asked_for_in_vain(self, leaner):
        result = leaner(*self.SMALL, "--device", "gpu")
        assert result.exit_code == 1 and "this machine has no CUDA device" in result.stderr


PAGE = (Path(__file__).parent.parent / "docs" / "choosing-a-shape.md").read_text()


@pytest.mark.parametrize("command", re.findall(r"^leaner plan (.*)$", PAGE, flags=re.MULTILINE))
def test_page(leaner, tmp_path, monkeypatch, command):
    """Every command of "How to choose a shape" runs."""
    monkeypatch.chdir(tmp_path)
    result = leaner(*shlex.split(command))
    assert result.exit_code == 0, result.output


def test_pages_python(capsys):
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, {})
    assert len(capsys.readouterr().out.splitlines()) > 5
