"""results.json of a run and of a published folder, and the JSON files of a grid: their values with their units.

What code reads is named here; any other key is kept as it is. A metric's name has no eval_ unless stated otherwise.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


RESULTS = "results.json"  # of a run, and of a published folder
PUBLISHED = "model_cards/"  # where published folders lie
OWN_GRIDS = f"{PUBLISHED}grids"  # the rows of this project's grids
LOCAL_FILES = "local files"  # in place of a dataset's name

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Kind = TypeVar("Kind")


class Record(BaseModel):
    """Named values of a JSON object: text is no number, and no number is infinite."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """The values as JSON holds them, in the order of the fields; what was not given is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def checked(kind: type[Kind], document: object, path: Path) -> Kind:
    """The record, or list of records, in a document of a file.

    Raises:
        ValueError: names the file, the first value that does not fit, and what was expected.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f", got {first['input']!r:.100}"
        raise ValueError(f"{path}: {place and f'{place}: '}{first['msg']}{got}") from error


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


# A grid


class Timing(Record):
    """Inference at one batch size, measured in turns with the grid's other shapes."""

    seconds: float  # of one forward pass, the median over the rounds
    quartiles: list[float] | None = None  # the first and the third, in seconds
    items_per_second: float


class Latency(Record):
    """Inference of one shape by batch size."""

    one: Timing = Field(alias="1")
    many: Timing = Field(alias="32")


class LatencyFile(Record):
    """latency.json of a grid."""

    length: Count | None  # tokens of an input; None of images
    rounds: Count  # in each of which every shape had its turn
    shapes: dict[str, Latency]
    environment: Environment


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


class RowError(Record):
    """How much the choice of held-out rows moves the difference of a published shape from the baseline."""

    shape: str
    difference: float  # shape minus baseline, one run each, in the metric's units
    error: float  # its standard error by the choice of rows


class CellScore(Record):
    """One shape of a grid at one budget: its metric by seed."""

    shape: str
    values: dict[str, float]


class Cell(CellScore):
    """One shape of a grid: its score over the seeds that finished, and its sizes."""

    learning_rate: float | None = None  # the best of the tuning; None if none finished
    n: Count
    mean: float | None = None
    sd: float | None = None
    chance: float | None = None  # the metric of a guess that reads nothing, the mean over the seeds
    parameters: Count | None = None
    layers: Count
    width: Count  # of the hidden states
    heads: Count | list[Count]  # of every layer; a list if layers differ
    head_dim: Count
    mlp: Count  # width of the MLPs

    @property
    def heads_text(self) -> str:
        """`6`, or `12/5/4/3` if layers differ."""
        return str(self.heads) if isinstance(self.heads, int) else "/".join(map(str, self.heads))


class Budget(Record):
    """All shapes at one budget: a point of every curve."""

    branch: Count  # in tokens
    shapes: list[CellScore]


class Evidence(Record):
    """What a grid says of its cells; `training/experiments/evidence.py` writes it."""

    grid: str  # the name of its folder
    recipe: str
    baseline: str  # the shape that the others are compared with
    seeds: list[int] = Field(min_length=1)
    unsound_tuning: str | None = None  # why the learning rates may not be the best
    data: str | None = None  # what the rows are, in words
    data_files: str | None = None  # words of --data_files; FOLDER stands for the folder of a local copy
    hub: bool  # whether the evaluation rows are those of the Hub's dataset
    metric: str | None  # None while no run has finished, as the next one
    higher_is_better: bool | None
    cells: list[Cell] = Field(min_length=1)  # of a grid with branches at its longest one
    curves: list[Budget] | None = None  # of every branch, the shortest first
    fine_tuned: list[dict[str, Any]] = []  # the grids that started from this one's weights
    guesses: list[Guess] | None = None
    row_errors: list[RowError] | None = None


# A published folder


class Continuation(Record):
    """A beginning and what a language model made of it."""

    prompt: str
    continuation: str


class Continuations(Record):
    """What a language model writes, and the longest run of words in it that is copied from its training rows."""

    prompt_words: Count
    new_tokens: Count  # at most
    temperature: float  # of the sampling
    seed: Count
    texts: list[Continuation] = Field(min_length=1)
    longest_copy: str  # its words; empty if no run is long enough to count
    longest_copy_words: Count


class Subset(Record):
    """The first evaluation rows, for a short verification."""

    max_eval_rows: Count  # that were asked for
    rows: Count  # that there are
    data_sha256: str | None = None
    metrics: dict[str, float]  # by name with eval_
    tolerances: dict[str, float] | None = None  # how far each metric may be off on another machine


class CutStep(Record):
    """One cut of `leaner slim`."""

    part: str  # layers, or what else became fewer
    before: int | list[int]
    after: int | list[int]
    # Of the output on held-out rows, with this cut and those before it, as a share of the output's variance:
    change: float
    rivals: dict[str, float] = {}  # other choices with their change on the rows of the choice


class SlimFile(Record):
    """slim.json: what was cut, in order."""

    cuts: list[CutStep] = Field(min_length=1)
    parent_weights_sha256: Sha256 | None = None  # of the model.safetensors that was cut


class CutParent(Record):
    """The published model that another was cut from, and what the cut scored before its training."""

    name: str  # of its folder
    weights_sha256: Sha256 | None = None  # of its model.safetensors, as the cut's slim.json has it
    slim_options: list[str]  # of the `leaner slim` that leaves the same layers
    parameters: int = Field(gt=0)
    steps: Count  # of its own training
    metrics: dict[str, float]  # on the same rows, by name with eval_
    untrained_metrics: dict[str, float]  # of the cut before its training


class PublishedBranch(Record):
    """One budget at which the run of a published model was finished as well."""

    tokens: Count  # read by its end
    value: float  # the grid's metric
    weights_sha256: Sha256 | None  # only the weights of the longest budget are published


class PublishedResults(RunResults):
    """results.json of a published folder: its run's, the evidence of the grid, and what a verification compares."""

    data_sha256: str
    name: str  # of the folder, and of the repository on the Hub
    cell: str  # the shape in the grid
    partners: list[str]  # the folders that are published with it
    license: str | None = None  # of the weights, as the Hub names it
    weights_sha256: Sha256  # of model.safetensors
    tolerances: dict[str, float] | None = None  # how far each metric may be off on another machine
    subset: Subset | None = None
    evidence: Evidence
    continuations: Continuations | None = None  # of a causal language model
    cut_parent: CutParent | None = None
    branches: list[PublishedBranch] | None = None  # the budgets of its run, the shortest first
    grid_folder: str | None = None  # the grid's output_dir in the project that published it; None in this one

    @property
    def grid_file(self) -> str:
        """The grid's file, in the project that published it."""
        own = f"training/grids/{self.evidence.grid}.yaml"
        return own if self.grid_folder is None else f"{self.grid_folder}/grid.yaml"

    @property
    def parent(self) -> str | None:
        """The published folder that it was cut from, or whose weights its training started from; None of others."""
        if self.cut_parent is not None:
            return self.cut_parent.name
        return self.shape.removeprefix(PUBLISHED) if self.shape.startswith(PUBLISHED) else None
