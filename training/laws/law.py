"""`leaner law GRID.yaml`: a law of shape, fitted on the finished cells of a grid with branches.

A law gives the quality by the sizes of a shape and its training tokens; `fit.py` has the formula. A file each:

- `data.py`: the finished runs of all branches.
- `terms.py`: which sizes vary independently of each other over the shapes.
- `search.py`: which of them the law depends on.
- `validation.py`: whether it predicts shapes that were left out better than the curve over tokens alone.
- `fit.py`: its parameters, and in `refits.py` their intervals over the seeds.
- `crossings.py`: at which budget two shapes are equal by it.

`law.json` and its figure are written beside the grid's rows. Where no law was found they hold the curve over tokens
alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from modeling_leaner.planning.laws import COMMON, LAW_FILE, TERM_NAMES, TOKENS, Form, law_of
from modeling_leaner.support.documents import write_json
from modeling_leaner.support.files import write_bytes

from ..experiments.branches import step_of
from ..experiments.grid import Grid, GridError, load_grid
from ..experiments.grid_results import load_results
from ..records import LawErrors, LawFile, LawForm, LawTie
from .crossings import crossing
from .data import LawData, cell_means, read_data
from .figure import FIGURE, law_figure
from .fit import TOKENS_ONLY, Fitter
from .refits import fitted_parameters, replicates
from .search import Search
from .terms import independent_terms, not_fitted, ties
from .validation import errors_of, is_found, leave_each_out


NO_LAW = "no law of shape found"
MIN_SHAPES = 4  # two are left where one is predicted and another is left out of the search
MIN_BUDGETS = len(COMMON)  # floor, scale and exponent


def check_enough(data: LawData, terms: Sequence[str], where: str) -> None:
    """Raises GridError where there are too few finished shapes, budgets or cells for a law with these terms."""
    if not data.points:
        raise GridError(f"{where}: no run of a branch has finished yet")
    budgets = len({point.tokens for point in data.points})
    parameters = len(COMMON) + len(terms)
    have = f"{data.cell_count} finished cells of {len(data.shapes)} shapes and {budgets} budgets"
    if data.cell_count < parameters or len(data.shapes) < MIN_SHAPES or budgets < MIN_BUDGETS:
        need = f"{MIN_SHAPES} shapes, {MIN_BUDGETS} budgets and {parameters} cells, as many as parameters, or more"
        raise GridError(f"{where}: expected {need}, got {have}")
    least = min(point.quality for point in data.points)
    if least <= 0:
        raise GridError(f"{where}: {data.quality} is {least:g} in a run, expected above 0: a law takes its logarithm")


def fit_law(grid: Grid, data: LawData) -> LawFile:
    """The law of a grid's data. Raises GridError where there are too few finished cells."""
    where = str(grid.path("results.csv"))
    check_enough(data, (), where)
    terms, dependent = independent_terms(data.sizes, data.shapes)
    check_enough(data, terms, where)
    fitter = Fitter(data)
    errors = errors_of(leave_each_out(fitter), data)
    form = Search(fitter, data.points).best()
    found = is_found(form, errors)
    if not found:
        form = TOKENS_ONLY
    parameters = fitter.fit_anew(form, data.points)
    refits = replicates(fitter, form, parameters)
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
        not_fitted=not_fitted(dependent),
        parameters=fitted_parameters(form, parameters, refits),
        reference=fitter.reference,
        ranges=ranges(data, fitter.budgets),
        ties=[LawTie(**asdict(tie)) for tie in ties(dependent, data.sizes, data.shapes)],
        shapes={shape: data.sizes[shape] for shape in data.shapes},
        crossings=[],
        replicates=[[float(f"{value:.6g}") for value in refit] for refit in refits],
    )
    if found:
        law = law_of(fitted.document())
        fitted.crossings = [crossing(law, data.sizes, *pair) for pair in combinations(data.shapes, 2)]
    return fitted


def ranges(data: LawData, budgets: Sequence[int]) -> dict[str, list[float]]:
    """The least and the greatest of each size and of the tokens, where the law holds.

    A size that all shapes share has one value as its range. One that follows from others is bounded by its tie, too.
    """
    measured: dict[str, Sequence[float]] = {}
    for size in data.sizes[data.shapes[0]]:
        measured[size] = [data.sizes[shape][size] for shape in data.shapes]
    measured[TOKENS] = budgets
    return {key: [min(values), max(values)] for key, values in measured.items()}


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


def fit_grid(grid: Grid) -> LawFile:
    """Fits the law of a grid's finished rows; writes `law.json` and its figure beside them; returns the law.

    Raises:
        GridError: the grid has too few finished cells.
    """
    data = read_data(load_results(grid))
    fitted = fit_law(grid, data)
    write_json(grid.path(LAW_FILE), fitted.document())
    write_bytes(grid.path(FIGURE), law_figure(fitted, cell_means(data.points)))
    return fitted


def write_law(file: Path) -> None:
    """Fits the law of a grid's file, writes it beside the grid's rows, and says what was found.

    Raises:
        ValueError, OSError: the grid is refused, has no branches, or its finished rows are too few.
    """
    grid = load_grid(file)
    if grid.branches is None:
        raise GridError(f"{file}: branches: missing, expected several budgets of each shape")
    if step_of(grid, grid.baseline) is None:
        raise GridError(f"{file}: branches: expected a task whose rows are all as long, got recipe {grid.recipe}")
    fitted = fit_grid(grid)
    for size in fitted.not_fitted:
        print(f"{size.term}: not fitted, {size.reason}", file=sys.stderr)
    print(fitted.sentence, file=sys.stderr)
    for pair in fitted.crossings:
        print(pair.sentence, file=sys.stderr)
    print(grid.path(LAW_FILE))
