"""Move keys from queue to queue without breaking their order, by a marker behind the messages of the old queue.

A key that moves does no harm; but if its new queue is consumed while its old queue still holds messages, they overtake:

1. hold the consumers of the queues that gain keys (do not start them, or cancel them);
2. switch: apply the plan;
3. ``drain_in_order(connection, drain_first_in(plan), release)`` puts a marker into each queue that loses keys, waits
   until its consumers have reached the marker, and calls ``release`` with each queue that may be consumed now.

Several queues that are bound one after the other are released one after the other, because the first of them loses
keys to the second. `drain` does one such stage.

A consumer of a queue that loses keys needs one more call, and must acknowledge all earlier messages first:

    def on_message(channel, method, properties, body):
        if pass_marker(channel, method, properties):
            return
        ...

Order is kept where it is kept without a change: one active consumer for each queue, which finishes its messages in
order (with aio-pika: ``async for`` over ``queue.iterator()``, since callbacks run concurrently), and a queue that drops
and dead-letters nothing. A message that was routed just before the switch may reach its queue a moment later, so
``settle`` seconds pass between the switch and the markers.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.replies import is_made_by_broker
from rabbit_chx.base.text import listed, seconds
from rabbit_chx.broker.commands import Command, Lost, OnChannel, Pause, Refused, exists, routed
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Beginning, Needs, Resources, why_denied
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.planning.drain_order import drain_stages

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
    from pika import BasicProperties, BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.spec import Basic


MARKER: Final = "x-rabbit-chx-marker"
"""The header that distinguishes a marker from a message; its value belongs to one drain."""

_QUEUE: Final = "x-rabbit-chx-queue"
_DRAIN: Final = re.compile(r"[0-9a-f]{16}")
_POLL: Final = 0.05
_POLLS_A_TRY: Final = 20
"""A full queue is tried again once a second."""


class NotDrained(RabbitChxError, TimeoutError):
    """A consumer did not reach its marker in time; keep holding the queues that gain keys."""

    def __init__(self, message: str, queues: tuple[str, ...] = (), full: tuple[str, ...] = ()) -> None:
        super().__init__(message, queues, full)
        self.queues = queues
        """The queues whose consumers did not reach it."""
        self.full = full
        """Those of them that had no room for it."""


def is_marker(exchange: str, routing_key: str, properties: Any) -> bool:
    """Whether a message is a marker, and not one that only looks like it.

    A marker comes through the default exchange, names the queue that it was sent to, and has an address that the broker
    made. So a publisher to another exchange can make none, and a publisher that can make one has nothing published elsewhere.
    """
    headers = properties.headers or {}
    if exchange or MARKER not in headers or not is_made_by_broker(properties.reply_to):
        return False
    drain = headers[MARKER]
    known = isinstance(drain, str) and _DRAIN.fullmatch(drain) is not None
    return known and headers.get(_QUEUE) == routing_key


def answer_headers(properties: Any) -> dict[str, str]:
    """The headers of the answer to a marker: only those that `is_marker` has checked."""
    return {name: properties.headers[name] for name in (MARKER, _QUEUE)}


def drain_commands(queues: Collection[str], timeout: float, settle: float) -> Generator[Command, Any, None]:
    """The commands of a drain, with explanations of refusals."""
    try:
        yield from marker_commands(queues, timeout, settle)
    except (Refused, Lost) as error:
        words = str(error.args[-1])
        own: Resources = {("queue", Beginning("amq.gen-"))}
        needs = Needs(configure=own, write={("exchange", DEFAULT_EXCHANGE)}, read=own)
        reason = why_denied(words, needs, what="a drain") or words
        raise BrokerUnavailable(f"the queues cannot be drained: {reason}") from None


def check_replies() -> Generator[Command, Any, str]:
    """Declare the queue for answers before any marker is published, since a later refusal would leave markers behind."""
    replies = (yield OnChannel("queue_declare", {"queue": "", "exclusive": True})).queue
    yield OnChannel("basic_get", {"queue": replies})
    return str(replies)


def marker_commands(
    queues: Collection[str],
    timeout: float,
    settle: float,
    *,
    on_passed: Callable[[str], object] = lambda _: None,
    on_poll: Callable[[], object] = lambda: None,
) -> Generator[Command, Any, None]:
    """The commands of a drain; ``on_poll`` is called at each poll until every queue has passed its marker."""
    if isinstance(queues, str) or not queues:
        expected, hint = "names of queues", "drain_first_in(plan) returns them"
        raise InvalidValue("queues to drain", queues, expected, hint)
    waiting, own = set(queues), secrets.token_hex(8)
    deadline = time.monotonic() + timeout
    replies = yield from check_replies()
    delete = OnChannel("queue_delete", {"queue": replies})
    try:
        yield Pause(settle)
        full, unseen, polls = sorted(waiting), set[str](), 0
        full = yield from _publish_markers(full, own, replies, unseen)
        while waiting and time.monotonic() < deadline:
            answer = yield OnChannel("basic_get", {"queue": replies})
            if answer is None:
                on_poll()
                yield Pause(_POLL)
                polls += 1
                if polls % _POLLS_A_TRY == 0:
                    full = yield from _publish_markers(full, own, replies, unseen)
            elif (passed := _passed(answer.headers or {}, own)) in waiting:
                waiting.remove(passed)
                on_passed(passed)
    except BaseException:  # it would stay until the connection of the caller ends
        with suppress(Refused, Lost):
            yield delete
        raise
    yield delete
    if waiting:
        raise _not_drained(tuple(sorted(waiting)), tuple(full), timeout)


def _not_drained(queues: tuple[str, ...], full: tuple[str, ...], timeout: float) -> NotDrained:
    named = ", ".join(map(repr, queues)) + without_room(full)
    return NotDrained(
        f"the marker was not reached within {seconds(timeout)} in {named}: {Advice.ANSWER_MARKERS} Keep holding the queues that "
        "gain keys, and drain again",
        queues,
        full,
    )


def without_room(full: Collection[str]) -> str:
    """The part of an error that names the queues that were full."""
    return f" ({listed(sorted(full))} had no room for the marker)" if full else ""


def _publish_markers(
    queues: Collection[str], own: str, replies: str, unseen: set[str]
) -> Generator[Command, Any, list[str]]:
    """Put a marker into each queue; return those that have no room for it yet.

    A queue that does not exist is an error; in ``unseen`` are those whose existence the user may not ask for.
    """
    full = []
    for queue in queues:
        properties = {"headers": {MARKER: own, _QUEUE: queue}, "reply_to": replies}
        try:
            yield from publish_marker("drain", queue, b"", properties)
        except InvalidValue:
            try:
                if queue not in unseen and not (yield from exists(queue)):
                    raise
            except Refused:
                unseen.add(queue)
            full.append(queue)
    return full


def publish_marker(
    purpose: str, queue: str, body: bytes, properties: Mapping[str, Any]
) -> Generator[Command, Any, None]:
    """Put a marker into a queue; ``purpose`` is what it does there: drain or hold."""
    if not (yield from routed(queue, body, {**properties, "delivery_mode": 2})):
        expected, hint = "an existing queue that accepts messages", "The broker returned the marker"
        raise InvalidValue(f"queue to {purpose}", queue, expected, hint)


def _passed(answer: Mapping[str, Any], own: str) -> str:
    """The queue that an answer is about; empty for the answer to an earlier drain."""
    return str(answer.get(_QUEUE)) if answer.get(MARKER) == own else ""


# ---- with pika


def pass_marker(channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties) -> bool:
    """Answer and acknowledge a message if it is a marker; return whether it was.

    The answer goes first: a marker that is delivered again is answered again, which does no harm.
    """
    from rabbit_chx.broker.properties import Properties

    if not is_marker(method.exchange, method.routing_key, properties):
        return False
    channel.basic_publish("", properties.reply_to, b"", Properties(headers=answer_headers(properties)))
    channel.basic_ack(method.delivery_tag)
    return True


def drain(
    connection_or_channel: BlockingConnection | BlockingChannel | str,
    queues: Collection[str],
    *,
    timeout: float = 300.0,
    settle: float = 1.0,
) -> None:
    """Wait until the consumers of these queues have handled all messages that are in them now.

    Args:
        connection_or_channel: of pika, or an AMQP URL; of a channel only the connection is used.
        queues: that have just lost keys.
        timeout: seconds for all of them together, since a consumer must handle all that is in its queue.
        settle: seconds before the markers are published, for messages that are still on their way.

    Raises:
        NotDrained: a consumer did not reach its marker in time.
        InvalidValue: a queue does not exist.
    """
    from rabbit_chx.broker.driver import PikaDriver, opened

    with opened(connection_or_channel) as connection:
        PikaDriver(connection).run(drain_commands(queues, timeout, settle))


def drain_in_order(
    connection_or_channel: BlockingConnection | BlockingChannel | str,
    waits: Mapping[Destination, Collection[Destination]],
    release: Callable[[str], object],
    *,
    timeout: float = 300.0,
    settle: float = 1.0,
) -> None:
    """After a switch, drain the queues that lose keys and release those that gain keys, stage by stage.

    Args:
        connection_or_channel: of pika, or an AMQP URL; of a channel only the connection is used.
        waits: what each queue waits for, as `drain_first_in` returns it.
        release: called with each queue that may be consumed now; a queue that loses keys later is drained after it,
            so its consumer must be running soon.
        timeout: seconds for the drain of one stage, as for `drain`.
        settle: seconds before the first markers are published.

    Raises:
        NotDrained: a consumer did not reach its marker in time; queues not yet released must stay held.
        InvalidValue: there is no such order, because two queues gain keys from each other.
    """
    for losing, gaining in stages(waits):
        if losing:
            drain(connection_or_channel, losing, timeout=timeout, settle=settle)
        for queue in gaining:
            release(queue)
        settle = 0.0


def stages(waits: Mapping[Destination, Collection[Destination]]) -> list[tuple[list[str], list[str]]]:
    """What to drain and what to release then, stage by stage; each queue is drained once."""
    found = drain_stages(waits)
    if found is None:
        raise InvalidValue(
            "queues to drain in order",
            ", ".join(sorted(map(str, waits))),
            "queues that do not gain keys from each other",
            "Stop all consumers that gain keys until every queue is empty",
        )
    drained: set[str] = set()
    plan = []
    for stage in found:
        losing = {str(loser) for gainer in stage for loser in waits[gainer]} - drained
        drained |= losing
        plan.append((sorted(losing), sorted(map(str, stage))))
    return plan


# ---- with aio-pika


async def pass_marker_async(message: AbstractIncomingMessage) -> bool:
    """As `pass_marker`, for a message of aio-pika that is acknowledged by hand."""
    from pamqp.commands import Basic

    reply_to = message.reply_to
    if not is_marker(message.exchange or "", message.routing_key or "", message) or reply_to is None:
        return False
    properties = Basic.Properties(headers=dict(answer_headers(message)))
    await message.channel.basic_publish(b"", routing_key=reply_to, properties=properties)
    await message.ack()
    return True


async def drain_async(
    connection_or_channel: AbstractConnection | AbstractChannel | str,
    queues: Collection[str],
    *,
    timeout: float = 300.0,  # noqa: ASYNC109 - as drain() has it; it raises an error that names the queues
    settle: float = 1.0,
) -> None:
    """As `drain`, with a connection or a channel of aio-pika."""
    from rabbit_chx.broker.aio_driver import AioDriver, opened

    async with opened(connection_or_channel) as connection:
        await AioDriver(connection).carry_out(drain_commands(queues, timeout, settle))


async def drain_in_order_async(
    connection_or_channel: AbstractConnection | AbstractChannel | str,
    waits: Mapping[Destination, Collection[Destination]],
    release: Callable[[str], Awaitable[object]],
    *,
    timeout: float = 300.0,  # noqa: ASYNC109 - as drain() has it
    settle: float = 1.0,
) -> None:
    """As `drain_in_order`, with a connection or a channel of aio-pika; ``release`` is awaited."""
    for losing, gaining in stages(waits):
        if losing:
            await drain_async(connection_or_channel, losing, timeout=timeout, settle=settle)
        for queue in gaining:
            await release(queue)
        settle = 0.0
