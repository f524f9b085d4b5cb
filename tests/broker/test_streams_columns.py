"""Messages of other clients, read as rows."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import UTC, datetime

import pika
import pytest
import rstream

from rabbit_chx.streams import StreamReader
from tests.broker.privileges import release_of
from tests.broker.stream_scene import streams_at
from tests.broker.stream_writers import place
from tests.stream_chunks import moment
from tests.stream_messages import EXCHANGE, FROM_0_9_1, SECONDS, Properties, expected_of

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


@pytest.fixture
def stream(stream_url):
    with streams_at(stream_url, f"columns {uuid.uuid4().hex[:8]}") as (name,):
        yield name


def rows_of(url, stream) -> list[dict]:
    with StreamReader(url, stream) as reader:
        bounds = reader.bounds()
        batches = list(reader.read(bounds.first, bounds.end))
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def test_messages_published_over_amqp_0_9_1_are_read(broker, stream_url, stream) -> None:
    before = datetime.now(UTC)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(EXCHANGE, "fanout", auto_delete=True)
        channel.queue_bind(stream, EXCHANGE)
        for name, sent in FROM_0_9_1.items():
            exchange, key = ("", stream) if name == "default exchange" else (EXCHANGE, sent.routing_key)
            properties = Properties(sent)
            properties.user_id = properties.user_id and stream_url.user
            channel.basic_publish(exchange, key, sent.body, properties)
        channel.queue_unbind(stream, EXCHANGE)
    rows = rows_of(stream_url, stream)
    release = ".".join(map(str, release_of(broker)[:2]))
    for offset, (name, row) in enumerate(zip(FROM_0_9_1, rows, strict=True)):
        assert abs((row.pop("stream_timestamp") - before).total_seconds()) < 600
        expected = asdict(expected_of(name, release, stream)) | {"stream": stream, "offset": offset}
        expected |= {"user_id": expected["user_id"] and stream_url.user}
        assert row == expected, name


async def test_messages_of_a_stream_client_are_read(broker, stream_url, stream) -> None:
    message = rstream.AMQPMessage(
        body=b"in AMQP 1.0",
        properties=rstream.Properties(
            message_id="id-1", content_type="text/plain", creation_time=SECONDS * 1000, subject="kind"
        ),
        application_properties={b"text": "k\u00e4se", b"number": 5, b"true": True},
    )

    async with rstream.Producer(**place(broker), default_batch_publishing_delay=0.01) as producer:
        for each in (message, b"no AMQP 1.0"):
            await producer.send_wait(stream, each)
    first, second = rows_of(stream_url, stream)
    assert {
        name: value for name, value in first.items() if value is not None and name != "stream_timestamp"
    } == {
        "body": b"in AMQP 1.0",
        "headers": {"text": "k\u00e4se", "number": "5", "true": "true"},
        "message_id": "id-1",
        "content_type": "text/plain",
        "type": "kind",
        "timestamp": moment(SECONDS * 1000),
        "stream": stream,
        "offset": 0,
    }
    assert (second["body"], second["headers"], second["offset"]) == (b"no AMQP 1.0", {}, 1)
