"""What trained models say of depth and width, statement by statement: of the study depth-width."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean

from modeling_leaner.planning import advice

from ..experiments.run_statistics import paired_statistics
from ..records import PairedStatistics, Statement
from .depth_training import (
    Cell,
    Text,
    Training,
    best_rate,
    bigram_loss,
    body_parameters,
    cell_at,
    held_out_loss,
    read_text,
    train,
    tune,
)
from .study import Progress
from .trials import by_interval, rounded, together, verdict


PAPER = "Depth-Width, 2006.12467"
COMPANION = "Wies 2021, 2105.03928"
KAPLAN = "Kaplan 2020, 2001.08361"
ALIKE = 0.01  # of a loss
FEW_PER_CENT = 0.05
KAPLAN_RATIO = 40


@dataclass(frozen=True)
class Trained:
    """Held-out losses, one of each seed, and the rates that were tried, by cell."""

    seeds: tuple[int, ...]
    bigram: float  # of a guess by the byte before, counted in as much text
    losses: dict[Cell, list[float]] = field(default_factory=dict)
    tried: dict[Cell, dict[float, float]] = field(default_factory=dict)
    curves: dict[Cell, list[float]] = field(default_factory=dict)
    """The loss of each training step, mean over the seeds."""

    @property
    def plain(self) -> list[Cell]:
        """The shapes of equal size, from the shallowest."""
        return sorted(self.tried, key=lambda cell: cell.layers)

    @property
    def floor_cell(self) -> Cell:
        """The shallowest of them with log3(d) layers or more."""
        return next(cell for cell in self.plain if cell.layers >= advice.depth_floor(cell.width))

    @property
    def below(self) -> list[Cell]:
        """Those before the floor."""
        return self.plain[: self.plain.index(self.floor_cell)]

    @property
    def above(self) -> list[Cell]:
        """Those from the floor on."""
        return self.plain[self.plain.index(self.floor_cell) :]

    def cut(self, cell: Cell) -> Cell:
        """The same shape with its input cut."""
        return next(one for one in self.losses if one.input_rank is not None and one.plain == cell)

    def mean(self, cell: Cell) -> float:
        return fmean(self.losses[cell])

    def differences(self, cells: Iterable[Cell], other: Cell) -> dict[Cell, PairedStatistics]:
        """Of each one's loss and the other's, seed by seed: above 0 where the other is better."""
        return {cell: paired_statistics(self.losses[cell], self.losses[other]) for cell in cells}

    def words(self, cells: Iterable[Cell]) -> str:
        """Mean losses with their range."""
        return ", ".join(
            f"{cell.name} {self.mean(cell):.3f} ({min(self.losses[cell]):.3f}-{max(self.losses[cell]):.3f})"
            for cell in cells
        )

    def numbers(self, cells: Iterable[Cell]) -> dict[str, float]:
        """Of each seed."""
        return {
            f"{cell.name}: loss, seed {seed}": rounded(loss)
            for cell in cells
            for seed, loss in zip(self.seeds, self.losses[cell])
        }


def interval_words(statistics: PairedStatistics) -> str:
    """A difference with its 95 % interval over the seeds."""
    words = f"{statistics.difference:+.3f}"
    if statistics.interval is not None:
        words += " ({:+.3f} to {:+.3f})".format(*statistics.interval)
    return words


def report(trained: Trained, cell: Cell, rate: float, training: Training, text: Text) -> None:
    """Adds the held-out loss of each seed, and the curve. Raises ValueError where a loss is not finite."""
    losses = []
    curves = []
    for seed in trained.seeds:
        model, curve = train(cell, rate, seed, training.steps, training.batch, text.train)
        loss = held_out_loss(model, text.test)
        if not math.isfinite(loss):
            raise ValueError(f"{cell.name}: the loss of seed {seed} at rate {rate:g} is not finite")
        losses.append(loss)
        curves.append(curve)
    trained.losses[cell] = losses
    trained.curves[cell] = [fmean(step) for step in zip(*curves)]


def tuned(cell: Cell, training: Training, text: Text) -> dict[float, float]:
    """The losses of the rates that were tried, on rows that are neither trained on nor reported."""

    def loss_at(rate: float) -> float:
        model, _ = train(cell, rate, 0, training.tuning_steps, training.batch, text.train)
        return held_out_loss(model, text.tuning)

    return tune(loss_at, training.rate)


def train_all(
    shapes: Iterable[tuple[int, int]], input_rank: int, seeds: tuple[int, ...], training: Training, progress: Progress
) -> Trained:
    """Every shape at its best rate, all of the size of the first; then variants of two, at the rates of these."""
    text = read_text(training)
    trained = Trained(seeds, bigram_loss(text, training.steps * training.batch))
    first, *others = shapes
    start = Cell(*first, 4 * first[1])
    for cell in (start, *(cell_at(*shape, body_parameters(start)) for shape in others)):
        progress(f"{cell.name}: rates, then {len(seeds)} seeds")
        trained.tried[cell] = tuned(cell, training, text)
        report(trained, cell, best_rate(trained.tried[cell]), training, text)
    deep = trained.floor_cell
    for cell, like in (
        (replace(deep, shared=True), deep),
        (replace(deep, layers=1), deep),
        (replace(start, input_rank=input_rank), start),
        (replace(deep, input_rank=input_rank), deep),
    ):
        progress(f"{cell.name}: {len(seeds)} seeds")
        report(trained, cell, best_rate(trained.tried[like]), training, text)
    return trained


def floor_statements(trained: Trained) -> list[Statement]:
    """The minimal depth of the budget, and what is beyond it."""
    size = body_parameters(trained.plain[0])
    best = min(trained.above, key=trained.mean)
    differences = trained.differences(trained.below, best)
    needed = Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement=f"At N = {size:,} shapes below their floor are worse than the best from the floor on.",
        rule="the loss of each is greater by a 95 % interval over the seeds that excludes 0; disagrees where that of "
        "one is less by such an interval",
        verdict=together([by_interval(each.interval) for each in differences.values()]),
        finding=f"The budget's minimal depth is {advice.minimal_depth(size)}. Nats per byte (range over seeds): "
        f"{trained.words(trained.plain)}; a bigram counted in as much text has {trained.bigram:.3f}. Over "
        f"{best.name}: " + ", ".join(f"{cell.name} {interval_words(differences[cell])}" for cell in differences) + ".",
        numbers={"bigram": rounded(trained.bigram), **trained.numbers(trained.plain)},
    )
    off = {cell: trained.mean(cell) / trained.mean(best) - 1 for cell in trained.above}
    alike = Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement="From the floor on depth and width can be traded at equal parameters without loss.",
        rule=f"the mean losses of these shapes lie within {ALIKE:.0%} of the best of them",
        verdict=verdict(max(off.values()) <= ALIKE),
        finding=f"Over {best.name}: " + ", ".join(f"{cell.name} {share:+.1%}" for cell, share in off.items()) + ".",
        numbers=trained.numbers(trained.above),
    )
    return [needed, alike]


def law_at_this_size(trained: Trained) -> Statement:
    """The fitted law far below the sizes of its fit."""
    size = body_parameters(trained.plain[0])
    depth = advice.fitted_depth_of_size(size)
    times = advice.fitted_parameters(advice.FIT_DEPTHS[0]) / size
    first, *deeper = trained.plain
    best = min(trained.plain, key=trained.mean)
    differences = trained.differences(deeper, first)
    return Statement(
        paper=PAPER,
        place="fitted law, carried on below its sizes",
        whose="asked here",
        statement=f"The law also holds at N = {size:,}, {times:.0f} times below its fit, where it names {depth:.1f} "
        "layers: the shallowest is best.",
        rule="the loss of each deeper shape is greater by a 95 % interval over the seeds that excludes 0; disagrees "
        "where that of one is less by such an interval",
        verdict=together([by_interval(each.interval) for each in differences.values()]),
        finding=f"Best is {best.name}; against {first.name}, minus is better: "
        + ", ".join(f"{cell.name} {interval_words(differences[cell])}" for cell in deeper)
        + ". Says nothing of the law where it was fitted.",
        numbers={"layers by the law": rounded(depth), **trained.numbers(trained.plain)},
    )


def flatness_statement(trained: Trained) -> Statement:
    """Kaplan's flatness."""
    gaps = {}
    for pair in combinations(trained.plain, 2):
        aspects = [cell.aspect for cell in pair]
        if max(aspects) <= KAPLAN_RATIO * min(aspects):
            losses = [trained.mean(cell) for cell in pair]
            gaps[pair] = max(losses) / min(losses) - 1
    widest = max(gaps, key=gaps.get)
    return Statement(
        paper=KAPLAN,
        place="shape",
        whose="second-hand",
        statement=f"At equal size the shape hardly matters: an aspect ratio {KAPLAN_RATIO} times as large costs a few "
        "per cent of the loss.",
        rule=f"the mean losses of any two shapes of equal size lie within {FEW_PER_CENT:.0%} where their widths over "
        f"layers differ by up to {KAPLAN_RATIO} times",
        verdict=verdict(gaps[widest] <= FEW_PER_CENT),
        finding=f"Of {len(gaps)} such pairs {' and '.join(cell.name for cell in widest)} lie furthest apart, by "
        f"{gaps[widest]:.1%}: {trained.words(trained.plain)}. At {body_parameters(trained.plain[0]):,} parameters and "
        "this length of training.",
        numbers={
            **{f"{one.name} and {other.name}: apart by": rounded(gap) for (one, other), gap in gaps.items()},
            **trained.numbers(trained.plain),
        },
    )


def vocabulary_statement(trained: Trained) -> Statement:
    """The companion's bottleneck, by a token embedding whose rank is cut."""
    wide = trained.plain[0]
    deep = trained.floor_cell
    cut_wide = trained.cut(wide)
    cut_deep = trained.cut(deep)
    gains = {}
    for low, high in ((wide, deep), (cut_wide, cut_deep)):
        gains[low] = [one - other for one, other in zip(trained.losses[low], trained.losses[high], strict=True)]
    difference = paired_statistics(gains[cut_wide], gains[wide])
    cells = (wide, deep, cut_wide, cut_deep)
    return Statement(
        paper=COMPANION,
        place="abstract",
        whose="the paper",
        statement="Where the width exceeds the rank of the input embedding, deepen rather than widen.",
        rule=f"with the token embedding cut to rank {cut_wide.input_rank} the lead of {deep.name} over {wide.name} is "
        "greater than with all of it, by a 95 % interval over the seeds that excludes 0; disagrees where it is "
        "less by such an interval",
        verdict=by_interval(difference.interval),
        finding=f"The lead grows by {interval_words(difference)}: {trained.words(cells)}. Parameters and output are "
        "the same, and the rates are those of the shapes with all of it, not tuned again; the full embedding has a "
        "rank of at most 256, beyond every width here.",
        numbers=trained.numbers(cells),
    )


def sharing_statement(trained: Trained) -> Statement:
    """One layer in all places, as ALBERT has it."""
    deep = trained.floor_cell
    shared = replace(deep, shared=True)
    single = replace(deep, layers=1)
    gained = paired_statistics(trained.losses[single], trained.losses[shared])
    lost = paired_statistics(trained.losses[shared], trained.losses[deep])
    return Statement(
        paper=PAPER,
        place="floor, in training",
        whose="asked here",
        statement=f"Depth helps without further parameters: one layer in {deep.layers} places is better than in one.",
        rule="the loss is lower by a 95 % interval over the seeds that excludes 0; disagrees where it is greater by "
        "such an interval",
        verdict=by_interval(gained.interval),
        finding=f"Gained by {deep.layers} places for one layer: {interval_words(gained)}; lost to layers of their "
        f"own: {interval_words(lost)}. {trained.words((single, shared, deep))}. One layer is trained at the rate of "
        f"{deep.name}, not tuned, and in {deep.layers} places it gets {deep.layers} gradients.",
        numbers=trained.numbers((single, shared, deep)),
    )
