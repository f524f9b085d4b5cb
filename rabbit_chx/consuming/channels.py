"""Close channels of pika so that the order of their queues is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPChannelError

from rabbit_chx.consuming.priorities import DISPLACING

_TICK: Final = 0.5


def close_in_one_step(channels: Mapping[BlockingChannel | None, str], prefetch: int) -> None:
    """Close channels, by which the broker takes back what they were sent, in one step and so in order.

    pika's own close() cancels the consumers first. The broker then activates other members at once, which get later
    messages before those that are taken back.

    A channel that comes with a queue is displaced there first, by a consumer whose priority is the highest, and rejects
    what it has: then it is only one that waits. All it had goes to the other consumer, whose prefetch is the same, and is
    taken back in one step when that is closed. The broker may keep a consumer otherwise (`keeps_dead_consumers`), but not
    one whose priority is the highest.
    """
    closing = {each: queue for each, queue in channels.items() if each is not None and each.is_open}
    others = [_displace(channel, queue, prefetch) for channel, queue in closing.items() if queue]
    _close(closing)
    _close(others)


def _displace(channel: BlockingChannel, queue: str, prefetch: int) -> BlockingChannel:
    other = channel.connection.channel()
    with suppress(AMQPChannelError):  # the queue or the channel is gone
        other.basic_qos(prefetch_count=prefetch)
        other.basic_consume(queue, lambda *_: None, arguments={"x-priority": DISPLACING})
        channel.basic_qos(prefetch_count=prefetch)  # it is answered after everything that was on its way
        channel.basic_nack(0, multiple=True, requeue=True)
    return other


def _close(channels: Iterable[BlockingChannel]) -> None:
    closing = [each for each in channels if each.is_open]
    for each in closing:
        impl = each._impl  # noqa: SLF001 - nothing public closes a channel without cancelling
        impl._cancelled.update(impl._consumers)  # noqa: SLF001
        impl.close()
    for each in closing:
        while not each.is_closed:
            each.connection.process_data_events(time_limit=_TICK)
