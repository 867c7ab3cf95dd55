"""A row of results.csv of a grid: what one run was, what it gave, and what it took. None is unknown, an empty cell."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self, get_args, get_type_hints

from modeling_leaner.files import finite_or_none


@dataclass
class ResultRow:
    """One finished or failed run; the fields are the columns, in their order."""

    phase: str  # tune, trunk or report
    shape: str  # its name or file, as the grid has it
    seed: int
    learning_rate: float  # the highest of the schedule
    status: str  # finished or failed
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
    branch: int | None  # the tokens at which a branch ends; from here on not in files of earlier releases
    tokens: int | None  # read by the end of the run; of a branch with its part of the trunk, as are seconds, FLOPs
    tokens_per_parameter: float | None
    training_flops: int | None  # spent by the end of the run
    begun_from: str | None  # SHA-256 of the trunk's weights that a branch began with

    @classmethod
    def from_cells(cls, cells: Mapping[str, object]) -> Self:
        """The row of some columns, as texts or values; None for what is left out, empty or not finite.

        Raises:
            ValueError: a cell does not hold a value of its column's type; names the column.
        """
        values = dict.fromkeys(COLUMNS)
        for name, kind in CELL_TYPES.items():
            cell = cells.get(name)
            if cell is None or cell == "":
                continue
            try:
                values[name] = READ[kind](cell)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{name}: expected {EXPECTED[kind]}, got {cell!s:.100}") from error
        return cls(**values)

    def cells(self) -> dict[str, object]:
        """The values as results.csv holds them, by column."""
        truth = self.higher_is_better
        return {**vars(self), "higher_is_better": None if truth is None else int(truth)}

    @property
    def has_finished(self) -> bool:
        """Whether the run ended well."""
        return self.status == "finished"

    @property
    def has_failed(self) -> bool:
        """Whether the run broke off, or gave a metric that is not finite."""
        return self.status == "failed"


READ = {str: str, int: int, float: lambda cell: finite_or_none(float(cell)), bool: lambda cell: TRUTH[int(cell)]}
TRUTH = {0: False, 1: True}  # of higher_is_better
EXPECTED = {int: "a whole number", float: "a number", bool: "0 or 1"}  # any text is a str
COLUMNS = [column.name for column in fields(ResultRow)]
ADDED = COLUMNS[COLUMNS.index("branch") :]  # not in files of earlier releases
CELL_TYPES = {name: (get_args(hint) or [hint])[0] for name, hint in get_type_hints(ResultRow).items()}
