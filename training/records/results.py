"""results.json of a run: its numbers, the machine, and what is needed to get them again."""

from typing import Any

from .base import Count, Duration, Record


RESULTS = "results.json"  # of a run, and of a published folder
PUBLISHED = "model_cards/"  # where published folders lie


class Environment(Record):
    """The machine and the software of a run, as `running/environment.py` has them, versions of packages among them."""

    python: str
    """Version."""
    platform: str
    """The operating system, the machine and the C library; of older runs with the system's release."""
    processor: str
    """As the system names it."""
    threads: Count
    """Threads of PyTorch."""
    device: str
    """What the run used: the names of its GPUs, mps or cpu."""


class Chance(Record):
    """A guess that reads no input."""

    name: str | None = None
    value: float | None = None
    """In the units of the main metric."""


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
    """Mean over the last logged steps, in the unit of the task's loss."""
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
    process_seconds: Duration | None = None
    """From the start of the process to its results: imports, data, training, evaluation; of the last process."""
    model_seconds: Duration | None = None
    """Of these, in training steps and the model's part of evaluation, where a GPU is not waited for."""


LOCAL_FILES = "local files"  # in place of a dataset's name


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
    """The named shape, the folder or the Hub id that was trained."""
    started_from: str | None = None
    """Whose weights the training started from: a Hub id, or ./NAME of a folder; None of new ones."""
    architecture: str
    """The model's class."""
    seed: Count
    learning_rate: float
    """As it was asked for."""
    main_metric: str
    """Its name, without or with eval_."""
    higher_is_better: bool
    """Of the main metric."""
    metrics: dict[str, float | None]
    """Of the evaluation, by name with eval_: shares from 0 to 1, losses in the unit of the task's loss; None for a
    correlation that is undefined, of constant labels or outputs."""
    chance: Chance | None = None
    """None where the task has no such guess."""
    parameters: Count
    """Of the model with its head."""
    training_data: dict[str, Any] | None = None
    """How many rows there were, None of a stream, the SHA-256 of what they hold, and whether they were local files."""
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
