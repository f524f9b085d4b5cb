"""`StreamPublisher`: what a call takes, refuses and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rabbit_chx.errors import InvalidValue, PublishFailed, StreamUnavailable
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher, Timeouts
from rabbit_chx.streams.messages.encode import encode_message, encode_messages
from rabbit_chx.streams.protocol.answers import Confirms
from tests.patience import wait_until
from tests.unit import stream_servers
from tests.unit.stream_servers import FIRST, SECOND, Connection, lose

servers = stream_servers.servers


def test_a_write_of_spark_passes_its_addresses_and_timeouts(monkeypatch) -> None:
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


def test_the_check_of_an_exactly_once_write_asks_for_an_id_as_the_write_will(servers, monkeypatch) -> None:
    from spark_connector.writing.options import WriteOptions
    from spark_connector.writing.publishers import check_streams

    def refuse(*_: object) -> None:
        raise StreamUnavailable("no read permission", "permission", "events")

    monkeypatch.setattr(Connection, "query_publisher_sequence", refuse)
    given = {"url": FIRST, "stream": "events"}
    with pytest.raises(StreamUnavailable, match="no read permission"):
        check_streams(WriteOptions.of(given))
    check_streams(WriteOptions.of({**given, "exactlyOnce": "false"}))
    assert not servers.stored


LARGE = bytes(Connection.frame_max)


@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
@pytest.mark.parametrize(("count", "part"), [(4, "body"), (5_000, "body"), (5_000, "headers")])
def test_a_message_that_fits_into_no_frame_is_refused_before_anything_is_sent(
    servers, target: dict[str, str], count: int, part: str
) -> None:
    keys = [str(number) for number in range(count)]
    bodies = [b"1"] * (count - 2) + [LARGE if part == "body" else b"2", b"3"]
    headers = None if part == "body" else [{"n": 1}] * (count - 1) + [{"n": LARGE}]
    with StreamPublisher(FIRST, **target) as publisher:
        opened = publisher.totals.connections
        with pytest.raises(StreamUnavailable, match=r"a message of \d+ bytes does not fit") as caught:
            publisher.publish_many(bodies, keys, headers=headers)
        assert (caught.value.problem, caught.value.permanent) == ("frame too large", True)
        publisher.publish(b"next", "k")
        assert max(servers.stored) == 1
        totals = publisher.totals
    assert len(servers.stored) == 1
    assert (totals.published, totals.confirmed, totals.unknown, totals.resent) == (1, 1, 0, 0)
    assert totals.connections == opened


TOO_HIGH = 2**64


@pytest.mark.parametrize(
    "call",
    [
        *(
            lambda publisher, number=number: publisher.publish(b"a", "k", publishing_id=number)
            for number in (TOO_HIGH, TOO_HIGH + 5, 0, -1, True, 1.0, "1")
        ),
        lambda publisher: publisher.publish_many(
            [b"a"] * 3_000, "k", ids=range(TOO_HIGH - 2_999, TOO_HIGH + 1)
        ),
        lambda publisher: publisher.publish_many([b"a"], "k", ids=range(1)),
        lambda publisher: publisher.publish_many([b"a", b"b"], "k", ids=[1, TOO_HIGH]),
        lambda publisher: publisher.publish_many([b"a", b"b"], "k", ids=[2, 2]),
        lambda publisher: publisher.publish_many([b"a", b"b"], "k", ids=[2]),
        lambda publisher: publisher.publish_many([b"a", b"b"], "k", ids=[1, True]),
        lambda publisher: publisher.submit(b"a", "k", publishing_id=0),
        lambda publisher: publisher.bulk().add(b"a", "k", publishing_id=0),
    ],
)
@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_an_invalid_publishing_id_is_refused_before_anything_is_sent(
    servers, call: Callable[[StreamPublisher], object], target: dict[str, str]
) -> None:
    with StreamPublisher(FIRST, **target) as publisher:
        with pytest.raises(InvalidValue):
            call(publisher)
        assert publisher.totals.published == 0
        publisher.publish(b"a", "k")
        assert max(servers.stored) == 1
        assert publisher.totals.pending == 0


@pytest.mark.parametrize("target", [{"stream": "events"}, {"super_stream": "events"}])
def test_keys_may_be_any_iterable_and_ids_those_of_numpy(servers, target: dict[str, str]) -> None:
    with StreamPublisher(FIRST, **target) as publisher:
        publisher.publish_many([b"a", b"b"], (key for key in "xy"))
        publisher.publish_many(iter([b"c", b"d"]), {"x": 1, "y": 2}.keys())
        publisher.publish_many([b"e", b"f"], ["x", "y"], ids=np.array([7, 8], np.uint64))
    assert sorted(servers.stored) == [1, 2, 3, 4, 7, 8]


def test_a_missing_key_is_refused_before_anything_is_sent(servers) -> None:
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        with pytest.raises(InvalidValue, match="invalid routing key in row 2500"):
            publisher.publish_many([b"a"] * 3_000, ["k"] * 2_500 + [None] * 500)
        assert publisher.totals.published == 0


@pytest.mark.parametrize(
    "given", [{}, {"stream": "a", "exchange": "b"}, {"super_stream": "a", "exchange": "b"}]
)
def test_a_publisher_has_exactly_one_target(given: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match="expected exactly one of stream, super_stream and exchange"):
        StreamPublisher(FIRST, **given)


@pytest.mark.parametrize("name", ["", 7, "n" * 256])
@pytest.mark.parametrize("publisher", [StreamPublisher, AsyncStreamPublisher])
def test_an_invalid_name_is_refused_when_a_publisher_is_made(publisher: Any, name: Any) -> None:
    with pytest.raises(
        InvalidValue, match=r"invalid publisher name: .* expected text of 1 to 255 bytes in UTF-8"
    ):
        publisher(FIRST, "events", name=name)


@pytest.mark.parametrize("wrong", [{"priority": "high"}, {"colour": "red"}, {"headers": {"a": [1]}}])
def test_invalid_properties_of_all_messages_are_refused_when_a_publisher_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=f"{next(iter(wrong))}|header"):
        StreamPublisher(FIRST, "events", properties=wrong)


def test_failures_of_earlier_calls_are_not_those_of_a_call(servers) -> None:
    servers.silent = True
    with StreamPublisher(FIRST, "events") as publisher:
        for count in (3, 2):
            with pytest.raises(PublishFailed, match=r"unconfirmed after 0\.1 seconds") as caught:
                publisher.publish_many([b"a"] * count, timeout=0.1)
            assert [each.row for each in caught.value.failures] == [*range(count)]
            assert caught.value.may_have_arrived
            assert caught.value.totals.failed + caught.value.totals.pending == count
        servers.silent = False
        servers.tell()
        assert publisher.publish_many([]).published == 0
        assert publisher.publish_many([b"b"]).confirmed == 1


def test_each_row_that_is_not_confirmed_is_told_whatever_lot_it_was_in(servers, monkeypatch) -> None:
    """Of two streams and several lots, the server confirms each third message."""
    confirms = Connection._confirms

    def some(connection: Connection, timeout: float) -> Iterator[Confirms]:
        for found in confirms(connection, timeout):
            yield Confirms(0, tuple(number for number in found.publishing_ids if number % 3 == 0))

    monkeypatch.setattr(Connection, "_confirms", some)
    keys = [str(number) for number in range(2_500)]
    with StreamPublisher(FIRST, super_stream="events", timeouts=Timeouts(close=0.1)) as publisher:
        with pytest.raises(PublishFailed) as caught:
            publisher.publish_many([b"a"] * 2_500, keys, timeout=3)
        lost = [number for number in range(2_500) if (number + 1) % 3]
        assert [each.row for each in caught.value.failures] == lost
        assert [each.routing_key for each in caught.value.failures] == [keys[row] for row in lost]
        assert caught.value.may_have_arrived
        totals = caught.value.totals
        assert (totals.published, totals.confirmed, totals.pending) == (2_500, 833, 1_667)
    totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.unknown, totals.pending) == (2_500, 833, 1_667, 0)


def test_a_message_that_was_not_sent_can_be_withdrawn(servers) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(reconnect=60)) as publisher:
        publisher.publish(b"a")
        servers.down = {"first"}
        lose(publisher, servers)
        future = publisher.submit(b"b")
        assert future.cancel()
        wait_until(lambda: "first is down" in publisher._pipeline.outboxes[0].trouble, "an attempt fails")
        with pytest.raises(
            PublishFailed, match=r"withdrawn after 0\.1 seconds without a connection: first is down"
        ) as caught:
            publisher.publish(b"c", timeout=0.1)
        assert not caught.value.may_have_arrived
        servers.down = set()
        publisher.publish(b"d")
        totals = publisher.totals
    assert (totals.confirmed, totals.unsent) == (2, 2)


def test_a_row_before_which_all_are_confirmed_is_known(servers) -> None:
    with StreamPublisher(FIRST, "events", timeouts=Timeouts(close=0.05)) as publisher:
        bulk = publisher.bulk()
        bulk.add_many([b"a"] * 2_500)
        bulk.flush()
        assert bulk.confirmed_before == 2_500
        servers.silent = True
        bulk.add_many([b"a"] * 10)
        assert 1_000 <= bulk.confirmed_before <= 2_500


def test_what_the_encoder_of_one_message_returns_is_what_that_of_many_returns() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    for key, headers, properties in (
        (None, None, {}),
        (
            "key",
            {"a": 1, "b": "text", "c": None, "d": now},
            {"message_id": "m", "timestamp": now, "priority": 3},
        ),
        (
            b"\xff",
            {},
            {"content_type": "text/plain", "expiration": 60_000, "user_id": "guest", "delivery_mode": 2},
        ),
    ):
        one = encode_message("body", key, headers, properties)
        many = encode_messages(["body"], routing_keys=[key], headers=[headers], **properties)
        assert [one] == list(many)
