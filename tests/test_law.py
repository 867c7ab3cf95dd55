"""A law of shape: recovered where there is one, not found where there is none, refused where nothing was measured."""

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import leaner
from modeling_leaner.training.experiments.grid import GridError, load_grid
from modeling_leaner.training.experiments.grid_results import load_results
from modeling_leaner.training.experiments.rows import reported, write_rows
from modeling_leaner.training.laws import crossings, refits, terms, validation
from modeling_leaner.training.laws import law as fitting
from modeling_leaner.training.laws.data import LawData, Point, read_data
from modeling_leaner.training.laws.fit import Fitter
from modeling_leaner.training.records import LawErrors, LawForm, ResultRow
from training_data import write_shape

from modeling_leaner.planning import advice, laws, tables
from modeling_leaner.planning.memory import StepSetting
from modeling_leaner.planning.solver import cost_of
from modeling_leaner.shapes import load_config


# layers, heads, width, MLP width; head size × heads is the width in all
SHAPES = {
    "deep": (8, 3, 96, 384),
    "many": (8, 6, 96, 384),
    "shallow": (4, 3, 96, 384),
    "lean": (4, 6, 96, 384),
    "quarter": (8, 3, 96, 96),
    "half": (8, 3, 96, 192),
    "narrow": (12, 4, 64, 256),
}
BUDGETS = (1_000_000, 3_000_000, 6_000_000, 12_000_000)
LENGTH = 32
VOCABULARY = 4096


def sizes(shape):
    layers, heads, width, mlp = SHAPES[shape]
    parameters = layers * (4 * width**2 + 2 * width * mlp + 9 * width + mlp) + 2 * width  # with biases and norms
    head_dim = width // heads
    return {
        "length": LENGTH, "vocabulary": VOCABULARY,
        "layers": layers, "heads": heads, "width": width, "mlp": mlp, "head_dim": head_dim, "parameters": parameters
    }  # fmt: skip


def by_layers(shape, tokens):
    """More layers lower the floor and raise what is to be learned first: deep and shallow cross."""
    share = SHAPES[shape][0] / 8
    return 3.5 * share**-0.05 + 1.7 * share**0.2 * (tokens / 1e6) ** -0.5


CROSSING = 1e6 * ((3.5 * (0.5**-0.05 - 1)) / (1.7 * (1 - 0.5**0.2))) ** (-1 / 0.5)  # of shallow and deep


def by_tokens(shape, tokens):
    return 3.5 + 1.7 * (tokens / 1e6) ** -0.5


def made_up(quality, shapes=SHAPES, budgets=BUDGETS, seeds=5, noise=0.01):
    """Rows of a quality with noise, half of it shared by the runs of a seed."""
    chance = random.Random(3)
    points = []
    for seed in range(seeds):
        shared = chance.gauss(0, noise / 2)
        for shape in shapes:
            own = chance.gauss(0, noise / 2)
            for tokens in budgets:
                value = quality(shape, tokens) + shared + own + chance.gauss(0, noise / 4)
                points.append(Point(shape, seed, tokens, value))
    return LawData(points, {shape: sizes(shape) for shape in SHAPES}, "loss", False, 0, "gpt")


class Nowhere:
    """What `fit_law` asks of a grid."""

    output_dir = "grids/made-up"

    def path(self, name):
        return Path(self.output_dir) / name


@pytest.fixture(autouse=True)
def fewer_refits(monkeypatch):
    monkeypatch.setattr(refits, "REFITS", 60)


@pytest.fixture(scope="module")
def found():
    return fitting.fit_law(Nowhere(), made_up(by_layers))


def test_a_known_law_is_recovered(found):
    """Its terms where they belong, its exponents within their intervals, which are neither empty nor endless."""
    assert found.found and found.form == LawForm(floor=["layers"], scale=["layers"])
    for name, truth in {"exponent": 0.5, "floor by layers": -0.05, "scale by layers": 0.2}.items():
        low, high = found.parameters[name].interval
        assert low <= truth <= high, name
        assert 0 < high - low < 0.3 * abs(truth), name
    assert found.error.law < 0.5 * found.error.tokens_only and found.error.interval[1] < 0
    assert found.without_effect == ["heads", "width", "mlp"]
    assert found.sentence.startswith("a law of layers: ")


def test_terms_that_follow_from_others_are_named(found):
    assert [size.document() for size in found.not_fitted] == [
        {"term": "head_dim", "reason": "follows from heads, width"},
        {"term": "parameters", "reason": "follows from layers, heads, width, mlp"},
    ]
    all_sizes = {shape: sizes(shape) for shape in SHAPES}
    kept, others = terms.independent_terms(all_sizes, ["deep", "many", "shallow", "lean"])
    assert kept == ["layers", "heads"]
    assert others == {"width": [], "mlp": [], "head_dim": ["heads"], "parameters": ["layers"]}
    kept, _ = terms.independent_terms(all_sizes, ["deep", "lean"])
    assert kept == ["layers"]  # heads changed with them


def test_crossings(found):
    """Deep and shallow cross within the interval; shapes that differ in nothing that counts are alike."""
    of_pair = {frozenset((each.shape, each.other)): each for each in found.crossings}
    assert len(of_pair) == len(SHAPES) * (len(SHAPES) - 1) / 2
    each = of_pair[frozenset(("deep", "shallow"))]
    low, high = each.interval
    assert (each.ahead_below, each.ahead_above) == ("shallow", "deep")
    assert low < CROSSING < high and BUDGETS[0] < low < each.tokens < high < BUDGETS[-1] and high < 1.5 * low
    per_parameter = each.tokens / sizes("shallow")["parameters"]
    assert each.tokens_per_parameter == pytest.approx(per_parameter)
    assert f"{per_parameter:.2g} a parameter of shallow" in each.sentence
    none = of_pair[frozenset(("deep", "half"))]
    assert none.ahead_below is None and none.tokens is None
    assert none.sentence == "deep and half: alike by the law, which does not depend on where they differ"


@pytest.mark.full
def test_a_limit_beyond_the_fit_is_none():
    """Two curves that cross just before the last budget: the upper limit is not known."""

    def late(shape, tokens):
        share = SHAPES[shape][0] / 8
        return 3.5 * share**-0.02 + 1.7 * share**0.15 * (tokens / 1e6) ** -0.5

    document = fitting.fit_law(Nowhere(), made_up(late, noise=0.02))
    law = laws.law_of(document.document())
    place = math.exp(float(crossings.ln_tokens_at_crossing(law, sizes("shallow"), sizes("deep"), law.parameters)))
    assert 3e6 < place < 12e6
    each = next(each for each in document.crossings if {each.shape, each.other} == {"shallow", "deep"})
    assert each.interval[1] is None and "beyond the fit" in each.sentence


@pytest.mark.full
def test_no_law_without_an_effect_of_shape():
    document = fitting.fit_law(Nowhere(), made_up(by_tokens))
    assert not document.found and document.crossings == []
    assert document.form == LawForm(floor=[], scale=[])
    errors = document.error
    assert document.sentence.startswith("no law of shape found: ")
    assert f"{errors.law:.4f}" in document.sentence and f"{errors.tokens_only:.4f}" in document.sentence
    low, high = document.parameters["exponent"].interval
    assert low < 0.5 < high


@pytest.mark.full
def test_differences_that_sizes_do_not_explain_are_no_law():
    """Each shape is off by a number of its own: any form fits some of it, none predicts a shape that was left out."""
    offset = dict(zip(SHAPES, (0.05, -0.05, -0.06, 0.06, -0.05, 0.05, 0.0)))

    def odd(shape, tokens):
        return by_tokens(shape, tokens) + offset[shape]

    assert not fitting.fit_law(Nowhere(), made_up(odd)).found


def test_a_shape_that_is_left_out_does_not_count():
    """Whatever its runs are, what is predicted of it is the same."""
    data = made_up(by_layers, [name for name in SHAPES if name not in ("quarter", "half")], seeds=2)
    points = [each if each.shape != "deep" else replace(each, quality=each.quality + 1) for each in data.points]
    pairs = []
    for own in (data.points, points):
        fitter = Fitter(replace(data, points=own))
        fitter.noise = 0.01
        pairs.append(next(held for held in validation.leave_each_out(fitter) if held.shape == "deep"))
    assert pairs[0].form == pairs[1].form
    assert pairs[0].law.tolist() == pairs[1].law.tolist()
    assert pairs[0].tokens_only.tolist() == pairs[1].tokens_only.tolist()


def error(difference, low, high):
    """The difference of a law's error from that of the curve over tokens, with its interval."""
    return LawErrors(law=0.1, tokens_only=0.1 - difference, difference=difference, interval=[low, high])


def test_the_criterion():
    """A term, and an interval of the difference that lies below 0; a mean below 0 is not enough."""
    form = laws.Form(("layers",))
    assert validation.is_found(form, error(-0.01, -0.03, -0.001))
    assert not validation.is_found(form, error(-0.01, -0.03, 0.001))
    assert not validation.is_found(form, error(0.01, 0.001, 0.03))
    assert not validation.is_found(laws.Form(), error(-0.01, -0.03, -0.001))


def test_errors_by_hand():
    """Mean errors over shapes of what was predicted of them; no spread where all shapes and seeds agree."""
    data = made_up(lambda shape, tokens: 4.0, ["deep", "many"], seeds=2, noise=0)
    law, curve = np.full(4, 4.1), np.full(4, 3.7)
    held = [validation.LeftOut(shape, list(BUDGETS), law, curve, laws.Form()) for shape in data.shapes]
    errors = validation.errors_of(held, data)
    assert (errors.law, errors.tokens_only) == (pytest.approx(0.1), pytest.approx(0.3))
    assert errors.interval == pytest.approx([-0.2, -0.2])
    held[1] = replace(held[1], law=np.full(4, 3.5))
    low, high = validation.errors_of(held, data).interval
    assert (low, high) == pytest.approx((-0.2, 0.2))  # the draws of one of the two shapes twice


def test_the_plan_says_nothing_where_the_interval_includes_0(found):
    law = replace(laws.law_of(found.document()), family="gpt")
    configs = {name: load_config(f"gpt/{name}") for name in ("mini", "shallow-mini")}
    case = advice.Case(configs["shallow-mini"], 32, configs["mini"])
    verdict = advice.judge_law(law, case)
    assert verdict.agrees is False and verdict.margin.startswith("+")
    turned = law.replicates.copy()
    turned[:, 3] *= -1  # more layers raise the floor
    unsure = replace(law, replicates=np.concatenate([law.replicates, turned]))
    assert advice.judge_law(unsure, case) == replace(verdict, agrees=None)
    assert advice.judge_law(law, advice.Case(configs["mini"], 32, configs["shallow-mini"])).agrees is True


def test_one_failed_run_moves_little(found):
    """A run that hardly left the start: 60 times the noise off."""
    data = made_up(by_layers)
    stray = Point("deep", 0, BUDGETS[-1], 5.5)
    points = [point for point in data.points if (point.shape, point.seed, point.tokens) != ("deep", 0, BUDGETS[-1])]
    fitter = Fitter(data)
    form = laws.Form(("layers",), ("layers",))
    clean = fitter.fit_anew(form, data.points)
    moved = fitter.fit_anew(form, [*points, stray])
    assert abs(moved[3] - clean[3]) < 0.005 and abs(moved[4] - clean[4]) < 0.02


@pytest.mark.full
def test_seeds_that_differ_more_give_wider_intervals(found):
    wide = fitting.fit_law(Nowhere(), made_up(by_layers, noise=0.03))
    for name in ("floor by layers", "scale by layers"):
        spans = []
        for document in (found, wide):
            low, high = document.parameters[name].interval
            spans.append(high - low)
        assert spans[1] > 1.5 * spans[0]


def test_widening_for_few_seeds():
    """t(0.975, 4) / 1.96 × √(5/4), by hand."""
    assert refits.widening(made_up(by_tokens)) == pytest.approx(2.7764 / 1.95996 * math.sqrt(1.25), rel=1e-4)


@pytest.mark.parametrize(
    "changes, tokens, said",
    [
        ({"layers": 16}, 3e6, "layers: expected 4 to 12, where the law was fitted, got 16"),
        ({"heads": 12, "head_dim": 8}, 3e6, "heads: expected 3 to 6, where the law was fitted, got 12"),
        ({"width": 128}, 3e6, "width: expected 64 to 96, where the law was fitted, got 128"),
        ({"mlp": 512}, 3e6, "mlp: expected 96 to 384, where the law was fitted, got 512"),
        ({}, 2e7, "tokens: expected 1,000,000 to 12,000,000, where the law was fitted, got 20,000,000"),
        ({"head_dim": 64}, 3e6, "head_dim: expected 16 to 32, where the law was fitted, got 64"),
        ({"head_dim": 16}, 3e6, "head_dim: expected 25.6 to 40 with such heads, width, as in the shapes of the fit"),
        ({"vocabulary": 8192}, 3e6, "vocabulary: expected 4,096, where the law was fitted, got 8,192"),
        ({"length": 512}, 3e6, "length: expected 32, where the law was fitted, got 512"),
    ],
)
def test_outside_its_range_it_refuses(found, changes, tokens, said):
    law = laws.law_of(json.loads(json.dumps(found.document())))
    with pytest.raises(laws.OutOfRange) as refusal:
        law.predict({**sizes("deep"), **changes}, tokens)
    assert str(refusal.value).startswith(said) and "\n" not in str(refusal.value)
    value, (low, high) = law.predict(sizes("deep"), 12e6)
    assert low < value < high and value == pytest.approx(by_layers("deep", 12e6), abs=0.02)


def test_a_size_that_all_shapes_share_is_bounded():
    """Four shapes of one width and one MLP width: the law knows no other."""
    data = made_up(by_layers, ["deep", "many", "shallow", "lean"])
    measured = fitting.ranges(data, BUDGETS)
    assert measured["width"] == [96, 96] and measured["mlp"] == [384, 384] and measured["head_dim"] == [16, 32]
    assert set(measured) == {*sizes("deep"), "tokens"}


def test_a_law_without_a_range_is_refused(found):
    """A law.json from before rows and vocabularies were in it: what it was fitted with is not known."""
    document = found.document()
    del document["ranges"]["vocabulary"]
    with pytest.raises(laws.OutOfRange, match="^vocabulary: not in the ranges of the law of made-up; leaner law"):
        laws.law_of(document).predict(sizes("deep"), 3e6)


def test_the_plan_says_why_a_law_is_refused(grid, found, monkeypatch):
    """At another row length or vocabulary, and beside a start that was not measured: once, with the rows."""
    monkeypatch.setattr(fitting, "fit_law", lambda grid, data: found)
    fill(grid, made_up(by_layers))
    fitting.fit_grid(grid)
    advice.laws_of.cache_clear()
    reasons = {
        (LENGTH, VOCABULARY): None,
        (16, VOCABULARY): "length: expected 32, where the law was fitted, got 16",
        (LENGTH, 512): "vocabulary: expected 4,096, where the law was fitted, got 512",
    }
    for (length, vocabulary), reason in reasons.items():
        setting = StepSetting(8, length)
        configs = [load_config(f"{name}.json") for name in ("deep", "lean", "many")]
        for config in configs:
            config.vocab_size = vocabulary
        start = cost_of(configs[0], setting)
        others = [cost_of(config, setting, configs[0]) for config in configs[1:]]
        text = tables.plan_text(others, setting, start, verdicts=True)
        document = tables.plan_document(others, setting, start)
        if reason is None:
            assert "says nothing of" not in text and document["refused"] == []
            continue
        assert "law" not in others[0].advice
        assert f"law says nothing of rows 1 and 2: {reason}\n" in text
        assert document["refused"] == [{"source": "law", "rows": [1, 2], "reason": reason}]
    reason = "it compares a shape with a starting point, which --like names"
    alone = [cost_of(load_config("lean.json"), StepSetting(8, LENGTH))]
    assert f"law says nothing of row 1: {reason}\n" in tables.plan_text(alone, StepSetting(8, LENGTH), verdicts=True)
    of_another_family = [cost_of(load_config("bert/nano"), StepSetting(8, LENGTH))]
    assert "says nothing of" not in tables.plan_text(of_another_family, StepSetting(8, LENGTH), verdicts=True)
    deeper = load_config("deep.json")
    deeper.num_hidden_layers = 16
    said = advice.refusals(load_config("lean.json"), LENGTH, deeper)
    assert said == {"law": "the start's layers: expected 4 to 12, where the law was fitted, got 16"}
    assert advice.refusals(load_config("bert/mini"), LENGTH, load_config("bert/mini")) == {}
    advice.laws_of.cache_clear()


@pytest.mark.parametrize(
    "shapes, budgets", [(["deep", "many", "lean"], BUDGETS), (list(SHAPES), BUDGETS[:2]), (["deep"], BUDGETS)]
)
def test_too_few_cells(shapes, budgets):
    with pytest.raises(GridError) as refusal:
        fitting.fit_law(Nowhere(), made_up(by_layers, shapes, budgets))
    have = f"got {len(shapes) * len(budgets)} finished cells of {len(shapes)} shapes and {len(budgets)} budgets"
    assert str(refusal.value).endswith(have) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("rows", [False, True])
def test_no_run_has_finished_yet(grid, rows):
    """Without results.csv, and with one whose only run has failed."""
    if rows:
        fill(grid, made_up(by_tokens))
        failed = [row for row in load_results(grid).rows.values() if not row.has_finished]
        with grid.path("results.csv").open("w") as file:
            write_rows(failed, file)
    with pytest.raises(SystemExit) as refusal:
        leaner("law", "my.yaml")
    said = str(refusal.value)
    assert said == "leaner law: model_cards/grids/made-up/results.csv: no run of a branch has finished yet"


def test_a_quality_that_has_no_logarithm():
    """As of an accuracy of 1."""
    data = made_up(by_layers)
    perfect = replace(data, points=[replace(data.points[0], quality=0.0), *data.points[1:]])
    with pytest.raises(GridError, match="results.csv: loss is 0 in a run, expected above 0"):
        fitting.fit_law(Nowhere(), perfect)


def test_fewer_cells_than_parameters():
    """Shapes and budgets are enough, but most shapes have a single budget."""
    data = made_up(by_layers)
    kept = [point for point in data.points if point.tokens == BUDGETS[0] or point.shape == "deep"]
    ten = LawData([point for point in kept if point.shape != "narrow"], data.sizes, "loss", False, 0, "gpt")
    assert ten.cell_count == 9
    fitting.check_enough(ten, ["layers"] * 6, "rows")
    with pytest.raises(GridError, match="10 cells, as many as parameters, or more, got 9 finished cells"):
        fitting.check_enough(ten, ["layers"] * 7, "rows")


# From rows to the plan


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Shapes with four branches in a folder of grids, whose rows are made up by `fill`."""
    monkeypatch.chdir(tmp_path)
    for name in SHAPES:
        layers, heads, width, mlp = SHAPES[name]
        changes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
        changes |= {"intermediate_size": mlp, "head_dim": width // heads, "num_key_value_heads": heads}
        changes |= {"vocab_size": VOCABULARY}
        Path(write_shape("gpt", tmp_path, **changes)).rename(f"{name}.json")
    overrides = {"max_length": 32, "max_steps": 640, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "enwik8-text-causal", "shapes": [f"{name}.json" for name in SHAPES], "baseline": "deep.json"}
    values |= {"seeds": [0, 1, 2, 3, 4], "learning_rates": [1e-3], "branches": list(BUDGETS), "overrides": overrides}
    values |= {"output_dir": "model_cards/grids/made-up"}
    Path("my.yaml").write_text(yaml.safe_dump(values))
    return load_grid(Path("my.yaml"))


def fill(grid, data, up=False):
    """results.csv with the points of `made_up`, one of them failed."""
    grid.path("").mkdir(parents=True)
    rows = []
    for place, point in enumerate(data.points):
        run = reported(grid, f"{point.shape}.json", point.seed, 1e-3, point.tokens)
        cells = {**run._asdict(), "status": "finished", "metric": "loss", "value": point.quality}
        cells |= {"higher_is_better": 0, "tokens": point.tokens}
        if up:
            cells |= {"metric": "accuracy", "value": 1 - point.quality, "higher_is_better": 1}
        if place == 7:
            cells = {**run._asdict(), "status": "failed"}
        rows.append(ResultRow.from_cells(cells))
    with grid.path("results.csv").open("w") as file:
        write_rows(rows, file)


def test_rows_are_read(grid):
    """Each finished branch with its tokens; accuracy as 1 − accuracy; failed ones are counted."""
    data = made_up(by_tokens)
    fill(grid, data)
    read = read_data(load_results(grid))
    assert len(read.points) == len(data.points) - 1 and read.failed == 1 and read.quality == "loss"
    expected = {(f"{each.shape}.json", each.seed, each.tokens): each.quality for each in data.points}
    assert all(expected[point.shape, point.seed, point.tokens] == point.quality for point in read.points)
    assert {(each["length"], each["vocabulary"]) for each in read.sizes.values()} == {(LENGTH, VOCABULARY)}
    grid.path("results.csv").unlink()
    grid.path("").rmdir()
    fill(grid, data, up=True)
    read = read_data(load_results(grid))
    assert read.quality == "1 − accuracy"
    assert read.points[0].quality == pytest.approx(data.points[0].quality)


@pytest.mark.parametrize("fitted", ["before", pytest.param("anew", marks=pytest.mark.full)])
def test_a_law_is_a_source_of_the_plan_where_it_reaches(grid, found, fitted, monkeypatch, capsys):
    if fitted == "before":
        monkeypatch.setattr(fitting, "fit_law", lambda grid, data: found.model_copy(update={"failed": data.failed}))
    fill(grid, made_up(by_layers))
    advice.laws_of.cache_clear()
    before = tables.plan_text([candidate("lean")], StepSetting(8, 32), candidate("deep", None), verdicts=True)
    leaner("law", "my.yaml")
    said = capsys.readouterr().err
    assert "a law of layers: " in said and "head_dim: not fitted, follows from heads, width" in said
    assert grid.path("law.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(grid.path("law.json").read_text())
    assert document["found"] and document["failed"] == 1

    advice.laws_of.cache_clear()
    start = load_config("deep.json")
    verdict = advice.advise(load_config("lean.json"), 32, start)["law"]
    difference = by_layers("lean", 12e6) - by_layers("deep", 12e6)
    assert verdict.agrees is False and float(verdict.margin) == pytest.approx(difference, abs=0.01) and difference > 0
    assert advice.advise(load_config("narrow.json"), 32, start)["law"].agrees is True
    assert advice.advise(load_config("many.json"), 32, start)["law"].agrees is None  # heads have no effect
    unsure = replace(laws.law_of(document), error=difference / math.sqrt(2) * 1.05)
    case = advice.Case(load_config("lean.json"), 32, start)
    assert advice.judge_law(unsure, case).agrees is None  # as far apart by the law's error alone
    assert advice.judge_law(replace(unsure, error=unsure.error / 1.2), case).agrees is False
    assert "it knows layers alone" in advice.law_source("law", unsure).valid
    outside = load_config("deep.json")
    outside.num_hidden_layers = 24
    assert "law" not in advice.advise(outside, 32, start) and "law" not in advice.advise(start, 32)
    assert "law" not in advice.advise(load_config("bert/mini"), 32, load_config("bert/mini"))

    text = tables.plan_text([candidate("lean")], StepSetting(8, 32), candidate("deep", None), verdicts=True)
    assert re.search("^law +loss after 12M .*7 shapes, +the law of made-up", text, flags=re.MULTILINE)
    assert f"loss {verdict.margin[1:]} above the start's after 12M tokens" in " ".join(text.split())
    document = tables.plan_document([candidate("lean")], StepSetting(8, 32), candidate("deep", None))
    assert document["sources"]["law"]["reference"].startswith("the law of made-up, fitted here")

    Path("model_cards/grids/made-up/law.json").unlink()
    advice.laws_of.cache_clear()
    after = tables.plan_text([candidate("lean")], StepSetting(8, 32), candidate("deep", None), verdicts=True)
    assert after == before and "fitted here" not in after


def candidate(name, start="deep"):
    if start is not None:
        start = load_config(f"{start}.json")
    return cost_of(load_config(f"{name}.json"), StepSetting(8, 32), start)


def test_without_a_law_the_plan_says_nothing_of_it(grid, found, monkeypatch):
    monkeypatch.setattr(fitting, "fit_law", lambda grid, data: found.model_copy(update={"found": False}))
    fill(grid, made_up(by_tokens))
    document = fitting.fit_grid(grid)
    assert not document.found
    advice.laws_of.cache_clear()
    assert "law" not in advice.advise(load_config("lean.json"), 32, load_config("deep.json"))
    assert set(advice.all_sources()) == set(advice.SOURCES)
    grid.path("law.json").write_text("{}")
    advice.laws_of.cache_clear()
    with pytest.raises(ValueError, match="law.json: KeyError 'found'; leaner law writes it"):
        advice.all_sources()
    advice.laws_of.cache_clear()


def test_a_grid_without_branches_is_refused(tmp_path, monkeypatch):
    values = {"recipe": "enwik8-text-causal", "shapes": ["gpt/mini"], "baseline": "gpt/mini", "seeds": [1]}
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({**values, "learning_rates": [1e-3]}))
    with pytest.raises(SystemExit, match="leaner law: .*branches: missing, expected several budgets of each shape"):
        leaner("law", file)


def test_rows_that_differ_in_length_are_refused(tmp_path):
    schedule = {"max_steps": 100, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "sst2", "shapes": ["bert/mini"], "baseline": "bert/mini", "seeds": [1], "overrides": schedule}
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({**values, "learning_rates": [1e-3], "branches": [100_000, 200_000]}))
    with pytest.raises(SystemExit, match="branches: expected a task whose rows are all as long, got recipe sst2"):
        leaner("law", file)
