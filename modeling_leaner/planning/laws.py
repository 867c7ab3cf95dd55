"""Laws of shape that were fitted here, read from the `law.json` of a grid: what they predict, and where they hold.

quality = floor · ∏ (size / reference)^γ + scale · ∏ (size / reference)^β · (tokens / reference)^−exponent, lower is
better: a held-out loss, or 1 − accuracy. Sizes are those of TERMS. `leaner law` fits and writes them.
"""

from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from ..configuration_leaner import LeanConfig
from ..registry import IMAGES
from ..shapes import modality_of
from ..support.documents import read_json


LAW_FILE = "law.json"
GRIDS_FOLDER = Path("model_cards/grids")  # of the working folder, as for the commands that publish
TOKENS = "tokens"
COMMON = ("floor", "scale", "exponent")  # parameters that every form begins with
# In this order: of sizes that follow from each other the earlier stay, as `independent_terms` chooses.
TERMS = ("layers", "heads", "width", "mlp", "head_dim", "parameters")
TERM_NAMES = {"mlp": "MLP width", "head_dim": "head size", "parameters": "parameters without embeddings"}


class OutOfRange(ValueError):
    """A law is asked where nothing was measured: one line with the key, the value and the range."""


def sizes_of(config: LeanConfig, length: int) -> dict[str, float]:
    """The sizes of a shape by name: `length`, tokens of a row; `vocabulary`, of text alone; and TERMS.

    A law depends on TERMS alone, but holds only where all of them were measured. Parameters are without embeddings.
    """
    inputs = {"length": length}
    if modality_of(config) is not IMAGES:
        inputs["vocabulary"] = config.vocab_size
    return {
        **inputs,
        "layers": config.num_hidden_layers,
        "heads": max(config.heads_per_layer),
        "width": config.hidden_size,
        "mlp": config.intermediate_size,
        "head_dim": config.head_dim,
        "parameters": config.count_parameters().without_embeddings,
    }


@dataclass(frozen=True)
class Form:
    """Which of TERMS the floor depends on, and which the scale."""

    floor: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The parameters in their order: COMMON as natural logarithms, then exponents of sizes."""
        exponents = [f"floor by {term}" for term in self.floor] + [f"scale by {term}" for term in self.scale]
        return [*COMMON, *exponents]

    @property
    def terms(self) -> list[str]:
        """Those of TERMS that it depends on."""
        return [term for term in TERMS if term in (*self.floor, *self.scale)]


def parts(
    form: Form, parameters: np.ndarray, sizes: dict[str, np.ndarray], tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The floor, and the reducible part: what training has still to take off.

    Args:
        parameters: (…, P), as `form.names`.
        sizes: of each of the form's terms, ln(size / reference) of n cells.
        tokens: ln(tokens / reference) of the cells, (n).

    Returns:
        Two arrays (…, n).
    """
    log_floor, log_scale, log_exponent, *powers = np.moveaxis(parameters[..., None], -2, 0)  # (…, 1) each
    powers_of_floor = powers[: len(form.floor)]
    powers_of_scale = powers[len(form.floor) :]
    log_reducible = log_scale - np.exp(log_exponent) * tokens
    for power, term in zip(powers_of_floor, form.floor):
        log_floor = log_floor + power * sizes[term]
    for power, term in zip(powers_of_scale, form.scale):
        log_reducible = log_reducible + power * sizes[term]
    floor, reducible = np.broadcast_arrays(np.exp(log_floor), np.exp(log_reducible))
    return floor, reducible


@dataclass(frozen=True)
class Tie:
    """A term that followed from others in all shapes: ln term = constant + Σ powers · ln other, within tolerance."""

    term: str
    constant: float
    powers: dict[str, float]
    tolerance: float

    def expected(self, sizes: dict[str, float]) -> float:
        """The term's value by the others."""
        return float(np.exp(self.constant + sum(power * log(sizes[name]) for name, power in self.powers.items())))


@dataclass(frozen=True)
class Law:
    """A law that was found, with the spread of its parameters."""

    grid: str
    family: str
    quality: str
    form: Form
    parameters: np.ndarray  # (P)
    replicates: np.ndarray  # (R, P)
    reference: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    ties: tuple[Tie, ...]
    evidence: str
    error: float
    """By how much it is off for a shape that was left out, on the mean."""

    @property
    def longest(self) -> float:
        """The most tokens that it was fitted with."""
        return self.ranges[TOKENS][1]

    def check(self, sizes: dict[str, float], tokens: float) -> None:
        """Raises OutOfRange where a size, the tokens or what ties sizes together were not measured."""
        for key, value in {**sizes, TOKENS: tokens}.items():
            if key not in self.ranges:
                raise OutOfRange(f"{key}: not in the ranges of the law of {self.grid}; leaner law fits it again")
            low, high = self.ranges[key]
            if not low <= value <= high:
                raise OutOfRange(f"{key}: expected {spelled(low, high)}, where the law was fitted, got {value:,.15g}")
        for tie in self.ties:
            expected = tie.expected(sizes)
            low = expected * np.exp(-tie.tolerance)
            high = expected * np.exp(tie.tolerance)
            if not low <= sizes[tie.term] <= high:
                others = ", ".join(tie.powers)
                within = f"{spelled(round(low, 1), round(high, 1))} with such {others}, as in the shapes of the fit"
                raise OutOfRange(f"{tie.term}: expected {within}, got {sizes[tie.term]:,.15g}")

    def at(self, sizes: dict[str, float], tokens: float, parameters: np.ndarray) -> np.ndarray:
        """The quality by some parameters (…, P), of shape (…)."""
        logs = {term: np.array([log(sizes[term] / self.reference[term])]) for term in self.form.terms}
        floor, rest = parts(self.form, parameters, logs, np.array([log(tokens / self.reference[TOKENS])]))
        return (floor + rest)[..., 0]

    def predict(self, sizes: dict[str, float], tokens: float) -> tuple[float, tuple[float, float]]:
        """The quality, lower is better, with its 95 % interval over seeds. Raises OutOfRange."""
        self.check(sizes, tokens)
        value = float(self.at(sizes, tokens, self.parameters))
        return value, interval(self.at(sizes, tokens, self.replicates))

    def difference(
        self, sizes: dict[str, float], others: dict[str, float], tokens: float
    ) -> tuple[float, tuple[float, float]]:
        """The quality of a shape less that of another, negative = better, with its interval. Raises OutOfRange."""
        self.check(sizes, tokens)
        self.check(others, tokens)
        value = float(self.at(sizes, tokens, self.parameters) - self.at(others, tokens, self.parameters))
        return value, interval(self.at(sizes, tokens, self.replicates) - self.at(others, tokens, self.replicates))


def spelled(low: float, high: float) -> str:
    """A range in words."""
    if low == high:
        return f"{low:,.15g}"
    return f"{low:,.15g} to {high:,.15g}"


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % quantile of replicates."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def law_of(document: dict[str, Any]) -> Law:
    """The law in a `law.json`, also where none was found: then it is the curve over tokens alone."""
    form = Form(tuple(document["form"]["floor"]), tuple(document["form"]["scale"]))
    return Law(
        grid=document["grid"],
        family=document["family"],
        quality=document["quality"],
        form=form,
        parameters=np.array([document["parameters"][name]["fitted"] for name in form.names]),
        replicates=np.array(document["replicates"]).reshape(-1, len(form.names)),
        reference=document["reference"],
        ranges={key: tuple(ends) for key, ends in document["ranges"].items()},
        ties=tuple(Tie(**tie) for tie in document["ties"]),
        evidence=document["evidence"],
        error=document["error"]["law"],
    )


def read_laws(folder: Path = GRIDS_FOLDER) -> list[Law]:
    """The laws that were found in the grids of a folder; none where there is no such folder.

    Raises:
        ValueError: a law.json has another form; names it.
    """
    laws = []
    for path in sorted(folder.glob(f"*/{LAW_FILE}")):
        document = read_json(path)
        try:
            if document["found"]:
                laws.append(law_of(document))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {type(error).__name__} {error}; leaner law writes it") from error
    return laws
