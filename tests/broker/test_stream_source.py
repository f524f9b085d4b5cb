"""Reads of streams on every release, without Spark: the driver's plan, and the rows of a task."""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx.cli import doctor
from rabbit_chx.cli.ask.options import Login
from rabbit_chx.cli.spark import broker_checks
from rabbit_chx.errors import CorruptChunk, InvalidMessage, RabbitChxError
from rabbit_chx.streams import StreamPublisher
from spark_connector import RabbitMQDataSource
from tests.broker.stream_writers import publish_encoded
from tests.faults.proxy import Proxy
from tests.patience import wait_until
from tests.programs import stopping
from tests.spark.streams import numbered

pytestmark = pytest.mark.broker


@pytest.fixture
def reader(broker):
    @contextmanager
    def reader(**options):
        port = str(urlsplit(broker.stream_url).port)
        given = {"url": broker.url, "streamPort": port, "startingOffsets": "earliest", "columns": "value"}
        source = RabbitMQDataSource({**given, **options})
        with stopping(source.streamReader(source.schema())) as made:
            yield made

    return reader


def values(reader, start, end):
    batches = [batch for one in reader.partitions(start, end) for batch in reader.read(one)]
    return [value.as_py() for batch in batches for value in batch.column("value")]


def stored(offset):
    """An offset after a round trip through a checkpoint."""
    return json.loads(json.dumps(offset))


def recreate(streams, stream, bodies):
    streams.create_again(stream)

    def filled():
        """Until the new stream has a leader, the exchange cannot route messages to the stream."""
        try:
            streams.fill(stream, bodies[:1])
        except (pika.exceptions.NackError, pika.exceptions.UnroutableError):
            return False
        return True

    wait_until(filled, "the new stream has a leader", pause=0.1)
    streams.fill(stream, bodies[1:])


@pytest.mark.one_release
def test_doctor_checks_the_port_of_streams_a_read_and_a_write(broker, streams):
    found = doctor._streams(broker.stream_url, Login(credentials=None, tls=None))
    assert found.state == "ok"
    assert "the node advertises" in found.found
    found = doctor._streams("rabbitmq-stream://127.0.0.1:1", Login(credentials=None, tls=None))
    assert (found.state, "rabbitmq-plugins enable rabbitmq_stream" in found.found) == ("missing", True)
    read = {
        "url": broker.url,
        "stream": streams.stream(),
        "streamPort": str(urlsplit(broker.stream_url).port),
    }
    write = {"producerName": "doctor"}
    for change, state, words in [
        ({}, "ok", "read of streams: 1"),
        (write, "ok", "write to streams"),
        (write | {"stream": "nowhere"}, "failed", "has no stream 'nowhere'"),
        ({"streamPort": "1"}, "failed", "rabbitmq-plugins enable rabbitmq_stream"),
        ({"passwordEnv": "NO_SUCH_VARIABLE", "url": "amqp://u@127.0.0.1"}, "failed", "NO_SUCH_VARIABLE"),
    ]:
        (check,) = broker_checks(read | change)
        assert (check.state, words in check.found) == (state, True), check


BROKEN = [b"\0Sr\xd1\0\0\0\xff", b"\0Su\xb0\0\0\0\xffabc"]
"""Messages that begin like AMQP 1.0 and end too early."""


@pytest.mark.newest_first
def test_invalid_messages_fail_a_read_or_are_left_out(broker, streams, reader, caplog):
    stream, bodies = streams.stream(), numbered(0, 40)
    messages = [b"\0Su\xa0" + bytes([len(body)]) + body for body in bodies]
    messages[3:3] = messages[30:30] = BROKEN
    with StreamPublisher(broker.stream_url, stream) as publisher:
        publish_encoded(publisher, messages)
    everything = {stream: {"offset": 0}}, {stream: {"offset": len(messages)}}
    with (
        reader(stream=stream) as strict,
        pytest.raises(InvalidMessage, match=r"offset 3 of stream .*set invalidRows=drop"),
    ):
        values(strict, *everything)
    with reader(stream=stream, invalidRows="drop", minPartitions="2") as lenient:
        assert values(lenient, *everything) == bodies
    logged = [json.loads(one) for one in caplog.messages if "invalid message" in one]
    assert [one["offset"] for one in logged] == [3, 4, 30, 31]


@pytest.mark.long
@pytest.mark.parametrize(
    "size", [pytest.param(5, marks=pytest.mark.one_release), pytest.param(30, marks=pytest.mark.newest_first)]
)
def test_a_stream_that_was_deleted_or_created_again_is_an_error_or_read_from_its_start(streams, reader, size):
    stream = streams.stream()
    short = {"connectionTimeoutMs": "2000"}  # for the missing offsets, too
    streams.fill(stream, numbered(0, 20))
    with reader(stream=stream, **short) as first:
        start = stored(first.initialOffset())
        read = stored(first.latestOffset(start))
        assert values(first, start, read) == numbered(0, 20)
        assert stored(first.latestOffset(read)) == read
        streams.channel.queue_delete(stream)
        with pytest.raises(RabbitChxError, match=f"got '{stream}', expected a stream in the virtual host"):
            first.latestOffset(read)
        recreate(streams, stream, numbered(100, 100 + size))
        with pytest.raises(RabbitChxError, match=r"was deleted and created again.* failOnDataLoss=false"):
            first.latestOffset(read)
    for planned in ((start, read), (read, {stream: {"offset": size}})):
        with (
            reader(stream=stream, **short) as again,
            pytest.raises(RabbitChxError, match="was deleted and created again"),
        ):
            again.partitions(*planned)
    with reader(stream=stream, failOnDataLoss="false", **short) as again:
        assert values(again, start, read) == []  # an earlier run planned this micro-batch
        end = stored(again.latestOffset(read))
        assert values(again, read, end) == numbered(100, 100 + size)
        streams.fill(stream, numbered(500, 501))
        assert values(again, end, stored(again.latestOffset(end))) == numbered(500, 501)


@pytest.mark.newest_first
def test_a_new_stream_of_the_same_length_is_detected_when_it_grows(streams, reader):
    stream = streams.stream()
    streams.fill(stream, numbered(0, 20))
    with reader(stream=stream) as first:
        read = stored(first.latestOffset(stored(first.initialOffset())))
        recreate(streams, stream, numbered(100, 120))
        assert stored(first.latestOffset(read)) == read
        streams.fill(stream, numbered(120, 121))
        with pytest.raises(RabbitChxError, match="was deleted and created again"):
            first.latestOffset(read)


@pytest.mark.one_release
def test_a_chunk_damaged_in_transit_raises_an_error_with_its_offset(broker, streams, reader):
    stream = streams.stream()
    streams.fill(stream, [b"corrupt me"])
    with Proxy(broker.stream_url) as proxy:
        proxy.damage = (b"corrupt me", b"corrupt mf")
        address = f"amqp://{broker.username}:{broker.password}@127.0.0.1"
        where = {"url": address, "streamPort": str(proxy.port)}
        with (
            reader(stream=stream, **where) as damaged,
            pytest.raises(CorruptChunk, match=f"offset 0 of stream '{stream}': the checksum"),
        ):
            values(damaged, {stream: {"offset": 0}}, {stream: {"offset": 1}})
