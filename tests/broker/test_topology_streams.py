"""An exchange that hashes over streams: the verbs for topologies, `watch`, and the groups that read its streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import BrokerUrl, StreamGroup
from rabbit_chx.topology import load
from rabbit_chx.watch import Observer
from rabbit_chx.watch.interval import compare
from tests.broker.stream_scene import stored
from tests.members import running
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.since_4_0]

KEYS = [f"customer-{number}" for number in range(1_000)]
NUMBERED = """
schema: 1
vhost: "VHOST"
exchanges:
  events: {type: x-consistent-hash, queues: {"events-{0..LAST}": 1}}
queues:
  "events-{0..LAST}": {type: stream}
"""
ORDERED = """
schema: 1
vhost: "VHOST"
exchanges:
  events:
    type: x-consistent-hash
    bindings:
      - {queue: east, key: "1"ORDER 0}}
      - {queue: west, key: "1"ORDER 1}}
queues: {east: {type: stream}, west: {type: stream}}
"""


@pytest.fixture
def write(tmp_path, site):
    def write(text: str, last: int = 0) -> str:
        path = tmp_path / "topology.yaml"
        text = text.replace("VHOST", site.vhost).replace("LAST", str(last))
        path.write_text(text.replace("ORDER", ", arguments: {x-stream-partition-order: "))
        return str(path)

    return write


@pytest.fixture
def url(broker, site):
    """Of the stream protocol, in the virtual host of the test."""
    return BrokerUrl.for_streams(broker.stream_url).with_vhost(site.vhost)


def members(stack, url, count):
    """Members of a group on the streams of the exchange, which join one after the other and run until the stack is closed."""
    groups = [StreamGroup(url, exchange="events", name="billing") for _ in range(count)]
    for group in groups:
        stack.enter_context(running(group, lambda _: None))
        wait_until(lambda group=group: group.status.connected, "a member that has joined")
    return groups


def streams_of(group) -> list[str]:
    return [each.stream for each in group.status.partitions]


def routed(site, url, streams: int, counted: Callable[[], None] = lambda: None) -> dict[str, str]:
    """The stream that stores each key.

    `counted` runs while the channel is open: every two minutes RabbitMQ drops the counts of closed channels, also those that
    its statistics, collected every five seconds, do not have yet.
    """
    names = [f"events-{number}" for number in range(streams)]
    before = {name: len(stored(url, name)) for name in names}
    with Publisher(site.url(), "events") as publisher:
        publisher.publish_many([b""] * len(KEYS), KEYS)
        counted()
    return {each.routing_key: name for name in names for each in stored(url, name)[before[name] :]}


@pytest.mark.long
def test_streams_of_an_exchange_are_applied_checked_watched_and_grown(run, site, write, url) -> None:
    file = write(NUMBERED, 3)
    assert "0 findings" in run("lint", file).out
    assert run("apply", file, "--yes").code == 0
    with ExitStack() as stack:
        (group,) = members(stack, url, 1)
        wait_until(lambda: len(group.status.partitions) == 4, "a member with all streams")
        assert run("check", file, "--strict").code == 0

    observer = Observer(site.management, site.vhost, "events")
    first = observer._poll()

    def interval():
        return compare(first, observer._poll(), load(file))

    def counted():
        wait_until(lambda: interval().totals.received == len(KEYS), "the statistics have the messages")

    before = routed(site, url, 4, counted)
    assert before.keys() == {*KEYS}
    seen = interval()
    assert {row.queue: row.received for row in seen.rows} == {
        name: [*before.values()].count(name) for name in {*before.values()}
    }
    assert not seen.problems

    refused = run("scale", file, "-x", "events", "--add", "1", "--yes")
    assert refused.code == 1
    assert "keys that move between streams: events-0, events-1, events-2, events-3, events-4" in refused.err
    assert sorted(site.queue_names(".*")) == [f"events-{number}" for number in range(4)]

    write(NUMBERED, 4)
    planned = run("plan", file, "--output", "json")
    (moved,) = [row["moved"] for row in planned.rows if row["type"] == "step" and row["moved"]]
    assert "Order: streams keep their messages" in run("plan", file).out
    assert run("apply", file, "--yes").code == 0
    after = routed(site, url, 5)
    changed = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in changed} == {"events-4"}
    assert len(changed) / len(KEYS) == pytest.approx(moved, abs=0.05)


def test_an_argument_of_the_bindings_divides_streams_among_members(run, site, write, url) -> None:
    without = write(ORDERED.replace("ORDER 0}", "").replace("ORDER 1}", ""))
    assert "one member of a stream group gets all of queues 'east', 'west'" in run("lint", without).err
    assert run("apply", without, "--yes").code == 0
    with ExitStack() as stack:
        groups = members(stack, url, 2)
        wait_until(lambda: sorted(map(len, map(streams_of, groups))) == [0, 2], "one has all streams")

    file = write(ORDERED)
    assert "0 findings" in run("lint", file).out
    drifted = run("check", file, "--output", "json")
    assert [(row["kind"], row["where"]) for row in drifted.rows] == [
        ("arguments", f"binding of queue '{stream}' to exchange 'events'") for stream in ("east", "west")
    ]
    assert run("apply", file, "--yes").code == 0
    assert run("check", file, "--strict").code == 0
    with ExitStack() as stack:
        groups = members(stack, url, 2)
        wait_until(lambda: sorted(map(streams_of, groups)) == [["east"], ["west"]], "each has a stream")
