"""`leaner plan`: reads the options, solves, measures if asked to, writes files, and prints."""

import json
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from ..configuration_leaner import LeanConfig
from ..family import FAMILIES
from ..files import free_path, write_new
from ..planning.costs import StepSetting, training_flops
from ..planning.solver import (
    Budget,
    Candidate,
    Dials,
    NoShapeFits,
    cost_of,
    describe,
    fields_of,
    flops_per_unit,
    heads_by_layer,
    plan,
    spread,
    with_inputs,
)
from ..planning.tables import Measurement, plan_document, plan_text, recommended
from ..shapes import family_of, load_config, load_shape


ROWS = 6
ROUNDS = 3  # corrections of shapes whose latency is measured
MARGIN = 0.85  # times vary: aim below the limit
MOST_FIRST_STEPS = 100
FIRST_FLOPS = 1.2e13  # two minutes of 100 GFLOP a second, as a laptop's processor does
NOT_AGAIN = ("--measure", "--write", "--pick", "--advice", "--json")  # leave the rows as they are


@dataclass(frozen=True)
class Question:
    """What shapes are asked for; the arguments of `plan` of the same names."""

    family: str
    budget: Budget
    dials: Dials
    setting: StepSetting
    start: LeanConfig | None
    base: LeanConfig

    def answer(self, budget: Budget | None = None, dials: Dials | None = None) -> list[Candidate]:
        """All shapes that fit. Raises ValueError and NoShapeFits as `plan` does."""
        return plan(self.family, budget or self.budget, dials or self.dials, self.setting, self.start, self.base)

    def measured(self, candidates: list[Candidate]) -> list[Measurement]:
        """Measurements on this machine, the starting point's first."""
        from ..training.benchmarking import measure

        starts = [] if self.start is None else [self.start]
        return measure([*starts, *(candidate.config for candidate in candidates)], self.setting)


def question_of(
    family: str | None, like: str | None, budget: Budget, dials: Dials, setting: StepSetting, **inputs: int | None
) -> Question:
    """`inputs` as of `with_inputs`, without the length.

    Raises ValueError that names the flag if there is neither family nor start, or they do not belong together.
    """
    if like is None:
        if family is None:
            raise ValueError(f"--family: expected one of {', '.join(FAMILIES)}, or --like SHAPE")
        base = with_inputs(load_shape(f"{family}/base"), length=setting.length, **inputs)
        return Question(family, budget, dials, setting, None, base)
    try:
        start = with_inputs(load_config(like), length=setting.length, **inputs)
    except ValueError as error:
        raise ValueError(f"--like {like}: {error}") from error
    if family not in (None, family_of(start)):
        raise ValueError(f"--like {like}: a {family_of(start)} shape, but --family is {family}")
    return Question(family_of(start), budget, dials, setting, start, start)


def within_latency(question: Question, limit: float) -> tuple[list[Candidate], list[Measurement]]:
    """Shapes whose forward pass of one item takes at most `limit` seconds on this machine, with their measurements.

    Time cannot be computed, so a ceiling of FLOPs stands for it, which each shape's measured time corrects three
    times; shapes of a size to reach are only measured. Raises NoShapeFits, with the nearest, if there is none.
    """
    if question.budget.parameters is not None or question.start is not None:
        candidates = spread(question.answer(), ROWS)
    else:
        candidates = quick_shapes(question, limit)
    measurements = question.measured(candidates)
    starts = measurements[: len(measurements) - len(candidates)]
    pairs = list(zip(candidates, measurements[len(starts) :]))
    quick = [pair for pair in pairs if pair[1]["latency_s"] <= limit]
    if not quick:
        nearest, measurement = min(pairs, key=lambda pair: pair[1]["latency_s"])
        least = measurement["latency_s"]
        takes = f"takes {1e3 * least:.2f}ms, {least / limit:.2f} times --latency {1e3 * limit:g}ms"
        raise NoShapeFits(f"no shape that was measured fits: the nearest, {describe(nearest.config)}, {takes}")
    return [candidate for candidate, _ in quick], [*starts, *(measurement for _, measurement in quick)]


def quick_shapes(question: Question, limit: float) -> list[Candidate]:
    """Shapes by the FLOPs that the measured time of the base allows, then by those that their own time allows."""
    from ..training.benchmarking import latencies

    base = question.base
    highest = question.budget.flops or inf
    if question.budget.flops is not None:
        question.answer()  # refuses a ceiling that nothing meets
    (base_seconds,) = latencies([base], question.setting)
    flops_per_second = flops_per_unit(base, base.count_flops(question.setting.length)) / base_seconds
    budget = replace(question.budget, flops=min(highest, MARGIN * limit * flops_per_second))
    try:
        candidates = spread(question.answer(budget), ROWS)
    except NoShapeFits as error:
        if error.nearest is None:
            raise
        candidates = [cost_of(error.nearest, question.setting)]  # nobody gave this ceiling: its own time decides
    for _ in range(ROUNDS):
        times = latencies([candidate.config for candidate in candidates], question.setting)
        corrected = []
        for candidate, seconds in zip(candidates, times):
            factor = min(max(MARGIN * limit / seconds, 0.2), 5)
            budget = replace(question.budget, flops=min(highest, candidate.flops_per_unit * factor))
            dials = replace(question.dials, head_dim=candidate.config.head_dim)
            if dials.free != ["layers"]:  # else the depth is what is solved
                dials = replace(dials, layers=candidate.config.num_hidden_layers)
            with suppress(NoShapeFits):  # the smallest of this depth is too slow
                corrected += question.answer(budget, dials)
        candidates = corrected or candidates
    return candidates


# The file of a shape, complete as those of configuration/ are


def shape_file(name: str) -> Path:
    """NAME.json in the working folder, or the path that NAME is. Raises ValueError if it cannot be written."""
    path = Path(name) if name.lower().endswith(".json") else Path(f"{name}.json")
    if "/" not in name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise ValueError(f"--write {name!r}: expected letters, digits, dots and dashes, or a path")
    return free_path(f"--write {name}", path)


def write_shape(config: LeanConfig, name: str) -> Path:
    """Writes a complete shape file and returns its path, `shape_file`; raises ValueError as that does."""
    path = shape_file(name)
    head = type(config).__name__.removesuffix("Config") + config.task_heads[0]
    document = {"model_type": config.model_type, "architectures": [head], **fields_of(config)}
    if config.per_layer_attributes:
        document["per_layer_config"] = heads_by_layer(config.heads_per_layer)
    write_new(f"--write {name}", path, (json.dumps(document, indent=2) + "\n").encode())
    return path


def training_command(config: LeanConfig, path: Path) -> str:
    """A command that trains a shape file for a few minutes, on data that every installation has."""
    recipe = FAMILIES[family_of(config)].first_recipe
    length = min(recipe.tokens or config.default_length, config.default_length)
    steps = int(min(max(FIRST_FLOPS / (recipe.rows * training_flops(config, length)), 1), MOST_FIRST_STEPS))
    return shlex.join(["leaner", "train", recipe.name, "--shape", str(path), "--max_steps", str(steps)])


def run(
    question: Question,
    arguments: list[str],
    limit: float | None,
    measure: bool,
    advice: bool,
    write: str | None,
    pick: int | None,
    as_json: bool,
) -> None:
    """Solves, measures, writes and prints; `arguments` are those that show the same rows again."""
    if write is not None:
        shape_file(write)  # before anything takes time
    measurements = None
    if limit is not None:
        candidates, measurements = within_latency(question, limit)
        fitting = len(candidates)
    else:
        candidates = question.answer()
        fitting = len(candidates)
        if measure or not as_json:
            candidates = spread(candidates, ROWS)
        if measure:
            measurements = question.measured(candidates)
    start = None if question.start is None else cost_of(question.start, question.setting)
    row = pick or (recommended(candidates) or 0) + 1
    if row > len(candidates):
        raise ValueError(f"--pick {pick}: expected a row from 1 to {len(candidates)}")
    config = candidates[row - 1].config
    if write is None:
        path = free_name(f"{question.family}-{config.num_hidden_layers}x{config.hidden_size}")
        again = shlex.join(["leaner", "plan", *arguments, "--pick", str(row), "--write", path.stem])
        ending = [f"Save row {row}:  {again}"]
    else:
        path = write_shape(config, write)
        ending = [f"Saved row {row}: {path}"]
    if as_json:
        show(json.dumps(plan_document(candidates, question.setting, start, measurements), indent=1))
        return
    text = plan_text(candidates, question.setting, fitting, start, measurements, advice)
    ending.append(f"Try it:      {training_command(config, path)}   (a few minutes, no download)")
    show("\n".join([text, "", *ending]))


def free_name(name: str) -> Path:
    """NAME.json, or NAME-2.json and so on if that exists."""
    path = Path(f"{name}.json")
    number = 1
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}.json")
    return path


def show(text: str) -> None:
    """Prints, with ? for what the terminal cannot show: files are written by then, and nothing may fail any more."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
