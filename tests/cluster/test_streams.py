"""Streams in a cluster: finding a node that has the stream, and publishing while the leader stops."""

from __future__ import annotations

import pytest

from rabbit_chx.streams import StreamPublisher, Timeouts, connect
from tests.broker.stream_scene import refused, stored

pytestmark = pytest.mark.long

SHORT = {"test_a_stream_on_one_node_is_reached_through_another"}
ON_ONE_NODE = {"initial-cluster-size": "1", "queue-leader-locator": "client-local"}


def values(url, stream):
    return [
        message.body for message in stored(url, stream, follow_advertised=True, timeouts=Timeouts(connect=60))
    ]


def test_a_stream_on_one_node_is_reached_through_another(urls):
    first, second, _ = urls.values()
    with connect(first) as connection:
        connection.create("alone", ON_ONE_NODE)
        home = connection.node
    assert (home.host, home.port) == (first.host, first.port)
    with connect(second, stream="alone", leader=True, follow_advertised=True) as connection:
        assert connection.node == home
    with refused("not available", "follow_advertised=True connects to it directly"):
        connect(second, stream="alone")
    with StreamPublisher(second, "alone", follow_advertised=True) as publisher:
        publisher.publish_many([b"a", b"b"])
    assert values(second, "alone") == [b"a", b"b"]
    with connect(second) as connection:
        connection.delete("alone")


def test_no_message_is_lost_or_repeated_when_the_leader_stops(cluster, urls):
    *_, last = urls.values()
    with connect(last) as connection:
        connection.create("replicated")
        leader = connection.metadata(["replicated"])["replicated"].leader
    (stopped,) = [
        member
        for member in cluster.members
        if (urls[member.name].host, urls[member.name].port) == (leader.host, leader.port)
    ]
    survivor = next(url for name, url in urls.items() if name != stopped.name)

    def bodies():
        for number in range(60_000):
            if number == 30_000:
                stopped.node.halt()
            yield b"%d" % number

    try:
        with StreamPublisher(
            survivor, "replicated", name="job", follow_advertised=True, timeouts=Timeouts(reconnect=90)
        ) as publisher:
            publisher.publish_many(bodies(), first_id=1)
        assert values(survivor, "replicated") == [b"%d" % number for number in range(60_000)]
    finally:
        cluster.boot(stopped)
    with connect(survivor) as connection:
        connection.delete("replicated")
