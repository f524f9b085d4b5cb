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
from tests.faults.load import wait_until
from tests.patience import PATIENCE

pytestmark = [pytest.mark.long, pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]


def poison(site: Site, queue: str, value: object) -> None:
    """Publish a message whose property AMQP 0-9-1 lacks."""
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
        sender.send(Amqp10Message(body=b"0", properties={"id": value}))
    finally:
        connection.conn.close()


@pytest.mark.parametrize(
    "value", [uuid.UUID(int=1), pytest.param(char("x"), marks=pytest.mark.proof)], ids=["uuid", "char"]
)
def test_a_member_names_the_queue_of_a_message_that_the_broker_cannot_deliver(orders, value, caplog) -> None:  # noqa: F811
    caplog.set_level(logging.WARNING)
    poison(orders.site, "o3", value)
    orders.send(30)
    group = orders.group(prefetch=1)
    named = "3 times in a row (541 INTERNAL_ERROR) when it delivered from queue 'o3'"
    with running(group, orders.handle):
        wait_until(lambda: named in group.status.reason, "the status names the queue")
        assert any(named in record.getMessage() for record in caplog.records)
        assert "uuid or char" in group.status.reason
        policy = Policy("undeliverable", "^o3$", "quorum_queues", {"delivery-limit": 5})
        orders.site.management.put_policy(orders.site.vhost, policy)
        wait_until(lambda: orders.all_seen, "all other messages")
        wait_until(lambda: group.status.connected, "the member consumes")
    orders.assert_in_order(duplicates=True)
