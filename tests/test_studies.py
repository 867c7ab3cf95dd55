"""`leaner study`: its mathematics, its verdicts, and what it writes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from command import leaner
from modeling_leaner.training.studies import conditioning, depth_width, heads_optimization, low_rank, study
from modeling_leaner.training.studies.conditioning import ARMS, IDENTITY, LARGER, NONE, RANDOM, Look
from modeling_leaner.training.studies.depth_width import Cell
from modeling_leaner.training.studies.heads_optimization import Weights, mixture_data
from modeling_leaner.training.studies.study import Study, by_interval, by_majority, together

from modeling_leaner.cli import training as commands


CLONE = Path(__file__).parent.parent
KEPT = CLONE / "model_cards" / "studies"
MIXTURE = heads_optimization.Mixture(tokens=5, width=6, relevant=2, train=12, test=8)
SIZES = ((6, 6), (6, 10), (10, 6))


@pytest.fixture(autouse=True)
def threads():
    """As before a study, which sets them to one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def double():
    """float64."""
    with study.double_precision():
        yield


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def matrix(size):
    return torch.randn(*size, generator=source(7), dtype=torch.float64)


def verdicts(rows):
    return [row["verdict"] for row in rows.statements]


@pytest.mark.usefixtures("double")
class TestHeadsOptimization:
    @pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (3, 4, 2, 5), (2, 3, 4, 2)])
    def test_the_model_and_its_gradients(self, sizes):
        """Φ is written out as in the paper; the closed gradients are those of autograd."""
        examples, weights = heads_optimization.draw(6, *sizes, source())
        x = examples.x[1, -1]
        expected = sum((u * (torch.softmax(x @ w @ x.T, 1) @ x)).sum() for w, u in zip(weights.w[1], weights.u[1]))
        found = heads_optimization.outputs(examples.x, weights)[1, -1]
        assert found.item() == pytest.approx(expected.item() / sizes[0] ** 0.5, rel=1e-12)
        assert heads_optimization.gradient_error(examples, weights) < 1e-12

    def test_from_zero_heads_are_one_head(self):
        data = mixture_data(MIXTURE, [1, 2])
        spread, distance = heads_optimization.identity_at_zero(data, 4, 1.0, 20)
        assert spread < 1e-12 and distance < 1e-12

    @pytest.mark.parametrize("sizes", [(2, 3, 3, 3), (3, 2, 2, 4)])
    def test_bounds_hold_and_are_not_empty(self, sizes):
        ratios = heads_optimization.bound_ratios(*heads_optimization.draw(40, *sizes, source()))
        assert all(ratio.max() <= 1 for ratio in ratios.values())
        assert ratios["‖∇_U Φ‖"].max() > 0.5 and ratios["‖∇²Φ‖"].max() > 0.01

    def test_margin(self):
        """Two examples at a right angle have 1/√2; opposite ones of one label none."""
        assert heads_optimization.margin(torch.eye(2), torch.tensor([1.0, -1.0])) == pytest.approx(0.5**0.5, rel=1e-6)
        opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        assert heads_optimization.margin(opposite, torch.tensor([1.0, 1.0])) == pytest.approx(0, abs=1e-6)
        assert heads_optimization.margin(opposite, torch.tensor([1.0, -1.0])) == pytest.approx(1, rel=1e-6)

    def test_kernel_features_are_gradients_of_outputs(self):
        examples, weights = heads_optimization.draw(1, 2, 3, 2, 4, source())
        free = heads_optimization.differing(weights)
        expected = [torch.autograd.grad(phi, free, retain_graph=True) for phi in
                    heads_optimization.outputs(examples.x, free)[0]]  # fmt: skip
        found = heads_optimization.kernel_features(examples.x[0], Weights(weights.w[0], weights.u[0]))
        assert torch.allclose(found, torch.cat([heads_optimization.flat(each) for each in expected]))

    def test_the_mixture(self):
        """Each example has its relevant tokens, all equal to the mean of its class; trials do not depend on others."""
        data = mixture_data(MIXTURE, [1, 2])
        means = {}
        for sign in (-1, 1):
            chosen = data.test.y[0] == sign
            tokens = data.test.x[0][chosen][data.test.relevant[0][chosen]]
            assert torch.allclose(tokens, tokens[:1].expand_as(tokens)) and len(tokens) == 2 * chosen.sum()
            means[sign] = tokens[0]
        assert means[1].norm().item() == pytest.approx(2) and abs(means[1] @ means[-1]) < 1e-12
        assert torch.equal(mixture_data(MIXTURE, [2]).test.x[0], data.test.x[1])


@pytest.mark.usefixtures("double")
class TestLowRank:
    @pytest.mark.parametrize(("length", "width"), [(5, 5), (5, 9)])
    def test_theorem_1(self, length, width):
        x = low_rank.tokens(4, width, length, 10.0, source())
        target = low_rank.random_targets(4, length, 3.0, source(1))
        assert torch.linalg.cond(x).tolist() == pytest.approx([10] * 4)
        assert (low_rank.attention_of(x, *low_rank.construct(x, target)) - target).abs().max() < 1e-12

    def test_what_is_out_of_reach(self):
        """Nothing of a matrix that is in reach, some of any other; and the convex fit finds what is in reach."""
        x = torch.randn(3, 3, 6, generator=source())
        reached = torch.softmax(x.mT @ torch.randn(3, 3, 3, generator=source(1)) @ x, -2)
        assert low_rank.out_of_reach(x, reached).max() < 1e-10
        assert low_rank.off(low_rank.fit_width(x, reached, 3), reached).max() < 1e-4
        assert low_rank.out_of_reach(x, low_rank.random_targets(3, 6, 3.0, source(2))).min() > 0.1

    def test_heads_of_one_less(self):
        target = low_rank.random_targets(3, 6, 3.0, source())
        left, right = low_rank.one_less(target)
        assert left.shape == right.shape == (3, 6, 5)
        assert (torch.softmax(left @ right.mT, -2) - target).abs().max() < 1e-12
        fits = [low_rank.fit_head(target, size, 2, source()) for size in (1, 3, 5)]
        lost = [low_rank.off(fit, target).mean() for fit in fits]
        assert lost[0] > 2 * lost[1] > 0.01 and lost[2] < 1e-6

    def test_the_rank_of_theorem_2(self):
        """At most d²/h of heads of d/h, as much as h·d_p² of larger ones, until the room is full."""
        for width, heads, size, expected in ((8, 4, 2, 16), (4, 4, 3, 10), (6, 2, 3, 18), (8, 2, 2, 8)):
            assert low_rank.joint_rank(*low_rank.random_heads(heads, width, size, source())) == expected


class TestSeparation:
    def test_one_layer_is_that_of_its_formula(self):
        """Σ_j ⟨Q x_i, K x_j⟩ V x_j of one pair of tokens, in Python's whole numbers."""
        x, query, key, value = np.random.default_rng(0).integers(0, depth_width.PRIME, (4, 2, 2))
        found = depth_width.layer(x, query, key, value)
        x, query, key, value = (each.astype(object) for each in (x, query, key, value))
        assert found.tolist() == ((x @ query) @ (x @ key).T @ (x @ value) % depth_width.PRIME).tolist()

    @pytest.mark.parametrize("rank", [0, 1, 4, 7])
    def test_a_rank_is_exact(self, rank):
        """Of products of a given rank, that of numbers beyond those of a float, with a column of zeros."""
        numbers = np.random.default_rng(1)
        left, right = (numbers.integers(0, depth_width.PRIME, size).astype(object) for size in ((7, rank), (rank, 9)))
        made = (left @ right % depth_width.PRIME).astype(np.int64)
        made[:, 2] = 0
        assert depth_width.rank(made) == depth_width.rank(made.T) == rank

    @pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 1), (2, 3), (3, 1)])
    def test_the_closed_form(self, shape):
        assert depth_width.separation_rank(*shape, np.random.default_rng(2)) == depth_width.closed_form(*shape)


class TestDepthWidth:
    CELL = Cell(2, 16, 64)
    ROWS = torch.arange(20 * 9).view(20, 9) % 7

    def test_a_seed_alone_decides(self):
        runs = [depth_width.train(self.CELL, 0.01, 3, 12, 8, self.ROWS) for _ in range(2)]
        losses = [depth_width.held_out_loss(model, self.ROWS) for model in runs]
        new = depth_width.held_out_loss(depth_width.model_of(self.CELL, 8, 3), self.ROWS)
        assert losses[0] == losses[1] < new

    def test_a_shared_layer(self):
        """The outputs of layers that are copies of it."""
        shared = depth_width.model_of(replace(self.CELL, shared=True), 8, 1)
        copies = depth_width.model_of(self.CELL, 8, 2)
        copies.load_state_dict(shared.state_dict())
        assert torch.equal(depth_width.loss_of(copies, self.ROWS), depth_width.loss_of(shared, self.ROWS))
        assert len({*shared.parameters()}) < len({*copies.parameters()})

    def test_rows(self):
        """Every byte but the first is predicted once."""
        rows = depth_width.consecutive_rows(["abcdef", "gh"], 3)
        assert [bytes(row.tolist()) for row in rows] == [b"abcd", b"def\0", b"\0gh\0"]

    @pytest.mark.parametrize(("best", "tried"), [(0, 3), (1, 4), (-2, 5), (9, 6)])
    def test_tuning_goes_on_at_an_edge(self, best, tried):
        losses = study.tune(lambda rate: abs(math.log2(rate) - best), (0.5, 1, 2), more=3)
        assert len(losses) == tried and study.best_rate(losses) == 2.0 ** min(best, 4)
        assert set(study.tune(lambda rate: math.nan if rate < 1 else rate, (0.5, 1, 2), more=3)) == {0.5, 1, 2}

    @pytest.mark.parametrize(
        ("wide", "deep", "deeper", "cut", "shared", "expected"),
        [
            (2.5, 2.4, 2.41, 2.7, 2.4, "agrees agrees disagrees agrees agrees agrees"),
            (2.3, 2.45, 2.6, 2.2, 2.6, "disagrees disagrees agrees disagrees disagrees disagrees"),
        ],
    )
    def test_verdicts(self, wide, deep, deeper, cut, shared, expected):
        """Three seeds about a mean: of 1×96 below its floor, of 4×48 and 16×24 from it on, and of the variants."""
        plain = {Cell(1, 96, 384): wide, Cell(4, 48, 192): deep, Cell(16, 24, 96): deeper}
        means = plain | {
            Cell(4, 48, 192, shared=True): shared,
            Cell(1, 48, 192): 2.5,
            Cell(1, 96, 384, input_rank=8): cut,
            Cell(4, 48, 192, input_rank=8): 2.4,
        }
        losses = {cell: [mean - 0.002, mean, mean + 0.003] for cell, mean in means.items()}
        rows = Study()
        trained = depth_width.Trained((1, 2, 3), 2.7, losses, dict.fromkeys(plain, {0.1: 1.0}))
        for part in (depth_width.floor_in_training, depth_width.law_and_flatness, depth_width.variants):
            part(rows, trained)
        assert " ".join(verdicts(rows)) == expected


class TestConditioning:
    SHAPE = conditioning.Shape(layers=2, width=16, heads=2, head_size=4, length=16)
    PLAN = conditioning.TrainingPlan(steps=4, batch=2, looks=2, held_out=4)

    @pytest.mark.parametrize("size", SIZES)
    def test_starts(self, size):
        """All but the first and the last have one norm; that of the last is the first's, and its κ is 1."""
        weight = matrix(size)
        made = {arm: conditioning.started(arm, weight, source()) for arm in ARMS}
        assert made[NONE] is weight
        assert (made[IDENTITY] - weight).count_nonzero() == min(size)
        added = [(made[arm] - weight).norm().item() for arm in (IDENTITY, RANDOM)]
        assert added == pytest.approx([math.sqrt(min(size))] * 2)
        torch.testing.assert_close(made[LARGER].norm(), made[IDENTITY].norm())
        torch.testing.assert_close(made[LARGER] / made[LARGER].norm(), weight / weight.norm())
        torch.testing.assert_close(made[ARMS[-1]].norm(), weight.norm())
        assert torch.linalg.cond(made[ARMS[-1]]).item() == pytest.approx(1)

    def test_a_run_is_its_settings_and_its_seed(self):
        """Runs of one seed differ in the queries, keys and values of their start alone."""
        runs = [conditioning.Run(self.SHAPE, arm, 2e-3, seed) for arm, seed in ((NONE, 1), (IDENTITY, 1), (NONE, 2))]
        once, again = (conditioning.run_all(runs, self.PLAN) for _ in range(2))
        assert once == again and len({looks[0].loss for looks in once.values()}) == 3
        assert [look.step for look in once[runs[0]]] == [0, 2, 4]
        weights = [dict(conditioning.new_model(one).named_parameters()) for one in runs[:2]]
        changed = {name for name in weights[0] if not torch.equal(weights[0][name], weights[1][name])}
        assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj"} and len(changed) == 6

    @pytest.mark.parametrize(
        ("loss", "steps"), [(4.0, 5.0), (3.0, 10.0), (2.5, 15.0), (2.0, 20.0), (1.9, None), (6.0, 0.0)]
    )
    def test_steps_to_a_loss(self, loss, steps):
        looks = [Look(10 * place, each, 1.0) for place, each in enumerate((5.0, 3.0, 2.0))]
        assert conditioning.steps_to(looks, loss) == steps

    @pytest.mark.parametrize(
        ("difference", "interval", "expected"),
        [
            (-0.1, (-0.15, -0.05), "agrees"),
            (0.1, (0.05, 0.15), "disagrees"),
            (-0.01, (-0.015, -0.005), "disagrees"),
            (-0.1, (-0.5, 0.3), "undecided"),
        ],
    )
    def test_a_cause(self, difference, interval, expected):
        """Better by the margin; worse; better by less than it; within the spread."""
        assert conditioning.cause_outcome(difference, interval) == expected

    def test_the_formula(self):
        assert conditioning.formula(1024, 768) == pytest.approx(13.93, abs=0.01)
        turned = conditioning.random_orthogonal(matrix((4, 4)), source())
        scaled = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)) @ turned
        lost = torch.diag(torch.tensor([1.0, 1.0, 1.0, 1e-17], dtype=torch.float64))
        found = conditioning.condition_numbers(torch.stack([turned, scaled, lost])).tolist()
        assert found == pytest.approx([1, 8, math.inf])


class TestOutcomes:
    @pytest.mark.parametrize(
        ("interval", "outcome"),
        [((0.1, 0.2), "agrees"), ((-0.2, -0.1), "disagrees"), ((0.0, 0.2), "undecided"), (None, "undecided")],
    )
    def test_by_interval(self, interval, outcome):
        assert by_interval(interval) == outcome

    @pytest.mark.parametrize(
        ("outcomes", "all_of_them", "most_of_them"),
        [
            ([], "not tested", "not tested"),
            (["agrees", "agrees", "undecided"], "undecided", "agrees"),
            (["agrees", "agrees", "disagrees"], "disagrees", "agrees"),
            (["disagrees", "undecided"], "disagrees", "undecided"),
            (["agrees"], "agrees", "agrees"),
        ],
    )
    def test_of_several(self, outcomes, all_of_them, most_of_them):
        assert together(outcomes) == all_of_them and by_majority(outcomes) == most_of_them

    def test_paired_differences(self):
        difference, interval = study.paired([1.0, 2.0, 4.0], [0.0, 0.5, 2.0])
        reach = 4.302653 * 0.5 / 3**0.5
        assert difference == pytest.approx(1.5) and interval == pytest.approx((1.5 - reach, 1.5 + reach))


class TestStudies:
    @pytest.mark.parametrize(
        "name", ["low-rank", *(pytest.param(name, marks=pytest.mark.full) for name in get_args(commands.Study)[:3])]
    )
    def test_quick(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(CLONE)
        leaner("study", name, "--quick", "--output", tmp_path / name)
        assert {path.name for path in (tmp_path / name).iterdir()} == {"README.md", "figure.png", "results.json"}
        kept = {len(each["numbers"]) > 0 for each in statements(tmp_path / name)}
        assert kept == {True}

    def test_whole_or_not_at_all(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr(low_rank, "run", fail)
        with pytest.raises(SystemExit, match="disk full"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    def test_the_command_knows_every_study(self):
        assert sorted(path.name for path in KEPT.iterdir()) == sorted(get_args(commands.Study))

    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("conditioning", [conditioning.finished_grids]),
            ("depth-width", [depth_width.size, depth_width.finished_grids]),
            ("low-rank", [low_rank.printed_parameters, low_rank.finished_grids]),
        ],
    )
    def test_published_numbers(self, name, parts, monkeypatch):
        """What is cheap to compute again is what the repository keeps."""
        monkeypatch.chdir(CLONE)
        rows = Study()
        for part in parts:
            part(rows)
        published = {each["statement"]: each for each in statements(KEPT / name)}
        for each in rows.statements:
            expected = published[each["statement"]]
            assert each["verdict"] == expected["verdict"]
            assert each["numbers"] == pytest.approx(expected["numbers"], rel=2e-3)


def statements(folder):
    return json.loads((folder / "results.json").read_text())["statements"]
