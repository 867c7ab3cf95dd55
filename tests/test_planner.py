"""The planner: its sources' numbers, its counts against built modules and profilers, its solver, and `leaner plan`."""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

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
from modeling_leaner.planning import advice
from modeling_leaner.planning import figure as plan_figure
from modeling_leaner.planning import solver as planner
from modeling_leaner.planning import tables as plan_report
from modeling_leaner.planning.advice import advise
from modeling_leaner.planning.dials import Dials, describe, shape_at, with_inputs
from modeling_leaner.planning.flops import training_flops
from modeling_leaner.planning.goals import Budget, NoShapeFits
from modeling_leaner.planning.memory import DEFAULT_STEP, StepSetting, training_memory
from modeling_leaner.planning.solver import cost_of, plan
from modeling_leaner.planning.units import human, parse_size
from modeling_leaner.registry import FAMILIES
from modeling_leaner.shapes import CONFIG_CLASSES, load_config, load_shape, shape_names


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

    def test_floor_and_law_are_shown_apart(self):
        said = advise(load_shape("gpt/base"))
        assert (said["floor"].agrees, said["floor"].margin) == (True, "+6.0")
        assert (said["fit"].agrees, said["fit"].margin) == (False, "-11.0")  # shallower than the fit names
        assert set(said) == set(advice.SOURCES) and len(said) == 12

    def test_extrapolation_is_marked(self):
        assert not advise(load_shape("gpt/base"))["fit"].extrapolated
        assert advise(load_shape("gpt/nano"))["fit"].extrapolated  # below 3.3M
        assert advise(load_shape("gpt/base", num_hidden_layers=49))["fit"].extrapolated
        for name in ("kaplan", "mobile", "delusion"):
            assert advise(load_shape("bert/base"))[name].extrapolated, name
        assert str(advise(load_shape("gpt/nano"))["fit"]).endswith("*")

    def test_published_shapes_agree_with_their_source(self):
        def said(family, source, start=None, length=None, **dials):
            return advise(shape_at(load_shape(f"{family}/base"), Dials(**dials)), length, start)[source]

        assert said("gpt", "mobile", layers=30, width=576, heads=9, head_dim=64, mlp=1536).agrees
        assert not said("gpt", "mobile", layers=12).agrees
        assert said("vit", "sovit", layers=27, width=1152, mlp=4304, heads=16, head_dim=72).agrees
        assert said("vit", "sovit", layers=18, width=880, mlp=2320, heads=16, head_dim=55).agrees
        assert not said("vit", "sovit", layers=6, width=1152, mlp=4304).agrees
        assert said("gpt", "sovit", layers=27).agrees is None
        for layers, width in ((48, 1600), (6, 4288)):
            assert said("gpt", "kaplan", layers=layers, width=width).agrees
        assert str(said("gpt", "kaplan", layers=48, width=1500)) == "– 31*"  # it objects to no shape
        assert said("gpt", "narrow", layers=32).agrees and not said("gpt", "narrow", layers=31).agrees
        assert said("gpt", "low-rank", head_dim=128, length=128).agrees
        assert not said("gpt", "low-rank", head_dim=120, length=128).agrees
        assert said("gpt", "lean").agrees is None and said("gpt", "petty").agrees is None

    def test_lean_says_yes_to_its_own_rows(self):
        """Unstarred only as published: an audited row of the family, and nothing but layers and head size changed."""

        def said(name, **dials):
            start = load_shape(name)
            return str(advise(shape_at(start, Dials(**dials)), None, start)["lean"])

        assert said("bert/16x12", layers=10, heads=24, head_dim=32) == "yes 0.6/2.0"
        for changed in ({"width": 960}, {"mlp": 5824}, {"head_dim": 64}):
            assert said("bert/16x12", **{"layers": 10, "heads": 24, "head_dim": 32} | changed) == "yes 0.6/2.0*"
        assert said("bert/base", layers=6, heads=18) == "yes 0.5/1.5*"  # XCiT-L's shares, on text
        assert said("vit/base", layers=6, heads=24, head_dim=32) == "yes 0.5/2.0*"  # XCiT-M, not audited
        for dials in ({"layers": 4, "heads": 24}, {"layers": 12, "heads": 24}, {"layers": 8, "heads": 12}):
            assert said("bert/base", **dials).startswith("– "), dials
        audited = [row.model for row in advice.LEAN_ROWS if row.audited]
        assert audited == ["XCiT-L", "BERT"]

    def test_petty_weighs_time_against_generalisation(self):
        start = load_shape("gpt/base")
        assert str(advise(shape_at(start, Dials(layers=6)), None, start)["petty"]) == "– 0.50"
        assert advise(shape_at(start, Dials(layers=1, width=256)), None, start)["petty"].extrapolated  # below 41M
        assert advise(load_shape("bert/base"), None, load_shape("bert/base"))["petty"].extrapolated
        assert "fewer layers generalise less" in advice.SOURCES["petty"].optimises

    @pytest.mark.parametrize(
        ("source", "dials", "starred"),
        [
            ("delusion", {"layers": 12}, False),
            ("delusion", {"layers": 2, "width": 64}, True),  # below 17M
            ("mobile", {"layers": 12}, False),  # 124M
            ("mobile", {"layers": 10}, True),  # 110M
            ("mobile", {"layers": 48}, True),  # 379M
            ("narrow", {"layers": 32}, True),  # no family here is T5
            ("low-rank", {}, True),  # causal attention is not strictly positive
            ("kaplan", {}, False),
        ],
    )
    def test_stars_follow_the_printed_range(self, source, dials, starred):
        assert advise(shape_at(load_shape("gpt/base"), Dials(**dials)))[source].extrapolated is starred

    def test_stars_of_other_families(self):
        bert, image = advise(load_shape("bert/base")), load_shape("vit/base")
        assert bert["narrow"].extrapolated and not bert["low-rank"].extrapolated
        assert advise(image)["sovit"].extrapolated  # 86M
        for layers, width, mlp, heads, size in ((18, 880, 2320, 16, 55), (27, 1152, 4304, 16, 72)):
            config = shape_at(image, Dials(layers, width, heads, size, mlp))
            assert not advise(config)["sovit"].extrapolated

    def test_signs_are_one_way(self):
        """+ is deeper than the source names, − shallower; what is printed decides, and no zero is negative."""
        for layers, sign in ((90, "+"), (2, "-")):
            said = advise(load_shape("gpt/base", num_hidden_layers=layers))
            for name in ("floor", "fit", "narrow", "mobile", "delusion"):
                assert said[name].margin.startswith(sign), name
        for width in range(500, 525):  # 16 layers are the critical depth of 512
            said = str(advise(shape_at(load_shape("gpt/base"), Dials(layers=16, width=width)))["delusion"])
            assert "-0.0" not in said and said.startswith("no" if "+0.0" not in said and "+" in said else "yes"), said

    def test_rank_of_the_input(self):
        assert not advise(load_shape("gpt/base", vocab_size=256, bos_token_id=1, eos_token_id=1))["rank"].agrees
        assert advise(load_shape("gpt/base"))["rank"].agrees
        assert advice.input_rank(load_shape("vit/base")) == 3 * 16 * 16
        assert not advise(load_shape("vit/tiny"))["rank"].agrees  # patches of 4×4×3

    def test_head_sizes(self):
        able = {size: sum(advice.kernels_for(size).values()) for size in (7, 8, 16, 32, 64, 128, 264)}
        assert able == {7: 1, 8: 2, 16: 3, 32: 4, 64: 5, 128: 5, 264: 2}
        assert [advice.has_fused_kernel(size) for size in (7, 8, 256, 264)] == [False, True, True, False]

    def test_every_source_says_what_and_where(self):
        for source in advice.SOURCES.values():
            assert source.optimises and source.valid and source.reference


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
    """Random starting points and fixed dials: every candidate has the start's parameters, or FLOPs; budgets hold."""
    dice, solved = random.Random(0), 0
    names = [name for name in shape_names() if "nano" not in name]
    while solved < questions:
        start = load_shape(dice.choice(names))
        family, equal = shapes.family_of(start), dice.choice(["params", "flops"])
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
            candidates = plan(family, Budget(equal=equal), dials, start=start)
        except NoShapeFits as error:
            assert "the nearest" in str(error)
            assert dials.mlp_ratio is None or start.hidden_size < 128, f"{start.name_or_path} {dials}: {error}"
            continue
        for each in candidates:
            ratio = each.parameters_over_start if equal == "params" else each.flops_over_start
            assert abs(ratio - 1) <= 0.01 + 1e-9, (dials, describe(each.config))
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
        assert only.advice["lean"].agrees
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
            ("--family gpt --params 30M --rows 0", "--rows 0: expected a number above 0"),
            ("--params 30M", "--family: expected one of vit, bert, gpt, or --like SHAPE"),
            ("--family rnn --params 30M", "--family rnn: expected one of vit, bert, gpt"),
            ("--family gpt", "nothing to plan for: give --params, --flops, --memory, --latency or --like SHAPE"),
            ("--family gpt --params 30Q", "--params 30Q: expected a number above 0 with a unit, as 30M, 1.5G or 2e9"),
            ("--family gpt --params -3M", "--params -3M: expected a number above 0 with a unit"),
            ("--family gpt --memory 8", "--memory 8: expected a number above 0 with a unit, as 8GB or 512MiB"),
            ("--family gpt --memory 8M", "--memory 8M: expected a number above 0 with a unit"),
            ("--family gpt --flops 5GB", "--flops 5GB: expected a number above 0 with a unit"),
            ("--family gpt --latency 5", "--latency 5: needs --measure, for time is measured on this machine"),
            (
                "--family gpt --latency 5 --measure",
                "--latency 5: expected a number above 0 with a unit, as 5ms or 0.1s",
            ),
            ("--family gpt --like bert/base", "--like bert/base: a bert shape, but --family is gpt"),
            ("--like gpt/huge", "--like gpt/huge: unknown shape 'gpt/huge'; did you mean gpt/base."),
            ("--like mine.json", "--like mine.json: no file mine.json\n"),
            ("--family gtp --params 30M", "--family gtp: expected one of vit, bert, gpt; did you mean gpt."),
            ("--family gpt --params 30M --dtype float3", "--dtype float3: expected one of .*; did you mean float32."),
            (
                "--family gpt --params 30M --rows 1 --plot no/x",
                "--plot no/x: no/x.png cannot be written (no folder no)",
            ),
            (
                "--like /nowhere",
                "--like /nowhere: /nowhere: no such file or folder",
            ),
            ("--like gpt/base --image-size 8", "--like gpt/base: --image-size 8: gpt has no such input"),
            ("--like gpt/base --params 30M --equal flops", "--equal flops: needs --like SHAPE and no --params"),
            (
                "--family gpt --params 30M --head-dim 7",
                "--head-dim 7: no fused attention kernel takes it; expected 8, 16",
            ),
            ("--family gpt --params 30M --head-dim 512", "--head-dim 512: no fused attention kernel takes it"),
            ("--family gpt --params 30M --layers 0", "--layers 0: expected a number above 0"),
            ("--family gpt --params 30M --mlp 64 --mlp-ratio 2", "--mlp and --mlp-ratio: expected one of them"),
            ("--family gpt --params 30M --batch 0", "--batch 0: expected a number above 0"),
            ("--family gpt --params 30M --dtype int8", "--dtype int8: expected one of float32, bfloat16, float16"),
            ("--family gpt --params 30M --image-size 32", "--image-size 32: gpt has no such input"),
            ("--family vit --params 30M --length 32", "--length 32: vit has no such input"),
            (
                "--family vit --params 30M --image-size 30",
                "--image-size 30: .*: height 30 is not a multiple of patch_size 16",
            ),
            ("--family gpt --params 30M --pick 99 --write x.json", "--pick 99: expected a row from 1 to"),
            ("--family gpt --params 30M --pick 2", "--pick 2: is the row that --write NAME saves; expected both"),
            ("--family gpt --params 1e400", "--params 1e400: expected 1 to 1e.18, as 30M"),
            ("--family gpt --params 1e300", "--params 1e300: expected 1 to 1e.18, as 30M"),
            ("--family gpt --params 1e-300", "--params 1e-300: expected 1 to 1e.18, as 30M"),
            ("--family gpt --memory 1e300TB", "--memory 1e300TB: expected 1B to 1e.18B, as 8GB"),
            ("--family gpt --flops 1e300", "--flops 1e300: expected 1 to 1e.18, as 30M"),
            ("--family gpt --params 1e18", "no shape fits: the nearest, .* under --params 1000000T"),
            ("--family gpt --params 30M --mlp-ratio inf", "--mlp-ratio inf: expected at most 1024"),
            ("--family gpt --params 30M --mlp-ratio 1e308", "--mlp-ratio 1e[+]308: expected at most 1024"),
            ("--family gpt --params 30M --mlp-ratio nan", "--mlp-ratio nan: expected a number above 0"),
            ("--family gpt --params 30M --layers 100000", "--layers 100000: expected at most 1000"),
            ("--family gpt --params 30M --width 99999999999999999999999999", "--width 9*: expected at most 131072"),
            ("--family gpt --params 30M --batch 99999999999999999999", "--batch 9*: expected at most 16777216"),
            ("--family gpt --params 30M --length 99999999999999999999", "--length 9*: expected at most 16777216"),
            ("--family gpt --params 30M --write ..", "--write '..': expected letters, digits"),
            ("--family gpt --params 30M --write .", "--write '.': expected letters, digits"),
            ("--family gpt --params 30M --write a.csv", "--write a.csv: a shape is a JSON file, expected"),
            ("--family gpt --params 30M --write ./a.YAML", "--write ./a.YAML: a shape is a JSON file"),
            ("--family gpt --params 30M --write .hidden", "--write '.hidden': expected letters, digits"),
            ("--family gpt --params 30M --write café", "--write 'café': expected letters, digits"),
            ("--family gpt --params 30M --write ./.x", "--write ./.x: .x.json is hidden or no name"),
            ("--family gpt --layers 2 --width 100 --heads 3 --mlp 7", "--heads 3: does not divide --width 100; give"),
            (
                "--family gpt --params 3B --memory 1GB --layers 4",
                ".* and --memory 1GB together: .*, takes .*GB, .* times",
            ),
            (
                "--family gpt --params 30M --layers 2 --width 64",
                "what fits is no shape to recommend: 2 layers × 64, 2 heads × 32, MLP 103424 has an MLP of more "
                "than 64 times the width: give --mlp if that is wanted",
            ),
            (
                "--family bert --params 400M --width 64 --mlp 256",  # one reason, of every depth
                "what fits [^;]* has heads × head size of more than 64 times the width: give --heads if that is .*",
            ),
            ("--family gpt --params 1B --layers 1 --width 8", "no shape fits: .* under --params 1B"),
            (
                "--family gpt --params 10K",
                "no shape fits: the nearest, 2 layers × 1, .*, 5.18 times --params 10K",
            ),
            (
                "--family gpt --params 30M --memory 100MB",
                "none of 20 shapes tried (fixed: none; head sizes 32, 64) fits --params 30M and --memory 100MB "
                "together: the nearest, .* times --memory 100MB",
            ),
            (
                "--family gpt --params 30M --layers 4 --width 256 --heads 4 --head-dim 64 --mlp 1024",
                "no shape fits: the nearest, 4 layers × 256, .*, takes 16.3M, 45.7% under --params 30M",
            ),
            (
                "--like gpt/base --layers 3 --width 768 --heads 12 --mlp 3072 --equal params",
                "no shape fits: .* under parameters of --like",
            ),
        ],
    )
    def test_one_line(self, leaner, words, message):
        result = leaner(*words.split())
        assert result.exit_code == 1 and result.stdout == "", result.output
        assert re.match("leaner plan: .*" + message.replace("(", r"\(").replace(")", r"\)"), result.stderr), (
            result.stderr
        )
        assert result.stderr.count("\n") == 1

    def test_heads_that_are_wanted_are_no_objection(self):
        """Heads × size three times the width, and one layer per value of the width, where the dials say so."""
        (wide,) = plan("gpt", Budget(parameters=30e6), Dials(layers=6, heads=24, head_dim=64))
        assert wide.config.num_attention_heads * 64 > 1.5 * wide.config.hidden_size
        deep = shape_at(load_shape("gpt/base"), Dials(300, 64, 8, 8))
        assert "far deeper than wide" in planner.objection(deep, Dials())
        assert planner.objection(deep, Dials(layers=300)) is None is planner.objection(deep, Dials(width=64))
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
        goal = caught.value.goal
        assert (goal.budget, goal.name) == ("memory", f"--memory {human(budget.memory)}B")
        assert "contradict" not in str(caught.value)
        assert plan("gpt", budget, Dials(head_dim=128))
        with pytest.raises(NoShapeFits, match="fixed: --layers 12 --mlp-ratio 4"):
            plan("gpt", budget, Dials(layers=12, mlp_ratio=4))

    def test_another_familys_start(self):
        with pytest.raises(ValueError, match="--like: a bert shape; expected one of --family gpt"):
            plan("gpt", start=load_shape("bert/base"))


class TestCommand:
    QUESTION = ("--like", "bert/16x12", "--layers", 10, "--heads", 24, "--head-dim", 32, "--length", 128)

    def test_table(self, leaner):
        """Costs, a sentence a row, what was assumed, what is next; no matrix."""
        result = leaner(*self.QUESTION)
        assert result.exit_code == 0, result.output
        text = result.output
        for words in ("start", "16×768", "24×32", "FlashInfer does not take heads of 32", "not ranked"):
            assert words in text, words
        assert text.splitlines()[:4] == [
            "bert: 2 shapes fit, by depth.",
            "Given: sequences of 128 tokens.",
            "As in bert/16x12: a vocabulary of 30,522.",
            "Assumed: batch 8, float32, lean attention, cpu.",
        ]
        assert not re.search(r"\b(yes|no) [+-]?[0-9.]+", text) and "2006.12467" not in text

    def test_all_verdicts(self, leaner):
        text = leaner(*self.QUESTION, "--advice").output
        for name, source in advice.SOURCES.items():
            assert re.search(rf"^{name} ", text, flags=re.MULTILINE) and source.reference in text, name
        setting, dials = StepSetting(8, 128), Dials(10, None, 24, 32)
        for each in plan("bert", dials=dials, setting=setting, start=load_shape("bert/16x12")):
            assert str(each.advice["fit"]) in text

    @pytest.mark.parametrize(
        "words",
        [
            "--family vit --params 10M",
            "--family gpt --params 30M",
            "--family gpt --params 30M --rows 20 --advice",
            "--family bert --params 30M --advice --vocab-size 8192 --length 512",
            "--like vit/base --equal flops --memory 800GB --batch 999 --advice",
            "--like bert/16x12 --layers 10 --heads 24 --head-dim 32 --length 128 --advice",
        ],
    )
    def test_a_hundred_columns(self, leaner, words):
        text = leaner(*words.split()).output
        assert max(map(len, text.splitlines())) <= 100 and "…" not in text

    def test_six_rows_and_how_to_see_all(self, leaner):
        every = plan("vit", Budget(parameters=10e6))
        text = leaner("--family", "vit", "--params", "10M").output
        first, assumed = text.splitlines()[:2]
        assert first == f"vit: 6 of the {len(every)} shapes that fit, by depth (--rows {len(every)} shows all)."
        assert assumed == (
            "Assumed: images of 224×224 pixels, patches of 16×16, batch 8, float32, lean attention, cpu."
        )
        assert re.findall(r"^ *(\d) +\d+×", text, flags=re.MULTILINE) == list("123456")
        assert len(re.findall(r"^\d  (?:Favoured|Opposed) by", text, flags=re.MULTILINE)) == 6
        inputs = ("--image-size", 32, "--patch-size", 4, "--dtype", "bfloat16")
        given = leaner("--family", "vit", "--params", "10M", *inputs)
        assert given.output.splitlines()[1:3] == [
            "Given: images of 32×32 pixels, patches of 4×4, bfloat16.",
            "Assumed: batch 8, lean attention, cpu.",
        ]
        document = json.loads(leaner("--family", "vit", "--params", "10M", "--json").output)
        assert len(document["candidates"]) == len(every)

    def test_sentences_say_what_the_verdicts_say(self):
        """Every source that measured such a shape is on its side with its number; the others are counted."""
        for each in plan("gpt", Budget(parameters=30e6)) + plan("vit", Budget(parameters=10e6)):
            sentence = plan_report.advice_sentence(each)
            favoured, _, opposed = sentence.partition("pposed by")
            verdicts = {name: verdict for name, verdict in each.advice.items() if name != "kernels"}
            for name, verdict in verdicts.items():
                paper = f"{advice.SOURCES[name].paper} ("
                spoken = verdict.agrees is not None and not verdict.extrapolated
                assert (paper in favoured) == (spoken and verdict.agrees), (name, sentence)
                assert (paper in opposed) == (spoken and not verdict.agrees), (name, sentence)
                assert not spoken or f"{verdict.margin.lstrip('+-')} " in sentence.split(paper)[1].split(")")[0]
            others = [verdict.agrees for verdict in verdicts.values() if verdict.extrapolated]
            favour, oppose = others.count(True), others.count(False)
            if favour + oppose:
                counts = f"of {favour + oppose} that measured other models or sizes, {favour} favour and {oppose}"
                assert counts in sentence
        shallow = plan_report.advice_sentence(cost_of(load_shape("gpt/base"), StepSetting()))
        assert "Depth-Width's fit (11.0 layers below its best depth)" in shallow

    @pytest.mark.parametrize(
        "question",
        [
            "--family vit --params 200K --image-size 8 --patch-size 4",
            *(
                pytest.param(question, marks=pytest.mark.full)
                for question in (
                    "--like bert/nano --layers 2 --length 128",
                    "--family gpt --params 300K --vocab-size 600 --length 128 --rows 4",
                )
            ),
        ],
    )
    def test_the_next_two_commands(self, leaner, tmp_path, monkeypatch, question):
        """What is printed last runs when it is pasted; another time another file is named, for nothing is replaced."""
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            lines = leaner(*question.split()).output.replace(" \\\n", " ").splitlines()
            save, train = (shlex.split(line) for line in lines[-2:])
            assert save[:2] == ["leaner", "plan"] and train[:2] == ["leaner", "train"]
            path = Path(save[-1])
            assert not path.exists()
            result = CliRunner().invoke(app, save[1:])
            assert result.exit_code == 0, result.output
            assert path.is_file() and f"Train it: {shlex.join(train)}" in result.output
            row = int(save[save.index("--pick") + 1])
            every_row = question.replace("--rows 4", "").split()
            rows = json.loads(leaner(*every_row, "--json", "--rows", 6).output)["candidates"]
            assert load_config(str(path)).hidden_size == rows[row - 1]["width"]
        assert path.stem.endswith("-2")
        train[train.index("--max_steps") + 1] = "1"
        quick = ["--max_train_rows", "8", "--max_eval_rows", "2", "--hardware", "cpu"]
        quick += ["--per_device_train_batch_size", "2", "--eval_strategy", "no", "--save_strategy", "no"]
        result = CliRunner().invoke(app, [*train[1:], *quick])
        assert result.exit_code == 0, result.output
        assert list(tmp_path.glob("runs/*/*/model.safetensors"))

    def test_what_heads_cost(self, leaner, tmp_path, monkeypatch):
        """Against heads of 64, from this family's training steps with SDPA in the working folder; else nothing."""
        question = "--family gpt --params 30M --vocab-size 8192 --length 512 --advice".split()
        monkeypatch.chdir(tmp_path)
        assert "times as long" not in leaner(*question).output
        file = tmp_path / "docs/speed/heads.csv"
        file.parent.mkdir(parents=True)
        times = ("training,eager,32,9", "training,sdpa,64,200", "inference,sdpa,32,900", "training,sdpa,32,250")
        rows = [f"modeling_leaner,eager,{row},float32,cpu\n" for row in times]
        rows.append("transformers,eager,training,sdpa,32,7,float32,cpu\n")
        rows.append("modeling_leaner,eager,training,sdpa,32,8,bfloat16,cpu\n")
        head = "# threads: 1\nlibrary,mode,phase,attention,head_dim,milliseconds,dtype,device\n"
        file.write_text(head + "".join(rows))
        lines = " ".join(leaner(*question).output.split())
        said = "0.10; as measured on a CPU in float32 (docs/speed/heads.csv), a training step takes 1.25 times"
        assert f"{said} as long as with" in lines
        assert lines.count("times as long") == 1
        for broken in ("64,long", "32,250", "64,5,float32,cpu\nmodeling_leaner,eager,training,sdpa,64,6"):
            file.write_text(f"{head}modeling_leaner,eager,training,sdpa,{broken},float32,cpu\n")
            result = leaner(*question)
            assert result.exit_code == 1
            assert "docs/speed/heads.csv" in result.stderr and "leaner bench writes it" in result.stderr

    @pytest.mark.parametrize("params", ["20M", pytest.param("300M", marks=pytest.mark.full)])
    @pytest.mark.parametrize("family", ["vit", "bert", "gpt"])
    def test_the_first_training_takes_minutes(self, leaner, family, params):
        """Its steps are as many as two minutes of a laptop allow, by the rows and tokens of the recipe's own steps."""
        first = FAMILIES[family].first_recipe
        _, recipe = read_recipe(first.name)
        assert first.rows == recipe["per_device_train_batch_size"]
        assert family == "vit" or first.tokens <= recipe["max_length"]
        lines = leaner("--family", family, "--params", params).output.splitlines()
        name, steps = re.fullmatch(r"leaner train (.*) --shape .* --max_steps (\d+)", lines[-1]).groups()
        assert name == first.name
        shapes_that_fit = plan(family, Budget(parameters=parse_size("--params", params)), rows=6)
        config = shapes_that_fit[(len(shapes_that_fit) - 1) // 2].config
        length = config.default_length if first.tokens is None else first.tokens
        flops = int(steps) * first.rows * training_flops(config, length)
        assert int(steps) == 1 or flops <= 1.2e13, steps
        assert flops > 0.5e13, steps

    def test_json_holds_the_table(self, leaner):
        document = json.loads(leaner("--family", "gpt", "--params", "30M", "--rows", 4, "--json").output)
        assert len(document["candidates"]) == 4 and document["start"] is None and document["setting"]["length"] == 1024
        best = plan("gpt", Budget(parameters=30e6), rows=4)
        assert document["candidates"] == json.loads(json.dumps([each.document() for each in best]))
        assert set(document["candidates"][0]["advice"]) == set(document["sources"])
        assert document["kernels"]["32"]["FlashInfer"] is False

    def test_what_the_studies_found(self, leaner, tmp_path, monkeypatch):
        """Beside the sources that name a study; nothing in a folder without its results, and a broken one is named."""
        monkeypatch.chdir(tmp_path)
        question = ("--family", "gpt", "--params", "30M", "--layers", 6)
        assert "own statements" not in leaner(*question, "--advice").output
        own = ("the paper", "second-hand", "the paper", "second-hand")
        verdicts = ("agrees", "disagrees", "undecided", "not tested")
        asked = {"paper": "A, 2002.07028", "place": "floor", "whose": "asked here", "verdict": "agrees"}
        places = ("floor, in training", "floor", "fitted law", "fitted law")
        for study, paper in {"depth-width": "D, 2006.12467", "low-rank": "L, 2002.07028"}.items():
            path = tmp_path / "model_cards/studies" / study / "results.json"
            path.parent.mkdir(parents=True)
            statements = [
                {"paper": paper, "place": place, "whose": whose, "verdict": verdict}
                for place, whose, verdict in zip(places, own, verdicts)
            ]
            path.write_text(json.dumps({"statements": [asked, *statements, {**asked, "whose": "derived here"}]}))
        printed = " ".join(leaner(*question, "--advice").output.split())
        assert (
            " own statements tested here: floor, 1 of 2 agree (docs/depth-width.md)"
            " own statements, by arithmetic alone: fit, 0 of 1 agree, 1 undecided, 1 not tested (docs/depth-width.md)"
            " own statements tested here: low-rank, 1 of 3 agree, 1 undecided, 1 not tested (docs/low-rank.md)"
        ) in printed and printed.count("own statements") == 3
        sources = json.loads(leaner(*question, "--json").output)["sources"]
        counts = {"agrees": 1, "undecided": 1, "tested": 3, "untested": 1}
        assert sources["low-rank"]["tested"] == {"study": "low-rank", "paper": "2002.07028", **counts}
        assert sources["petty"]["tested"] is sources["kaplan"]["tested"] is None
        path.write_text("{}")
        failed = leaner(*question, "--advice")
        assert failed.exit_code == 1
        assert f"{path.relative_to(tmp_path)}: KeyError" in failed.output + str(failed.exception)

    def test_write(self, leaner, tmp_path, monkeypatch):
        """A name is a file of the working folder, else a path; the package gets no file."""
        monkeypatch.chdir(tmp_path)
        registry = sorted(shapes.shapes_folder().rglob("*"))
        question = ("--family", "gpt", "--params", "30M", "--layers", 6, "--pick", 2)
        expected = plan("gpt", Budget(parameters=30e6), Dials(layers=6))[1].config
        fields = json.loads((shapes.shapes_folder() / "gpt/base.json").read_text()).keys()
        for name, path in (
            (tmp_path / "a.json", tmp_path / "a.json"),
            (tmp_path / "b", tmp_path / "b.json"),
            ("thirty", Path("thirty.json")),
            ("lean-thirty", Path("lean-thirty.json")),
            ("MINE.JSON", Path("MINE.JSON")),
        ):
            result = leaner(*question, "--write", name)
            assert result.exit_code == 0 and f"Saved: row 2, as {path}\n" in result.output, result.output
            for loaded in (AutoConfig.from_pretrained(path), load_config(str(path))):
                assert describe(loaded) == describe(expected)
                assert loaded.count_parameters() == expected.count_parameters()
            assert json.loads(path.read_text()).keys() == fields
            before = path.read_bytes()
            again = leaner(*question, "--write", name)
            assert again.exit_code == 1 and "exists already; expected a new name" in again.stderr
            assert path.read_bytes() == before
        assert sorted(shapes.shapes_folder().rglob("*")) == registry
        for name, message in (
            ("a b", "expected letters, digits, dots and dashes, or a path"),
            (tmp_path / "no" / "c.json", "cannot be written"),
        ):
            result = leaner(*question, "--write", name)
            assert result.exit_code == 1 and message in result.stderr, result.stderr

    def test_nothing_is_written_by_halves(self, leaner, tmp_path, monkeypatch):
        """A disk that is full when the file is to appear leaves no file, and no temporary one."""

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        for flag in ("--write", "--plot"):
            result = leaner("--family", "gpt", "--params", "30M", "--layers", 6, flag, tmp_path / "x.json")
            assert result.exit_code == 1 and f"{flag} " in result.stderr and "No space left" in result.stderr
            assert list(tmp_path.iterdir()) == []

    def test_everything_is_checked_before_anything_is_written(self, leaner, tmp_path):
        question = ("--family", "gpt", "--params", "30M", "--rows", 1)
        (tmp_path / "old.svg").write_text("mine")
        (tmp_path / "old.json").write_text("mine")
        for words, message in (
            (("--plot", tmp_path / "old", "--write", tmp_path / "new"), "old.svg exists already; expected a new name"),
            (
                ("--plot", tmp_path / "new", "--write", tmp_path / "old"),
                "old.json exists already; expected a new name",
            ),
            (("--plot", "", "--write", tmp_path / "new"), "--plot '': expected a file's name"),
            (("--plot", tmp_path / "new", "--write", ""), "--write '': expected letters, digits"),
        ):
            result = leaner(*question, *words)
            assert result.exit_code == 1 and message in result.stderr, result.stderr
            assert sorted(path.name for path in tmp_path.iterdir()) == ["old.json", "old.svg"]
            assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}

    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_a_terminal_that_cannot_show_it(self, form, tmp_path):
        words = [
            "plan",
            "--family",
            "gpt",
            "--params",
            "30M",
            "--rows",
            "1",
            "--write",
            str(tmp_path / "é.json"),
            *form,
        ]
        result = CliRunner(charset="ascii").invoke(app, words)
        assert result.exit_code == 0 and (tmp_path / "é.json").is_file(), result.stderr
        assert json.loads(result.output)["sources"]["delusion"]["valid"].count("·") if form else "2?" in result.output

    def test_a_shape_is_priced_without_a_start(self, leaner):
        words = "--family gpt --layers 4 --width 96 --heads 3 --mlp 100 --json"
        (only,) = json.loads(leaner(*words.split()).output)["candidates"]
        assert [only[name] for name in ("layers", "width", "heads", "head_dim", "mlp")] == [4, 96, 3, 32, 100]

    def test_heads_and_groups(self, leaner, tmp_path):
        """Heads that vary are shown as such, and refusals name the flag."""
        load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}}).save_pretrained(tmp_path / "varied")
        fewest = min(load_config(str(tmp_path / "varied")).heads_per_layer)
        assert f" {fewest}-9×" in leaner("--like", tmp_path / "varied", "--layers", 4).output
        load_shape("gpt/base", num_key_value_heads=4).save_pretrained(tmp_path / "grouped")
        result = leaner("--like", tmp_path / "grouped", "--heads", 7)
        assert result.stderr == "leaner plan: --heads 7: expected a multiple of the 4 key-value heads\n"
        assert (
            leaner("--like", "").stderr == "leaner plan: --like '': expected a shape, config file, folder or Hub id\n"
        )

    def test_a_folder_and_heads_of_each_layer(self, leaner, tmp_path):
        load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}}).save_pretrained(tmp_path)
        document = json.loads(leaner("--like", tmp_path, "--layers", 4, "--heads", 7, "--json").output)
        start = load_shape("gpt/tiny", per_layer_config={0: {"num_attention_heads": 9}})
        assert document["start"]["parameters"] == start.count_parameters().total
        assert {each["head_dim"] % 8 for each in document["candidates"]} == {0}

    def test_legend(self, leaner):
        """Signs and the planner's own limits are printed, from the numbers that decide."""
        text = " ".join(leaner("--family", "gpt", "--params", "30M", "--rows", 1, "--advice").output.split())
        for words in ("+ more layers than the source names", "fit says yes within 1 layer", "mobile within 2"):
            assert words in text
        assert (advice.FIT_OFF, advice.MOBILE_OFF, advice.SOVIT_OFF) == (1, 2, 1.2)

    @pytest.mark.parametrize("name", ["gpt/base", "vit/base"])
    def test_figure_says_what_the_table_says(self, name):
        from matplotlib.figure import Figure

        start = load_shape(name)
        candidates = plan(name.split("/")[0], start=start)
        left, right = Figure().subplots(1, 2)
        plan_figure.draw_depths(left, candidates, start, start.default_length, start)
        plan_figure.draw_heads(right, candidates, start, start.default_length, start)
        labels = {axis: axis.get_legend_handles_labels()[1] for axis in (left, right)}
        said = advise(start, None, start)
        for source in ("floor", "fit", "narrow", "mobile", "delusion"):
            (label,) = (label for label in labels[left] if label.startswith(source))
            assert label.split(":")[0].endswith("*") == said[source].extrapolated, label
        assert any(label.startswith("sovit") for label in labels[left]) == (name == "vit/base")
        sizes = [label for label in labels[right] if label.startswith("size")]
        for label in sizes:
            config = shape_at(start, Dials(head_dim=int(re.search(r"\d+", label)[0])))
            assert label.endswith(f"low-rank {advise(config)['low-rank']}")
        assert len(sizes) == 4 and not any(label.startswith("low-rank") for label in labels[right])
        assert not right.patches  # no band over heads: heads decide nothing that is drawn there

    def test_plot(self, leaner, tmp_path):
        assert leaner("--like", "gpt/base", "--plot", tmp_path / "shapes.png").exit_code == 0
        assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
        drawn = (tmp_path / "shapes.svg").read_text()
        assert "<svg" in drawn

    def test_arithmetic_builds_no_model(self, leaner, monkeypatch):
        monkeypatch.setattr(transformers.PreTrainedModel, "__init__", lambda *_: pytest.fail("a model was built"))
        assert leaner("--family", "vit", "--params", "20M").exit_code == 0

    @pytest.mark.full
    def test_arithmetic_is_quick(self):
        """At most 2 s over what importing PreTrainedModel takes, the two taking turns."""
        alone = [sys.executable, "-c", "from transformers.modeling_utils import PreTrainedModel"]
        command = [sys.executable, "-m", "modeling_leaner", "plan", "--family", "gpt", "--params", "30M"]
        times = {"alone": [], "plan": []}
        for _ in range(5):
            for name, words in (("alone", alone), ("plan", command)):
                start = perf_counter()
                subprocess.run(words, check=True, capture_output=True)
                times[name].append(perf_counter() - start)
        assert median(times["plan"]) - median(times["alone"]) <= 2, times


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
        text = leaner(*self.SMALL, "--rows", 1).output
        assert "taking turns" in text and "of what was" in text
        document = json.loads(leaner(*self.SMALL, "--rows", 1, "--json").output)
        assert document["start"]["measured"]["training_step_s"] > 0
        assert document["candidates"][0]["measured"]["peak_memory_bytes"] > 0

    TINY = ("--family", "gpt", "--vocab-size", 64, "--length", 16, "--batch", 1, "--rows", 2)

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
        words = (*self.TINY, "--layers", 2, "--measure")
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
        result = leaner(*self.TINY, *self.DIALS[free], "--measure", "--latency", f"{limit}s", "--json")
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
        result = leaner(*self.TINY, *self.DIALS[free], "--measure", "--latency", "2ms", "--json")
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)["candidates"]
        assert rows and all(0.0012 < row["measured"]["latency_s"] <= 0.002 for row in rows)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
    def test_a_gpu_is_asked_for_in_vain(self, leaner):
        result = leaner(*self.SMALL, "--device", "gpu")
        assert result.exit_code == 1 and "this machine has no CUDA device" in result.stderr


PAGE = (Path(__file__).parent.parent / "docs" / "choosing-a-shape.md").read_text()


@pytest.mark.parametrize("part", re.split(r"```bash\n", PAGE)[1:])
def test_page(leaner, part):
    """Every command of "How to choose a shape" runs and prints the lines that follow it there, in their order."""
    command, shown = re.match(r"leaner plan (.*)\n```\s+```text\n(.*?)```", part, flags=re.DOTALL).groups()
    result = leaner(*command.split())
    assert result.exit_code == 0, result.output
    printed = iter(line.rstrip() for line in result.output.splitlines())
    for line in shown.splitlines():
        assert line in printed, line


def test_pages_python(capsys):
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, {})
    assert len(capsys.readouterr().out.splitlines()) > 5
