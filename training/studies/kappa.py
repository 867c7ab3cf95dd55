"""Does κ matter? κ, the condition number of the head outputs, in the finished runs of the grids.

κ is known at two moments, the start and the end of training. Quality is a gain: more is better.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import NamedTuple

import pandas as pd

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from ..experiments.grid import PEERS
from ..experiments.grid_results import GridResults, gain
from ..experiments.statistics import frame, reported_rows


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
