"""Does κ matter? Rank correlations of κ, the condition number of the head outputs, with the final quality of runs.

- Within cells: a cell is the runs of one shape in one grid, which differ by their seed. Runs are ranked within each
  cell; the correlation is pooled over cells.
- Between cells: the cells of one grid, which differ by their shape, are ranked by their means, of κ the geometric
  one; the correlation is pooled over grids.

κ is known at two moments, the start and the end of training. Quality is a gain: more is better. A correlation below 0
says that runs of lower κ were better. None of it says what is the cause.

Spearman's ρ is pooled as ρ = Σ a·b / √(Σ a² · Σ b²), where a and b are the two ranks of each pair less their means in
its group, and each sum goes over the pairs of all groups.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from ..experiments.grid import PEERS
from ..experiments.results import GridResults, gain
from ..experiments.statistics import frame, reported_rows


ENDS = ("start", "end")  # of training: the moments at which κ is known
MIN_RUNS = 3  # the fewest that are ranked, runs of a cell or cells of a grid
MIN_CELLS_DRAWN = 6  # the fewest that a bootstrap draws from: of less it knows too little to give an interval
DRAWS = 2000  # of a bootstrap
MOST_KAPPA = float(1 / np.finfo(np.float32).eps)  # of what a model in float32 gives: above it is rounding


class Correlation(NamedTuple):
    """Spearman's ρ over groups, with its 95 % bootstrap interval; None where nothing can be ranked.

    `groups`: within which there is ranking; `ranked`: how many pairs they hold.
    """

    value: float | None
    interval: tuple[float, float] | None
    groups: int
    ranked: int


def rank_sums(pairs: np.ndarray) -> np.ndarray:
    """The three sums of a group of n pairs, Σ a·b, Σ a² and Σ b²: (..., n, 2) → (..., 3).

    All are 0 where one side is constant, which cannot be ranked. Ranks go from 0 to 1 in groups of any size.
    """
    ranks = rankdata(pairs, axis=-2)
    ranks -= ranks.mean(axis=-2, keepdims=True)
    ranks /= pairs.shape[-2] - 1
    first, second = ranks[..., 0], ranks[..., 1]
    sums = np.stack([first * second, first**2, second**2], axis=-1).sum(axis=-2)
    return np.where(sums[..., 1:].all(axis=-1, keepdims=True), sums, 0)


def rho(sums: np.ndarray) -> np.ndarray:
    """ρ by the three sums, (..., 3) → (...), of one group or added up over groups; no sum may be 0."""
    return sums[..., 0] / np.sqrt(sums[..., 1] * sums[..., 2])


def _correlation(groups: Sequence[np.ndarray], drawn: np.ndarray | None) -> Correlation:
    """ρ over groups of pairs, each (n, 2); `drawn` are the added sums of each draw of a bootstrap, (draws, 3)."""
    varying = [group for group in groups if rank_sums(group).any()]
    if not varying:
        return Correlation(None, None, 0, 0)
    interval = None
    if drawn is not None:
        interval = tuple(np.quantile(rho(drawn[drawn.any(axis=1)]), (0.025, 0.975)).tolist())
    value = float(rho(np.sum([rank_sums(group) for group in varying], axis=0)))
    return Correlation(value, interval, len(varying), sum(map(len, varying)))


def read_all_cells(grids: Mapping[str, GridResults]) -> pd.DataFrame:
    """The finished runs of the grids whose runs have all ended, with the columns of results.csv, `grid`, `gain` and
    `fresh`: whether the weights started at random. Without grids of cuts, which were trained before, and of
    transformers' own models; of a grid with branches those of the longest."""
    tables = [frame([]).assign(grid="", gain=0.0, fresh=True)]
    for name, results in grids.items():
        grid = results.grid
        runs = reported_rows(results)
        all_ended = len(runs) == sum(len(grid.seeds_for(shape)) for shape in grid.shapes)
        if all_ended and not grid.cuts and not name.endswith(PEERS):
            runs = runs[runs["status"] == "finished"]
            gains = gain(runs["value"], results.any_reported and results.any_reported.higher_is_better)
            tables.append(runs.assign(grid=name, gain=gains, fresh=grid.start_from is None))
    return pd.concat(tables)


def within_cells(runs: pd.DataFrame, moment: str) -> Correlation:
    """ρ of runs within cells of MIN_RUNS or more, with κ at one of ENDS. The bootstrap draws cells, if there are
    MIN_CELLS_DRAWN or more."""
    kappa = f"kappa_{moment}"
    cells = runs.dropna(subset=kappa).groupby(["grid", "shape"], sort=False)
    groups = [cell[[kappa, "gain"]].to_numpy(float) for _, cell in cells if len(cell) >= MIN_RUNS]
    sums = np.array([each for each in map(rank_sums, groups) if each.any()])
    drawn = None
    if len(sums) >= MIN_CELLS_DRAWN:
        drawn = sums[np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))].sum(axis=1)
    return _correlation(groups, drawn)


def between_cells(runs: pd.DataFrame, moment: str) -> Correlation:
    """ρ of cell means within grids of MIN_RUNS cells or more. The bootstrap draws the runs of each cell.

    So its interval says what other seeds would give with these very shapes, not what other shapes would.
    """
    kappa = f"kappa_{moment}"
    known = runs.dropna(subset=kappa).assign(log_kappa=lambda table: np.log(table[kappa]))
    grids = [
        [cell[["log_kappa", "gain"]].to_numpy(float) for _, cell in grid.groupby("shape", sort=False)]
        for _, grid in known.groupby("grid", sort=False)
        if grid["shape"].nunique() >= MIN_RUNS
    ]
    drawn = None
    if any(len(cell) > 1 for cells in grids for cell in cells):
        random = np.random.default_rng(0)
        counts = [[len(cell) for cell in cells] for cells in grids]
        draws = [[[random.integers(n, size=n) for n in cells] for cells in counts] for _ in range(DRAWS)]
        drawn = np.zeros((DRAWS, 3))
        for cells, of_grid in zip(grids, zip(*draws)):
            means = [cell[np.array(of_cell)].mean(axis=1) for cell, of_cell in zip(cells, zip(*of_grid))]
            drawn += rank_sums(np.stack(means, axis=1))
    return _correlation([np.array([cell.mean(axis=0) for cell in cells]) for cells in grids], drawn)


class Doubling(NamedTuple):
    """Pairs of runs that differ in twice the heads alone, of one seed, from random weights, κ known at both ends.

    `lower_start`, `lower_end`: pairs in which κ is lower with more heads. `better`: those of `lower_end` in which the
    quality is higher, too.
    """

    pairs: int
    lower_start: int
    lower_end: int
    better: int


def is_doubled(few: LeanConfig, many: LeanConfig) -> bool:
    """Whether a shape has twice the heads of another, at half the head size, and is the same otherwise."""
    same = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size")
    if any(getattr(few, name) != getattr(many, name) for name in same):
        return False
    doubled = [2 * heads for heads in few.heads_per_layer] == list(many.heads_per_layer)
    return doubled and few.head_dim == 2 * many.head_dim


def doubling(runs: pd.DataFrame) -> Doubling:
    """What twice the heads did to κ, and in how many pairs quality rose where κ fell."""
    compared = ["kappa_start", "kappa_end", "gain"]
    differences = [pd.DataFrame(columns=compared, dtype=float)]
    known = runs[runs["fresh"].astype(bool)].dropna(subset=compared)
    for _, grid in known.groupby("grid"):
        shapes = {shape: cell.set_index("seed")[compared] for shape, cell in grid.groupby("shape")}
        for few, many in permutations(shapes, 2):
            if is_doubled(load_config(few), load_config(many)):
                differences.append((shapes[many] - shapes[few]).dropna())
    found = pd.concat(differences)
    lower_end = found["kappa_end"] < 0
    return Doubling(
        pairs=len(found),
        lower_start=int((found["kappa_start"] < 0).sum()),
        lower_end=int(lower_end.sum()),
        better=int((lower_end & (found["gain"] > 0)).sum()),
    )


class Conclusion(NamedTuple):
    """How many runs there are, and what they say of κ; `within` and `between` are by ENDS."""

    runs: int
    within: dict[str, Correlation]
    between: dict[str, Correlation]
    doubling: Doubling


def conclude(runs: pd.DataFrame) -> Conclusion:
    """The correlations at the start and at the end, of runs as `read_all_cells` has them."""
    return Conclusion(
        runs=len(runs),
        within={moment: within_cells(runs, moment) for moment in ENDS},
        between={moment: between_cells(runs, moment) for moment in ENDS},
        doubling=doubling(runs),
    )
