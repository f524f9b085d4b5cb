"""Move keys from queue to queue without breaking their order: a marker behind the last of what the old queue holds.

That keys move does no harm; that the old queue's backlog and the new queue are consumed at once does. So:

1. hold the consumers of the queues that gain keys (do not start them, or cancel them);
2. switch: apply the plan;
3. ``drain(connection, losing)`` puts a marker into each queue that loses keys, and returns when all
   their consumers have got there;
4. let the held consumers go.

This is for changes in one step: a queue bound at the end, the last one unbound, slots that are re-pointed, a second
exchange switched to. Who waits for whom is told by :func:`drain_first_in`. A queue that gains and loses cannot be held and
drained at once.

A consumer of a queue that loses keys has one call more, and acknowledges whatever came before first:

    def on_message(channel, method, properties, body):
        if pass_marker(channel, method, properties):
            return
        ...

Order is kept where it is kept without a change: one active consumer for each queue, which finishes its messages in
order (with aio-pika: ``async for`` over ``queue.iterator()``; its callbacks run side by side), and a queue that drops
and dead-letters nothing. A message that was routed just before the switch may reach its queue a
moment later; ``settle`` seconds lie between the switch and the markers for it.
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
from rabbit_chx.topology.planning.drain_order import drain_first, drain_first_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
    from pika import BasicProperties, BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.spec import Basic

    from rabbit_chx.broker.permissions import Resources

__all__ = [
    "MARKER",
    "NotDrained",
    "drain",
    "drain_async",
    "drain_first",
    "drain_first_in",
    "is_marker",
    "pass_marker",
    "pass_marker_async",
]

MARKER: Final = "x-rabbit-chx-marker"
"""The header that tells a marker from a message; its value belongs to one drain."""

_QUEUE: Final = "x-rabbit-chx-queue"


class NotDrained(RabbitChxError, TimeoutError):
    """A consumer did not get to its marker in time: the queues that gain keys must wait on."""

    def __init__(self, message: str, queues: tuple[str, ...] = ()) -> None:
        super().__init__(message, queues)
        self.queues = queues
        """The queues whose consumers did not get there."""

    def __str__(self) -> str:
        return str(self.args[0])


def is_marker(headers: Mapping[str, Any] | None) -> bool:
    """Whether a message with these headers is a marker, and none of yours."""
    return MARKER in (headers or {})


class _Drain:
    """One drain: the markers to put, and which of them were passed."""

    def __init__(self, queues: Collection[str]) -> None:
        if isinstance(queues, str) or not queues:
            raise InvalidValue(
                "queues to drain",
                queues,
                "names of queues",
                "Waits() tells which they are",
            )
        self.waiting = set(queues)
        self._id = secrets.token_hex(8)

    def headers(self, queue: str) -> dict[str, Any]:
        return {MARKER: self._id, _QUEUE: queue}

    def passed(self, headers: Mapping[str, Any] | None) -> None:
        """Take an answer; one to an earlier drain, or one that comes twice, changes nothing."""
        headers = headers or {}
        if headers.get(MARKER) == self._id:
            self.waiting.discard(str(headers.get(_QUEUE)))

    def not_in_time(self, timeout: float) -> NotDrained:
        queues = tuple(sorted(self.waiting))
        return NotDrained(
            f"after {timeout:g} seconds the marker was not passed in {', '.join(map(repr, queues))}: does a "
            "consumer run there that calls pass_marker()? The consumers of the queues that gain keys must go on "
            "waiting; drain again",
            queues,
        )


def _no_queue(queue: str) -> InvalidValue:
    return InvalidValue(
        "queue to drain",
        queue,
        "a queue that is there and takes messages",
        "The marker came back: was the queue deleted?",
    )


@contextmanager
def _told(errors: type[Exception]) -> Iterator[None]:
    """A refusal of the broker's, or a connection that is lost, as an error of ours."""
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
    """Answer and acknowledge a message if it is a marker; False where it is one of yours.

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
    """Wait until the consumers of these queues have done all that was in them when this was called, or fail.

    Args:
        connection_or_channel: of pika's, or an AMQP URL; of a channel only the connection is used.
        queues: that have just lost keys.
        timeout: seconds for all of them together.
        settle: seconds before the markers are put, for messages that were already on their way.

    Raises:
        NotDrained: a consumer did not get there in time.
        InvalidValue: there is no such queue.
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
            break  # nothing can come yet: it is only the time that passes
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


# ---- with aio-pika


async def pass_marker_async(message: AbstractIncomingMessage) -> bool:
    """As `pass_marker`, for a message of aio-pika's that is acknowledged by hand."""
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
    """As `drain`, with a connection or a channel of aio-pika's."""
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
