"""Frames as the connector's writer gets them, without Spark: schemas, Arrow batches, and one partition written."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as t

from spark_connector import RabbitMQDataSource

TEXT = t.StringType()
ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def frame(kinds, *rows):
    """A schema as Spark has it, and the rows as one Arrow batch."""
    schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    columns = [
        pa.array(column, arrow(kind))
        for column, kind in zip(zip(*rows, strict=True), kinds.values(), strict=True)
    ]
    return schema, pa.record_batch(columns, names=list(kinds))


def arrow(kind):
    if isinstance(kind, t.MapType):
        return pa.map_(arrow(kind.keyType), arrow(kind.valueType))
    if isinstance(kind, t.ArrayType):
        return pa.list_(arrow(kind.elementType))
    if isinstance(kind, t.StructType):
        return pa.struct([(field.name, arrow(field.dataType)) for field in kind.fields])
    return ARROW[kind.simpleString()]


def source(broker, **options):
    return RabbitMQDataSource({"url": broker.url, "retryTimeoutMs": "300"} | options)


def write(broker, schema, *batches, **options):
    """Write and commit, as Spark does with one partition."""
    writer = source(broker, **options).writer(schema, overwrite=False)
    written = writer.write(iter(batches))
    writer.commit([written])
    return written


def rows(count, start=0):
    return frame(
        {"value": TEXT, "key": TEXT}, *((f"body {n}", f"key {n % 7}") for n in range(start, start + count))
    )
