"""`connect` with several addresses: in which order they are tried, which node a stream needs, and how the time is shared."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import connect
from rabbit_chx.streams.protocol.answers import Node, StreamMetadata
from rabbit_chx.streams.protocol.opening import OnOtherNode, connect_until
from tests.patience import PATIENCE
from tests.unit import stream_servers
from tests.unit.stream_servers import FIRST, SECOND, Connection

servers = stream_servers.servers
THIRD, BALANCER = "rabbitmq-stream://third", "rabbitmq-stream://balancer"


def test_servers_are_tried_in_turn_even_after_one_that_refuses_for_good(servers) -> None:
    servers.refusing = {"first"}
    connect([FIRST, SECOND])
    assert [host for host, _ in servers.opened] == ["second"]
    servers.down = {"second"}
    with pytest.raises(StreamUnavailable, match="first refuses; second is down") as found:
        connect([FIRST, SECOND])
    assert not found.value.permanent
    servers.refusing = {"first", "second"}
    with pytest.raises(StreamUnavailable, match="first refuses; second refuses") as found:
        connect([FIRST, SECOND])
    assert found.value.permanent


def test_readers_of_a_stream_are_spread_over_its_nodes(servers, monkeypatch) -> None:
    class Placed(Connection):
        @property
        def node(self) -> Node:
            return Node(self._host, 5552)

    leader, *replicas = nodes = [Node(host, 5552) for host in ("second", "third", "fourth")]
    found = {"events": StreamMetadata("events", leader, tuple(replicas))}
    monkeypatch.setattr(Connection, "metadata", lambda *_: found)
    monkeypatch.setattr("rabbit_chx.streams.protocol.opening.StreamConnection", Placed)
    for number, node in enumerate(nodes):
        monkeypatch.setattr(
            "random.choice", lambda given, number=number: sorted(given, key=nodes.index)[number]
        )
        assert connect(FIRST, stream="events", follow_advertised=True).node == node


@pytest.fixture
def balanced(servers, monkeypatch) -> list[str]:
    """The nodes to which connections to ``balancer`` lead; each other address is a node. The stream is on the node ``first``."""
    nodes: list[str] = []
    connected = Connection.__init__

    def to_a_node(connection: Connection, url: BrokerUrl, **given: Any) -> None:
        connected(connection, url, **given)
        connection.node = Node(nodes.pop(0) if url.host == "balancer" else url.host, 5552)

    monkeypatch.setattr(Connection, "__init__", to_a_node)
    return nodes


def hosts(servers) -> list[str]:
    return [host for host, _ in servers.opened]


def test_each_address_is_tried_before_one_that_led_to_a_node_without_the_stream_is_tried_again(
    servers, balanced
) -> None:
    connect([SECOND, THIRD, FIRST], stream="events", leader=True)
    assert hosts(servers) == ["second", "third", "first"]
    servers.opened.clear()
    servers.down = {"third"}
    balanced += ["second", "second", "first"]
    connect([THIRD, BALANCER, SECOND], stream="events", leader=True)
    assert hosts(servers) == ["balancer", "second"] * 2 + ["balancer"]
    servers.opened.clear()
    balanced += ["second"] * 50 + ["first"]
    connect(BALANCER, stream="events", leader=True)
    assert len(hosts(servers)) == 51


def test_a_stream_on_none_of_the_nodes_takes_a_limited_number_of_connections(servers, balanced) -> None:
    for given, more, tried in [
        ([SECOND, THIRD], {}, ["second", "third"] * 30),
        ([SECOND, THIRD], {"timeout": 1e-9}, ["second", "third"]),
        (SECOND, {"timeout": 1e-9}, ["second"]),
    ]:
        servers.opened.clear()
        with pytest.raises(
            StreamUnavailable, match=r"led to a node with its leader.*on first:5552"
        ) as caught:
            connect(given, stream="events", leader=True, **more)
        assert hosts(servers) == tried
        assert (type(caught.value), caught.value.problem) == (OnOtherNode, "not available")
        assert str(caught.value).count("follow_advertised=True") == len({*tried})
    servers.down = {"third"}
    with pytest.raises(StreamUnavailable, match=r"on first:5552.*; third is down") as caught:
        connect([SECOND, THIRD], stream="events", leader=True)
    assert type(caught.value) is StreamUnavailable  # the third may have the stream in a moment


def test_an_advertised_address_that_leads_to_another_node_is_not_tried_again(
    servers, balanced, monkeypatch
) -> None:
    found = {"events": StreamMetadata("events", Node("balancer", 5552), ())}
    monkeypatch.setattr(Connection, "metadata", lambda *_: found)
    balanced += ["second"] * 3
    with pytest.raises(
        OnOtherNode, match="led to a node with its leader of stream 'events', which is on bal"
    ):
        connect(BALANCER, stream="events", leader=True, follow_advertised=True)
    assert hosts(servers) == ["balancer"] * 2


def test_servers_that_do_not_answer_share_the_time_to_connect(servers, monkeypatch) -> None:
    now, waited = [100.0], []

    def hang(_: object, *, give_up_at: float, **__: object) -> None:
        waited.append(round(give_up_at - now[0], 6))
        now[0] = give_up_at
        raise StreamUnavailable("no answer", "unreachable")

    monkeypatch.setattr("rabbit_chx.streams.protocol.opening.time.monotonic", lambda: now[0])
    monkeypatch.setattr("rabbit_chx.streams.protocol.opening.StreamConnection", hang)
    with pytest.raises(StreamUnavailable):
        connect([FIRST, SECOND, FIRST, SECOND], timeout=10)
    assert waited == [2.5, 2.5, 2.5, 2.5]
    with pytest.raises(StreamUnavailable):
        connect([FIRST] * 12, timeout=10)
    assert waited[-1] == 1.0  # each is tried
    with pytest.raises(StreamUnavailable):
        connect([FIRST, SECOND], timeout=0.5)
    assert waited[-2:] == [0.5, 0.5]


def test_each_wait_of_a_connection_ends_at_one_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and does not answer
        url = f"rabbitmq-stream://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(
            StreamUnavailable, match=r"did not answer PeerProperties within 0(\.[012]\d*)? seconds"
        ):
            connect_until(began + 0.2, [url] * 3, timeout=PATIENCE)
        assert time.monotonic() - began < PATIENCE
