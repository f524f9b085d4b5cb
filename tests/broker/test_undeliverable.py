"""A message that the broker cannot convert for its consumers: members name its queue, and a policy takes it out."""

from __future__ import annotations

import logging

import pytest
from pika.exceptions import ConnectionClosedByBroker

from rabbit_chx.topology.model import Policy
from tests.amqp10 import Outcome, Sender
from tests.broker.test_groups import orders  # noqa: F401 - the fixture
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import a_channel
from tests.stream_forgeries import BODY, NULL, a_map, compound, symbol, text, value_of

pytestmark = [pytest.mark.long, pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]

UUID, BOOLEAN, LONG = b"\x98" + bytes(16), b"\x41", b"x" * 256
MESSAGES = {
    "uuid": a_map(0x74, {b"id": UUID}) + BODY,
    "char": a_map(0x74, {b"id": b"\x73\0\0\0x"}) + BODY,
    "content type": compound(0x73, b"\xd0", *[NULL] * 6, symbol(LONG)) + BODY,
    "content encoding": compound(0x73, b"\xd0", *[NULL] * 7, symbol(LONG)) + BODY,
    "annotation": a_map(0x72, {b"x-id": UUID}, symbol) + BODY,
    "message id of another type": compound(0x73, b"\xd0", BOOLEAN) + BODY,
    "type of another type": a_map(0x72, {b"x-basic-type": BOOLEAN}, symbol) + BODY,
    "long name in a map": a_map(0x74, {b"id": value_of(b"\xd1", text(LONG), NULL)}) + BODY,
    "integer in a list": a_map(0x74, {b"id": value_of(b"\xd0", b"\x80\x80" + bytes(7))}) + BODY,
    "footer": BODY + a_map(0x78, {b"id": NULL}),
}
LARGE = a_map(0x74, {b"id": text(b"x" * 200_000)}) + BODY
CANNOT_CONVERT = "the broker failed (541 INTERNAL_ERROR)"
TOO_LARGE = "the broker sent a larger frame than agreed"


@pytest.mark.parametrize("message", MESSAGES)
def test_the_broker_closes_the_connection_to_which_it_delivers(orders, message) -> None:  # noqa: F811
    """What consuming-production.md lists; a release that delivers one of these fails here."""
    with a_channel(orders.site) as channel:
        channel.queue_declare("undelivered", durable=True)
        with Sender(orders.site.url(), "/queues/undelivered") as sender:
            assert sender.send(MESSAGES[message]) is Outcome.ACCEPTED
        with pytest.raises(ConnectionClosedByBroker, match="541"):
            wait_until(lambda: channel.basic_get("undelivered")[0], "the message")


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        (MESSAGES["uuid"], CANNOT_CONVERT),
        pytest.param(LARGE, TOO_LARGE, marks=pytest.mark.proof),
        pytest.param(MESSAGES["char"], CANNOT_CONVERT, marks=pytest.mark.proof),
        pytest.param(MESSAGES["content type"], CANNOT_CONVERT, marks=pytest.mark.proof),
    ],
    ids=["uuid", "large headers", "char", "content type"],
)
def test_a_member_names_the_queue_of_a_message_that_the_broker_cannot_deliver(
    orders,  # noqa: F811
    message,
    ended,
    caplog,
) -> None:
    caplog.set_level(logging.WARNING)
    with Sender(orders.site.url(), "/queues/o3") as sender:
        assert sender.send(message) is Outcome.ACCEPTED
    orders.send(30)
    group = orders.group(prefetch=1)
    named = f"{ended} 3 times in a row when it delivered from queue 'o3'"
    with running(group, orders.handle):
        wait_until(lambda: named in group.status.reason, "the status names the queue", 2 * PATIENCE)
        wait_until(lambda: any(named in each.getMessage() for each in [*caplog.records]), "the log does")
        policy = Policy("undeliverable", "^o3$", "quorum_queues", {"delivery-limit": 5})
        orders.site.management.put_policy(orders.site.vhost, policy)
        wait_until(lambda: orders.all_seen, "all other messages", 3 * PATIENCE)  # pauses have grown to 30 s
        wait_until(lambda: group.status.connected, "the member consumes")
    orders.assert_in_order(duplicates=True)
