"""Images of rows, decoded one by one, so that an error names the file that cannot be read."""

from collections.abc import Mapping

import datasets
from PIL.Image import DecompressionBombError

from .sources import Rows


def with_encoded_images(rows: Rows, column: str) -> Rows:
    """The rows with images as their files hold them, for `decoded_image`; as they are where the column has none."""
    if rows.features is None or not isinstance(rows.features.get(column), datasets.Image):
        return rows
    return rows.cast_column(column, datasets.Image(decode=False))


def decoded_image(value: object, where: str) -> object:
    """The image of a row of `with_encoded_images`; a value of another kind as it is.

    Raises:
        ValueError: the file cannot be read as an image; names it after `where`.
    """
    if not isinstance(value, Mapping):
        return value
    try:
        return datasets.Image().decode_example(value)
    except (OSError, SyntaxError, ValueError, DecompressionBombError) as error:
        if value["path"]:
            where = f"{where}, {value['path']}"
        raise ValueError(f"{where}: no readable image: {error}") from error
