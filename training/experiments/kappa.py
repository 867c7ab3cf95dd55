"""Does κ matter? Rank correlations of κ, the condition number of the head outputs, with the final quality of runs.

Within cells, runs of one shape in one grid, which differ by their seed: ranks within each cell, pooled over cells.
Between cells, the shapes of one grid: ranks of their means (of κ the geometric one), pooled over grids. Quality is a
gain: more is better. A correlation below 0 says that runs of lower κ were better. None of it says what is the cause.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from .grid_results import GridResults
from .run_settings import settings
from .summary import cells_of


ENDS = ("start", "end")  # before and after training
MIN_RUNS = 3  # of a cell whose runs are ranked, and cells of a grid
DRAWS = 2000


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


Pairs = list[tuple[float, float]]


def centred_ranks(pairs: Pairs) -> np.ndarray | None:
    """Ranks of κ and of quality less their means, each from −½ to ½, (n, 2); None where one of them is constant."""
    from scipy.stats import rankdata  # takes seconds to import

    ranks = rankdata(np.array(pairs), axis=0)
    ranks -= ranks.mean(axis=0)
    if not ranks.any(axis=0).all():
        return None
    return ranks / (len(pairs) - 1)


def pooled(groups: Iterable[np.ndarray]) -> float:
    """The correlation of centred ranks over all groups."""
    ranks = np.concatenate(list(groups))
    products = (ranks[:, 0] * ranks[:, 1]).sum()
    return float(products / math.sqrt((ranks[:, 0] ** 2).sum() * (ranks[:, 1] ** 2).sum()))


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % quantile."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def within_cells(cells: Sequence[KappaCell], end: str) -> Correlation:
    """ρ of runs within cells of MIN_RUNS or more. The bootstrap draws cells; None of fewer than MIN_RUNS cells."""
    groups = []
    for cell in cells:
        known = cell.known(end)
        if len(known) >= MIN_RUNS:
            groups.append(centred_ranks([(trial.kappa(end), trial.gain) for trial in known]))
    groups = [group for group in groups if group is not None]
    if not groups:
        return Correlation(None, None, 0, 0)
    ranked = sum(map(len, groups))
    limits = None
    if len(groups) >= MIN_RUNS:
        random = np.random.default_rng(0)
        draws = random.integers(len(groups), size=(DRAWS, len(groups)))
        limits = middle([pooled(groups[place] for place in draw) for draw in draws])
    return Correlation(pooled(groups), limits, len(groups), ranked)


def mean_of(trials: Sequence[Trial], end: str) -> tuple[float, float]:
    """The geometric mean of κ and the mean quality."""
    kappa = statistics.geometric_mean(trial.kappa(end) for trial in trials)
    return kappa, statistics.fmean(trial.gain for trial in trials)


def between_cells(cells: Sequence[KappaCell], end: str) -> Correlation:
    """ρ of cell means within grids of MIN_RUNS cells or more. The bootstrap draws the runs of each cell.

    So its interval says what other seeds would give with these very shapes, not what other shapes would.
    """
    grids: dict[str, list[list[Trial]]] = {}
    for cell in cells:
        if cell.known(end):
            grids.setdefault(cell.grid, []).append(cell.known(end))
    members = [trials for trials in grids.values() if len(trials) >= MIN_RUNS]
    random = np.random.default_rng(0)

    def ranked(draw: Callable[[list[Trial]], list[Trial]]) -> list[np.ndarray]:
        groups = [centred_ranks([mean_of(draw(trials), end) for trials in grid]) for grid in members]
        return [group for group in groups if group is not None]

    def drawn(trials: list[Trial]) -> list[Trial]:
        return [trials[place] for place in random.integers(len(trials), size=len(trials))]

    groups = ranked(list)
    if not groups:
        return Correlation(None, None, 0, 0)
    values = []
    if any(len(trials) > 1 for grid in members for trials in grid):
        draws = [ranked(drawn) for _ in range(DRAWS)]
        values = [pooled(draw) for draw in draws if draw]
    limits = None
    if values:
        limits = middle(values)
    return Correlation(pooled(groups), limits, len(groups), sum(map(len, groups)))


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
