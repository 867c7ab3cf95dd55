"""κ against quality: correlations by hand and of known strength, what is unknown, and what the index says of it."""

import math
import random
from pathlib import Path

import pytest
import yaml
from modeling_leaner.training.experiments import kappa
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.grid_results import GridResults
from modeling_leaner.training.experiments.kappa import KappaCell, Trial
from modeling_leaner.training.experiments.rows import reported
from modeling_leaner.training.records import ResultRow
from scipy import stats

from modeling_leaner.shapes import load_config


def cell(trials, grid="one", shape="gpt/mini", **changes):
    values = {"grid": grid, "task": "causal-lm", "shape": shape, "config": load_config(shape), "fresh": True}
    return KappaCell(**{**values, "trials": trials, "failed": 0, "ended": True, **changes})


def trials(kappas, gains):
    return [Trial(seed, value, value, gain) for seed, (value, gain) in enumerate(zip(kappas, gains))]


def test_one_cell_is_spearman():
    kappas, gains = [3, 50, 7, 900, 20, 1e6], [0.1, 0.3, 0.5, 0.05, 0.2, 0.01]
    found = kappa.within_cells([cell(trials(kappas, gains))], "end")
    assert found.value == pytest.approx(stats.spearmanr(kappas, gains).statistic)
    assert (found.groups, found.ranked, found.interval) == (1, 6, None)


def test_start_and_end_are_told_apart():
    """κ at the start rises with quality, at the end it falls."""
    runs_of = [[Trial(seed, 5.0 + seed, 9.0 - seed, seed + level) for seed in range(3)] for level in (0, 2, 4)]
    ends = [(1 + level, 9 - level) for level in range(3)]
    cells = [
        cell([each._replace(kappa_start=each.kappa_start * start, kappa_end=each.kappa_end * end) for each in own])
        for own, (start, end) in zip(runs_of, ends)
    ]
    found = kappa.conclude(cells)
    for correlations in (found.within, found.between):
        assert correlations["start"].value == pytest.approx(1) and correlations["end"].value == pytest.approx(-1)


def test_only_ranks_within_cells_count():
    """Cells that differ in level, as sizes do, and whose runs do not go along: 0, where all runs at once say −1."""
    chance = random.Random(0)
    cells = []
    for level in range(40):
        kappas = [10.0 ** (level + chance.random()) for _ in range(5)]
        cells.append(cell(trials(kappas, [-level + 0.1 * chance.random() for _ in range(5)]), shape="gpt/lean-mini"))
    found = kappa.within_cells(cells, "end")
    low, high = found.interval
    assert abs(found.value) < 0.2 and low < 0 < high and (found.groups, found.ranked) == (40, 200)


@pytest.mark.parametrize(("count", "has_interval"), [(4, False), (5, False), (6, True)])
def test_few_cells_have_no_interval(count, has_interval):
    """Four cells of three runs whose ranks are alike would have one without width."""
    cells = [cell(trials([1, 2, 3], [1, 3, 2])) for _ in range(count)]
    found = kappa.within_cells(cells, "end")
    assert found.value == pytest.approx(0.5) and (found.interval is not None) == has_interval


def test_a_known_correlation_lies_in_its_interval():
    chance = random.Random(1)
    cells = []
    for _ in range(60):
        logs = [chance.gauss(0, 1) for _ in range(6)]
        cells.append(cell(trials([math.exp(log) for log in logs], [-0.5 * log + chance.gauss(0, 1) for log in logs])))
    low, high = kappa.within_cells(cells, "end").interval
    rank = -6 / math.pi * math.asin(0.5 / math.sqrt(1.25) / 2)  # Spearman's of a normal pair
    assert low < rank < high < 0 and high - low < 0.35


def test_between_cells_by_their_means():
    """Grids on different scales are ranked each by itself; the mean of κ is geometric; small grids are left out."""
    by_hand = [cell(trials([10, 10], [1, 2])), cell(trials([1, 1000], [0, 0])), cell(trials([90, 90], [-1, 0]))]
    found = kappa.between_cells(by_hand, "end")
    assert found.value == pytest.approx(stats.spearmanr([10, 31.6, 90], [1.5, 0, -0.5]).statistic) == -1
    other = [cell(each.trials, grid="two") for each in by_hand[:2]]
    assert kappa.between_cells([*by_hand, *other], "end")[0::2] == (found.value, 1)
    two = [
        cell([each._replace(kappa_end=1e6 * each.kappa_end, gain=100 + each.gain) for each in own.trials], "two")
        for own in by_hand
    ]
    assert kappa.between_cells([*by_hand, *two], "end").value == pytest.approx(-1)


def test_what_is_unknown_failed_or_constant():
    unknown = [Trial(9, 5.0, None, 0.1), *trials([1, 2, 3], [3, 2, 1])]
    constant = cell(trials([7, 7, 7], [1, 2, 3]))
    running = cell(trials([1, 2, 3], [1, 2, 3]), grid="running", ended=False)
    found = kappa.conclude([cell(unknown, failed=2), constant, running])
    assert (found.runs, found.failed, found.unknown) == (7, 2, {"start": 0, "end": 1})
    assert found.within["end"].value == pytest.approx(-1) and found.within["end"].groups == 1
    assert found.within["start"].ranked == 4 and found.waiting == ["running"]
    nothing = kappa.conclude([constant])
    assert nothing.within["end"] == nothing.between["end"] == (None, None, 0, 0)


def test_pairs_of_doubled_heads():
    """One seed of the same grid each, from random weights, known at both ends, and of twice the heads alone."""
    few = [Trial(1, 10, 10, 0.5), Trial(2, 10, 10, 0.5), Trial(3, 10, 10, 0.5), Trial(4, 10, None, 0.5)]
    many = [Trial(1, 9, 9, 0.6), Trial(2, 9, 9, 0.4), Trial(3, 9, 11, 0.6), Trial(4, 9, 9, 0.6), Trial(5, 9, 9, 0.6)]
    pair = [cell(few), cell(many, shape="gpt/many-heads-mini")]
    assert kappa.doubling(pair) == (3, 3, 2, 1)
    assert kappa.doubling([*pair, cell(many, shape="gpt/lean-mini")]) == (3, 3, 2, 1)  # fewer layers, too
    assert kappa.doubling([pair[0], cell(many, "two", "gpt/many-heads-mini")]).pairs == 0
    assert kappa.doubling([cell(few, fresh=False), cell(many, shape="gpt/many-heads-mini", fresh=False)]).pairs == 0
    once, thrice = load_config("bert/one-head-mini"), load_config("bert/shallow-mini")
    assert not kappa.is_doubled(once, thrice) and kappa.is_doubled(thrice, load_config("bert/lean-mini"))
    assert not kappa.is_doubled(thrice, load_config("bert/twelve-heads-mini"))


def test_rows_are_read(tmp_path, monkeypatch):
    """The reported runs at the best rate: loss turned round, empty κ unknown, and whether all of them have ended."""
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
    failed = {**run._asdict(), "status": "failed"}
    rows[run] = ResultRow.from_cells(failed)
    first, second = kappa.read_cells("mine", GridResults(grid, rows))
    assert first.trials == [Trial(1, 8.0, None, -2.5), Trial(2, 8.0, None, -2.5)] and first.task == "causal-lm"
    assert (second.failed, len(second.trials), second.ended, second.fresh) == (1, 1, True, True)
    del rows[run]
    assert not kappa.read_cells("mine", GridResults(grid, rows))[0].ended
