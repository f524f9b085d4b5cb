"""Reads and writes of Spark refuse a server whose certificate is wrong, say why, and send it no password.

Called as Spark calls them, without a Spark, against the listeners of tests/unit/test_tls_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_connector import RabbitMQDataSource
from tests.tls import Authority, Listener
from tests.unit.test_tls_refusals import PASSWORD, authority, bad

__all__ = ["authority", "bad"]

SCHEMA = t.StructType([t.StructField("value", t.StringType())])
BATCH = pa.record_batch([pa.array(["x"])], names=["value"])
UNCHECKED = {"checkExchange": "false"}


def write(source: RabbitMQDataSource) -> None:
    source.writer(SCHEMA, overwrite=False)


def write_unchecked(source: RabbitMQDataSource) -> None:
    writer = source.writer(SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([BATCH]))])


def write_a_stream(source: RabbitMQDataSource) -> None:
    writer = source.streamWriter(SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([BATCH]))], 0)


def read(source: RabbitMQDataSource) -> None:
    source.reader(source.schema()).partitions()


def read_a_stream(source: RabbitMQDataSource) -> None:
    source.streamReader(source.schema()).initialOffset()


def read_a_queue(source: RabbitMQDataSource) -> None:
    source.streamReader(source.schema()).latestOffset()


EXCHANGE = {"exchange": "orders", "routingKey": "k"}
STREAM = {"stream": "events", "streamPort": "PORT"}
SUPER_STREAM = {"superStream": "events", "streamPort": "PORT"}
API = {"managementUrl": "https://user:PASSWORD@127.0.0.1:PORT"}
CALLS: dict[str, tuple[Callable[[RabbitMQDataSource], None], dict[str, str]]] = {
    "batch to an exchange, on the driver": (write, EXCHANGE),
    "batch to an exchange, in a task": (write_unchecked, EXCHANGE | UNCHECKED),
    "micro-batch to an exchange": (write_a_stream, EXCHANGE),
    "dry run": (write, EXCHANGE | {"dryRun": "true"}),
    "bindings of the exchange": (write, EXCHANGE | UNCHECKED | API),
    "batch to a stream, on the driver": (write, STREAM),
    "batch to a stream, in a task": (write_unchecked, STREAM | UNCHECKED),
    "micro-batch to a stream": (write_a_stream, STREAM),
    "batch from a stream": (read, STREAM),
    "batch from a super stream": (read, SUPER_STREAM),
    "batch from the streams of an exchange": (read, {"exchange": "orders"} | API),
    "micro-batch from a stream": (read_a_stream, STREAM),
    "micro-batch from a queue": (read_a_queue, {"queue": "a"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_spark_refuses_a_wrong_certificate_and_says_what_is_wrong(
    call: str, bad: tuple[Listener, str, tuple[str, ...]], authority: Authority
) -> None:
    listener, known, words = bad
    use, options = CALLS[call]
    options = {
        "url": "amqps://user:PASSWORD@127.0.0.1:PORT",
        "tlsCaFile": str(authority.folder / f"{known}.pem"),
        **options,
    }
    given = {
        name: value.replace("PORT", str(listener.port)).replace("PASSWORD", PASSWORD)
        for name, value in options.items()
    }
    with pytest.raises(Exception, match="TLS with ") as caught:
        use(RabbitMQDataSource(given))
    text = str(caught.value)
    assert any(word in text for word in words), text
    assert f"127.0.0.1:{listener.port}" in text
    assert PASSWORD not in f"{text} {caught.value!r} {caught.value.__cause__!r}"
