"""Numbers with units, as they are written after an option of `leaner plan` and as they are printed."""

import re
from dataclasses import dataclass


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of a value
MOST_INPUT = 2**24  # tokens, pixels, entries of a vocabulary, items of a batch


@dataclass(frozen=True)
class Unit:
    """One kind of number: its suffixes (in capitals) with their factors, examples for messages, and its bounds."""

    factors: dict[str, float]
    examples: str
    least: float
    most: float


NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
COUNTS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
DECIMAL_BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
BINARY_BYTES = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SECONDS = {"S": 1, "MS": 1e-3, "US": 1e-6}
UNITS = {
    "": Unit(COUNTS, examples="30M, 1.5G or 2e9", least=1, most=1e18),
    "B": Unit(DECIMAL_BYTES | BINARY_BYTES, examples="8GB or 512MiB", least=1, most=1e18),
    "s": Unit(SECONDS, examples="5ms or 0.1s", least=1e-9, most=1e6),
}


def parse_size(flag: str, text: str, symbol: str = "") -> float:
    """A number with a unit: `symbol` is `""` for counts (K, M, G or B, T), `"B"` for bytes, `"s"` for seconds.

    Raises ValueError, naming the flag, for another unit, no number, nothing above 0, or what is out of bounds.
    """
    unit = UNITS[symbol]
    match = NUMBER.fullmatch(text)
    if match is None or match[2].upper() not in unit.factors or float(match[1]) <= 0:
        raise ValueError(f"{flag} {text}: expected a number above 0 with a unit, as {unit.examples}")
    value = float(match[1]) * unit.factors[match[2].upper()]
    if not unit.least <= value <= unit.most:
        bounds = f"{unit.least:g}{symbol} to {unit.most:g}{symbol}"
        raise ValueError(f"{flag} {text}: expected {bounds}, as {unit.examples}")
    return value


def human(value: float) -> str:
    """Three digits and K, M, G or T."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1, "")):
        if value >= 999.5 * factor:  # three digits would round to 1e+03
            return f"{value / factor:.0f}{letter}"
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def human_count(value: float) -> str:
    """As `human`, with B for 1e9: parameters are counted in billions."""
    return human(value).replace("G", "B")


def human_bytes(value: float) -> str:
    """As `human`, in bytes."""
    return human(value) + "B"
