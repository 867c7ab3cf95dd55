"""What is measured, with its units: results.json, evidence of a grid, times and guesses, as files hold them.

A record is read strictly: a whole number is no number with a point, text is no number, and no number is infinite. Keys
that are not documented here are kept as they are. A record is written as it was read, in the order of its fields.
"""

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator


Count = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0)]
Kind = TypeVar("Kind")

EXPECTED = {  # pydantic's name of an error → what was expected
    "string_type": "str",
    "int_type": "int",
    "int_from_float": "int",
    "bool_type": "bool",
    "float_type": "float",
    "finite_number": "a finite number",
    "dict_type": "dict",
    "model_type": "dict",
    "model_attributes_type": "dict",
    "list_type": "list",
    "greater_than_equal": "a number from 0",
    "too_short": "at least one",
}


class Record(BaseModel):
    """Named values of a JSON object."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )

    @model_validator(mode="before")
    @classmethod
    def _missing_as_none(cls, values: object) -> object:
        """A value that has to be there reads as None where it is missing: the error then says what was expected."""
        if not isinstance(values, dict):
            return values
        needed = {}
        for name, field in cls.model_fields.items():
            key = field.alias
            if key is None:
                key = name
            if field.is_required() and type(None) not in get_args(field.annotation) and name not in values:
                needed[key] = None
        return {**needed, **values}

    def document(self) -> dict[str, Any]:
        """The values as JSON holds them, in the order of the fields; what was not given is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def message_of(error: ValidationError, prefix: str = "") -> str:
    """One line for the first value that does not fit: its place, what it is, and what was expected."""
    first = error.errors()[0]
    place = ".".join(map(str, (*filter(None, [prefix]), *first["loc"])))
    if first["type"] == "value_error":
        return ".".join(filter(None, [place, str(first["ctx"]["error"])]))
    if first["type"] == "missing":
        return f"{place} is missing"
    expected = EXPECTED.get(first["type"], first["msg"])
    if not place:
        return f"expected {expected}, got {first['input']!r:.100}"
    return f"{place} is {first['input']!r:.100}, expected {expected}"


def checked(kind: type[Kind], document: object, path: Path, prefix: str = "") -> Kind:
    """The record, or list of records, in a document of a file.

    Raises:
        ValueError: names the file, the first value that does not fit, and what was expected.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {message_of(error, prefix)}") from error


class Environment(Record):
    """The machine and the software of a run."""

    python: str
    """Version."""
    platform: str
    """The operating system."""
    processor: str
    """As the system names it."""
    threads: Count
    """Threads of PyTorch."""
    device: str
    """What the run used: the names of its GPUs, mps or cpu."""
    modeling_leaner: str | None = None
    """Version, as are those of the packages below."""
    torch: str | None = None
    transformers: str | None = None
    accelerate: str | None = None
    datasets: str | None = None
    tokenizers: str | None = None
    safetensors: str | None = None
    huggingface_hub: str | None = None
    numpy: str | None = None
    git_commit: str | None = None
    """Of the clone, with -dirty where files differed from it; None outside a clone."""


class Chance(Record):
    """A guess that reads no input."""

    name: str | None = None
    value: float | None = None
    """In the units of the main metric."""


class TrainingData(Record):
    """The rows that a run was trained on."""

    rows: Count | None = None
    """How many; None of a stream."""
    sha256: str | None = None
    """Of what they hold."""
    local: bool | None = None
    """Whether they came from files of the machine rather than from the Hub."""


class Train(Record):
    """How a training went."""

    steps: Count
    """Updates of the weights."""
    epochs: Duration | None = None
    """Passes over the training rows."""
    learning_rate: float | None = None
    """The highest one, as it was used."""
    seconds: Duration
    """From the first step to the last."""
    loss: float | None = None
    """Mean over the last logged steps, in nats a token or a row."""
    peak_memory_bytes: Count
    """The most memory that was held."""
    peak_memory_kind: str
    """What that measures: memory of the process, or what tensors took on the fullest GPU."""
    processes: Count = 1
    """How many trained together."""
    items_per_second: float | None = None
    """Training rows a second, in the steady state."""
    seconds_per_step: Duration | None = None
    """Mean, in the steady state."""
    input_pipeline_share: float | None = None
    """Share of a step, 0 to 1, that was spent waiting for rows."""


class RunResults(Record):
    """results.json of a run: the numbers of a finished run, and what is needed to get them again."""

    task: str
    """As settings name it, such as masked-lm."""
    dataset: str
    """Its Hub id or built-in name."""
    dataset_config: str | None = None
    """Its configuration on the Hub."""
    split: str
    """Of the evaluation rows."""
    rows: Count
    """Evaluation rows; 0 where nothing was evaluated."""
    data_sha256: str | None = None
    """Of what the evaluation rows hold."""
    shape: str
    """The named shape or the folder that was trained."""
    architecture: str
    """The model's class."""
    seed: Count
    learning_rate: float
    """As it was asked for."""
    main_metric: str
    """Its name, without or with eval_."""
    higher_is_better: bool
    """Of the main metric."""
    metrics: dict[str, float]
    """Of the evaluation, by name with eval_: shares from 0 to 1, losses in nats."""
    chance: Chance | None = None
    """None where the task has no such guess."""
    parameters: Count
    """Of the model with its head."""
    training_data: TrainingData | None = None
    classes_never_seen: list[Any] | None = None
    """Classes that are in no training row."""
    condition: dict[str, list[float | None]] | None = None
    """κ of the head outputs by layer, at the `start` and at the `end` of the training; None in place of infinity."""
    recipe: dict[str, Any]
    """The settings that are not defaults."""
    train: Train
    environment: Environment

    @property
    def metric(self) -> str:
        """The main metric's name without eval_."""
        return self.main_metric.removeprefix("eval_")


class Timing(Record):
    """Inference at one batch size, measured in turns with the grid's other shapes."""

    seconds: Duration
    """Of one forward pass, the median over the rounds."""
    quartiles: list[float] | None = None
    """The first and the third, in seconds."""
    items_per_second: Duration
    """Batch size over `seconds`."""


class Latency(Record):
    """Inference of one shape by batch size."""

    one: Timing = Field(alias="1")
    """Of a single input."""
    many: Timing = Field(alias="32")
    """Of 32 inputs at a time."""


class LatencyFile(Record):
    """latency.json of a grid."""

    length: Count | None
    """Tokens of an input; None of images."""
    rounds: Count
    """In each of which every shape had its turn."""
    shapes: dict[str, Latency]
    environment: Environment


class StepTime(Record):
    """A training step of one shape, measured in turns with the grid's other shapes."""

    seconds: Duration
    """The median over the rounds."""
    quartiles: list[float] | None = None
    """The first and the third, in seconds."""
    tokens: Count
    """That a step reads."""


class StepTimes(Record):
    """step_seconds.json of a grid."""

    rounds: Count | None = None
    """In each of which every shape had its turn."""
    shapes: dict[str, StepTime]
    environment: Environment | None = None


class Guess(Record):
    """What a simple guess that reads the input scores."""

    name: str
    value: float
    """In the units of the grid's metric."""


class RowError(Record):
    """How much the choice of held-out rows moves the difference of a published shape from the baseline."""

    shape: str
    difference: float
    """Shape minus baseline, one run each, in the metric's units."""
    error: float
    """Its standard error by the choice of rows, in the metric's units."""


class Reference(Record):
    """transformers' own model of the baseline's shape, tuned and trained alike."""

    learning_rate: float
    n: Count
    """Seeds that finished."""
    mean: float
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of one."""


class CellScore(Record):
    """The metric of one shape over the seeds."""

    shape: str
    learning_rate: float | None = None
    """The best of the tuning; None where none finished."""
    n: Count
    """Seeds that finished."""
    mean: float | None = None
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of fewer than two."""
    chance: float | None = None
    """The metric of a guess that reads nothing, the mean over the seeds."""
    values: dict[str, float]
    """The metric by seed."""


class Cell(Record):
    """One shape of a grid: its score, its comparison with the baseline, its sizes and its costs."""

    shape: str
    learning_rate: float | None = None
    """The best of the tuning; None where none finished."""
    tuning_lead: float | None = None
    """Distance of the best rate's mean from the runner-up's, in the metric's units."""
    tuning_spread: float | None = None
    """Range of the metric over the tuning seeds, the larger one of the two best rates."""
    n: Count
    """Seeds that finished."""
    mean: float | None = None
    """Of the metric over the seeds."""
    sd: float | None = None
    """Over the seeds; None of fewer than two."""
    median: float | None = None
    """Of the metric over the seeds."""
    failure_rate: float | None = None
    """Share, 0 to 1, of runs that failed or ended worse than the best simple guess."""
    pairs: Count | None = None
    """Seeds that the shape and the baseline both finished."""
    difference: float | None = None
    """Mean over the pairs of shape minus baseline, in the metric's units."""
    interval: list[float] | None = None
    """95 % t interval of the difference."""
    p: float | None = None
    """Two-sided, of no difference."""
    p_non_inferiority: float | None = None
    """One-sided, of a loss of at least the margin."""
    parameters: Count | None = None
    parameters_over_baseline: float | None = None
    """Share of the baseline's."""
    seconds: Duration | None = None
    """Of a training, the mean over the seeds."""
    kappa_start: float | None = None
    """Condition number of the head outputs before the training: median over the layers, mean over the seeds."""
    kappa_end: float | None = None
    """The same after the training."""
    chance: float | None = None
    """The metric of a guess that reads nothing, the mean over the seeds."""
    learned: bool | None = None
    """Whether the runs clearly beat the best simple guess; None where that is unknown."""
    verdict: str
    """baseline, undecided, not learned, or non-inferior before correction."""
    notes: list[str]
    """What a reader has to know."""
    layers: Count
    width: Count
    """Of the hidden states."""
    heads: Count
    """Of the first layer."""
    head_dim: Count
    mlp: Count
    """Width of the MLPs."""
    length: Count
    """Tokens of an input, of which FLOPs and times are."""
    flops_forward: int | float
    """Of the matrix products of a forward pass of one input."""
    kv_bytes_per_token: Count | None = None
    """Of a cache in bfloat16."""
    values: dict[str, float]
    """The metric by seed."""
    peak_memory_bytes: Count | None = None
    """The most that a training held, the largest of the seeds."""
    jobs: list[int]
    """How many runs shared the machine."""
    latency: Latency | None
    """None where it was not measured."""


class FineTuned(Record):
    """A grid that started from another grid's weights."""

    grid: str
    metric: str | None
    """None while no run has finished, as is the next one."""
    higher_is_better: bool | None
    published: bool
    """Whether weights of it are published."""
    start_seed: Count | None = None
    """The seed whose weights all runs started from; None where it is each run's own."""
    guess: float | None = None
    """The best simple guess, in the metric's units."""
    learned: bool | None = None
    """Whether the baseline clearly beats it."""
    cells: list[CellScore]


class TuningSettings(Record):
    """How learning rates were chosen."""

    seeds: list[int] | None = None
    seed: Count | None = None
    """In place of `seeds`, on cards from before there could be several."""
    holdout: Count
    """Rows of the training split that the choice was made on."""
    extend: Count | None = None
    """How often the rates could grow at either edge."""
    overrides: dict[str, Any] | None = None
    """Settings of the tuning runs."""
    tokens: Count | None = None
    """The branch that was tuned; None without branches."""


class Evidence(Record):
    """What a grid says of its cells, as the results.json of a published folder holds it."""

    grid: str
    """The name of its folder."""
    recipe: str
    baseline: str
    """The shape that the others are compared with."""
    seeds: list[int] = Field(min_length=1)
    planned: Count | None = None
    """Runs to report once all have run."""
    learning_rates: list[float]
    """All that were tried."""
    tuning: TuningSettings | None = None
    overrides: dict[str, Any] | None = None
    """Settings of every run beside the recipe's."""
    start_from: str | None = None
    """The name of the grid whose weights the runs started from."""
    start_seed: Count | None = None
    """The seed there whose weights all runs started from; None where it is each run's own."""
    beside: "Evidence | None" = None
    """Of the grid whose cells a card shows too."""
    fine_tuned: list[FineTuned]
    """The grids that started from this one's weights."""
    margin: float | None = None
    """Of the test of non-inferiority, in the metric's units."""
    data: str | None = None
    """What the rows are, in words."""
    data_files: str | None = None
    """Words of --data_files in which FOLDER stands for the folder of a local copy."""
    hub: bool
    """Whether the evaluation rows are those of the Hub's dataset."""
    metric: str | None
    """None while no run has finished, as is the next one."""
    higher_is_better: bool | None
    cells: list[Cell] = Field(min_length=1)
    reference: Reference | None = None
    guesses: list[Guess] | None = None
    """Simple guesses that read the input; None where none was fitted."""
    row_errors: list[RowError] | None = None
    runs: Count
    """That have ended."""
    failed: Count
    """Those of them that failed."""
    failures: Count
    """Attempts that failed and were repeated."""
    hours: Duration
    """Of all finished runs together."""
    processor: list[str]
    """The machines of the runs."""
    latency_on: str | None = None
    """The machine on which inference was timed."""
    software: dict[str, list[str]]
    """The versions of each package that runs were made with."""
    commits: list[str]
    """Of this project, that runs were made with."""

    @model_validator(mode="after")
    def _has_baseline(self) -> Self:
        shapes = [cell.shape for cell in self.cells]
        if self.baseline not in shapes:
            raise ValueError(f"baseline is {self.baseline!r}, expected one of {shapes}")
        return self


class Continuation(Record):
    """A beginning and what a language model made of it."""

    prompt: str
    continuation: str


class Continuations(Record):
    """What a language model writes, and the longest run of words in it that is copied from its training rows."""

    prompt_words: Count
    new_tokens: Count
    """At most."""
    temperature: float
    """Of the sampling."""
    seed: Count
    texts: list[Continuation] = Field(min_length=1)
    longest_copy: str
    """Its words; empty where no run is long enough to count."""
    longest_copy_words: Count


class Subset(Record):
    """The first evaluation rows, for a short verification."""

    max_eval_rows: Count
    """How many were asked for."""
    rows: Count
    """How many there are."""
    data_sha256: str | None = None
    """Of what they hold."""
    metrics: dict[str, float]
    """By name with eval_, in the units of the results."""
    tolerances: dict[str, float] | None = None
    """How far each metric may be off on another machine."""


class PublishedTrain(Train):
    """How the training of a published model went."""

    epochs: Duration
    """Passes over the training rows."""


class PublishedResults(RunResults):
    """results.json of a published folder: its run's, the evidence of the grid, and what a verification compares."""

    data_sha256: str
    """Of what the evaluation rows hold."""
    train: PublishedTrain
    name: str
    """Of the folder, and of the repository on the Hub."""
    cell: str
    """The shape in the grid."""
    partners: list[str]
    """The folders that are published with it."""
    license: str | None = None
    """Of weights and code, as the Hub names it."""
    weights_sha256: str
    """Of model.safetensors."""
    tolerances: dict[str, float] | None = None
    """How far each metric may be off on another machine."""
    subset: Subset | None = None
    evidence: Evidence
    continuations: Continuations | None = None
    """None of other models than causal ones."""
