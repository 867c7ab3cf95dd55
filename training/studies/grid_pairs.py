"""Pairs of shapes in the finished grids: a shape beside the baseline of its grid, and what it gains over it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from ..experiments.grid_results import load_folder
from ..experiments.run_statistics import gain
from ..experiments.summary import summarise
from ..records import CellSummary, Outcome
from .trials import by_interval, rounded


@dataclass(frozen=True)
class GridPair:
    """A shape against another of one grid. `gain` and its interval are in the metric's units, plus where it is better.

    `interval` is the 95 % one over the seeds; `share` the parameters of the shape over those of the other, as trained.
    """

    grid: str
    metric: str
    other: LeanConfig
    shape: LeanConfig
    gain: float
    interval: tuple[float, float]
    share: float

    @classmethod
    def of(
        cls, grid: str, metric: str, higher_is_better: bool, cell: CellSummary, baseline: LeanConfig, shape: LeanConfig
    ) -> "GridPair":
        """A cell that has been compared with the baseline over several seeds."""
        low, high = sorted(gain(value, higher_is_better) for value in cell.interval)
        ahead = gain(cell.difference, higher_is_better)
        return cls(grid, metric, baseline, shape, ahead, (low, high), cell.parameters_over_baseline)

    @property
    def reversed(self) -> "GridPair":
        """The other against the shape."""
        low, high = self.interval
        return GridPair(self.grid, self.metric, self.shape, self.other, -self.gain, (-high, -low), 1 / self.share)

    @property
    def outcome(self) -> Outcome:
        """Of the statement that the shape is better."""
        return by_interval(self.interval)

    @property
    def is_worse(self) -> bool:
        """Whether the shape is worse, beyond the seeds."""
        return self.outcome == "disagrees"

    @property
    def words(self) -> str:
        """The gain with its interval."""
        return "{:+.4f} ({:+.4f} to {:+.4f})".format(self.gain, *self.interval)

    @property
    def name(self) -> str:
        """The grid with both shapes, layers × heads × head size: a grid may have several pairs."""
        shapes = " → ".join(
            f"{shape.num_hidden_layers}×{shape.num_attention_heads}×{shape.head_dim}"
            for shape in (self.other, self.shape)
        )
        return f"{self.grid} {shapes}"

    def numbers(self, name: str) -> dict[str, float]:
        """The gain by a name, and the ends of its interval."""
        low, high = self.interval
        return {
            f"{self.name}: {name}": rounded(self.gain),
            f"{self.name}: low end": rounded(low),
            f"{self.name}: high end": rounded(high),
        }


def grid_pairs(grids: Path, is_pair: Callable[[LeanConfig, LeanConfig], bool]) -> Iterator[GridPair]:
    """The shapes of all grids for which `is_pair(shape, baseline)` holds, against the baseline, over several seeds.

    Not of grids whose shapes are cuts of a trained model: what they compare did not begin alike.

    Raises GridError.
    """
    for path in sorted(grids.glob("*/results.csv")):
        results = load_folder(path.parent)
        if results.grid.cuts:
            continue
        summary = summarise(results)
        baseline = load_config(results.grid.baseline)
        for cell in summary.shapes:
            shape = load_config(cell.shape)
            if cell.interval is not None and is_pair(shape, baseline):
                yield GridPair.of(path.parent.name, summary.metric, summary.higher_is_better, cell, baseline, shape)


def rows_in(grids: Path) -> str:
    """What a statement about the grids would need where there are none."""
    return f"finished rows in {grids}, as in a clone of the repository; leaner sweep GRID.yaml writes them in hours"
