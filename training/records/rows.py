"""A row of results.csv of a grid: what one run was, what it gave, and what it took. None is unknown, an empty cell."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self, get_args, get_type_hints

from modeling_leaner.files import finite_or_none


@dataclass
class ResultRow:
    """One finished or failed run; the fields are the columns, in their order."""

    phase: str
    """tune, trunk or report."""
    shape: str
    """Its name or file, as the grid has it."""
    seed: int
    learning_rate: float
    """The highest of the schedule."""
    status: str
    """finished or failed."""
    metric: str | None
    """What `value` is of, without eval_."""
    value: float | None
    """The metric, of a tune run on the rows held out."""
    chance: float | None
    """The same metric of a guess that reads nothing."""
    higher_is_better: bool | None
    """Of the metric; 1 or 0 in the file."""
    eval_loss: float | None
    """On the evaluation rows: nats a token or a row, squared error of a regression, 1 − cosine of sentence vectors."""
    kappa_start: float | None
    """Condition number of the concatenated head outputs before training, the median over the layers."""
    kappa_end: float | None
    """The same after training."""
    parameters: int | None
    """Of the model with its head."""
    steps: int | None
    """Updates of the weights."""
    seconds: float | None
    """Of the training; of a branch with the part of its trunk that it goes on from."""
    items_per_second: float | None
    """Training rows a second, in the steady state."""
    peak_memory_bytes: int | None
    """The most memory that was held."""
    input_pipeline_share: float | None
    """Share of a step, 0 to 1, that was spent waiting for rows."""
    rows: int | None
    """Of the evaluation."""
    data_sha256: str | None
    """Of what the evaluation rows hold."""
    error: str | None
    """The last line that a failed run wrote."""
    failures: int | None
    """How often the same run had failed before."""
    jobs: int | None
    """Runs at a time."""
    git_commit: str | None
    """Of this project, with -dirty where files differed from it."""
    python: str | None
    """Version, as are the next two."""
    torch: str | None
    transformers: str | None
    device: str | None
    """What the run used: the names of its GPUs, mps or cpu."""
    processor: str | None
    """As the system names it."""
    threads: int | None
    """Threads of PyTorch."""
    branch: int | None
    """The tokens at which a branch ends; None of any other run. From here on: not in files of earlier releases."""
    tokens: int | None
    """Read by the end of the run; of a branch with the part of its trunk that it goes on from."""
    tokens_per_parameter: float | None
    training_flops: int | None
    """Spent by the end of the run; of a branch with the part of its trunk that it goes on from."""
    begun_from: str | None
    """SHA-256 of the trunk's weights that a branch began with."""

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
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: expected {EXPECTED[kind]}, got {cell!s:.100}") from error
        return cls(**values)

    def cells(self) -> dict[str, object]:
        """The values as results.csv holds them, by column."""
        written = dict(vars(self))
        if self.higher_is_better is not None:
            written["higher_is_better"] = int(self.higher_is_better)
        return written

    @property
    def has_finished(self) -> bool:
        """Whether the run ended well."""
        return self.status == "finished"

    @property
    def has_failed(self) -> bool:
        """Whether the run broke off, or gave a metric that is not finite."""
        return self.status == "failed"


def _finite_number(cell: object) -> float | None:
    """A number; None of NaN and infinity."""
    return finite_or_none(float(cell))


def _truth(cell: object) -> bool:
    """0 or 1, of higher_is_better."""
    value = int(cell)
    if value not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return bool(value)


def _kind(hint: object) -> type:
    """The type of a column, without None."""
    kinds = get_args(hint)
    if kinds:
        return kinds[0]
    return hint


READ = {str: lambda cell: cell, int: int, float: _finite_number, bool: _truth}  # a column's type → how a cell is read
EXPECTED = {int: "a whole number", float: "a number", bool: "0 or 1"}  # any text is a str
COLUMNS = [column.name for column in fields(ResultRow)]
ADDED = COLUMNS[COLUMNS.index("branch") :]  # not in files of earlier releases
CELL_TYPES = {name: _kind(hint) for name, hint in get_type_hints(ResultRow).items()}
