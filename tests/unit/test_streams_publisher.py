"""`StreamPublisher` after its connection is lost: what it asks and sends again, where, and for how long."""

from __future__ import annotations

import math
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rabbit_chx.base import outages
from rabbit_chx.errors import InvalidValue, PublishFailed, StreamUnavailable
from rabbit_chx.publishing import Outcome
from rabbit_chx.streams import (
    Confirms,
    Node,
    StreamConnection,
    StreamMetadata,
    StreamPublisher,
    StreamReader,
    Timeouts,
    connect,
    outlet,
)
from rabbit_chx.streams.protocol.opening import connect_until
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rabbit_chx.base.urls import BrokerUrl

FIRST, SECOND = "rabbitmq-stream://first", "rabbitmq-stream://second"


class Servers:
    """Servers that share one stream; those that are down accept no connection."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.opened: list[tuple[str, float]] = []
        """The host and the timeout of each connection."""
        self.stored: dict[int, bytes] = {}
        self.silent = False
        """Whether messages are never confirmed."""
        self.closed = 0
        """How many of the connections the servers have closed."""
        self.waits: set[float] = set()
        """How long clients waited for confirms, and until the server took their frames."""
        self.moved = ""
        """Where a server that does not answer takes the new connections."""

    def close_connections(self) -> None:
        """Close all connections that are open."""
        self.closed = len(self.opened)


class Connection:
    """A connection to these servers, with the methods of `StreamConnection` that a publisher calls."""

    servers: Servers
    node = None
    frame_max = 1 << 20

    def __init__(self, url: BrokerUrl, *, timeout: float, give_up_at: float, **_: object) -> None:
        if self.servers.moved:
            StreamConnection(self.servers.moved, timeout=timeout, give_up_at=give_up_at)
        self._host, self._arrived = url.host, []
        if url.host in self.servers.refusing:
            raise StreamUnavailable(f"{url.host} refuses", "login")
        if url.host in self.servers.down:
            raise StreamUnavailable(f"{url.host} is down", "unreachable")
        self.servers.opened.append((url.host, timeout))
        self._number = len(self.servers.opened)
        self.is_open = True
        self.until = give_up_at

    def close(self) -> None:
        self.is_open = False

    def give_up_at(self, when: float) -> None:
        self.until = when

    def metadata(self, streams: list[str]) -> dict[str, StreamMetadata]:
        return {name: StreamMetadata(name, Node("first", 5552), ()) for name in streams}

    def partitions(self, name: str) -> list[str]:
        return [f"{name}-{number}" for number in range(2)]

    def declare_publisher(self, _stream: str, _name: str | None) -> int:
        return 0

    def query_publisher_sequence(self, _name: str, _stream: str) -> int:
        self._check_open()
        return max(self.servers.stored, default=0)

    def publish(self, _: int, messages: Iterable[tuple[int, bytes]], *, timeout: float) -> None:
        self._check_open()
        self.servers.waits.add(timeout)
        self._arrived += [number for number, _ in messages]
        self.servers.stored |= dict(messages)

    def confirms(self, timeout: float) -> Iterator[Confirms]:
        self._check_open()
        self.servers.waits.add(timeout)
        if not self.servers.silent:
            yield Confirms(0, tuple(self._arrived))

    def _check_open(self) -> None:
        if not self.is_open or self._host in self.servers.down or self._number <= self.servers.closed:
            raise StreamUnavailable("the connection was lost", "lost")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    found = Servers()
    monkeypatch.setattr(Connection, "servers", found, raising=False)
    monkeypatch.setattr("rabbit_chx.streams.protocol.opening.StreamConnection", Connection)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Time that passes only between two attempts to connect, so that there is another one before it is over."""
    now = [time.monotonic()]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("rabbit_chx.streams.outlet.time", clock)
    return clock.monotonic


def test_the_last_id_is_known_after_the_broker_closed_an_idle_connection(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events", name="job") as publisher:
        publisher.publish_many([b"a", b"b"])
        assert max(servers.stored) == 2
        servers.close_connections()
        assert publisher.sequence() == 2
        publisher.publish_many([b"c"])
        assert max(servers.stored) == 3
        totals = publisher.totals
    assert list(servers.stored) == [1, 2, 3]
    assert (totals.published, totals.confirmed, totals.resent, totals.connections) == (3, 3, 0, 2)


@pytest.mark.usefixtures("clock")
def test_the_last_id_is_unknown_while_no_server_accepts_connections(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events", name="job", timeouts=Timeouts(reconnect=0.05)) as publisher:
        servers.down = {"first"}
        with pytest.raises(StreamUnavailable, match="first is down"):
            publisher.sequence()


def test_a_publisher_goes_on_at_another_server(servers: Servers) -> None:
    with StreamPublisher([FIRST, SECOND], "events") as publisher:
        publisher.publish_many([b"a"])
        servers.down = {"first"}
        publisher.publish_many([b"b"])
        servers.down = {"second"}
        publisher.publish_many([b"c"])
    assert [host for host, _ in servers.opened] == ["first", "second", "first"]
    assert len(servers.stored) == 3


@pytest.mark.parametrize(("minute", "still"), [(60.0, 1), (1e9, 0)])
def test_an_outage_is_logged_when_it_begins_while_it_lasts_and_when_it_ends(
    servers: Servers,
    clock: Callable[[], float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    minute: float,
    still: int,
) -> None:
    began = clock()
    monkeypatch.setattr(outages, "_EVERY_SECONDS", minute)
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=clock))
    reopened = Connection.__init__

    def after_90_seconds(connection: Connection, url: BrokerUrl, **given: Any) -> None:
        servers.down = {"first"} if clock() < began + 90 else set()
        reopened(connection, url, **given)

    with StreamPublisher(FIRST, "events") as publisher:
        monkeypatch.setattr(Connection, "__init__", after_90_seconds)
        servers.close_connections()
        publisher.publish_many([b"a", b"b"])
        publisher.publish(b"c")
    first, *others, last = [record.getMessage() for record in caplog.records]
    assert first == "publisher of stream 'events': the connection was lost; trying again"
    assert others == ["publisher of stream 'events': no connection for 60 s: first is down"] * still
    assert last == "publisher of stream 'events': connected again after 90 s"


@pytest.mark.usefixtures("clock")
def test_a_publisher_that_gave_up_does_not_log_that_it_is_connected_again(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=5)) as publisher:
        servers.down = {"first"}
        with pytest.raises(PublishFailed, match="first is down"):
            publisher.publish(b"a")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "publisher of stream 'events': the connection was lost; trying again"


def test_each_timeout_limits_its_own_part(servers: Servers, clock: Callable[[], float]) -> None:
    publisher = StreamPublisher(FIRST, "events", timeouts=Timeouts(connect=7, reconnect=0.05, confirm=300))
    assert not servers.opened
    publisher.open()
    publisher.publish_many([b"a"])
    assert servers.opened == [("first", 7)]
    assert servers.waits == {300}
    servers.down = {"first"}
    began = clock()
    with pytest.raises(PublishFailed, match="first is down"):
        publisher.publish_many([b"b"])
    assert clock() - began < 7


def test_a_missing_confirm_is_an_error_that_says_how_long_it_took(servers: Servers) -> None:
    servers.silent = True
    with (
        StreamPublisher(FIRST, "events", timeouts=Timeouts(confirm=0.5)) as publisher,
        pytest.raises(
            PublishFailed, match=r"no confirm of 1 message for stream 'events' within 0\.5 seconds"
        ),
    ):
        publisher.publish_many([b"a"])


def test_servers_are_tried_in_turn_even_after_one_that_refuses_for_good(servers: Servers) -> None:
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


@pytest.mark.parametrize("given", [[], "amqp://first/a/b", 7, [7]])
def test_addresses_of_streams_are_checked_like_those_of_any_client(given: Any) -> None:
    with pytest.raises(InvalidValue, match="invalid broker URL: got"):
        connect(given)


def test_servers_that_do_not_answer_share_the_time_to_connect(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_write_of_spark_passes_its_addresses_and_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_connector.writing import publishers
    from spark_connector.writing.options import WriteOptions

    given: dict[str, Any] = {}
    made = SimpleNamespace(open=lambda: None)
    monkeypatch.setattr(
        publishers, "StreamPublisher", lambda urls, **more: given.update(urls=urls, **more) or made
    )
    options = {
        "url": f"{FIRST},{SECOND}",
        "stream": "events",
        "connectionTimeoutMs": "1000",
        "reconnectTimeoutMs": "2000",
        "confirmTimeoutMs": "3000",
    }
    publishers.open_publisher(WriteOptions.of(options), "events", "job/0", "spark")
    assert [url.host for url in given["urls"]] == ["first", "second"]
    assert given["timeouts"] == Timeouts(connect=1, reconnect=2, confirm=3)


def test_nothing_connects_before_open_and_nothing_works_before_or_after_it(servers: Servers) -> None:
    publisher = StreamPublisher(FIRST, "events")
    assert not servers.opened
    with pytest.raises(InvalidValue, match="a call while it is not open"):
        publisher.publish(b"a")
    with publisher:
        publisher.open()
        publisher.publish(b"a")
        assert max(servers.stored) == 1
    with pytest.raises(InvalidValue, match="a call while it is not open"):
        publisher.flush()
    publisher.close()
    assert publisher.totals.confirmed == len(servers.opened) == 1


def test_closing_waits_for_missing_confirms_but_not_longer_than_its_timeout(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        publisher.add_encoded([(1, b"a")])
    assert publisher.totals.confirmed == 1
    servers.silent = True
    with (
        pytest.raises(StreamUnavailable, match=r"no confirm of 1 message for .* within [34]\d"),
        StreamPublisher(FIRST, "events", timeouts=Timeouts(close=49)) as publisher,
    ):
        publisher.add_encoded([(1, b"a")])
    assert (publisher.totals.unknown, publisher.totals.pending) == (1, 0)


def test_a_call_gives_up_after_its_timeout_and_the_next_one_connects_again(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        publisher.publish("a", timeout=60)
        servers.silent = True
        for number, call in enumerate(
            (publisher.publish, lambda body, **more: publisher.publish_many([body], **more)), 1
        ):
            with pytest.raises(
                PublishFailed, match=r"no confirm of 1 message for stream 'events' within [34]\d"
            ):
                call(b"b", timeout=49)
            assert (publisher.totals.confirmed, publisher.totals.unknown) == (1, number)
        publisher.add_encoded([(10, b"c")])
        with pytest.raises(StreamUnavailable, match="no confirm of 1 message"):
            publisher.flush(timeout=49)
        with pytest.raises(StreamUnavailable, match="no confirm of"):  # while it waits for room
            publisher.add_encoded(((number, b"c") for number in range(11, 50_000)), timeout=49)
        assert publisher.totals.pending == 0
        servers.silent = False
        publisher.publish(b"d")
        assert max(servers.stored) < 50_000
        with pytest.raises(InvalidValue, match="invalid timeout: got -1, expected seconds, at least 0"):
            publisher.flush(timeout=-1)
    assert publisher.totals.confirmed == 2


def test_a_timeout_also_holds_for_streams_that_are_added_during_the_call(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StreamPublisher(FIRST, super_stream="events", timeouts=Timeouts(confirm=60)) as publisher:
        monkeypatch.setattr(Connection, "partitions", lambda _, name: [f"{name}-{n}" for n in range(2, 9)])
        publisher._look_at = 0
        publisher.publish_many([b"a"] * 50, map(str, range(50)), timeout=5)
        assert max(servers.waits) <= 5
        publisher.publish(b"a", "1")
        assert max(servers.waits) == 60


@pytest.mark.parametrize("timeout", [math.nan, "5", -1])
def test_a_timeout_that_is_no_time_is_refused(servers: Servers, timeout: Any) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        for call in (partial(publisher.publish, b"a", timeout=timeout), partial(publisher.close, timeout)):
            with pytest.raises(InvalidValue, match=r"invalid timeout: got .*, expected seconds, at least 0"):
                call()
        publisher.publish(b"a")
        assert max(servers.stored) == 1


LARGE = bytes(Connection.frame_max)


@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
@pytest.mark.parametrize("count", [4, 5_000])
def test_a_message_that_fits_into_no_frame_is_refused_before_anything_is_sent(
    servers: Servers, target: dict[str, str], count: int
) -> None:
    keys = [str(number) for number in range(count)]
    with StreamPublisher(FIRST, **target) as publisher:
        opened = publisher.totals.connections
        with pytest.raises(StreamUnavailable, match=r"a message of \d+ bytes does not fit") as caught:
            publisher.publish_many([b"1"] * (count - 2) + [LARGE, b"3"], keys)
        assert (caught.value.problem, caught.value.permanent) == ("frame too large", True)
        publisher.publish(b"next", "k")
        assert max(servers.stored) == 1
        totals = publisher.totals
    assert len(servers.stored) == 1
    assert (totals.published, totals.confirmed, totals.unknown, totals.resent) == (1, 1, 0, 0)
    assert totals.connections == opened


def test_encoded_messages_are_sent_up_to_the_lot_with_one_that_fits_into_no_frame(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        with pytest.raises(StreamUnavailable, match="does not fit into a frame"):
            publisher.publish_encoded([b"1"] * 1_500 + [LARGE])
        assert publisher.totals.pending == len(servers.stored) == 1_000
        publisher.publish(b"next")
        assert max(servers.stored) == 1_001
        totals = publisher.totals
    assert (totals.published, totals.unknown, totals.resent, totals.connections) == (1_001, 0, 0, 1)


@pytest.mark.usefixtures("clock")
def test_messages_that_wait_for_a_new_connection_count_as_unsent_or_as_sent_once(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=0.05)) as publisher:
        publisher.publish(b"a")
        servers.down = {"first"}
        with pytest.raises(PublishFailed, match="first is down") as lost:
            publisher.publish(b"b")
        assert lost.value.may_have_arrived
        assert lost.value.failure.outcome is Outcome.UNKNOWN
        with pytest.raises(PublishFailed, match=r"2 of 2 messages.*first is down") as unsent:
            publisher.publish_many([b"c", b"d"], ["k", "l"])
        assert not unsent.value.may_have_arrived
        assert [(each.row, each.routing_key) for each in unsent.value.failures] == [(0, "k"), (1, "l")]
        assert (unsent.value.totals.published, unsent.value.totals.unsent) == (2, 2)
        totals = publisher.totals
        assert (totals.published, totals.unknown, totals.unsent, totals.resent) == (4, 1, 2, 0)
        servers.down = set()
        publisher.publish(b"e")
        assert max(servers.stored) == 3
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.resent, totals.connections) == (5, 2, 0, 2)


@pytest.mark.usefixtures("clock")
def test_messages_for_a_stream_that_was_created_again_are_no_duplicates(servers: Servers) -> None:
    servers.stored = {100: b"old"}
    with StreamPublisher(FIRST, "events", name="n") as publisher:
        servers.stored.clear()
        servers.close_connections()
        publisher.publish_many([b"a"] * 3, first_id=1)
        totals = publisher.totals
        assert (totals.confirmed, totals.duplicates, len(servers.stored)) == (3, 0, 3)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("call", ["publish", "declare_publisher"])
def test_what_ctrl_c_has_kept_from_being_sent_is_sent_later(servers: Servers, monkeypatch, call: str) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with StreamPublisher(FIRST, "events") as publisher:
        with monkeypatch.context() as patched:
            patched.setattr(Connection, call, interrupted)
            if call == "declare_publisher":
                servers.close_connections()
            with pytest.raises(KeyboardInterrupt):
                publisher.publish_many([b"a"] * 3)
        publisher.flush()
        totals = publisher.totals
        assert (totals.confirmed, totals.unknown, len(servers.stored)) == (3, 0, 3)


TOO_HIGH = 2**64


@pytest.mark.parametrize(
    "call",
    [
        *(
            lambda publisher, number=number: publisher.publish(b"a", publishing_id=number)
            for number in (TOO_HIGH, TOO_HIGH + 5, 0, -1, True, 1.0, "1")
        ),
        lambda publisher: publisher.publish_many([b"a"] * 3_000, first_id=TOO_HIGH - 2_999),
        lambda publisher: publisher.publish_encoded([b"a", b"b"], first_id=TOO_HIGH - 1),
        *(
            lambda publisher, number=number: publisher.add_encoded([(number, b"a")])
            for number in (TOO_HIGH, 0, -1, True, 1.0)
        ),
        lambda publisher: publisher.add_encoded([(1, b"a"), (TOO_HIGH, b"a")]),
        lambda publisher: publisher.add_encoded([(1, b"a"), (2, "text")]),
    ],
)
@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_an_invalid_publishing_id_is_refused_before_anything_is_sent(
    servers: Servers, call: Callable[[StreamPublisher], object], target: dict[str, str]
) -> None:
    with StreamPublisher(FIRST, **target) as publisher:
        with pytest.raises(InvalidValue):
            call(publisher)
        assert publisher.totals.published == 0
        publisher.publish(b"a", "k")
        assert max(servers.stored) == 1
        assert publisher.totals.pending == 0


def test_the_highest_publishing_id_is_the_last(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        publisher.publish_many([b"a", b"b"], first_id=TOO_HIGH - 2)
        assert max(servers.stored) == TOO_HIGH - 1
        with pytest.raises(InvalidValue, match=f"first publishing id: got {TOO_HIGH}, expected an integer"):
            publisher.publish(b"c")
        np = pytest.importorskip("numpy")
        publisher.add_encoded([(np.uint64(5), b"a"), (np.uint64(6), b"a")])
        publisher.flush()
    assert servers.stored.keys() == {5, 6, TOO_HIGH - 2, TOO_HIGH - 1}


@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_keys_may_be_any_iterable(servers: Servers, target: dict[str, str]) -> None:
    with StreamPublisher(FIRST, **target) as publisher:
        publisher.publish_many(iter([b"a", b"b"]), (key for key in "xy"))
        assert max(servers.stored) == 2
        publisher.publish_many([b"c", b"d"], {"x": 1, "y": 2}.keys())
        assert max(servers.stored) == 4


def test_a_program_that_ends_says_how_many_messages_have_no_outcome(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    for silent, said in (
        (False, []),
        (True, ["the program ends while 2 messages of an open publisher have no outcome"]),
    ):
        servers.silent = silent
        publisher = StreamPublisher(FIRST, "events", timeouts=Timeouts(close=0.05 if silent else 60))
        publisher.open()
        publisher.add_encoded([(1, b"a"), (2, b"b")])
        at_exit.pop()()
        assert publisher.totals.pending == 0
        assert [record.message for record in caplog.records] == said


def test_the_error_of_the_block_is_raised_and_names_what_is_not_confirmed(servers: Servers) -> None:
    servers.silent = True
    publisher = StreamPublisher(FIRST, "events", timeouts=Timeouts(close=0.05))

    def body() -> None:
        with publisher:
            publisher.add_encoded([(1, b"a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        body()
    assert "no confirm of 1 message" in caught.value.__notes__[0]


def test_other_threads_are_refused_and_leave_the_publisher_as_it_was(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher, ThreadPoolExecutor(4) as pool:
        for call in (publisher.open, publisher.close, partial(publisher.publish, b"b"), publisher.flush):
            with pytest.raises(InvalidValue, match="use of StreamPublisher: got 'a call in a second thread'"):
                pool.submit(call).result()
        publisher.publish(b"a")
        assert max(servers.stored) == 1
    assert servers.stored.keys() == {1}


@pytest.mark.parametrize(
    "given", [{}, {"stream": "a", "exchange": "b"}, {"super_stream": "a", "exchange": "b"}]
)
def test_a_publisher_has_exactly_one_target(given: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match="expected exactly one of stream, super_stream and exchange"):
        StreamPublisher(FIRST, **given)


def test_a_timeout_that_streams_do_not_have_is_refused() -> None:
    with pytest.raises(
        InvalidValue, match="blocked timeout: got 5, expected none, because StreamPublisher only has"
    ):
        StreamPublisher(FIRST, "events", timeouts=Timeouts(blocked=5))
    with pytest.raises(
        InvalidValue, match="confirm timeout: got 5, expected none, because StreamReader only has"
    ):
        StreamReader(FIRST, "events", timeouts=Timeouts(confirm=5))


@pytest.mark.usefixtures("clock")
def test_connections_that_open_and_confirm_nothing_are_given_up_like_none(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise StreamUnavailable("the connection was lost", "lost")

    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=5)) as publisher:
        publisher.publish(b"a")
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "confirms", lost)
            with pytest.raises(PublishFailed, match="the connection was lost") as caught:
                publisher.publish(b"b")
        assert caught.value.may_have_arrived
        assert len(servers.opened) > 10
        publisher.publish(b"c")  # tries again


@pytest.mark.usefixtures("clock")
def test_losses_long_after_each_other_do_not_add_up(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=5)) as publisher:
        for number in range(1, 4):
            publisher.add_encoded([(number, b"a")])
            servers.close_connections()
            outlet.time.sleep(60)  # of the fixture
        publisher.flush()
        assert publisher.totals.confirmed == 3


def test_a_new_stream_that_does_not_answer_takes_no_time_from_the_others(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Connection.declare_publisher

    def hang(connection: Connection, stream: str, name: str | None) -> int:
        if stream != "events-2":
            return declared(connection, stream, name)
        time.sleep(max(connection.until - time.monotonic(), 0))
        raise StreamUnavailable("no answer to DeclarePublisher", "lost")

    monkeypatch.setattr(Connection, "declare_publisher", hang)
    keys = [str(number) for number in range(300)]
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        assert publisher.publish_many([], []).published == 0
        monkeypatch.setattr(Connection, "partitions", lambda _, name: [f"{name}-{n}" for n in range(3)])
        publisher._look_at = 0
        for _ in range(2):
            with pytest.raises(PublishFailed, match="no answer to DeclarePublisher") as caught:
                publisher.publish_many(map(str.encode, keys), keys, timeout=0.2)
            assert not caught.value.may_have_arrived
            failed = caught.value.failures
            assert {each.stream for each in failed} == {"events-2"}
            assert [keys[each.row] for each in failed] == [each.routing_key for each in failed]
            assert caught.value.totals.confirmed == 300 - len(failed)
            assert str(failed[0]).startswith(f"row {failed[0].row} unsent (stream 'events-2' with key '")
        monkeypatch.setattr(Connection, "declare_publisher", declared)
        assert publisher.publish_many(map(str.encode, keys), keys).confirmed == 300
        assert publisher.totals.published == 900


def test_failures_of_earlier_calls_are_not_those_of_a_call(servers: Servers) -> None:
    servers.silent = True
    with StreamPublisher(FIRST, "events") as publisher:
        for count in (3, 2):
            with pytest.raises(PublishFailed) as caught:
                publisher.publish_many([b"a"] * count, timeout=0)
            assert [each.row for each in caught.value.failures] == [*range(count)]
            assert caught.value.totals.failed == count
        servers.silent = False
        assert publisher.publish_many([]).published == 0
        assert publisher.publish_many([b"b"]).confirmed == 1


def test_the_totals_of_a_call_are_those_of_its_own_messages(servers: Servers) -> None:
    with StreamPublisher(FIRST, "events") as publisher:
        publisher.add_encoded([(1, b"a"), (2, b"b")])
        totals = publisher.publish_many([b"c"])
        assert (totals.published, totals.confirmed, totals.pending) == (1, 1, 0)
        assert publisher.totals.confirmed == len(servers.stored) == 3
        servers.silent = True
        publisher.add_encoded([(4, b"d")])
        with pytest.raises(StreamUnavailable, match="no confirm of 1 message"):
            publisher.publish_many([], timeout=0)


def test_a_client_that_was_connected_does_not_ask_whether_it_is_the_right_port(servers: Servers) -> None:
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


def test_each_wait_of_a_connection_ends_at_one_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and does not answer
        url = f"rabbitmq-stream://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(
            StreamUnavailable, match=r"did not answer PeerProperties within 0\.[12]\d* seconds"
        ):
            connect_until(began + 0.2, [url] * 3, timeout=PATIENCE)
        assert time.monotonic() - began < PATIENCE
