"""With order="key", a slow key and a failing one keep no other key waiting, and every key stays in order."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from rabbit_chx.broker import connect, drain
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.changes.records import declare_commands, hold_commands
from rabbit_chx.consuming import AsyncGroup, Group, Message
from rabbit_chx.publishing import Publisher
from rabbit_chx.working.markers import Hold
from tests.broker.topology_site import Site
from tests.members import Member, running
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, bind_ring, message_count

pytestmark = [pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]

QUEUES = ["k0", "k1"]


class Shop:
    """An exchange with two queues, and a record of the messages that handlers have begun."""

    def __init__(self, site: Site, kind: type[Group | AsyncGroup]) -> None:
        self.site, self.kind = site, kind
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.done: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def send(self, *keys: str) -> None:
        numbers = [self._sent.update([key]) or self._sent[key] - 1 for key in keys]
        with Publisher(self.site.url(), "orders") as publisher:
            publisher.publish_many([b"%d" % number for number in numbers], keys)

    def group(self, **settings: object) -> Group | AsyncGroup:
        given = {"management": self.site.management, "order": "key", "concurrency": 4, "prefetch": 50}
        return self.kind(self.site.url(), **{"exchange": "orders", "name": "keys", **given, **settings})

    def record(self, message: Message) -> None:
        with self._lock:
            self.seen[message.routing_key].append(int(message.body))
            self.done[message.queue] += 1

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def assert_in_order(self) -> None:
        for key, numbers in self.seen.items():
            assert numbers == list(range(len(numbers))), key

    def running(
        self, group: Group | AsyncGroup, busy: Callable[[Message], bool]
    ) -> AbstractContextManager[Member]:
        """Run a member whose handler records each message as soon as it is no longer busy with it."""

        def handle(message: Message) -> None:
            while busy(message):
                time.sleep(0.01)
            self.record(message)

        async def handle_in_loop(message: Message) -> None:
            while busy(message):  # noqa: ASYNC110 - the test changes what it waits for in another thread
                await asyncio.sleep(0.01)
            self.record(message)

        return running(group, handle_in_loop if self.kind is AsyncGroup else handle)


@pytest.fixture(params=[Group, AsyncGroup], ids=["Group", "AsyncGroup"])
def shop(site, channel, request) -> Shop:
    bind_ring(channel, "orders", QUEUES, ORDERED)
    channel.queue_declare("parked", durable=True)
    return Shop(site, request.param)


def test_a_slow_key_and_a_failing_one_keep_no_other_key_waiting(shop) -> None:
    """The handler is busy with the first message of the slow key until all other keys are handled."""
    keys = [f"key-{number % 100}" for number in range(2_000)]
    for at in random.Random(7).sample(range(1_900), 10):
        keys[at] = "slow"
    keys[100] = "poison"
    shop.send(*keys)

    def busy(message: Message) -> bool:
        if message.routing_key == "poison":
            attempts.append((time.monotonic(), message.attempt))
            raise ValueError("out of stock")
        return message.routing_key == "slow" and shop.count < 1_989

    attempts: list[tuple[float, int]] = []
    group = shop.group(attempts=3, backoff=0.5, on_failure="park", parking_queue="parked")
    with shop.running(group, busy), connect(shop.site.url()) as connection:
        wait_until(lambda: shop.count == 1_999, "all messages but one")
        channel = connection.channel()
        wait_until(lambda: message_count(channel, "parked"), "the parked one")
        _, properties, body = channel.basic_get("parked", auto_ack=True)
    assert body == b"0"
    assert properties.headers["x-rabbit-chx-parked-routing-key"] == "poison"
    assert properties.headers["x-rabbit-chx-parked-attempts"] == 3
    shop.assert_in_order()
    assert [attempt for _, attempt in attempts] == [1, 2, 3]
    (first, _), (second, _), (third, _) = attempts
    assert second - first >= 0.5
    assert third - second >= 1


def test_a_drain_and_a_hold_wait_for_all_keys_and_all_keys_wait_for_them(shop) -> None:
    keys = [f"key-{number % 10}" for number in range(200)]
    dice = random.Random(9)
    shop.send(*keys)
    with shop.running(shop.group(), lambda _: dice.random() < 0.1), connect(shop.site.url()) as connection:
        drain(shop.site.url(), QUEUES, timeout=PATIENCE, settle=0)
        assert shop.count == 200
        before = shop.done["k0"]
        hold = Hold.of("k0", [], groups=["keys"])
        for commands in (declare_commands(hold), hold_commands(hold)):
            PikaDriver(connection).run(commands)
        shop.send(*keys)
        drain(shop.site.url(), ["k1"], timeout=PATIENCE, settle=0)
        assert shop.done == {"k0": before, "k1": 2 * (200 - before)}
        connection.channel().queue_delete(hold.name)
        wait_until(lambda: shop.count == 400, "all messages after the marker")
    shop.assert_in_order()


def test_a_member_with_a_failing_key_stops_and_leaves_the_rest_in_order(shop) -> None:
    shop.send(*[f"key-{number % 10}" for number in range(500)])

    def busy(message: Message) -> bool:
        if (message.routing_key, message.body) == ("key-3", b"7"):
            raise ValueError("out of stock")
        return False

    failing = shop.running(shop.group(attempts=1), busy)
    with pytest.raises(ValueError, match="out of stock"), failing as member:
        wait_until(lambda: not member.is_alive(), "the end of the member")
    assert len(shop.seen["key-3"]) == 7
    with shop.running(shop.group(), lambda _: False):
        wait_until(lambda: shop.count == 500, "the rest")
    shop.assert_in_order()
