"""`leaner plan`: reads the options, solves, measures where asked to, writes files, and prints."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from ..configuration_leaner import LeanConfig
from ..planning.dials import Dials, flag_of, with_inputs
from ..planning.figure import draw_plan, figure_files
from ..planning.flops import training_flops
from ..planning.goals import Budget
from ..planning.memory import StepSetting
from ..planning.shape_file import shape_file, write_shape
from ..planning.solver import Candidate, clamp, cost_of, spread
from ..planning.tables import WIDTH, Heading, plan_document, plan_text
from ..planning.units import parse_size
from ..registry import FAMILIES, FirstRecipe
from ..shapes import family_of, load_config, load_shape
from .checks import PLAN_SIZES
from .latency import LatencySearch, Measurement, Question, measured, within_latency


DEFAULT_ROWS = 6
NOT_AGAIN = ("measure", "write", "pick", "plot", "advice", "as_json")  # options that leave the rows as they are
SETTINGS = ("length", "image_size", "patch_size", "vocab_size", "batch", "dtype", "attention", "device")
MOST_FIRST_STEPS = 100
FIRST_FLOPS = 1.2e13  # two minutes of 100 GFLOP a second, as a laptop's processor does


@dataclass(frozen=True)
class Options:
    """The options of `leaner plan`, once `check_plan` let them pass; `given` names those on the command line."""

    family: str | None
    params: str | None
    flops: str | None
    memory: str | None
    latency: str | None
    like: str | None
    equal: str | None
    layers: int | None
    width: int | None
    heads: str | None
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
    total_heads: int | None
    recipe: str | None
    data: list[str]
    seed: int
    measure: bool
    write: str | None
    pick: int | None
    plot: str | None
    as_json: bool
    advice: bool
    given: tuple[str, ...]

    def size(self, name: str) -> float | None:
        """The number of a budget, with the unit of `parse_size`; None where it is not given."""
        text = getattr(self, name)
        if text is None:
            return None
        return parse_size(f"--{name}", text, PLAN_SIZES[name])

    @property
    def budget(self) -> Budget:
        return Budget(self.size("params"), self.size("flops"), self.size("memory"), self.equal)

    @property
    def dials(self) -> Dials:
        heads = None
        if self.heads is not None:
            heads = int(self.heads)
        return Dials(self.layers, self.width, heads, self.head_dim, self.mlp, self.mlp_ratio)

    def with_inputs(self, config: LeanConfig) -> LeanConfig:
        """The configuration for the data that the options name."""
        return with_inputs(config, self.length, self.image_size, self.vocab_size, self.patch_size)

    def starting_point(self) -> LeanConfig | None:
        """The shape of `--like`, for the data that the options name; raises ValueError that names the flag."""
        if self.like is None:
            return None
        try:
            start = self.with_inputs(load_config(self.like))
        except ValueError as error:
            raise ValueError(f"--like {self.like}: {error}") from error
        if self.family is not None and family_of(start) != self.family:
            raise ValueError(f"--like {self.like}: a {family_of(start)} shape, but --family is {self.family}")
        return start

    def question(self) -> Question:
        """Everything that the options ask for, but budget and dials."""
        start = self.starting_point()
        if start is None:
            family = self.family
            base = self.with_inputs(load_shape(f"{family}/base"))
        else:
            family = family_of(start)
            base = start
        setting = StepSetting(self.batch, self.length, self.dtype, self.attention, self.device)
        return Question(family, setting, start, base, self.most_rows)

    @property
    def most_rows(self) -> int | None:
        """How many shapes to show at most: all in a JSON document that needs no measurement."""
        if self.rows is None and (self.measure or not self.as_json):
            return DEFAULT_ROWS
        return self.rows

    def command(self, *more: str) -> str:
        """The command line that shows these rows, without what it wrote and how it printed, and with `more`."""
        arguments = ["leaner", "plan"]
        for name in self.given:
            if name not in NOT_AGAIN:
                arguments += [flag_of(name), str(getattr(self, name))]
        if self.latency is not None:
            arguments.append("--measure")
        return command_line([*arguments, *more])


@dataclass(frozen=True)
class Answer:
    """The shapes to show, how many there are in all, the starting point, and the measurements, its own first."""

    candidates: list[Candidate]
    fitting: int
    start: Candidate | None
    measurements: list[Measurement] | None

    def row(self, number: int) -> Candidate:
        """A shape by its printed row; raises ValueError where there is no such row."""
        if number > len(self.candidates):
            raise ValueError(f"--pick {number}: expected a row from 1 to {len(self.candidates)}")
        return self.candidates[number - 1]


def solve(options: Options, question: Question) -> Answer:
    """Shapes that fit, measured where asked for. Raises ValueError that names the flag, and NoShapeFits."""
    limit = options.size("latency")
    budget = options.budget
    if limit is not None and budget.parameters is None and question.start is None:
        candidates, measurements = LatencySearch(limit, budget, options.dials, question).run()
        return Answer(candidates, len(candidates), None, measurements)
    fitting = question.answer(budget, options.dials, rows=None)
    candidates = spread(fitting, question.rows)
    start = None
    if question.start is not None:
        start = cost_of(question.start, question.setting)
    if not options.measure:
        return Answer(candidates, len(fitting), start, None)
    measurements = measured(candidates, question.setting, start)
    if limit is None:
        return Answer(candidates, len(fitting), start, measurements)
    of_start = []
    if start is not None:
        of_start = [measurements.pop(0)]
    kept, kept_measurements = within_latency(limit, candidates, measurements)
    return Answer(kept, len(kept), start, of_start + kept_measurements)


def run(options: Options) -> None:
    """Runs `leaner plan`: solve, measure, write, print. Raises ValueError that names the flag."""
    question = options.question()
    if options.plot is not None:  # both before anything is written or takes time
        figure_files(options.plot)
    if options.write is not None:
        shape_file(options.write)
    answer = solve(options, question)
    if options.write is None:
        ending = next_commands(options, answer, question.family)
    else:
        ending = save(options, answer, question.family)
    if options.plot is not None:
        paths = draw_plan(answer.candidates, question.setting, options.plot, question.start)
        ending += [f"Drawn: {path}" for path in paths]
    if options.as_json:
        document = plan_document(answer.candidates, question.setting, answer.start, answer.measurements)
        show(json.dumps(document, indent=1))
        return
    assumed = [name for name in SETTINGS if name not in options.given]
    heading = Heading(answer.fitting, assumed, options.like)
    text = plan_text(answer.candidates, question.setting, answer.start, answer.measurements, heading, options.advice)
    show("\n".join([text, "", *ending]))


def save(options: Options, answer: Answer, family: str) -> list[str]:
    """Writes the row of `--pick` to `--write`, and returns the lines that say so."""
    row = options.pick
    if row is None:
        row = 1
    config = answer.row(row).config
    path = write_shape(config, options.write)
    return [f"Saved: row {row}, as {path}", f"Train it: {training_command(family, config, path)}"]


def command_line(arguments: list[str]) -> str:
    """The arguments as a shell reads them, on several lines where they are long, a flag beside its value."""
    groups: list[str] = []
    for argument, before in zip(arguments, ["", *arguments]):
        if before.startswith("--") and not argument.startswith("--"):
            groups[-1] += f" {shlex.quote(argument)}"
        else:
            groups.append(shlex.quote(argument))
    lines = [groups[0]]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) > WIDTH - len("  \\"):
            lines.append(f"  {group}")
        else:
            lines[-1] += f" {group}"
    return " \\\n".join(lines)


def training_command(family: str, config: LeanConfig, path: Path) -> str:
    """A command that trains a shape file for a few minutes, on data that every installation has."""
    recipe = FAMILIES[family].first_recipe
    steps = first_steps(recipe, config)
    return command_line(["leaner", "train", recipe.name, "--shape", str(path), "--max_steps", str(steps)])


def first_steps(recipe: FirstRecipe, config: LeanConfig) -> int:
    """How many steps take about FIRST_FLOPS, at least one and at most MOST_FIRST_STEPS."""
    length = config.default_length
    if recipe.tokens is not None:
        length = min(recipe.tokens, length)
    flops_of_step = recipe.rows * training_flops(config, length)
    return int(clamp(FIRST_FLOPS / flops_of_step, 1, MOST_FIRST_STEPS))


def next_commands(options: Options, answer: Answer, family: str) -> list[str]:
    """How to save a row and to train it: here the middle one, for the rows are not ranked."""
    row = (len(answer.candidates) + 1) // 2
    config = answer.row(row).config
    name = f"{family}-{config.num_hidden_layers}x{config.hidden_size}"
    taken = 1
    path = Path(f"{name}.json")
    while path.exists():
        taken += 1
        path = Path(f"{name}-{taken}.json")
    return [
        f"Next: save a row, here {row}, and train it, here by a recipe without download; --max_steps ends that",
        "after a few minutes on a laptop, without it the recipe runs to its end:",
        options.command("--pick", str(row), "--write", str(path)),
        training_command(family, config, path),
    ]


def show(text: str) -> None:
    """Prints, with ? for what the terminal cannot show: files are written by then, and nothing may fail any more."""
    encoding = sys.stdout.encoding
    if encoding is None:
        encoding = "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
