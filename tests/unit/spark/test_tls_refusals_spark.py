"""Reads and writes of Spark refuse a server whose certificate is wrong, say why, and send it no password.

Called as Spark calls them, without a Spark, against the listeners of tests/unit/test_tls_refusals.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from rabbit_chx import InvalidValue
from rabbit_chx.cli.spark import _question, broker_checks, executor_check
from rabbit_chx.errors import BrokerUnavailable
from spark_connector import RabbitMQDataSource
from tests.patience import wait_until
from tests.programs import stopping
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


@pytest.fixture
def given(bad: tuple[Listener, str, tuple[str, ...]], authority: Authority) -> Callable[..., dict[str, str]]:
    """Complete the options of a call with the address of the listener."""
    listener, known, _ = bad

    def given(options: dict[str, str]) -> dict[str, str]:
        known_to_all = {
            "url": "amqps://user:PASSWORD@127.0.0.1:PORT",
            "tlsCaFile": str(authority.folder / f"{known}.pem"),
        }
        return {
            name: value.replace("PORT", str(listener.port)).replace("PASSWORD", PASSWORD)
            for name, value in (known_to_all | options).items()
        }

    return given


@pytest.mark.parametrize("call", CALLS)
def test_spark_refuses_a_wrong_certificate_and_says_what_is_wrong(
    call: str, bad: tuple[Listener, str, tuple[str, ...]], given: Callable[..., dict[str, str]]
) -> None:
    listener, known, words = bad
    use, options = CALLS[call]
    with pytest.raises(Exception, match="TLS with ") as caught:
        use(RabbitMQDataSource(given(options)))
    text = str(caught.value)
    assert any(word in text for word in words), text
    assert ("in Spark, its file as tlsCaFile" in text) == (known == "other-ca")
    assert f"127.0.0.1:{listener.port}" in text
    assert PASSWORD not in f"{text} {caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    "options", [EXCHANGE, STREAM, SUPER_STREAM], ids=["exchange", "stream", "super stream"]
)
def test_doctor_names_a_wrong_certificate_in_the_rows_of_the_driver_and_of_an_executor(
    options: dict[str, str], bad: tuple[Listener, str, tuple[str, ...]], given: Callable[..., dict[str, str]]
) -> None:
    """Without a Spark, whose executors ask themselves this question."""
    listener, _, words = bad
    (driver,) = broker_checks(given(options))
    executor = executor_check(json.loads(_question(given(options), [])(0)), "")
    for row in (driver, executor):
        assert row.state == "failed"
        assert any(word in row.found for word in words), row
        assert f"127.0.0.1:{listener.port}" in row.found
        assert PASSWORD not in str(row)
        assert "Traceback" not in row.found
        assert "\n" not in row.found


def test_a_port_with_tls_is_named_to_a_read_of_a_queue_without_it(authority: Authority) -> None:
    with Listener(authority.server("good"), "amqp://127.0.0.1:1") as listener:
        url = f"amqp://127.0.0.1:{listener.port}"
        source = RabbitMQDataSource({"url": url, "queue": "a", "reconnectTimeoutMs": "500"})
        with (
            stopping(source.streamReader(source.schema())) as reader,
            pytest.raises(BrokerUnavailable, match="is this a port with TLS"),
        ):
            wait_until(lambda: reader.latestOffset() is None, "an error")


def test_an_api_without_tls_does_not_get_the_password_of_an_amqps_url() -> None:
    options = {"url": "amqps://127.0.0.1:1", "exchange": "orders", "managementUrl": "http://127.0.0.1:1"}
    with pytest.raises(InvalidValue, match="gets the password of an amqps URL"):
        read(RabbitMQDataSource(options))
