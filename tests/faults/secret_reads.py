"""Scenarios of reads with a secret: over the stream protocol, and with the connector, called without Spark."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika

from rabbit_chx.streams import BrokerUrl, StreamReader, Timeouts, connect
from rabbit_chx.streams.protocol.requests import OffsetSpec
from spark_connector import RabbitMQDataSource
from tests.faults.secret_scenarios import Scenarios, Site, common, show
from tests.patience import wait_until
from tests.programs import stopping
from tests.spark.streams import Streams

STREAM, QUEUE, CLOSED = "secrets.read", "secrets.read.queue", "secrets.closed"
ROWS = 20

# -- the stream protocol -------------------------------------------------------------------------------------


def read(site: Site, url: str, **options: Any) -> None:
    with StreamReader(url, STREAM, timeouts=Timeouts(connect=5, reconnect=5), **options) as reader:
        show(reader, reader.bounds())
        found = list(reader.messages(0, ROWS))
    assert len(found) == ROWS


def closed_in_the_middle(site: Site) -> None:
    """The connection ends while it is subscribed."""
    with connect(site.stream()) as connection:
        number = connection._subscribe(STREAM, OffsetSpec.first(), credit=1)
        show(connection, number)
        site.broker.ctl("close_all_user_connections", site.user, "a test of secrets")
        for _ in connection._chunks(20):
            pass


STREAM_READER: Scenarios = common(read, BrokerUrl.for_streams, Site.stream) | {
    "a read that succeeds": (lambda site: read(site, site.stream()), ""),
    "a wrong password file": (
        lambda site: read(site, site.stream(""), credentials=site.file("wrong-stream", site.wrong)), "rejected the user"
    ),
    "closed by the broker": (closed_in_the_middle, "lost|closed the connection"),
}  # fmt: skip


# -- Spark ---------------------------------------------------------------------------------------------------


def spark_read(site: Site, url: str, tls: dict[str, str] | None = None, **options: str) -> None:
    """Read a stream as a batch, as Spark does on the driver and in a task, and plan a micro-batch."""
    port = urlsplit(url).port
    if port == urlsplit(site.broker.url).port:
        port = urlsplit(site.broker.stream_url).port
    given = {"url": url, "stream": STREAM, "streamPort": str(port), **_brief(site), **(tls or {}), **options}
    source = RabbitMQDataSource(given)
    streaming = source.streamReader(source.schema())
    batch = source.reader(source.schema())
    show(batch, streaming, batch._job, batch._job.options)
    partitions = batch.partitions()
    with stopping(streaming):
        print(json.dumps([streaming.initialOffset(), streaming.latestOffset()]))
    show(*partitions)
    assert sum(rows.num_rows for one in partitions for rows in batch.read(one)) == ROWS


def spark_receive(site: Site, url: str, tls: dict[str, str] | None = None, **options: str) -> None:
    """Receive the messages of a queue as Spark does on the driver."""
    source = RabbitMQDataSource({"url": url, "queue": QUEUE, **_brief(site), **(tls or {}), **options})
    reader = source.streamReader(source.schema())
    show(reader, reader._options)
    start = reader.initialOffset()
    with stopping(reader):
        wait_until(lambda: reader.latestOffset()["rows"] == ROWS, "all messages", pause=0.1)
        end = reader.latestOffset()
        print(json.dumps([start, end]))
        partitions = reader.partitions(start, end)
        show(reader, reader._reader)
    assert sum(rows.num_rows for one in partitions for rows in reader.read(one))


def _brief(site: Site) -> dict[str, str]:
    return {
        "connectionTimeoutMs": "5000",
        "reconnectTimeoutMs": "300",
        "connectionName": f"read of {site.user}",
    }


def _locked(site: Site, key: str | None = None, ca: str = "ca.pem") -> dict[str, str]:
    folder: Path = site.authority.folder
    files = {"tlsCaFile": ca, "tlsCertFile": "client.pem", "tlsKeyFile": "locked.key"}
    return {name: str(folder / file) for name, file in files.items()} | {
        "tlsKeyPassword": site.key if key is None else key
    }


def _malformed(site: Site, **source: str) -> None:
    """Raise the errors of all URLs whose password is not escaped."""
    errors = []
    for url in site.malformed():
        try:
            RabbitMQDataSource({"url": url, **source}).schema()
        except Exception as error:  # noqa: BLE001 - the caller searches it
            errors.append(error)
        else:
            raise AssertionError("a malformed URL was accepted")
    raise ExceptionGroup("malformed", errors)


def _of_both(run: Any, **source: str) -> Scenarios:
    """The scenarios that both reads share."""
    return {
        "a wrong password": (lambda site: run(site, site.amqp(site.wrong)), "rejected the user"),
        "a wrong password as an option": (
            lambda site: run(site, site.anonymous, password=site.wrong), "rejected the user"
        ),
        "a wrong password file": (
            lambda site: run(site, site.anonymous, passwordFile=str(site.file("wrong-read", site.wrong))),
            "rejected the user",
        ),
        "two passwords": (lambda site: run(site, site.amqp(), password=site.wrong), "password and url"),
        "no broker": (lambda site: run(site, site.amqp(where="127.0.0.1:1")), "Connection refused"),
        "malformed URLs": (partial(_malformed, **source), "malformed"),
        "a misspelt option": (lambda site: run(site, site.amqp(), pasword=site.wrong), "Did you mean password"),
        "another authority": (
            lambda site: run(site, site.tls, _locked(site, ca="other-ca.pem")), "certificate"
        ),
        "a wrong passphrase": (lambda site: run(site, site.tls, _locked(site, site.wrong)), "tlsKeyPassword opens"),
    }  # fmt: skip


SPARK_READ: Scenarios = _of_both(spark_read, stream=STREAM) | {
    "a read that succeeds": (lambda site: spark_read(site, site.amqp()), ""),
    "a management API that refuses": (
        lambda site: _of_exchange(site, site.http(site.wrong)), "rejected the user"
    ),
    "a management API that does not answer": (
        lambda site: _of_exchange(site, site.http(where="127.0.0.1:1")), "Connection refused"
    ),
    "a malformed management URL": (lambda site: _of_exchange(site, f"http://u:{site.wrong}/@h"), "management URL"),
    "rows that are lost": (
        lambda site: spark_read(site, site.amqp(), startingOffsets=f'{{"{STREAM}": 99}}'), "where the stream ends"
    ),
}  # fmt: skip

SPARK_QUEUE: Scenarios = _of_both(spark_receive, queue=QUEUE) | {
    "a read that succeeds": (lambda site: spark_receive(site, site.amqp()), ""),
    "over TLS, with a locked key": (lambda site: spark_receive(site, site.tls, _locked(site)), ""),
    "no such queue": (lambda site: spark_receive(site, site.amqp(), queue="secrets.read.no"), "secrets.read.no"),
    "no permission": (lambda site: spark_receive(site, site.amqp(), queue=CLOSED), "permission"),
}  # fmt: skip


def _of_exchange(site: Site, management: str) -> None:
    source = RabbitMQDataSource({"url": site.amqp(), "exchange": "amq.fanout", "managementUrl": management})
    reader = source.reader(source.schema())
    show(reader._job.options)
    reader.partitions()


def fill(streams: Streams, body: str) -> None:
    """Declare and fill the streams and the queue that the scenarios read."""
    streams.declare(STREAM)
    streams.fill(STREAM, [body.encode()] * ROWS, headers={"token": body})
    streams.channel.queue_declare(QUEUE, durable=True)
    streams.channel.queue_declare(CLOSED, durable=True)
    for _ in range(ROWS):
        streams.channel.basic_publish("", QUEUE, body.encode(), pika.BasicProperties(headers={"token": body}))


def remove(streams: Streams) -> None:
    for queue in (STREAM, QUEUE, CLOSED):
        streams.channel.queue_delete(queue)
