"""Does κ matter? Rank correlations of κ, the condition number of the head outputs, with the final quality of runs.

- Within cells: a cell is the runs of one shape in one grid, which differ by their seed. Runs are ranked within each
  cell; the correlation is pooled over cells.
- Between cells: the cells of one grid, which differ by their shape, are ranked by their means, of κ the geometric
  one; the correlation is pooled over grids.

κ is known at two moments, the start and the end of training. Quality is a gain: more is better. A correlation below 0
says that runs of lower κ were better. None of it says what is the cause.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from .evidence import PEERS
from .grid_cells import cells_of
from .grid_results import GridResults
from .rank_correlation import NOTHING_RANKED, Correlation, rank_sums, rankable, rho_of_sums
from .run_statistics import gain
from .runs import run_arguments


ENDS = ("start", "end")  # of training: the moments at which κ is known
MIN_RUNS = 3  # the fewest that are ranked, runs of a cell or cells of a grid
MIN_CELLS_DRAWN = 6  # the fewest that a bootstrap draws from: of less it knows too little to give an interval
DRAWS = 2000  # of a bootstrap
MOST_KAPPA = float(1 / np.finfo(np.float32).eps)  # of what a model in float32 gives: above it is rounding


class Trial(NamedTuple):
    """One finished run: κ before and after training, None where it is unknown or infinite, and its quality."""

    seed: int
    kappa_start: float | None
    kappa_end: float | None
    gain: float

    def kappa(self, moment: str) -> float | None:
        """κ at one of ENDS."""
        if moment == "start":
            return self.kappa_start
        return self.kappa_end

    @property
    def is_known(self) -> bool:
        """Whether κ is known at both of ENDS."""
        return self.kappa_start is not None and self.kappa_end is not None


@dataclass(frozen=True)
class KappaCell:
    """The reported runs of one shape in one grid.

    `fresh`: their weights started at random. `trials`: the finished runs. `failed`: how many failed. `ended`: whether
    all runs of the grid, of its other shapes too, have finished or failed.
    """

    grid: str
    task: str
    shape: str
    config: LeanConfig
    fresh: bool
    trials: list[Trial]
    failed: int
    ended: bool

    def known(self, moment: str) -> list[Trial]:
        """The runs whose κ is known at one of ENDS."""
        return [trial for trial in self.trials if trial.kappa(moment) is not None]


def read_cells(name: str, results: GridResults) -> list[KappaCell]:
    """The cells of a grid; of a grid with branches those of the longest. The only place that reads rows."""
    grid = results.grid
    task = run_arguments(grid, grid.baseline).task
    reported = cells_of(results)
    planned = sum(len(grid.seeds_for(shape)) for shape in grid.shapes)
    ended_runs = len(reported.rows) + sum(map(len, reported.failed.values()))
    all_ended = ended_runs == planned
    fresh = grid.start_from is None and grid.cuts is None
    cells = []
    for shape, finished in reported.finished.items():
        trials = [
            Trial(seed, row.kappa_start, row.kappa_end, gain(row.value, row.higher_is_better))
            for seed, row in finished.items()
        ]
        cells.append(
            KappaCell(
                grid=name,
                task=task,
                shape=shape,
                config=load_config(shape),
                fresh=fresh,
                trials=trials,
                failed=len(reported.failed[shape]),
                ended=all_ended,
            )
        )
    return cells


def read_all_cells(grids: Mapping[str, GridResults]) -> list[KappaCell]:
    """The cells of all grids but those of cuts, which were trained before, and of transformers' own models."""
    own = {name: results for name, results in grids.items() if not name.endswith(PEERS) and not results.grid.cuts}
    return [cell for name, results in own.items() for cell in read_cells(name, results)]


def within_cells(cells: Sequence[KappaCell], moment: str) -> Correlation:
    """ρ of runs within cells of MIN_RUNS or more. The bootstrap draws cells, if there are MIN_CELLS_DRAWN or more."""
    known = [cell.known(moment) for cell in cells]
    groups = [np.array([(trial.kappa(moment), trial.gain) for trial in own]) for own in known if len(own) >= MIN_RUNS]
    ranked, sums = rankable(groups)
    if not ranked:
        return NOTHING_RANKED
    limits = None
    if len(sums) >= MIN_CELLS_DRAWN:
        random = np.random.default_rng(0)
        draws = random.integers(len(sums), size=(DRAWS, len(sums)))
        limits = tuple(np.quantile(rho_of_sums(sums[draws].sum(axis=1)), (0.025, 0.975)).tolist())
    return Correlation(float(rho_of_sums(sums.sum(axis=0))), limits, len(sums), ranked)


def mean_of(trials: Sequence[Trial], moment: str) -> tuple[float, float]:
    """The geometric mean of κ and the mean quality."""
    kappa = statistics.geometric_mean(trial.kappa(moment) for trial in trials)
    return kappa, statistics.fmean(trial.gain for trial in trials)


def between_cells(cells: Sequence[KappaCell], moment: str) -> Correlation:
    """ρ of cell means within grids of MIN_RUNS cells or more. The bootstrap draws the runs of each cell.

    So its interval says what other seeds would give with these very shapes, not what other shapes would.
    """
    by_grid: dict[str, list[list[Trial]]] = {}
    for cell in cells:
        if cell.known(moment):
            by_grid.setdefault(cell.grid, []).append(cell.known(moment))
    grids = [grid for grid in by_grid.values() if len(grid) >= MIN_RUNS]
    ranked, sums = rankable([np.array([mean_of(trials, moment) for trials in grid]) for grid in grids])
    if not ranked:
        return NOTHING_RANKED
    limits = None
    if any(len(trials) > 1 for grid in grids for trials in grid):
        drawn = np.zeros((DRAWS, 3))
        for grid, draws in zip(grids, draw_runs(grids)):
            means = [drawn_means(trials, moment, places) for trials, places in zip(grid, draws)]
            drawn += rank_sums(np.stack(means, axis=1))
        limits = tuple(np.quantile(rho_of_sums(drawn[drawn.any(axis=1)]), (0.025, 0.975)).tolist())
    return Correlation(float(rho_of_sums(sums.sum(axis=0))), limits, len(sums), ranked)


def draw_runs(grids: Sequence[Sequence[Sequence[Trial]]]) -> list[list[np.ndarray]]:
    """Of each cell of each grid, DRAWS times as many places among its n runs, with replacement: (DRAWS, n)."""
    random = np.random.default_rng(0)
    draws = [[np.empty((DRAWS, len(trials)), dtype=int) for trials in grid] for grid in grids]
    for draw in range(DRAWS):
        for grid in draws:
            for places in grid:
                count = places.shape[1]
                places[draw] = random.integers(count, size=count)
    return draws


def drawn_means(trials: Sequence[Trial], moment: str, places: np.ndarray) -> np.ndarray:
    """The mean of ln κ and the mean quality of the runs at the places of each draw, (DRAWS, n) → (DRAWS, 2)."""
    pairs = np.array([(math.log(trial.kappa(moment)), trial.gain) for trial in trials])
    return pairs[places].mean(axis=1)


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


def doubling(cells: Sequence[KappaCell]) -> Doubling:
    """What twice the heads did to κ, and in how many pairs quality rose where κ fell."""
    pairs = []
    for few, many in permutations(cells, 2):
        if few.grid != many.grid or not few.fresh or not is_doubled(few.config, many.config):
            continue
        with_few = {trial.seed: trial for trial in few.trials if trial.is_known}
        with_many = [trial for trial in many.trials if trial.is_known]
        pairs += [(with_few[trial.seed], trial) for trial in with_many if trial.seed in with_few]
    lower_end = [(few, many) for few, many in pairs if many.kappa_end < few.kappa_end]
    return Doubling(
        pairs=len(pairs),
        lower_start=sum(many.kappa_start < few.kappa_start for few, many in pairs),
        lower_end=len(lower_end),
        better=sum(many.gain > few.gain for few, many in lower_end),
    )


@dataclass(frozen=True)
class Conclusion:
    """What some cells say of κ. `unknown`, `within` and `between` are by ENDS: start and end of training.

    `waiting`: the grids that have not ended, of which nothing is concluded and nothing counted. `runs`: those that
    finished. `unknown`: how many of them have no κ. `within` and `between`: the correlations.
    """

    waiting: list[str]
    runs: int
    failed: int
    unknown: dict[str, int]
    within: dict[str, Correlation]
    between: dict[str, Correlation]
    doubling: Doubling


def conclude(cells: Sequence[KappaCell]) -> Conclusion:
    """The correlations of some cells, at the start and at the end."""
    waiting = sorted({cell.grid for cell in cells if not cell.ended})
    cells = [cell for cell in cells if cell.ended]
    trials = [trial for cell in cells for trial in cell.trials]
    return Conclusion(
        waiting=waiting,
        runs=len(trials),
        failed=sum(cell.failed for cell in cells),
        unknown={moment: sum(trial.kappa(moment) is None for trial in trials) for moment in ENDS},
        within={moment: within_cells(cells, moment) for moment in ENDS},
        between={moment: between_cells(cells, moment) for moment in ENDS},
        doubling=doubling(cells),
    )
