"""Ask the members of a group over AMQP for their queues and their progress.

    with connect("amqp://user:password@host") as connection:
        for member in members(connection, "billing"):
            print(member.seat, member.host, member.pid, list(member.queues))

The management API shows neither hosts nor rates, and on RabbitMQ 4.0 it shows several consumers of a queue as active.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from time import monotonic
from typing import Any, Final

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from rabbit_chx.broker.applying.protocol import Refused
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs, why_denied
from rabbit_chx.consuming.seats import check_group_name, seat_queue
from rabbit_chx.consuming.status import question
from rabbit_chx.errors import BrokerUnavailable

_AT_ONCE: Final = 64
_REPLIES: Final = "amq.rabbitmq.reply-to"
"""The broker's direct reply-to: answers need no queue."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of one queue, as a member reports it."""

    handled: int = 0
    """Messages since the member started."""
    rate: float = 0.0
    """Messages a second, over the last ten seconds."""
    waiting: int = 0
    """Messages that the broker has sent and the handler has not finished."""
    oldest: float | None = None
    """Seconds for which the first of these messages has been waiting."""
    failures: int = 0
    """How often the first of these messages has failed."""
    hold: str | None = None
    """The name of the hold, if the queue is held."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a group."""

    seat: int
    answered: bool = False
    """False if the member did not answer in time: its process may be paused, or may have ended unnoticed by the broker."""
    host: str = ""
    pid: int = 0
    queues: Mapping[str, QueueStatus] = field(default_factory=dict)
    """Every queue that the member consumes, including those whose messages go to other members."""


def members(
    connection: BlockingConnection, group: str, *, timeout: float = 2.0, queues: Collection[str] = ()
) -> list[MemberStatus]:
    """Ask all members of a group that have a seat.

    Args:
        connection: a connection of pika.
        group: the group's name.
        timeout: seconds to wait for the answers.
        queues: additional queues that the members should consume from now on.
    """
    try:
        return ask(connection, group, timeout=timeout, queues=queues)
    except Refused as refused:
        needs = Needs(write={("exchange", DEFAULT_EXCHANGE)})
        why = why_denied(refused.text, needs, what="asking members") or refused.text
        raise BrokerUnavailable(f"the members cannot be asked: {why}") from None


def ask(
    connection: BlockingConnection, group: str, *, timeout: float, queues: Collection[str] = ()
) -> list[MemberStatus]:
    """Like `members`, for callers that explain a refusal themselves.

    Raises:
        Refused: the broker closed the channel.
    """
    check_group_name(group)
    channel = connection.channel()
    try:
        return _asked(channel, group, question(queues), timeout)
    except ChannelClosedByBroker as error:
        raise Refused(error.reply_code, error.reply_text) from None
    finally:
        if channel.is_open:
            channel.close()


def workers_of(found: Sequence[MemberStatus]) -> dict[str, MemberStatus]:
    """The member that handles each queue: the one with the highest priority, unless another still has messages."""
    chosen: dict[str, MemberStatus] = {}
    for member in found:
        for name, queue in member.queues.items():
            other = chosen.get(name)
            rank = (queue.waiting > 0, queue.priority)
            if other is None or rank > (other.queues[name].waiting > 0, other.queues[name].priority):
                chosen[name] = member
    return chosen


def _asked(channel: BlockingChannel, group: str, body: bytes, timeout: float) -> list[MemberStatus]:
    taken: dict[int, MemberStatus] = {}
    free: set[int] = set()

    def on_answer(_: Any, __: Any, properties: BasicProperties, answer: bytes) -> None:
        seat = int(properties.correlation_id or -1)
        taken[seat] = _parsed(seat, answer)

    channel.add_on_return_callback(lambda *returned: free.add(int(returned[2].correlation_id)))
    channel.basic_consume(_REPLIES, on_answer, auto_ack=True)
    for first in count(0, _AT_ONCE):
        asked = range(first, first + _AT_ONCE)
        for seat in asked:
            properties = BasicProperties(
                reply_to=_REPLIES, correlation_id=str(seat), expiration=str(int(timeout * 1000))
            )
            channel.basic_publish("", seat_queue(group, seat), body, properties, mandatory=True)
        # The broker answers after it has returned the unroutable questions.
        channel.basic_qos(prefetch_count=0)
        deadline = monotonic() + timeout
        while monotonic() < deadline and not free | taken.keys() >= set(asked):
            channel.connection.process_data_events(time_limit=0.05)
        if free >= set(asked):
            break
    silent = set(range(first)) - free - taken.keys()
    return sorted([*taken.values(), *map(MemberStatus, silent)], key=lambda member: member.seat)


def _parsed(seat: int, body: bytes) -> MemberStatus:
    try:
        found = json.loads(body)
        queues = {str(name): _status(row) for name, row in found["queues"].items()}
        return MemberStatus(seat, True, str(found["host"]), int(found["pid"]), queues)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return MemberStatus(seat)


def _status(row: Mapping[str, Any]) -> QueueStatus:
    return QueueStatus(**{each.name: row[each.name] for each in fields(QueueStatus) if each.name in row})
