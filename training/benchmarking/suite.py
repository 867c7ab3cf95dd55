"""What `leaner bench` measures: every combination of shapes, sizes, dtypes, phases, batches and lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning.dials import ALL_FREE, Dials, as_given, check_dials, with_inputs
from modeling_leaner.registry import IMAGES
from modeling_leaner.shapes import load_config, modality_of

from .decoding import generates
from .measure import Limits
from .workload import DECODING, Workload


def each(values: list[int] | None) -> list[int | None]:
    """The values in turn; None once where none are given."""
    if values is None:
        return [None]
    return [*values]


@dataclass(frozen=True)
class Shapes:
    """Named shapes or config files, each with every combination of the sizes that are given in place of its own.

    Of heads and head size, one that is given keeps the product, as nearly as multiples of 8 allow. `positions` are the
    least of a text's shape.
    """

    names: list[str]
    layers: list[int] | None = None
    heads: list[int] | None = None
    head_dims: list[int] | None = None
    positions: int | None = None

    def configs(self) -> Iterator[tuple[str, LeanConfig]]:
        """Names and configurations. Raises ValueError, naming shape and flag, for one that there is not."""
        for name in self.names:
            start = load_config(name)
            if self.positions is not None and modality_of(start) is not IMAGES:
                start = with_inputs(start, self.positions)
            for layers, heads, head_dim in product(each(self.layers), each(self.heads), each(self.head_dims)):
                yield name, changed(name, start, Dials(layers=layers, heads=heads, head_dim=head_dim))


def changed(name: str, start: LeanConfig, dials: Dials) -> LeanConfig:
    """The shape with the sizes that `dials` state; raises ValueError, naming both."""
    if dials == ALL_FREE:
        return start
    try:
        check_dials(dials, start)
        return as_given(start, start, dials)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


@dataclass(frozen=True)
class Suite:
    """What is measured: every combination. `lengths` are of texts; an image has the length of its patches."""

    shapes: Shapes
    phases: list[str]
    dtypes: list[str]
    modes: list[str]
    attentions: list[str]
    batches: list[int]
    lengths: list[int] | None
    new_tokens: int
    device: str
    threads: int | None
    limits: Limits

    @property
    def torch_device(self) -> torch.device:
        if self.device == "gpu":
            return torch.device("cuda")
        return torch.device("cpu")

    def workloads(self) -> list[Workload]:
        """In the order of shapes, dtypes, phases, batches, lengths; decoding is of shapes that generate text alone.

        Raises:
            ValueError: there is no such shape, it cannot have a length, or nothing is left to measure.
        """
        found = [workload for name, config in self.shapes.configs() for workload in self.of_shape(name, config)]
        if not found:
            raise ValueError("--phases decoding: none of --shapes generates text; expected one that does, as gpt/tiny")
        return found

    def of_shape(self, name: str, config: LeanConfig) -> Iterator[Workload]:
        """The workloads of one shape."""
        phases = [phase for phase in self.phases if phase != DECODING or generates(config)]
        for dtype, phase, batch in product(self.dtypes, phases, self.batches):
            new_tokens = 0
            if phase == DECODING:
                new_tokens = self.new_tokens
            for length in self.lengths_of(name, config, new_tokens):
                yield Workload(phase, name, config, dtype, batch, length, self.torch_device, new_tokens)

    def lengths_of(self, name: str, config: LeanConfig, new_tokens: int) -> list[int]:
        """The lengths, of an image its own; left out, the longest that has room for the new tokens.

        Raises ValueError, naming the shape, for a length that its positions do not hold.
        """
        longest = config.default_length - new_tokens
        if longest < 1:
            room = f"{config.default_length} positions of {name}"
            raise ValueError(f"--new-tokens {new_tokens}: expected fewer than the {room}, or more --positions")
        if self.lengths is None or modality_of(config) is IMAGES:
            return [longest]
        place = f"1..{longest}"
        if new_tokens:
            place += f" before {new_tokens} new tokens"
        for length in self.lengths:
            if length > longest:
                enough = length + new_tokens
                raise ValueError(f"{name}: length must be in {place}, got {length}; or give --positions {enough}")
        return self.lengths
