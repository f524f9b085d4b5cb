"""Publishing a list of messages with each client: with confirms or commits, with ``mandatory``, and in bulk.

All have the same face: they take a list, wait until the broker has confirmed every message of it, and tell
which ones came back as unroutable. The body of a message is its place in the list. Nothing here knows what
an exchange does with a message.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import aio_pika
import amqp
import amqpstorm
import pika
import pytest
from aiormq.abc import DeliveredMessage

from rabbit_chx.mirror.fields import Field
from tests.patience import PATIENCE
from tests.stream_messages import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rabbit_chx.mirror.fields import Client


FAST: Final = ("pika", "aio-pika", "py-amqp")
PUBLISHERS: Final = (*FAST, pytest.param("amqpstorm", marks=pytest.mark.long))
"""The clients that the tests publish with; amqpstorm waits for each confirm by polling."""

WINDOW: Final = 500
"""Messages that may wait for their confirms, or for a commit, at once."""


@dataclass(frozen=True)
class Message:
    """The parts of a message that an exchange may hash, named as ``ConsistentHashExchange.route`` names them."""

    routing_key: str | bytes = ""
    headers: Mapping[str, Any] | None = None
    message_id: str | bytes | None = None
    correlation_id: str | bytes | None = None
    timestamp: int | datetime | None = None


def publish(url: str, exchange: str, messages: Sequence[Message], client: Client) -> set[int]:
    """Publish all messages and return the places of those that no queue took."""
    match client:
        case "pika":
            return _publish_with_pika(url, exchange, messages)
        case "aio-pika":
            return asyncio.run(_publish_with_aio_pika(url, exchange, messages))
        case "py-amqp":
            return _publish_with_py_amqp(url, exchange, messages)
        case "amqpstorm":
            return _publish_with_amqpstorm(url, exchange, messages)
    raise AssertionError(f"no publisher for {client}")


def _publish_with_pika(url: str, exchange: str, messages: Sequence[Message]) -> set[int]:
    """In transactions: pika's blocking connection would wait for every confirm alone."""
    returned: set[int] = set()
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.add_on_return_callback(lambda *got: returned.add(int(got[-1])))
        channel.tx_select()
        for start in range(0, len(messages), WINDOW):
            for place, message in enumerate(messages[start : start + WINDOW], start):
                body, properties = str(place).encode(), _pika_properties(message)
                channel.basic_publish(exchange, message.routing_key, body, properties, mandatory=True)
            channel.tx_commit()
        connection.process_data_events()
    return returned


def _pika_properties(message: Message) -> pika.BasicProperties:
    if message.headers and any(isinstance(value, Field) for value in message.headers.values()):
        return _RawHeaders(headers=message.headers)
    return pika.BasicProperties(
        headers=message.headers,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        timestamp=message.timestamp,
    )


class _RawHeaders(pika.BasicProperties):
    """Headers written from `Field` values, to send the types that no client sends by itself."""

    def encode(self) -> list[bytes]:
        return [struct.pack(">H", self.FLAG_HEADERS), table(self.headers.items())]


async def _publish_with_aio_pika(url: str, exchange: str, messages: Sequence[Message]) -> set[int]:
    returned: set[int] = set()
    async with asyncio.timeout(PATIENCE), await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        target = await channel.get_exchange(exchange, ensure=False)

        async def send(place: int) -> None:
            message = messages[place]
            done = await target.publish(
                aio_pika.Message(
                    str(place).encode(),
                    headers=message.headers,
                    message_id=message.message_id,
                    correlation_id=message.correlation_id,
                    timestamp=message.timestamp,
                ),
                message.routing_key,
                mandatory=True,
            )
            if isinstance(done, DeliveredMessage):
                returned.add(place)

        for start in range(0, len(messages), WINDOW):
            stop = min(start + WINDOW, len(messages))
            await asyncio.gather(*(send(place) for place in range(start, stop)))
    return returned


def _publish_with_py_amqp(url: str, exchange: str, messages: Sequence[Message]) -> set[int]:
    parts = urlsplit(url)
    returned: set[int] = set()
    with amqp.Connection(
        f"{parts.hostname}:{parts.port}",
        userid=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        virtual_host=unquote(parts.path[1:]),
        confirm_publish=True,
    ) as connection:
        channel = connection.channel()
        channel.events["basic_return"].add(lambda *got: returned.add(int(got[-1].body)))
        for place, message in enumerate(messages):
            properties = {
                "application_headers": message.headers,
                "message_id": message.message_id,
                "correlation_id": message.correlation_id,
                "timestamp": message.timestamp,
            }
            given = {name: value for name, value in properties.items() if value is not None}
            channel.basic_publish(
                amqp.Message(str(place).encode(), **given), exchange, message.routing_key, mandatory=True
            )
    return returned


def _publish_with_amqpstorm(url: str, exchange: str, messages: Sequence[Message]) -> set[int]:
    returned: set[int] = set()
    with amqpstorm.UriConnection(url) as connection, connection.channel() as channel:
        channel.confirm_deliveries()
        for place, message in enumerate(messages):
            properties = {name: value for name, value in vars(message).items() if value is not None}
            del properties["routing_key"]
            if isinstance(message.timestamp, int):  # which the client refuses
                properties["timestamp"] = datetime.fromtimestamp(message.timestamp, UTC)
            try:
                channel.basic.publish(
                    str(place), message.routing_key, exchange, properties=properties, mandatory=True
                )
            except amqpstorm.AMQPMessageError:
                returned.add(place)
    return returned
