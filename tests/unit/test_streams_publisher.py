"""`StreamPublisher`: what a call takes, refuses and returns."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rabbit_chx.errors import InvalidValue, PublishFailed, StreamUnavailable
from rabbit_chx.streams import (
    StreamPublisher,
    StreamReader,
    Timeouts,
    connect,
)
from tests.unit import stream_servers
from tests.unit.stream_servers import FIRST, SECOND, Connection, Servers

if TYPE_CHECKING:
    from collections.abc import Callable


clock, servers = stream_servers.clock, stream_servers.servers


@pytest.mark.parametrize("given", [[], "amqp://first/a/b", 7, [7]])
def test_addresses_of_streams_are_checked_like_those_of_any_client(given: Any) -> None:
    with pytest.raises(InvalidValue, match="invalid broker URL: got"):
        connect(given)


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
