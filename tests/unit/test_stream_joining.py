"""How a member of a stream group joins: with the lock that makes members join one after another, and without it."""

from __future__ import annotations

import math
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.group import offsets
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, Delivery, Node
from rabbit_chx.streams.protocol.calls import Calls
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.unit.test_stream_groups import chunk

HERE, ELSEWHERE = Node("a", 1), Node("b", 1)
LOST = StreamUnavailable("the connection was lost", "lost")


class Connection:
    """A connection to a node that has these streams. It is lost in one of its calls, or never."""

    release, node, _has_unread, heartbeat = "4.3.6", HERE, False, 10.0

    def __init__(self, streams: list[str], elsewhere: tuple[str, ...] = (), lost_in: str = "") -> None:
        self.streams = {stream: [ELSEWHERE if stream in elsewhere else HERE] for stream in streams}
        self.subscriptions: list[str] = []
        self.refused: set[str] = set()
        """The streams of which others know another number."""
        self.ended: list[str] = []
        """The subscriptions that the member has ended."""
        self.answers: list[tuple[int, bool]] = []
        self._lost_in = lost_in
        self._socket, self._other = socket.socketpair()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        self._other.close()

    def _enter(self, call: str) -> None:
        if call == self._lost_in:
            self.close()
        if not self.is_open:
            raise LOST

    def partitions(self, _: str) -> list[str]:
        return list(self.streams)

    def metadata(self, names):
        self._enter("metadata")
        gone = SimpleNamespace(exists=False, nodes=[])
        there = {name: SimpleNamespace(exists=True, nodes=nodes) for name, nodes in self.streams.items()}
        return {name: there.get(name, gone) for name in names}

    def _subscribe(self, stream: str, *_, properties, **__) -> int:
        self._enter("subscribe")
        if stream not in self.streams:
            raise StreamUnavailable(f"no stream {stream!r}", "no such stream", stream)
        if stream in self.refused and "joining" not in properties["name"]:
            raise StreamUnavailable("a precondition failed", "refused", stream)
        self.subscriptions.append(properties["name"] if "joining" in properties["name"] else stream)
        assert len(self.subscriptions) <= 256
        return len(self.subscriptions) - 1

    def _events(self, _: float):
        self._enter("events")
        if self.subscriptions and "joining" in self.subscriptions[-1]:
            yield ConsumerUpdate(1, len(self.subscriptions) - 1, active=True)

    def _answer_update(self, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        self._enter("answer_update")
        self.answers.append((update.correlation, start is not None))

    def _unsubscribe(self, number: int) -> None:
        self._enter("unsubscribe")
        self.ended.append(self.subscriptions[number])


@pytest.fixture
def joined(monkeypatch):
    """Returns a member after its first attempt to join. The other connections lead to further nodes."""
    with ExitStack() as opened:

        def join(connection: Connection, *others: Connection) -> StreamMember:
            def connect(stream: str | None) -> Connection:
                if stream is None:
                    return next(each for each in (connection, *others) if each.is_open)
                for each in others:
                    if HERE in each.streams.get(stream, ()):
                        return each
                if any(stream not in each.streams for each in others):
                    raise StreamUnavailable(f"no stream {stream!r}", "no such stream", stream)
                raise StreamUnavailable(f"stream {stream!r} has no leader", "not available", stream)

            group = StreamGroup("rabbitmq-stream://127.0.0.1", exchange="x", name="g")
            workers = StreamWorkers(print, group._settings)
            member = StreamMember(group._settings, connect, workers, None, batches=False)
            for each in (connection, *others, member._woken, member._waker):
                opened.callback(each.close)
            monkeypatch.setattr(member._failures, "until_retry", lambda _: 0.01)
            member._serve()
            return member

        yield join


def test_a_member_joins_with_the_lock(joined):
    connection = Connection(["s-0", "s-1"])
    assert joined(connection).why_not == ""
    assert connection.subscriptions == ["g (joining)", "s-0", "s-1"]


@pytest.mark.parametrize("call", ["metadata", "subscribe", "events", "answer_update", "unsubscribe"])
def test_a_connection_that_is_lost_while_a_member_joins_is_replaced(joined, call):
    member = joined(Connection(["s-0", "s-1", "s-2"], lost_in=call))
    member._turn(0.01)
    assert not member._places
    assert member.why_not


def test_streams_are_served_though_the_first_one_has_no_node(joined):
    connection = Connection(["s-0", "s-1", "s-2"], elsewhere=("s-0",))
    member = joined(connection)
    assert connection.subscriptions == ["s-1", "s-2"]
    assert "'s-0' has no leader" in member.why_not


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


def test_a_connection_that_serves_no_stream_is_closed(joined):
    """Its loss would be a reason not to be connected, which nothing would take back."""
    connection, there = Connection(["s-0", "s-1"], elsewhere=("s-0", "s-1")), Connection(["s-0", "s-1"])
    member = joined(connection, there)
    assert [place.connection for place in member._places] == [there]
    assert (connection.is_open, member.status.connected) == (False, True)


def test_a_deleted_stream_keeps_no_other_waiting(joined, caplog):
    connection = Connection(["s-0", "s-1"])
    connection.partitions = lambda _: ["s-0", "s-1", "s-2"]
    member = joined(connection)
    assert connection.subscriptions[-2:] == ["s-0", "s-1"]
    assert (member.status.streams, member.why_not) == (("s-0", "s-1"), "")
    assert "group 'g': stream 's-2' was deleted" in caplog.text


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


def test_a_member_of_many_streams_on_a_node_has_several_connections(joined):
    streams = [f"s-{number}" for number in range(300)]
    connection, second = Connection(streams), Connection(streams)
    assert joined(connection, second).why_not == ""
    assert connection.subscriptions == ["g (joining)", *streams[:255]]
    assert second.subscriptions == streams[255:]


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
