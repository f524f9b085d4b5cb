"""How a member of a stream group leaves streams that are deleted, moved or unbound, closes connections, and ends."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.group import offsets
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, Delivery
from rabbit_chx.streams.protocol.calls import Calls
from rabbit_chx.streams.protocol.connection import StreamConnection
from tests.stream_chunks import a_chunk, sized
from tests.unit import stream_nodes
from tests.unit.stream_nodes import Connection
from tests.unit.test_stream_groups import chunk

joined = stream_nodes.joined


def test_a_connection_that_serves_no_stream_is_closed(joined):
    """Its loss would be a reason not to be connected, which nothing would take back."""
    connection, there = Connection(["s-0", "s-1"], elsewhere=("s-0", "s-1")), Connection(["s-0", "s-1"])
    member = joined(connection, there)
    assert [place.connection for place in member._places] == [there]
    assert (connection.is_open, member.status.connected) == (False, True)


def test_a_deleted_stream_counts_in_the_totals_and_its_handler_is_waited_for(joined):
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    lane = member._lanes["s-0"]
    lane.handled, lane.failed, lane.busy = 5, 2, True
    nodes = connection.streams.pop("s-0")
    member._places[0].forget("s-0")
    member._serve()
    assert (member.status.streams, member.status.handled, member.status.failed) == (("s-1",), 5, 2)
    assert member._busy() == ["s-0"]
    connection.streams["s-0"] = nodes
    member._look(connection)
    assert member._lanes["s-0"] is lane  # so that no other handler begins before this one has returned
    assert (member.status.handled, member._busy()) == (5, ["s-0"])


def test_a_stream_that_a_node_refuses_for_a_moment_is_subscribed_to_again_without_the_former_consumer(joined):
    """The broker would keep the former one active, whose chunks no lane gets."""
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    with member._guarded(member._places[0]):
        raise StreamUnavailable("the stream is not available on this node", "not available", "s-0")
    assert connection.ended == ["g (joining)", "s-0"]
    member._connect_again = 0.0
    member._serve()
    assert connection.subscriptions == ["g (joining)", "s-0", "s-1", "s-0"]
    assert member.status.connected


@pytest.mark.parametrize(("problem", "kept"), [("lost", True), ("not available", False)])
def test_before_4_3_only_a_stream_that_moved_costs_the_others_their_connection(joined, problem, kept):
    connection = Connection(["s-0", "s-1"])
    connection.release = "4.0.5"
    member = joined(connection)
    with member._guarded(member._places[0]):
        raise StreamUnavailable("on_assigned did not return for stream 's-0'", problem, "s-0")
    assert connection.ended == ["g (joining)", "s-0"]
    assert connection.is_open == kept
    assert [lane.stream for lane in member._unserved] == ["s-0", "s-1"][: 1 if kept else 2]


def test_questions_about_a_stream_that_moved_are_answered(joined, monkeypatch):
    """The broker would close the whole connection after a minute."""
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    (place,) = member._places
    first = next(number for number, lane in place.lanes.items() if lane.stream == "s-0")
    connection.answers.clear()
    asked = [ConsumerUpdate(7, first, active=False), ConsumerUpdate(8, 200, active=True)]
    monkeypatch.setattr(connection, "_events", lambda _: iter(asked))
    member._receive(place)
    assert connection.answers == [(8, False)]
    with member._guarded(place):
        raise StreamUnavailable("the stream moved", "not available", "s-0")
    assert connection.answers == [(8, False), (7, False)]


def test_a_stream_that_was_unbound_is_left_when_its_messages_are_handled(joined, caplog):
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    connection.query_offset = lambda *_: 0
    member._listen_again = math.inf
    lane = member._lanes["s-0"]
    lane.assign(0, None)

    def look(*bound: str) -> tuple[str, ...]:
        connection.partitions = lambda _: list(bound)
        member._look_again = 0.0
        member._turn(0.01)
        return member.status.streams

    assert look("s-1") == look("s-0", "s-1") == look("s-1") == ("s-0", "s-1")  # only for a moment
    lane.end = 1
    assert look("s-1") == ("s-0", "s-1")
    assert connection.ended == ["g (joining)"]
    lane.done = lane.stored = 0
    member._turn(0.01)
    assert connection.ended == ["g (joining)", "s-0"]
    assert "stream 's-0' is not bound any more" in caplog.text
    assert look() == look() == look("s-1") == ("s-1",)  # the exchange may be about to get its bindings
    assert look("s-0", "s-1") == ("s-0", "s-1")


def test_a_stream_that_was_unbound_is_kept_until_its_messages_are_handled(joined):
    """Also by a member that waits for it, and by one that has lost its connection: the others may end before."""
    connection, again = Connection(["s-0", "s-1"]), Connection(["s-0", "s-1"])
    member = joined(connection, again)
    member._listen_again = math.inf
    connection.partitions = again.partitions = lambda _: ["s-1"]
    for _ in range(3):
        member._look_again = 0.0
        member._turn(0.01)
    assert connection.ended == ["g (joining)"]
    lane = member._lanes["s-0"]
    lane.assign(0, None)
    lane.end = 1
    connection.close()
    member._turn(0.01)
    assert not member.status.connected
    member._connect_again = 0.0
    member._serve()
    assert (again.subscriptions, member.status.connected) == (["g (joining)", "s-0", "s-1"], True)
    assert member.status.streams == ("s-0", "s-1")


def test_a_stream_that_was_unbound_is_kept_while_a_chunk_is_on_its_way(joined):
    """Before 4.3, the broker reports only the first offset of the last chunk, in whose middle a member may begin."""
    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    connection.partitions = lambda _: ["s-1"]
    lane = member._lanes["s-0"]
    lane.assign(501, 500)
    lane.end = 100
    for _ in range(2):
        member._look(connection)
    connection.unread = [a_chunk([sized(b"x")] * 1000, offset=99)]
    member._give_up()
    assert member.status.streams == ("s-0", "s-1")
    connection.unread = []
    member._give_up()
    assert (connection.ended, member.status.streams) == (["g (joining)", "s-0"], ("s-1",))


def test_streams_are_kept_when_their_exchange_is_deleted(joined, caplog):
    def partitions(_: str) -> list[str]:
        raise StreamUnavailable(
            "virtual host '/' has no super stream or other exchange 'x'", "no such stream", "x"
        )

    def look() -> None:
        member._look_again = 0.0
        member._turn(0.01)

    connection = Connection(["s-0", "s-1"])
    member = joined(connection)
    known, connection.partitions = connection.partitions, partitions
    warning = "has no super stream or other exchange 'x'; its streams are still consumed"
    for times in (1, 2):
        for _ in range(3):
            look()
        assert (member.status.streams, member.why_not) == (("s-0", "s-1"), "")
        assert connection.is_open
        assert connection.ended == ["g (joining)"]
        assert caplog.text.count(warning) == times
        connection.partitions = known
        look()
        connection.partitions = partitions


@pytest.mark.parametrize("stopped", [True, False], ids=["at a stop", "while it runs"])
def test_streams_whose_offsets_are_not_stored_leave_no_other_unstored(joined, monkeypatch, stopped):
    def store(group: str, stream: str, offset: int) -> None:
        if stream in {"s-1", "s-3"} and group == "g":
            stored[stream] = offset

    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    connection, stored = Connection([f"s-{number}" for number in range(4)]), {}
    connection.store_offset, connection.query_offset = store, lambda _, stream: stored.get(stream)
    connection._credit = lambda *_: None
    member = joined(connection)
    for lane in member._lanes.values():
        lane.assign(0, None)
        lane.trusted_until = math.inf
        lane.add(chunk(0, 1))
        lane.finish(lane.take(), lane.channel)
        lane.take()
    if stopped:
        member.stop()
    told = "of group 'g' in streams 's-0', 's-2'; its log says why"
    with pytest.raises(StreamUnavailable, match=told):
        member.run()
    assert stored == {"s-1": 0, "s-3": 0}


def test_a_connection_whose_stream_was_unbound_is_closed(joined):
    connection, there = Connection(["s-0", "s-1"], elsewhere=("s-1",)), Connection(["s-0", "s-1"])
    member = joined(connection, there)
    member._lanes["s-0"].assign(0, None)
    connection.partitions = there.partitions = lambda _: ["s-1"]
    for _ in range(2):
        member._look(connection)
    member._give_up()
    assert (connection.is_open, there.is_open, member.status.streams) == (False, True, ("s-1",))


def test_a_question_about_a_subscription_that_ends_is_answered(monkeypatch):
    connection = object.__new__(StreamConnection)
    connection._subscriptions = {1: "s", 2: "s"}
    connection._calls = calls = object.__new__(Calls)
    calls.deliveries = [Delivery(1, memoryview(b"c")), ConsumerUpdate(7, 1, active=True)]
    calls.deliveries.append(ConsumerUpdate(8, 2, active=False))
    calls.answer = lambda *_, **__: SimpleNamespace(code=1)
    answered = []
    monkeypatch.setattr(connection, "_answer_update", lambda update, start: answered.append((update, start)))
    assert connection._unsubscribe(1) == [b"c"]
    assert [(update.correlation, start is None) for update, start in answered] == [(7, False)]
    assert calls.deliveries == [ConsumerUpdate(8, 2, active=False)]
