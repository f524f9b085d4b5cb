"""Publish parked or dead-lettered messages again, to where they came from.

Each message is acknowledged after the broker has confirmed its copy. If the program is killed, the broker requeues what is not
acknowledged, so a message may be published twice but is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import RESOURCE_LOCKED

from rabbit_chx.broker.amqp import expecting_refusals, server_version
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Refused, routed
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.broker.receiving import raw
from rabbit_chx.consuming.failures import EXCHANGE, OFFSET, PARKED, QUEUE, ROUTING_KEY
from rabbit_chx.consuming.messages import Delivery, copied_properties, from_raw
from rabbit_chx.consuming.queues.queues import check_readable
from rabbit_chx.errors import InvalidValue
from rabbit_chx.releases import Release

_DEATHS: Final = "x-death"
_ADDED: Final = (PARKED, _DEATHS, "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Beginnings of the headers that members and the broker have added."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message was published to, the queue that it came to, and why it left that queue."""

    exchange: str
    routing_key: str
    queue: str
    reason: str
    time: str


class Outcome(Enum):
    """What became of a message."""

    REPLAYED = "replayed"
    LISTED = "listed"
    """It would be replayed, and stays in the queue."""
    OTHER_KEY = "other key"
    """It stays in the queue because its key is not selected."""
    UNKNOWN = "unknown origin"
    """It stays in the queue because no header says where it was published to."""
    REFUSED = "refused"
    """It stays in the queue because the broker did not accept its copy."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message, its origin, and what became of it."""

    message: Delivery
    origin: Origin | None
    outcome: Outcome
    error: str = ""


def origin_of(headers: Mapping[str, Any]) -> Origin | None:
    """Where a message came from: according to the member that parked it, or to the broker that dead-lettered it first.

    A message of a stream that came through no named exchange has no origin: clients of streams publish past the exchanges. The
    default exchange would put it into whatever queue has its key as name, or once more into the stream.
    """
    if OFFSET in headers and not headers.get(EXCHANGE):
        return None
    if EXCHANGE in headers:
        exchange, key, queue = (headers.get(each) for each in (EXCHANGE, ROUTING_KEY, QUEUE))
        return _origin(exchange, key, queue, headers.get(f"{PARKED}error"), headers.get(f"{PARKED}time"))
    deaths = headers.get(_DEATHS)
    if not isinstance(deaths, list):
        return None
    first = [headers.get(f"x-first-death-{name}") for name in ("queue", "reason")]
    for death in reversed(deaths):
        if isinstance(death, dict) and first in ([None, None], [death.get("queue"), death.get("reason")]):
            keys = death.get("routing-keys")
            key = keys[0] if isinstance(keys, list) and keys else None
            return _origin(
                death.get("exchange"), key, death.get("queue"), death.get("reason"), death.get("time")
            )
    return None


def _origin(exchange: object, key: object, queue: object, reason: object, time: object) -> Origin | None:
    if not (isinstance(exchange, str) and isinstance(key, str) and isinstance(queue, str)):
        return None
    return Origin(exchange, key, queue, str(reason or ""), str(time or ""))


def replay(
    connection: BlockingConnection,
    queue: str,
    *,
    only: Collection[str] = (),
    limit: int | None = None,
    dry_run: bool = False,
    warn: Callable[[str], object],
) -> Iterator[Replayed]:
    """Publish the messages of a queue again, and yield what became of each.

    Only messages are considered that are in the queue now: those that fail again come back to its end. All routing keys are
    replayed, or ``only`` some; ``warn`` is called with a warning about the queue.

    Raises:
        InvalidValue: the queue is missing, is a stream, or is a quorum queue with a single active consumer.
    """
    driver = PikaDriver(connection)
    release = Release.of_broker(server_version(connection))
    if warning := driver.run(check_readable(queue, release)):
        warn(warning)
    channel = connection.channel()
    try:
        done = 0
        for message in _messages_now_in(queue, channel):
            found = _what_becomes_of(message, driver, only, dry_run=dry_run)
            if found.outcome is Outcome.REPLAYED:
                channel.basic_ack(message.tag)
            done += found.outcome in {Outcome.REPLAYED, Outcome.LISTED}
            yield found
            if done == limit:
                return
    finally:
        if channel.is_open:
            channel.close()  # the broker requeues the messages that stay


def _messages_now_in(queue: str, channel: BlockingChannel) -> Iterator[Delivery]:
    """Get as many messages as the queue has now."""
    left: int | None = None
    try:
        while left != 0:
            with expecting_refusals(channel):
                method, properties, body = channel.basic_get(queue)
            if method is None:
                return
            yield from_raw(queue, raw(method, properties, body))
            left = method.message_count if left is None else left - 1
    except ChannelClosedByBroker as error:
        if error.reply_code == RESOURCE_LOCKED and "basic.get" in error.reply_text:
            expected = "a queue without a single active consumer"
            hint = "The broker does not let single messages be taken from such a queue. Declare queues for failed messages without it"
            raise InvalidValue("queue", queue, expected, hint) from None
        raise why_down(error, "the broker", needs=Needs(read={("queue", queue)})) from None


def _what_becomes_of(
    message: Delivery, driver: PikaDriver, only: Collection[str], *, dry_run: bool
) -> Replayed:
    """Publish a message again, unless it is to stay in the queue."""
    origin = origin_of(message.headers)
    if origin is None:
        return Replayed(message, None, Outcome.UNKNOWN)
    if only and origin.routing_key not in only:
        return Replayed(message, origin, Outcome.OTHER_KEY)
    if dry_run:
        return Replayed(message, origin, Outcome.LISTED)
    properties = copied_properties(message, {}, without=_ADDED)
    try:
        accepted = driver.run(routed(origin.routing_key, message.body, properties, exchange=origin.exchange))
    except Refused as refused:
        return Replayed(message, origin, Outcome.REFUSED, refused.text)
    if not accepted:
        return Replayed(message, origin, Outcome.REFUSED, "the broker returned or rejected it")
    return Replayed(message, origin, Outcome.REPLAYED)
