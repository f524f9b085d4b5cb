"""Streams in a cluster: finding a node that has the stream, and publishing and reading while leaders stop."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from itertools import count, islice

import pytest

from rabbit_chx.streams import StreamGroup, StreamPublisher, StreamReader, Timeouts, connect
from rabbit_chx.streams.ends import bounds
from spark_connector import RabbitMQDataSource
from spark_connector.worker import Task
from spark_connector.writing.partition import write_partition
from tests.broker.spark_frames import rows
from tests.broker.stream_scene import refused
from tests.members import running
from tests.patience import wait_until

pytestmark = pytest.mark.long

SHORT = {"test_a_stream_on_one_node_is_reached_through_another"}
PARTITIONS, PART, KEYS = 6, 500, 50
ON_ONE_NODE = {"initial-cluster-size": "1", "queue-leader-locator": "client-local"}


def values(url, stream):
    """The messages of a stream up to the end that its leader knows: a replica may know it later."""
    with connect(url, stream=stream, leader=True, follow_advertised=True, timeout=60) as connection:
        found = bounds(connection, stream)
    with StreamReader(url, stream, follow_advertised=True, timeouts=Timeouts(connect=60)) as reader:
        return [message.body for message in reader.messages(found.first, found.end)]


def leader_of(url, stream):
    """The leader of a stream, as soon as this node knows it: a node may learn of a new stream later than others."""
    with connect(url) as connection:

        def leader():
            return connection.metadata([stream])[stream].leader

        wait_until(leader, f"the leader of {stream}")
        return leader()


def is_at(node, url) -> bool:
    return node is not None and (node.host, node.port) == (url.host, url.port)


def test_a_stream_on_one_node_is_reached_through_another(urls):
    first, second, _ = urls.values()
    with connect(first) as connection:
        connection.create("alone", ON_ONE_NODE)
        home = connection.node
    assert (home.host, home.port) == (first.host, first.port)
    assert leader_of(second, "alone") == home
    with connect(second, stream="alone", leader=True, follow_advertised=True) as connection:
        assert connection.node == home
    with refused("not available", "connects to it directly"):
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
    leader = leader_of(last, "replicated")
    (stopped,) = [member for member in cluster.members if is_at(leader, urls[member.name])]
    survivor = next(url for name, url in urls.items() if name != stopped.name)
    assert leader_of(survivor, "replicated") == leader

    bodies = [b"%d" % number for number in range(60_000)]
    halting = threading.Thread(target=stopped.node.halt)

    try:
        with StreamPublisher(
            survivor, "replicated", name="job", follow_advertised=True, timeouts=Timeouts(reconnect=90)
        ) as publisher:
            for first in range(0, len(bodies), 1_000):
                if first == 10_000:
                    halting.start()
                publisher.publish_many(bodies[first : first + 1_000], ids=range(first + 1, first + 1_001))
            halting.join()
            publisher.publish(b"after", publishing_id=len(bodies) + 1)
        assert values(survivor, "replicated") == [*bodies, b"after"]
    finally:
        halting.join()
        cluster.boot(stopped)
    with connect(survivor) as connection:
        connection.delete("replicated")


@contextmanager
def replicas_suspended(members):
    """The streams of these nodes take no messages."""
    own = "[sys:{}(Pid) || {{_, Pid, _, _}} <- supervisor:which_children(osiris_server_sup), is_pid(Pid)]."
    try:
        for member in members:
            member.eval(own.format("suspend"))
        yield
    finally:
        for member in members:
            member.eval(own.format("resume"))


def test_a_write_from_spark_that_runs_again_fails_until_a_majority_has_its_rows(cluster, urls):
    """The stream remembers the rows of the first attempt although no majority has them."""
    *_, last = urls.values()
    with connect(last) as connection:
        connection.create("written")
    leader = leader_of(last, "written")
    (leading,) = [member for member in cluster.members if is_at(leader, urls[member.name])]
    schema, batch = rows(600)
    options = {
        "url": leading.stream_url,
        "stream": "written",
        "producerName": "job",
        "confirmTimeoutMs": "3000",
        "reconnectTimeoutMs": "3000",
    }
    job = RabbitMQDataSource(options)._job(schema)
    with replicas_suspended(cluster.others(leading)):
        for attempt in range(2):
            written = write_partition(iter([batch]), job, Task(attempt=attempt))
            assert "no confirm of" in written.problem
    written = write_partition(iter([batch]), job, Task(attempt=2))
    assert (written.problem, written.confirmed + written.already_stored) == ("", 600)
    assert values(urls[leading.name], "written") == [b"body %d" % number for number in range(600)]
    with connect(last) as connection:
        connection.delete("written")


def publish_until(ended, publisher, numbers) -> int:
    """Publish messages by key at least once; return how many are published."""
    while True:
        part = [*islice(numbers, PART)]
        publisher.publish_many(
            [b"%d" % number for number in part], [f"key-{number % KEYS}" for number in part]
        )
        if ended():
            return part[-1] + 1


@contextmanager
def members(urls, handled, **options):
    """Two members of a group that append to a list what they handle."""

    def handle(message):
        handled.append((message.queue, message.offset, int(message.body)))

    groups = [StreamGroup(urls, name="readers", follow_advertised=True, **options) for _ in range(2)]
    with ExitStack() as stack:
        for each in groups:
            stack.enter_context(running(each, handle))
        wait_until(lambda: all(each.status.connected for each in groups), "members")
        yield groups
        for each in groups:
            each.stop()


def test_a_group_misses_nothing_while_the_leaders_of_its_streams_stop(cluster, urls):
    """Each node stops in turn, so that every leader moves, under a publisher by key and two members."""
    nodes = [*urls.values()]
    streams = [f"shared-{number}" for number in range(PARTITIONS)]
    with connect(nodes[0]) as connection:
        connection.create_super_stream("shared", {name: str(at) for at, name in enumerate(streams)})
    handled: list[tuple[str, int, int]] = []
    moved: set[str] = set()
    numbers = count()
    publishing = {"super_stream": "shared", "name": "job", "follow_advertised": True}
    with (
        members(nodes, handled, super_stream="shared") as groups,
        StreamPublisher(nodes, **publishing, timeouts=Timeouts(reconnect=120)) as publisher,
    ):
        for member in cluster.members:
            with connect(nodes[0]) as connection:
                found = connection.metadata(streams)
            moved |= {name for name in streams if is_at(found[name].leader, urls[member.name])}
            halting = threading.Thread(target=member.node.halt)
            halting.start()
            try:
                publish_until(lambda halting=halting: not halting.is_alive(), publisher, numbers)
                published = publish_until(lambda: True, publisher, numbers)
                wait_until(
                    lambda all_of=published: len({each[2] for each in handled}) == all_of,
                    lambda: f"messages; {[each.status for each in groups]}",
                )
            finally:
                halting.join()
                cluster.boot(member)
    assert moved == {*streams}
    firsts: dict[int, list[int]] = {}
    for number in dict.fromkeys(number for *_, number in handled):  # by the first time each was handled
        firsts.setdefault(number % KEYS, []).append(number)
    assert all(each == sorted(each) for each in firsts.values())
    assert len({(stream, offset) for stream, offset, _ in handled}) == published  # each is stored once
    with connect(nodes[0]) as connection:
        connection.delete_super_stream("shared")
