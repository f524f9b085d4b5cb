"""Consumers over AMQP 0-9-1 and `StreamReader` receive what `encode_messages` encoded, on each release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rabbit_chx.streams import StreamPublisher, StreamReader
from rabbit_chx.streams.messages.encode import encode_messages
from tests.broker.stream_writers import publish_encoded
from tests.patience import PATIENCE
from tests.queues import a_channel
from tests.stream_messages import MOMENT, PROPERTIES

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

HEADERS = {
    "text": "käse",
    "long text": "x" * 300,
    "true": True,
    "int": -5,
    "long": 2**40,
    "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
}
NOT_IN_3_10 = {"type", "app_id"}
"""Properties that RabbitMQ 3.10 does not deliver to consumers over AMQP 0-9-1."""


def of_python(properties):
    """The properties as arguments: pika has seconds where these have a time."""
    return properties | ({"timestamp": MOMENT} if "timestamp" in properties else {})


def consumed(broker, stream, count):
    """Consume over AMQP 0-9-1, and return exchange, routing key, properties and body of each message."""
    with a_channel(broker) as channel:
        channel.basic_qos(prefetch_count=count)
        found = channel.consume(stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE)
        received = [next(found) for _ in range(count)]
        channel.cancel()
    assert all(method for method, _, _ in received), "no message within 60 seconds"
    return [
        (method.exchange, method.routing_key, vars(properties), body) for method, properties, body in received
    ]


def test_consumers_over_amqp_receive_each_property(broker, stream_url, stream) -> None:
    sent = [{}, *({name: value} for name, value in PROPERTIES.items())]
    with StreamPublisher(stream_url, stream) as publisher:
        for given in sent:
            encoded = encode_messages([b"body"], routing_keys="key", exchange="orders", **of_python(given))
            publish_encoded(publisher, list(encoded))
    old = broker.version.startswith("3.")
    for given, (*target, properties, body) in zip(sent, consumed(broker, stream, len(sent)), strict=True):
        assert (target, body) == (["orders", "key"], b"body")
        if "delivery_mode" not in given:  # RabbitMQ 4 delivers 1 if none is stored
            properties.pop("delivery_mode")
        got = {name: value for name, value in properties.items() if name in PROPERTIES and value is not None}
        assert got == {name: value for name, value in given.items() if not (old and name in NOT_IN_3_10)}


def test_headers_and_all_properties_are_read(broker, stream_url, stream) -> None:
    with StreamPublisher(stream_url, stream) as publisher:
        publisher.publish_many([b"body"], headers=[HEADERS], **of_python(PROPERTIES))
    ((_, _, properties, _),) = consumed(broker, stream, 1)
    assert {name: value for name, value in properties["headers"].items() if name in HEADERS} == HEADERS
    with StreamReader(stream_url, stream) as reader:
        (found,) = reader.messages(0, 1)
    assert (found.body, found.routing_key, found.exchange) == (b"body", "", "")
    assert found.headers == HEADERS
    assert {name: getattr(found, name) for name in PROPERTIES} == of_python(PROPERTIES)
    assert (found.queue, found.offset) == (stream, 0)
    assert found.stream_timestamp is not None
    assert abs(datetime.now(UTC) - found.stream_timestamp) < timedelta(minutes=10)
