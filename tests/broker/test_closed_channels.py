"""How a member closes the channel of a queue: in order, and so that the broker forgets the consumer."""

from __future__ import annotations

import pytest

from rabbit_chx.broker import server_version
from rabbit_chx.consuming.member.channels import close_in_one_step
from rabbit_chx.mirror.releases import Release
from tests.patience import wait_until
from tests.queues import ORDERED, a_channel

pytestmark = [pytest.mark.newest_first, pytest.mark.since_4_0, pytest.mark.broker]

PREFETCH = 10


class Consumer:
    def __init__(self, site, priority: int) -> None:
        self.connection = site.connection()
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=PREFETCH)
        self.received: list[int] = []
        arguments = {"x-priority": priority}
        self.channel.basic_consume(
            "q", lambda *delivery: self.received.append(int(delivery[3])), arguments=arguments
        )

    def full(self) -> bool:
        self.connection.process_data_events(time_limit=0.05)
        return len(self.received) >= PREFETCH

    def close(self) -> None:
        release = Release.of_broker(server_version(self.connection))
        close_in_one_step({self.channel: "q"}, PREFETCH, displace=release.keeps_dead_consumers)


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
