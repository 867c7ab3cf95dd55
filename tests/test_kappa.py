"""κ in the finished runs: pairs with twice the heads, and which rows count."""

from pathlib import Path

import pandas as pd
import yaml
from modeling_leaner.training.experiments.grid import load_grid, reported
from modeling_leaner.training.experiments.grid_results import GridResults
from modeling_leaner.training.records import ResultRow
from modeling_leaner.training.studies import conditioning

from modeling_leaner.shapes import load_config


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
    once, thrice = load_config("bert/one-head-mini"), load_config("bert/shallow-mini")
    assert not conditioning.is_doubled(once, thrice) and conditioning.is_doubled(thrice, load_config("bert/lean-mini"))


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
