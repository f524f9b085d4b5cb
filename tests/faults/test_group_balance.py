"""Which member gets the messages of each queue after each join, tested with a message to every queue of a real broker."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pika
import pytest

from rabbit_chx.consuming.seats import priority
from tests.patience import wait_until
from tests.proof import LONG, Check, record_result

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800 if LONG else 600)]

ALSO = {"test_each_join_takes_a_fair_share_and_moves_nothing_else": ["4.0"]}
MEMBERS = 16
QUEUES = (*range(1, 25), 32, 48, 64) if LONG else (1, 2, 3, 5, 8, 16, 27, 64)


class Consumers:
    """Members that consume all queues, each on its own channel, and acknowledge immediately."""

    def __init__(self, connection: pika.BlockingConnection, queues: list[str]) -> None:
        self._connection, self._queues = connection, queues
        self._channels: list = []
        self._got: dict[str, int] = {}

    def join(self, priorities: list[int]) -> None:
        member, channel = len(self._channels), self._connection.channel()
        channel.basic_qos(prefetch_count=50)

        def on_message(queue):
            def take(_, method, __, ___):
                channel.basic_ack(method.delivery_tag)
                self._got[queue] = member

            return take

        for queue, its in zip(self._queues, priorities, strict=True):
            channel.basic_consume(queue, on_message(queue), arguments={"x-priority": its})
        self._channels.append(channel)

    def owners(self) -> list[int]:
        """The member that gets a message of each queue."""
        self._got.clear()
        for queue in self._queues:
            self._channels[0].basic_publish("", queue, b"")

        def all_came() -> bool:
            self._connection.process_data_events(time_limit=0.05)
            return len(self._got) == len(self._queues)

        wait_until(all_came, "a message from each queue")
        return [self._got[queue] for queue in self._queues]


def history(broker, queues, priority_of) -> list[list[int]]:
    """The owners of the queues after each join."""
    with broker.connection() as connection:
        consumers, found = Consumers(connection, queues), []
        for member in range(min(MEMBERS, len(queues))):
            consumers.join([priority_of(member, at) for at in range(len(queues))])
            found.append(consumers.owners())
    return found


def wrong(found: list[list[int]]) -> list[int]:
    """The joins after which loads differ by more than one, or a queue has moved to a member other than the new one."""
    uneven = {
        member
        for member, owners in enumerate(found)
        if max(loads := [Counter(owners)[each] for each in range(member + 1)]) - min(loads) > 1
    }
    moved = {
        member
        for member, (before, after) in enumerate(pairwise(found), 1)
        if any(old != new != member for old, new in zip(before, after, strict=True))
    }
    return sorted(uneven | moved)


def test_each_join_takes_a_fair_share_and_moves_nothing_else(broker, topology):
    started = time.monotonic()
    used = topology(queues=max(QUEUES), x_queue_type="quorum", x_single_active_consumer=True)
    alone = history(broker, used.queues[:8], lambda _member, _at: 0)
    assert wrong(alone) == list(range(1, 8))
    bad, joins = {}, 0
    for count in QUEUES:
        found = history(
            broker, used.queues[:count], lambda member, at, count=count: priority(member, at, count)
        )
        joins += len(found)
        bad[count] = wrong(found)
    failed = sum(map(len, bad.values()))
    sizes = f"1 to {MEMBERS} members, {len(QUEUES)} numbers of queues from 1 to {max(QUEUES)}"
    control = f"without priorities: {len(wrong(alone))} of {len(alone)} joins"
    record_result(
        Check(
            "Consumers",
            f"who gets a message of each queue after each join: {sizes}",
            broker.version,
            joins,
            failed,
            time.monotonic() - started,
            control,
        )
    )
    assert not failed, bad
