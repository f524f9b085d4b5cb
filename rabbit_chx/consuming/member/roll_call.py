"""Ask the members of a group over AMQP for their queues and their progress.

    for member in members("amqp://user:password@host", "billing"):
        print(member.seat, member.host, member.pid, list(member.queues))

The management API shows neither hosts nor rates, and on RabbitMQ 4.0 it shows several consumers of a queue as active.

A question goes to the queue of a member's seat; both sides of the conversation, `question` and `status`, are here.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any, Final

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.base.names import check_group_name, seat_queue
from rabbit_chx.base.replies import REPLY_TO
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.commands import Refused, why_ended
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs
from rabbit_chx.consuming.member.lanes import Lane
from rabbit_chx.working.markers import Hold
from rabbit_chx.working.received import as_amount, as_name, as_object, as_text, as_whole, object_in

_AT_ONCE: Final = 64
_LONGEST_QUESTION: Final = 1 << 20
"""Bytes of a question that a member reads."""
_LONGEST_ANSWER: Final = 2 << 20
"""Bytes of a status: more than 10,000 queues."""


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


def question(holds: Iterable[Hold] = ()) -> bytes:
    """A request for a member's status. With holds, the member should consume their queues too."""
    return json.dumps({"holds": {hold.name: hold.record for hold in holds}}).encode()


def questions(holds: Iterable[Hold]) -> Iterator[bytes]:
    """One question or more that together name all holds, none longer than a member reads."""
    named: list[Hold] = []
    size = 0
    for hold in holds:
        size += len(question([hold]))
        if size > _LONGEST_QUESTION:
            yield question(named)
            named, size = [], len(question([hold]))
        named.append(hold)
    yield question(named)


def holds_in(body: bytes) -> list[Hold]:
    """The holds in a question; none if its body is invalid. Only those count whose queues exist."""
    try:
        found = object_in(body, _LONGEST_QUESTION)
        return [Hold.read(name, record) for name, record in as_object(found["holds"]).items()]
    except (KeyError, ValueError):
        return []


def status(group: str, seat: int, lanes: Iterable[Lane]) -> bytes:
    """The answer of a member to any question."""
    now = monotonic()
    found: dict[str, Any] = {
        "group": group,
        "seat": seat,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "queues": {lane.queue: lane.status(now) for lane in lanes},
    }
    return json.dumps(found).encode()


def members(
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    group: str,
    *,
    timeout: float = 2.0,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    connection_name: str = "rabbit-chx members",
) -> list[MemberStatus]:
    """Ask all members of a group that have a seat.

    Args:
        url: an AMQP URL, or several that are tried in turn.
        group: the group's name.
        timeout: seconds to wait for the answers, once connected. Members answer at once, unless their process hangs or is paused.
        credentials: user and password that are not in the URL.
        tls: the context for amqps; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list.

    Raises:
        BrokerUnavailable: no broker accepted the connection, or the user lacks a permission.
    """
    check_group_name(group)
    check_seconds("timeout", timeout)
    with connect(url, credentials=credentials, tls=tls, connection_name=connection_name) as connection:
        return members_over(connection, group, timeout=timeout)


def members_over(connection: BlockingConnection, group: str, *, timeout: float = 2.0) -> list[MemberStatus]:
    """Like `members`, on an open connection."""
    try:
        return ask(connection, group, timeout=timeout)
    except Refused as refused:
        needs = Needs(write={("exchange", DEFAULT_EXCHANGE)})
        raise why_ended(refused, needs, "asking members") from None


def ask(
    connection: BlockingConnection, group: str, *, timeout: float, holds: Collection[Hold] = ()
) -> list[MemberStatus]:
    """Like `members`, for callers that explain a refusal themselves.

    The members begin to consume the queues that the holds name.

    Raises:
        Refused: the broker closed the channel.
    """
    check_group_name(group)
    for each in questions(holds):
        channel = connection.channel()
        try:
            found = _asked(channel, group, each, timeout)
        except ChannelClosedByBroker as error:
            raise Refused(error.reply_code, error.reply_text) from None
        finally:
            if channel.is_open:
                channel.close()
    return found


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
    seats: dict[str, int] = {}
    """The seat of each question without an answer. Its identifier is secret, so that no member can answer for another."""

    def on_answer(_: Any, __: Any, properties: BasicProperties, answer: bytes) -> None:
        seat = seats.pop(str(properties.correlation_id), None)
        if seat is not None:
            taken[seat] = _parsed(seat, answer)

    channel.add_on_return_callback(lambda *returned: free.add(seats.pop(returned[2].correlation_id)))
    channel.basic_consume(REPLY_TO, on_answer, auto_ack=True)
    for first in count(0, _AT_ONCE):
        asked = range(first, first + _AT_ONCE)
        for seat in asked:
            secret = f"{seat}.{token_hex(8)}"
            seats[secret] = seat
            properties = BasicProperties(
                reply_to=REPLY_TO, correlation_id=secret, expiration=str(int(timeout * 1000))
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
    """The status in an answer. Any process that may declare the queue of a seat can answer, so all values are checked."""
    try:
        found = object_in(body, _LONGEST_ANSWER)
        queues = {as_name(name): _status(row) for name, row in as_object(found["queues"]).items()}
        return MemberStatus(seat, True, as_name(found["host"]), as_whole(found["pid"]), queues)
    except (KeyError, ValueError):
        return MemberStatus(seat)


def _status(row: object) -> QueueStatus:
    given = as_object(row)
    found = QueueStatus(**{each.name: given[each.name] for each in fields(QueueStatus) if each.name in given})
    for whole in (found.handled, found.waiting, found.failures, found.priority):
        as_whole(whole)
    for seconds in (found.rate, 0.0 if found.oldest is None else found.oldest):
        as_amount(seconds)
    as_text("" if found.hold is None else found.hold)
    return found
