"""Members of a group on a real broker: division of the queues, status, holds, seats and alarms."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pika
import pytest

from rabbit_chx.broker import connect
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.changes.records import declare_commands, hold_commands
from rabbit_chx.consuming import Group, Message
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.responder import Responder
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.testing import Broker
from rabbit_chx.working.markers import Hold
from rabbit_chx.working.workers import Workers
from tests.broker.topology_site import Site
from tests.json_lines import documented, printed
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, bind_ring, message_count
from tests.verbs import in_a_process

pytestmark = [pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]

QUEUES = [f"o{number}" for number in range(6)]


class Orders:
    """An exchange with queues, and a record of the messages that handlers have seen."""

    def __init__(self, site: Site, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
        self.site = site
        self.channel = channel
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.by: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sent = Counter()

    def send(self, messages: int, keys: int = 30) -> None:
        for number in range(messages):
            key = f"k{number % keys}"
            self.channel.basic_publish("orders", key, str(self._sent[key]).encode())
            self._sent[key] += 1

    def handle(self, message: Message, who: str = "") -> None:
        with self._lock:
            self.by[f"{who}:{message.queue}"] += 1
            self.seen[message.routing_key].append(int(message.body))

    @property
    def all_seen(self) -> bool:
        return all(set(self.seen[key]) >= set(range(count)) for key, count in self._sent.items())

    def assert_in_order(self, *, duplicates: bool = False) -> None:
        for key, numbers in self.seen.items():
            first = list(dict.fromkeys(numbers)) if duplicates else numbers
            assert first == sorted(set(first)), key

    def group(self, **settings: object) -> Group:
        settings = {"exchange": "orders", "name": "billing", "management": self.site.management} | settings
        return Group(self.site.url(), **settings)

    def seats(self) -> list[int]:
        with connect(self.site.url()) as connection:
            return [member.seat for member in members_over(connection, "billing") if member.answered]


@pytest.fixture
def orders(site) -> Iterator[Orders]:
    # Without heartbeats, because tests leave the connection idle.
    with connect(site.url(), heartbeat=0) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        bind_ring(channel, "orders", QUEUES, ORDERED)
        yield Orders(site, channel)


def test_members_share_the_queues_and_every_key_stays_in_order(orders) -> None:
    orders.send(60)
    with running(orders.group(), lambda message: orders.handle(message, "a")):
        wait_until(lambda: orders.seats() == [0], "one member")
        with running(orders.group(), lambda message: orders.handle(message, "b")):
            wait_until(lambda: orders.seats() == [0, 1], "two members")
            wait_until(lambda: orders.all_seen, "all earlier messages")
            orders.by.clear()
            orders.send(300)
            wait_until(lambda: orders.all_seen, "all messages")
            assert Counter(each.partition(":")[0] for each in orders.by) == {"a": 3, "b": 3}
            rows: list[dict[str, Any]] = []

            def listed() -> Counter[int]:
                result = in_a_process("group", "billing", "-U", orders.site.url(), "--output", "json")
                rows[:] = [json.loads(line) for line in result.stdout.splitlines()]
                return Counter(row["seat"] for row in rows if row["type"] == "group_queue")

            wait_until(lambda: listed() == {0: 3, 1: 3}, "both members answer")
            assert printed("group", rows) == {
                kind: keys for kind, keys in documented("group").items() if kind in ("member", "group_queue")
            }
        orders.send(60)
        wait_until(lambda: orders.all_seen, "the remaining member handles all messages")
    orders.assert_in_order()


def test_progress_wakes_the_new_connection_if_the_old_one_was_lost_before_it_woke(orders) -> None:
    url = orders.site.url()
    responder = Responder(lambda: connect(url), print)
    workers = Workers(print, 1, 10)
    member = Member(orders.group()._settings, lambda: connect(url), lambda: QUEUES, workers, responder)
    woken: list[bool] = []
    member._on_woken = lambda: woken.append(True)
    with connect(url) as old, connect(url) as new:
        member._connection = old
        member.on_progress()
        old.close()
        member._connection = new
        member.on_progress()
        new.process_data_events(time_limit=5)
    assert woken


def test_the_status_of_a_group_says_whether_it_consumes_and_what_it_has_done(orders, monkeypatch) -> None:
    release, again = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if int(message.body) == 1:
            raise ValueError("out of stock")
        assert int(message.body) < 2 or release.wait(PATIENCE)
        orders.handle(message)

    def wait_to_connect(*_: object) -> float:
        again.wait(PATIENCE)
        return 0.0

    group = orders.group(attempts=1, on_failure="dead-letter")
    before = group.status
    assert (before.connected, before.reason, before.queues) == (False, "it is not running", ())
    assert (before.in_hand, before.oldest, before.handled, before.last_delivery) == (0, None, 0, None)
    orders.send(3, keys=1)
    with running(group, handle):
        wait_until(
            lambda: (each := group.status).oldest is not None and (each.handled, each.in_hand) == (2, 1),
            "the last message",
        )
        status = group.status
        assert (status.connected, status.reason, status.queues) == (True, "", tuple(QUEUES))
        assert (status.handled, status.failed) == (2, 1)
        assert abs((datetime.now(UTC) - status.last_delivery).total_seconds()) < PATIENCE
        release.set()
        wait_until(lambda: group.status.handled == 3, "the end of the last message")
        # rabbitmqctl may return after the member would have connected again.
        monkeypatch.setattr("rabbit_chx.base.outages.Backoff.failed", wait_to_connect)
        orders.site.broker.ctl("close_all_connections", "-p", orders.site.vhost, "a test")
        wait_until(lambda: "a test" in group.status.reason, "the reason")
        assert not group.status.connected
        again.set()
        wait_until(lambda: group.status.connected, "the next connection")
        assert group.status.handled >= 3  # the broker may not have received the last acknowledgement
    assert not group.status.connected


def test_a_queue_is_held_behind_a_marker_until_its_hold_is_deleted(orders) -> None:
    holds = [Hold.of(queue, []) for queue in QUEUES]
    orders.send(60)
    with running(orders.group(), orders.handle):
        wait_until(lambda: orders.all_seen, "all messages before the markers")
        with connect(orders.site.url()) as connection:
            for hold in holds:
                PikaDriver(connection).run(declare_commands(hold))
                PikaDriver(connection).run(hold_commands(hold))
            orders.send(60)
            wait_until(
                lambda: all(
                    each.answered and all(queue.hold for queue in each.queues.values())
                    for each in members_over(connection, "billing")
                ),
                "every queue held",
            )
        before = sum(map(len, orders.seen.values()))
        assert before == 60
        for hold in holds:
            orders.channel.queue_delete(hold.name)
        wait_until(lambda: orders.all_seen, "all messages after the markers")
    orders.assert_in_order()


@pytest.mark.long
def test_group_lists_held_queues_and_unbound_queues_with_messages(orders) -> None:
    def listed() -> tuple[int, dict[str, str]]:
        env = {"RABBITMQ_MANAGEMENT_URL": orders.site.broker.management_url}
        result = in_a_process("group", "billing", "-U", orders.site.url(), "--output", "json", env=env)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        printed("group", rows)
        return result.returncode, {
            row["queue"]: row["state"] for row in rows if row["type"] == "group_problem"
        }

    orders.send(60)
    with connect(orders.site.url()) as connection:
        orders.channel.queue_unbind("o5", "orders", "1")
        with running(orders.group(), orders.handle):  # does not know the unbound queue
            wait_until(lambda: listed() == (2, {"o5": "unbound"}), "the unbound queue is listed")
            hold = Hold.of("o4", ["o5"], groups=["billing"])
            PikaDriver(connection).run(declare_commands(hold))
            assert listed() == (2, {"o5": "unbound", "o4": "held"})
            orders.channel.queue_delete(hold.name)
            orders.channel.queue_bind("o5", "orders", "1")
            wait_until(lambda: listed() == (0, {}), "nothing is left")


@pytest.mark.long
@pytest.mark.since_4_3
def test_the_broker_gives_a_queue_to_another_member_after_consumer_timeout(orders) -> None:
    names, over = ["o0", "o1"], threading.Event()
    group = partial(orders.group, queues=names, consumer_timeout=2.0, attempts=1)
    with running(group(), lambda _: over.wait(PATIENCE)):
        wait_until(lambda: orders.seats() == [0], "the first member, whose handler hangs")
        with running(group(), orders.handle):
            wait_until(lambda: orders.seats() == [0, 1], "the second member")
            orders.channel.basic_publish("", "o0", b"0")  # the first seat has the first queue
            wait_until(lambda: orders.seen["o0"], "the second member has handled the message")
            over.set()


def test_a_member_moves_to_a_lower_seat_that_has_become_free(orders, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.member._MOVE_AFTER", 0.2)
    first = orders.group()
    with running(first, orders.handle):
        wait_until(lambda: orders.seats() == [0], "the first")
        with running(orders.group(), orders.handle):
            wait_until(lambda: orders.seats() == [0, 1], "both")
            first.stop()
            wait_until(lambda: orders.seats() == [0], "the second in seat 0")
            orders.send(60)
            wait_until(lambda: orders.all_seen, "everything")
    orders.assert_in_order()


def test_a_member_without_a_seat_takes_one_that_becomes_free(orders, caplog) -> None:
    caplog.set_level(logging.INFO, "rabbit_chx.consuming")
    first = orders.group(queues=["o0"])
    with running(first, lambda message: orders.handle(message, "first")) as thread:
        wait_until(lambda: orders.seats() == [0], "the first member")
        with running(orders.group(queues=["o0"]), lambda message: orders.handle(message, "second")):
            wait_until(lambda: "all 1 seats are taken" in caplog.text, "the second member")
            first.stop()
            thread.join(PATIENCE)
            orders.channel.basic_publish("", "o0", b"0")
            wait_until(lambda: orders.by, "the second member has handled the message")
    assert orders.by == {"second:o0": 1}


@contextmanager
def memory_alarm(broker: Broker) -> Iterator[None]:
    """Have the broker stop reading from each connection that publishes."""
    broker.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(lambda: "memory" in broker.eval("rabbit_alarm:get_alarms()."), "the alarm")
        yield
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.6")


def test_members_go_on_acknowledging_and_a_new_one_joins_during_an_alarm(orders, broker, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.member._MOVE_AFTER", 0.2)
    monkeypatch.setattr("rabbit_chx.consuming.member.member.looks_lower", lambda *_: True)
    going = threading.Event()

    def handle(message: Message) -> None:
        assert going.wait(PATIENCE)
        orders.handle(message)

    def messages() -> set[str]:
        listed = broker.ctl("list_queues", "-p", orders.site.vhost, "--no-table-headers", "messages")
        return set(listed.split())

    def a_search_is_blocked() -> bool:
        rows = broker.ctl("list_connections", "--no-table-headers", "client_properties", "state").splitlines()
        return any("group billing replies" in row and row.endswith("blocked") for row in rows)

    orders.send(300)
    with ExitStack() as members_of_group:
        for seats in [0], [0, 1]:
            members_of_group.enter_context(running(orders.group(prefetch=3), handle))
            wait_until(partial(lambda seats: orders.seats() == seats, seats), "a member has joined")
        with memory_alarm(broker):
            wait_until(a_search_is_blocked, "the member in seat 1 looks for a lower one")
            members_of_group.enter_context(running(orders.group(prefetch=3), handle))
            wait_until(lambda: orders.site.queue_names("seat.billing.2$"), "another member has joined")
            going.set()
            wait_until(lambda: orders.all_seen, "all messages are handled")
            wait_until(lambda: messages() == {"0"}, "all messages are acknowledged")
        wait_until(lambda: orders.seats() == [0, 1, 2], "all members answer")
    orders.assert_in_order()


def test_a_member_holds_as_many_messages_of_each_queue_as_its_prefetch_whatever_their_size(orders) -> None:
    """SECURITY.md: the number limits no memory."""
    queues, going = QUEUES[:2], threading.Event()

    def waiting() -> list[int]:
        return [message_count(orders.channel, queue) for queue in queues]

    for queue in queues * 8:
        orders.channel.basic_publish("", queue, bytes(1 << 20))
    with running(orders.group(prefetch=3, queues=queues), lambda _: going.wait(PATIENCE)):
        wait_until(lambda: waiting() == [5, 5], "the broker has sent three messages of each queue")
        going.set()
        wait_until(lambda: waiting() == [0, 0], "all messages are sent")
