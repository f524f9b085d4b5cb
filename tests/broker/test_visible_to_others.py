"""What users with the tag management see of this package on the broker: what SECURITY.md lists."""

from __future__ import annotations

import os
import socket

import pytest

from rabbit_chx.broker import apply, connect, read
from rabbit_chx.broker.applying.lock import HOLDER, LOCK
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.changes.records import ChangeRecord, declare_commands
from rabbit_chx.consuming import QueueReader
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import plan
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Queue, Topology
from rabbit_chx.working.markers import CHANGES, Hold
from tests.broker.test_groups import orders  # noqa: F401 - the fixture
from tests.members import running
from tests.patience import wait_until
from tests.users import a_user

pytestmark = [pytest.mark.one_release, pytest.mark.broker, pytest.mark.since_4_0]

PROCESS = f"on {socket.gethostname()}, process {os.getpid()}"
RING = (Binding("x", "a", "1"), Binding("x", "b", "1"))


@pytest.fixture
def asked(orders):  # noqa: F811
    """Ask the management API as a user with that tag and a permission in the virtual host that allows nothing."""
    site = orders.site
    with a_user(site.broker, "^$", "^$", "^$", vhost=site.vhost, tags="management") as user:
        yield lambda *path: user.management._request("GET", [*path])


@pytest.fixture
def queues(orders, asked):  # noqa: F811
    """The arguments of each queue that the other user sees."""
    return lambda: {each["name"]: each["arguments"] for each in asked("queues", orders.site.vhost)}


def test_the_lock_of_apply_and_the_recorded_order(orders, asked, queues) -> None:  # noqa: F811
    site, locks = orders.site, []
    wanted = Topology(site.vhost, (Exchange("x", CONSISTENT_HASH),), (Queue("a"), Queue("b")), RING)
    planned = plan(wanted, read(site.management, site.vhost))
    apply(site.url(), planned, management=site.management, on_step=lambda _: locks.append(queues()[LOCK]))
    assert f"{PROCESS}, since " in locks[0][HOLDER]
    entries = [each for each in asked("bindings", site.vhost) if each["source"] == ORDER_EXCHANGE]
    order = {each["destination"]: int(each["arguments"].get("sequence", 0)) for each in entries}
    assert {each["routing_key"] for each in entries} == {"x"}
    assert sorted(order, key=order.__getitem__) == ["x", "a", "b"]


@pytest.mark.long
def test_seats_held_queues_an_unfinished_change_and_consumer_tags(orders, asked, queues) -> None:  # noqa: F811
    site, tag = orders.site, f"rabbit-chx.billing.0.{socket.gethostname()}.{os.getpid()}"

    def tags() -> set[str]:
        """Statistics, which are seconds old."""
        return {each["consumer_tag"] for each in asked("queues", site.vhost, "o1")["consumer_details"]}

    with running(orders.group(), orders.handle), connect(site.url()) as connection:
        wait_until(lambda: tag in tags(), "the consumers of the member")
        hold = Hold.of("o1", ["o0"], groups=["billing"], by=PROCESS)
        PikaDriver(connection).run(declare_commands(hold))
        change = ChangeRecord(f"{CHANGES}1", {"orders": (("o0", "1"),)}, since=hold.since, by=PROCESS)
        PikaDriver(connection).run(declare_commands(change))
        found = queues()
        assert "rabbit-chx.seat.billing.0" in found
        assert all(part in str(found[hold.name]) for part in ("o1", "o0", "billing", hold.since, PROCESS))
        assert all(part in str(found[change.name]) for part in ("orders", "o0", hold.since, PROCESS))
    with QueueReader(site.url(), "o1"):
        wait_until(lambda: tags() == {"rabbit-chx"}, "the consumer of the reader")


@pytest.mark.long
def test_names_of_connections_are_for_users_with_the_tag_monitoring(orders, asked) -> None:  # noqa: F811
    site = orders.site

    def names(ask) -> set[str]:
        return {each.get("user_provided_name", "") for each in ask("connections")}

    with Publisher(site.url(), "orders"), Publisher(site.url(), "orders", connection_name="own name"):
        everything = lambda *path: site.management._request("GET", [*path])  # noqa: E731
        wait_until(lambda: names(everything) >= {"rabbit-chx", "own name"}, "the connections")
        assert not names(asked) & {"rabbit-chx", "own name"}
