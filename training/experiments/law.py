"""A law of shape, fitted on the finished cells of a grid with branches: `law.json` beside the grid's rows.

Quality, lower is better, is the held-out loss, or 1 − the metric where more of that is better. The forms are those of
`planning/laws.py`: a floor and a term that falls as a power of the tokens, both with exponents of a shape's sizes.

Which exponents a law has is searched one step at a time, from the curve over tokens alone: a size on the floor, on the
scale or on both, as long as each added parameter lowers the error of predicting a shape that was left out by
MIN_FALL. A law is found only if shapes that were left out of that whole search, too, are predicted better than by the
curve over tokens alone: the 95 % interval of the difference, by a bootstrap over shapes and their seeds, excludes 0.

Intervals of parameters and of what follows from them are those of refits with seeds drawn again, all runs of a seed
together; they are widened from the normal distribution to Student's t for the number of seeds.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from modeling_leaner.planning.laws import (
    LAW,
    TERM_NAMES,
    TERMS,
    TOKENS,
    Form,
    Law,
    Tie,
    interval,
    law_of,
    parts,
    sizes_of,
)
from modeling_leaner.shapes import load_config
from modeling_leaner.support.documents import write_json
from modeling_leaner.support.files import write_bytes

from ..records import Crossing, LawErrors, LawFile, LawForm, LawParameter, LawTie, NotFitted
from .grid import Grid, GridError, load_grid
from .grid_results import GridResults, load_results
from .law_figure import FIGURE, law_figure
from .summary import cells_of


NO_LAW = "no law of shape found"
NO_CROSSING = "no crossing within the fitted range"
MIN_SHAPES = 4  # two are left where one is predicted and another is left out of the search
MIN_BUDGETS = 3  # floor, scale and exponent
MIN_FALL = 0.05  # of the error of shapes left out, for each further parameter
COLLINEAR = 0.1  # of a term's spread, in logs: what the terms before it may leave of it
TIE = math.log(1.25)  # how far beyond the fitted shapes a term may leave the others that it follows from
REFITS = 200
DRAWS = 2000  # of the paired difference of errors
EXPONENTS = (0.1, 0.3, 1.0)  # that fits start from
BOUNDS = {"floor": 1e-3, "exponent": (0.01, 5.0), "power": 3.0}
NOISE = 1e-6  # the least spread of seeds, as a share of the quality, that outliers are told by


@dataclass(frozen=True)
class Point:
    """One finished run of a branch: the shape, the seed, the tokens and the quality, lower is better."""

    shape: str
    seed: int
    tokens: int
    quality: float


@dataclass(frozen=True)
class Data:
    """The finished runs of a grid's branches, and the sizes of its shapes."""

    points: list[Point]
    sizes: dict[str, dict[str, float]]
    metric: str
    higher_is_better: bool
    failed: int
    family: str

    @property
    def shapes(self) -> list[str]:
        """The shapes that have runs."""
        return list(dict.fromkeys(point.shape for point in self.points))

    @property
    def cells(self) -> int:
        """How many shapes × budgets have runs."""
        return len({(point.shape, point.tokens) for point in self.points})

    @property
    def quality(self) -> str:
        """What is predicted, in words."""
        if self.higher_is_better:
            return f"1 − {self.metric}"
        return self.metric


def read_data(results: GridResults) -> Data:
    """The finished runs to report of every branch: the only place that reads rows."""
    grid = results.grid
    points = []
    metric = ""
    up = False
    failed = 0
    for branch in grid.branches or []:
        cells = cells_of(results, branch)
        failed += sum(map(len, cells.failed.values()))
        for row in cells.rows():
            metric = row.metric
            up = row.higher_is_better
            quality = row.value
            if up:
                quality = 1 - quality
            points.append(Point(row.shape, row.seed, branch, quality))
    configs = {shape: load_config(shape) for shape in grid.shapes}
    sizes = {shape: sizes_of(config) for shape, config in configs.items()}
    family = configs[grid.baseline].model_type.removeprefix("lean_")
    return Data(points, sizes, metric, up, failed, family)


class Fitter:
    """Fits forms to points; sizes and tokens are relative to the geometric means of the whole grid."""

    def __init__(self, data: Data):
        self.data = data
        self.budgets = sorted({point.tokens for point in data.points})
        self.reference = {
            term: statistics.geometric_mean(data.sizes[shape][term] for shape in data.shapes) for term in TERMS
        }
        self.reference[TOKENS] = statistics.geometric_mean(self.budgets)
        self.noise = spread_of_seeds(data.points)
        self.curves: dict[tuple[Point, ...], np.ndarray] = {}

    def cells(self, points: Sequence[Point]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """ln sizes, ln tokens and quality of points, a column each."""
        sizes = {
            term: np.array([math.log(self.data.sizes[point.shape][term] / self.reference[term]) for point in points])
            for term in TERMS
        }
        tokens = np.array([math.log(point.tokens / self.reference[TOKENS]) for point in points])
        return sizes, tokens, np.array([point.quality for point in points])

    def fit(self, form: Form, points: Sequence[Point], starts: Sequence[np.ndarray]) -> np.ndarray:
        """The best parameters from several starts, by least squares with outliers' weight lowered (soft L1)."""
        from scipy.optimize import least_squares  # takes seconds to import

        sizes, tokens, quality = self.cells(points)
        low, high = bounds(form, quality)
        used = [sizes[term] for term in (*form.floor, *form.scale)]

        def residuals(parameters: np.ndarray) -> np.ndarray:
            floor, rest = parts(form, parameters, sizes, tokens)
            return (floor + rest - quality) / self.noise

        def slopes(parameters: np.ndarray) -> np.ndarray:
            floor, rest = parts(form, parameters, sizes, tokens)
            columns = [floor, rest, -rest * tokens * np.exp(parameters[2])]
            for place, size in enumerate(used):
                part = rest
                if place < len(form.floor):
                    part = floor
                columns.append(part * size)
            return np.stack(columns, axis=1) / self.noise

        fits = []
        for start in starts:
            begun = np.clip(start, low + 1e-6, high - 1e-6)
            limits = (low, high)
            fits.append(least_squares(residuals, begun, slopes, limits, loss="soft_l1", f_scale=3.0, max_nfev=200))
        return min(fits, key=lambda fit: fit.cost).x

    def tokens_only(self, points: Sequence[Point]) -> np.ndarray:
        """The curve over tokens alone, from several starts; that of points fitted before is kept."""
        key = tuple(points)
        if key in self.curves:
            return self.curves[key]
        quality = [point.quality for point in points]
        least = min(quality)
        middle = statistics.fmean(quality)
        starts = []
        for share in (0.5, 0.9, 0.99):
            floor = share * least
            starts += [np.log([floor, max(middle - floor, 1e-9), exponent]) for exponent in EXPONENTS]
        self.curves[key] = self.fit(Form(), points, starts)
        return self.curves[key]

    def predict(self, form: Form, parameters: np.ndarray, points: Sequence[Point]) -> np.ndarray:
        """The quality of points by a form's parameters."""
        sizes, tokens, _ = self.cells(points)
        floor, rest = parts(form, parameters, sizes, tokens)
        return floor + rest


def bounds(form: Form, quality: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest parameters: a floor above 0 and below twice the best, and finite exponents."""
    least, most = BOUNDS["exponent"]
    powers = len(form.names) - 3
    low = [math.log(BOUNDS["floor"] * quality.min()), math.log(1e-6 * quality.max()), math.log(least)]
    high = [math.log(2 * quality.min()), math.log(10 * quality.max()), math.log(most)]
    low += [-BOUNDS["power"]] * powers
    high += [BOUNDS["power"]] * powers
    return np.array(low), np.array(high)


def spread_of_seeds(points: Sequence[Point]) -> float:
    """The spread of seeds around the median of their cell, 1.4826 × its median: that of a normal distribution."""
    cells: dict[tuple[str, int], list[float]] = {}
    for point in points:
        cells.setdefault((point.shape, point.tokens), []).append(point.quality)
    deviations = []
    for values in cells.values():
        if len(values) > 1:
            deviations += [abs(value - statistics.median(values)) for value in values]
    least = NOISE * max(point.quality for point in points)
    if not deviations:
        return max(least, 0.01 * statistics.fmean(point.quality for point in points))
    return max(least, 1.4826 * statistics.median(deviations))


# Which terms can be told apart


def independent(sizes: dict[str, dict[str, float]], shapes: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The terms that vary independently over some shapes, and what each of the others follows from: [] if constant."""
    kept: list[str] = []
    others: dict[str, list[str]] = {}
    for term in TERMS:
        values = np.log([sizes[shape][term] for shape in shapes])
        spread = np.linalg.norm(values - values.mean())
        if spread < 1e-9:
            others[term] = []
            continue
        _, powers, rest = regression(term, kept, sizes, shapes)
        if np.linalg.norm(rest) < COLLINEAR * spread:
            needed = [name for name, power in powers.items() if abs(power) > 0.01]
            others[term] = needed
        else:
            kept.append(term)
    return kept, others


def regression(
    term: str, on: Sequence[str], sizes: dict[str, dict[str, float]], shapes: Sequence[str]
) -> tuple[float, dict[str, float], np.ndarray]:
    """ln term by least squares over shapes: constant, the powers of the other terms, and what is left."""
    values = np.log([sizes[shape][term] for shape in shapes])
    columns = [np.ones(len(shapes))] + [np.log([sizes[shape][name] for shape in shapes]) for name in on]
    design = np.stack(columns, axis=1)
    solution, *_ = np.linalg.lstsq(design, values, rcond=None)
    constant, *powers = map(float, solution)
    return constant, dict(zip(on, powers)), values - design @ solution


def ties(others: dict[str, list[str]], sizes: dict[str, dict[str, float]], shapes: Sequence[str]) -> list[Tie]:
    """What ties the terms that are not fitted, and are not constant, to those that they follow from."""
    tied = []
    for term, needed in others.items():
        if needed:
            constant, powers, rest = regression(term, needed, sizes, shapes)
            tied.append(Tie(term, constant, powers, float(np.abs(rest).max()) + TIE))
    return tied


def not_fitted(others: dict[str, list[str]]) -> list[NotFitted]:
    """The terms that are not fitted, each with the reason."""
    stated = []
    for term, needed in others.items():
        reason = "the same in all shapes"
        if needed:
            reason = f"follows from {', '.join(needed)}"
        stated.append(NotFitted(term=term, reason=reason))
    return stated


# The search, and whether it predicts


def moves(form: Form, terms: Sequence[str]) -> list[Form]:
    """The forms with one more term on the floor, on the scale or on both."""
    larger = []
    for term in terms:
        on_floor = tuple(name for name in TERMS if name in (*form.floor, term))
        on_scale = tuple(name for name in TERMS if name in (*form.scale, term))
        larger += [Form(on_floor, form.scale), Form(form.floor, on_scale), Form(on_floor, on_scale)]
    return [candidate for candidate in dict.fromkeys(larger) if candidate != form]


def grown(parameters: np.ndarray, form: Form, larger: Form) -> np.ndarray:
    """The parameters of a form as a start of a larger one, whose further exponents are 0."""
    known = dict(zip(form.names, parameters))
    return np.array([known.get(name, 0.0) for name in larger.names])


def within(form: Form, terms: Sequence[str]) -> Form:
    """A form without the terms that are not among `terms`."""
    floor = tuple(term for term in form.floor if term in terms)
    return Form(floor, tuple(term for term in form.scale if term in terms))


def mean_points(points: Sequence[Point]) -> list[Point]:
    """Of each shape and budget a point at the mean over the seeds."""
    cells: dict[tuple[str, int], list[float]] = {}
    for point in points:
        cells.setdefault((point.shape, point.tokens), []).append(point.quality)
    return [Point(shape, -1, tokens, statistics.fmean(values)) for (shape, tokens), values in cells.items()]


def split(points: Sequence[Point], shape: str) -> tuple[list[Point], list[Point]]:
    """The points of all other shapes, and the means of one shape."""
    others = [point for point in points if point.shape != shape]
    return others, mean_points([point for point in points if point.shape == shape])


class Search:
    """Searches the form that predicts best a shape that was left out of its fit, among the shapes of some points."""

    def __init__(self, fitter: Fitter, points: Sequence[Point]):
        self.fitter = fitter
        self.shapes = list(dict.fromkeys(point.shape for point in points))
        self.folds = [split(points, shape) for shape in self.shapes]
        self.terms, _ = independent(fitter.data.sizes, self.shapes)
        self.fits = [{Form(): fitter.tokens_only(others)} for others, _ in self.folds]

    def error(self, form: Form, parent: Form) -> float:
        """The mean error of shapes that were left out; infinite where a fold has too few cells for the form."""
        errors = []
        for (others, held_out), fits in zip(self.folds, self.fits):
            shapes = list(dict.fromkeys(point.shape for point in others))
            terms, _ = independent(self.fitter.data.sizes, shapes)
            usable = within(form, terms)
            if len(usable.names) > len(mean_points(others)):
                return math.inf
            if usable not in fits:
                start = grown(fits[within(parent, terms)], within(parent, terms), usable)
                fits[usable] = self.fitter.fit(usable, others, [start])
            predicted = self.fitter.predict(usable, fits[usable], held_out)
            errors.append(mean_error(predicted, held_out))
        return statistics.fmean(errors)

    def best(self) -> Form:
        """The simplest form that predicts best, as the head of this file says."""
        form = Form()
        error = self.error(form, form)
        while True:
            scores = {}
            for larger in moves(form, self.terms):
                price = (1 + MIN_FALL) ** (len(larger.names) - len(form.names))
                scores[larger] = self.error(larger, form) * price
            if not scores or min(scores.values()) >= error:
                return form
            chosen = min(scores, key=scores.__getitem__)
            error = self.error(chosen, form)
            form = chosen


def mean_error(predicted: np.ndarray, held_out: Sequence[Point]) -> float:
    """The mean absolute error over the budgets of a shape."""
    return float(np.abs(predicted - [point.quality for point in held_out]).mean())


def fit_from_tokens(fitter: Fitter, form: Form, points: Sequence[Point]) -> np.ndarray:
    """The parameters of a form, from the curve over tokens alone and from exponents drawn beside it."""
    start = grown(fitter.tokens_only(points), Form(), form)
    random = np.random.default_rng(0)
    starts = [start]
    if form != Form():
        for _ in range(4):
            drawn = start.copy()
            drawn[3:] = random.normal(0, 0.2, len(drawn) - 3)
            starts.append(drawn)
    return fitter.fit(form, points, starts)


@dataclass(frozen=True)
class Held:
    """What was predicted of one shape that was left out, at each of its budgets."""

    shape: str
    budgets: list[int]
    law: np.ndarray
    tokens_only: np.ndarray
    form: Form


def leave_one_out(fitter: Fitter) -> list[Held]:
    """Of each shape, the predictions of a search and of the curve over tokens alone, from the other shapes."""
    held = []
    for shape in fitter.data.shapes:
        others, means = split(fitter.data.points, shape)
        form = Search(fitter, others).best()
        predicted = fitter.predict(form, fit_from_tokens(fitter, form, others), means)
        curve = fitter.predict(Form(), fitter.tokens_only(others), means)
        held.append(Held(shape, [point.tokens for point in means], predicted, curve, form))
    return held


def errors_of(held: Sequence[Held], data: Data) -> LawErrors:
    """The mean errors at fixed tokens of both, and the interval of their difference by the paired bootstrap."""
    values = {shape: by_seed(data.points, shape) for shape in data.shapes}
    random = np.random.default_rng(0)

    def errors(prediction: Held, seeds: Sequence[int]) -> tuple[float, float]:
        known = [values[prediction.shape][seed] for seed in seeds]
        law = []
        curve = []
        for place, tokens in enumerate(prediction.budgets):
            at_budget = [runs[tokens] for runs in known if tokens in runs]
            if at_budget:
                mean = statistics.fmean(at_budget)
                law.append(abs(prediction.law[place] - mean))
                curve.append(abs(prediction.tokens_only[place] - mean))
        return statistics.fmean(law), statistics.fmean(curve)

    measured = [errors(prediction, list(values[prediction.shape])) for prediction in held]
    differences = []
    for _ in range(DRAWS):
        drawn = []
        for place in random.integers(len(held), size=len(held)):
            seeds = list(values[held[place].shape])
            law, curve = errors(held[place], random.choice(seeds, len(seeds)).tolist())
            drawn.append(law - curve)
        differences.append(statistics.fmean(drawn))
    law, curve = (statistics.fmean(side) for side in zip(*measured))
    limits = list(interval(np.array(differences)))
    return LawErrors(law=law, tokens_only=curve, difference=law - curve, interval=limits)


def by_seed(points: Sequence[Point], shape: str) -> dict[int, dict[int, float]]:
    """Seed → tokens → quality of one shape."""
    values: dict[int, dict[int, float]] = {}
    for point in points:
        if point.shape == shape:
            values.setdefault(point.seed, {})[point.tokens] = point.quality
    return values


def is_found(form: Form, errors: LawErrors) -> bool:
    """The criterion: the form has a term, and the interval of law − curve lies below 0."""
    return form != Form() and errors.interval[1] < 0


# Spread over seeds, and what follows


def widening(data: Data) -> float:
    """By how much refits are spread further: Student's t for the shapes' median number of seeds n, and √(n/(n−1))."""
    from scipy.stats import norm, t  # takes seconds to import

    count = int(statistics.median(len(by_seed(data.points, shape)) for shape in data.shapes))
    return float(t.ppf(0.975, count - 1) / norm.ppf(0.975)) * math.sqrt(count / (count - 1))


def replicates(fitter: Fitter, form: Form, parameters: np.ndarray) -> np.ndarray:
    """Parameters of refits with seeds drawn again, (R, P), widened; all runs of a seed are drawn together.

    A draw that leaves a shape without runs is drawn again. None with a single seed, (0, P).
    """
    points = fitter.data.points
    seeds = sorted({point.seed for point in points})
    if min(len(by_seed(points, shape)) for shape in fitter.data.shapes) < 2:
        return np.empty((0, len(form.names)))
    random = np.random.default_rng(1)
    refits = []
    while len(refits) < REFITS:
        drawn = [point for seed in random.choice(seeds, len(seeds)) for point in points if point.seed == seed]
        if len({point.shape for point in drawn}) == len(fitter.data.shapes):
            refits.append(fitter.fit(form, drawn, [parameters]))
    return parameters + widening(fitter.data) * (np.array(refits) - parameters)


def fitted_parameters(form: Form, parameters: np.ndarray, refits: np.ndarray) -> dict[str, LawParameter]:
    """Each parameter by its name; the first three are fitted as logarithms."""
    by_name = {}
    for place, name in enumerate(form.names):
        fitted = float(parameters[place])
        value = fitted
        limits = None
        if len(refits):
            limits = list(interval(refits[:, place]))
        if place < 3:
            value = math.exp(fitted)
            if limits is not None:
                limits = list(map(math.exp, limits))
        by_name[name] = LawParameter(value=value, interval=limits, fitted=fitted)
    return by_name


def crossing_tokens(law: Law, shape: dict[str, float], other: dict[str, float], parameters: np.ndarray) -> np.ndarray:
    """ln tokens at which two shapes are equal, by parameters (…, P).

    −∞ where the first is worse at all budgets of the fit, +∞ where it is better at all of them.
    """
    low, high = law.ranges[TOKENS]
    logs = np.log([low, high])
    first = law.at(shape, low, parameters) - law.at(other, low, parameters)
    last = law.at(shape, high, parameters) - law.at(other, high, parameters)
    begins = first < 0
    crosses = np.sign(first) != np.sign(last)
    left = np.full(first.shape, logs[0])
    right = np.full(first.shape, logs[1])
    for _ in range(60):  # halving: the difference of two such curves has one root at most
        middle = (left + right) / 2
        tokens = np.exp(middle)
        difference = difference_at(law, shape, other, tokens, parameters)
        same = (difference < 0) == begins
        left = np.where(same, middle, left)
        right = np.where(same, right, middle)
    return np.where(crosses, right, np.where(begins, math.inf, -math.inf))


def difference_at(
    law: Law, shape: dict[str, float], other: dict[str, float], tokens: np.ndarray, parameters: np.ndarray
) -> np.ndarray:
    """The difference of two shapes, each set of parameters (R, P) at tokens of its own (R)."""
    pairs = zip(parameters.reshape(-1, parameters.shape[-1]), np.atleast_1d(tokens))
    differences = [law.at(shape, at, drawn) - law.at(other, at, drawn) for drawn, at in pairs]
    return np.array(differences).reshape(np.shape(tokens))


def crossing(law: Law, data: Data, shape: str, other: str) -> Crossing:
    """The budget at which two shapes are equal, with its interval."""
    sizes = [data.sizes[name] for name in (shape, other)]
    low, _ = law.ranges[TOKENS]
    if law.at(sizes[0], low, law.parameters) > law.at(sizes[1], low, law.parameters):
        shape, other = other, shape
        sizes.reverse()
    place = float(crossing_tokens(law, *sizes, law.parameters))
    if not math.isfinite(place):
        return Crossing(
            ahead_below=shape,
            ahead_above=shape,
            tokens=None,
            interval=None,
            other=other,
            sentence=f"{shape} and {other}: {NO_CROSSING}, {shape} ahead",
        )
    tokens = math.exp(place)
    limits = None
    if len(law.replicates):
        ends = np.quantile(crossing_tokens(law, *sizes, law.replicates), (0.025, 0.975), method="nearest")
        limits = list(map(tokens_within, ends))
    per_parameter = tokens / sizes[0]["parameters"]
    return Crossing(
        ahead_below=shape,
        ahead_above=other,
        tokens=tokens,
        interval=limits,
        other=other,
        tokens_per_parameter=per_parameter,
        sentence=(
            f"below {tokens:.3g} tokens ({limits_text(limits)}), {per_parameter:.2g} a "
            f"parameter of {shape} without embeddings, {shape} is ahead of {other}"
        ),
    )


def tokens_within(end: float) -> float | None:
    """The tokens of a logarithm; None of one beyond the fit."""
    if not math.isfinite(end):
        return None
    return math.exp(end)


def limits_text(limits: Sequence[float | None] | None) -> str:
    """An interval of tokens in words; a limit of None is beyond the fit."""
    if limits is None:
        return "one seed, no interval"
    ends = []
    for limit in limits:
        ends.append("beyond the fit" if limit is None else f"{limit:.3g}")
    return " to ".join(ends)


# The whole


def check_enough(data: Data, terms: Sequence[str], where: str) -> None:
    """Raises GridError where there are too few finished shapes, budgets or cells for a law with these terms."""
    budgets = len({point.tokens for point in data.points})
    parameters = MIN_BUDGETS + len(terms)
    have = f"{data.cells} finished cells of {len(data.shapes)} shapes and {budgets} budgets"
    if data.cells < parameters or len(data.shapes) < MIN_SHAPES or budgets < MIN_BUDGETS:
        need = f"{MIN_SHAPES} shapes, {MIN_BUDGETS} budgets and {parameters} cells, as many as parameters, or more"
        raise GridError(f"{where}: expected {need}, got {have}")


def fit_law(grid: Grid, data: Data) -> LawFile:
    """The law of a grid's data. Raises GridError where there are too few finished cells."""
    where = str(grid.path("results.csv"))
    check_enough(data, (), where)
    terms, others = independent(data.sizes, data.shapes)
    check_enough(data, terms, where)
    fitter = Fitter(data)
    errors = errors_of(leave_one_out(fitter), data)
    form = Search(fitter, data.points).best()
    found = is_found(form, errors)
    if not found:
        form = Form()
    parameters = fit_from_tokens(fitter, form, data.points)
    refits = replicates(fitter, form, parameters)
    bounded = [term for term in TERMS if not others.get(term)]  # the others are bounded by what they follow from
    ranges = {term: extent([data.sizes[shape][term] for shape in data.shapes]) for term in bounded}
    ranges[TOKENS] = extent(fitter.budgets)
    seeds = sorted({point.seed for point in data.points})
    fitted = LawFile(
        grid=Path(grid.output_dir).name,
        found=found,
        sentence=sentence(found, form, errors, data.quality),
        quality=data.quality,
        family=data.family,
        evidence=f"{len(data.shapes)} shapes, {len(fitter.budgets)} budgets, {len(seeds)} seeds",
        runs=len(data.points),
        failed=data.failed,
        seeds=seeds,
        error=errors,
        form=LawForm(floor=list(form.floor), scale=list(form.scale)),
        without_effect=[term for term in terms if term not in form.terms],
        not_fitted=not_fitted(others),
        parameters=fitted_parameters(form, parameters, refits),
        reference=fitter.reference,
        ranges=ranges,
        ties=[LawTie(**asdict(tie)) for tie in ties(others, data.sizes, data.shapes)],
        shapes={shape: data.sizes[shape] for shape in data.shapes},
        crossings=[],
        replicates=[[float(f"{value:.6g}") for value in refit] for refit in refits],
    )
    if found:
        law = law_of(fitted.document())
        fitted.crossings = [crossing(law, data, *pair) for pair in combinations(data.shapes, 2)]
    return fitted


def extent(values: Sequence[float]) -> list[float]:
    """The smallest and the largest value."""
    return [min(values), max(values)]


def sentence(found: bool, form: Form, errors: LawErrors, quality: str) -> str:
    """Whether a law was found, with both errors."""
    low, high = errors.interval
    compared = (
        f"of a shape that was left out, {quality} is predicted within {errors.law:.4f}, by tokens alone within "
        f"{errors.tokens_only:.4f}, difference {errors.difference:+.4f} ({low:+.4f} to {high:+.4f})"
    )
    if not found:
        return f"{NO_LAW}: {compared}"
    return f"a law of {', '.join(TERM_NAMES.get(term, term) for term in form.terms)}: {compared}"


def law(file: Path) -> LawFile:
    """Fits the law of a grid file's finished rows; writes `law.json` and its figure beside them; returns the law.

    Raises:
        GridError: the grid has no branches, or too few finished cells.
    """
    grid = load_grid(file)
    if grid.branches is None:
        raise GridError(f"{file}: branches: missing, expected several budgets of each shape")
    data = read_data(load_results(grid))
    fitted = fit_law(grid, data)
    write_json(grid.path(LAW), fitted.document())
    write_bytes(grid.path(FIGURE), law_figure(fitted, mean_points(data.points)))
    return fitted


def write_law(file: Path) -> None:
    """Fits the law of a grid's file, writes it beside the grid's rows, and says what was found.

    Raises:
        ValueError, OSError: the grid is refused, or its finished rows are too few.
    """
    fitted = law(file)
    for size in fitted.not_fitted:
        print(f"{size.term}: not fitted, {size.reason}", file=sys.stderr)
    print(fitted.sentence, file=sys.stderr)
    for pair in fitted.crossings:
        print(pair.sentence, file=sys.stderr)
    print(load_grid(file).path(LAW))
