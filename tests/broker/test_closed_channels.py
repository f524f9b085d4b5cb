"""How a member closes the channel of a queue: in order, and so that the broker forgets the consumer."""

from __future__ import annotations

import pytest

from rabbit_chx.broker import server_version
from rabbit_chx.consuming.member.channels import acknowledge, close_in_one_step
from rabbit_chx.mirror.releases import Release
from tests.patience import wait_until
from tests.queues import ORDERED, a_channel

pytestmark = [pytest.mark.newest_first, pytest.mark.since_4_0, pytest.mark.broker]

PREFETCH = 10


class Consumer:
    def __init__(self, site, priority: int, prefetch: int = PREFETCH) -> None:
        self.prefetch = prefetch
        self.connection = site.connection()
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.received: list[int] = []
        arguments = {"x-priority": priority}
        self.channel.basic_consume(
            "q", lambda *delivery: self.received.append(int(delivery[3])), arguments=arguments
        )

    def full(self) -> bool:
        self.connection.process_data_events(time_limit=0.05)
        return len(self.received) >= self.prefetch

    def close(self) -> None:
        release = Release._of_broker(server_version(self.connection))
        close_in_one_step({self.channel: "q"}, self.prefetch, displace=release._keeps_dead_consumers)


def test_a_consumer_that_was_closed_in_the_middle_of_a_takeover_is_forgotten(site) -> None:
    with a_channel(site) as channel:
        channel.queue_declare("q", durable=True, arguments=ORDERED)
        for number in range(3 * PREFETCH):
            channel.basic_publish("", "q", str(number).encode())
    first = Consumer(site, 1)
    wait_until(first.full, "the first consumer has all that it may have")
    second = Consumer(site, 5)
    first.close()
    wait_until(second.full, "the second consumer has taken over")
    third = Consumer(site, 1)  # would come after the first one, if the broker still had it
    second.close()
    wait_until(third.full, "the third consumer has taken over")
    assert first.received == second.received == third.received == list(range(PREFETCH))
    for consumer in (first, second, third):
        consumer.connection.close()


def test_acknowledgements_that_the_broker_keeps_back_are_not_dropped(site) -> None:
    """It does so while the queue has more than 32 to apply."""
    with a_channel(site) as channel:
        channel.queue_declare("q", durable=True, arguments=ORDERED)
        for number in range(1_002):
            channel.basic_publish("", "q", str(number).encode())
    first = Consumer(site, 1, prefetch=1_000)
    wait_until(first.full, "the first consumer has all that it may have")
    acknowledge(first.channel, [(tag, False) for tag in range(2, 1_001)])
    first.close()
    second = Consumer(site, 1, prefetch=3)
    wait_until(second.full, "the second consumer has the rest")
    assert second.received == [0, 1_000, 1_001]
    for consumer in (first, second):
        consumer.connection.close()
