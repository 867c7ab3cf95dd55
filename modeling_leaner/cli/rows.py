"""What several commands read alike: the rows of `--data`, their `--column`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import Dataset

from ..layers_leaner import LeanPreTrainedModel
from ..terminal import did_you_mean, plural
from ..training.data.sources import BUILT_IN, decoded_image, likely_texts, load_split, with_encoded_images
from ..training.tasks.base import place_in_file


OPTIONS = {"data_files": "--data", "text_column": "--column", "image_column": "--column"}  # of a recipe's keys


@contextmanager
def naming_options() -> Iterator[None]:
    """Errors that name a key of recipes become a ValueError that names the option in its place."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        for key, option in OPTIONS.items():
            if f"{key}: " in message:
                raise ValueError(message.replace(f"{key}: ", f"{option}: ", 1)) from error
        raise


def rows_with_content(data: list[str], column: str | None, model: LeanPreTrainedModel) -> tuple[Dataset, str]:
    """The rows of files or of a built-in set that have a text or image, and the column, for `contents`, that holds it.

    Raises ValueError that names --data or --column.
    """
    if len(data) == 1:
        check_spelling(data[0])
    if len(data) == 1 and data[0] in BUILT_IN:
        rows = load_split(data[0], "train")
    else:
        with naming_options():
            rows = load_split(None, "train", data_files=data)
    if column is None:
        column = only_column(rows, model)
    if column not in rows.column_names:
        raise ValueError(f"--column: no column {column}, expected one of {', '.join(rows.column_names)}")
    rows = with_encoded_images(rows, column)
    filled = rows.filter(lambda row: row[column] not in (None, ""), desc="rows with content")
    if len(filled) < len(rows):
        left_out = plural(len(rows) - len(filled), "row")
        print(f"left out: {left_out} with nothing in the column {column}", file=sys.stderr)
    return filled, column


def contents(rows: Dataset, column: str, count: int, source: str) -> list:
    """The first `count` texts or images of a column of `rows_with_content`, fewer where there are fewer rows.

    Raises ValueError for an image that cannot be read; names source, column, row and file.
    """
    values = rows.select_columns(column)[:count][column]
    numbers = [place_in_file(rows, row) + 1 for row in range(len(values))]
    return [
        decoded_image(value, f"--data: {source}: {column}, row {number}") for value, number in zip(values, numbers)
    ]


def data_keys(data: list[str]) -> list[str]:
    """`--data` as keys of a recipe: a built-in set by its name, else files; none without any."""
    if len(data) == 1 and data[0] in BUILT_IN:
        return ["--dataset", *data]
    if data:
        return ["--data_files", *data]
    return []


def check_spelling(name: str) -> None:
    """Raises ValueError for the misspelt name of a built-in set, with the right one."""
    if Path(name).exists() or name in BUILT_IN:
        return
    hint = did_you_mean(name, BUILT_IN)
    if hint:
        raise ValueError(f"--data {name}: no such file or folder, nor a built-in set{hint}")


def only_column(rows: Dataset, model: LeanPreTrainedModel) -> str:
    """The one column that holds what the model reads. Raises ValueError where there is none, or several."""
    kind = "Image" if model.main_input_name == "pixel_values" else "Value"
    names = []
    for name, feature in rows.features.items():
        is_text = type(feature).__name__ == "Value" and feature.dtype in ("string", "large_string")
        if type(feature).__name__ == kind and (kind == "Image" or is_text):
            names.append(name)
    if kind == "Value":
        names = likely_texts(names)
    if len(names) != 1:
        what = "images" if kind == "Image" else "texts"
        columns = ", ".join(names or rows.column_names)
        raise ValueError(f"--column: name the column that holds {what}; the rows have {columns}")
    return names[0]
