"""A grid file: its keys, read and checked. What a sweep runs, and what a summary and a card say of it.

recipe: fashion-mnist               # name or path
shapes: [vit/tiny, vit/lean-tiny]   # names or paths
baseline: vit/tiny                  # one of them
seeds: [1, 2, 3]
seeds_of: {vit/lean-tiny: [1, 2]}   # fewer of them for some shapes; left out, all of them for all
learning_rates: [3e-4, 1e-3, 3e-3]  # with a single one there is nothing to tune
tuning: {seeds: [0, 4], holdout: 2000, extend: 3, overrides: {max_steps: 300}}  # in older files `seed: 0`
overrides: {max_steps: 600, warmup_steps: 60}  # settings of the training, the same for every run
branches: [1228800, 3072000]        # tokens at which one long run ends as well (`branches.py`); left out, none
contrasts: [[vit/lean-tiny, vit/tiny]]  # first minus second, fixed beforehand, corrected together; left out, none
unsound_tuning: why the rates that were chosen may not be the best; left out, the tuning has to be sound
output_dir: runs/sweeps/fashion     # left out, runs/sweeps/<name of the grid file>
data: what the rows are             # left out, the recipe's dataset; stated on the published cards
data_files: train=FOLDER/a.parquet  # the values of --data_files for a copy in FOLDER; left out, FOLDER alone
hub: true                           # whether the evaluation rows are those of the Hub's dataset; left out, false
publish: {vit/tiny: leanvit-tiny}   # folders of model_cards/ that `leaner publish` makes of the first seed
metric: accuracy                    # left out, the task's; or loss
start_from: runs/sweeps/pretrained  # left out, from scratch; output_dir of a grid of the same shapes
start_seed: 1                       # left out, each run's own; the seed in start_from whose weights all start from
cut_from: runs/parent               # a trained model, for cuts; left out, none
cuts: {runs/cut: {layers: 3}}       # folders among shapes made of it before the first run, see `cuts.py`
beside: runs/sweeps/short           # left out, none; output_dir of a grid whose cells the cards show too
length: 32                          # tokens that FLOPs and latency are of; left out, the longest that it trains on
margin: 0.01                        # of the non-inferiority test, in the metric's units
test: non-inferiority

A tuning is *sound* if what it chooses may be expected to hold in the runs that it is for: two seeds or more; rates
that are at most a factor of 2 apart; a quarter of the reported length or more; and the same schedule. The same
schedule is the same warm-up in steps, not as a share of a length that differs; the same lr_scheduler_type; and the
same lr_scheduler_kwargs, steps of decay among them. A cosine or a line to zero states no steps: it decays over the
whole of whatever length, and being of the same type is enough. A grid with branches is tuned at one of them,
`tuning: {tokens: 3072000}`: whole runs by the schedule of that branch, a fifth of which decays as in all of them.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from modeling_leaner.files import write_bytes
from modeling_leaner.names import shape_names
from modeling_leaner.terminal import did_you_mean

from ..reading import read_yaml
from ..records import ResultRow


SET_BY_SWEEP = ("shape", "seed", "learning_rate", "output_dir", "resume", "tuning_holdout")
# Once the grid has run:
MAY_GROW = ("shapes", "seeds", "learning_rates", "cuts")
MAY_CHANGE = "baseline output_dir beside publish data data_files hub length unsound_tuning seeds_of".split()

CUT_KEYS = ("layers", "keep", "heads", "total_heads", "intermediate_size")  # of `slim.Target`
PHASES = ("tune", "trunk", "report")  # of a sweep


class GridError(ValueError):
    """What is wrong with a grid file or its folder, in one line."""


def is_folder_name(value: object) -> bool:
    """Whether it may be the name of a folder of model_cards/."""
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9.-]*", value) is not None


def _that(holds: Callable[[Any], bool]) -> AfterValidator:
    """Refuses values for which a condition does not hold; `read_keys` words the message."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return AfterValidator(check)


def _differ(values: list) -> bool:
    return all(values.count(value) == 1 for value in values)


DIFFERENT = _that(_differ)
INCREASING = _that(lambda values: values == sorted(set(values)))
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[PositiveFloat, Field(strict=False)]  # 1e-3 is text in YAML 1.1
Names = Annotated[list[Text], Field(min_length=1), DIFFERENT]
Seeds = Annotated[list[NonNegativeInt], Field(min_length=1), DIFFERENT]
Rates = Annotated[list[Positive], Field(min_length=1), INCREASING]
Budgets = Annotated[list[PositiveInt], Field(min_length=1), INCREASING]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2), DIFFERENT]
Contrasts = Annotated[list[Pair], Field(min_length=1), DIFFERENT]
Settings = Annotated[
    dict[str, str | bool | int | float | list | dict],
    _that(lambda settings: settings.keys().isdisjoint(SET_BY_SWEEP)),
    _that(lambda settings: json.dumps(settings, allow_nan=False, default=str)),  # ValueError for NaN
]
CutKeys = Annotated[
    dict[str, PositiveInt | Seeds],
    _that(lambda cut: cut and set(cut) <= set(CUT_KEYS)),
    _that(lambda cut: all(isinstance(value, list) == (key == "keep") for key, value in cut.items())),
]
CopyFiles = Annotated[str, _that(lambda files: "FOLDER" in files)]
FolderNames = Annotated[
    dict[str, str],
    _that(lambda names: all(is_folder_name(name) and name != "grids" for name in names.values())),
    _that(lambda names: _differ([*names.values()])),
]


def key(expected: str, default: object = None) -> Any:
    """A key that may be left out; `expected` is what a message says."""
    return Field(default=default, description=expected)


def needed(expected: str) -> Any:
    """A key that may not be left out."""
    return Field(description=expected)


SETTINGS = f"training settings other than {', '.join(SET_BY_SWEEP)}"
SEEDS = "a list of different whole numbers from 0"
PLACES = "shapes of the grid and different names of their folders, of a-z, 0-9, dots and hyphens"
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuningKeys:
    """The keys under `tuning`."""

    seeds: Seeds = needed(SEEDS)
    holdout: PositiveInt = needed("how many rows of the training split to evaluate on")
    extend: NonNegativeInt = key("how often the learning rates may grow at either edge", 3)
    overrides: Settings | None = key(SETTINGS)
    tokens: PositiveInt | None = key("one of branches")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Grid:
    """The keys of a grid file, which the beginning of this module explains."""

    recipe: Text = needed("the name or path of a recipe")
    shapes: Names = needed("a list of different names or paths")
    baseline: Text = needed("one of shapes")
    seeds: Seeds = needed(SEEDS)
    learning_rates: Rates = needed("positive numbers, strictly increasing")
    tuning: TuningKeys | None = key("seeds, holdout ...")
    unsound_tuning: Text | None = key("the reason, in words")
    overrides: Settings | None = key(SETTINGS)
    output_dir: Text = needed("a folder")
    metric: Text | None = key("the name of a metric")
    start_from: Text | None = key("the output_dir of a grid over the same shapes")
    start_seed: NonNegativeInt | None = key("a seed of the grid in start_from")
    cut_from: Text | None = key("the folder of a trained model")
    cuts: dict[Text, CutKeys] | None = key(f"folders of shapes, each with some of {', '.join(CUT_KEYS)}")
    beside: Text | None = key("the output_dir of another grid")
    length: PositiveInt | None = key("a number of tokens from 1")
    data: Text | None = key("what the rows are, in words")
    data_files: CopyFiles | None = key("values of --data_files in which FOLDER stands for the copy's folder")
    hub: bool = key("true or false", False)
    publish: FolderNames | None = key(PLACES)
    margin: Positive | None = key("a positive number, in the metric's units")
    test: Literal["non-inferiority"] | None = key("non-inferiority")
    branches: Budgets | None = key("numbers of tokens, strictly increasing")
    seeds_of: dict[Text, Seeds] | None = key("shapes and lists of some of seeds")
    contrasts: Contrasts | None = key("a list of different pairs of different shapes")

    def path(self, name: str) -> Path:
        return Path(self.output_dir) / name

    def seeds_for(self, shape: str) -> list[int]:
        """The seeds that a shape is reported with."""
        return (self.seeds_of or {}).get(shape, self.seeds)

    def partners(self, shape: str) -> list[str]:
        """The folders that are published with that of a shape."""
        return [name for published, name in (self.publish or {}).items() if published != shape]


class Run(NamedTuple):
    """One training; `phase` is one of PHASES, `branch` the tokens of one that decays from a trunk."""

    phase: str
    shape: str
    seed: int
    learning_rate: float
    branch: int | None = None

    @property
    def name(self) -> str:
        name = f"{self.phase}-{slug(self.shape)}-seed{self.seed}-lr{self.learning_rate!r}"
        return name if self.branch is None else f"{name}-tokens{self.branch}"

    @property
    def trunk(self) -> "Run":
        """The trunk of a branch."""
        return Run("trunk", self.shape, self.seed, self.learning_rate)

    def folder(self, grid: Grid) -> Path:
        return grid.path("runs") / self.name


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; in a grid with branches that of `branch` tokens, by default the longest."""
    if branch is None and grid.branches:
        branch = grid.branches[-1]
    return Run("report", shape, seed, rate, branch)


def slug(shape: str) -> str:
    """A shape's name, or path, as part of a folder's name."""
    return re.sub(r"[^\w.-]+", "-", shape.removesuffix(".json")).strip("-.")


def read_keys(kind: type, values: dict, where: str = "") -> Any:
    """A `Grid` or its `TuningKeys`; `where` precedes the keys in messages.

    Raises:
        GridError: a key is unknown, missing or mistyped; names it and what was expected.
    """
    keys = [field.name for field in fields(kind)]
    for name in map(str, values):
        if name not in keys:
            raise GridError(f"{where}{name}: unknown key, expected one of {', '.join(keys)}{did_you_mean(name, keys)}")
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as error:
        name = error.errors()[0]["loc"][0]
        expected = f"expected {kind.__pydantic_fields__[name].description}"
        if name not in given:
            raise GridError(f"{where}{name}: missing, {expected}") from error
        raise GridError(f"{where}{name}: {expected}, got {given[name]!r:.100}") from error


def load_grid(path: Path) -> Grid:
    """The grid of a file.

    Raises:
        GridError: one line that names the file, the key and what was expected.
    """
    try:
        values = read_yaml(path)
    except OSError as error:
        raise GridError(f"{path}: no YAML file: {error}") from error
    except ValueError as error:
        raise GridError(str(error)) from error
    try:
        values = {"output_dir": f"runs/sweeps/{path.stem}", **values}
        tuning = values.get("tuning")
        if isinstance(tuning, dict):
            if "seed" in tuning and "seeds" not in tuning:  # of older files
                tuning = {"seeds": [tuning["seed"]], **{name: tuning[name] for name in tuning if name != "seed"}}
            values["tuning"] = read_keys(TuningKeys, tuning, "tuning.")
        grid = read_keys(Grid, values)
        _check_keys_fit(grid)
        _check_shapes(grid)
    except GridError as error:
        raise GridError(f"{path}: {error}") from error
    return grid


def _check_shapes(grid: Grid) -> None:
    """Raises GridError if a shape is unknown or there twice, or a key names one that the grid has not."""
    for shape in grid.shapes:
        if shape not in shape_names() and not os.path.exists(shape) and not is_made(grid, shape):
            hint = did_you_mean(shape, shape_names())
            raise GridError(f"shapes: expected named shapes or paths, got {shape:.200}{hint}")
    if len({slug(shape) for shape in grid.shapes}) < len(grid.shapes):
        raise GridError(f"shapes: expected names that give different folder names, got {', '.join(grid.shapes)}")
    named = {
        "baseline": [grid.baseline],
        "publish": grid.publish or [],
        "contrasts": [shape for pair in grid.contrasts or [] for shape in pair],
        "seeds_of": grid.seeds_of or [],
    }
    for name, shapes in named.items():
        for shape in shapes:
            if shape not in grid.shapes:
                known = f"one of {', '.join(grid.shapes)}" if name == "baseline" else "shapes of the grid"
                raise GridError(f"{name}: expected {known}, got {shape}{did_you_mean(shape, grid.shapes)}")
    for folder in grid.cuts or []:
        if folder in shape_names() or not {folder, f"{folder}/config.json"} & set(grid.shapes):
            raise GridError(f"cuts: expected folders among shapes, got {folder}{did_you_mean(folder, grid.shapes)}")


def _check_keys_fit(grid: Grid) -> None:
    """Raises GridError if keys do not fit together."""
    if (grid.cut_from is None) != (grid.cuts is None):
        raise GridError("cut_from, cuts: expected both or neither")
    if grid.cuts is not None and grid.start_from is not None:
        raise GridError("cuts: expected no start_from, whose weights would replace theirs")
    if grid.start_seed is not None and grid.start_from is None:
        raise GridError("start_from: missing, expected the grid whose start_seed is meant")
    if (grid.margin is None) != (grid.test is None):
        raise GridError("margin, test: expected both or neither")
    for shape, seeds in (grid.seeds_of or {}).items():
        if not set(seeds) <= set(grid.seeds):
            raise GridError(f"seeds_of: expected some of seeds, got {shape}: {seeds}")
    tuning = grid.tuning
    if tuning is None:
        if len(grid.learning_rates) > 1:
            raise GridError("tuning: missing, expected seeds and holdout to choose among several learning_rates")
        return
    shared = sorted(set(tuning.seeds) & set(grid.seeds))
    if shared:
        raise GridError(f"tuning.seeds: expected seeds that are not in seeds, got {', '.join(map(str, shared))}")
    if tuning.tokens not in (grid.branches or [None]):
        raise GridError(f"tuning.tokens: expected one of branches, and only with them, got {tuning.tokens}")


def is_cut(grid: Grid, shape: str) -> bool:
    """Whether a shape is one of the grid's cuts, which start with weights of their parent."""
    return shape in (grid.cuts or {})


def is_made(grid: Grid, shape: str) -> bool:
    """Whether a shape is one of the grid's cuts, or the configuration of one, which starts from new weights."""
    return shape.removesuffix("/config.json") in (grid.cuts or {})


def short_name(grid: Grid, shape: str) -> str:
    """A shape in a table: a cut by the name of its folder, any other as the grid names it."""
    if not is_made(grid, shape):
        return shape
    return str(Path(shape).relative_to(Path(shape.removesuffix("/config.json")).parent))


def _is_changed(name: str, before: Any, now: Any) -> bool:
    """Whether a key differs such that rows do not count; what MAY_GROW names has to hold all that it held."""
    if name in MAY_CHANGE:
        return False
    if name not in MAY_GROW or before is None or now is None:
        return (before or None) != (now or None)
    return not (before.items() <= now.items() if isinstance(before, dict) else set(before) <= set(now))


def check_unchanged(grid: Grid, rows: Collection[ResultRow]) -> None:
    """Raises GridError if output_dir holds runs of another grid, or of other data.

    Shapes, cuts, seeds and learning rates may be added, and what MAY_CHANGE names may change.
    """
    saved = grid.path("grid.yaml")
    if not any(row.has_finished for row in rows) and not any(grid.path("runs").glob("*/*")):
        return  # whatever failed wrote nothing yet, such as a misspelt setting
    if not saved.exists():
        raise GridError(f"output_dir: expected {saved} beside its runs, name another output_dir")
    old = load_grid(saved)
    check_same_data(grid, rows)
    before, now = asdict(old), asdict(grid)
    if before["tuning"] is None:
        before["tuning"] = now["tuning"]  # nothing was tuned over a single learning rate
    for shape in old.shapes:
        if shape in grid.shapes and not set(old.seeds_for(shape)) <= set(grid.seeds_for(shape)):
            seeds = f"expected {old.seeds_for(shape)} of {shape} as in {saved}, got {grid.seeds_for(shape)}"
            raise GridError(f"seeds: {seeds}; or name another output_dir")
    for name, value in before.items():
        if _is_changed(name, value, now[name]):
            raise GridError(f"{name}: expected {value} as in {saved}, got {now[name]}; or name another output_dir")


def check_same_data(grid: Grid, rows: Iterable[ResultRow]) -> None:
    """Raises GridError if finished runs of one phase were evaluated on different rows: their mean says nothing."""
    read: dict[str, set[str]] = {}
    for row in rows:
        if row.has_finished and row.data_sha256 is not None:
            read.setdefault(row.phase, set()).add(row.data_sha256)
    for phase, hashes in read.items():
        if len(hashes) > 1:
            raise GridError(
                f"{grid.path('results.csv')}: data_sha256: runs of the phase {phase} were evaluated on "
                f"{len(hashes)} different sets of rows, expected one; name another output_dir for other data"
            )


def write_grid(grid: Grid) -> None:
    """Writes grid.yaml, the grid that the rows are of, beside them."""
    write_bytes(grid.path("grid.yaml"), yaml.safe_dump(asdict(grid), sort_keys=False).encode())
