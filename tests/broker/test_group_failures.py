"""Members of a group on a real broker: what becomes of a message that a handler fails or rejects, also during an alarm."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rabbit_chx import Field
from rabbit_chx.broker.properties import Properties
from rabbit_chx.consuming import Group, Message, QueueReader, Reject
from tests.broker import test_groups
from tests.broker.test_groups import QUEUES, memory_alarm
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import message_count

pytestmark = [pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]

orders = test_groups.orders


def test_a_failing_message_is_retried_before_later_ones_and_then_stops_the_member(orders) -> None:
    tried: list[int] = []
    orders.send(20, keys=1)

    def handle(message: Message) -> None:
        tried.append(int(message.body))
        if int(message.body) == 3:
            raise ValueError("out of stock")

    group = orders.group(attempts=3, backoff=0.05)
    with pytest.raises(ValueError, match="out of stock") as caught, running(group, handle) as member:
        member.join(PATIENCE)
    assert "The handler failed 3 times" in "".join(caught.value.__notes__)
    assert tried == [0, 1, 2, 3, 3, 3]
    with running(orders.group(), orders.handle):
        wait_until(lambda: orders.seen["k0"][-1:] == [19], "the rest")
    assert orders.seen["k0"] == list(range(3, 20))


@pytest.mark.parametrize("on_failure", ["park", "dead-letter"])
def test_a_failed_message_is_parked_or_dead_lettered_before_later_ones_are_handled(
    orders, on_failure
) -> None:
    orders.channel.queue_declare("failed", durable=True)
    if on_failure == "dead-letter":
        policy = {"dead-letter-exchange": "", "dead-letter-routing-key": "failed"}
        body = {"pattern": "^o", "definition": policy, "apply-to": "queues"}
        orders.site.management._request("PUT", ["policies", orders.site.vhost, "dlx"], body=body)
    orders.send(20, keys=1)

    def handle(message: Message) -> None:
        if int(message.body) == 3:
            raise ValueError("out of stock")
        orders.handle(message)

    parking = "failed" if on_failure == "park" else None
    group = orders.group(attempts=2, backoff=0.01, on_failure=on_failure, parking_queue=parking)
    with running(group, handle):
        wait_until(lambda: orders.seen["k0"][-1:] == [19], "all others")
        wait_until(lambda: message_count(orders.channel, "failed"), "the failed one")
    assert orders.seen["k0"] == [*range(3), *range(4, 20)]
    assert orders.channel.basic_get("failed", auto_ack=True)[2] == b"3"


def test_a_parked_message_keeps_its_headers(orders) -> None:
    """Also those that pika cannot decode."""
    orders.channel.queue_declare("failed", durable=True)
    headers = {
        "price": 1 / 3,
        "milliseconds": Field("T", 1_700_000_000_000),
        "late": Field("T", 253_402_300_800),  # the first second of the year 10000
        "table": {"long": -(2**40)},
    }
    orders.channel.basic_publish("", QUEUES[0], b"0", Properties(headers=headers))
    seen: list[dict[str, Any]] = []

    def handle(message: Message) -> None:
        seen.append(message.headers)
        raise ValueError("out of stock")

    parked: list[Message] = []
    group = orders.group(attempts=1, on_failure="park", parking_queue="failed")
    with running(group, handle), QueueReader(orders.site.url(), "failed") as reader:
        wait_until(lambda: parked.extend(reader.take(1).messages) or parked, "the parked message")
    assert seen == [headers]
    found = parked[0].headers
    assert found["x-rabbit-chx-parked-queue"] == QUEUES[0]
    assert {name: found[name] for name in found if not name.startswith("x-rabbit-chx-parked-")} == headers


def test_the_status_of_a_member_tells_of_an_alarm_that_keeps_a_message_from_being_parked(
    orders, broker
) -> None:
    going = threading.Event()

    def handle(_: Message) -> None:
        assert going.wait(PATIENCE)
        raise Reject("no")

    orders.channel.queue_declare("failed", durable=True)
    orders.channel.basic_publish("", QUEUES[0], b"0")
    url = f"{orders.site.url()}?blocked_connection_timeout=1"
    options = {"exchange": "orders", "name": "billing", "management": orders.site.management}
    group = Group(url, on_failure="park", parking_queue="failed", **options)
    with running(group, handle):
        wait_until(lambda: group.status.in_hand, "the message")
        with memory_alarm(broker):
            going.set()
            wait_until(lambda: group.status.failed, "the handler has failed")
            wait_until(lambda: "(memory or disk alarm)" in group.status.reason, "the reason")
        wait_until(lambda: message_count(orders.channel, "failed"), "the message is parked")
        wait_until(lambda: (status := group.status).connected and status.oldest is None, "the end")
        assert (group.status.reason, group.status.in_hand) == ("", 0)
