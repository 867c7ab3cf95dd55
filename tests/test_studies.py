"""`leaner study`: its mathematics, its verdicts, and what it writes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest
import torch
import yaml
from command import leaner
from modeling_leaner.training.experiments.grid import load_grid, reported
from modeling_leaner.training.experiments.grid_results import GridResults
from modeling_leaner.training.records import ResultRow
from modeling_leaner.training.studies import conditioning, heads_optimization, low_rank
from modeling_leaner.training.studies.conditioning import ARMS, IDENTITY, LARGER, NONE, RANDOM
from modeling_leaner.training.studies.heads_optimization import mixture_data
from modeling_leaner.training.studies.study import Study
from transformers.modeling_utils import local_torch_dtype

from modeling_leaner.cli import training as commands


CLONE = Path(__file__).parent.parent
KEPT = CLONE / "model_cards" / "studies"
MIXTURE = heads_optimization.Mixture(tokens=5, width=6, relevant=2, examples=12)
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
    with local_torch_dtype(torch.float64):
        yield


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def matrix(size):
    return torch.randn(*size, generator=source(7), dtype=torch.float64)


@pytest.mark.usefixtures("double")
class TestHeadsOptimization:
    def test_the_model(self):
        """Φ is written out as in the paper."""
        x, w, u = (torch.randn(2, *size, generator=source()) for size in ((4, 5, 3), (6, 3, 3), (6, 5, 3)))
        expected = sum((u * (torch.softmax(x[1, 3] @ w @ x[1, 3].T, 1) @ x[1, 3])).sum() for w, u in zip(w[1], u[1]))
        assert heads_optimization.outputs(x, w, u)[1, 3].item() == pytest.approx(expected.item() / 6**0.5, rel=1e-12)

    def test_from_zero_heads_are_one_head(self):
        """H heads under η are u = √H·U with the step η for u and η/H for W."""
        data, gd = mixture_data(MIXTURE, (1, 2)), heads_optimization.OPTIMISERS[heads_optimization.CONSTANT]
        w, u, _ = heads_optimization.train(data, 4, gd, [20])
        assert (w - w[:, :1]).abs().max() < 1e-12 and (u - u[:, :1]).abs().max() < 1e-12

        def one_head(w, u, _):
            return torch.optim.SGD([{"params": [u], "lr": 1.0}, {"params": [w], "lr": 1 / 4}])

        expected = heads_optimization.outputs(data.x, *heads_optimization.train(data, 1, one_head, [20])[:2])
        torch.testing.assert_close(heads_optimization.outputs(data.x, w, u), expected, rtol=1e-12, atol=1e-12)

    def test_trials_do_not_depend_on_others(self):
        assert torch.equal(mixture_data(MIXTURE, (2,)).x[0], mixture_data(MIXTURE, (1, 2)).x[1])


@pytest.mark.usefixtures("double")
class TestLowRank:
    def test_heads_of_one_less(self):
        found = Study()
        low_rank.large_heads(found, low_rank.QUICK, source())
        assert found.statements[0]["verdict"] == "agrees"
        target = torch.softmax(3 * torch.randn(3, 6, 6, generator=source()), -2)
        fits = [low_rank.fit_head(target, size, 2, source()) for size in (1, 3, 5)]
        lost = [low_rank.off(fit, target).mean() for fit in fits]
        assert lost[0] > 2 * lost[1] > 0.01 and lost[2] < 1e-6


class TestConditioning:
    SETTINGS = replace(conditioning.QUICK, width=16, head_size=4, length=16, steps=4, batch=2, looks=2, held_out=4)

    @pytest.mark.parametrize("size", SIZES)
    def test_starts(self, size):
        """All but the first have one norm."""
        weight = matrix(size)
        made = {arm: conditioning.started(arm, weight, source()) for arm in ARMS}
        assert made[NONE] is weight
        assert (made[IDENTITY] - weight).count_nonzero() == min(size)
        added = [(made[arm] - weight).norm().item() for arm in (IDENTITY, RANDOM)]
        assert added == pytest.approx([math.sqrt(min(size))] * 2)
        torch.testing.assert_close(made[LARGER].norm(), made[IDENTITY].norm())
        torch.testing.assert_close(made[LARGER] / made[LARGER].norm(), weight / weight.norm())

    def test_a_run_is_its_settings_and_its_seed(self):
        """Runs of one seed differ in the queries, keys and values of their start alone."""
        runs = [(NONE, 2e-3, 1), (IDENTITY, 2e-3, 1), (NONE, 2e-3, 2)]
        once, again = ([conditioning.train(self.SETTINGS, *each) for each in runs] for _ in range(2))
        assert once == again and len({looks[0].loss for looks in once}) == 3
        assert [look.step for look in once[0]] == [0, 2, 4]
        weights = [dict(conditioning.new_model(self.SETTINGS, arm, 1).named_parameters()) for arm in (NONE, IDENTITY)]
        changed = {name for name in weights[0] if not torch.equal(weights[0][name], weights[1][name])}
        assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj"} and len(changed) == 6

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

    @pytest.mark.parametrize(("best", "tried"), [(0, 3), (1, 4), (-2, 5), (9, 6)])
    def test_tuning_goes_on_at_an_edge(self, best, tried):
        rate, losses = conditioning.tune(lambda rate: abs(math.log2(rate) - best), (0.5, 1, 2), more=3)
        assert len(losses) == tried and rate == 2.0 ** min(best, 4)
        assert len(conditioning.tune(lambda rate: math.nan if rate < 1 else rate, (0.5, 1, 2), more=3)[1]) == 3


class TestStudies:
    @pytest.mark.parametrize(
        "name", ["low-rank", *(pytest.param(name, marks=pytest.mark.full) for name in get_args(commands.Study)[:2])]
    )
    def test_quick(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(CLONE)
        leaner("study", name, "--quick", "--output", tmp_path / name)
        assert {path.name for path in (tmp_path / name).iterdir()} == {"figure.png", "results.json"}
        assert all(each["numbers"] for each in statements(tmp_path / name))

    def test_whole_or_not_at_all(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr(low_rank, "run", fail)
        with pytest.raises(SystemExit, match="disk full"):
            leaner("study", "low-rank", "--quick", "--output", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    def test_the_command_knows_every_study(self):
        assert sorted(path.name for path in KEPT.iterdir()) == sorted(get_args(commands.Study))

    def test_published_numbers_of_the_grids(self, monkeypatch):
        monkeypatch.chdir(CLONE)
        rows = Study()
        conditioning.finished_grids(rows)
        published = {each["statement"]: each for each in statements(KEPT / "conditioning")}
        for each in rows.statements:
            expected = published[each["statement"]]
            assert (each["verdict"], each["numbers"]) == (expected["verdict"], expected["numbers"])


def statements(folder):
    return json.loads((folder / "results.json").read_text())["statements"]


# κ in the finished runs of the grids


def cell(kappas, gains, shape="gpt/mini", grid="one", starts=None, fresh=True):
    """The runs of a cell, a seed each."""
    columns = {"seed": range(len(gains)), "kappa_start": starts or kappas, "kappa_end": kappas, "gain": gains}
    return pd.DataFrame({**columns, "shape": shape, "grid": grid, "fresh": fresh}).astype({"kappa_end": float})


def test_pairs_of_doubled_heads():
    """One seed of the same grid each, from random weights, known at both ends, and of twice the heads alone."""
    few = cell([10, 10, 10, None], [0.5] * 4, starts=[10] * 4)
    many = cell([9, 9, 11, 9, 9], [0.6, 0.4, 0.6, 0.6, 0.6], "gpt/many-heads-mini", starts=[9] * 5)
    pair = pd.concat([few, many])
    assert conditioning.doubling(pair) == (3, 3, 2, 1)
    fewer_layers = many.assign(shape="gpt/lean-mini")
    assert conditioning.doubling(pd.concat([pair, fewer_layers])) == (3, 3, 2, 1)
    assert conditioning.doubling(pd.concat([few, many.assign(grid="two")])).pairs == 0
    assert conditioning.doubling(pair.assign(fresh=False)).pairs == 0
    thrice = many.assign(shape="bert/shallow-mini")
    assert conditioning.doubling(pd.concat([few.assign(shape="bert/one-head-mini"), thrice])).pairs == 0
    assert conditioning.doubling(pd.concat([thrice, few.assign(shape="bert/lean-mini")])).pairs == 3


def test_rows_are_read(tmp_path, monkeypatch):
    """The reported runs at the best rate: loss turned round, empty κ unknown; none before all of them have ended."""
    monkeypatch.chdir(tmp_path)
    values = {"recipe": "enwik8-text-causal", "shapes": ["gpt/mini", "gpt/lean-mini"], "baseline": "gpt/mini"}
    Path("my.yaml").write_text(yaml.safe_dump({**values, "seeds": [1, 2], "learning_rates": [1e-3]}))
    grid = load_grid(Path("my.yaml"))
    rows = {}
    for shape in grid.shapes:
        for seed in grid.seeds:
            run = reported(grid, shape, seed, 1e-3)
            cells = {"status": "finished", "metric": "loss", "value": 2.5, "higher_is_better": 0, "kappa_start": "8"}
            rows[run] = ResultRow.from_cells({**run._asdict(), **cells, "kappa_end": "inf" if seed == 1 else ""})
    rows[run] = ResultRow.from_cells({**run._asdict(), "status": "failed"})
    results = GridResults(grid, rows)
    found = conditioning.read_all_cells({"mine": results, "mine-transformers": results})
    assert found[["kappa_start", "gain", "fresh", "grid"]].values.tolist() == [[8.0, -2.5, True, "mine"]] * 3
    assert found["kappa_end"].isna().all()
    del rows[run]
    assert conditioning.read_all_cells({"mine": GridResults(grid, rows)}).empty
