"""The reader of the management API on real brokers."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

import pytest

from rabbit_chx.broker import management as module
from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.model import Binding, Exchange

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


@pytest.fixture
def management(broker) -> Management:
    return Management(broker.management_url, credentials=lambda: (broker.username, broker.password))


@pytest.fixture
def vhost(broker):
    """A virtual host with a name that has to be escaped, and a channel to it."""
    import pika

    name = f"v/ü {uuid.uuid4().hex[:8]}"
    broker.ctl("add_vhost", name)
    broker.ctl("set_permissions", "-p", name, broker.username, ".*", ".*", ".*")
    parameters = pika.URLParameters(broker.url)
    parameters.virtual_host = name
    with pika.BlockingConnection(parameters) as connection:
        yield name, connection.channel()
    broker.ctl("delete_vhost", name)


def test_the_broker_says_who_it_is(broker, management) -> None:
    assert management.overview().release == broker.version
    assert management.feature_flags().get("khepri_db", False) == (broker.store == "khepri")


def test_a_topology_is_read_as_it_was_declared(broker, management, vhost) -> None:
    name, channel = vhost
    channel.exchange_declare("a/b", "x-consistent-hash", durable=True, arguments={"hash-header": "h"})
    channel.exchange_declare("inner", "fanout", internal=True)
    channel.queue_declare("q ü", durable=True, arguments={"x-dead-letter-exchange": "a/b"})
    channel.queue_bind("q ü", "a/b", "3", {"x-bind-seq": 1})
    channel.exchange_bind("inner", "a/b", "2")
    broker.ctl("set_policy", "-p", name, "alternate", "^a", '{"alternate-exchange":"inner"}')

    assert management.exchange(name, "a/b") == Exchange(
        "a/b", "x-consistent-hash", internal=False, arguments={"hash-header": "h"}, policy="alternate"
    )
    assert management.exchange(name, "").type == "direct"
    expected = [Binding("a/b", "q ü", "3", {"x-bind-seq": 1}), Binding("a/b", ToExchange("inner"), "2")]
    for listed in (management.bindings_from(name, "a/b"), management.bindings(name)):
        found = [bound for bound in listed if bound.source == "a/b"]
        assert sorted(found, key=str) == sorted(expected, key=str)
    queue = management.queue(name, "q ü")
    assert queue.arguments["x-dead-letter-exchange"] == "a/b"
    (policy,) = management.policies(name)
    assert (policy.name, policy.pattern, policy.definition) == (
        "alternate", "^a", {"alternate-exchange": "inner"},
    )  # fmt: skip


def test_a_long_list_comes_in_pages(management, vhost, monkeypatch) -> None:
    name, channel = vhost
    names = {f"x{number}" for number in range(10)}
    for exchange in names:
        channel.exchange_declare(exchange, "fanout")
        channel.queue_declare(exchange)
    monkeypatch.setattr(module, "_PAGE_SIZE", 3)
    listed = [exchange.name for exchange in management.exchanges(name)]
    assert len(listed) == len(set(listed))
    assert names <= set(listed)
    assert sorted(management.queue_names(name, "^x[0-4]$")) == [f"x{number}" for number in range(5)]


def test_what_is_wrong_is_named(broker, management) -> None:
    with pytest.raises(BrokerUnavailable, match="no exchange 'none'"):
        management.exchange("/", "none")
    with pytest.raises(BrokerUnavailable, match="no virtual host 'none'"):
        management.bindings("none")
    wrong = Management(broker.management_url, credentials=lambda: (broker.username, "wrong"))
    with pytest.raises(BrokerUnavailable, match="or the password"):
        wrong.overview()
    parts = urlsplit(broker.url)
    with pytest.raises(BrokerUnavailable, match=f"{parts.port}"):
        Management(f"http://{parts.hostname}:{parts.port}").overview()


def test_a_user_without_the_tag_is_told_which_one(broker) -> None:
    user = f"u{uuid.uuid4().hex[:8]}"
    broker.ctl("add_user", user, "secret")
    try:
        plain = Management(broker.management_url, credentials=lambda: (user, "secret"))
        with pytest.raises(BrokerUnavailable, match="tag management"):
            plain.overview()
    finally:
        broker.ctl("delete_user", user)
