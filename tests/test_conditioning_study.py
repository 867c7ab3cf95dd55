"""The study conditioning: starts that differ in W alone, the runs from them, and what is concluded."""

import math
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from modeling_leaner.training.studies import (
    byte_text,
    bytes_model,
    conditioning,
    intervention,
    kappa_at_start,
    lean_grids,
)
from modeling_leaner.training.studies.bytes_model import (
    Look,
    Shape,
    TrainingPlan,
    steps_to,
    train_bytes,
)
from modeling_leaner.training.studies.conditioning import (
    Arms,
    cause_statement,
    order_statement,
    speed_statement,
)
from modeling_leaner.training.studies.grid_pairs import GridPair
from modeling_leaner.training.studies.intervention import (
    ARMS,
    IDENTITY,
    NONE,
    RANDOM,
    Run,
    best_rates,
    run_all,
)
from torch import Generator

from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM
from modeling_leaner.shapes import load_shape


SHAPE = Shape(layers=2, width=16, heads=2, head_size=4, length=16)
PLAN = TrainingPlan(rate=2e-3, steps=4, batch=2, looks=2, held_out=4)
SIZES = ((6, 6), (6, 10), (10, 6))


def source(seed=0):
    return Generator().manual_seed(seed)


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
        made = intervention.random_orthogonal(matrix(size), source())
        fewer = made if size[0] <= size[1] else made.mT
        torch.testing.assert_close(fewer @ fewer.mT, torch.eye(min(size), dtype=torch.float64))
        assert not torch.equal(made, intervention.random_orthogonal(matrix(size), source(1)))

    @pytest.mark.parametrize("size", SIZES)
    def test_all_but_the_first_and_the_last_have_one_norm_more(self, size):
        weight = matrix(size)
        added = intervention.plus_identity(0.5)(weight, source()) - weight
        assert added.count_nonzero() == min(size)
        torch.testing.assert_close(added.diagonal(), torch.full((min(size),), 0.5, dtype=torch.float64))
        turned = intervention.plus_orthogonal(0.5)(weight, source()) - weight
        torch.testing.assert_close(turned.norm(), added.norm())
        scaled = intervention.as_large(0.5)(weight, source())
        torch.testing.assert_close(scaled.norm(), (weight + added).norm())
        torch.testing.assert_close(scaled / scaled.norm(), weight / weight.norm())

    @pytest.mark.parametrize("size", SIZES)
    def test_an_orthogonal_matrix_of_the_same_norm(self, size):
        made = intervention.made_orthogonal(matrix(size), source())
        torch.testing.assert_close(made.norm(), matrix(size).norm())
        assert torch.linalg.cond(made).item() == pytest.approx(1)

    @pytest.mark.parametrize("arm", ARMS)
    def test_nothing_else_is_changed(self, arm):
        torch.manual_seed(0)
        model = LeanGPTForCausalLM(SHAPE.config())
        before = {name: value.clone() for name, value in model.state_dict().items()}
        intervention.change_start(model, source(), arm)
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

    def test_a_process_that_ends_early(self, monkeypatch):
        class Broken(ThreadPoolExecutor):
            def map(self, *_):
                raise BrokenProcessPool("A process in the process pool was terminated abruptly")

        monkeypatch.setattr(intervention, "ProcessPoolExecutor", lambda processes, mp_context: Broken(processes))
        with pytest.raises(OSError, match="ended before its runs did; too little memory"):
            run_all([Run(SHAPE, NONE, PLAN, 1)], 2, lambda line: None)

    @pytest.mark.full
    def test_an_interrupted_study_does_not_wait_for_its_runs(self):
        """A signal that only this process gets, as SIGTERM, while a run goes on that would take hours."""

        def interrupt(line: str) -> None:
            raise KeyboardInterrupt

        runs = [Run(SHAPE, NONE, PLAN, 1), Run(SHAPE, NONE, replace(PLAN, steps=10**6), 1)]
        with pytest.raises(KeyboardInterrupt):
            run_all(runs, 2, interrupt)
        assert active_children() == []

    def test_a_loss_weighs_rows_alike(self):
        """Of a batch of 32 rows and one of one: as the mean over all 33."""
        torch.manual_seed(0)
        model = LeanGPTForCausalLM(SHAPE.config())
        rows = bytes_model.held_out_rows(33, 16)
        whole = model(input_ids=rows, labels=rows).loss.item()
        assert bytes_model.look_at(model, rows, 0).loss == pytest.approx(whole, rel=1e-5)

    def test_rows_do_not_depend_on_the_start(self, monkeypatch):
        seen = []
        whole = bytes_model.rows_at
        monkeypatch.setattr(
            bytes_model,
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

    def test_held_out_rows_are_of_the_other_split(self):
        rows = bytes_model.held_out_rows(4, 16)
        text = bytes_model.text_of("test")
        assert rows.shape == (4, 16) and torch.equal(rows[0], text[:16]) and torch.equal(rows[-1], text[-16:])

    @pytest.mark.parametrize(
        ("loss", "steps"),
        [(4.0, 5.0), (3.0, 10.0), (2.5, 15.0), (2.0, 20.0), (1.9, None), (6.0, 0.0)],
    )
    def test_steps_to_a_loss(self, loss, steps):
        assert steps_to(readings(1.0, [5.0, 3.0, 2.0]), loss) == steps

    def test_steps_to_a_loss_that_was_there_at_the_start(self):
        assert steps_to(readings(1.0, [2.0, 2.0, 2.0]), 2.5) == 0.0

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
        monkeypatch.setattr(bytes_model, "text_of", lambda split: text)
        smoothed = (50 + byte_text.SMOOTHING) / (50 + 256 * byte_text.SMOOTHING)
        other = (49 + byte_text.SMOOTHING) / (49 + 256 * byte_text.SMOOTHING)
        expected = -(5 * math.log(smoothed) + 4 * math.log(other)) / 9
        assert bytes_model.bigram_loss(10, 1) == pytest.approx(expected)


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

    def test_the_order_of_all(self):
        kappas = {arm: 100.0 * place for place, arm in enumerate(ARMS, 1)}
        ends = {arm: (2 + 0.1 * place, 2 + 0.1 * place) for place, arm in enumerate(ARMS)}
        assert order_statement(arms(kappas, ends)).verdict == "agrees"
        turned = dict(zip(kappas, reversed(ends.values())))
        assert order_statement(arms(kappas, turned)).verdict == "disagrees"

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

    @pytest.mark.parametrize(("correlation", "verdict"), [(0.7999999999999999, "agrees"), (0.7999, "disagrees")])
    def test_the_limit_of_the_steps_to_a_loss(self, correlation, verdict, monkeypatch):
        monkeypatch.setattr("scipy.stats.spearmanr", lambda *ranks: SimpleNamespace(statistic=correlation))
        assert speed_statement(arms({}, {})).verdict == verdict

    def test_the_steps_to_a_loss(self):
        kappas = {arm: 100.0 * place for place, arm in enumerate(ARMS, 1)}
        runs = {
            arm: [readings(kappas[arm], [5.0, 2.0 + 0.1 * place + 0.01 * seed, 2.0]) for seed in range(3)]
            for place, arm in enumerate(ARMS)
        }
        found = Arms(runs, dict.fromkeys(ARMS, 2e-3))
        assert found.target == pytest.approx(2.01)
        assert speed_statement(found).verdict == "agrees"
        assert speed_statement(Arms(dict(zip(runs, reversed(runs.values()))), found.rates)).verdict == "agrees"
        slow = {
            arm: [readings(1 / kappas[arm], [one.loss for one in run]) for run in each] for arm, each in runs.items()
        }
        assert speed_statement(Arms(slow, found.rates)).verdict == "disagrees"

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

    def test_rounding_is_no_kappa(self):
        """Above 1/ε of float32 rank is lost, and no order is read from what is left."""
        settings = replace(conditioning.QUICK, heads=(1, 4), heads_seeds=(1,))
        runs = {
            run: readings({1: 3e8, 4: 100.0}[run.shape.heads], [5.0, 2.0])
            for run in conditioning.heads_runs(settings, 2e-3)
        }
        own = Run(settings.shape, NONE, PLAN, 1)
        statement = conditioning.trained_statements(settings, runs | {own: readings(2e8, [5.0, 2.0])})[0]
        assert statement.verdict == "disagrees" and statement.numbers["κ at the end, 1 heads"] is None
        assert "1 heads rank lost to rank lost" in statement.finding

    def test_a_twin(self):
        base = load_shape("gpt/mini")
        assert lean_grids.is_twin(load_shape("gpt/lean-mini"), base)
        for other in (
            "gpt/shallow-mini",
            "gpt/many-heads-mini",
            "gpt/mini",
            "gpt/deep-narrow-mini",
        ):
            assert not lean_grids.is_twin(load_shape(other), base)

    def test_a_claim_is_refuted_by_one_grid(self, tmp_path, monkeypatch):
        shapes = load_shape("gpt/mini"), load_shape("gpt/lean-mini")
        pair = GridPair("a", "loss", *shapes, 0.1, (-0.1, 0.3), 0.67)
        monkeypatch.setattr(lean_grids, "grid_pairs", lambda *_: [pair, replace(pair, grid="b")])
        wide = lean_grids.claim_statement(tmp_path)
        assert wide.verdict == "undecided" and wide.numbers["a 8×3×32 → 4×6×16: share of the parameters"] == 0.67
        near = replace(pair, interval=(-0.019, 0.3))
        monkeypatch.setattr(lean_grids, "grid_pairs", lambda *_: [near])
        assert lean_grids.claim_statement(tmp_path).verdict == "agrees"
        monkeypatch.setattr(lean_grids, "grid_pairs", lambda *_: [near, replace(near, metric="accuracy")])
        assert lean_grids.claim_statement(tmp_path).verdict == "undecided"
        monkeypatch.setattr(lean_grids, "grid_pairs", lambda *_: [pair, replace(pair, interval=(-0.3, -0.1))])
        assert lean_grids.claim_statement(tmp_path).verdict == "disagrees"

    def test_the_share_of_the_parameters_is_that_of_the_runs(self):
        """ListOps has 15 words in place of the shapes' 8,192."""
        numbers = lean_grids.claim_statement(Path(__file__).parent.parent / "model_cards" / "grids").numbers
        stated = numbers["listops-short 8×3×32 → 4×6×16: share of the parameters"]
        assert stated == pytest.approx(509_098 / 956_458, abs=1e-3)

    def test_without_rows(self, tmp_path):
        statements = [
            *lean_grids.grid_statements(tmp_path),
            lean_grids.claim_statement(tmp_path),
        ]
        assert [statement.verdict for statement in statements] == ["not tested"] * 3
        assert all(str(tmp_path) in statement.missing for statement in statements)


class TestBeforeTraining:
    def test_the_formula(self):
        assert kappa_at_start.formula(1024, 768) == pytest.approx(13.93, abs=0.01)
        assert kappa_at_start.formula(10, 1000) == pytest.approx(kappa_at_start.formula(1000, 10))

    def test_condition_numbers(self):
        turned = intervention.random_orthogonal(matrix((4, 4)), source())
        scaled = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)) @ turned
        torch.testing.assert_close(
            kappa_at_start.condition_numbers(torch.stack([turned, scaled])),
            torch.tensor([1.0, 8.0], dtype=torch.float64),
        )
        wide = torch.eye(4, 4000, dtype=torch.float64)[None]
        wide[0, 3, 3] = 1e-13  # below 4,000 ε
        assert kappa_at_start.condition_numbers(wide).item() == math.inf
        assert kappa_at_start.condition_numbers(wide[:, :, :40]).item() == pytest.approx(1e13)

    def test_what_has_lost_rank_is_not_drawn(self):
        kappas = {1: torch.tensor([math.inf, 5.0]), 2: torch.tensor([4.0, 3.0])}
        found = kappa_at_start.AttentionKappas(True, False, kappas)
        assert found.line().x == [2]
        kappas = {1: torch.full((2,), math.inf), 2: torch.tensor([4.0, 3.0])}
        statement = kappa_at_start.AttentionKappas(True, False, kappas).statement(conditioning.QUICK.drawn)
        assert statement.numbers["median κ with 1 heads"] is None and "rank lost with 1, 3 with 2" in statement.finding

    def test_attention(self):
        """Of one head of one draw, by hand; a causal first token is its own value."""
        random = source(3)
        x = torch.randn(1, 5, 6, generator=random)
        query, key, value = (x @ torch.randn(1, 6, 4, generator=random) / math.sqrt(6) for _ in range(3))
        scores = query @ key.mT / math.sqrt(4)
        outputs = kappa_at_start.attention_outputs(5, 6, 1, 4, False, 1, source(3))
        torch.testing.assert_close(outputs, scores.softmax(-1) @ value)
        causal = kappa_at_start.attention_outputs(5, 6, 1, 4, True, 1, source(3))
        torch.testing.assert_close(causal[0, 0], value[0, 0])
        wide = kappa_at_start.attention_outputs(5, 6, 3, 4, False, 2, source(3))
        assert wide.shape == (2, 5, 12)

    def test_an_order_that_does_not_hold(self):
        drawn = conditioning.QUICK.drawn
        kappas = {
            1: torch.full((5,), 9.0),
            2: torch.full((5,), 7.0),
            4: torch.full((5,), 8.0),
        }
        found = kappa_at_start.AttentionKappas(True, False, kappas)
        assert found.statement(drawn).verdict == "disagrees"
        kappas[4] = torch.full((5,), 6.0)
        assert found.statement(drawn).verdict == "agrees"
