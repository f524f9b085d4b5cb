"""The schema of a read.

Most of its columns are also columns of a write, so that rows which were read can be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from rabbit_chx import InvalidValue
from rabbit_chx.streams import COLUMNS
from rabbit_chx.streams.messages.arrow.batch import HEADERS_AS_STRUCTS
from spark_connector.columns import FIELD_OF, READ_COLUMNS
from spark_connector.option_table import nearest, unknown_name

_NAME: Final = "pyspark.sql.streaming.datasource"
limits: Any = import_module(_NAME) if find_spec(_NAME) else None
"""PySpark's module for read limits and Trigger.AvailableNow; None before 4.2, where a query with Trigger.AvailableNow ends after one micro-batch."""

AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits else object
"""The base class of a reader that knows where a query with Trigger.AvailableNow ends."""


_BINARY_HEADERS: Final = from_arrow_type(HEADERS_AS_STRUCTS).simpleString()
_TYPES: Final[dict[str, pa.DataType]] = {
    name: COLUMNS[field.name] if field.name in COLUMNS else pa.type_for_alias(field.kind.arrow)
    for name, field in FIELD_OF.items()
}


def of_streams(columns: Iterable[str]) -> tuple[str, ...]:
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
    return StructType([StructField(name, _spark_type(_TYPES[name])) for name in names])


def _spark_type(arrow: pa.DataType) -> Any:
    return from_arrow_type(arrow, prefer_timestamp_ntz=False)


def arrow_schema(
    schema: StructType, columns: tuple[str, ...] | None = None, known: Mapping[str, str] = READ_COLUMNS
) -> pa.Schema:
    """The Arrow schema for the schema that Spark passes: the user's after ``.schema(...)``, else that of `spark_schema`.

    Raises:
        InvalidValue: the user's schema has a column or type that a read does not have.
    """
    for field in schema.fields:
        if field.name not in known:
            hint = nearest(field.name, known).strip() or "Leave it out"
            raise unknown_name("column in the schema of a read", field.name, known, hint)
        arrow, given = _arrow_type(field), field.dataType.simpleString()
        expected = _spark_type(arrow).simpleString()
        if given != expected and arrow == _TYPES[field.name]:
            what = f"type of column {field.name} in the schema of a read"
            hint = f'Declare that type, and cast afterwards: col("{field.name}").cast("{given}")'
            raise InvalidValue(what, given, expected, hint)
        if not field.nullable or (field.name == "headers" and field.dataType != _spark_type(arrow)):
            what = f"column {field.name} in the schema of a read"
            raise InvalidValue(what, "NOT NULL", "a column that can be null, and so can all values in it")
    names = tuple(schema.names)
    if columns is not None and names != columns:
        raise InvalidValue(
            "schema of a read", list(names), f"the option columns: {', '.join(columns)}", "Remove one of them"
        )
    if len(set(names)) < len(names):
        raise InvalidValue("schema of a read", list(names), "each column once")
    return pa.schema([(field.name, _arrow_type(field)) for field in schema.fields])


def _arrow_type(field: StructField) -> pa.DataType:
    """The type of a column; a user may declare ``value`` as a string, and ``headers`` as Spark's source of Kafka returns them."""
    if field.name == "value" and isinstance(field.dataType, StringType):
        return pa.string()
    if field.name == "headers" and field.dataType.simpleString() == _BINARY_HEADERS:
        return HEADERS_AS_STRUCTS
    return _TYPES[field.name]


def batch_of(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch for Spark, of arrays with a binary ``value``; as text, it is the string that Spark's own cast returns."""
    at = schema.get_field_index("value")
    if at >= 0 and schema.field(at).type == pa.string():
        arrays[at] = arrays[at].cast(pa.string(), safe=False)  # like Spark, without a check of the UTF-8
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
