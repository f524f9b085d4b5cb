"""The schema of a read.

Most of its columns are also columns of a write, so that rows which were read can be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from rabbit_chx import InvalidValue
from rabbit_chx.streams import COLUMNS
from spark_connector.columns import FIELD_OF, READ_COLUMNS
from spark_connector.option_table import unknown_name

_HEADERS_AS_STRUCTS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES: Final[dict[str, pa.DataType]] = {
    name: COLUMNS[field.name] if field.name in COLUMNS else pa.type_for_alias(field.kind.arrow)
    for name, field in FIELD_OF.items()
}


def of_streams(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of these columns for a reader of streams."""
    return tuple(FIELD_OF[name].name for name in columns)


def spark_schema(
    columns: tuple[str, ...] | None = None, known: Mapping[str, str] = READ_COLUMNS
) -> StructType:
    """The schema of a read of these columns; None for all that are known."""
    names = list(known) if columns is None else columns
    for name in names:
        if name not in known:
            raise unknown_name("name in option columns", name, known)
    return StructType([StructField(name, _type(name)) for name in names])


def _type(name: str) -> Any:
    return from_arrow_type(_TYPES[name], prefer_timestamp_ntz=False)


def checked_columns(
    schema: StructType, columns: tuple[str, ...] | None, known: Mapping[str, str] = READ_COLUMNS
) -> tuple[str, ...]:
    """The columns of the schema that Spark passes: the user's after ``.schema(...)``, else that of `spark_schema`.

    Raises:
        InvalidValue: the user's schema has a column or type that a read does not have.
    """
    for field in schema.fields:
        hint = f'Remove .schema(...), and cast afterwards: col("{field.name}").cast("{field.dataType.simpleString()}")'
        if field.name not in known:
            error = unknown_name("column in the schema of a read", field.name, known)
            raise InvalidValue(error.what, error.got, error.expected, error.hint or "Remove .schema(...)")
        if field.dataType != _type(field.name) and not (_is_text_value(field) or _has_binary_headers(field)):
            expected = _type(field.name).simpleString()
            what = f"type of column {field.name} in the schema of a read"
            raise InvalidValue(what, field.dataType.simpleString(), expected, hint)
        if not field.nullable:
            raise InvalidValue(
                f"column {field.name} in the schema of a read", "NOT NULL", "a column that can be null", hint
            )
    names = tuple(schema.names)
    if columns is not None and names != columns:
        raise InvalidValue(
            "schema of a read", list(names), f"the option columns: {', '.join(columns)}", "Remove one of them"
        )
    if len(set(names)) < len(names):
        raise InvalidValue("schema of a read", list(names), "each column once")
    return names


class Forms(NamedTuple):
    """The columns that a user's schema declares with another type than the table of the columns has."""

    text_value: bool = False
    """The column ``value`` is a string."""
    binary_headers: bool = False
    """The column ``headers`` is an array of structs with binary values, as Spark's source of Kafka returns it."""


AS_DOCUMENTED: Final = Forms()


def forms_of(schema: StructType) -> Forms:
    """The forms of the schema that Spark passes."""
    return Forms(any(map(_is_text_value, schema.fields)), any(map(_has_binary_headers, schema.fields)))


def _is_text_value(field: StructField) -> bool:
    return field.name == "value" and isinstance(field.dataType, StringType)


def _has_binary_headers(field: StructField) -> bool:
    return (
        field.name == "headers" and field.dataType.simpleString() == "array<struct<key:string,value:binary>>"
    )


def arrow_schema(columns: tuple[str, ...], forms: Forms = AS_DOCUMENTED) -> pa.Schema:
    """The schema of a read of these columns, with a binary body."""
    types = _TYPES | {"headers": _HEADERS_AS_STRUCTS} if forms.binary_headers else _TYPES
    return pa.schema([(name, types[name]) for name in columns])


def batch_of(arrays: list[pa.Array], columns: tuple[str, ...], forms: Forms) -> pa.RecordBatch:
    """A batch for Spark; as text, its column ``value`` is the string that Spark's own cast returns."""
    schema = arrow_schema(columns, forms)
    if forms.text_value:
        at = columns.index("value")
        arrays[at] = arrays[at].cast(pa.string(), safe=False)  # like Spark, without a check of the UTF-8
        schema = schema.set(at, pa.field("value", pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
