"""`leaner plan --latency`: shapes whose forward pass is quick enough on this machine, found by measuring."""

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from ..configuration_leaner import LeanConfig
from ..planning.dials import Dials, describe
from ..planning.goals import Budget, NoShapeFits, flops_per_unit
from ..planning.memory import StepSetting
from ..planning.solver import Candidate, clamp, cost_of, plan


ROUNDS = 3
MARGIN = 0.85  # times vary: aim below the limit
Measurement = dict[str, float]


@dataclass(frozen=True)
class Question:
    """What shapes are asked for, but for budget and dials; the arguments of `plan` of the same names."""

    family: str
    setting: StepSetting
    start: LeanConfig | None
    base: LeanConfig
    rows: int | None

    def answer(self, budget: Budget, dials: Dials, rows: int | None) -> list[Candidate]:
        """At most `rows` shapes. Raises ValueError and NoShapeFits as `plan` does."""
        return plan(self.family, budget, dials, self.setting, self.start, self.base, rows)


def measured(candidates: list[Candidate], setting: StepSetting, start: Candidate | None = None) -> list[Measurement]:
    """Measurements on this machine, the starting point's first."""
    from ..training.benchmarking.measured_shapes import measure

    configs = [candidate.config for candidate in candidates]
    if start is not None:
        configs.insert(0, start.config)
    return measure(configs, setting)


@dataclass(frozen=True)
class LatencySearch:
    """Shapes whose forward pass of one item takes about, but not above, `limit` seconds on this machine.

    Time cannot be computed, so a ceiling of FLOPs stands for it. Each shape's measured time corrects its ceiling three
    times, and up to three times more where the final measurements put every shape above the limit: then the machine
    has become slower.
    """

    limit: float
    budget: Budget
    dials: Dials
    question: Question

    @property
    def highest(self) -> float:
        """The FLOPs that were given; infinite where none were."""
        if self.budget.flops is None:
            return inf
        return self.budget.flops

    def run(self) -> tuple[list[Candidate], list[Measurement]]:
        """The shapes that keep the limit, and their measurements; raises NoShapeFits, with the nearest, for none."""
        candidates = self.first_shapes()
        for _ in range(ROUNDS):
            corrected = self.corrected(candidates, self.seconds([candidate.config for candidate in candidates]))
            if corrected:
                candidates = corrected
        measurements = measured(candidates, self.question.setting)
        for _ in range(ROUNDS):
            seconds = [measurement["latency_s"] for measurement in measurements]
            if min(seconds) <= self.limit:
                break
            corrected = self.corrected(candidates, seconds)
            if not corrected:
                break
            candidates = corrected
            measurements = measured(candidates, self.question.setting)
        return within_latency(self.limit, candidates, measurements)

    def seconds(self, configs: list[LeanConfig]) -> list[float]:
        """The time of one item, of each shape, on this machine."""
        from ..training.benchmarking.measured_shapes import latencies

        return latencies(configs, self.question.setting)

    def first_shapes(self) -> list[Candidate]:
        """Shapes by arithmetic, at the FLOPs a second of the base; where none fits, the nearest, to be measured."""
        base = self.question.base
        setting = self.question.setting
        (base_seconds,) = self.seconds([base])
        flops_per_second = flops_per_unit(base, base.count_flops(setting.length)) / base_seconds
        ceiling = min(self.highest, MARGIN * self.limit * flops_per_second)
        try:
            return self.question.answer(replace(self.budget, flops=ceiling), self.dials, self.question.rows)
        except NoShapeFits as error:
            misses_ceiling = error.goal is not None and error.goal.budget == "flops"
            if ceiling == self.highest or not misses_ceiling:
                raise
            return [cost_of(error.nearest, setting)]  # nobody gave this ceiling: the shape's own time decides

    def corrected(self, candidates: list[Candidate], seconds: list[float]) -> list[Candidate]:
        """Each shape again, by the FLOPs that its own time allows; those that cannot be smaller are left out."""
        corrected = []
        for candidate, time in zip(candidates, seconds):
            factor = clamp(MARGIN * self.limit / time, 0.2, 5)
            ceiling = min(self.highest, candidate.flops_per_unit * factor)
            dials = replace(self.dials, head_dim=candidate.config.head_dim)
            if self.dials.free != ["layers"]:  # else the depth is what is solved
                dials = replace(dials, layers=candidate.config.num_hidden_layers)
            with suppress(NoShapeFits):  # the smallest of this depth is too slow
                corrected += self.question.answer(replace(self.budget, flops=ceiling), dials, rows=None)
        return corrected


def within_latency(
    limit: float, candidates: list[Candidate], measurements: list[Measurement]
) -> tuple[list[Candidate], list[Measurement]]:
    """Those that keep the limit, and their measurements; raises NoShapeFits, with the nearest, where none does."""
    kept = []
    kept_measurements = []
    for candidate, measurement in zip(candidates, measurements):
        if measurement["latency_s"] <= limit:
            kept.append(candidate)
            kept_measurements.append(measurement)
    if kept:
        return kept, kept_measurements
    seconds = [measurement["latency_s"] for measurement in measurements]
    least = min(seconds)
    nearest = describe(candidates[seconds.index(least)].config)
    takes = f"takes {1e3 * least:.2f}ms, {least / limit:.2f} times --latency {1e3 * limit:g}ms"
    raise NoShapeFits(f"no shape that was measured fits: the nearest, {nearest}, {takes}")
