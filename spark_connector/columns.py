"""The columns of DataFrames, written and read: those of the table in `rabbit_chx.messages.message_fields`, with the names of Spark.

The body is ``value``, as for Spark's source and sink of Kafka. Types have the names of Spark SQL (``bigint``, ``map``). This
module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from rabbit_chx import InvalidValue
from rabbit_chx.messages.message_fields import FIELDS, MessageField

_SPARKS_NAMES: Final = {"body": "value"}
_ALIASES: Final = {"value": ("body",), "routing_key": ("key",)}

FIELD_OF: Final[Mapping[str, MessageField]] = MappingProxyType(
    {_SPARKS_NAMES.get(field.name, field.name): field for field in FIELDS}
)
"""The field of a message in each column."""


@dataclass(frozen=True)
class Column:
    """A column of a write."""

    name: str
    types: tuple[str, ...]
    doc: str
    aliases: tuple[str, ...] = ()


COLUMNS: Final = tuple(
    Column(name, field.kind.written, field.written, _ALIASES.get(name, ()))
    for name, field in FIELD_OF.items()
    if field.written
)
"""Every column that a DataFrame may have."""


READ_COLUMNS: Final = MappingProxyType(
    {name: field.meaning for name, field in FIELD_OF.items() if "stream" in field.sources}
)
"""Every column of a read of streams, and its meaning."""
QUEUE_COLUMNS: Final = MappingProxyType(
    {name: field.meaning for name, field in FIELD_OF.items() if "queue" in field.sources}
)
"""Every column of a read of a queue, and its meaning."""

AMQP_TAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string": "S",
        "binary": "x",
        "boolean": "t",
        "tinyint": "I",
        "smallint": "I",
        "int": "I",
        "bigint": "l",
        "float": "d",
        "double": "d",
        "timestamp": "T",
        "timestamp_ntz": "T",
        "date": "T",
    }
)
"""Spark type -> AMQP field tag: how a header is sent, and so what an exchange hashes.

The column's type decides, not the value: a ``bigint`` of 5 is sent as 64 bits. Times are sent in whole seconds: a
``timestamp_ntz`` as if it were in UTC, a ``date`` as its midnight in UTC. A null header is not sent. Other types
(``decimal``, nested ones) are rejected because clients and releases disagree about them: ``cast`` them to string.
"""


def sql_type(data_type: Any) -> str:
    """The name of a PySpark type without its parameters: ``string``, ``bigint``, ``map``, ``decimal``."""
    named = re.match(r"[a-z_]+", data_type.simpleString())
    name = named[0] if named else data_type.simpleString()
    return "string" if name in {"char", "varchar"} else name


def amqp_tag(data_type: Any, what: str) -> str:
    """The tag with which a header of this PySpark type is sent; ``what`` names the type in an error."""
    tag = AMQP_TAGS.get(sql_type(data_type))
    if tag is None:
        hint = 'Cast it to string: col("...").cast("string")'
        if sql_type(data_type) == "decimal":
            hint += ". AMQP's own decimal has only 32 bits, and the broker reads a negative one as positive"
        raise InvalidValue(what, data_type.simpleString(), f"one of {', '.join(AMQP_TAGS)}", hint)
    return tag
