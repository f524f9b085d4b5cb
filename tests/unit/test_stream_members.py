"""One member of a group on streams, without a broker: what it answers, stores, waits for and says."""

from __future__ import annotations

from contextlib import nullcontext
from time import monotonic
from types import SimpleNamespace

import pytest

from rabbit_chx.base import urls
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.group import offsets
from rabbit_chx.streams.group.assignments import Assignments
from rabbit_chx.streams.group.lanes import Change, status_of
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, StreamStats
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.stream_chunks import a_chunk, gzipped
from tests.unit.test_stream_groups import GIVEN, Asked, assignments_of, chunk, lane, place_of


@pytest.mark.parametrize("first", [True, False])
def test_each_question_of_the_broker_is_answered_in_turn(first):
    assignments, it, asked = assignments_of(), lane(), Asked()
    if first:
        it.end_assignment()
    for correlation, active in enumerate((first, not first, first)):
        assignments.on_update(it, ConsumerUpdate(correlation, 0, active))
    for _ in range(3):
        assignments.do_due(place_of(asked), it)
    assert asked.answers == [(0, first), (1, not first), (2, first)]
    assert (it.channel is not None) == first


def test_a_stored_offset_beyond_the_end_is_warned_of_and_the_lag_is_unknown(caplog):
    """Any reader can store one, and the group then handled nothing with a lag of 0."""
    assignments, it, asked = assignments_of(), lane(), Asked()
    asked.stored, asked.has_stats, asked.timeout, asked.node = 10**9, True, 1.0, "n"
    asked.stats = lambda _: StreamStats(0, 4, 4)
    asked.metadata = lambda _: {"events": SimpleNamespace(leader="n")}
    it.end = 300  # of the stream that was there before
    it.end_assignment()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    assignments.do_due(place_of(asked), it)
    status = status_of([it], "")
    assert (status.partitions[0].stored, status.partitions[0].end) == (10**9, 5)
    assert status.partitions[0].lag is status.lag is None
    assert "the stored offset 1000000000 of stream 'events' is beyond its end, 5" in caplog.text
    it.add(chunk(10**9 + 1, 1))
    it.finish(it.take(), it.channel)
    assert status_of([it], "").lag == 0


def test_a_place_that_a_function_decides_is_that_of_the_status_before_the_first_message():
    """The broker's stored offset is not used then."""
    assignments, it, asked = assignments_of(start=lambda _: 100), lane(), Asked()
    asked.stored, asked.has_stats, asked.timeout = 500, True, 1.0
    asked.stats = lambda _: StreamStats(0, 999, 999)
    it.end_assignment()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    it.change.start, it.change.done = 100, True
    assignments.do_due(place_of(asked), it)
    (partition,) = status_of([it], "").partitions
    assert (partition.handled, partition.stored, partition.lag) == (99, 500, 900)


@pytest.mark.parametrize("start", ["next", "last", "first", lambda _: "next"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_stream_that_a_running_group_finds_is_handled_from_its_first_message(monkeypatch, start, is_new):
    """Members look for new streams every 30 seconds. Once, what was published before was skipped."""
    monkeypatch.setattr("rabbit_chx.streams.ends.first_chunk", lambda *_: chunk(39, 1))
    assignments, it, asked, stored, begun = assignments_of(start=start), lane(), Asked(), {}, []
    asked.has_stats, asked.timeout = True, 1.0
    asked.stats = lambda _: StreamStats(0, 39, 39)
    asked.query_offset = lambda group, _: stored.get(group)
    asked.store_offset = lambda group, _, offset: stored.update({group: offset})
    asked._answer_update = lambda _, position: begun.append(position.value)
    it.is_new = is_new
    it.end_assignment()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    if it.change:
        it.change.start, it.change.done = "next", True
    assignments.do_due(place_of(asked), it)
    end = {"next": 40, "last": 39, "first": 0}.get(start, 40)
    assert begun == [0 if is_new and isinstance(start, str) else end]
    # so that a member that is started now begins there, too
    assert stored.get("g") == (None if start == "first" else begun[0] - 1)


@pytest.mark.parametrize(("agreed", "interval"), [(3.0, 3.0), (0.0, 10.0)])
def test_a_member_trusts_the_broker_for_the_interval_of_the_connection(monkeypatch, agreed, interval):
    """The broker or a URL may shorten the one of the settings; without heartbeats, that one counts."""
    connection, it, now = object.__new__(StreamConnection), lane(), monotonic()
    connection._calls = SimpleNamespace(wire=SimpleNamespace(heartbeat=agreed, closed=False), heard=now)
    monkeypatch.setattr(connection, "stats", lambda _: StreamStats(None, None, None))
    for module in ("member", "workers"):
        monkeypatch.setattr(f"rabbit_chx.streams.group.{module}.monotonic", lambda: now)
    member = StreamGroup(**GIVEN)._new_member(StreamWorkers, print, batches=False)
    with member._woken, member._waker:
        member._places.append(SimpleNamespace(connection=connection, lanes={0: it}))
        member._do_chores()
        assert (it.trusted_until, member._listen_again) == (now + interval, now + interval / 3)
        it.add(chunk(0, 2))
        member.workers._owner = member
        now += interval
        assert member.workers.next_of(it)
        now += 0.1
        assert not member.workers.next_of(it)


def test_a_gap_behind_the_last_message_is_no_lag(monkeypatch):
    """Each stored offset is an entry of the stream that the broker does not deliver."""
    assignments, it, asked = assignments_of(), lane(), Asked()
    place = SimpleNamespace(connection=asked, lanes={0: it})
    end, there, last, looked = 3, None, None, []
    asked.has_stats = True
    monkeypatch.setattr(asked, "stats", lambda _: StreamStats(0, end - 1, end - 1, last))
    monkeypatch.setattr(
        "rabbit_chx.streams.ends.first_chunk", lambda *given: looked.append(given[2]) or there
    )

    def lag() -> int:
        assignments.listen(place)
        return status_of([it], "").lag

    it.add(chunk(0, 3))
    while (message := it.take()) is not None:
        assert lag() == 3 - message.offset
        it.finish(message, it.channel)
    assert (lag(), looked) == (0, [])
    end = 5
    assert [lag() for _ in range(2)] == [0, 0]
    assert looked == [OffsetSpec.offset(3)]
    end, there = 7, chunk(6, 1)
    assert lag() == 4
    it.add(there)
    it.finish(it.take(), it.channel)
    assert (lag(), it.take()) == (0, None)
    end, there, last = 9, None, 6  # the node has not copied the rest
    assert lag() == 2
    last = 8
    assert lag() == 0


def test_a_member_that_is_stopping_tells_the_program_of_no_new_stream():
    told = []
    settings = StreamGroup(**GIVEN, on_assigned=told.append)._settings
    workers, it = StreamWorkers(print, settings), lane()
    it.end_assignment()
    workers.stopping.set()
    Assignments(settings, workers).on_update(it, ConsumerUpdate(1, 0, True))
    assert it.change is None
    assert not it.told


def test_a_revoked_lane_starts_nothing_and_tells_the_program_last():
    it = lane()
    it.add(chunk(0, 3))
    message = it.take()
    it.revoke()
    it.tell(Change("events", assigned=False))
    assert not it.is_idle
    it.finish(message, it.channel)
    assert it.take().assigned is False
    assert it.take() is None
    assert it.is_idle
    assert it.done == 0


def test_a_paused_lane_waits_for_the_next_attempt_unless_it_is_revoked():
    it = lane()
    it.add(chunk(0, 2))
    channel, message = it.channel, it.take()
    assert it.pause(message, channel) == (True, False)
    assert it.is_idle
    assert it.resume(message, channel)
    assert it.take() is message
    it.pause(message, channel)
    it.revoke()
    assert not it.resume(message, channel)


@pytest.mark.parametrize(
    ("given", "hint"),
    [({}, r"\. amqp_url= names another address$"), ({"amqp_url": "amqp://127.0.0.1:1"}, "")],
)
def test_the_error_of_parking_at_the_default_port_names_the_parameter_for_another(monkeypatch, given, hint):
    monkeypatch.setitem(urls._PORTS, (False, False), 1)
    group = StreamGroup(**GIVEN, on_failure="park", parking_queue="failed", **given)
    with pytest.raises(BrokerUnavailable, match=f"no broker answers at .*refused{hint}$"):
        group._connect_for_parking()


def compressed(first: int, batches: int, size: int) -> Chunk:
    """A chunk of sub-entry batches with one message each, which has this size when it is decompressed."""
    return parse_chunk(a_chunk([gzipped(bytes(size))] * batches, offset=first), "events")


def test_a_batch_is_limited_by_its_decompressed_bytes():
    it = lane(batches=True)
    it.assign(5, None)
    for first in range(8):
        it.add(compressed(first, 1, 3 << 20))
    it.add(compressed(8, 20, 3 << 20))
    it.add(chunk(28, 10))
    it.add(Chunk("events", 0, 2, 9, 0, 1, 38, compressed(0, 2, 9 << 20).data))  # not as many as it says
    it.add(chunk(47, 1))
    taken = iter(it.take, None)
    ranges = [(5, 7), (8, 12), (13, 17), (18, 22), (23, 27), (28, 46), (47, 47)]
    assert [(batch.first, batch.last) for batch in taken] == ranges


@pytest.mark.parametrize("parking", [{}, {"on_failure": "park", "parking_queue": "failed"}])
def test_a_broker_that_cannot_be_reached_is_tried_until_the_group_is_stopped(caplog, parking):
    group = StreamGroup(**GIVEN, **parking, amqp_url="amqp://127.0.0.1:1" if parking else None)

    def stop(record):
        group.stop()
        return True

    caplog.handler.addFilter(stop)
    try:
        group.run(print)
    finally:
        caplog.handler.removeFilter(stop)
    assert "trying again" in caplog.text
    assert StreamUnavailable.__name__ not in caplog.text
    assert "secret" not in caplog.text


def test_an_offset_that_the_broker_dropped_while_the_leader_moved_is_stored_again(monkeypatch):
    monkeypatch.setattr(offsets, "_STORE_AGAIN", 0.01)
    asked = Asked()
    assert offsets.wait_until_stored(asked, "g", "events", 7, before=None) is None
    assert asked.stored == 7


@pytest.mark.parametrize(("committed", "first"), [(500, 500), (None, 0)])
def test_the_last_chunk_of_a_stream_is_the_last_committed_one_while_another_is_written(committed, first):
    """The broker sends a chunk once it is committed, and therefore none at once."""
    asked = Asked()
    asked.timeout = 60.0
    asked.stats = lambda _: StreamStats(None if committed is None else 0, committed, None)
    asked._subscribe, asked._unsubscribe = lambda *_, **__: 0, lambda _: []
    assert offsets.first_of(asked, "s", "last") == first


class Contested(Asked):
    """Another client stores an offset whenever this one has done so."""

    def store_offset(self, _group: str, _stream: str, offset: int) -> None:
        self.stored = 3


def test_a_member_goes_on_and_says_so_when_another_client_stores_its_offset(monkeypatch, caplog):
    """Once, it ended for good, with "permission"."""
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    assignments, it, place = assignments_of(), lane(), place_of(Contested())
    it.add(chunk(0, 10))
    for _ in range(10):
        it.finish(it.take(), it.channel)
    assignments.settle(place, it)
    assert (
        "another client stores the group's offset in stream 'events', at last 3 instead of 9" in caplog.text
    )
    assert (it.stored, it.is_refused) == (3, False)
    it.store_again = 0.0
    assert it.store_is_due  # so that its own offset replaces the other one, as documented
    it.add(chunk(10, 1))
    it.finish(it.take(), it.channel)
    assignments.settle(place, it)  # although the same offset is there as before
    assert "at last 3 instead of 10" in caplog.text


def test_a_reset_that_another_client_undoes_fails(monkeypatch):
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    contested = Contested()
    contested.node = None
    group = offsets.GroupOffsets("g", lambda _: nullcontext(contested))
    told = "another client, such as a member that runs"
    with group, pytest.raises(StreamUnavailable, match=told) as raised:
        group.store("events", 7)
    assert raised.value.problem == "refused"
