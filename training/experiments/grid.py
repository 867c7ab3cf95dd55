"""A grid file: its keys, read and checked. What a sweep runs, and what a summary and a card say of it.

recipe: fashion-mnist               # name or path
shapes: [vit/tiny, vit/lean-tiny]   # names or paths
baseline: vit/tiny                  # one of them
seeds: [1, 2, 3]
seeds_of: {vit/lean-tiny: [1, 2]}   # fewer of them for some shapes; left out, all of them for all
learning_rates: [3e-4, 1e-3, 3e-3]  # with a single one there is nothing to tune
tuning: {seeds: [0, 4], holdout: 2000, extend: 3, overrides: {max_steps: 300}}
overrides: {max_steps: 600, warmup_steps: 60}  # settings of the training, the same for every run
branches: [1228800, 3072000]        # tokens at which one long run ends as well (`branches.py`); left out, none
contrasts: [[vit/lean-tiny, vit/tiny]]  # first minus second, fixed beforehand, corrected together; left out, none
unsound_tuning: why the rates that were chosen may not be the best, for the cards
output_dir: runs/sweeps/fashion     # left out, runs/sweeps/<name of the grid file>
data: what the rows are             # left out, the recipe's dataset; stated on the published cards
data_files: train=FOLDER/a.parquet  # the values of --data_files for a copy in FOLDER; left out, FOLDER alone
hub: true                           # whether the evaluation rows are those of the Hub's dataset; left out, false
publish: {vit/tiny: leanvit-tiny}   # folders of model_cards/ that `leaner publish` makes of the first seed
start_from: runs/sweeps/pretrained  # left out, from scratch; output_dir of a grid of the same shapes
start_seed: 1                       # left out, each run's own; the seed in start_from whose weights all start from
cut_from: runs/parent               # a trained model, for cuts; left out, none
cuts: {runs/cut: {layers: 3}}       # folders among shapes made of it before the first run, see `cuts.py`
margin: 0.01                        # of the non-inferiority test, in the metric's units; left out, no test

A grid with branches is tuned at one of them, `tuning: {tokens: 3072000}`: whole runs by the schedule of that branch.
"""

import os
import re
from collections.abc import Callable, Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from modeling_leaner.files import naming, write_bytes
from modeling_leaner.names import shape_names
from modeling_leaner.terminal import did_you_mean

from ..reading import read_yaml
from ..records import ResultRow, first_error


SET_BY_SWEEP = ("shape", "seed", "learning_rate", "output_dir", "resume", "tuning_holdout")
MAY_GROW = ("shapes", "seeds", "learning_rates", "cuts")  # once the grid has run
MAY_CHANGE = "baseline output_dir publish data data_files hub unsound_tuning seeds_of".split()

CUT_KEYS = ("layers", "keep", "heads", "total_heads", "intermediate_size")  # of `slim.Target`
PHASES = ("tune", "trunk", "report")  # of a sweep
PEERS = "-transformers"  # a grid's folder with this at its end trains transformers' own model as the reference


def _that(holds: Callable[[Any], bool], expected: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


DIFFERENT = _that(lambda values: all(values.count(value) == 1 for value in values), "different values")
INCREASING = _that(lambda values: values == sorted(set(values)), "increasing numbers")
FEW = Field(min_length=1)
Text = Annotated[str, FEW]
Positive = Annotated[PositiveFloat, Field(strict=False)]  # 1e-3 is text in YAML 1.1
Seeds = Annotated[list[NonNegativeInt], FEW, DIFFERENT]
Settings = Annotated[
    dict[str, str | bool | int | float | list | dict],
    _that(lambda settings: settings.keys().isdisjoint(SET_BY_SWEEP), f"none of {', '.join(SET_BY_SWEEP)}"),
]
CutKeys = dict[Literal[CUT_KEYS], PositiveInt | Seeds]
FolderName = Annotated[str, _that(re.compile(r"(?!grids$)[a-z0-9][a-z0-9.-]*").fullmatch, "a folder's name")]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuningKeys:
    """The keys under `tuning`."""

    seeds: Seeds
    holdout: PositiveInt
    extend: NonNegativeInt = 3
    overrides: Settings | None = None
    tokens: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Grid:
    """The keys of a grid file, which the beginning of this module explains."""

    recipe: Text
    shapes: Annotated[list[Text], FEW, DIFFERENT]
    baseline: Text
    seeds: Seeds
    learning_rates: Annotated[list[Positive], FEW, INCREASING]
    tuning: TuningKeys | None = None
    unsound_tuning: Text | None = None
    overrides: Settings | None = None
    output_dir: Text
    start_from: Text | None = None
    start_seed: NonNegativeInt | None = None
    cut_from: Text | None = None
    cuts: dict[Text, CutKeys] | None = None
    data: Text | None = None
    data_files: Text | None = None
    hub: bool = False
    publish: dict[str, FolderName] | None = None
    margin: Positive | None = None
    branches: Annotated[list[PositiveInt], FEW, INCREASING] | None = None
    seeds_of: dict[Text, Seeds] | None = None
    contrasts: Annotated[list[Annotated[list[Text], Field(min_length=2, max_length=2)]], FEW, DIFFERENT] | None = None

    def path(self, name: str) -> Path:
        return Path(self.output_dir) / name

    def seeds_for(self, shape: str) -> list[int]:
        """The seeds that a shape is reported with."""
        return (self.seeds_of or {}).get(shape, self.seeds)


class Run(NamedTuple):
    """One training; `phase` is one of PHASES, `branch` the tokens of one that decays from a trunk."""

    phase: str
    shape: str
    seed: int
    learning_rate: float
    branch: int | None = None

    @property
    def trunk(self) -> "Run":
        """The trunk of a branch."""
        return Run("trunk", self.shape, self.seed, self.learning_rate)

    def folder(self, grid: Grid) -> Path:
        slug = re.sub(r"[^\w.-]+", "-", self.shape.removesuffix(".json")).strip("-.")  # which may be a path
        tokens = "" if self.branch is None else f"-tokens{self.branch}"
        return grid.path("runs") / f"{self.phase}-{slug}-seed{self.seed}-lr{self.learning_rate!r}{tokens}"


def reported(grid: Grid, shape: str, seed: int, rate: float | None, branch: int | None = None) -> Run:
    """The reported run of a cell; in a grid with branches that of `branch` tokens, by default the longest."""
    if branch is None and grid.branches:
        branch = grid.branches[-1]
    return Run("report", shape, seed, rate, branch)


def load_grid(path: Path) -> Grid:
    """The grid of a file. Raises ValueError, one line that names the file and the key, also where keys do not fit."""
    with naming(path, (ValueError, OSError)):
        values = {"output_dir": f"runs/sweeps/{path.stem}", **read_yaml(path)}
        if isinstance(values.get("tuning"), dict):
            values["tuning"] = _read_keys(TuningKeys, values["tuning"], "tuning.")
        grid = _read_keys(Grid, values)

        tuning, several, cuts = grid.tuning, len(grid.learning_rates) > 1, grid.cuts or {}
        overrides = grid.overrides or {}
        rules = {
            "cut_from, cuts: expected both or neither": (grid.cut_from is None) == (grid.cuts is None),
            "tuning: missing, expected seeds and holdout to choose among several learning_rates": tuning
            or not several,
            "tuning.seeds: expected seeds that are not in seeds": not tuning or {*tuning.seeds}.isdisjoint(grid.seeds),
            "overrides: eval_split none and no holdout; runs are compared on evaluation rows": overrides.get("holdout")
            or overrides.get("eval_split") != "none",
            "tuning.tokens: expected one of branches": not tuning or tuning.tokens in (grid.branches or [None]),
        }
        for shape in grid.shapes:
            is_made = shape.removesuffix("/config.json") in cuts  # a cut, or its configuration, with new weights
            expected = f"expected named shapes or paths, got {shape:.200}{did_you_mean(shape, shape_names())}"
            rules[f"shapes: {expected}"] = is_made or shape in shape_names() or os.path.exists(shape)
        folders = {Run("report", shape, 0, 0).folder(grid) for shape in grid.shapes}
        shared = "shapes: two have the same run folder (/ becomes -, .json is dropped); rename one"
        rules[shared] = len(folders) == len(grid.shapes)
        named = {
            "baseline": [grid.baseline],
            "publish": grid.publish or [],
            "contrasts": [shape for pair in grid.contrasts or [] for shape in pair],
            "seeds_of": grid.seeds_of or [],
        }
        for name, shapes in named.items():
            for shape in shapes:
                hint = did_you_mean(shape, grid.shapes)
                rules[f"{name}: expected shapes of the grid, got {shape}{hint}"] = shape in grid.shapes
        for message, holds in rules.items():
            if not holds:
                raise ValueError(message)
    return grid


def _read_keys(kind: type, values: dict, where: str = "") -> Any:
    """A `Grid` or its `TuningKeys`; `where` precedes the keys in messages."""
    names = [field.name for field in fields(kind)]
    for name in map(str, values):
        if name not in names:
            raise ValueError(f"{where}{name}: unknown key{did_you_mean(name, names)}")
    with naming(where, (ValidationError,), lambda error: where + first_error(error)):
        return kind(**values)


def check_data(grid: Grid, rows: Collection[ResultRow]) -> None:
    """Raises ValueError if finished runs of a phase were evaluated on different rows, whose mean says nothing."""
    for phase in PHASES:
        read = {row.data_sha256 for row in rows if row.phase == phase and row.status == "finished"} - {None}
        if len(read) > 1:
            where = f"{grid.path('results.csv')}: data_sha256: runs of the phase {phase} were evaluated on"
            raise ValueError(f"{where} {len(read)} different sets of rows; name another output_dir for other data")


def check_unchanged(grid: Grid, rows: Collection[ResultRow]) -> None:
    """Raises ValueError if output_dir holds finished runs of another grid, or of other data."""
    saved = grid.path("grid.yaml")
    if not saved.exists() or not any(row.status == "finished" for row in rows):
        return
    check_data(grid, rows)
    now = asdict(grid)
    for name, before in asdict(load_grid(saved)).items():
        if name in MAY_CHANGE or before == now[name]:
            continue
        if name == "cuts":
            had, has = (before or {}).items(), (now[name] or {}).items()
        else:
            had, has = before or (), now[name] or ()
        if name not in MAY_GROW or not had or any(each not in has for each in had):
            raise ValueError(f"{name}: expected {before} as in {saved}, got {now[name]}; or name another output_dir")


def write_grid(grid: Grid) -> None:
    """Writes grid.yaml, the grid that the rows are of, beside them."""
    given = {name: value for name, value in asdict(grid).items() if value is not None and value is not False}
    write_bytes(grid.path("grid.yaml"), yaml.safe_dump(given, sort_keys=False).encode())
