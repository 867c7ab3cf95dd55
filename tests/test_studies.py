"""`leaner study`: what is computed in closed form, the runs, the verdicts, and what a study writes."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import leaner
from modeling_leaner.training.studies import conditioning, depth_width, heads_optimization, low_rank, study
from modeling_leaner.training.studies.conditioning import (
    ARMS,
    IDENTITY,
    NONE,
    RANDOM,
    Arms,
    Look,
    Run,
    Shape,
    TrainingPlan,
    best_rates,
    cause_statement,
    order_statement,
    run_all,
    steps_to,
    train_bytes,
)
from modeling_leaner.training.studies.depth_width import Cell
from modeling_leaner.training.studies.heads_optimization import Mixture, Planted, Weights, mixture_data, planted_data
from modeling_leaner.training.studies.study import (
    GRIDS_FOLDER,
    STUDIES,
    GridPair,
    by_interval,
    by_majority,
    grid_pairs,
    load_study,
    paired,
    together,
)
from studies import TINY

from modeling_leaner.cli import checks
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM
from modeling_leaner.shapes import load_shape


CLONE = Path(__file__).parent.parent
KEPT = CLONE / "model_cards" / "studies"
SEEDS = [1, 2]
MIXTURE = Mixture(tokens=5, width=6, relevant=2, train=12, test=8)
SHAPE = Shape(layers=2, width=16, heads=2, head_size=4, length=16)
PLAN = TrainingPlan(rate=2e-3, steps=4, batch=2, looks=2, held_out=4)
SIZES = ((6, 6), (6, 10), (10, 6))


@pytest.fixture
def double():
    """float64, and one thread, on which products of small matrices are fastest."""
    with study.one_thread(), study.double_precision():
        yield


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def random_weights(heads, copies=1):
    parts = torch.randn(2, heads, 11, 6, generator=source())
    return Weights(parts[:, :, :6].clone(), parts[:, :, 6:].clone(), copies)


@pytest.mark.usefixtures("double")
class TestSingleLayer:
    def test_the_model_is_that_of_the_paper(self):
        """Φ = (1/√H) Σ_h ⟨U_h, softmax(X W_h Xᵀ) X⟩, written out."""
        x = mixture_data(MIXTURE, SEEDS).train.x
        weights = random_weights(3)
        for trial, number in ((0, 0), (1, 7)):
            one = x[trial, number]
            pairs = zip(weights.w[trial], weights.u[trial])
            heads = [(u * (torch.softmax(one @ w @ one.T, 1) @ one)).sum() for w, u in pairs]
            found = heads_optimization.outputs(x, weights)[trial, number]
            assert found.item() == pytest.approx(sum(heads).item() / 3**0.5, rel=1e-12)

    @pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (3, 4, 2, 5), (2, 3, 4, 2)])
    def test_gradients_are_those_of_autograd(self, sizes):
        assert heads_optimization.gradient_error(heads_optimization.draw(6, *sizes, source())) < 1e-12

    def test_copies_are_heads_of_their_own(self):
        """A head with copies has outputs, gradients and steps of so many separate heads, by every optimiser."""
        data = mixture_data(MIXTURE, SEEDS)
        for name, rule in heads_optimization.OPTIMISERS.items():
            few = random_weights(2, copies=3)
            many = heads_optimization.repeated(few)
            assert few.heads == many.heads == 6
            few_end, many_end = (heads_optimization.train(data, each, rule(6), [4])[1] for each in (few, many))
            assert torch.allclose(heads_optimization.repeated(few_end).w, many_end.w, rtol=1e-9, atol=1e-12), name
            phi = [heads_optimization.outputs(data.test.x, each) for each in (few_end, many_end)]
            assert torch.allclose(*phi, rtol=1e-9), name

    @pytest.mark.parametrize(
        ("rule", "optimizer"),
        [
            (heads_optimization.constant_steps(0.3), lambda parts: torch.optim.SGD(parts, lr=0.3)),
            (heads_optimization.momentum_steps(0.3, 0.9), lambda parts: torch.optim.SGD(parts, lr=0.3, momentum=0.9)),
            (heads_optimization.adam_steps(0.02), lambda parts: torch.optim.Adam(parts, lr=0.02)),
        ],
    )
    def test_optimisers_are_those_of_torch(self, rule, optimizer):
        data = mixture_data(MIXTURE, SEEDS)
        start = random_weights(2)
        _, end = heads_optimization.train(data, start, rule, [5])
        weights = heads_optimization.differing(start)
        stepper = optimizer([weights.w, weights.u])
        for _ in range(5):
            stepper.zero_grad()
            heads_optimization.losses(heads_optimization.outputs(data.train.x, weights), data.train.y).sum().backward()
            stepper.step()
        assert torch.allclose(weights.w, end.w, rtol=1e-10) and torch.allclose(weights.u, end.u, rtol=1e-10)

    def test_from_zero_heads_are_one_head(self):
        found = heads_optimization.identity_at_zero(mixture_data(MIXTURE, SEEDS), 4, 1.0, 20)
        assert found.spread < 1e-12 and found.distance < 1e-12
        random = heads_optimization.random_weights(4, mixture_data(MIXTURE, SEEDS), SEEDS)
        assert (random.w - random.w[:, :1]).abs().max() > 0.1  # the control: heads that differ

    @pytest.mark.parametrize("sizes", [(2, 3, 3, 3), (3, 2, 2, 4)])
    def test_bounds_hold_and_are_not_empty(self, sizes):
        ratios = heads_optimization.bound_ratios(heads_optimization.draw(40, *sizes, source()))
        assert set(ratios) == set(heads_optimization.BOUNDS)
        assert all(ratio.max() <= 1 for ratio in ratios.values())
        assert ratios["‖∇_U Φ‖"].max() > 0.5 and ratios["‖∇²Φ‖"].max() > 0.01

    def test_margin(self):
        """Two examples at a right angle have 1/√2; opposite ones of one label none."""
        features = torch.eye(2)
        assert heads_optimization.margin(features, torch.tensor([1.0, -1.0])) == pytest.approx(0.5**0.5, rel=1e-6)
        opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        assert heads_optimization.margin(opposite, torch.tensor([1.0, 1.0])) == pytest.approx(0, abs=1e-6)
        assert heads_optimization.margin(opposite, torch.tensor([1.0, -1.0])) == pytest.approx(1, rel=1e-6)


@pytest.mark.usefixtures("double")
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
        assert heads_optimization.alignment(head, data.planted).tolist() == pytest.approx([1, 1])

    def test_a_trial_does_not_depend_on_the_others(self):
        alone = mixture_data(MIXTURE, [2]).test.x[0]
        assert torch.equal(alone, mixture_data(MIXTURE, SEEDS).test.x[1])


@pytest.mark.usefixtures("double")
class TestFits:
    def test_theorem_1(self):
        for length, width in ((5, 5), (5, 9)):
            x = low_rank.tokens(4, width, length, 10.0, source())
            target = low_rank.random_targets(4, length, 3.0, source(1))
            assert torch.linalg.cond(x).tolist() == pytest.approx([10] * 4)
            found = low_rank.attention_of(x, *low_rank.construct(x, target))
            assert (found - target).abs().max() < 1e-12

    def test_what_is_out_of_reach(self):
        """Nothing of a matrix that is in reach, some of any other; and the convex fit finds what is in reach."""
        x = torch.randn(3, 3, 6, generator=source())
        inner = torch.randn(3, 3, 3, generator=source(1))
        reached = torch.softmax(x.transpose(-1, -2) @ inner @ x, -2)
        assert low_rank.out_of_reach(x, reached).max() < 1e-10
        assert low_rank.off(low_rank.fit_width(x, reached, 3), reached).max() < 1e-4
        other = low_rank.random_targets(3, 6, 3.0, source(2))
        assert low_rank.out_of_reach(x, other).min() > 0.1
        assert low_rank.off(low_rank.fit_width(x, other, 1), other).min() > 0.01

    def test_heads_of_one_less(self):
        target = low_rank.random_targets(3, 6, 3.0, source())
        left, right = low_rank.one_less(target)
        assert left.shape == right.shape == (3, 6, 5)
        assert (torch.softmax(left @ right.transpose(-1, -2), -2) - target).abs().max() < 1e-12
        fits = [low_rank.fit_head(target, size, 2, source()) for size in (1, 3, 5)]
        lost = [low_rank.off(fit, target).mean() for fit in fits]
        assert lost[0] > 2 * lost[1] > 0.01 and lost[2] < 1e-6

    def test_targets_and_what_is_off(self):
        sharp = low_rank.permuted_targets(2, 5, 0.9, source())
        for target in (sharp, low_rank.random_targets(2, 5, 1.0, source())):
            assert torch.allclose(target.sum(-2), torch.ones(2, 5)) and (target > 0).all()
        assert torch.allclose(sharp.amax(-2), torch.full((2, 5), 0.9)) and len(set(sharp[0].argmax(-2).tolist())) == 5
        even = torch.full((2, 5, 5), 0.2)
        assert low_rank.off(even, sharp).tolist() == pytest.approx([0.7, 0.7])

    def test_the_rank_of_theorem_2(self):
        """At most d²/h of heads of d/h, as much as h·d_p² of larger ones, until the room is full."""
        for width, heads, size, expected in ((8, 4, 2, 16), (4, 4, 3, 10), (6, 2, 3, 18), (8, 2, 2, 8)):
            assert low_rank.joint_rank(*low_rank.random_heads(heads, width, size, source())) == expected


class TestGrids:
    def test_made_up_rows_are_no_text(self):
        found = grid_pairs(CLONE / "model_cards" / "grids", low_rank.is_same_but_for_heads)
        read = {pair.grid: low_rank.is_text(pair) for pair in found}
        assert {"enwik8-text-causal", "listops-short", "cifar10"} <= set(read)
        assert read["enwik8-text-causal"] and not read["listops-short"] and not read["cifar10"]


class TestSeparation:
    def test_one_layer_is_that_of_its_formula(self):
        """Σ_j ⟨Q x_i, K x_j⟩ V x_j of one pair of tokens, in Python's whole numbers."""
        source = np.random.default_rng(0)
        x, query, key, value = (source.integers(0, depth_width.PRIME, (2, 2)) for _ in range(4))
        found = depth_width.layer(x, query, key, value)
        x, query, key, value = (matrix.astype(object) for matrix in (x, query, key, value))
        expected = (x @ query) @ (x @ key).T @ (x @ value) % depth_width.PRIME
        assert found.tolist() == expected.tolist()

    def test_a_rank_is_exact(self):
        """Of products of a given rank, that of numbers beyond those of a float, with columns and rows of zeros."""
        source = np.random.default_rng(1)
        for rank in (0, 1, 4, 7):
            left = source.integers(0, depth_width.PRIME, (7, rank)).astype(object)
            right = source.integers(0, depth_width.PRIME, (rank, 9)).astype(object)
            matrix = (left @ right % depth_width.PRIME).astype(np.int64)
            matrix[:, 2] = 0
            assert depth_width.rank(matrix) == depth_width.rank(matrix.T) == rank

    @pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 1), (2, 3), (3, 1)])
    def test_the_closed_form(self, shape):
        """1 layer: d + 1. It is symmetric in d and (3^L − 1)/2."""
        layers, width = shape
        found = depth_width.separation_rank(layers, width, np.random.default_rng(2))
        assert found == depth_width.closed_form(layers, width)
        assert (
            depth_width.closed_form(1, 5) == 6 and depth_width.closed_form(2, 1) == depth_width.closed_form(1, 4) == 5
        )


@pytest.mark.usefixtures("double")
class TestDepthTraining:
    CELL = Cell(2, 16, 64)
    ROWS = torch.arange(20 * 9).view(20, 9) % 7

    def model(self, seed=1, **what):
        return depth_width.model_of(replace(self.CELL, **what), 8, seed)

    def test_a_seed_alone_decides(self):
        torch.manual_seed(5)
        one = self.model()
        torch.randn(3)
        before = torch.get_rng_state()
        weights = zip(one.parameters(), self.model().parameters())
        assert all(torch.equal(*pair) and pair[0].dtype == torch.float32 for pair in weights)
        assert torch.equal(before, torch.get_rng_state())
        runs = [depth_width.train(self.CELL, 0.01, 3, 12, 8, self.ROWS) for _ in range(2)]
        assert runs[0][1] == runs[1][1] and len(runs[0][1]) == 12 and runs[0][1][-1] < runs[0][1][0]

    def test_a_shared_layer(self):
        """One layer's parameters, and the outputs of layers that are copies of it."""
        shared = self.model(shared=True)
        assert sum(weight.numel() for weight in shared.model.layers.parameters()) * 2 == sum(
            weight.numel() for weight in self.model().model.layers.parameters()
        )
        copies = self.model(2)
        copies.load_state_dict(shared.state_dict())
        loss = depth_width.loss_of(copies, self.ROWS)
        assert torch.equal(loss, depth_width.loss_of(shared, self.ROWS))
        assert loss != depth_width.loss_of(self.model(), self.ROWS)

    def test_rows(self):
        """Every byte but the first is predicted once, and no row that is tuned on is trained on."""
        rows = depth_width.consecutive_rows(["abcdef", "gh"], 3)
        assert [bytes(row.tolist()) for row in rows] == [b"abcd", b"def\0", b"\0gh\0"]
        text = depth_width.read_text(TINY["depth-width"].training)
        assert text.tuning.shape[1] == 9 and 6 < len(text.train) / len(text.tuning) < 8
        with pytest.raises(ValueError, match="text_bytes: 100 of python-docs leave no row"):
            depth_width.read_text(replace(TINY["depth-width"].training, text_bytes=100))

    def test_a_loss(self):
        """Of the next byte, read from those before it alone, each byte the same weight in rows and batches."""
        model = self.model()
        logits = model(input_ids=self.ROWS[:, :8]).logits.log_softmax(-1)
        expected = -logits.gather(-1, self.ROWS[:, 1:, None]).mean().item()
        assert depth_width.loss_of(model, self.ROWS).item() == pytest.approx(expected, rel=1e-6)
        many = torch.cat([self.ROWS] * 14)[:270]
        whole = depth_width.loss_of(model, many).item()
        assert depth_width.held_out_loss(model, many) == pytest.approx(whole, rel=1e-5)

    @pytest.mark.parametrize(("best", "tried"), [(0, 3), (1, 4), (-2, 5), (9, 6)])
    def test_tuning_goes_on_at_an_edge(self, best, tried):
        losses = depth_width.tune(lambda rate: abs(math.log2(rate) - best), 1.0)
        assert len(losses) == tried and depth_width.best_rate(losses) == 2.0 ** min(best, 4)
        assert set(depth_width.tune(lambda rate: math.nan if rate < 1 else rate, 1.0)) == {0.5, 1, 2}

    def test_a_bigram(self):
        """Of two bytes in turns it is nearly sure; of what it has not read it knows nothing."""
        rows = torch.tensor([[1, 2, 1, 2, 1]]).repeat(5000, 1)
        text = depth_width.Text(rows, rows, rows)
        assert depth_width.bigram_loss(text, 5000) < 0.05
        assert depth_width.bigram_loss(text, 0) == pytest.approx(math.log(256))


def shapes(wide, deep, deeper, cut=(2.5, 2.4), shared=2.4):
    """Runs of 1×96, 4×48 and 16×24 and of the variants, with three seeds about a mean."""
    means = {
        (1, 96, ()): wide, (4, 48, ()): deep, (16, 24, ()): deeper,
        (1, 48, ()): 2.5, (4, 48, ("shared", True)): shared,
        (1, 96, ("input_rank", 8)): cut[0],
        (4, 48, ("input_rank", 8)): cut[1],
    }  # fmt: skip
    made = depth_width.Trained((1, 2, 3), 2.7)
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
        needed, alike = depth_width.floor_statements(runs)
        assert (needed.verdict, alike.verdict) == ("agrees", "agrees")
        assert "minimal depth is 4" in needed.finding and "+0.100" in needed.finding
        needed, alike = depth_width.floor_statements(shapes(2.3, 2.4, 2.45))
        assert (needed.verdict, alike.verdict) == ("disagrees", "disagrees")

    @pytest.mark.parametrize(
        ("statement", "agreeing", "disagreeing"),
        [
            (depth_width.law_at_this_size, shapes(2.3, 2.4, 2.5), shapes(2.4, 2.3, 2.5)),
            (depth_width.flatness_statement, shapes(2.4, 2.5, 2.6), shapes(2.4, 2.53, 2.5)),
            (depth_width.vocabulary_statement, shapes(2.4, 2.4, 2.4), shapes(2.5, 2.3, 2.4)),
            (depth_width.sharing_statement, shapes(2.4, 2.4, 2.4), shapes(2.4, 2.4, 2.4, shared=2.6)),
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
        ranks = {shape: depth_width.closed_form(*shape) for shape in depth_width.RANKS}
        verdicts = [depth_width.below_statement, depth_width.beyond_statement, depth_width.turn_statement]
        assert [statement(ranks).verdict for statement in verdicts] == ["agrees"] * 3
        ranks |= {(2, 10): 100, (4, 2): 10**8}
        assert [statement(ranks).verdict for statement in verdicts] == ["disagrees"] * 3


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
            depth_width.floor_statements(runs)[0],
            depth_width.law_at_this_size(runs),
            depth_width.sharing_statement(runs),
            depth_width.vocabulary_statement(runs),
        )
        assert [each.verdict for each in statements] == ["undecided"] * 4

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


def matrix(size):
    return torch.randn(*size, generator=source(7), dtype=torch.float64)


def readings(kappa, losses):
    """A run whose κ stays and whose losses are these, a look every ten steps."""
    return [Look(10 * place, loss, [kappa]) for place, loss in enumerate(losses)]


def arms(kappas, ends):
    """Runs of every start: κ by start, and the loss at the end of each seed; both 4000 and 2.0 where left out."""
    runs = {
        arm: [readings(kappas.get(arm, 4000.0), [5.0, 3.0, end]) for end in ends.get(arm, (2.0, 2.1, 2.2))]
        for arm in ARMS
    }
    return Arms(runs, dict.fromkeys(ARMS, 2e-3))


class TestStarts:
    @pytest.mark.parametrize("size", SIZES)
    def test_a_random_orthogonal_matrix(self, size):
        made = conditioning.random_orthogonal(matrix(size), source())
        fewer = made if size[0] <= size[1] else made.mT
        torch.testing.assert_close(fewer @ fewer.mT, torch.eye(min(size), dtype=torch.float64))
        assert not torch.equal(made, conditioning.random_orthogonal(matrix(size), source(1)))

    @pytest.mark.parametrize("size", SIZES)
    def test_all_but_the_first_and_the_last_have_one_norm_more(self, size):
        weight = matrix(size)
        added = conditioning.plus_identity(0.5)(weight, source()) - weight
        assert added.count_nonzero() == min(size)
        torch.testing.assert_close(added.diagonal(), torch.full((min(size),), 0.5, dtype=torch.float64))
        turned = conditioning.plus_orthogonal(0.5)(weight, source()) - weight
        torch.testing.assert_close(turned.norm(), added.norm())
        scaled = conditioning.as_large(0.5)(weight, source())
        torch.testing.assert_close(scaled.norm(), (weight + added).norm())
        torch.testing.assert_close(scaled / scaled.norm(), weight / weight.norm())

    @pytest.mark.parametrize("size", SIZES)
    def test_an_orthogonal_matrix_of_the_same_norm(self, size):
        made = conditioning.made_orthogonal(matrix(size), source())
        torch.testing.assert_close(made.norm(), matrix(size).norm())
        assert torch.linalg.cond(made).item() == pytest.approx(1)

    @pytest.mark.parametrize("arm", ARMS)
    def test_nothing_else_is_changed(self, arm):
        torch.manual_seed(0)
        model = LeanGPTForCausalLM(SHAPE.config())
        before = {name: value.clone() for name, value in model.state_dict().items()}
        conditioning.change_start(model, source(), arm)
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        weights = {name for name in before if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))}
        assert changed == (set() if arm == NONE else weights) and len(weights) == 3 * SHAPE.layers


class TestRuns:
    @pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
    def test_a_run_is_its_settings_and_its_seed(self, processes):
        trials = [
            Run(SHAPE, NONE, PLAN, 1),
            Run(SHAPE, IDENTITY, PLAN, 1),
            Run(SHAPE, NONE, PLAN, 2),
        ]
        together = run_all(trials, processes, lambda line: None)
        assert list(together) == trials
        for trial in trials:
            assert run_all([trial], 1, lambda line: None)[trial] == together[trial]
        one, other, later = together.values()
        assert one[0].loss != other[0].loss and one[0].loss != later[0].loss
        assert [reading.step for reading in one] == [0, 2, 4] and one[-1].loss < one[0].loss

    def test_a_loss_weighs_rows_alike(self):
        """Of a batch of 32 rows and one of one: as the mean over all 33."""
        torch.manual_seed(0)
        model = LeanGPTForCausalLM(SHAPE.config())
        rows = conditioning.held_out_rows(33, 16)
        whole = model(input_ids=rows, labels=rows).loss.item()
        assert conditioning.look_at(model, rows, 0).loss == pytest.approx(whole, rel=1e-5)

    def test_rows_do_not_depend_on_the_start(self, monkeypatch):
        seen = []
        whole = conditioning.rows_at
        monkeypatch.setattr(
            conditioning,
            "rows_at",
            lambda text, starts, length: seen.append(starts) or whole(text, starts, length),
        )
        train_bytes(SHAPE, PLAN, 1, lambda model, random: None)
        middle = len(seen)
        train_bytes(
            SHAPE,
            PLAN,
            1,
            lambda model, random: torch.randn(5, generator=random) + torch.rand(1),
        )
        assert len(seen) == 2 * middle == 2 * (PLAN.steps + 1)
        assert all(torch.equal(one, other) for one, other in zip(seen[:middle], seen[middle:]))

    @pytest.mark.parametrize(
        ("loss", "steps"),
        [(4.0, 5.0), (3.0, 10.0), (2.5, 15.0), (2.0, 20.0), (1.9, None), (6.0, 0.0)],
    )
    def test_steps_to_a_loss(self, loss, steps):
        assert steps_to(readings(1.0, [5.0, 3.0, 2.0]), loss) == steps

    def test_the_best_rate_of_a_start(self):
        tuning = {}
        for arm, rate, loss in (
            (NONE, 1e-3, 2.0),
            (NONE, 2e-3, 1.9),
            (IDENTITY, 1e-3, 1.8),
            (IDENTITY, 2e-3, 2.4),
        ):
            for seed, more in ((1, 0.0), (2, 0.3)):
                tuning[Run(SHAPE, arm, replace(PLAN, rate=rate), seed)] = readings(1.0, [5.0, loss + more])
        assert best_rates(tuning) == {NONE: 2e-3, IDENTITY: 1e-3}
        broken = {Run(SHAPE, NONE, replace(PLAN, rate=5e-4), 1): readings(1.0, [5.0, math.nan])}
        assert best_rates(broken | tuning) == {NONE: 2e-3, IDENTITY: 1e-3}

    def test_rates_beyond_an_edge(self, monkeypatch):
        """Each start has its own best; one at an edge goes on, twice at most."""
        tried = []

        def run(trials, processes, progress):
            tried.append({(trial.arm, trial.plan.rate) for trial in trials})
            best = {NONE: 4e-3, IDENTITY: 2e-3, RANDOM: 1e-5}
            return {
                trial: readings(
                    1.0,
                    [5.0, abs(math.log(trial.plan.rate / best.get(trial.arm, 2e-3)))],
                )
                for trial in trials
            }

        monkeypatch.setattr(conditioning, "run_all", run)
        rates = conditioning.tune(replace(conditioning.QUICK, rates=(1e-3, 2e-3, 4e-3)), lambda line: None)
        assert (rates[NONE], rates[IDENTITY], rates[RANDOM]) == (4e-3, 2e-3, 2.5e-4)
        assert len(tried[0]) == 3 * len(ARMS)
        assert tried[1:] == [{(NONE, 8e-3), (RANDOM, 5e-4)}, {(RANDOM, 2.5e-4)}]

    def test_a_bigram(self, monkeypatch):
        text = torch.tensor([1, 2] * 50)
        monkeypatch.setattr(conditioning, "text_of", lambda split: text)
        smoothed = (50 + study.SMOOTHING) / (50 + 256 * study.SMOOTHING)
        other = (49 + study.SMOOTHING) / (49 + 256 * study.SMOOTHING)
        expected = -(5 * math.log(smoothed) + 4 * math.log(other)) / 9
        assert conditioning.bigram_loss(10, 1) == pytest.approx(expected)


class TestConclusions:
    def test_a_cause(self):
        lower = {IDENTITY: 100.0, RANDOM: 900.0}
        better = arms(lower, {IDENTITY: (1.9, 2.0, 2.1)})
        statement = cause_statement(better, RANDOM, "")
        assert statement.verdict == "agrees" and statement.numbers["κ moved by"] == 9
        assert statement.numbers["difference of loss"] == pytest.approx(-0.1)

    @pytest.mark.parametrize(
        ("ends", "verdict"),
        [
            ((2.1, 2.2, 2.3), "disagrees"),
            ((1.99, 2.09, 2.19), "disagrees"),
            ((1.5, 2.3, 2.2), "undecided"),
        ],
    )
    def test_no_cause(self, ends, verdict):
        """Worse, by less than the margin, and within the spread."""
        statement = cause_statement(arms({IDENTITY: 100.0}, {IDENTITY: ends}), RANDOM, "")
        assert statement.verdict == verdict

    def test_nothing_where_kappa_stayed(self):
        statement = cause_statement(arms({IDENTITY: 2100.0}, {IDENTITY: (1.0, 1.1, 1.2)}), RANDOM, "")
        assert statement.verdict == "not tested" and "2 times" in statement.missing

    def test_the_order_at_the_limit(self):
        """Five starts whose ranks correlate by exactly 0.8, of which numpy makes a little less: 0.8 or more agrees."""
        assert len(ARMS) == 5
        kappas = dict(zip(ARMS, (100.0, 200.0, 300.0, 400.0, 500.0)))
        ends = dict(zip(ARMS, ([2.1], [2.0], [2.2], [2.4], [2.3])))
        statement = order_statement(arms(kappas, ends))
        assert statement.verdict == "agrees" and statement.numbers["Spearman's correlation"] == 0.8
        lower = dict(zip(ARMS, ([2.2], [2.0], [2.1], [2.3], [2.4])))
        statement = order_statement(arms(kappas, lower))
        assert statement.verdict == "disagrees" and statement.numbers["Spearman's correlation"] == 0.7

    def test_more_heads_after_training(self):
        settings = replace(conditioning.QUICK, heads=(1, 4), heads_seeds=(1,))
        shapes = conditioning.shapes_of_heads(settings)
        assert [shape.head_size for shape in shapes["one width"]] == [32, 8]
        assert [shape.head_size for shape in shapes["one head size"]] == [16, 16]
        ends = {1: 300.0, 4: 100.0}
        runs = {
            trial: readings(ends[trial.shape.heads], [5.0, 2.0]) for trial in conditioning.heads_runs(settings, 2e-3)
        }

        def statements(kappa):
            """Of these runs beside those of the unchanged start; one seed counts, the first that was run does not."""
            own = {
                Run(settings.shape, NONE, PLAN, seed): readings(each, [5.0, 2.0])
                for seed, each in ((2, 1.0), (1, kappa))
            }
            return conditioning.trained_statements(settings, own | runs)

        assert [statement.verdict for statement in statements(200.0)] == ["agrees", "agrees"]
        assert [statement.verdict for statement in statements(90.0)] == ["disagrees", "disagrees"]
        assert "one seed" in statements(200.0)[0].finding

    def test_a_claim_is_refuted_by_one_grid(self, tmp_path, monkeypatch):
        shapes = load_shape("gpt/mini"), load_shape("gpt/lean-mini")
        pair = GridPair("a", "loss", *shapes, 0.1, (-0.1, 0.3), 0.67)
        monkeypatch.setattr(conditioning, "grid_pairs", lambda *_: [pair, replace(pair, grid="b")])
        wide = conditioning.claim_statement(tmp_path)
        assert wide.verdict == "undecided" and wide.numbers["a 8×3×32 → 4×6×16: share of the parameters"] == 0.67
        near = replace(pair, interval=(-0.019, 0.3))
        monkeypatch.setattr(conditioning, "grid_pairs", lambda *_: [near])
        assert conditioning.claim_statement(tmp_path).verdict == "agrees"
        monkeypatch.setattr(conditioning, "grid_pairs", lambda *_: [near, replace(near, metric="accuracy")])
        assert conditioning.claim_statement(tmp_path).verdict == "undecided"
        monkeypatch.setattr(conditioning, "grid_pairs", lambda *_: [pair, replace(pair, interval=(-0.3, -0.1))])
        assert conditioning.claim_statement(tmp_path).verdict == "disagrees"


class TestBeforeTraining:
    def test_the_formula(self):
        assert conditioning.formula(1024, 768) == pytest.approx(13.93, abs=0.01)
        assert conditioning.formula(10, 1000) == pytest.approx(conditioning.formula(1000, 10))

    def test_condition_numbers(self):
        turned = conditioning.random_orthogonal(matrix((4, 4)), source())
        scaled = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)) @ turned
        torch.testing.assert_close(
            conditioning.condition_numbers(torch.stack([turned, scaled])),
            torch.tensor([1.0, 8.0], dtype=torch.float64),
        )
        wide = torch.eye(4, 4000, dtype=torch.float64)[None]
        wide[0, 3, 3] = 1e-13  # below 4,000 ε
        assert conditioning.condition_numbers(wide).item() == math.inf
        assert conditioning.condition_numbers(wide[:, :, :40]).item() == pytest.approx(1e13)

    def test_attention(self):
        """Of one head of one draw, by hand; a causal first token is its own value."""
        random = source(3)
        x = torch.randn(1, 5, 6, generator=random)
        query, key, value = (x @ torch.randn(1, 6, 4, generator=random) / math.sqrt(6) for _ in range(3))
        scores = query @ key.mT / math.sqrt(4)
        outputs = conditioning.attention_outputs(5, 6, 1, 4, False, 1, source(3))
        torch.testing.assert_close(outputs, scores.softmax(-1) @ value)
        causal = conditioning.attention_outputs(5, 6, 1, 4, True, 1, source(3))
        torch.testing.assert_close(causal[0, 0], value[0, 0])
        wide = conditioning.attention_outputs(5, 6, 3, 4, False, 2, source(3))
        assert wide.shape == (2, 5, 12)


class TestStudies:
    def test_the_command_knows_every_study(self):
        assert STUDIES == checks.STUDY_NAMES
        assert sorted(path.name for path in KEPT.iterdir()) == sorted(STUDIES)

    @pytest.mark.parametrize("name", STUDIES)
    def test_a_tiny_run_has_the_statements_of_the_kept_one(self, name, tmp_path, monkeypatch):
        """Every statement by its place and kind, and a folder that is whole; sizes are in some sentences."""
        monkeypatch.setattr(study, "load_study", lambda name: replace(load_study(name), quick=TINY[name]))
        monkeypatch.chdir(CLONE)
        leaner("study", name, "--quick", "--output", tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["README.md", "figure.png", "results.json"]
        results = json.loads((tmp_path / name / "results.json").read_text())
        found, expected = (
            [(each["paper"], each["place"], each["whose"]) for each in document["statements"]]
            for document in (results, kept(name))
        )
        assert found == expected
        assert [panel["title"].split(",")[0] for panel in results["panels"]][:1] != []

    def test_a_folder_that_is_there(self, tmp_path):
        with pytest.raises(SystemExit, match="exists already"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path)

    def test_whole_or_not_at_all(self, tmp_path, monkeypatch, capsys):
        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr(study, "load_study", lambda name: replace(load_study(name), quick=TINY[name]))
        monkeypatch.setattr(study, "draw", fail)
        with pytest.raises(SystemExit, match="disk full"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []
        assert "agrees: A head as large as the sequence" in capsys.readouterr().out  # what was found is not lost

    def test_paired_differences(self):
        found = paired([1.0, 2.0, 4.0], [0.0, 0.5, 2.0])
        assert found.difference == pytest.approx(1.5) and found.pairs == 3
        assert found.interval == pytest.approx((1.5 - 4.302653 * 0.5 / 3**0.5, 1.5 + 4.302653 * 0.5 / 3**0.5))
        assert paired([1.0], [0.0]) == (1, 1.0, None, None)


def kept(name):
    return json.loads((KEPT / name / "results.json").read_text())


class TestKept:
    """What is cheap to compute again in full size is what the repository keeps."""

    @pytest.mark.parametrize("name", STUDIES)
    def test_the_settings_and_the_page(self, name):
        chosen = load_study(name)
        assert json.loads(json.dumps(asdict(chosen.default))) == kept(name)["settings"]
        assert (KEPT / name / "README.md").read_text() == study.study_page(chosen, kept(name))

    @pytest.mark.parametrize(
        "name, statements",
        [
            ("conditioning", lambda: conditioning.all_grid_statements(GRIDS_FOLDER) + conditioning.not_tested()),
            ("conditioning", lambda: [conditioning.gaussian_statement(conditioning.DEFAULT.drawn, source(1))]),
            ("depth-width", lambda: [depth_width.grid_statement(GRIDS_FOLDER), *depth_width.not_tested()]),
            ("depth-width", lambda: [depth_width.size_statement(), depth_width.budget_statement()]),
            ("depth-width", lambda: [depth_width.law_numbers_statement(), depth_width.floor_and_law_statement()]),
            ("low-rank", lambda: [low_rank.grid_statement(GRIDS_FOLDER), low_rank.table_statement()]),
        ],
    )
    def test_numbers(self, name, statements, monkeypatch, double):
        monkeypatch.chdir(CLONE)
        known = {(each["place"], each["statement"]): each for each in kept(name)["statements"]}
        for each in map(study.document, statements()):
            expected = known[each["place"], each["statement"]]
            assert each["verdict"] == expected["verdict"]
            assert each["numbers"] == pytest.approx(expected["numbers"], rel=1e-5)
