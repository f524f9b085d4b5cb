"""`StreamPublisher` while connections are lost, servers hang and confirms are missing: where it goes on, and for how long."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx.base import outages
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import BrokerUnavailable, PublishFailed, StreamUnavailable
from rabbit_chx.publishing import Failure, Outcome
from rabbit_chx.streams import StreamPublisher, Timeouts, connect
from rabbit_chx.streams.protocol.answers import Refusals
from rabbit_chx.streams.publishing import outlet, routes
from rabbit_chx.streams.publishing.lots import LotOutbox
from tests.patience import PATIENCE, wait_until
from tests.unit import stream_servers
from tests.unit.stream_servers import FIRST, SECOND, Connection, lose

clock, servers = stream_servers.clock, stream_servers.servers


@pytest.mark.usefixtures("clock")
def test_the_last_id_is_unknown_while_no_server_accepts_connections(servers) -> None:
    with StreamPublisher(FIRST, "events", name="job", timeouts=Timeouts(reconnect=0.05)) as publisher:
        servers.down = {"first"}
        servers.close_connections()
        with pytest.raises(StreamUnavailable, match="first is down"):
            publisher.sequence()


@pytest.mark.usefixtures("clock")
def test_no_message_follows_a_gap_where_a_new_leader_lacks_what_the_caller_was_told(servers) -> None:
    servers.stored = dict.fromkeys(range(1, 6), b"without a confirm")
    with StreamPublisher(FIRST, "events", name="job", timeouts=Timeouts(reconnect=5)) as publisher:
        assert publisher.sequence() == 5
        servers.stored = {1: b"a", 2: b"b"}
        lose(publisher, servers)
        with pytest.raises(
            PublishFailed, match="the last publishing id of 'job' in stream 'events' was 5 and is 2"
        ):
            publisher.publish(b"f", publishing_id=6)
        assert max(servers.stored) == 2
        assert publisher.sequence() == 2
        publisher.publish(b"c", publishing_id=3)
    assert list(servers.stored) == [1, 2, 3]


@pytest.mark.usefixtures("clock")
def test_a_caller_who_learns_of_a_failure_may_ask_for_the_last_id_at_once(servers, monkeypatch) -> None:
    answers, give_up = [], LotOutbox.give_up
    with StreamPublisher(FIRST, "events", name="job", timeouts=Timeouts(reconnect=5)) as publisher:
        (outlet,) = publisher._pipeline._outlets.values()

        def ask_at_once(box: LotOutbox, *given: Any, **more: Any) -> None:
            give_up(box, *given, **more)
            if not answers:
                servers.down = set()
                answers.append(outlet.sequence())

        monkeypatch.setattr(LotOutbox, "give_up", ask_at_once)
        publisher.publish(b"a")
        servers.down = {"first"}
        lose(publisher, servers)
        with pytest.raises(PublishFailed, match="first is down"):
            publisher.publish(b"b")
        assert answers[0].result(PATIENCE) == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_a_bulk_takes_no_message_behind_those_that_were_given_up(servers, target: dict[str, str]) -> None:
    with StreamPublisher(FIRST, name="job", timeouts=Timeouts(reconnect=5), **target) as publisher:
        bulk = publisher.bulk()
        bulk.add(b"a", "k", publishing_id=1)
        bulk.flush()
        servers.down = {"first"}
        lose(publisher, servers)
        bulk.add(b"b", "k", publishing_id=2)
        with pytest.raises(PublishFailed, match="first is down"):
            bulk.flush()
        servers.down = set()
        with pytest.raises(BrokerUnavailable, match="first is down"):
            bulk.add(b"c", "k", publishing_id=3)
        publisher.publish(b"b", "k", publishing_id=2)
    assert list(servers.stored) == [1, 2]


@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_a_hook_may_publish_what_the_publisher_gave_up_while_it_was_accepted(
    servers, monkeypatch, target: dict[str, str]
) -> None:
    """The caller's thread runs the hook, and has no lock that another call or a change of the streams needs."""
    failures: list[Failure] = []

    def given_up(box: LotOutbox, *given: Any, **more: Any) -> bool:
        has_room = wait_for_room(box, *given, **more)
        if not failures:
            box.give_up(BrokerUnavailable("no leader"))
        return has_room

    def publish_again(failure: Failure) -> None:
        failures.append(failure)
        if "super_stream" in target:
            servers.streams = 3
            wait_until(lambda: len(publisher._pipeline.outboxes) == 3, "the third stream is known")
        publisher.publish(b"again", failure.routing_key)

    wait_for_room = LotOutbox.wait_for_room
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, **target) as publisher:
        monkeypatch.setattr(LotOutbox, "wait_for_room", given_up)
        bulk = publisher.bulk(on_failure=publish_again)
        call = threading.Thread(target=bulk.add, args=(b"late", "k"), daemon=True)
        call.start()
        call.join(PATIENCE)
        assert not call.is_alive()
        assert (bulk.flush().unsent, bulk.totals.pending, publisher.totals.pending) == (1, 0, 0)
    assert [(each.outcome, each.reply) for each in failures] == [(Outcome.UNSENT, "no leader")]
    assert len(servers.stored) == 1


@pytest.mark.parametrize("last", [2, 9])
def test_a_publisher_goes_on_where_a_new_leader_has_what_was_confirmed(servers, last: int) -> None:
    """A stream that was created again is used again."""
    with StreamPublisher(FIRST, "events", name="job") as publisher:
        assert publisher.sequence() == 0
        publisher.publish(b"a", publishing_id=5)
        servers.stored = {last: b"b"}
        lose(publisher, servers)
        publisher.publish(b"c", publishing_id=10)
    assert list(servers.stored) == [last, 10]


def test_a_publisher_goes_on_at_another_server(servers) -> None:
    with StreamPublisher([FIRST, SECOND], "events") as publisher:
        for down in (set(), {"first"}, {"second"}):
            servers.down = down
            servers.tell()
            publisher.publish(b"a")
    assert [host for host, _ in servers.opened] == ["first", "second", "first"]
    assert len(servers.stored) == 3


def test_an_outage_is_logged_when_it_begins_while_it_lasts_and_when_it_ends(
    servers, clock, monkeypatch, caplog
) -> None:
    began = clock()
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=clock))
    reopened = Connection.__init__

    def after_90_seconds(connection: Connection, url: BrokerUrl, **given: Any) -> None:
        servers.down = {"first"} if clock() < began + 90 else set()
        reopened(connection, url, **given)

    with StreamPublisher(FIRST, "events") as publisher:
        monkeypatch.setattr(Connection, "__init__", after_90_seconds)
        lose(publisher, servers)
        publisher.publish_many([b"a", b"b"])
        publisher.publish(b"c")
    assert [record.getMessage() for record in caplog.records] == [
        "publisher of stream 'events': first is down; trying again",
        "publisher of stream 'events': no connection for 60 s: first is down",
        "publisher of stream 'events': connected again after 90 s",
    ]


@pytest.mark.usefixtures("clock")
def test_a_publisher_that_gave_up_does_not_log_that_it_is_connected_again(servers, caplog) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=5)) as publisher:
        servers.down = {"first"}
        lose(publisher, servers)
        with pytest.raises(PublishFailed, match="first is down"):
            publisher.publish(b"a")
        assert isinstance(publisher.error, StreamUnavailable)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "publisher of stream 'events': first is down; trying again"
    assert "first is down" in str(publisher.error)  # also after it was closed


def test_a_publisher_that_was_closed_has_no_error(servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        publisher.publish(b"a")
    assert repr(publisher).endswith(": closed>")
    assert publisher.error is None
    assert len(servers.stored) == 1


@pytest.mark.usefixtures("clock")
def test_each_timeout_limits_its_own_part(servers) -> None:
    publisher = StreamPublisher(FIRST, "events", timeouts=Timeouts(connect=7, reconnect=0.05, confirm=300))
    assert not servers.opened
    publisher.open()
    publisher.publish_many([b"a"])
    assert servers.opened == [("first", 7)]
    assert servers.waits == {300}
    servers.down = {"first"}
    with pytest.raises(PublishFailed, match="first is down"):
        publisher.publish_many([b"b"])
    publisher.close()


def test_a_caller_that_goes_on_publishing_does_not_hide_that_confirms_are_missing(
    servers, monkeypatch
) -> None:
    monkeypatch.setattr("rabbit_chx.streams.publishing.outlet._LOOK_AGAIN", 0.05)
    servers.silent = True
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(confirm=0.2, close=0.1)) as publisher:
        first = publisher.submit(b"a")

        def failed() -> bool:
            publisher.submit(b"b").add_done_callback(lambda future: future.exception())
            return first.done()

        wait_until(failed, "the missing confirm is an error")
        late = r"no confirm of [0-9]+ messages? for stream 'events' within 0\.2 seconds"
        with pytest.raises(PublishFailed, match=late) as caught:
            first.result()
        assert caught.value.failure.outcome is Outcome.UNKNOWN


def test_a_thread_that_is_stopped_while_it_notices_a_loss_ends(servers, monkeypatch) -> None:
    noticed = outlet.Outlet._after_loss
    with StreamPublisher(FIRST, "events") as publisher:
        (one,) = publisher._pipeline._outlets.values()

        def stopped(self: outlet.Outlet, error: Any) -> None:
            noticed(self, error)
            self.stop()

        monkeypatch.setattr(outlet.Outlet, "_after_loss", stopped)
        servers.close_connections()
        one._thread.join(PATIENCE)
        assert not one._thread.is_alive()
        with pytest.raises(BrokerUnavailable, match="the publisher is closed"):
            one.sequence().result(0)


def test_a_call_in_another_thread_waits_until_the_streams_are_known(servers, monkeypatch) -> None:
    publisher = StreamPublisher(FIRST, super_stream="events", name="job", timeouts=Timeouts(connect=1e100))
    with ThreadPoolExecutor() as pool:
        opening, answers = stream_servers.opened_without_streams(publisher, pool, monkeypatch)
        with pytest.raises(
            PublishFailed, match=r"the streams of 'events' were unknown or changing for 0\.05"
        ):
            publisher.publish(b"a", "k", timeout=0.05)
        with pytest.raises(StreamUnavailable, match="did not answer QueryPublisherSequence in time"):
            publisher.sequence(0.05)
        last = pool.submit(publisher.sequence, 1e100)
        second = pool.submit(publisher.publish, b"b", "k", timeout=1e100)
        answers.set()
        assert last.result(PATIENCE) in {0, 1}
        second.result(PATIENCE)
        opening.result(PATIENCE)
    publisher.close(1e100)
    assert len(servers.stored) == 1


@pytest.mark.usefixtures("clock")
def test_messages_that_wait_for_a_new_connection_count_as_unsent_or_as_sent_once(servers) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=0.05)) as publisher:
        publisher.publish(b"a")
        servers.silent = True
        sent = publisher.submit(b"b")
        wait_until(lambda: len(servers.stored) == 2, "a change")
        servers.down = {"first"}
        servers.close_connections()
        with pytest.raises(PublishFailed, match="first is down") as lost:
            sent.result(PATIENCE)
        assert lost.value.may_have_arrived
        assert lost.value.failure.outcome is Outcome.UNKNOWN
        with pytest.raises(PublishFailed, match=r"2 of 2 messages.*first is down") as unsent:
            publisher.publish_many([b"c", b"d"], ["k", "l"])
        assert not unsent.value.may_have_arrived
        assert [(each.row, each.routing_key) for each in unsent.value.failures] == [(0, "k"), (1, "l")]
        assert (unsent.value.totals.published, unsent.value.totals.unsent) == (2, 2)
        totals = publisher.totals
        assert (totals.published, totals.unknown, totals.unsent, totals.resent) == (4, 1, 2, 0)
        servers.down, servers.silent = set(), False
        publisher.publish(b"e")
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.resent, totals.connections) == (5, 2, 0, 2)


@pytest.mark.usefixtures("clock")
def test_messages_for_a_stream_that_was_created_again_are_no_duplicates(servers) -> None:
    servers.stored = {100: b"old"}
    with StreamPublisher(FIRST, "events", name="n") as publisher:
        servers.stored.clear()
        servers.close_connections()
        publisher.publish_many([b"a"] * 3, ids=range(1, 4))
        totals = publisher.totals
        assert (totals.confirmed, totals.duplicates, len(servers.stored)) == (3, 0, 3)


@pytest.mark.usefixtures("clock")
def test_connections_that_open_and_confirm_nothing_are_given_up_like_none(servers, monkeypatch) -> None:
    def lost(*_: object) -> None:
        raise StreamUnavailable("the connection was lost", "lost")

    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=15)) as publisher:
        publisher.publish(b"a")
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "_confirms", lost)
            with pytest.raises(PublishFailed, match="the connection was lost") as caught:
                publisher.publish(b"b")
        assert caught.value.may_have_arrived
        assert len(servers.opened) > 10
        publisher.publish(b"c")  # tries again


def sent_again(
    monkeypatch: pytest.MonkeyPatch, servers: stream_servers.Servers, arriving: Callable[[Connection], object]
) -> tuple[StreamPublisher, PublishFailed | None]:
    """Publish 5,000 messages, lose the connection before they are confirmed, and let messages arrive on each later one."""
    monkeypatch.setattr(outlet, "_AT_ONCE", 1_000)
    published = Connection._publish

    def publish(connection: Connection, *given: Any, **more: Any) -> None:
        published(connection, *given, **more)
        arriving(connection)

    servers.silent = True
    timeouts = Timeouts(reconnect=5)
    with ThreadPoolExecutor() as pool, StreamPublisher(FIRST, "events", timeouts=timeouts) as publisher:
        publishing = pool.submit(publisher.publish_many, [b"a"] * 5_000)
        wait_until(lambda: len(servers.stored) == 5_000, "all are sent")
        monkeypatch.setattr(Connection, "_publish", publish)
        servers.silent = False
        servers.close_connections()
        error = publishing.exception(PATIENCE)
    assert error is None or isinstance(error, PublishFailed)
    return publisher, error


@pytest.mark.usefixtures("clock")
def test_confirms_are_taken_while_many_messages_are_sent_again(servers, monkeypatch) -> None:
    """A broker that cannot send its confirms reads nothing, and both would wait for each other."""

    def arriving(connection: Connection) -> None:
        if len(connection._arrived) > 1_000:
            raise StreamUnavailable("the broker took no data", "lost")

    publisher, error = sent_again(monkeypatch, servers, arriving)
    assert error is None
    totals = publisher.totals
    assert (totals.confirmed, totals.resent, totals.connections) == (5_000, 5_000, 2)


@pytest.mark.usefixtures("clock")
def test_a_connection_that_is_lost_while_messages_are_sent_again_leaves_those_that_it_has_not_confirmed(
    servers, monkeypatch
) -> None:
    arrived: list[list[int]] = []

    def arriving(connection: Connection) -> None:
        arrived.append(list(connection._arrived))
        if len(arrived) == 2:
            servers.close_connections()

    publisher, error = sent_again(monkeypatch, servers, arriving)
    assert error is None
    starts = [(each[0], each[-1]) for each in arrived]
    assert starts == [
        (1, 1_000),
        (1_001, 2_000),
        *((start + 1, start + 1_000) for start in range(1_000, 5_000, 1_000)),
    ]
    totals = publisher.totals
    assert (totals.confirmed, totals.resent, totals.connections) == (5_000, 6_000, 3)


@pytest.mark.usefixtures("clock")
def test_a_refusal_that_arrives_while_messages_are_sent_again_ends_all_of_them(servers, monkeypatch) -> None:
    def refuse(connection: Connection) -> None:
        connection._arrived.clear()
        monkeypatch.setattr(Connection, "_confirms", lambda *_: iter([Refusals(0, {3: 17})]))

    publisher, error = sent_again(monkeypatch, servers, refuse)
    assert error is not None
    rejected = [each.row for each in error.failures if each.outcome is Outcome.REJECTED]
    totals = publisher.totals
    assert (rejected, totals.rejected, totals.unknown, totals.resent) == ([2], 1, 4_999, 1_000)


def test_losses_long_after_each_other_do_not_add_up(servers, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(outlet, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=5)) as publisher:
        for number in range(1, 4):
            servers.silent = True
            sent = publisher.submit(b"a")
            wait_until(lambda number=number: len(servers.stored) == number, "a change")
            servers.silent = False
            servers.close_connections()
            sent.result(PATIENCE)
            now[0] += 60
        assert publisher.totals.confirmed == 3


def test_a_new_stream_that_does_not_answer_takes_no_time_from_the_others(servers, monkeypatch) -> None:
    _, answers = stream_servers.delayed(monkeypatch, "_declare_publisher", "events-2")
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    keys = [str(number) for number in range(300)]
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        assert publisher.publish_many([], []).published == 0
        servers.streams = 3
        wait_until(lambda: len(publisher._pipeline.outboxes) == 3, "a change")
        for _ in range(2):
            with pytest.raises(
                PublishFailed, match="withdrawn after 2 seconds while connecting to stream"
            ) as caught:
                publisher.publish_many(map(str.encode, keys), keys, timeout=2)
            assert not caught.value.may_have_arrived
            failed = caught.value.failures
            assert {each.stream for each in failed} == {"events-2"}
            assert [keys[each.row] for each in failed] == [each.routing_key for each in failed]
            assert caught.value.totals.confirmed == 300 - len(failed)
            assert str(failed[0]).startswith(f"row {failed[0].row} unsent (stream 'events-2' with key '")
        answers.set()
        assert publisher.publish_many(map(str.encode, keys), keys).confirmed == 300
        assert publisher.totals.published == 900


def test_the_messages_before_a_change_of_the_streams_are_confirmed_first(servers, monkeypatch) -> None:
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        servers.silent = True
        first = [publisher.submit(b"a", str(number)) for number in range(10)]
        wait_until(lambda: len(servers.stored) == 10, "a change")
        servers.streams = 3
        wait_until(lambda: publisher._pipeline._routes.current is None, "a change")
        with pytest.raises(PublishFailed, match=r"the streams of 'events' were unknown or changing for 0\.1"):
            publisher.publish(b"b", "k", timeout=0.1)
        assert not any(future.done() for future in first)
        servers.silent = False
        servers.tell()
        publisher.publish_many([b"c"] * 50, map(str, range(50)))
        assert all(future.done() for future in first)
        assert len(publisher._pipeline.outboxes) == 3


def test_a_super_stream_that_is_gone_is_told_to_each_caller_until_it_is_back(servers, monkeypatch) -> None:
    def gone(_: Connection, name: str, **__: object) -> list[str]:
        raise StreamUnavailable(f"no super stream {name}", "no such stream")

    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        publisher.publish(b"a", "k")
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "partitions", gone)
            wait_until(lambda: publisher._pipeline._routes._error, "a change")
            with pytest.raises(StreamUnavailable, match="no super stream events"):
                publisher.publish(b"a", "k")
        wait_until(lambda: not publisher._pipeline._routes._error, "a change")
        publisher.publish(b"a", "k")


def test_a_client_that_was_connected_does_not_ask_whether_it_is_the_right_port(servers) -> None:
    question = "is this the port of the stream protocol, and without TLS?"
    with (
        StreamPublisher(FIRST, "events", timeouts=Timeouts(connect=0.2, reconnect=0.2)) as publisher,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        servers.moved = f"rabbitmq-stream://127.0.0.1:{silent.getsockname()[1]}"
        servers.close_connections()
        with pytest.raises(PublishFailed, match="did not answer PeerProperties") as caught:
            publisher.publish(b"a")
        assert question not in str(caught.value)
        with pytest.raises(StreamUnavailable, match=re.escape(question)):
            connect(FIRST, timeout=0.2)
