"""`leaner study`: what is computed in closed form, what a study writes, and what is committed of it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import leaner
from modeling_leaner.training.publishing.figures import THEMES
from modeling_leaner.training.records import CellSummary, Line, Statement, StudyFile, checked
from modeling_leaner.training.studies import attention_fit, heads_curves, heads_theory, low_rank, single_layer, study
from modeling_leaner.training.studies.figure import study_figure
from modeling_leaner.training.studies.page import study_page, verdict_table
from modeling_leaner.training.studies.registry import STUDIES
from modeling_leaner.training.studies.single_layer import Weights
from modeling_leaner.training.studies.synthetic import Mixture, Planted, mixture_data, planted_data
from pydantic import ValidationError
from studies import TINY

from modeling_leaner.cli import checks
from modeling_leaner.shapes import load_shape


CLONE = Path(__file__).parent.parent
KEPT = CLONE / "model_cards" / "studies"
SEEDS = [1, 2]
MIXTURE = Mixture(tokens=5, width=6, relevant=2, train=12, test=8)


@pytest.fixture(autouse=True)
def small_products():
    """float64, and one thread, on which products of small matrices are fastest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with study.double_precision():
        yield
    torch.set_num_threads(threads)


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def random_weights(heads, copies=1):
    parts = torch.randn(2, heads, 11, 6, generator=source())
    return Weights(parts[:, :, :6].clone(), parts[:, :, 6:].clone(), copies)


class TestSingleLayer:
    def test_the_model_is_that_of_the_paper(self):
        """Φ = (1/√H) Σ_h ⟨U_h, softmax(X W_h Xᵀ) X⟩, written out."""
        x = mixture_data(MIXTURE, SEEDS).train.x
        weights = random_weights(3)
        for trial, number in ((0, 0), (1, 7)):
            one = x[trial, number]
            pairs = zip(weights.w[trial], weights.u[trial])
            heads = [(u * (torch.softmax(one @ w @ one.T, 1) @ one)).sum() for w, u in pairs]
            found = single_layer.outputs(x, weights)[trial, number]
            assert found.item() == pytest.approx(sum(heads).item() / 3**0.5, rel=1e-12)

    @pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (3, 4, 2, 5), (2, 3, 4, 2)])
    def test_gradients_are_those_of_autograd(self, sizes):
        assert heads_theory.gradient_error(heads_theory.draw(6, *sizes, source())) < 1e-12

    def test_copies_are_heads_of_their_own(self):
        """A head with copies has outputs, gradients and steps of so many separate heads, by every optimiser."""
        data = mixture_data(MIXTURE, SEEDS)
        for name, rule in heads_curves.OPTIMISERS.items():
            few = random_weights(2, copies=3)
            many = single_layer.repeated(few)
            assert few.heads == many.heads == 6
            few_end, many_end = (single_layer.train(data, each, rule(6), [4])[1] for each in (few, many))
            assert torch.allclose(single_layer.repeated(few_end).w, many_end.w, rtol=1e-9, atol=1e-12), name
            phi = [single_layer.outputs(data.test.x, each) for each in (few_end, many_end)]
            assert torch.allclose(*phi, rtol=1e-9), name

    @pytest.mark.parametrize(
        ("rule", "optimizer"),
        [
            (single_layer.constant_steps(0.3), lambda parts: torch.optim.SGD(parts, lr=0.3)),
            (single_layer.momentum_steps(0.3, 0.9), lambda parts: torch.optim.SGD(parts, lr=0.3, momentum=0.9)),
            (single_layer.adam_steps(0.02), lambda parts: torch.optim.Adam(parts, lr=0.02)),
        ],
    )
    def test_optimisers_are_those_of_torch(self, rule, optimizer):
        data = mixture_data(MIXTURE, SEEDS)
        start = random_weights(2)
        _, end = single_layer.train(data, start, rule, [5])
        weights = heads_theory.differing(start)
        stepper = optimizer([weights.w, weights.u])
        for _ in range(5):
            stepper.zero_grad()
            single_layer.losses(single_layer.outputs(data.train.x, weights), data.train.y).sum().backward()
            stepper.step()
        assert torch.allclose(weights.w, end.w, rtol=1e-10) and torch.allclose(weights.u, end.u, rtol=1e-10)

    def test_from_zero_heads_are_one_head(self):
        found = heads_theory.identity_at_zero(mixture_data(MIXTURE, SEEDS), 4, 1.0, 20)
        assert found.spread < 1e-12 and found.distance < 1e-12
        random = heads_curves.random_weights(4, mixture_data(MIXTURE, SEEDS), SEEDS)
        assert (random.w - random.w[:, :1]).abs().max() > 0.1  # the control: heads that differ

    @pytest.mark.parametrize("sizes", [(2, 3, 3, 3), (3, 2, 2, 4)])
    def test_bounds_hold_and_are_not_empty(self, sizes):
        ratios = heads_theory.bound_ratios(heads_theory.draw(40, *sizes, source()))
        assert set(ratios) == set(heads_theory.BOUNDS)
        assert all(ratio.max() <= 1 for ratio in ratios.values())
        assert ratios["‖∇_U Φ‖"].max() > 0.5 and ratios["‖∇²Φ‖"].max() > 0.01

    def test_margin(self):
        """Two examples at a right angle have 1/√2; opposite ones of one label none."""
        features = torch.eye(2)
        assert heads_theory.margin(features, torch.tensor([1.0, -1.0])) == pytest.approx(0.5**0.5, rel=1e-6)
        opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        assert heads_theory.margin(opposite, torch.tensor([1.0, 1.0])) == pytest.approx(0, abs=1e-6)
        assert heads_theory.margin(opposite, torch.tensor([1.0, -1.0])) == pytest.approx(1, rel=1e-6)

    def test_features_are_gradients(self):
        data = mixture_data(MIXTURE, SEEDS).train.trial(1)
        weights = random_weights(2)
        one = Weights(weights.w[:1], weights.u[:1])
        features = heads_theory.kernel_features(data, one)
        slope = heads_theory.differing(one)
        single_layer.outputs(data.x, slope)[0, 3].backward()
        expected = torch.cat([slope.w.grad.flatten(), slope.u.grad.flatten()])
        assert torch.allclose(features[3], expected, rtol=1e-10)


class TestData:
    @pytest.mark.parametrize("fixed", [False, True])
    def test_the_mixture(self, fixed):
        """Each example has its relevant tokens, all equal to the mean of its class; the means are orthogonal."""
        data = mixture_data(replace(MIXTURE, fixed_places=fixed), SEEDS)
        for part in (data.train, data.test):
            assert (part.relevant.sum(-1) == 2).all()
            means = {}
            for sign in (-1, 1):
                tokens = part.x[0][part.y[0] == sign][part.relevant[0][part.y[0] == sign]]
                assert torch.allclose(tokens, tokens[:1].expand_as(tokens))
                means[sign] = tokens[0]
            assert means[1].norm().item() == pytest.approx(2) and abs(means[1] @ means[-1]) < 1e-12
        places = data.train.relevant[0]
        assert (places == places[0]).all().item() is fixed

    def test_labels_of_the_planted_head(self):
        data = planted_data(Planted(train=50, test=30), SEEDS)
        assert set(data.train.y.unique().tolist()) == {-1, 1} and data.planted.shape == (2, 5, 5)
        head = Weights(data.planted.unsqueeze(1), torch.zeros(2, 1, 5, 5))
        assert single_layer.alignment(head, data.planted).tolist() == pytest.approx([1, 1])

    def test_a_trial_does_not_depend_on_the_others(self):
        alone = mixture_data(MIXTURE, [2]).test.x[0]
        assert torch.equal(alone, mixture_data(MIXTURE, SEEDS).test.x[1])


class TestFits:
    def test_theorem_1(self):
        for length, width in ((5, 5), (5, 9)):
            x = attention_fit.tokens(4, width, length, 10.0, source())
            target = attention_fit.random_targets(4, length, 3.0, source(1))
            assert torch.linalg.cond(x).tolist() == pytest.approx([10] * 4)
            found = attention_fit.attention_of(x, *attention_fit.construct(x, target))
            assert (found - target).abs().max() < 1e-12

    def test_what_is_out_of_reach(self):
        """Nothing of a matrix that is in reach, some of any other; and the convex fit finds what is in reach."""
        x = torch.randn(3, 3, 6, generator=source())
        inner = torch.randn(3, 3, 3, generator=source(1))
        reached = torch.softmax(x.transpose(-1, -2) @ inner @ x, -2)
        assert attention_fit.out_of_reach(x, reached).max() < 1e-10
        assert attention_fit.off(attention_fit.fit_width(x, reached, 3), reached).max() < 1e-4
        other = attention_fit.random_targets(3, 6, 3.0, source(2))
        assert attention_fit.out_of_reach(x, other).min() > 0.1
        assert attention_fit.off(attention_fit.fit_width(x, other, 1), other).min() > 0.01

    def test_heads_of_one_less(self):
        target = attention_fit.random_targets(3, 6, 3.0, source())
        left, right = attention_fit.one_less(target)
        assert left.shape == right.shape == (3, 6, 5)
        assert (torch.softmax(left @ right.transpose(-1, -2), -2) - target).abs().max() < 1e-12
        fits = [attention_fit.fit_head(target, size, 2, source()) for size in (1, 3, 5)]
        lost = [attention_fit.off(fit, target).mean() for fit in fits]
        assert lost[0] > 2 * lost[1] > 0.01 and lost[2] < 1e-6

    def test_targets_and_what_is_off(self):
        sharp = attention_fit.permuted_targets(2, 5, 0.9, source())
        for target in (sharp, attention_fit.random_targets(2, 5, 1.0, source())):
            assert torch.allclose(target.sum(-2), torch.ones(2, 5)) and (target > 0).all()
        assert torch.allclose(sharp.amax(-2), torch.full((2, 5), 0.9)) and len(set(sharp[0].argmax(-2).tolist())) == 5
        even = torch.full((2, 5, 5), 0.2)
        assert attention_fit.off(even, sharp).tolist() == pytest.approx([0.7, 0.7])

    def test_the_rank_of_theorem_2(self):
        """At most d²/h of heads of d/h, as much as h·d_p² of larger ones, until the room is full."""
        for width, heads, size, expected in ((8, 4, 2, 16), (4, 4, 3, 10), (6, 2, 3, 18), (8, 2, 2, 8)):
            assert attention_fit.joint_rank(*attention_fit.random_heads(heads, width, size, source())) == expected


class TestGrids:
    def test_a_gain_is_plus_where_more_heads_are_better(self):
        """Whichever of the two is the baseline, and whichever way the metric goes."""
        few = load_shape("bert/mini")
        many = load_shape("bert/many-heads-mini")
        assert low_rank.is_same_but_for_heads(few, many) and not low_rank.is_same_but_for_heads(few, few)
        assert not low_rank.is_same_but_for_heads(many, load_shape("bert/lean-mini"))
        cell = CellSummary.model_construct(difference=0.2, interval=[0.1, 0.3])
        for baseline, other, up, gain in ((few, many, True, 0.2), (few, many, False, -0.2), (many, few, True, -0.2)):
            pair = low_rank.pair_of("sst2", cell, baseline, other, "accuracy", up)
            assert (pair.few, pair.many) == (few, many) and pair.gain == pytest.approx(gain)
            low, high = pair.interval
            assert low < pair.gain < high and pair.is_worse is (gain < 0)

    def test_where_there_are_no_rows(self, tmp_path):
        statement = low_rank.grid_statement(tmp_path / "grids")
        assert statement.verdict == "not tested" and "as in a clone" in statement.missing

    def test_made_up_rows_are_no_text(self):
        pairs = {pair.grid: pair for pair in low_rank.head_pairs(CLONE / "model_cards" / "grids")}
        assert {"enwik8-text-causal", "listops-short", "cifar10"} <= set(pairs)
        assert pairs["enwik8-text-causal"].is_text and not pairs["listops-short"].is_text
        assert not pairs["cifar10"].is_text


class TestRecords:
    STATEMENT = {
        "paper": "P", "place": "figure 1", "known": "the paper", "statement": "S.", "rule": "R", "verdict": "agrees",
        "finding": "F.", "numbers": {"n": 1},
    }  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"verdict": "not tested"}, "missing: expected the data"),
            ({"numbers": {}}, "expected a rule and numbers behind a verdict"),
            ({"rule": None}, "expected a rule and numbers behind a verdict"),
            ({"verdict": "holds"}, "verdict"),
            ({"known": "the web"}, "known"),
        ],
    )
    def test_a_statement_has_its_reason(self, change, message):
        Statement(**self.STATEMENT)
        with pytest.raises(ValidationError, match=message):
            Statement(**{**self.STATEMENT, **change})

    def test_a_line_is_even(self):
        with pytest.raises(ValidationError, match="low: 1 values, expected 2"):
            Line(label="l", x=[1, 2], y=[1.0, 2.0], low=[0.0])


def tiny(name, tmp_path):
    """The results of a study of a tiny size, and its folder."""
    results = study.conduct(STUDIES[name], "quick", TINY[name], lambda line: None)
    study.write_study(results, tmp_path / name)
    return results, tmp_path / name


def check_folder(folder, themes=("light",)):
    """README and figures are made of results.json, which is whole; returns it."""
    results = checked(StudyFile, json.loads((folder / "results.json").read_text()), folder / "results.json")
    assert (folder / "README.md").read_text() == study_page(results)
    for theme in themes:
        assert (folder / f"figure-{theme}.svg").read_bytes() == study_figure(results, theme)
    assert results.tested == sum(each.verdict != "not tested" for each in results.statements)
    assert len({(each.place, each.statement) for each in results.statements}) == len(results.statements)
    return results


class TestStudies:
    def test_the_command_knows_every_study(self):
        assert tuple(STUDIES) == checks.STUDIES and all(study.name == name for name, study in STUDIES.items())
        assert all(list(study.sizes) == ["quick", "default", "full"] for study in STUDIES.values())

    @pytest.mark.parametrize("name", STUDIES)
    def test_a_study_writes_all(self, name, tmp_path):
        torch.set_num_threads(2)
        results, folder = tiny(name, tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [name]
        assert check_folder(folder).document() == json.loads(results.model_dump_json(exclude_unset=True))
        assert results.command == f"leaner study {name} --quick" and results.environment.threads == 1
        assert torch.get_num_threads() == 2

    def test_the_command(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        for size in STUDIES["low-rank"].sizes:
            monkeypatch.setitem(STUDIES["low-rank"].sizes, size, TINY["low-rank"])
        leaner("study", "low-rank", "--full")
        output = capsys.readouterr().out
        assert re.search(r"statements tested in \d+ s of processor time: runs/studies/low-rank\n$", output)
        results = check_folder(tmp_path / "runs/studies/low-rank")
        assert results.size == "full" and results.command.endswith("--full")
        with pytest.raises(SystemExit, match="runs/studies/low-rank exists already"):
            leaner("study", "low-rank")

    def test_whole_or_not_at_all(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setitem(STUDIES["low-rank"].sizes, "quick", TINY["low-rank"])
        monkeypatch.setattr(study, "study_figure", fail)
        with pytest.raises(SystemExit, match="cannot be written, nothing is left of it: disk full"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    def test_the_folder_is_tried_first(self, tmp_path, monkeypatch):
        monkeypatch.setattr(study, "conduct", lambda *_: pytest.fail("ran"))
        (tmp_path / "file").write_text("")
        with pytest.raises(SystemExit, match="file/new: cannot be written"):
            leaner("study", "low-rank", "--output", tmp_path / "file" / "new")


class TestKept:
    """The results of the default size that are in the repository, and the pages that tell of them."""

    def test_every_study_is_kept(self):
        assert sorted(path.name for path in KEPT.iterdir()) == sorted(STUDIES)

    @pytest.mark.parametrize("name", STUDIES)
    def test_the_folder(self, name):
        results = check_folder(KEPT / name, THEMES)
        assert results.size == "default" and results.study == name and results.title == STUDIES[name].title
        assert "dirty" not in results.environment.git_commit

    @pytest.mark.parametrize("name", STUDIES)
    def test_the_page_has_its_verdicts(self, name):
        results = checked(StudyFile, json.loads((KEPT / name / "results.json").read_text()), KEPT)
        assert verdict_table(results) in (CLONE / "docs" / f"{name}.md").read_text()
