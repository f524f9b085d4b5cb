"""A message that the broker cannot convert for its consumers: members name its queue, and a policy takes it out (security review 3, M4)."""

from __future__ import annotations

import logging
import uuid
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("proton", reason="the client for AMQP 1.0 was not built: there is no C compiler")

from proton import Message as Amqp10Message, char
from proton.utils import BlockingConnection

from rabbit_chx.topology.model import Policy
from tests.broker.test_groups import orders, running  # noqa: F401 - the fixture
from tests.broker.topology_site import Site
from tests.patience import PATIENCE, wait_until

pytestmark = [pytest.mark.long, pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]


CANNOT_CONVERT = "the broker failed (541 INTERNAL_ERROR)"
TOO_LARGE = "the broker sent a larger frame than agreed"


def poison(site: Site, queue: str, message: Amqp10Message) -> None:
    """Publish a message over AMQP 1.0."""
    parts = urlsplit(site.broker.url)
    connection = BlockingConnection(
        f"amqp://{parts.hostname}:{parts.port}",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        allowed_mechs="PLAIN",
        virtual_host=f"vhost:{site.vhost}",
        timeout=PATIENCE,
    )
    try:
        sender = connection.create_sender(f"/queues/{queue}")
        sender.send(message)
    finally:
        connection.conn.close()


@pytest.mark.parametrize(
    ("properties", "ended"),
    [
        ({"properties": {"id": uuid.UUID(int=1)}}, CANNOT_CONVERT),
        ({"properties": {"id": "x" * 200_000}}, TOO_LARGE),
        pytest.param({"properties": {"id": char("x")}}, CANNOT_CONVERT, marks=pytest.mark.proof),
        pytest.param({"content_type": "x" * 256}, CANNOT_CONVERT, marks=pytest.mark.proof),
    ],
    ids=["uuid", "large headers", "char", "content type"],
)
def test_a_member_names_the_queue_of_a_message_that_the_broker_cannot_deliver(
    orders,  # noqa: F811
    properties,
    ended,
    caplog,
) -> None:
    caplog.set_level(logging.WARNING)
    poison(orders.site, "o3", Amqp10Message(body=b"0", **properties))
    orders.send(30)
    group = orders.group(prefetch=1)
    named = f"{ended} 3 times in a row when it delivered from queue 'o3'"
    with running(group, orders.handle):
        wait_until(lambda: named in group.status.reason, "the status names the queue", 2 * PATIENCE)
        assert any(named in record.getMessage() for record in caplog.records)
        policy = Policy("undeliverable", "^o3$", "quorum_queues", {"delivery-limit": 5})
        orders.site.management.put_policy(orders.site.vhost, policy)
        wait_until(lambda: orders.all_seen, "all other messages", 3 * PATIENCE)  # pauses have grown to 30 s
        wait_until(lambda: group.status.connected, "the member consumes")
    orders.assert_in_order(duplicates=True)
