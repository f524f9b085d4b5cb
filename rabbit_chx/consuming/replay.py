"""Publish parked or dead-lettered messages again, to where they came from.

Each message is acknowledged after the broker has confirmed its copy. If the program is killed, the broker requeues what is not
acknowledged, so a message may be published twice but is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import RESOURCE_LOCKED

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import described, text_of
from rabbit_chx.broker.amqp import expecting_refusals, server_version
from rabbit_chx.broker.commands import Lost, Refused, routed, why_ended
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs
from rabbit_chx.broker.receiving import raw
from rabbit_chx.consuming.queues.queues import check_readable
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.messages import PARKED, Delivery, copied_properties, from_raw
from rabbit_chx.working.parking import EXCHANGE, OFFSET, QUEUE, ROUTING_KEY
from rabbit_chx.working.received import contained

_DEATHS: Final = "x-death"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message was published to, the queue that it came to, and why it left that queue."""

    exchange: str
    routing_key: str | bytes
    """Bytes if it is not UTF-8."""
    queue: str
    reason: str
    time: str
    claimed: bool = False
    """Whether its publisher may have written that, and neither a member nor the broker."""

    @property
    def destination(self) -> str:
        """Where a replayed message goes."""
        return f"exchange {self.exchange!r}" if self.exchange else f"queue {self.routing_key!r}"


class Outcome(Enum):
    """The outcome of a message."""

    REPLAYED = "replayed"
    LISTED = "listed"
    """It would be replayed, and stays in the queue."""
    OTHER_KEY = "other key"
    """It stays in the queue because its key is not selected."""
    UNKNOWN = "unknown origin"
    """It stays in the queue because no header says where it was published to."""
    REFUSED = "refused"
    """It stays in the queue because its destination is not allowed, or the broker did not accept its copy."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message, its origin and its outcome."""

    message: Delivery
    origin: Origin | None
    outcome: Outcome
    error: str = ""


def origin_of(message: Delivery, release: Release) -> Origin | None:
    """Where a message came from: according to the broker that dead-lettered it first, or else to the member that parked it.

    A publisher can write any header, also those of a parked message. So the broker decides where it has dead-lettered a message.
    Of other messages, the headers count if they came through the default exchange, as members park them. What remains is claimed:
    also the origin of a message from a stream, whose publisher writes exchange and key, and that of a dead letter before 4.0,
    when the broker adds to what a publisher has written.

    A message of a stream that came through no named exchange has no origin: clients of streams publish past the exchanges. The
    default exchange would put it into whatever queue has its key as name, or once more into the stream.
    """
    headers = message.headers
    if OFFSET in headers:
        return _parked(headers, claimed=True) if headers.get(EXCHANGE) else None
    if isinstance(deaths := headers.get(_DEATHS), list):
        return _dead_lettered(headers, deaths, claimed=not release._keeps_own_deaths)
    return _parked(headers, claimed=message.exchange != "")


def _parked(headers: Mapping[str, Any], *, claimed: bool) -> Origin | None:
    exchange, key, queue = (headers.get(each) for each in (EXCHANGE, ROUTING_KEY, QUEUE))
    reason, time = headers.get(f"{PARKED}error"), headers.get(f"{PARKED}time")
    return _origin(exchange, key, queue, reason, time, claimed=claimed)


def _dead_lettered(headers: Mapping[str, Any], deaths: list[Any], *, claimed: bool) -> Origin | None:
    first = [headers.get(f"x-first-death-{name}") for name in ("queue", "reason")]
    for death in reversed(deaths):
        if isinstance(death, dict) and first in ([None, None], [death.get("queue"), death.get("reason")]):
            keys = death.get("routing-keys")
            key = keys[0] if isinstance(keys, list) and keys else None
            queue, reason, time = (death.get(each) for each in ("queue", "reason", "time"))
            return _origin(death.get("exchange"), key, queue, reason, time, claimed=claimed)
    return None


def _origin(
    exchange: object, key: object, queue: object, reason: object, time: object, *, claimed: bool
) -> Origin | None:
    if not (isinstance(exchange, str) and isinstance(key, (str, bytes)) and isinstance(queue, str)):
        return None
    return Origin(exchange, key, queue, str(reason or ""), str(time or ""), claimed)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages are replayed, and where they may go."""

    only: Collection[str] = ()
    """Their routing keys, as `text_of` makes text of them; by default all."""
    to: Collection[str] = ()
    """Exchanges to which a message may go although only its publisher says that it came to them first."""
    destinations: Collection[str] | None = None
    """Where messages may go; by default everywhere."""

    def why_not(self, origin: Origin) -> str:
        """Why a message must not go to where it came from; empty if it may."""
        where = origin.destination
        if origin.claimed and (origin.exchange or DEFAULT_EXCHANGE) not in self.to:
            return f"only its publisher says that it came to {where}; {Advice.ALLOW_CLAIM}"
        if not origin.exchange and origin.routing_key != origin.queue:
            return f"it was published to {where}, but came from queue {origin.queue!r}"
        if self.destinations is not None and where not in self.destinations:
            return f"it came after the question, and would go to {where}"
        return ""


def replay(
    connection: BlockingConnection,
    queue: str,
    choice: Choice,
    *,
    limit: int | None = None,
    dry_run: bool = False,
    warn: Callable[[str], object],
) -> Iterator[Replayed]:
    """Publish the messages of a queue again, and yield the outcome of each.

    Only messages are considered that are in the queue now: those that fail again come back to its end. ``warn`` is called with
    a warning about the queue.

    Raises:
        InvalidValue: the queue is missing, is a stream, or is a quorum queue with a single active consumer.
        BrokerUnavailable: the connection was lost, or the broker refused a command.
    """
    driver = PikaDriver(connection)
    try:
        release = Release._of_broker(server_version(connection))
        if warning := driver.run(check_readable(queue, release)):
            warn(warning)
        with connection.channel() as channel:  # the broker requeues the messages that stay
            done = 0
            for message in _messages_now_in(queue, channel):
                origin = contained(partial(origin_of, message, release), None, message)
                found = _what_becomes_of(message, origin, choice, None if dry_run else driver)
                if found.outcome is Outcome.REPLAYED:
                    channel.basic_ack(message.tag)
                done += found.outcome in {Outcome.REPLAYED, Outcome.LISTED}
                yield found
                if done == limit:
                    return
    except (AMQPError, Lost, Refused) as error:
        raise why_ended(error, Needs(read={("queue", queue)}), "replay", driver.where) from None


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
        if error.reply_code != RESOURCE_LOCKED or "basic.get" not in error.reply_text:
            raise
        expected = "a queue without a single active consumer"
        hint = "The broker does not let single messages be taken from such a queue. Declare queues for failed messages without it"
        raise InvalidValue("queue", queue, expected, hint) from None


def _what_becomes_of(
    message: Delivery, origin: Origin | None, choice: Choice, driver: PikaDriver | None
) -> Replayed:
    """Publish a message again, unless it is to stay in the queue; without a driver, only say so."""
    if origin is None:
        return Replayed(message, None, Outcome.UNKNOWN)
    if choice.only and text_of(origin.routing_key) not in choice.only:
        return Replayed(message, origin, Outcome.OTHER_KEY)
    if why := choice.why_not(origin):
        return Replayed(message, origin, Outcome.REFUSED, why)
    if driver is None:
        return Replayed(message, origin, Outcome.LISTED)
    try:
        properties = copied_properties(message, {})
        copy = routed(origin.routing_key, message.body, properties, exchange=origin.exchange)
        accepted = driver.run(copy)
    except Refused as refused:
        return Replayed(message, origin, Outcome.REFUSED, refused.text)
    except (AMQPError, OSError, Lost):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a publisher wrote, the messages behind it are replayed
        return Replayed(message, origin, Outcome.REFUSED, f"it cannot be copied: {described(error)}")
    if not accepted:
        return Replayed(message, origin, Outcome.REFUSED, "the broker returned or rejected it")
    return Replayed(message, origin, Outcome.REPLAYED)
