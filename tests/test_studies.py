"""`leaner study`: what is computed in closed form, what a study writes, and what is committed of it."""

import errno
import filecmp
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import leaner
from modeling_leaner.training.experiments.kappa import Conclusion, Correlation, Doubling
from modeling_leaner.training.publishing.rendering import markdown
from modeling_leaner.training.publishing.theme import THEMES
from modeling_leaner.training.records import CellSummary, Line, Statement, StudyFile, checked
from modeling_leaner.training.studies import (
    attention_fit,
    depth_trained,
    depth_training,
    depth_width,
    heads_curves,
    heads_theory,
    lean_grids,
    lean_tables,
    low_rank,
    separation,
    single_layer,
    study,
)
from modeling_leaner.training.studies.depth_training import Cell
from modeling_leaner.training.studies.figure import study_figure
from modeling_leaner.training.studies.grid_pairs import GridPair, grid_pairs
from modeling_leaner.training.studies.page import OF_QUICK, study_page, verdict_table
from modeling_leaner.training.studies.registry import STUDIES
from modeling_leaner.training.studies.single_layer import Weights
from modeling_leaner.training.studies.synthetic import Mixture, Planted, mixture_data, planted_data
from modeling_leaner.training.studies.trials import by_interval, by_majority, together
from pydantic import ValidationError
from studies import TINY

from modeling_leaner.cli import checks
from modeling_leaner.planning.advice import SOURCES
from modeling_leaner.shapes import load_shape


CLONE = Path(__file__).parent.parent
KEPT = CLONE / "model_cards" / "studies"
KEPT_SIZES = {"conditioning": "full"}
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

    def test_margins_before_and_after_a_step(self):
        """Of each trial, and the step moves them."""
        found = heads_theory.margins(mixture_data(MIXTURE, SEEDS), 2, 1.0, SEEDS)
        assert found.before.shape == found.after.shape == (len(SEEDS),)
        assert not torch.equal(found.before, found.after)

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
        cell = CellSummary.model_construct(difference=0.2, interval=[0.1, 0.3], parameters_over_baseline=1.0)
        for baseline, other, up, gain in ((few, many, True, 0.2), (few, many, False, -0.2), (many, few, True, -0.2)):
            pair = low_rank.more_heads(GridPair.of("sst2", "accuracy", up, cell, baseline, other))
            assert (pair.other, pair.shape) == (few, many) and pair.gain == pytest.approx(gain)
            low, high = pair.interval
            assert low < pair.gain < high and pair.is_worse is (gain < 0)

    def test_where_there_are_no_rows(self, tmp_path):
        statement = low_rank.grid_statement(tmp_path / "grids")
        assert statement.verdict == "not tested" and "as in a clone" in statement.missing

    def test_made_up_rows_are_no_text(self):
        found = grid_pairs(CLONE / "model_cards" / "grids", low_rank.is_same_but_for_heads)
        read = {pair.grid: low_rank.is_text(pair) for pair in found}
        assert {"enwik8-text-causal", "listops-short", "cifar10"} <= set(read)
        assert read["enwik8-text-causal"] and not read["listops-short"] and not read["cifar10"]


class TestSeparation:
    def test_one_layer_is_that_of_its_formula(self):
        """Σ_j ⟨Q x_i, K x_j⟩ V x_j of one pair of tokens, in Python's whole numbers."""
        source = np.random.default_rng(0)
        x, query, key, value = (source.integers(0, separation.PRIME, (2, 2)) for _ in range(4))
        found = separation.layer(x, query, key, value)
        x, query, key, value = (matrix.astype(object) for matrix in (x, query, key, value))
        expected = (x @ query) @ (x @ key).T @ (x @ value) % separation.PRIME
        assert found.tolist() == expected.tolist()

    def test_a_rank_is_exact(self):
        """Of products of a given rank, that of numbers beyond those of a float, with columns and rows of zeros."""
        source = np.random.default_rng(1)
        for rank in (0, 1, 4, 7):
            left = source.integers(0, separation.PRIME, (7, rank)).astype(object)
            right = source.integers(0, separation.PRIME, (rank, 9)).astype(object)
            matrix = (left @ right % separation.PRIME).astype(np.int64)
            matrix[:, 2] = 0
            assert separation.rank(matrix) == separation.rank(matrix.T) == rank

    @pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 1), (2, 3), (3, 1)])
    def test_the_closed_form(self, shape):
        """1 layer: d + 1. It is symmetric in d and (3^L − 1)/2."""
        layers, width = shape
        found = separation.separation_rank(layers, width, np.random.default_rng(2))
        assert found == separation.closed_form(layers, width)
        assert separation.closed_form(1, 5) == 6 and separation.closed_form(2, 1) == separation.closed_form(1, 4) == 5


class TestDepthTraining:
    CELL = Cell(2, 16, 64)
    ROWS = torch.arange(20 * 9).view(20, 9) % 7

    def model(self, seed=1, **what):
        return depth_training.model_of(replace(self.CELL, **what), 8, seed)

    def test_equal_parameters(self):
        """Every shape of every size within half a per cent of the first, by the count of the model itself."""
        for settings in STUDIES["depth-width"].sizes.values():
            size = depth_training.body_parameters(Cell(*settings.shapes[0], 4 * settings.shapes[0][1]))
            cells = [depth_training.cell_at(*shape, size) for shape in settings.shapes]
            for cell in cells:
                body = sum(weight.numel() for weight in depth_training.model_of(cell, 1, 0).parameters())
                body -= cell.width * (depth_training.BYTES + 1)
                assert body == depth_training.body_parameters(cell) == pytest.approx(size, rel=0.005)
            aspects = [cell.aspect for cell in cells]
            assert max(aspects) / min(aspects) >= depth_trained.KAPLAN_RATIO

    def test_a_seed_alone_decides(self):
        torch.manual_seed(5)
        one = self.model()
        torch.randn(3)
        before = torch.get_rng_state()
        weights = zip(one.parameters(), self.model().parameters())
        assert all(torch.equal(*pair) and pair[0].dtype == torch.float32 for pair in weights)
        assert torch.equal(before, torch.get_rng_state())
        runs = [depth_training.train(self.CELL, 0.01, 3, 12, 8, self.ROWS) for _ in range(2)]
        assert runs[0][1] == runs[1][1] and len(runs[0][1]) == 12 and runs[0][1][-1] < runs[0][1][0]

    def test_a_shared_layer(self):
        """One layer's parameters, and the outputs of layers that are copies of it."""
        shared = self.model(shared=True)
        assert sum(weight.numel() for weight in shared.model.layers.parameters()) * 2 == sum(
            weight.numel() for weight in self.model().model.layers.parameters()
        )
        copies = self.model(2)
        copies.load_state_dict(shared.state_dict())
        loss = depth_training.loss_of(copies, self.ROWS)
        assert torch.equal(loss, depth_training.loss_of(shared, self.ROWS))
        assert loss != depth_training.loss_of(self.model(), self.ROWS)

    def test_the_rank_of_the_input(self):
        table = torch.arange(256)
        for rank in (2, 5):
            embedded = self.model(input_rank=rank).get_input_embeddings()(table)
            assert torch.linalg.matrix_rank(embedded) == rank
            whole = self.model().get_input_embeddings()(table)
            assert embedded.norm().item() == pytest.approx(whole.norm().item(), rel=0.2)

    def test_rows(self):
        """Every byte but the first is predicted once, and no row that is tuned on is trained on."""
        rows = depth_training.consecutive_rows(["abcdef", "gh"], 3)
        assert [bytes(row.tolist()) for row in rows] == [b"abcd", b"def\0", b"\0gh\0"]
        text = depth_training.read_text(TINY["depth-width"].training)
        assert text.tuning.shape[1] == 9 and 6 < len(text.train) / len(text.tuning) < 8
        with pytest.raises(ValueError, match="text_bytes: 100 of python-docs leave no row"):
            depth_training.read_text(replace(TINY["depth-width"].training, text_bytes=100))

    def test_a_loss(self):
        """Of the next byte, read from those before it alone, each byte the same weight in rows and batches."""
        model = self.model()
        logits = model(input_ids=self.ROWS[:, :8]).logits.log_softmax(-1)
        expected = -logits.gather(-1, self.ROWS[:, 1:, None]).mean().item()
        assert depth_training.loss_of(model, self.ROWS).item() == pytest.approx(expected, rel=1e-6)
        many = torch.cat([self.ROWS] * 14)[:270]
        whole = depth_training.loss_of(model, many).item()
        assert depth_training.held_out_loss(model, many) == pytest.approx(whole, rel=1e-5)

    def test_the_rate(self):
        shares = [depth_training.rate_at(step, 40) for step in range(40)]
        assert shares[:5] == [0.25, 0.5, 0.75, 1, 1] and shares[22] == pytest.approx(0.5) and 0 < shares[-1] < 0.01

    @pytest.mark.parametrize(("best", "tried"), [(0, 3), (1, 4), (-2, 5), (9, 6)])
    def test_tuning_goes_on_at_an_edge(self, best, tried):
        losses = depth_training.tune(lambda rate: abs(math.log2(rate) - best), 1.0)
        assert len(losses) == tried and depth_training.best_rate(losses) == 2.0 ** min(best, 4)
        assert set(depth_training.tune(lambda rate: math.nan if rate < 1 else rate, 1.0)) == {0.5, 1, 2}

    def test_a_bigram(self):
        """Of two bytes in turns it is nearly sure; of what it has not read it knows nothing."""
        rows = torch.tensor([[1, 2, 1, 2, 1]]).repeat(5000, 1)
        text = depth_training.Text(rows, rows, rows)
        assert depth_training.bigram_loss(text, 5000) < 0.05
        assert depth_training.bigram_loss(text, 0) == pytest.approx(math.log(256))


def shapes(wide, deep, deeper, cut=(2.5, 2.4), shared=2.4):
    """Runs of 1×96, 4×48 and 16×24 and of the variants, with three seeds about a mean."""
    means = {
        (1, 96, ()): wide, (4, 48, ()): deep, (16, 24, ()): deeper,
        (1, 48, ()): 2.5, (4, 48, ("shared", True)): shared,
        (1, 96, ("input_rank", 8)): cut[0],
        (4, 48, ("input_rank", 8)): cut[1],
    }  # fmt: skip
    made = depth_trained.Trained((1, 2, 3), 2.7)
    for (layers, width, what), mean in means.items():
        cell = Cell(layers, width, 4 * width, **dict([what] if what else []))
        made.losses[cell] = [mean - 0.002, mean, mean + 0.003]
        if not what and (layers, width) != (1, 48):
            made.tried[cell] = {0.1: 1.0}
    return made


class TestDepthStatements:
    def test_the_floor(self):
        """log3(96) is 4.15 and log3(48) 3.5: one layer is below, four are not."""
        runs = shapes(2.5, 2.4, 2.41)
        assert [cell.layers for cell in runs.below] == [1] and [cell.layers for cell in runs.above] == [4, 16]
        needed, alike = depth_trained.floor_statements(runs)
        assert (needed.verdict, alike.verdict) == ("agrees", "agrees")
        assert "minimal depth is 4" in needed.finding and "+0.100" in needed.finding
        needed, alike = depth_trained.floor_statements(shapes(2.3, 2.4, 2.45))
        assert (needed.verdict, alike.verdict) == ("disagrees", "disagrees")

    @pytest.mark.parametrize(
        ("statement", "agreeing", "disagreeing"),
        [
            (depth_trained.law_at_this_size, shapes(2.3, 2.4, 2.5), shapes(2.4, 2.3, 2.5)),
            (depth_trained.flatness_statement, shapes(2.4, 2.5, 2.6), shapes(2.4, 2.53, 2.5)),
            (depth_trained.vocabulary_statement, shapes(2.4, 2.4, 2.4), shapes(2.5, 2.3, 2.4)),
            (depth_trained.sharing_statement, shapes(2.4, 2.4, 2.4), shapes(2.4, 2.4, 2.4, shared=2.6)),
        ],
    )
    def test_verdicts(self, statement, agreeing, disagreeing):
        assert statement(agreeing).verdict == "agrees" and statement(disagreeing).verdict == "disagrees"

    def test_arithmetic_can_fail(self, monkeypatch):
        law = (
            depth_width.law_numbers_statement,
            depth_width.law_range_statement,
            depth_width.floor_and_law_statement,
        )
        assert [statement().verdict for statement in law] == ["agrees"] * 3
        assert depth_width.budget_statement().verdict == depth_width.size_statement().verdict == "agrees"
        monkeypatch.setattr(depth_width.advice, "FIT_A", 5.06)
        monkeypatch.setattr(depth_width.advice, "floor_parameters", lambda layers: 12 * layers * 9.01**layers)
        assert [statement().verdict for statement in law] == ["disagrees"] * 3
        assert depth_width.budget_statement().verdict == "disagrees"

    def test_ranks_can_fail(self):
        ranks = {shape: separation.closed_form(*shape) for shape in depth_width.RANKS}
        verdicts = [depth_width.below_statement, depth_width.beyond_statement, depth_width.turn_statement]
        assert [statement(ranks).verdict for statement in verdicts] == ["agrees"] * 3
        ranks |= {(2, 10): 100, (4, 2): 10**8}
        assert [statement(ranks).verdict for statement in verdicts] == ["disagrees"] * 3

    def test_the_grids(self, tmp_path):
        found = grid_pairs(CLONE / "model_cards" / "grids", depth_width.is_same_but_for_layers)
        pairs = {pair.grid: depth_width.more_layers(pair) for pair in found}
        low, high = pairs["sst2"].interval
        assert "sst2 4 → 8 accuracy" in depth_width.words_of(pairs["sst2"]) and low < pairs["sst2"].gain < high < 0
        assert "4 → 8 loss" in depth_width.words_of(pairs["enwik8-text-causal"])
        assert pairs["enwik8-text-causal"].interval[1] < 0
        assert depth_width.grid_statement(tmp_path).verdict == "not tested"
        few, many = load_shape("bert/shallow-mini"), load_shape("bert/mini")
        assert depth_width.is_same_but_for_layers(few, many) and not depth_width.is_same_but_for_layers(few, few)
        assert not depth_width.is_same_but_for_layers(load_shape("bert/lean-mini"), many)


class TestOutcomes:
    @pytest.mark.parametrize(
        ("interval", "outcome"),
        [
            ((0.1, 0.2), "agrees"),
            ((-0.2, -0.1), "disagrees"),
            ((-0.1, 0.2), "undecided"),
            ((0.0, 0.2), "undecided"),
            (None, "undecided"),
        ],
    )
    def test_by_interval(self, interval, outcome):
        assert by_interval(interval) == outcome

    @pytest.mark.parametrize(
        ("outcomes", "all_of_them", "most_of_them"),
        [
            ([], "undecided", "undecided"),
            (["agrees", "agrees", "agrees"], "agrees", "agrees"),
            (["agrees", "agrees", "undecided"], "undecided", "agrees"),
            (["agrees", "agrees", "disagrees"], "disagrees", "agrees"),
            (["disagrees", "undecided"], "disagrees", "undecided"),
            (["disagrees", "undecided", "disagrees"], "disagrees", "disagrees"),
        ],
    )
    def test_of_several(self, outcomes, all_of_them, most_of_them):
        assert together(outcomes) == all_of_them and by_majority(outcomes) == most_of_them

    def test_what_seeds_cannot_show_is_undecided(self):
        """Three seeds far apart: neither agrees nor disagrees, in every statement about losses."""
        runs = shapes(2.5, 2.4, 2.41)
        for losses in runs.losses.values():
            losses[:] = [losses[1] - 0.5, losses[1], losses[1] + 0.5]
            losses.reverse()
        runs.losses[runs.plain[0]].reverse()
        runs.losses[Cell(1, 48, 192)].reverse()
        statements = (
            depth_trained.floor_statements(runs)[0],
            depth_trained.law_at_this_size(runs),
            depth_trained.sharing_statement(runs),
            depth_trained.vocabulary_statement(runs),
        )
        assert [each.verdict for each in statements] == ["undecided"] * 4

    def test_nothing_below_the_floor(self):
        runs = shapes(2.5, 2.4, 2.41)
        del runs.tried[runs.plain[0]]
        assert runs.below == [] and depth_trained.floor_statements(runs)[0].verdict == "undecided"

    def test_the_grids_need_a_majority(self, tmp_path, monkeypatch):
        few, many = load_shape("bert/mini"), load_shape("bert/many-heads-mini")
        worse = GridPair("sst2", "accuracy", few, many, -0.2, (-0.3, -0.1), 1.0)
        unclear = replace(worse, interval=(-0.5, 0.1))
        better = replace(worse, gain=0.2, interval=(0.1, 0.3))
        for pairs, verdict in (
            ([worse, worse, unclear], "agrees"),
            ([worse, unclear], "undecided"),
            ([better, better, worse], "disagrees"),
        ):
            monkeypatch.setattr(low_rank, "grid_pairs", lambda *_, found=pairs: found)
            assert low_rank.grid_statement(tmp_path).verdict == verdict
            monkeypatch.setattr(depth_width, "grid_pairs", lambda *_, found=pairs: found)
            turned = {"agrees": "disagrees", "disagrees": "agrees"}.get(verdict, verdict)
            assert depth_width.grid_statement(tmp_path).verdict == turned

    def test_two_pairs_of_one_grid(self, tmp_path, monkeypatch):
        few, many = load_shape("bert/mini"), load_shape("bert/many-heads-mini")
        pairs = [GridPair("sst2", "accuracy", few, other, 0.1, (0.0, 0.2), 1.0) for other in (many, few)]
        monkeypatch.setattr(low_rank, "grid_pairs", lambda *_: pairs)
        assert len(low_rank.grid_statement(tmp_path).numbers) == 6

    def test_a_pair_of_one_seed_is_none(self, monkeypatch):
        """The three that read the grids count what has an interval."""
        found = list(grid_pairs(CLONE / "model_cards" / "grids", lambda shape, baseline: True))
        assert found and all(low <= pair.gain <= high for pair in found for low, high in [pair.interval])
        assert "tinystories" not in {pair.grid for pair in found}  # one seed each

    def test_a_tie_is_not_slower(self):
        loss = torch.ones(5)
        reading = single_layer.Reading(10, loss, loss, loss, loss, loss, None, None)
        readings = [reading._replace(step=step) for step in (1, 3, 10)]
        both = {1: readings, 8: readings}
        found = heads_curves.compare(heads_curves.Curves("mixture", heads_curves.CONSTANT, "zero", both))
        assert not found.is_faster and not found.is_slower

    def test_correlations_that_are_not_known_are_not_left_out(self):
        known = Correlation(-0.5, (-0.7, -0.2), 3, 9)
        unknown = Correlation(None, None, 0, 0)
        for start, verdict in ((known, "agrees"), (unknown, "undecided")):
            both = {"start": start, "end": known}
            conclusion = Conclusion([], 9, 0, {}, both, both, Doubling(9, 9, 9, 9))
            common = {"paper": "P", "place": "p", "whose": "asked here", "statement": "S."}
            assert lean_grids.quality_statement(conclusion, common).verdict == verdict


class TestFailures:
    """What a user can meet is an error of one line: a ValueError or OSError."""

    def test_a_fit_that_is_not_finite(self):
        target = torch.full((1, 2, 2), math.nan)
        with pytest.raises(ValueError, match="the fit of an attention matrix is not finite"):
            attention_fit.fit_width(torch.eye(2)[None, :1], target, 1)

    def test_a_loss_that_is_not_finite(self, monkeypatch):
        monkeypatch.setattr(depth_trained, "train", lambda *_: (None, [1.0]))
        monkeypatch.setattr(depth_trained, "held_out_loss", lambda *_: math.nan)
        text = depth_training.Text(*[torch.zeros(1, 2)] * 3)
        trained = depth_trained.Trained((1,), 2.0)
        with pytest.raises(ValueError, match="2×16: the loss of seed 1 at rate 0.1 is not finite"):
            depth_trained.report(trained, Cell(2, 16, 64), 0.1, TINY["depth-width"].training, text)

    def test_a_margin_without_solution(self, monkeypatch):
        def fail(*_):
            raise RuntimeError("Maximum number of iterations reached.")

        monkeypatch.setattr(heads_theory, "nnls", fail)
        with pytest.raises(ValueError, match="margin of 2 examples: Maximum number of iterations"):
            heads_theory.margin(torch.eye(2), torch.tensor([1.0, -1.0]))


class TestPage:
    def test_a_bar_does_not_end_a_cell(self):
        assert markdown(("a", "b"), [("|x|", "y")]).splitlines()[-1] == r"| \|x\| | y |"

    @pytest.mark.parametrize("name", STUDIES)
    def test_every_row_has_its_cells(self, name):
        for path in (KEPT / name / "README.md", CLONE / "docs" / f"{name}.md"):
            text = path.read_text()
            rows = [line for line in text.splitlines() if line.startswith("|")]
            tables = "\n".join(line if line.startswith("|") else "" for line in text.splitlines()).split("\n\n")
            assert rows
            for table in filter(None, (table.strip() for table in tables)):
                assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, path


class TestRecords:
    STATEMENT = {
        "paper": "P", "place": "figure 1", "whose": "the paper", "statement": "S.", "rule": "R", "verdict": "agrees",
        "finding": "F.", "numbers": {"n": 1},
    }  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"verdict": "not tested"}, "missing: expected the data"),
            ({"numbers": {}}, "expected a rule and numbers behind a verdict"),
            ({"rule": None}, "expected a rule and numbers behind a verdict"),
            ({"verdict": "holds"}, "verdict"),
            ({"whose": "the web"}, "whose"),
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


def kept(name):
    """The results in the repository."""
    return checked(StudyFile, json.loads((KEPT / name / "results.json").read_text()), KEPT)


class TestStudies:
    def test_sources_name_studies(self):
        assert {source.study for source in SOURCES.values()} - {None} <= set(STUDIES)

    def test_the_command_knows_every_study(self):
        assert tuple(STUDIES) == checks.STUDY_NAMES and all(study.name == name for name, study in STUDIES.items())
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
        page = (tmp_path / "runs/studies/low-rank/README.md").read_text()
        assert OF_QUICK not in output and OF_QUICK not in page
        assert OF_QUICK in study_page(results.model_copy(update={"size": "quick"}))
        with pytest.raises(SystemExit, match="runs/studies/low-rank exists already"):
            leaner("study", "low-rank")

    def test_whole_or_not_at_all(self, tmp_path, monkeypatch, capsys):
        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setitem(STUDIES["low-rank"].sizes, "quick", TINY["low-rank"])
        monkeypatch.setattr(study, "study_figure", fail)
        with pytest.raises(SystemExit, match="cannot be written, nothing is left of it: disk full"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []
        printed = capsys.readouterr().out  # what was found is not lost
        assert "agrees: A head as large as the sequence" in printed
        assert "The numbers are the paper's. Needs: the text of LM1B" in printed
        assert OF_QUICK in printed

    def test_the_folder_is_tried_first(self, tmp_path, monkeypatch):
        monkeypatch.setattr(study, "conduct", lambda *_: pytest.fail("ran"))

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk, pytest.raises(SystemExit, match="new: cannot be written: No space left"):
            disk.setattr(study.tempfile, "TemporaryDirectory", full)
            leaner("study", "low-rank", "--output", tmp_path / "new")
        (tmp_path / "file").write_text("")
        with pytest.raises(SystemExit, match="file/new: cannot be written"):
            leaner("study", "low-rank", "--output", tmp_path / "file" / "new")


class TestGridsAgain:
    """`leaner study NAME --grids`."""

    @pytest.mark.parametrize("name", ["conditioning", "depth-width", "low-rank"])
    def test_by_the_rows_of_today(self, name, tmp_path, monkeypatch, capsys):
        folder = shutil.copytree(KEPT / name, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        for grid in ("enwik8-text-causal-curves", "cifar10"):
            shutil.copytree(CLONE / GRIDS_FOLDER / grid, GRIDS_FOLDER / grid)
        leaner("study", name, "--grids", "--output", folder)
        printed = capsys.readouterr().out
        statements = check_folder(folder, THEMES).statements
        of_two_grids = {each.statement: each for each in STUDIES[name].of_grids(GRIDS_FOLDER)}
        assert of_two_grids
        for each, before in zip(statements, kept(name).statements, strict=True):
            assert each == of_two_grids.get(each.statement, before)
            assert (f"{each.verdict}: {each.statement}" in printed) == (each != before)
        assert of_two_grids[next(iter(of_two_grids))] not in kept(name).statements
        leaner("study", name, "--grids", "--output", folder)
        assert capsys.readouterr().out == f"{folder}: no statement has changed\n"

    @pytest.mark.parametrize(
        "name, of, message",
        [
            ("heads-optimization", "heads-optimization", "no statement of this study is read from grids"),
            ("low-rank", "low-rank", r"model_cards/grids: expected, for 'At equal parameters.*finished rows"),
            ("low-rank", "depth-width", r"results.json: study is 'depth-width', expected 'low-rank'"),
        ],
    )
    def test_errors(self, name, of, message, tmp_path, monkeypatch):
        folder = shutil.copytree(KEPT / of, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit, match=message):
            leaner("study", name, "--grids", "--output", folder)
        assert not filecmp.dircmp(folder, KEPT / of).diff_files

    def test_the_table_of_docs_is_renewed_with_the_kept_results(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        folder = Path("model_cards/studies/low-rank")
        shutil.copytree(KEPT / "low-rank", folder)
        for grid in ("enwik8-text-causal-curves", "cifar10"):
            shutil.copytree(CLONE / GRIDS_FOLDER / grid, GRIDS_FOLDER / grid)
        page = tmp_path / "docs" / "low-rank.md"
        page.parent.mkdir()
        shutil.copyfile(CLONE / "docs" / "low-rank.md", page)
        before = page.read_text()
        leaner("study", "low-rank", "--grids", "--output", folder)
        table = verdict_table(checked(StudyFile, json.loads((folder / "results.json").read_text()), folder))
        assert table in page.read_text() and table not in before
        old = verdict_table(kept("low-rank"))
        assert page.read_text() == before.replace(old, table)
        page.write_text("no table")
        with pytest.raises(SystemExit, match=r"docs/low-rank.md: no table that begins \| statement"):
            leaner("study", "low-rank", "--grids", "--output", folder)
        assert page.read_text() == "no table"

    def test_errors_of_the_folder(self, tmp_path):
        with pytest.raises(SystemExit, match="nowhere/results.json: missing; expected the folder of a study"):
            leaner("study", "low-rank", "--grids", "--output", tmp_path / "nowhere")
        folder = shutil.copytree(KEPT / "low-rank", tmp_path / "low-rank")
        document = json.loads((folder / "results.json").read_text())
        document["statements"][0]["verdict"] = "yes"
        (folder / "results.json").write_text(json.dumps(document))
        expected = "statements.0.verdict is 'yes', expected 'agrees', 'disagrees', 'undecided' or 'not tested'$"
        with pytest.raises(SystemExit, match=expected):
            leaner("study", "low-rank", "--grids", "--output", folder)


class TestKept:
    """The results that are in the repository, and the pages that tell of them."""

    def test_every_study_is_kept(self):
        assert sorted(path.name for path in KEPT.iterdir()) == sorted(STUDIES)

    @pytest.mark.parametrize("name", STUDIES)
    def test_the_folder(self, name):
        results = check_folder(KEPT / name, THEMES)
        assert results.size == KEPT_SIZES.get(name, "default")
        assert results.study == name and results.title == STUDIES[name].title
        assert "dirty" not in results.environment.git_commit

    @pytest.mark.parametrize("name", ["conditioning", "depth-width", "low-rank"])
    def test_statements_on_finished_grids_are_those_of_the_rows(self, name, monkeypatch):
        monkeypatch.chdir(CLONE)
        results = kept(name)
        for statement in STUDIES[name].of_grids(GRIDS_FOLDER):
            assert statement in results.statements

    @pytest.mark.parametrize("name", STUDIES)
    def test_the_page_has_its_verdicts(self, name):
        results = kept(name)
        assert verdict_table(results) in (CLONE / "docs" / f"{name}.md").read_text()

    @pytest.mark.parametrize("name, room", [("conditioning", lean_tables), ("low-rank", low_rank)])
    def test_untested_statements_are_those_of_the_code(self, name, room):
        results = kept(name)
        assert {each.statement for each in room.not_tested()} <= {each.statement for each in results.statements}
