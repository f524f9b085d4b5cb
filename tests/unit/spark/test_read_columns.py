"""Columns of a read: the types of `rabbit_chx.streams` in Spark."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rabbit_chx.streams import COLUMNS
from rabbit_chx.streams.messages.arrow.batch import HEADERS_AS_STRUCTS
from spark_connector import RabbitMQDataSource
from spark_connector.columns import READ_COLUMNS
from spark_connector.reading.schema import arrow_schema, batch_of, spark_schema
from tests.unit.complaints import complaint

OPTIONS = {"url": "amqp://user@host", "stream": "s"}


def schema(**types: object) -> StructType:
    return StructType([StructField(name, one) for name, one in types.items()])


def test_every_column_of_a_stream_is_documented() -> None:
    assert [*READ_COLUMNS] == ["value" if name == "body" else name for name in COLUMNS]
    assert all(doc.endswith(".") for doc in READ_COLUMNS.values())


def test_batches_have_the_schema_that_spark_expects() -> None:
    zone = (
        {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    )  # from PySpark 4.1
    assert arrow_schema(spark_schema()).equals(to_arrow_schema(spark_schema(), **zone))
    assert spark_schema(("offset", "headers")) == schema(
        offset=LongType(), headers=MapType(StringType(), StringType())
    )
    assert spark_schema(("stream_timestamp", "value")) == schema(
        stream_timestamp=TimestampType(), value=BinaryType()
    )


def test_a_schema_of_the_user_names_columns() -> None:
    assert arrow_schema(schema(offset=LongType(), value=BinaryType())).names == ["offset", "value"]
    assert arrow_schema(schema(value=BinaryType()), ("value",)) == pa.schema({"value": pa.binary()})


def test_a_body_can_be_text_as_spark_casts_it() -> None:
    text = arrow_schema(schema(offset=LongType(), value=StringType()))
    assert text == pa.schema({"offset": pa.int64(), "value": pa.string()})
    arrays = [pa.array([1, 2, 3]), pa.array([b"\xc3\xa4", b"\xff", None])]
    batch = batch_of(arrays, text)
    assert batch.schema.field("value").type == pa.string()
    assert batch.column("value").cast(pa.binary()).to_pylist() == [b"\xc3\xa4", b"\xff", None]


def test_headers_can_be_structs_as_sparks_source_of_kafka_returns_them() -> None:
    headers = ArrayType(schema(key=StringType(), value=BinaryType()))
    assert arrow_schema(schema(headers=headers)) == pa.schema({"headers": HEADERS_AS_STRUCTS})


@pytest.mark.parametrize(
    ("given", "columns", "words"),
    [
        (
            schema(routing_key=BinaryType()),
            None,
            'got \'binary\', expected string. Declare that type, and cast afterwards: col("routing_key").cast("binary")',
        ),
        (schema(vaule=BinaryType()), None, "Did you mean value?"),
        (schema(x=BinaryType()), None, "Leave it out"),
        (StructType([StructField("value", BinaryType(), nullable=False)]), None, "a column that can be null"),
        (
            schema(headers=MapType(StringType(), StringType(), False)),
            None,
            "got 'NOT NULL', expected a column",
        ),
        (
            schema(headers=ArrayType(schema(key=StringType(), value=BinaryType()), containsNull=False)),
            None,
            "got 'NOT NULL', expected a column",
        ),
        (schema(value=BinaryType()), ("value", "offset"), "the option columns: value, offset"),
        (StructType([StructField("value", BinaryType())] * 2), None, "each column once"),
    ],
)
def test_an_invalid_schema_is_an_error_with_a_hint(
    given: StructType, columns: tuple[str, ...] | None, words: str
) -> None:
    assert words in str(complaint(lambda: arrow_schema(given, columns)))


def test_an_unknown_column_is_an_error_with_the_nearest_name() -> None:
    error = complaint(lambda: RabbitMQDataSource(OPTIONS | {"columns": "value,routingkey"}).schema())
    assert error.got == "routingkey"
    assert error.hint.startswith("Did you mean routing_key? Known names: value, routing_key, ")
