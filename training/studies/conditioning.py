"""The study conditioning: is κ of the head outputs what heads change, and is it a cause? Lean (arXiv 2505.20802)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean

from torch import Generator, tensor

from ..experiments.kappa import MOST_KAPPA
from ..experiments.run_statistics import paired_statistics
from ..records import FigurePanel, Line, Outcome, PairedStatistics, Statement
from .bytes_model import Look, Shape, TrainingPlan, bigram_loss, steps_to
from .intervention import ARMS, IDENTITY, LARGER, NONE, RANDOM, Looks, Run, best_rates, run_all
from .kappa_at_start import (
    PAPER,
    Drawn,
    attention_kappas,
    gaussian_statement,
    growing_statement,
    kappa_words,
    known_kappa,
    language_model_statement,
    resolved,
)
from .lean_grids import all_grid_statements
from .lean_tables import not_tested
from .rates import beyond
from .study import GRIDS_FOLDER, Findings, Progress, Study, double_precision
from .trials import line, rounded, verdict


MOVED = 2.0  # times by which κ must differ before its effect is asked for
MARGIN = 0.02  # nats: a smaller difference is none
ORDERED = 0.8  # Spearman's correlation of what has an order
EXTENSIONS = 2  # of the rates, where the best is at an edge
HALFWAY = 0.5  # of the steps of the unchanged start, whose loss there all runs have to reach


@dataclass(frozen=True)
class Settings:
    """What one size of the study runs. `heads` are trained at one width and, all of one size, beside it."""

    seed: int
    drawn: Drawn
    shape: Shape
    training: TrainingPlan
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    tuning_steps: int
    heads: tuple[int, ...]
    heads_seeds: tuple[int, ...]
    processes: int


QUICK = Settings(
    seed=1,
    drawn=Drawn(
        draws=5,
        gaussian=((32, 8), (32, 64), (64, 512)),
        growing=(8, 64, 512),
        tokens=32,
        width=64,
        heads=(1, 2, 4),
        size=16,
        heads_of_size=(4, 8, 16),
    ),
    shape=Shape(layers=2, width=32, heads=2, head_size=16, length=64),
    training=TrainingPlan(rate=2e-3, steps=20, batch=4, looks=4, held_out=16),
    seeds=(1, 2),
    rates=(2e-3, 4e-3),
    tuning_seeds=(11,),
    tuning_steps=10,
    heads=(1, 4),
    heads_seeds=(1,),
    processes=1,
)
FULL = Settings(
    seed=1,
    drawn=Drawn(
        draws=20,
        gaussian=((64, 16), (64, 128), (64, 1024), (197, 96), (197, 768), (197, 3072)),
        growing=(4, 8, 16, 64, 256),
        tokens=197,
        width=768,
        heads=(1, 2, 4, 8, 16, 32),
        size=96,
        heads_of_size=(4, 8, 12, 16, 32),
    ),
    shape=Shape(layers=4, width=96, heads=3, head_size=32, length=128),
    training=TrainingPlan(rate=2e-3, steps=1200, batch=4, looks=16, held_out=128),
    seeds=(1, 2, 3, 4, 5),
    rates=(5e-4, 1e-3, 2e-3, 4e-3),
    tuning_seeds=(11, 12),
    tuning_steps=240,
    heads=(1, 6, 12),
    heads_seeds=(1,),
    processes=2,
)
DEFAULT = replace(FULL, training=replace(FULL.training, steps=560), tuning_steps=140)


def tuning_runs(settings: Settings, rates: dict[str, list[float]]) -> list[Run]:
    """Every arm at its rates, shorter and looked at only at the end, with seeds that are not reported."""
    plan = replace(settings.training, steps=settings.tuning_steps, looks=1)
    return [
        Run(settings.shape, arm, replace(plan, rate=rate), seed)
        for arm, tried in rates.items()
        for rate in tried
        for seed in settings.tuning_seeds
    ]


def tune(settings: Settings, progress: Progress) -> dict[str, float]:
    """The best rate of every arm; where it is the least or the greatest tried, half or twice of it is tried, too."""
    due = {arm: list(settings.rates) for arm in ARMS}
    found: Looks = {}
    for _ in range(1 + EXTENSIONS):
        found |= run_all(tuning_runs(settings, due), settings.processes, progress)
        best = best_rates(found)
        following = {arm: beyond(best[arm], rates_of(found, arm)) for arm in ARMS}
        due = {arm: [rate] for arm, rate in following.items() if rate is not None}
    return best


def rates_of(found: Looks, arm: str) -> set[float]:
    """The rates at which an arm was tried."""
    return {run.plan.rate for run in found if run.arm == arm}


def arm_runs(settings: Settings, rates: dict[str, float]) -> list[Run]:
    """Every arm at its own rate."""
    return [
        Run(settings.shape, arm, replace(settings.training, rate=rates[arm]), seed)
        for arm in ARMS
        for seed in settings.seeds
    ]


def shapes_of_heads(settings: Settings) -> dict[str, list[Shape]]:
    """The shape with other heads: as wide together, and each as large as before; sorted by heads."""
    shape = settings.shape
    return {
        "one width": [replace(shape, heads=heads, head_size=shape.width // heads) for heads in settings.heads],
        "one head size": [replace(shape, heads=heads) for heads in settings.heads],
    }


def heads_runs(settings: Settings, rate: float) -> list[Run]:
    """The unchanged start with other heads, all at its rate."""
    plan = replace(settings.training, rate=rate)
    return [
        Run(shape, NONE, plan, seed)
        for shapes in shapes_of_heads(settings).values()
        for shape in shapes
        for seed in settings.heads_seeds
    ]


@dataclass(frozen=True)
class Arms:
    """The reported runs of the intervention, by arm, each looked at as it went on; and the rates they had."""

    runs: dict[str, list[list[Look]]]
    rates: dict[str, float]

    @classmethod
    def of(cls, found: Looks, rates: dict[str, float]) -> "Arms":
        runs: dict[str, list[list[Look]]] = {}
        for run, looks in found.items():
            runs.setdefault(run.arm, []).append(looks)
        return cls(runs, rates)

    def losses(self, arm: str) -> list[float]:
        """At the end, by seed."""
        return [found[-1].loss for found in self.runs[arm]]

    def kappa(self, arm: str, place: int) -> float:
        """The geometric mean over the seeds, at one of the looks."""
        return geometric_mean(found[place].kappa for found in self.runs[arm])

    def difference(self, arm: str, other: str) -> PairedStatistics:
        """Of the losses at the end, arm − other, pair by pair of a seed."""
        return paired_statistics(self.losses(arm), self.losses(other))

    @property
    def target(self) -> float:
        """The mean loss of the unchanged start halfway."""
        halfway = round(HALFWAY * (len(self.runs[NONE][0]) - 1))
        return fmean(found[halfway].loss for found in self.runs[NONE])

    def numbers(self) -> dict[str, float | None]:
        """Rate, κ at both ends and loss of every arm."""
        numbers: dict[str, float | None] = {}
        for arm in self.runs:
            numbers[f"{arm}: rate"] = self.rates[arm]
            numbers[f"{arm}: κ at the start"] = rounded(self.kappa(arm, 0), 4)
            numbers[f"{arm}: κ at the end"] = rounded(self.kappa(arm, -1), 4)
            numbers[f"{arm}: loss"] = rounded(fmean(self.losses(arm)))
        return numbers


def cause_statement(arms: Arms, control: str, why: str) -> Statement:
    """Whether a lower κ at the start, at equal norm and equal heads, gives a lower loss."""
    moved = arms.kappa(control, 0) / arms.kappa(IDENTITY, 0)
    found = arms.difference(IDENTITY, control)
    low, high = found.interval
    common = {
        "paper": PAPER,
        "place": f"cause or correlation: {IDENTITY} against {control}",
        "whose": "asked here",
        "statement": f"A lower κ at the start, with the same heads, gives a lower loss: {IDENTITY} against {control}, "
        f"{why}.",
        "numbers": {
            **arms.numbers(),
            "κ moved by": rounded(moved, 4),
            "difference of loss": rounded(found.difference),
            "low end": rounded(low),
            "high end": rounded(high),
            "p": rounded(found.p, 3),
        },
    }
    words = (
        f"κ at the start {arms.kappa(IDENTITY, 0):.0f} against {arms.kappa(control, 0):.0f}, loss "
        f"{fmean(arms.losses(IDENTITY)):.4f} against {fmean(arms.losses(control)):.4f}, {found.difference:+.4f} "
        f"({low:+.4f} to {high:+.4f}), {found.pairs} seeds."
    )
    if moved < MOVED:
        return Statement(
            **common, rule=None, verdict="not tested", finding=words, missing=f"κ to differ by {MOVED:g} times"
        )
    return Statement(
        **common,
        rule=f"κ at the start differs by {MOVED:g} times or more; the loss at the end is lower by {MARGIN} nats or "
        "more on the mean, and the 95 % interval over the seeds excludes 0; disagrees where the interval excludes a "
        "loss lower by that much",
        verdict=cause_outcome(found),
        finding=words,
    )


def cause_outcome(found: PairedStatistics) -> Outcome:
    """Of a difference of losses that is stated to be below 0, and by MARGIN at least."""
    low, high = found.interval
    if found.difference <= -MARGIN and high < 0:
        return "agrees"
    if low > -MARGIN:
        return "disagrees"
    return "undecided"


def is_ordered(correlation: float) -> bool:
    """Whether a rank correlation is `ORDERED` or more: of exactly 0.8 a computer finds 0.7999999999999999."""
    return rounded(correlation) >= ORDERED


def order_statement(arms: Arms) -> Statement:
    """Whether the arms rank by loss as they rank by κ."""
    from scipy.stats import spearmanr  # takes seconds to import

    kappas = [arms.kappa(arm, 0) for arm in arms.runs]
    losses = [fmean(arms.losses(arm)) for arm in arms.runs]
    correlation = float(spearmanr(kappas, losses).statistic)
    by_kappa = sorted(arms.runs, key=lambda arm: arms.kappa(arm, 0))
    words = ", ".join(f"{arm} {arms.kappa(arm, 0):.0f} and {fmean(arms.losses(arm)):.4f}" for arm in by_kappa)
    return Statement(
        paper=PAPER,
        place="cause or correlation: all starts",
        whose="asked here",
        statement="Over all these starts, the lower κ, the lower the loss.",
        rule=f"Spearman's correlation of their mean κ at the start and mean loss at the end of {ORDERED} or more (by "
        "chance in 8 of the 120 orders of five, 7 %)",
        verdict=verdict(is_ordered(correlation)),
        finding=f"{correlation:+.2f} over {len(by_kappa)} starts; κ and loss: {words}.",
        numbers={**arms.numbers(), "Spearman's correlation": rounded(correlation, 4)},
    )


def speed_statement(arms: Arms) -> Statement:
    """κ at the start against the steps to a loss, over runs."""
    from scipy.stats import spearmanr  # takes seconds to import

    target = arms.target
    pairs = []
    missed = 0
    for runs in arms.runs.values():
        for found in runs:
            steps = steps_to(found, target)
            if steps is None:
                missed += 1
                steps = float(found[-1].step + 1)
            pairs.append((found[0].kappa, steps))
    correlation = float(spearmanr(*zip(*pairs)).statistic)
    return Statement(
        paper=PAPER,
        place="steps to a loss",
        whose="asked here",
        statement="Runs that start with a lower κ reach a given loss in fewer steps.",
        rule=f"Spearman's correlation over all runs of the intervention of {ORDERED} or more; those of one start are "
        "alike, so no test",
        verdict=verdict(is_ordered(correlation)),
        finding=f"{correlation:+.2f} over {len(pairs)} runs of {len(arms.runs)} starts, no test, to a loss of "
        f"{target:.3f}, which the unchanged start has after {HALFWAY:.0%} of its steps; {missed} never had it and "
        "count as the slowest.",
        numbers={
            "Spearman's correlation": rounded(correlation, 4),
            "loss to reach": rounded(target),
            "runs that never reach it": missed,
        },
    )


def learned_statement(arms: Arms, settings: Settings) -> Statement:
    """Whether what is compared has learned anything."""
    guess = bigram_loss(settings.shape.length, settings.training.held_out)
    worst = max(fmean(arms.losses(arm)) for arm in arms.runs)
    return Statement(
        paper=PAPER,
        place="cause or correlation: all starts",
        whose="asked here",
        statement="The runs of the intervention have learned more than which byte follows which.",
        rule="the mean loss at the end of every start is below that of a bigram of the same bytes",
        verdict=verdict(worst < guess),
        finding=f"The bigram has {guess:.3f} nats a byte, the worst start {worst:.3f}.",
        numbers={"bigram": rounded(guess), "worst start": rounded(worst)},
    )


def trained_statements(settings: Settings, runs: Looks) -> list[Statement]:
    """Whether more heads lower κ through training: the unchanged start, with its own heads and with others."""
    statements = []
    seeds = "one seed"
    if len(settings.heads_seeds) > 1:
        seeds = f"{len(settings.heads_seeds)} seeds"
    for held, shapes in shapes_of_heads(settings).items():
        by_heads: dict[int, list[list[Look]]] = {}
        for shape in sorted({settings.shape, *shapes}, key=lambda shape: shape.heads):
            by_heads[shape.heads] = [
                looks
                for run, looks in runs.items()
                if (run.shape, run.arm) == (shape, NONE) and run.seed in settings.heads_seeds
            ]
        kappas = {
            heads: [resolved(geometric_mean(looks[place].kappa for looks in found), MOST_KAPPA) for place in (0, -1)]
            for heads, found in by_heads.items()
        }
        numbers: dict[str, float | None] = {}
        for heads, (start, end) in kappas.items():
            numbers[f"κ at the start, {heads} heads"] = known_kappa(start, 4)
            numbers[f"κ at the end, {heads} heads"] = known_kappa(end, 4)
            numbers[f"loss, {heads} heads"] = rounded(fmean(found[-1].loss for found in by_heads[heads]))
        ends = [end for _, end in kappas.values()]
        words = "; ".join(
            f"{heads} heads {kappa_words(start, '.0f')} to {kappa_words(end, '.0f')}"
            for heads, (start, end) in kappas.items()
        )
        statements.append(
            Statement(
                paper=PAPER,
                place="abstract, after training",
                whose="asked here",
                statement=f"More heads improve the conditioning of attention after training, too: causal, {held}.",
                rule="κ at the end, the geometric mean over layers and seeds, is lower at each step to more heads; "
                f"one above 1/ε of float32, {MOST_KAPPA:.1g}, is rounding, and counts as the highest",
                verdict=verdict(all(later < earlier for earlier, later in zip(ends, ends[1:]))),
                finding=f"From the start to the end of training: {words}; {seeds}.",
                numbers=numbers,
            )
        )
    return statements


def over_training(label: str, runs: Iterable[list[Look]], name: str) -> Line:
    """One quantity of several runs over their steps."""
    looks = list(zip(*runs))
    steps = [look[0].step for look in looks]
    return line(label, steps, [tensor([getattr(one, name) for one in look]) for look in looks])


def panels_of(arms: Arms, attention: Iterable[Line]) -> list[FigurePanel]:
    """κ by heads before training; κ and loss of the starts over training."""
    panels = [
        FigurePanel(
            title="κ of the head outputs, random weights",
            x="heads",
            y="κ",
            x_scale="log",
            y_scale="log",
            lines=list(attention),
        ),
        FigurePanel(
            title="κ of the head outputs in training",
            x="step",
            y="κ",
            y_scale="log",
            lines=[over_training(arm, runs, "kappa") for arm, runs in arms.runs.items()],
        ),
    ]
    late = {arm: [found[len(found) // 4 :] for found in runs] for arm, runs in arms.runs.items()}
    panels.append(
        FigurePanel(
            title="loss on held-out text, same heads, other starts",
            x="step",
            y="nats a byte",
            lines=[over_training(arm, runs, "loss") for arm, runs in late.items()],
        )
    )
    return panels


def run(settings: Settings, progress: Progress) -> Findings:
    """The whole study; grids are those of the working folder. Raises GridError where one of them does not fit."""
    with double_precision():
        source = Generator().manual_seed(settings.seed)
        progress("Gaussian matrices, and attention with random weights")
        gaussian = [
            gaussian_statement(settings.drawn, source),
            growing_statement(settings.drawn, source),
            language_model_statement(source),
        ]
        attention = attention_kappas(settings.drawn, source)
    progress("the rates of the starts")
    rates = tune(settings, progress)
    progress("the starts")
    started = run_all(arm_runs(settings, rates), settings.processes, progress)
    arms = Arms.of(started, rates)
    progress("other heads")
    heads = run_all(heads_runs(settings, rates[NONE]), settings.processes, progress)
    statements = [
        *gaussian,
        *(kappas.statement(settings.drawn) for kappas in attention),
        *trained_statements(settings, started | heads),
        *all_grid_statements(GRIDS_FOLDER),
        learned_statement(arms, settings),
        cause_statement(arms, RANDOM, "which has the same norm"),
        cause_statement(arms, LARGER, "which has the same norm, and κ of W unchanged"),
        cause_statement(arms, NONE, "the unchanged start"),
        order_statement(arms),
        speed_statement(arms),
        *not_tested(),
    ]
    panels = panels_of(arms, (kappas.line() for kappas in attention))
    return Findings(statements, panels, list(settings.seeds))


STUDY = Study(
    name="conditioning",
    title="Whether heads improve the conditioning of attention, and whether that is a cause: the statements of Lean",
    sizes={"quick": QUICK, "default": DEFAULT, "full": FULL},
    run=run,
    of_grids=all_grid_statements,
    threads=1,
)
