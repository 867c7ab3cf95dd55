"""κ against quality: correlations by hand and of known strength, and what is unknown."""

import random
from pathlib import Path

import pandas as pd
import pytest
import yaml
from modeling_leaner.training.experiments.grid import load_grid, reported
from modeling_leaner.training.experiments.results import GridResults
from modeling_leaner.training.records import ResultRow
from modeling_leaner.training.studies import kappa
from scipy import stats

from modeling_leaner.shapes import load_config


def cell(kappas, gains, shape="gpt/mini", grid="one", starts=None, fresh=True):
    """The runs of a cell, a seed each."""
    columns = {"seed": range(len(gains)), "kappa_start": starts or kappas, "kappa_end": kappas, "gain": gains}
    return pd.DataFrame({**columns, "shape": shape, "grid": grid, "fresh": fresh}).astype({"kappa_end": float})


def test_one_cell_is_spearman():
    kappas, gains = [3, 50, 7, 900, 20, 1e6], [0.1, 0.3, 0.5, 0.05, 0.2, 0.01]
    too_few = cell([1, 2], [1, 2], grid="two")
    found = kappa.within_cells(pd.concat([cell(kappas, gains), too_few]), "end")
    assert found.value == pytest.approx(stats.spearmanr(kappas, gains).statistic)
    assert (found.groups, found.ranked, found.interval) == (1, 6, None)


def test_start_and_end_are_told_apart():
    """κ at the start rises with quality, at the end it falls."""
    levels = range(3)
    cells = [
        cell(
            [(9 - seed) * (9 - level) for seed in range(3)],
            [seed + 2 * level for seed in range(3)],
            shape=f"shape {level}",
            starts=[(5 + seed) * (1 + level) for seed in range(3)],
        )
        for level in levels
    ]
    runs = pd.concat(cells)
    for correlation in (kappa.within_cells, kappa.between_cells):
        assert correlation(runs, "start").value == pytest.approx(1)
        assert correlation(runs, "end").value == pytest.approx(-1)


@pytest.mark.parametrize(("count", "has_interval"), [(5, False), (6, True)])
def test_few_cells_have_no_interval(count, has_interval):
    """Cells of three runs whose ranks are alike would have one without width."""
    found = kappa.within_cells(pd.concat([cell([1, 2, 3], [1, 3, 2], grid=str(name)) for name in range(count)]), "end")
    assert found.value == pytest.approx(0.5) and (found.interval is not None) == has_interval


def test_only_ranks_within_cells_count():
    """Cells that differ in level, as sizes do, and whose runs do not go along: 0, where all runs at once say −1."""
    chance = random.Random(0)
    cells = []
    for level in range(40):
        kappas = [10.0 ** (level + chance.random()) for _ in range(5)]
        cells.append(cell(kappas, [-level + 0.1 * chance.random() for _ in range(5)], grid=str(level)))
    found = kappa.within_cells(pd.concat(cells), "end")
    low, high = found.interval
    assert abs(found.value) < 0.2 and low < 0 < high and (found.groups, found.ranked) == (40, 200)


def test_between_cells_by_their_means():
    """Grids on different scales are ranked each by itself; the mean of κ is geometric; small grids are left out."""
    by_hand = [([10, 10], [1, 2], "a"), ([1, 1000], [0, 0], "b"), ([90, 90], [-1, 0], "c")]
    runs = pd.concat([cell(*each) for each in by_hand])
    found = kappa.between_cells(runs, "end")
    assert found.value == pytest.approx(stats.spearmanr([10, 31.6, 90], [1.5, 0, -0.5]).statistic) == -1
    assert found.interval is not None
    small = pd.concat([cell(*each, grid="two") for each in by_hand[:2]])
    assert kappa.between_cells(pd.concat([runs, small]), "end")[0::2] == (found.value, 1)
    scaled = runs.assign(kappa_end=1e6 * runs["kappa_end"], gain=100 + runs["gain"], grid="two")
    assert kappa.between_cells(pd.concat([runs, scaled]), "end").value == pytest.approx(-1)


def test_what_is_unknown_or_constant():
    runs = pd.concat(
        [cell([None, 1, 2, 3], [0.1, 3, 2, 1], starts=[5, 1, 2, 3]), cell([7] * 3, [1, 2, 3], grid="two")]
    )
    found = kappa.conclude(runs)
    assert found.runs == 7 and found.within["end"][::2] == (pytest.approx(-1), 1) and found.within["start"].ranked == 4
    nothing = kappa.conclude(cell([7] * 3, [1, 2, 3]))
    assert nothing.within["end"] == nothing.between["end"] == (None, None, 0, 0)


def test_pairs_of_doubled_heads():
    """One seed of the same grid each, from random weights, known at both ends, and of twice the heads alone."""
    few = cell([10, 10, 10, None], [0.5] * 4, starts=[10] * 4)
    many = cell([9, 9, 11, 9, 9], [0.6, 0.4, 0.6, 0.6, 0.6], "gpt/many-heads-mini", starts=[9] * 5)
    pair = pd.concat([few, many])
    assert kappa.doubling(pair) == (3, 3, 2, 1)
    assert kappa.doubling(pd.concat([pair, many.assign(shape="gpt/lean-mini")])) == (3, 3, 2, 1)  # fewer layers, too
    assert kappa.doubling(pd.concat([few, many.assign(grid="two")])).pairs == 0
    assert kappa.doubling(pair.assign(fresh=False)).pairs == 0
    once, thrice = load_config("bert/one-head-mini"), load_config("bert/shallow-mini")
    assert not kappa.is_doubled(once, thrice) and kappa.is_doubled(thrice, load_config("bert/lean-mini"))


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
    found = kappa.read_all_cells({"mine": GridResults(grid, rows), "mine-transformers": GridResults(grid, rows)})
    assert found[["kappa_start", "gain", "fresh", "grid"]].values.tolist() == [[8.0, -2.5, True, "mine"]] * 3
    assert found["kappa_end"].isna().all()
    del rows[run]
    assert kappa.read_all_cells({"mine": GridResults(grid, rows)}).empty
