"""results.json of a published folder: its run's, the evidence, and what a verification compares."""

from pydantic import Field

from .base import Count, Record, Sha256
from .evidence import Evidence
from .results import PUBLISHED, RunResults


OWN_GRIDS = f"{PUBLISHED}grids"  # the rows of this project's grids
OWN_GRID_FILES = "training/grids"


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


class CutStep(Record):
    """One cut of `leaner slim`."""

    part: str
    """layers, or what else became fewer."""
    before: int | list[int]
    after: int | list[int]
    change: float
    """Of the output on held-out rows with this cut and those before it, as a share of the output's variance."""
    rivals: dict[str, float] = {}
    """Other choices with their change on the rows of the choice."""


class SlimFile(Record):
    """slim.json: what was cut, in order."""

    cuts: list[CutStep] = Field(min_length=1)
    parent_weights_sha256: Sha256 | None = None
    """Of the model.safetensors that was cut; None where it was not recorded."""


class CutParent(Record):
    """The published model that another was cut from, and what the cut scored before its training."""

    name: str
    """Of its folder."""
    weights_sha256: Sha256 | None = None
    """Of its model.safetensors, as the cut's slim.json has it; None where it was not recorded."""
    slim_options: list[str]
    """Of the `leaner slim` that leaves the same layers; heads and neurons it chooses by the rows it is given."""
    parameters: int = Field(gt=0)
    steps: Count
    """Of its own training."""
    metrics: dict[str, float]
    """On the same rows, by name with eval_, as the next ones."""
    untrained_metrics: dict[str, float]
    """Of the cut before its training."""


class PublishedBranch(Record):
    """One budget at which the run of a published model was finished as well."""

    tokens: Count
    """Read by its end."""
    value: float
    """The grid's metric."""
    weights_sha256: Sha256 | None
    """Of its model.safetensors; only that of the longest budget is published. None where they were not kept."""


class PublishedResults(RunResults):
    """results.json of a published folder: its run's, the evidence of the grid, and what a verification compares."""

    data_sha256: str
    """Of what the evaluation rows hold."""
    name: str
    """Of the folder, and of the repository on the Hub."""
    cell: str
    """The shape in the grid."""
    partners: list[str]
    """The folders that are published with it."""
    license: str | None = None
    """Of the weights, as the Hub names it; None where none was given."""
    weights_sha256: Sha256
    """Of model.safetensors."""
    tolerances: dict[str, float] | None = None
    """How far each metric may be off on another machine."""
    subset: Subset | None = None
    evidence: Evidence
    continuations: Continuations | None = None
    """None of other models than causal ones."""
    cut_parent: CutParent | None = None
    """None of a model that was not cut from another."""
    branches: list[PublishedBranch] | None = None
    """The budgets of its run, the shortest first; None of a grid without branches."""
    grid_folder: str | None = None
    """The grid's output_dir in the project that published it; None in this project, which keeps it by its name."""

    @property
    def is_own(self) -> bool:
        """Whether this project published it, rather than one that uses this package."""
        return self.grid_folder is None

    @property
    def grid_file(self) -> str:
        """The grid's file, in the project that published it."""
        if self.is_own:
            return f"{OWN_GRID_FILES}/{self.evidence.grid}.yaml"
        return f"{self.grid_folder}/grid.yaml"

    @property
    def rows_folder(self) -> str:
        """The folder of the grid's rows, there."""
        if self.is_own:
            return f"{OWN_GRIDS}/{self.evidence.grid}"
        return self.grid_folder

    @property
    def parent(self) -> str | None:
        """The published folder that it was cut from, or whose weights its training started from; None of others."""
        if self.cut_parent is not None:
            return self.cut_parent.name
        if self.shape.startswith(PUBLISHED):
            return self.shape.removeprefix(PUBLISHED)
        return None
