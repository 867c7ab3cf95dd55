"""What every record is: named values of a JSON object, read strictly and written as they were read.

A whole number is no number with a point, text is no number, and no number is infinite. Keys that are not documented
are kept as they are, behind the fields.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator


Count = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Kind = TypeVar("Kind")

EXPECTED = {  # pydantic's name of an error → what was expected
    "string_type": "str",
    "int_type": "int",
    "int_from_float": "int",
    "bool_type": "bool",
    "float_type": "float",
    "finite_number": "a finite number",
    "dict_type": "dict",
    "model_type": "dict",
    "model_attributes_type": "dict",
    "list_type": "list",
    "greater_than_equal": "a number from 0",
    "greater_than": "a number above 0",
    "too_short": "at least one",
    "string_pattern_mismatch": "a SHA-256, 64 hex digits in lower case",  # the one pattern that records have
}


class Record(BaseModel):
    """Named values of a JSON object."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )

    @model_validator(mode="before")
    @classmethod
    def _missing_as_none(cls, values: object) -> object:
        """A value that has to be there reads as None where it is missing: the error then says what was expected."""
        if not isinstance(values, dict):
            return values
        needed = {
            field.alias or name: None
            for name, field in cls.model_fields.items()
            if field.is_required() and type(None) not in get_args(field.annotation) and name not in values
        }
        return {**needed, **values}

    def document(self) -> dict[str, Any]:
        """The values as JSON holds them, in the order of the fields; what was not given is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def message_of(error: ValidationError, prefix: str = "") -> str:
    """One line for the first value that does not fit: its place, what it is, and what was expected."""
    first = error.errors()[0]
    place = ".".join(map(str, ([prefix] if prefix else []) + [*first["loc"]]))
    if first["type"] == "value_error":
        return f"{place}.{first['ctx']['error']}".removeprefix(".")
    if first["type"] == "missing":
        return f"{place} is missing"
    expected = EXPECTED.get(first["type"], first["msg"])
    if not place:
        return f"expected {expected}, got {first['input']!r:.100}"
    return f"{place} is {first['input']!r:.100}, expected {expected}"


def checked(kind: type[Kind], document: object, path: Path, prefix: str = "") -> Kind:
    """The record, or list of records, in a document of a file.

    Raises:
        ValueError: names the file, the first value that does not fit, and what was expected.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {message_of(error, prefix)}") from error
