"""What runs, grids and published folders keep: results.json, and the rows of results.csv.

A run's are made in `running/results.py`, an encoder's in `publishing/encoders.py`. What code reads is named here; any
other key of results.json is kept as it is. A metric's name has no eval_ unless stated otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from modeling_leaner.files import finite_or_none, naming


RESULTS = "results.json"  # of a run, and of a published folder
PUBLISHED = "model_cards/"  # where published folders lie
LOCAL_FILES = "local files"  # in place of a dataset's name

Count = Annotated[int, Field(ge=0)]
Kind = TypeVar("Kind")


# JSON


class Record(BaseModel):
    """A JSON object, all its values as attributes: text is no number, no number is infinite."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def document(self) -> dict[str, Any]:
        """The values as JSON holds them, in the order of the fields; what was not given is left out."""
        return self.model_dump(exclude_unset=True)


def checked(kind: type[Kind], document: object, path: Path) -> Kind:
    """The record, or list of records, in a document of a file; ValueError names the first value that does not fit."""
    with naming(path, (ValidationError,), first_error):
        return TypeAdapter(kind).validate_python(document)


def first_error(error: ValidationError) -> str:
    """The first value that does not fit, and what was expected, in one line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    got = "" if first["type"].startswith("missing") else f", got {first['input']!r:.100}"
    return f"{place and f'{place}: '}{first['msg']}{got}"


class Guess(Record):
    """What a simple guess scores."""

    name: str
    value: float  # in the units of the main metric


class RunResults(Record):
    """results.json of a run: the numbers of a finished run, and what is needed to get them again."""

    task: str  # as settings name it, such as masked-lm
    dataset: str  # its Hub id or built-in name
    dataset_config: str | None = None  # its configuration on the Hub
    split: str  # of the evaluation rows
    rows: Count  # evaluation rows; 0 if nothing was evaluated
    data_sha256: str | None = None  # of what the evaluation rows hold
    shape: str  # the named shape, the folder or the Hub id that was trained
    started_from: str | None = None  # whose weights: a Hub id, or ./NAME of a folder; None of new ones
    architecture: str  # the model's class
    seed: Count
    learning_rate: float  # as it was asked for
    main_metric: str
    higher_is_better: bool  # of the main metric
    # By name with eval_; shares from 0 to 1, losses in the unit of the task's; None of an undefined correlation:
    metrics: dict[str, float | None]
    chance: Guess | None = None  # that reads no input
    parameters: Count  # of the model with its head
    # κ of the head outputs by layer, at the `start` and the `end` of the training; None in place of infinity:
    condition: dict[str, list[float | None]] | None = None
    recipe: dict[str, Any]  # the settings that are not defaults
    train: Record  # how the training went
    environment: Record  # the machine and the versions of packages

    @property
    def dataset_name(self) -> str:
        """The short name of the dataset."""
        return self.dataset_config or self.dataset.split("/")[-1]


class Evidence(Record):
    """What a grid says of a published model."""

    grid: str  # the name of its folder
    baseline: str  # the shape that the others are compared with
    unsound_tuning: str | None = None  # why the learning rates may not be the best
    data: str | None = None  # what the rows are, in words
    data_files: str | None = None  # words of --data_files; FOLDER stands for the folder of a local copy
    hub: bool  # whether the evaluation rows are those of the Hub's dataset
    metric: str
    higher_is_better: bool
    shapes: Count  # that are compared
    n: Count  # seeds of this one that finished
    mean: float | None = None  # of the metric over these
    sd: float | None = None
    best_guess: Guess | None = None


class PublishedResults(RunResults):
    """results.json of a published folder: its run's, the evidence of the grid, and what a verification compares."""

    data_sha256: str
    name: str  # of the folder, and of the repository on the Hub
    cell: str  # the shape in the grid
    license: str | None = None  # of the weights, as the Hub names it
    weights_sha256: str  # of model.safetensors
    subset: Record  # rows, data_sha256 and metrics of the first `max_eval_rows`, for a short verification
    evidence: Evidence
    # The published model that it was cut from: name, weights_sha256 as in slim.json, slim_options that leave the same
    # layers, metrics; and untrained_metrics, of the cut before its training:
    cut_parent: Record | None = None

    @property
    def parent(self) -> str | None:
        """The published folder that it was cut from, or whose weights its training started from; None of others."""
        if self.cut_parent is not None:
            return self.cut_parent.name
        return self.shape.removeprefix(PUBLISHED) if self.shape.startswith(PUBLISHED) else None


# results.csv


@dataclass
class ResultRow:
    """One finished or failed run; the fields are the columns, in their order."""

    phase: str  # tune, trunk or report
    shape: str  # its name or file, as the grid has it
    seed: int
    learning_rate: float  # the highest of the schedule
    status: str  # finished, or failed: broken off, or with a metric that is not finite
    metric: str | None  # what `value` is of, without eval_
    value: float | None  # the metric, of a tune run on the rows held out
    chance: float | None  # the same metric of a guess that reads nothing
    higher_is_better: bool | None  # of the metric; 1 or 0 in the file
    eval_loss: float | None  # nats a token or a row, squared error of a regression, 1 − cosine of sentence vectors
    kappa_start: float | None  # condition number of the head outputs before training, the median over the layers
    kappa_end: float | None  # the same after training
    parameters: int | None  # of the model with its head
    steps: int | None  # updates of the weights
    seconds: float | None  # of the training
    items_per_second: float | None  # training rows a second, in the steady state
    peak_memory_bytes: int | None  # the most memory that was held
    input_pipeline_share: float | None  # share of a step, 0 to 1, that was spent waiting for rows
    rows: int | None  # of the evaluation
    data_sha256: str | None  # of what the evaluation rows hold
    error: str | None  # the last line that a failed run wrote
    failures: int | None  # how often the same run had failed before
    jobs: int | None  # runs at a time
    git_commit: str | None  # of this project, with -dirty where files differed from it
    python: str | None  # version, as the next two
    torch: str | None
    transformers: str | None
    device: str | None  # what the run used: the names of its GPUs, mps or cpu
    processor: str | None  # as the system names it
    threads: int | None  # of PyTorch
    branch: int | None  # the tokens at which a branch ends
    tokens: int | None  # read by the end of the run; of a branch with its part of the trunk, as are seconds, FLOPs
    tokens_per_parameter: float | None
    training_flops: int | None  # spent by the end of the run
    begun_from: str | None  # SHA-256 of the trunk's weights that a branch began with
    loss_repeated_bigram: float | None  # of a causal language model's tokens that complete a bigram seen in the row
    loss_other: float | None  # of all its other tokens

    @classmethod
    def from_cells(cls, cells: Mapping[str, object]) -> Self:
        """The row of some columns, as texts or values; None for what is left out, empty or not finite."""
        given = {name: cells[name] for name in COLUMNS if cells.get(name) not in (None, "")}
        read = {name: READ[CELL_TYPES[name]](value) for name, value in given.items()}
        return cls(**dict.fromkeys(COLUMNS) | read)


READ = {str: str, int: int, float: lambda cell: finite_or_none(float(cell)), bool: lambda cell: bool(int(cell))}
COLUMNS = [column.name for column in fields(ResultRow)]
CELL_TYPES = {name: (get_args(hint) or [hint])[0] for name, hint in get_type_hints(ResultRow).items()}
