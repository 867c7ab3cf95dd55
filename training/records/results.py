"""results.json of a run and of a published folder, and the JSON files of a grid: their values with their units.

What code reads is named here; any other key is kept as it is. A metric's name has no eval_ unless stated otherwise.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


RESULTS = "results.json"  # of a run, and of a published folder
PUBLISHED = "model_cards/"  # where published folders lie
LOCAL_FILES = "local files"  # in place of a dataset's name

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Kind = TypeVar("Kind")


class Record(BaseModel):
    """Named values of a JSON object: text is no number, and no number is infinite."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def document(self) -> dict[str, Any]:
        """The values as JSON holds them, in the order of the fields; what was not given is left out."""
        return self.model_dump(exclude_unset=True)


def checked(kind: type[Kind], document: object, path: Path) -> Kind:
    """The record, or list of records, in a document of a file.

    Raises:
        ValueError: names the file, the first value that does not fit, and what was expected.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_error(error)}") from error


def first_error(error: ValidationError) -> str:
    """The first value that does not fit, and what was expected, in one line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    got = "" if first["type"].startswith("missing") else f", got {first['input']!r:.100}"
    return f"{place and f'{place}: '}{first['msg']}{got}"


# A run


class Environment(Record):
    """The machine and the software of a run, with the versions of its packages."""

    python: str
    platform: str  # the operating system, the machine and the C library
    processor: str  # as the system names it
    threads: Count  # of PyTorch
    device: str  # what the run used: the names of its GPUs, mps or cpu


class Chance(Record):
    """A guess that reads no input."""

    name: str | None = None
    value: float | None = None  # in the units of the main metric


class Train(Record):
    """How a training went."""

    steps: Count  # updates of the weights
    epochs: float | None = None  # passes over the training rows
    learning_rate: float | None = None  # the highest one, as it was used
    seconds: float  # from the first step to the last
    loss: float | None = None  # mean over the last logged steps, in the unit of the task's loss
    peak_memory_bytes: Count
    peak_memory_kind: str  # memory of the process, or what tensors took on the fullest GPU
    processes: Count = 1  # that trained together
    items_per_second: float | None = None  # training rows, in the steady state, as the next two
    seconds_per_step: float | None = None
    input_pipeline_share: float | None = None  # of a step, 0 to 1, that was spent waiting for rows
    process_seconds: float | None = None  # from the start of the last process to its results
    model_seconds: float | None = None  # of these, in training steps and the model's part of evaluation


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
    main_metric: str  # without or with eval_
    higher_is_better: bool  # of the main metric
    # By name with eval_; shares from 0 to 1, losses in the unit of the task's; None of an undefined correlation:
    metrics: dict[str, float | None]
    chance: Chance | None = None
    parameters: Count  # of the model with its head
    training_data: dict[str, Any] | None = None  # number of rows (None of a stream), SHA-256, whether local files
    # κ of the head outputs by layer, at the `start` and the `end` of the training; None in place of infinity:
    condition: dict[str, list[float | None]] | None = None
    recipe: dict[str, Any]  # the settings that are not defaults
    train: Train
    environment: Environment

    @property
    def metric(self) -> str:
        """The main metric."""
        return self.main_metric.removeprefix("eval_")

    @property
    def dataset_name(self) -> str:
        """The short name of the dataset."""
        return self.dataset_config or self.dataset.split("/")[-1]


# A grid


class StepTime(Record):
    """A training step of one shape, measured in turns with the grid's other shapes."""

    seconds: float = Field(gt=0)  # the median over the rounds
    quartiles: list[float] | None = None  # the first and the third, in seconds
    tokens: Count  # that a step reads


class StepTimes(Record):
    """step_seconds.json of a grid."""

    rounds: Count | None = None
    shapes: dict[str, StepTime]
    environment: Environment | None = None


class Guess(Record):
    """What a simple guess that reads the input scores."""

    name: str
    value: float  # in the units of the grid's metric


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
    shapes: Count = 0  # that are compared
    n: Count = 0  # seeds of this one that finished
    mean: float | None = None  # of the metric over these
    sd: float | None = None
    best_guess: Guess | None = None


# A published folder


class Subset(Record):
    """The first evaluation rows, for a short verification."""

    max_eval_rows: Count  # that were asked for
    rows: Count  # that there are
    data_sha256: str | None = None
    metrics: dict[str, float]  # by name with eval_


class CutParent(Record):
    """The published model that another was cut from, and what the cut scored before its training."""

    name: str  # of its folder
    weights_sha256: Sha256 | None = None  # of its model.safetensors, as the cut's slim.json has it
    slim_options: list[str]  # of the `leaner slim` that leaves the same layers
    metrics: dict[str, float]  # on the same rows, by name with eval_
    untrained_metrics: dict[str, float]  # of the cut before its training


class PublishedResults(RunResults):
    """results.json of a published folder: its run's, the evidence of the grid, and what a verification compares."""

    data_sha256: str
    name: str  # of the folder, and of the repository on the Hub
    cell: str  # the shape in the grid
    license: str | None = None  # of the weights, as the Hub names it
    weights_sha256: Sha256  # of model.safetensors
    subset: Subset | None = None
    evidence: Evidence
    continuations: dict[str, Any] | None = None  # of a causal language model: `publish.continuations`
    cut_parent: CutParent | None = None

    @property
    def parent(self) -> str | None:
        """The published folder that it was cut from, or whose weights its training started from; None of others."""
        if self.cut_parent is not None:
            return self.cut_parent.name
        return self.shape.removeprefix(PUBLISHED) if self.shape.startswith(PUBLISHED) else None
