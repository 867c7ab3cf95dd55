"""Does κ matter? Rank correlations of κ, the condition number of the head outputs, with the final quality of runs.

Within cells, runs of one shape in one grid, which differ by their seed: ranks within each cell, pooled over cells.
Between cells, the shapes of one grid: ranks of their means (of κ the geometric one), pooled over grids. Quality is a
gain: more is better. A correlation below 0 says that runs of lower κ were better. None of it says what is the cause.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning.laws import interval
from modeling_leaner.shapes import load_config

from .grid_results import GridResults
from .run_settings import settings
from .summary import cells_of


ENDS = ("start", "end")  # before and after training
MIN_RUNS = 3  # of a cell whose runs are ranked, and cells of a grid
DRAWS = 2000
MOST_KAPPA = float(1 / np.finfo(np.float32).eps)  # of what a model in float32 gives: above it is rounding


class Trial(NamedTuple):
    """One finished run: κ before and after training, None where it is unknown or infinite, and its quality."""

    seed: int
    start: float | None
    end: float | None
    gain: float

    def kappa(self, end: str) -> float | None:
        """κ at one of ENDS."""
        if end == "start":
            return self.start
        return self.end


@dataclass(frozen=True)
class KappaCell:
    """The reported runs of one shape in one grid.

    `fresh`: their weights started at random. `ended`: of every run that the grid reports there is a row.
    """

    grid: str
    task: str
    shape: str
    config: LeanConfig
    fresh: bool
    trials: list[Trial]
    failed: int
    ended: bool

    def known(self, end: str) -> list[Trial]:
        """The runs whose κ is known."""
        return [trial for trial in self.trials if trial.kappa(end) is not None]


def read_cells(name: str, results: GridResults) -> list[KappaCell]:
    """The cells of a grid, of one with branches at the longest: the only place that reads rows."""
    grid = results.grid
    task = settings(grid, grid.baseline).task
    reported = cells_of(results)
    planned = sum(len(grid.seeds_for(shape)) for shape in grid.shapes)
    ended = len(reported.rows()) + sum(map(len, reported.failed.values())) == planned
    cells = []
    for shape, finished in reported.finished.items():
        trials = []
        for seed, row in finished.items():
            gain = row.value
            if not row.higher_is_better:
                gain = -gain
            trials.append(Trial(seed, row.kappa_start, row.kappa_end, gain))
        config = load_config(shape)
        cells.append(
            KappaCell(
                grid=name,
                task=task,
                shape=shape,
                config=config,
                fresh=grid.start_from is None and grid.cuts is None,
                trials=trials,
                failed=len(reported.failed[shape]),
                ended=ended,
            )
        )
    return cells


class Correlation(NamedTuple):
    """Spearman's ρ over groups, with its 95 % bootstrap interval; None where nothing can be ranked.

    `groups`: cells within which runs are ranked, or grids within which cells are; `ranked`: what is in them.
    """

    value: float | None
    interval: tuple[float, float] | None
    groups: int
    ranked: int


NOTHING_RANKED = Correlation(None, None, 0, 0)


def rank_products(pairs: np.ndarray) -> np.ndarray:
    """Sums over a group of the products of ranks, less their mean: κ · quality, κ², quality².

    (..., n, 2) → (..., 3); all 0 where one of the two is constant. Ranks are scaled, so that groups of any size count
    alike.
    """
    from scipy.stats import rankdata  # takes seconds to import

    ranks = rankdata(pairs, axis=-2)
    ranks -= ranks.mean(axis=-2, keepdims=True)
    ranks /= pairs.shape[-2] - 1
    kappa, gain = ranks[..., 0], ranks[..., 1]
    products = np.stack([kappa * gain, kappa**2, gain**2], axis=-1).sum(axis=-2)
    varies = products[..., 1:].all(axis=-1, keepdims=True)
    return np.where(varies, products, 0)


def correlation(products: np.ndarray) -> np.ndarray:
    """ρ of `rank_products` summed over groups, (..., 3) → (...); of the sums of which none is 0."""
    return products[..., 0] / np.sqrt(products[..., 1] * products[..., 2])


def within_cells(cells: Sequence[KappaCell], end: str) -> Correlation:
    """ρ of runs within cells of MIN_RUNS or more. The bootstrap draws cells; None of fewer than MIN_RUNS cells."""
    known = [cell.known(end) for cell in cells]
    groups = [np.array([(trial.kappa(end), trial.gain) for trial in own]) for own in known if len(own) >= MIN_RUNS]
    ranked, products = which_rank(groups)
    if not ranked:
        return NOTHING_RANKED
    limits = None
    if len(products) >= MIN_RUNS:
        random = np.random.default_rng(0)
        draws = random.integers(len(products), size=(DRAWS, len(products)))
        limits = interval(correlation(products[draws].sum(axis=1)))
    return Correlation(float(correlation(products.sum(axis=0))), limits, len(products), ranked)


def which_rank(groups: Sequence[np.ndarray]) -> tuple[int, np.ndarray]:
    """How many pairs the groups hold that can be ranked, and the `rank_products` of these groups, (groups, 3)."""
    products = [rank_products(group) for group in groups]
    ranked = sum(len(group) for group, sums in zip(groups, products) if sums.any())
    return ranked, np.array([sums for sums in products if sums.any()])


def mean_of(trials: Sequence[Trial], end: str) -> tuple[float, float]:
    """The geometric mean of κ and the mean quality."""
    kappa = statistics.geometric_mean(trial.kappa(end) for trial in trials)
    return kappa, statistics.fmean(trial.gain for trial in trials)


def drawn_means(trials: Sequence[Trial], end: str, places: Sequence[np.ndarray]) -> np.ndarray:
    """The mean log κ and the mean quality of the runs at the places of each draw, (draws, 2)."""
    pairs = np.array([(math.log(trial.kappa(end)), trial.gain) for trial in trials])
    return pairs[np.stack(places)].mean(axis=1)


def between_cells(cells: Sequence[KappaCell], end: str) -> Correlation:
    """ρ of cell means within grids of MIN_RUNS cells or more. The bootstrap draws the runs of each cell.

    So its interval says what other seeds would give with these very shapes, not what other shapes would.
    """
    grids: dict[str, list[list[Trial]]] = {}
    for cell in cells:
        if cell.known(end):
            grids.setdefault(cell.grid, []).append(cell.known(end))
    members = [trials for trials in grids.values() if len(trials) >= MIN_RUNS]
    ranked, products = which_rank([np.array([mean_of(trials, end) for trials in grid]) for grid in members])
    if not ranked:
        return NOTHING_RANKED
    limits = None
    counts = [[len(trials) for trials in grid] for grid in members]
    if any(count > 1 for grid in counts for count in grid):
        random = np.random.default_rng(0)
        draws = [[[random.integers(count, size=count) for count in grid] for grid in counts] for _ in range(DRAWS)]
        sums = np.zeros((DRAWS, 3))
        for grid, places in zip(members, zip(*draws)):
            means = [drawn_means(trials, end, own) for trials, own in zip(grid, zip(*places))]
            sums += rank_products(np.stack(means, axis=1))
        limits = interval(correlation(sums[sums.any(axis=1)]))
    return Correlation(float(correlation(products.sum(axis=0))), limits, len(products), ranked)


class Doubling(NamedTuple):
    """Pairs of runs that differ in twice the heads alone, of one seed, from random weights, κ known at both ends.

    better: pairs in which κ at the end fell and the quality rose.
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
        by_seed = {trial.seed: trial for trial in few.trials}
        for trial in many.trials:
            pair = (by_seed.get(trial.seed), trial)
            if all(run is not None and None not in run for run in pair):
                pairs.append(pair)
    fell = [(few, many) for few, many in pairs if many.end < few.end]
    return Doubling(
        pairs=len(pairs),
        lower_start=sum(many.start < few.start for few, many in pairs),
        lower_end=len(fell),
        better=sum(many.gain > few.gain for few, many in fell),
    )


@dataclass(frozen=True)
class Conclusion:
    """What some cells say of κ: correlations by their end, and what is unknown of how many runs.

    `waiting` are the grids that have not ended: nothing is concluded of them, and nothing counted.
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
        unknown={end: sum(trial.kappa(end) is None for trial in trials) for end in ENDS},
        within={end: within_cells(cells, end) for end in ENDS},
        between={end: between_cells(cells, end) for end in ENDS},
        doubling=doubling(cells),
    )


def conclude_by_task(cells: Sequence[KappaCell]) -> dict[str, Conclusion]:
    """`conclude` of each task that has runs."""
    tasks: dict[str, list[KappaCell]] = {}
    for cell in cells:
        if cell.trials:
            tasks.setdefault(cell.task, []).append(cell)
    return {task: conclude(own) for task, own in tasks.items()}
