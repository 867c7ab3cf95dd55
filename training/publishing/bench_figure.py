"""The figure of `leaner bench-figure`: time and memory of a step against the quantity that varies in a CSV file."""

from collections.abc import Iterable
from pathlib import Path

from modeling_leaner.support.files import write_bytes

from ..benchmarking.cells import read_cells
from ..records import BenchCell, FigurePanel, Line
from .figures import THEMES
from .panels import panels_figure


QUANTITIES = {  # that may vary, by their columns, and the names of their axes
    "length": "tokens of a text",
    "batch": "items of a step",
    "layers": "layers",
    "heads": "heads",
    "head_dim": "size of a head",
    "new_tokens": "new tokens of a text",
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
        write_bytes(written[-1], panels_figure(panels, path.stem, theme))
        print(written[-1])
    return written


def values_of(cells: Iterable[BenchCell], quantity: str) -> list[int]:
    """What a quantity is in the cells, each value once, in order."""
    return sorted({getattr(cell, quantity) for cell in cells})


def most_varied(cells: list[BenchCell]) -> str:
    """The quantity with the most values within one phase of one shape; the first of several."""
    counts = dict.fromkeys(QUANTITIES, 0)
    for group in groups_of(cells).values():
        for quantity in QUANTITIES:
            counts[quantity] = max(counts[quantity], len(values_of(group, quantity)))
    return max(counts, key=counts.__getitem__)


def groups_of(cells: Iterable[BenchCell]) -> dict[str, list[BenchCell]]:
    """The cells of each row of panels, by its title."""
    groups: dict[str, list[BenchCell]] = {}
    for cell in cells:
        groups.setdefault(f"{cell.phase}, {cell.shape}, {cell.dtype}", []).append(cell)
    return groups


def panels_of(cells: Iterable[BenchCell], over: str) -> list[FigurePanel]:
    """Two panels, time and memory, for each phase, shape and dtype in which the quantity varies."""
    panels = []
    for title, group in groups_of(cells).items():
        places = values_of(group, over)
        if len(places) < 2:
            continue
        scale = "linear"
        if places[0] > 0 and places[-1] >= WIDE * places[0]:
            scale = "log"
        lines = lines_of(group, over)
        axes = {"title": title, "x": QUANTITIES[over], "x_scale": scale, "y_scale": "log"}
        times = [time_line(label, line, over) for label, line in lines.items()]
        memory = [memory_line(label, line, over) for label, line in lines.items()]
        panels.append(FigurePanel(y="milliseconds a step", lines=times, **axes))
        panels.append(FigurePanel(y="memory at the peak, MB", lines=memory, **axes))
    return panels


def lines_of(cells: list[BenchCell], over: str) -> dict[str, list[BenchCell]]:
    """The cells of each line in the order of the quantity, by the line's label: who, and what else differs."""
    others = [quantity for quantity in QUANTITIES if quantity != over and differs(cells, quantity, over)]
    lines: dict[str, list[BenchCell]] = {}
    for cell in sorted(cells, key=lambda cell: getattr(cell, over)):
        sizes = [f"{quantity} {getattr(cell, quantity)}" for quantity in others]
        label = ", ".join([f"{cell.library} {cell.attention} {cell.mode}", *sizes])
        lines.setdefault(label, []).append(cell)
    return lines


def differs(cells: list[BenchCell], quantity: str, over: str) -> bool:
    """Whether cells differ in a quantity where they are equal in the one they are drawn over."""
    return any(
        len(values_of([cell for cell in cells if getattr(cell, over) == place], quantity)) > 1
        for place in values_of(cells, over)
    )


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
