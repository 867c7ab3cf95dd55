"""`leaner plan`: from its options to the planner, to measurements where they are wanted, and to what is printed."""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from .memory import BYTES, StepSetting
from .plan_figure import draw_plan, figure_files
from .plan_report import plan_document, plan_text
from .planner import (
    MOST_INPUT,
    Budget,
    Candidate,
    Dials,
    NoShapeFits,
    cost_of,
    describe,
    flops_unit,
    free_dials,
    parse_size,
    plan,
    shape_file,
    with_inputs,
    write_shape,
)
from .shapes import CONFIG_CLASSES, family_of, load_config, load_shape, shape_names


MEASURED_ROWS = 6
LATENCY_ROUNDS, MARGIN = 3, 0.85  # times vary: aim below the limit


def measured(candidates: list[Candidate], setting: StepSetting, first: Candidate | None) -> list[dict[str, float]]:
    """Measurements on this machine, the starting point's first."""
    from .training.measure_shapes import measure

    return measure([each.config for each in (*([first] if first else []), *candidates)], setting)


def plan_for_latency(
    limit: float, budget: Budget, dials: Dials, rows: int, **question
) -> tuple[list[Candidate], list[dict[str, float]]]:
    """Shapes whose forward pass of one item takes about, but not above, `limit` seconds here; their measurements.

    Time is no arithmetic: a ceiling of FLOPs stands for it, which each shape's measured time corrects three times,
    and up to three times more where the measurements have every shape above the limit: the machine has got slower.
    Raises NoShapeFits, with the nearest, where that does not help.
    """
    from .training.measure_shapes import latencies

    def corrected(candidates: list[Candidate], seconds: list[float]) -> list[Candidate]:
        found = []
        for each, time in zip(candidates, seconds):
            ceiling = min(highest, each.flops_unit * min(max(MARGIN * limit / time, 0.2), 5))
            fixed = replace(dials, head_dim=each.config.head_dim)
            if free_dials(dials) != ["layers"]:  # else the depth is what is solved
                fixed = replace(fixed, layers=each.config.num_hidden_layers)
            with suppress(NoShapeFits):  # the smallest of this depth is too slow
                found += plan(budget=replace(budget, flops=ceiling), dials=fixed, **question)
        return found

    setting, base = question["setting"], question["base"]
    rate = flops_unit(base, base.count_flops(setting.length)) / latencies([base], setting)[0]
    highest = budget.flops or float("inf")
    ceiling = replace(budget, flops=min(highest, MARGIN * limit * rate))
    try:
        candidates = plan(budget=ceiling, dials=dials, rows=rows, **question)
    except NoShapeFits as error:
        if ceiling.flops == highest or not (error.goal or "").startswith("--flops"):
            raise
        candidates = [cost_of(error.nearest, setting)]  # nobody gave these FLOPs: its time says whether it fits
    for _ in range(LATENCY_ROUNDS):
        candidates = corrected(candidates, latencies([each.config for each in candidates], setting)) or candidates
    measurements = measured(candidates, setting, None)
    for _ in range(LATENCY_ROUNDS):
        seconds = [row["latency_s"] for row in measurements]
        smaller = corrected(candidates, seconds) if min(seconds) > limit else []
        if not smaller:
            break
        candidates, measurements = smaller, measured(smaller, setting, None)
    return within_latency(limit, candidates, measurements)


def within_latency(
    limit: float, candidates: list[Candidate], measurements: list[dict[str, float]]
) -> tuple[list[Candidate], list[dict[str, float]]]:
    """Those that keep the limit, and their measurements; raises NoShapeFits, with the nearest, where none does."""
    rows = list(zip(candidates, measurements))
    kept = [(each, row) for each, row in rows if row["latency_s"] <= limit]
    if not kept:
        each, row = min(rows, key=lambda pair: pair[1]["latency_s"])
        nearest, takes = describe(each.config), f"takes {1e3 * row['latency_s']:.2f}ms"
        far = f"{row['latency_s'] / limit:.2f} times --latency {1e3 * limit:g}ms"
        raise NoShapeFits(f"no shape that was measured fits: the nearest, {nearest}, {takes}, {far}")
    return [each for each, _ in kept], [row for _, row in kept]


def known(name: str) -> str:
    """The name as it is; raises ValueError, with near ones, for a name that looks registered and is not."""
    if name.split("/")[0] in CONFIG_CLASSES and name not in shape_names() and not Path(name).exists():
        near = " or ".join(get_close_matches(name, shape_names(), cutoff=0.5)) or "one that `leaner shapes` lists"
        raise ValueError(f"unknown shape; did you mean {near}?")
    return name


@dataclass(frozen=True)
class Options:
    """The options of `leaner plan`, as they were given."""

    family: str | None
    params: str | None
    flops: str | None
    memory: str | None
    latency: str | None
    like: str | None
    equal: str | None
    layers: int | None
    width: int | None
    heads: int | None
    head_dim: int | None
    mlp: int | None
    mlp_ratio: float | None
    length: int | None
    image_size: int | None
    patch_size: int | None
    vocab_size: int | None
    batch: int
    dtype: str
    attention: str
    device: str
    rows: int | None
    measure: bool
    write: str | None
    pick: int | None
    plot: str | None
    as_json: bool

    def __post_init__(self):
        """Raises ValueError that names the flag and what was expected."""
        for name, choices in (
            ("family", (*CONFIG_CLASSES, None)),
            ("equal", ("params", "flops", None)),
            ("dtype", tuple(BYTES)),
            ("attention", ("sdpa", "eager")),
            ("device", ("cpu", "gpu")),
        ):
            if getattr(self, name) not in choices:
                expected = ", ".join(filter(None, choices))
                raise ValueError(f"--{name} {getattr(self, name)}: expected one of {expected}")
        if self.like is not None and not self.like.strip():
            raise ValueError("--like '': expected a shape, config file, folder or Hub id")
        if self.family is None and self.like is None:
            raise ValueError(f"--family: expected one of {', '.join(CONFIG_CLASSES)}, or --like SHAPE")
        if self.pick is not None and self.write is None:
            raise ValueError(f"--pick {self.pick}: is the row that --write NAME saves; expected both")
        if self.batch > MOST_INPUT:
            raise ValueError(f"--batch {self.batch}: expected at most {MOST_INPUT}")
        for name in ("batch", "rows", "pick"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: expected a number above 0")
        if self.latency is not None and not self.measure:
            raise ValueError(f"--latency {self.latency}: needs --measure, for time is measured on this machine")

    def size(self, name: str, unit: str = "") -> float | None:
        """The number of a budget."""
        text = getattr(self, name)
        return None if text is None else parse_size(f"--{name}", text, unit)

    @property
    def dials(self) -> Dials:
        return Dials(self.layers, self.width, self.heads, self.head_dim, self.mlp, self.mlp_ratio)

    def question(self) -> dict[str, object]:
        """Arguments of `plan` but for budget and dials: the shapes that give everything else, for the data given."""
        inputs = (self.length, self.image_size, self.vocab_size, self.patch_size)
        try:
            start = with_inputs(load_config(known(self.like)), *inputs) if self.like else None
        except ValueError as error:
            raise ValueError(f"--like {self.like}: {error}") from error
        family = self.family or family_of(start)
        if start is not None and family_of(start) != family:
            raise ValueError(f"--like {self.like}: a {family_of(start)} shape, but --family is {family}")
        base = start or with_inputs(load_shape(f"{family}/base"), *inputs)
        setting = StepSetting(self.batch, self.length, self.dtype, self.attention, self.device)
        rows = MEASURED_ROWS if self.measure and self.rows is None else self.rows
        return {"family": family, "setting": setting, "start": start, "base": base, "rows": rows}


def run(options: Options) -> None:
    """Answers, and prints the answer. Raises ValueError that names the flag."""
    limit = options.size("latency", "s")
    budget = Budget(options.size("params"), options.size("flops"), options.size("memory", "B"), options.equal)
    question = options.question()
    setting, start = question["setting"], question["start"]
    if options.plot is not None:  # both before anything is written or takes time
        figure_files(options.plot)
    if options.write is not None:
        shape_file(question["family"], options.write)
    first, measurements = None if start is None else cost_of(start, setting), None
    if limit is not None and budget.parameters is None and start is None:
        candidates, measurements = plan_for_latency(limit, budget, options.dials, **question)
    else:
        candidates = plan(budget=budget, dials=options.dials, **question)
        if options.measure:
            measurements = measured(candidates, setting, first)
        if limit is not None:
            head = 0 if first is None else 1
            candidates, rows = within_latency(limit, candidates, measurements[head:])
            measurements = measurements[:head] + rows
    row = options.pick or 1
    if row > len(candidates):
        raise ValueError(f"--pick {row}: expected a row from 1 to {len(candidates)}")
    done = []
    if options.write is not None:
        done.append(f"row {row} → {write_shape(candidates[row - 1].config, options.write)}")
    if options.plot is not None:
        done += [f"drawn: {path}" for path in draw_plan(candidates, setting, options.plot, start)]
    if options.as_json:
        say(json.dumps(plan_document(candidates, setting, first, measurements), indent=1))
    else:
        say(plan_text(candidates, setting, first, measurements, done))


def say(text: str) -> None:
    """Prints, with ? for what the terminal cannot show: files are written by then, and nothing may fail any more."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
