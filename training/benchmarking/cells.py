"""The CSV file of `leaner bench`: its cells below the lines that say where they were measured."""

import csv
import io
from pathlib import Path

from pydantic import ValidationError

from ..records import BenchCell, BenchFile, message_of


MOST = 1e30  # of a number
MEASURED = ("milliseconds", "milliseconds_low", "milliseconds_high", "peak_memory_bytes")  # of a cell that ran


def csv_text(document: BenchFile) -> str:
    """Provenance in lines that begin with #, then the cells."""
    file = io.StringIO(newline="")
    provenance = {
        **document.environment.document(),
        "timm": document.timm,
        "processor_flags": " ".join(document.processor_flags),
        **{f"matrix_product_flops {dtype}": f"{rate:.4g}" for dtype, rate in document.matrix_product_flops.items()},
        **{f"geometric mean of speedups, {name}": f"{mean:.3f}" for name, mean in document.geometric_means.items()},
    }
    for name, value in provenance.items():
        file.write(f"# {name}: {value}\n")
    writer = csv.DictWriter(file, list(BenchCell.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in document.cells)
    return file.getvalue()


def read_cells(path: Path) -> list[BenchCell]:
    """The cells of a file that `csv_text` wrote.

    Raises:
        ValueError: there is no such file, or it has another form; names it, the row and the column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no file, no UTF-8
        raise ValueError(f"{path}: expected a CSV file of leaner bench ({error})") from error
    lines = [line for line in io.StringIO(text, newline="") if not line.startswith("#")]
    reader = csv.DictReader(lines, strict=True)
    try:
        if reader.fieldnames != list(BenchCell.model_fields):
            raise ValueError(f"{path}: expected the columns {', '.join(BenchCell.model_fields)}")
        cells = [read_cell(row, f"{path}: row {number}") for number, row in enumerate(reader, 1)]
    except csv.Error as error:
        raise ValueError(f"{path}: expected a CSV file of leaner bench ({error})") from error
    if not cells:
        raise ValueError(f"{path}: expected a row at least")
    return cells


def read_cell(row: dict[str, str], place: str) -> BenchCell:
    """A row, in which nothing stands for None; raises ValueError that begins with its place."""
    if None in row or None in row.values():
        raise ValueError(f"{place}: expected {len(BenchCell.model_fields)} values")
    values = {name: text for name, text in row.items() if text}
    missing = dict.fromkeys(row.keys() - values.keys())
    try:
        cell = BenchCell.model_validate({**values, **missing}, strict=False)
    except ValidationError as error:
        raise ValueError(f"{place}: {message_of(error)}") from error
    for name, value in cell:
        if isinstance(value, int | float) and value > MOST:
            raise ValueError(f"{place}: {name} is above {MOST:g}, which nothing measures")
    if len({getattr(cell, name) is None for name in MEASURED}) > 1:
        raise ValueError(f"{place}: expected {', '.join(MEASURED)}, or none of them")
    return cell
