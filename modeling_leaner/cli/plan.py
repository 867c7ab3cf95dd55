"""`leaner shapes` and `leaner plan`: what they compute, write and print."""

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import typer
from rich.table import Table

from ..configuration_leaner import LeanConfig
from ..family import FAMILIES
from ..files import free_path, write_new
from ..names import baseline_of, shape_names
from ..planning.costs import StepSetting, parse_size, training_flops
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
from ..shapes import family_of, heads_of, load_config, load_shape
from .command import dashed


ROWS = 6
ROUNDS = 3  # corrections of shapes whose latency is measured
MARGIN = 0.85  # times vary: aim below the limit
MOST_FIRST_STEPS = 100
FIRST_FLOPS = 1.2e13  # two minutes of 100 GFLOP a second, as a laptop's processor does
SAME_ROWS = ("measure", "write", "pick", "advice", "as_json")  # options that leave the rows as they are
CAPTION = "params: with the pretraining head. FLOPs: forward, matrix products, at length. KV: bf16."
COLUMNS = ("layers\n× width", "heads\n× size", "MLP", "params", "of\nbase", "at\nlength", "FLOPs\n/token")


# leaner shapes


def shape_rows(family: str | None) -> list[dict[str, object]]:
    """The counts of the named shapes of one family or of all; FLOPs are forward, at the stated length."""
    rows = []
    for name in shape_names():
        if family not in (None, name.split("/")[0]):
            continue
        config = load_shape(name)
        count, flops, baseline = config.count_parameters(), config.count_flops(), baseline_of(name)
        rows.append(
            {
                "shape": name,
                "layers": config.num_hidden_layers,
                "width": config.hidden_size,
                "heads": heads_of(config),
                "head_dim": config.head_dim,
                "mlp": config.intermediate_size,
                "parameters": count.total,
                "parameters_without_embeddings": count.without_embeddings,
                "parameters_over_baseline": baseline and count.total / load_shape(baseline).count_parameters().total,
                "length": flops.length,
                "flops_per_token": flops.forward / flops.length,
                "flops_per_sequence": flops.forward,
                "training_flops_per_sequence": training_flops(config),
                "kv_bytes_per_token": config.kv_bytes_per_token(),
            }
        )
    return rows


def shape_table(rows: list[dict[str, object]]) -> Table:
    """The rows for people, in 80 columns."""
    table = Table(caption=CAPTION, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("shape", no_wrap=True)
    for column in (*COLUMNS, "KV bytes\n/token"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        share = row["parameters_over_baseline"]
        cache = row["kv_bytes_per_token"]
        table.add_row(
            row["shape"],
            f"{row['layers']}×{row['width']}",
            f"{row['heads']}×{row['head_dim']}",
            str(row["mlp"]),
            f"{row['parameters'] / 1e6:.2f}M",
            "–" if share is None else f"{100 * share:.0f}%",
            str(row["length"]),
            f"{row['flops_per_token'] / 1e6:.1f}M",
            "–" if cache is None else f"{cache:,}",
        )
    return table


# leaner plan


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


def question_of(options: SimpleNamespace) -> Question:
    """Raises ValueError, naming the flag, if there is neither family nor start, or they do not belong together."""
    like, family = options.like, options.family
    if like is None and family is None:
        raise ValueError(f"--family: expected one of {', '.join(FAMILIES)}, or --like SHAPE")
    base = load_config(like or f"{family}/base")
    if family not in (None, family_of(base)):
        raise ValueError(f"--like {like}: a {family_of(base)} shape, but --family is {family}")
    inputs = ("length", "image_size", "patch_size", "vocab_size")
    base = with_inputs(base, **{name: getattr(options, name) for name in inputs})
    return Question(
        family_of(base),
        Budget(size_of(options, "params"), size_of(options, "flops"), size_of(options, "memory", "B")),
        Dials(options.layers, options.width, options.heads, options.head_dim, options.mlp),
        StepSetting(options.batch, options.length, options.dtype, options.attention, options.device),
        base if like else None,
        base,
    )


def size_of(options: SimpleNamespace, name: str, symbol: str = "") -> float | None:
    text = getattr(options, name)
    return None if text is None else parse_size(f"--{name}", text, symbol)


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


def run(context: typer.Context) -> None:
    """Solves, measures, writes and prints; the options are `context.params`."""
    options = SimpleNamespace(**context.params)
    limit = size_of(options, "latency", "s")
    question = question_of(options)
    if options.write is not None:
        shape_file(options.write)  # before anything takes time
    measurements = None
    if limit is not None:
        candidates, measurements = within_latency(question, limit)
        fitting = len(candidates)
    else:
        candidates = question.answer()
        fitting = len(candidates)
        if options.measure or not options.as_json:
            candidates = spread(candidates, ROWS)
        if options.measure:
            measurements = question.measured(candidates)
    start = None if question.start is None else cost_of(question.start, question.setting)
    row = options.pick or (recommended(candidates) or 0) + 1
    if row > len(candidates):
        raise ValueError(f"--pick {row}: expected a row from 1 to {len(candidates)}")
    config = candidates[row - 1].config
    if options.write is None:
        path = free_name(f"{question.family}-{config.num_hidden_layers}x{config.hidden_size}")
        given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]
        words = ["leaner", "plan"]
        for name in given:
            if name not in SAME_ROWS:
                words += [f"--{dashed(name)}", str(context.params[name])]
        saving = f"Save row {row}:  {shlex.join([*words, '--pick', str(row), '--write', path.stem])}"
    else:
        path = write_shape(config, options.write)
        saving = f"Saved row {row}: {path}"
    if options.as_json:
        print(json.dumps(plan_document(candidates, question.setting, start, measurements), indent=1))
        return
    print(plan_text(candidates, question.setting, fitting, start, measurements, options.advice))
    print(f"\n{saving}\nTry it:      {training_command(config, path)}   (a few minutes, no download)")


# The file of a shape, complete as those of configuration/ are


def shape_file(name: str) -> Path:
    """NAME.json in the working folder, or the path that NAME is. Raises ValueError if it cannot be written."""
    path = Path(name if name.lower().endswith(".json") else f"{name}.json")
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


def free_name(name: str) -> Path:
    """NAME.json, or NAME-2.json and so on if that exists."""
    path = Path(f"{name}.json")
    number = 1
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}.json")
    return path


def training_command(config: LeanConfig, path: Path) -> str:
    """A command that trains a shape file for a few minutes, on data that every installation has."""
    recipe = FAMILIES[family_of(config)].first_recipe
    length = min(recipe.tokens or config.default_length, config.default_length)
    steps = int(min(max(FIRST_FLOPS / (recipe.rows * training_flops(config, length)), 1), MOST_FIRST_STEPS))
    return shlex.join(["leaner", "train", recipe.name, "--shape", str(path), "--max_steps", str(steps)])
