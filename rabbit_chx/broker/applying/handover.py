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

import asyncio
import secrets
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Beginning, Needs, why_denied
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.topology.planning.drain_order import drain_first, drain_first_in, drain_stages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
    from pika import BasicProperties, BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.spec import Basic

    from rabbit_chx.broker.permissions import Resources
    from rabbit_chx.ring import Destination

__all__ = [
    "MARKER",
    "NotDrained",
    "drain",
    "drain_async",
    "drain_first",
    "drain_first_in",
    "drain_in_order",
    "drain_in_order_async",
    "drain_stages",
    "is_marker",
    "pass_marker",
    "pass_marker_async",
]

MARKER: Final = "x-rabbit-chx-marker"
"""The header that distinguishes a marker from a message; its value belongs to one drain."""

_QUEUE: Final = "x-rabbit-chx-queue"


class NotDrained(RabbitChxError, TimeoutError):
    """A consumer did not reach its marker in time; keep holding the queues that gain keys."""

    def __init__(self, message: str, queues: tuple[str, ...] = ()) -> None:
        super().__init__(message, queues)
        self.queues = queues
        """The queues whose consumers did not reach it."""

    def __str__(self) -> str:
        return str(self.args[0])


def is_marker(headers: Mapping[str, Any] | None) -> bool:
    """Whether a message with these headers is a marker."""
    return MARKER in (headers or {})


class _Drain:
    """One drain: its markers, and the queues that have not passed theirs."""

    def __init__(self, queues: Collection[str]) -> None:
        if isinstance(queues, str) or not queues:
            raise InvalidValue(
                "queues to drain",
                queues,
                "names of queues",
                "drain_first_in(plan) tells which they are",
            )
        self.waiting = set(queues)
        self._id = secrets.token_hex(8)

    def headers(self, queue: str) -> dict[str, Any]:
        return {MARKER: self._id, _QUEUE: queue}

    def passed(self, headers: Mapping[str, Any] | None) -> None:
        """Take an answer; answers to an earlier drain and repeated answers change nothing."""
        headers = headers or {}
        if headers.get(MARKER) == self._id:
            self.waiting.discard(str(headers.get(_QUEUE)))

    def not_in_time(self, timeout: float) -> NotDrained:
        queues = tuple(sorted(self.waiting))
        return NotDrained(
            f"the marker was not reached within {timeout:g} seconds in {', '.join(map(repr, queues))}: is a consumer "
            "running there that calls pass_marker()? Keep holding the queues that gain keys, and drain again",
            queues,
        )


def _no_queue(queue: str) -> InvalidValue:
    return InvalidValue(
        "queue to drain",
        queue,
        "an existing queue that accepts messages",
        "The broker returned the marker",
    )


@contextmanager
def _told(errors: type[Exception]) -> Iterator[None]:
    """Raise a refusal of the broker or a lost connection as `BrokerUnavailable`."""
    try:
        yield
    except errors as error:
        words = str(error.args[-1]) if error.args else ""
        replies: Resources = {("queue", Beginning("amq.gen-"))}
        needs = Needs(configure=replies, write={("exchange", DEFAULT_EXCHANGE)}, read=replies)
        reason = why_denied(words, needs, what="a drain") or why_down(error, "this connection")
        raise BrokerUnavailable(f"the queues cannot be drained: {reason}") from None


# ---- with pika


def pass_marker(channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties) -> bool:
    """Answer and acknowledge a message if it is a marker; return whether it was.

    The answer goes first: a marker that is delivered again is answered again, which does no harm.
    """
    import pika

    if not is_marker(properties.headers):
        return False
    if properties.reply_to:
        channel.basic_publish("", properties.reply_to, b"", pika.BasicProperties(headers=properties.headers))
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
        timeout: seconds for all of them together.
        settle: seconds before the markers are published, for messages that are still on their way.

    Raises:
        NotDrained: a consumer did not reach its marker in time.
        InvalidValue: a queue does not exist.
    """
    import pika
    from pika.exceptions import AMQPError, NackError, UnroutableError

    from rabbit_chx.broker.applying.pika_driver import opened

    state = _Drain(queues)
    deadline = time.monotonic() + timeout
    with opened(connection_or_channel) as connection, _told(AMQPError), connection.channel() as channel:
        replies = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        for _ in channel.consume(replies, auto_ack=True, inactivity_timeout=settle):
            break  # no answer can come yet; this only waits
        for queue in sorted(state.waiting):
            properties = pika.BasicProperties(headers=state.headers(queue), reply_to=replies, delivery_mode=2)
            try:
                channel.basic_publish("", queue, b"", properties, mandatory=True)
            except (UnroutableError, NackError):
                raise _no_queue(queue) from None
        while state.waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise state.not_in_time(timeout)
            for _, answered, _ in channel.consume(replies, auto_ack=True, inactivity_timeout=min(left, 1.0)):
                if answered is not None:
                    state.passed(answered.headers)
                break


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
        timeout: seconds for the drain of one stage.
        settle: seconds before the first markers are published.

    Raises:
        NotDrained: a consumer did not reach its marker in time; queues not yet released must stay held.
        InvalidValue: there is no such order, because two queues gain keys from each other.
    """
    for losing, gaining in _stages(waits):
        if losing:
            drain(connection_or_channel, losing, timeout=timeout, settle=settle)
        for queue in gaining:
            release(queue)
        settle = 0.0


def _stages(waits: Mapping[Destination, Collection[Destination]]) -> list[tuple[list[str], list[str]]]:
    """What to drain and what to release then, stage by stage; each queue is drained once."""
    stages = drain_stages(waits)
    if stages is None:
        raise InvalidValue(
            "queues to drain in order",
            ", ".join(sorted(map(str, waits))),
            "queues that do not gain keys from each other",
            "Stop all consumers that gain keys until every queue is empty",
        )
    drained: set[str] = set()
    plan = []
    for stage in stages:
        losing = {str(loser) for gainer in stage for loser in waits[gainer]} - drained
        drained |= losing
        plan.append((sorted(losing), sorted(map(str, stage))))
    return plan


# ---- with aio-pika


async def pass_marker_async(message: AbstractIncomingMessage) -> bool:
    """As `pass_marker`, for a message of aio-pika that is acknowledged by hand."""
    from pamqp.commands import Basic

    if not is_marker(message.headers):
        return False
    if message.reply_to:
        properties = Basic.Properties(headers=dict(message.headers))
        await message.channel.basic_publish(b"", routing_key=message.reply_to, properties=properties)
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
    from aiormq.exceptions import AMQPError, DeliveryError
    from pamqp.commands import Basic

    from rabbit_chx.broker.applying.aio_driver import opened

    state = _Drain(queues)
    all_passed = asyncio.Event()

    async def on_answer(message: Any) -> None:
        state.passed(message.header.properties.headers)
        if not state.waiting:
            all_passed.set()

    async with opened(connection_or_channel) as connection:
        channel = await connection.channel()
        try:
            with _told(AMQPError):
                replies = str((await channel.queue_declare("", exclusive=True)).queue)
                await channel.basic_consume(replies, on_answer, no_ack=True)
                await asyncio.sleep(settle)
                for queue in sorted(state.waiting):
                    properties = Basic.Properties(
                        headers=state.headers(queue), reply_to=replies, delivery_mode=2
                    )
                    try:
                        await channel.basic_publish(
                            b"", routing_key=queue, properties=properties, mandatory=True
                        )
                    except DeliveryError:
                        raise _no_queue(queue) from None
                with suppress(TimeoutError):
                    await asyncio.wait_for(all_passed.wait(), max(0.0, timeout - settle))
            if state.waiting:
                raise state.not_in_time(timeout)
        finally:
            if not channel.is_closed:
                await channel.close()


async def drain_in_order_async(
    connection_or_channel: AbstractConnection | AbstractChannel | str,
    waits: Mapping[Destination, Collection[Destination]],
    release: Callable[[str], Awaitable[object]],
    *,
    timeout: float = 300.0,  # noqa: ASYNC109 - as drain() has it
    settle: float = 1.0,
) -> None:
    """As `drain_in_order`, with a connection or a channel of aio-pika; ``release`` is awaited."""
    for losing, gaining in _stages(waits):
        if losing:
            await drain_async(connection_or_channel, losing, timeout=timeout, settle=settle)
        for queue in gaining:
            await release(queue)
        settle = 0.0
