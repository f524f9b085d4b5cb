"""How a member of a stream group joins: with the lock that makes members join one after another, and without it."""

from __future__ import annotations

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.protocol.answers import Node
from tests.unit import stream_nodes
from tests.unit.stream_nodes import HERE, LOST, Connection

joined = stream_nodes.joined


def test_a_stream_that_is_bound_or_created_again_while_the_member_runs_is_new(joined):
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    connection.partitions = lambda _: ["s-0", "s-1", "s-2"]
    member._drop("s-1")
    member._look(connection)
    assert [lane.stream for lane in member._lanes.values() if lane.is_new] == ["s-1", "s-2"]


@pytest.mark.parametrize("call", ["metadata", "subscribe", "events", "answer_update", "unsubscribe"])
def test_a_connection_that_is_lost_while_a_member_joins_is_replaced(joined, call):
    member = joined(Connection(["s-0", "s-1", "s-2"], lost_in=call))
    member._turn(0.01)
    assert not member._places
    assert member.why_not


def lose(member: StreamMember, connection: Connection) -> None:
    """Lose a connection, and try to connect again."""
    connection.close()
    member._turn(0.01)
    member._connect_again = 0.0
    member._serve()


@pytest.mark.parametrize("release", ["3.13.7", "4.2.0", "4.3.6"])
@pytest.mark.parametrize("told", [True, False], ids=["while connected", "while not connected"])
def test_streams_are_served_though_the_first_one_was_deleted(joined, release, told, caplog):
    connection, there = Connection(["s-0", "s-1", "s-2"]), Connection(["s-1", "s-2"])
    connection.release = there.release = release
    member = joined(connection, there)
    if told:
        with member._guarded(member._places[0]):
            raise StreamUnavailable("stream 's-0' was deleted or moved", "not available", "s-0")
    lose(member, connection)
    assert there.subscriptions == ["s-1", "s-2"]
    assert (member.status.streams, member.why_not) == (("s-1", "s-2"), "")
    assert "group 'g': stream 's-0' was deleted" in caplog.text


def test_streams_are_served_on_other_nodes_while_the_first_one_has_no_node(joined):
    streams = ("s-0", "s-1", "s-2")
    connection, without = Connection(streams), Connection(streams, elsewhere=streams)
    there, beyond = (
        Connection(streams, elsewhere=("s-0", "s-2")),
        Connection(streams, elsewhere=("s-0", "s-1")),
    )
    member = joined(connection, without, there, beyond)
    lose(member, connection)
    assert (there.subscriptions, beyond.subscriptions) == (["s-1"], ["s-2"])
    assert "'s-0' has no leader" in member.why_not
    assert not without.is_open
    there.streams["s-0"] = [HERE]
    member._connect_again = 0.0
    member._serve()
    assert (there.subscriptions, member.why_not) == (["s-1", "s-0"], "")


def test_of_the_streams_that_no_node_has_one_is_tried_in_each_attempt(joined):
    """A connection for each would burden the other nodes. But the node that says so may be cut off from the others."""

    def connect(stream: str | None) -> Connection:
        tried.append(stream)
        if stream == "s-1":
            return there
        raise StreamUnavailable(f"stream {stream!r} has no leader", "not available", stream)

    tried, streams = [], [f"s-{number}" for number in range(6)]
    connection, there = Connection(streams), Connection(streams)
    connection.streams.update({stream: [] for stream in streams[:4]})
    member = joined(connection)
    assert connection.subscriptions == ["s-4", "s-5"]
    member._connect = connect
    for expected in (["s-2"], ["s-2", "s-3"], ["s-2", "s-3", "s-0"]):
        member._connect_again = 0.0
        member._serve()
        assert tried == expected
        assert "has no leader" in member.why_not
    member._connect_again = 0.0
    member._serve()
    assert there.subscriptions == streams[:4]
    assert member.status.connected
    there.close()


@pytest.mark.parametrize("seconds", [10.0, 3.0])
def test_streams_whose_nodes_do_not_answer_keep_no_other_waiting_for_long(joined, monkeypatch, seconds):
    """The broker closes connections whose questions a member does not answer."""

    def connect(stream: str | None) -> Connection:
        if stream is None:
            return Connection(streams, elsewhere=streams)
        if stream == "s-3":
            return there
        tried.append(stream)
        now[0] += seconds
        raise LOST

    now, tried, streams = [1.0], [], ("s-0", "s-1", "s-2", "s-3")
    monkeypatch.setattr("rabbit_chx.streams.group.member.monotonic", lambda: now[0])
    connection, there = Connection(streams), Connection(streams, elsewhere=streams[:3])
    member = joined(connection)
    member._connect = connect
    lose(member, connection)
    assert tried == ["s-0", "s-1"]
    lose(member, connection)
    assert tried == ["s-0", "s-1", "s-0", "s-2"]
    lose(member, connection)
    assert there.subscriptions == ["s-3"]
    assert not member.status.connected
    there.close()


def test_streams_on_other_nodes_come_before_more_streams_of_a_node_that_does_not_answer(joined, monkeypatch):
    """With an attempt and a pause for each of those, the others would wait for minutes."""

    def connect(stream: str | None) -> Connection:
        if stream is None:
            return first
        tried.append(stream)
        if stream == "s-3":
            return there
        now[0] += 10.0
        raise LOST

    now, tried, streams = [1.0], [], ("s-0", "s-1", "s-2", "s-3")
    monkeypatch.setattr("rabbit_chx.streams.group.member.monotonic", lambda: now[0])
    connection, first = Connection(streams), Connection(streams, elsewhere=streams)
    there = Connection(streams, elsewhere=streams[:3])
    first.streams["s-3"] = [Node("c", 1)]
    member = joined(connection)
    member._connect = connect
    lose(member, connection)
    assert (tried, there.subscriptions) == (["s-0", "s-3", "s-1"], ["s-3"])
    member._connect_again = 0.0
    member._serve()
    assert tried[3:] == ["s-2"]
    there.close()


def test_a_member_that_is_stopped_opens_no_further_connection(joined):
    def connect(stream: str | None) -> Connection:
        tried.append(stream)
        member.stop()
        raise LOST

    tried, streams = [], ("s-0", "s-1", "s-2", "s-3")
    member = joined(Connection(streams, elsewhere=streams[1:]))
    member._connect, member._connect_again = connect, 0.0
    member._serve()
    assert len(tried) == 1


def test_a_deleted_stream_keeps_no_other_waiting(joined, caplog):
    connection = Connection(["s-0", "s-1"])
    connection.partitions = lambda _: ["s-0", "s-1", "s-2"]
    member = joined(connection)
    assert connection.subscriptions[-2:] == ["s-0", "s-1"]
    assert (member.status.streams, member.why_not) == (("s-0", "s-1"), "")
    assert "group 'g': stream 's-2' was deleted" in caplog.text


def test_a_member_of_many_streams_on_a_node_has_several_connections(joined):
    streams = [f"s-{number}" for number in range(300)]
    connection, second = Connection(streams), Connection(streams)
    assert joined(connection, second).why_not == ""
    assert connection.subscriptions == ["g (joining)", *streams[:255]]
    assert second.subscriptions == streams[255:]


@pytest.mark.parametrize("release", ["4.0.5", "4.3.6"])
def test_a_stream_that_others_know_under_another_number_is_tried_again_and_holds_up_no_other(joined, release):
    connection, there = Connection(["s-0", "s-1"]), Connection(["s-0", "s-1"])
    connection.release = there.release = release
    connection.refused = there.refused = {"s-0"}
    member = joined(connection, there)
    assert connection.subscriptions[:2] == ["g (joining)", "s-1"]
    assert "a precondition failed; other members may have joined when the stream had" in member.why_not
    assert connection.ended == ["g (joining)"]
    connection.refused.clear()
    member._connect_again = 0.0
    member._serve()
    assert (connection.subscriptions[-1], member.why_not) == ("s-0", "")
