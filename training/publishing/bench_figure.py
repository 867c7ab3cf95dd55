"""The figure of `leaner bench-figure`: time and memory of a step against the quantity that varies in a CSV file."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from modeling_leaner.support.files import write_bytes

from ..benchmarking.cells import read_cells
from ..records import BenchCell, FigurePanel, Line
from .panels import panels_figure
from .theme import THEMES


QUANTITIES = {  # that may vary, by their columns, with the names of their axes
    "length": "tokens of a text",
    "batch": "items of a step",
    "layers": "layers",
    "heads": "heads",
    "head_dim": "size of a head",
}
MEGABYTE = 1e6
WIDE = 4  # of the largest over the smallest value, from which an axis is logarithmic


def draw_cells(path: Path, over: str | None = None) -> list[Path]:
    """Draws a CSV file of `leaner bench` in two themes, over older pictures, beside it, and prints their names.

    Args:
        over: a key of `QUANTITIES`; left out, the one that has the most values.

    Raises:
        ValueError: the file is none, or nothing that was measured varies in it.
        OSError: the pictures cannot be written.
    """
    measured = [cell for cell in read_cells(path) if cell.milliseconds is not None]
    if over is None:
        over = most_varied(measured)
    panels = panels_of(measured, over)
    if not panels:
        raise ValueError(f"{path}: no two cells that ran differ in {over}; expected one of {', '.join(QUANTITIES)}")
    written = []
    for theme in THEMES:
        written.append(path.with_name(f"{path.stem}-{over}-{theme}.svg"))
        write_bytes(written[-1], panels_figure(panels, path.stem, theme, one_legend=True))
        print(written[-1])
    return written


def values_of(cells: Iterable[BenchCell], quantity: str) -> list[int]:
    """What a quantity is in the cells, each value once, in order."""
    return sorted({getattr(cell, quantity) for cell in cells})


def most_varied(cells: list[BenchCell]) -> str:
    """The quantity with the most values within one phase of one shape; the first of several."""
    counts = dict.fromkeys(QUANTITIES, 0)
    for group in grouped(cells, lambda cell: (cell.phase, cell.shape)).values():
        for quantity in QUANTITIES:
            counts[quantity] = max(counts[quantity], len(values_of(group, quantity)))
    return max(counts, key=counts.__getitem__)


def grouped(cells: Iterable[BenchCell], key: Callable[[BenchCell], Any]) -> dict[Any, list[BenchCell]]:
    """The cells by what a function says of them."""
    groups: dict[Any, list[BenchCell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def panels_of(cells: list[BenchCell], over: str) -> list[FigurePanel]:
    """Two panels, time and memory, for each phase, shape and dtype in which the quantity varies.

    Other quantities that differ where it is equal have panels of their own.
    """
    others = [quantity for quantity in QUANTITIES if quantity != over and differs(cells, quantity, over)]

    def title_of(cell: BenchCell) -> str:
        sizes = [f"{quantity} {getattr(cell, quantity)}" for quantity in others]
        return ", ".join([cell.phase, cell.shape, cell.dtype, *sizes])

    panels = []
    for title, group in grouped(cells, title_of).items():
        places = values_of(group, over)
        if len(places) < 2:
            continue
        scale = "linear"
        if places[0] > 0 and places[-1] >= WIDE * places[0]:
            scale = "log"
        in_order = sorted(group, key=lambda cell: getattr(cell, over))
        lines = grouped(in_order, lambda cell: f"{cell.library} {cell.attention}, {cell.mode}")
        axes = {"title": title, "x": QUANTITIES[over], "x_scale": scale, "y_scale": "log"}
        times = [time_line(label, line, over) for label, line in lines.items()]
        memory = [memory_line(label, line, over) for label, line in lines.items()]
        panels.append(FigurePanel(y="milliseconds a step", lines=times, **axes))
        panels.append(FigurePanel(y="memory at the peak, MB", lines=memory, **axes))
    return panels


def differs(cells: list[BenchCell], quantity: str, over: str) -> bool:
    """Whether cells of one phase and shape differ in a quantity where they are equal in the one drawn over."""
    alike = grouped(cells, lambda cell: (cell.phase, cell.shape, getattr(cell, over)))
    return any(len(values_of(group, quantity)) > 1 for group in alike.values())


def time_line(label: str, cells: list[BenchCell], over: str) -> Line:
    """Medians between their quartiles."""
    return Line(
        label=label,
        x=[getattr(cell, over) for cell in cells],
        y=[cell.milliseconds for cell in cells],
        low=[cell.milliseconds_low for cell in cells],
        high=[cell.milliseconds_high for cell in cells],
    )


def memory_line(label: str, cells: list[BenchCell], over: str) -> Line:
    """Bytes of tensors at the peak."""
    return Line(
        label=label,
        x=[getattr(cell, over) for cell in cells],
        y=[cell.peak_memory_bytes / MEGABYTE for cell in cells],
    )
