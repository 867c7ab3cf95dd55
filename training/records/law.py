"""law.json of a grid: quality by tokens and sizes, as `leaner law` fits it; quality is such that lower is better.

quality = floor · ∏ (size / reference)^γ + scale · ∏ (size / reference)^β · (tokens / reference)^−exponent
"""

from .base import Count, Record


class LawErrors(Record):
    """How well shapes that were left out are predicted, in units of the quality."""

    law: float
    """Mean absolute error of the law."""
    tokens_only: float
    """The same of the curve over tokens alone."""
    difference: float
    """Law minus tokens only."""
    interval: list[float]
    """95 % bootstrap interval of the difference, over shapes and their seeds."""


class LawForm(Record):
    """Which sizes the law depends on."""

    floor: list[str]
    """Sizes with an exponent γ."""
    scale: list[str]
    """Sizes with an exponent β."""


class NotFitted(Record):
    """A size that the law cannot depend on."""

    term: str
    """Its name."""
    reason: str


class LawParameter(Record):
    """One parameter."""

    value: float
    interval: list[float] | None
    """95 %, over refits with seeds drawn again; None of a single seed."""
    fitted: float
    """What the form computes with: a logarithm of floor, scale and exponent."""


class LawTie(Record):
    """A size that followed from others in all shapes: ln term = constant + Σ powers · ln other."""

    term: str
    constant: float
    powers: dict[str, float]
    """By the name of the other size."""
    tolerance: float
    """How far ln term may be off."""


class Crossing(Record):
    """The budget at which two shapes are equal."""

    shape: str
    """One of the two."""
    other: str
    """The other."""
    ahead_below: str | None
    """The shape that is ahead below it; None where the law gives both the same quality at any budget."""
    ahead_above: str | None
    """The one that is ahead above it; the same where they do not cross."""
    tokens: float | None
    """None where they do not cross within the budgets of the fit."""
    interval: list[float | None] | None
    """95 %, in tokens; a limit of None lies beyond the budgets of the fit."""
    tokens_per_parameter: float | None = None
    """Over the parameters of `ahead_below` without embeddings; left out where they do not cross."""
    sentence: str
    """All that in words."""


class LawFile(Record):
    """law.json."""

    grid: str
    """The name of its folder."""
    found: bool
    """Whether sizes predict shapes that were left out better than tokens alone; else the form has no sizes."""
    sentence: str
    """That in words, with both errors."""
    quality: str
    """What is predicted: a loss, or 1 − the metric."""
    family: str
    evidence: str
    """How many shapes, budgets and seeds, in words."""
    runs: Count
    """That it was fitted on."""
    failed: Count
    """That it could not be fitted on."""
    seeds: list[int]
    error: LawErrors
    form: LawForm
    without_effect: list[str]
    """Sizes that could be told apart and that the law does not depend on."""
    not_fitted: list[NotFitted]
    parameters: dict[str, LawParameter]
    """By name, in the order of `replicates`."""
    reference: dict[str, float]
    """What sizes and tokens are divided by."""
    ranges: dict[str, list[int | float]]
    """The least and the greatest of each size, of tokens, of a row's length in tokens and of text's vocabulary."""
    ties: list[LawTie]
    shapes: dict[str, dict[str, int | float]]
    """The sizes of each shape, and what it reads."""
    crossings: list[Crossing]
    """Of each pair of shapes; none where no law was found."""
    replicates: list[list[float]]
    """The fitted parameters of each refit."""
