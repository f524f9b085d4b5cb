"""Use channels of pika so that their queues stay in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPChannelError, ChannelClosedByBroker, StreamLostError
from pika.spec import PRECONDITION_FAILED

from rabbit_chx.broker.amqp import expecting_refusals
from rabbit_chx.consuming.seats import DISPLACING

_TICK: Final = 0.5
_PATIENCE: Final = 30.0
"""Seconds for the broker to close channels; heartbeats alone do not show that it will."""
_LOWEST: Final = -(1 << 31)
_AT_ONCE: Final = 40


def acknowledge(channel: BlockingChannel | None, tags: Iterable[tuple[int, bool]]) -> None:
    """Acknowledge deliveries by their tags, each with whether this acknowledges all earlier ones too, if the channel is open.

    pika's own basic_ack() waits until it is sent, which takes longer than everything else; these are sent with the next events.
    """
    if channel is None or not channel.is_open:
        return
    for tag, multiple in tags:
        channel._impl.basic_ack(tag, multiple=multiple)


def close_in_one_step(
    channels: Mapping[BlockingChannel | None, str], prefetch: int, *, displace: bool = False
) -> None:
    """Close channels so that the broker requeues their messages in one step and in order.

    pika's own close() cancels the consumers first. The broker then activates other members at once, and they get later
    messages before the requeued ones.

    Of a channel that is given with a queue, the queue applies all acknowledgements first (`_settle`).

    If ``displace``, such a channel is displaced instead: a temporary consumer with the highest priority takes over, and the
    channel requeues its messages. All of them go to the temporary consumer, which has the same prefetch, and closing that
    one requeues them in one step. Without this, the broker may keep the closed consumer (`Release._keeps_dead_consumers`);
    it never keeps one with the highest priority. Earlier releases would change the order.

    If the broker does not answer in time, this ends the connection and raises.
    """
    open_ones = [(each, queue) for each, queue in channels.items() if each is not None and each.is_open]
    prepare = _displace if displace else _settle
    # Each may need a second channel, and a connection may have at most channel_max.
    for start in range(0, len(open_ones), _AT_ONCE):
        closing = dict(open_ones[start : start + _AT_ONCE])
        others = [prepare(channel, queue, prefetch) for channel, queue in closing.items() if queue]
        for each in (closing, others) if displace else (others, closing):
            _close(each)


def is_stream(connection: BlockingConnection, queue: str) -> bool:
    """Whether a queue that is being consumed is a stream, for a user who may only read it.

    The header that the broker adds to messages of a stream proves nothing, because a publisher can set it, too. But only a
    stream refuses a consumer without a prefetch count; the others refuse it as exclusive, or let it wait.
    """
    channel = connection.channel()
    try:
        with expecting_refusals(channel):
            channel.basic_consume(queue, lambda *_: None, exclusive=True, arguments={"x-priority": _LOWEST})
    except ChannelClosedByBroker as refused:
        return bool(refused.reply_code == PRECONDITION_FAILED)
    _close([channel])
    return False


def _settle(channel: BlockingChannel, queue: str, prefetch: int) -> BlockingChannel:
    """Let a quorum queue apply what was acknowledged; return the channel of a temporary consumer that waits there.

    The broker keeps acknowledgements back while the queue has more than 32 to apply (``rabbit_fifo_client:settle/3``), and
    drops these when the channel is closed. The queue accepts a consumer after it has applied the others.
    """
    other = channel.connection.channel()
    with suppress(AMQPChannelError):  # the queue or the channel no longer exists
        channel.basic_qos(prefetch_count=prefetch)  # answered when the broker has read the acknowledgements
        other.basic_qos(prefetch_count=prefetch)
        other.basic_consume(queue, lambda *_: None, arguments={"x-priority": _LOWEST})
        channel.basic_qos(prefetch_count=prefetch)  # answered when it has sent those that it kept back
    return other


def _displace(channel: BlockingChannel, queue: str, prefetch: int) -> BlockingChannel:
    other = channel.connection.channel()
    with suppress(AMQPChannelError):  # the queue or the channel no longer exists
        other.basic_qos(prefetch_count=prefetch)
        other.basic_consume(queue, lambda *_: None, arguments={"x-priority": DISPLACING})
        # The answer comes after all deliveries that were in transit.
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_nack(0, multiple=True, requeue=True)
    return other


def _close(channels: Iterable[BlockingChannel]) -> None:
    closing = [each for each in channels if each.is_open]
    for each in closing:
        impl = each._impl  # nothing public closes a channel without cancelling
        impl._cancelled.update(impl._consumers)
        impl.close()
    until = monotonic() + _PATIENCE
    for each in closing:
        while not each.is_closed:
            if monotonic() > until:
                error = StreamLostError(f"the broker did not close a channel within {_PATIENCE:g} seconds")
                each.connection._impl._terminate_stream(error)  # the next events raise it
            each.connection.process_data_events(time_limit=_TICK)
