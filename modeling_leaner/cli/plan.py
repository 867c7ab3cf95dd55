"""`leaner plan`: reads the options, solves, measures where asked to, writes files, and prints."""

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..planning.figure import draw_plan, figure_files
from ..planning.memory import BYTES, StepSetting
from ..planning.solver import (
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
    spread,
    with_inputs,
    write_shape,
)
from ..planning.tables import WIDTH, Heading, plan_document, plan_text
from ..registry import FAMILIES
from ..shapes import family_of, load_config, load_shape
from ..support.suggest import did_you_mean


DEFAULT_ROWS = 6
NOT_AGAIN = ("measure", "write", "pick", "plot", "advice", "as_json")  # options that leave the rows as they are
FIRST_RECIPES = {"vit": "digits", "bert": "listops-short", "gpt": "python-docs"}  # no download
LATENCY_ROUNDS, MARGIN = 3, 0.85  # times vary: aim below the limit


def measured(candidates: list[Candidate], setting: StepSetting, first: Candidate | None) -> list[dict[str, float]]:
    """Measurements on this machine, the starting point's first."""
    from ..training.measure_shapes import measure

    configs = [each.config for each in candidates]
    if first is not None:
        configs.insert(0, first.config)
    return measure(configs, setting)


def plan_for_latency(
    limit: float, budget: Budget, dials: Dials, rows: int, **question
) -> tuple[list[Candidate], list[dict[str, float]]]:
    """Shapes whose forward pass of one item takes about, but not above, `limit` seconds here; their measurements.

    Time is no arithmetic: a ceiling of FLOPs stands for it, which each shape's measured time corrects three times,
    and up to three times more where the measurements have every shape above the limit: the machine has got slower.
    Raises NoShapeFits, with the nearest, where that does not help.
    """
    from ..training.measure_shapes import latencies

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


@dataclass(frozen=True)
class Options:
    """The options of `leaner plan`; `given` names those on the command line, the others have their defaults."""

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
    advice: bool
    given: tuple[str, ...]

    def __post_init__(self):
        """Raises ValueError that names the flag and what was expected."""
        for name, choices in (
            ("family", (*FAMILIES, None)),
            ("equal", ("params", "flops", None)),
            ("dtype", tuple(BYTES)),
            ("attention", ("sdpa", "eager")),
            ("device", ("cpu", "gpu")),
        ):
            if getattr(self, name) not in choices:
                expected = list(filter(None, choices))
                hint = did_you_mean(getattr(self, name), expected)
                raise ValueError(f"--{name} {getattr(self, name)}: expected one of {', '.join(expected)}{hint}")
        if self.like is not None and not self.like.strip():
            raise ValueError("--like '': expected a shape, config file, folder or Hub id")
        if self.family is None and self.like is None:
            raise ValueError(f"--family: expected one of {', '.join(FAMILIES)}, or --like SHAPE")
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
        """The arguments of `plan` but for budget and dials: family, setting, starting point, base and rows."""
        inputs = (self.length, self.image_size, self.vocab_size, self.patch_size)
        try:
            start = with_inputs(load_config(self.like), *inputs) if self.like else None
        except ValueError as error:
            raise ValueError(f"--like {self.like}: {error}") from error
        family = self.family or family_of(start)
        if start is not None and family_of(start) != family:
            raise ValueError(f"--like {self.like}: a {family_of(start)} shape, but --family is {family}")
        base = start or with_inputs(load_shape(f"{family}/base"), *inputs)
        setting = StepSetting(self.batch, self.length, self.dtype, self.attention, self.device)
        return {"family": family, "setting": setting, "start": start, "base": base, "rows": self.most_rows}

    @property
    def most_rows(self) -> int | None:
        """How many shapes to show at most: all in a JSON document that needs no measurement."""
        if self.rows is None and (self.measure or not self.as_json):
            return DEFAULT_ROWS
        return self.rows

    def command(self, *more: str) -> str:
        """The command line that shows these rows, without what it wrote and how it printed, and with `more`."""
        words = ["leaner", "plan"]
        for name in self.given:
            if name not in NOT_AGAIN:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        if self.latency is not None:
            words.append("--measure")
        return command_line([*words, *more])


@dataclass(frozen=True)
class Answer:
    """The shapes to show, how many there are in all, the starting point, and the measurements, its own first."""

    candidates: list[Candidate]
    fitting: int
    start: Candidate | None
    measurements: list[dict[str, float]] | None


def solve(options: Options, question: dict[str, object]) -> Answer:
    """Shapes that fit, measured where asked for. Raises ValueError that names the flag, and NoShapeFits."""
    setting, start, rows = question["setting"], question["start"], question["rows"]
    limit = options.size("latency", "s")
    budget = Budget(options.size("params"), options.size("flops"), options.size("memory", "B"), options.equal)
    if limit is not None and budget.parameters is None and start is None:
        candidates, measurements = plan_for_latency(limit, budget, options.dials, **question)
        return Answer(candidates, len(candidates), None, measurements)
    fitting = plan(budget=budget, dials=options.dials, **{**question, "rows": None})
    candidates = spread(fitting, rows)
    first = None if start is None else cost_of(start, setting)
    if not options.measure:
        return Answer(candidates, len(fitting), first, None)
    measurements = measured(candidates, setting, first)
    if limit is None:
        return Answer(candidates, len(fitting), first, measurements)
    of_start = measurements[: len(measurements) - len(candidates)]
    candidates, kept = within_latency(limit, candidates, measurements[len(of_start) :])
    return Answer(candidates, len(candidates), first, of_start + kept)


def run(options: Options) -> None:
    """Runs `leaner plan`: solve, measure, write, print. Raises ValueError that names the flag."""
    question = options.question()
    setting, start = question["setting"], question["start"]
    if options.plot is not None:  # both before anything is written or takes time
        figure_files(options.plot)
    if options.write is not None:
        shape_file(options.write)
    answer = solve(options, question)
    row = options.pick
    if row is None:
        row = 1
    if row > len(answer.candidates):
        raise ValueError(f"--pick {row}: expected a row from 1 to {len(answer.candidates)}")
    ending = []
    if options.write is None:
        ending += next_commands(options, answer, question["family"])
    else:
        path = write_shape(answer.candidates[row - 1].config, options.write)
        ending += [f"Saved: row {row}, as {path}", f"Train it: {training_command(question['family'], path)}"]
    if options.plot is not None:
        ending += [f"Drawn: {path}" for path in draw_plan(answer.candidates, setting, options.plot, start)]
    if options.as_json:
        document = plan_document(answer.candidates, setting, answer.start, answer.measurements)
        show(json.dumps(document, indent=1))
        return
    settings = ("length", "image_size", "patch_size", "vocab_size", "batch", "dtype", "attention", "device")
    assumed = [name for name in settings if name not in options.given]
    heading = Heading(answer.fitting, assumed, options.like)
    text = plan_text(answer.candidates, setting, answer.start, answer.measurements, heading, options.advice)
    show("\n".join([text, "", *ending]))


def command_line(words: list[str]) -> str:
    """The words as a shell reads them, on several lines where they are long, a flag beside its value."""
    groups: list[str] = []
    for word, before in zip(words, ["", *words]):
        if before.startswith("--") and not word.startswith("--"):
            groups[-1] += f" {shlex.quote(word)}"
        else:
            groups.append(shlex.quote(word))
    lines = [groups[0]]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) > WIDTH - len("  \\"):
            lines.append(f"  {group}")
        else:
            lines[-1] += f" {group}"
    return " \\\n".join(lines)


def training_command(family: str, path: Path) -> str:
    """A command that trains a shape file, on data that every installation has."""
    return command_line(["leaner", "train", FIRST_RECIPES[family], "--shape", str(path)])


def next_commands(options: Options, answer: Answer, family: str) -> list[str]:
    """How to save a row and to train it: here the middle one, for the rows are not ranked."""
    row = (len(answer.candidates) + 1) // 2
    config = answer.candidates[row - 1].config
    name = f"{family}-{config.num_hidden_layers}x{config.hidden_size}"
    taken = 1
    path = Path(f"{name}.json")
    while path.exists():
        taken += 1
        path = Path(f"{name}-{taken}.json")
    return [
        f"Next: save a row, here {row}, and train it, here by a recipe without download:",
        options.command("--pick", str(row), "--write", str(path)),
        training_command(family, path),
    ]


def show(text: str) -> None:
    """Prints, with ? for what the terminal cannot show: files are written by then, and nothing may fail any more."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
