"""What an exchange is asked wrongly: each time an error that tells what, got, allowed and the way out."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from rabbit_chx import BrokerWouldFail, ConsistentHashExchange, Field, InvalidValue, Release, Ring
from tests.unit.complaints import complaint
from tests.unit.erlang import HEADER, SEVEN, exchange

# ---- routing keys and properties


@pytest.mark.parametrize("key", ["x" * 256, "é" * 128, b"x" * 256, "\U0001f600" * 64, "x" * 100_000])
def test_a_routing_key_has_at_most_255_bytes(key) -> None:
    length = len(key if isinstance(key, bytes) else key.encode())
    for call, what in (
        (lambda: exchange().route(key), "routing key"),
        (lambda: exchange().route_many([b"a", key]), "routing key in row 1"),
        (lambda: exchange(hash_property="message_id").route(message_id=key), "property message_id"),
    ):
        error = complaint(call)
        assert error.what == what
        assert f"({length} bytes)" in str(error.got)
        assert "255 bytes" in error.expected


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb"])
def test_lone_surrogates_cannot_be_sent(key: str) -> None:
    for call in (
        lambda: exchange().route(key),
        lambda: exchange().route_many([key]),
        lambda: exchange(hash_property="correlation_id").route(correlation_id=key),
    ):
        error = complaint(call)
        assert error.got == key
        assert "surrogate" in error.expected
        assert "bytes" in error.hint


@pytest.mark.parametrize("key", [None, 5, 1.5, True, ["a"], ("a",), memoryview(b"a"), object(), np.int64(1)])
def test_a_routing_key_is_text_or_bytes(key: object) -> None:
    for call in (lambda: exchange().route(key), lambda: exchange().route_many([key])):  # type: ignore[call-overload]
        assert complaint(call).expected == "str (sent as UTF-8) or bytes"


def test_one_bucket_is_no_licence_for_messages_that_cannot_be() -> None:
    # Or else an error shows up only when the second queue is bound.
    only = exchange(["only"])
    for bad in (None, 5, "x" * 256, "\ud800"):
        assert complaint(lambda bad=bad: only.route(bad)).what == "routing key"
        assert complaint(lambda bad=bad: only.route_many(["a", bad])).what == "routing key in row 1"


@pytest.mark.parametrize(
    "value", [-1, 2**64, 1.0, True, "1700000000", datetime(1969, 12, 31, tzinfo=UTC), timedelta(1)]
)
def test_what_no_timestamp_can_be_is_refused(value: object) -> None:
    x = exchange(hash_property="timestamp")
    assert complaint(lambda: x.route(timestamp=value)).got is value  # type: ignore[call-overload]
    assert "in row 1" in complaint(lambda: x.route_many([5, value])).what


# ---- headers


def test_huge_integers_are_what_no_client_can_send() -> None:
    x = exchange(**HEADER)
    assert x.route(headers={"h": 2**63 - 1}) == x.route(headers={"h": 2**21 - 1})
    for value in (2**63, -(2**63) - 1, 10**5_000):
        assert complaint(lambda value=value: x.route(headers={"h": value})).got == value
        assert complaint(lambda value=value: x.route_many([value])).got == value
    assert complaint(lambda: x.route_many(np.array([1, 2**63], np.uint64))).got == 2**63


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_float_that_erlang_lacks_is_not_given_a_queue(value: float) -> None:
    # py-amqp sends it, and the broker cannot read it.
    for queues in (["q0"], SEVEN):
        for header in (value, [value], {"a": value}):
            with pytest.raises((BrokerWouldFail, InvalidValue)):
                exchange(queues, **HEADER).route(headers={"h": header}, client="py-amqp")


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, 1j, range(3), lambda: 0, np.int64(1), np.array([1]), [object()], {"a": object()}],
)
def test_a_header_that_no_client_can_send_is_refused(value: object) -> None:
    for release in ("3.10.8", "4.3.6"):
        error = complaint(
            lambda release=release: exchange(release=release, **HEADER).route(headers={"h": value})
        )
        assert "encode" in error.expected
        assert "text" in error.hint


@pytest.mark.parametrize("client", [None, "pika", "aio-pika", "py-amqp", "amqplib"])
@pytest.mark.parametrize("release", ["3.10.8", "4.3.6"])
def test_a_header_that_contains_itself_is_refused(client, release: str) -> None:
    array: list[object] = []
    array.append(array)
    table: dict[str, object] = {}
    table["t"] = table
    for value in (array, table):
        x = exchange(release=release, **HEADER)
        error = complaint(lambda x=x, value=value: x.route(headers={"h": value}, client=client))
        assert (error.got is value, error.expected) == (True, "lists and dicts nested less deeply")


@pytest.mark.parametrize("client", [None, "pika"])
def test_however_deeply_a_header_is_nested_it_is_routed_or_refused(client) -> None:
    value: list[object] = []
    for depth in range(400):
        value = [value]
        if depth % 25 == 0:
            with suppress(InvalidValue):
                assert exchange(SEVEN, **HEADER).route(headers={"h": value}, client=client) in SEVEN


@pytest.mark.parametrize("headers", ["h", b"h", ["h"], [("h", 1)], 5, True, {"h"}])
def test_headers_are_a_mapping(headers: object) -> None:
    error = complaint(lambda: exchange(**HEADER).route(headers=headers))  # type: ignore[call-overload]
    assert (error.what, error.got) == ("headers", headers)


def test_the_name_of_a_header_is_text() -> None:
    error = complaint(lambda: exchange(**HEADER).route(headers={b"h": "acme"}))  # type: ignore[dict-item]
    assert error.got == b"h"
    assert exchange(SEVEN, **HEADER).route(headers={b"h": "other", "h": "acme"}) == "q4"  # type: ignore[dict-item]


@pytest.mark.parametrize("client", ["", "aio_pika", ["pika"]])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, {"routing_key": "a"}),
        ({"hash_property": "message_id"}, {"message_id": "a"}),
        (HEADER, {"headers": {}}),
        (HEADER, {"headers": {"h": Field("S", b"a")}}),
    ],
)
def test_an_unknown_client_is_refused(client, arguments: dict, message: dict) -> None:
    x = exchange(**arguments)
    for call in (lambda: x.route(**message, client=client), lambda: x.route_many(["a"], client=client)):
        error = complaint(call)
        assert error.what == "client"
        assert error.expected.startswith("pika, aio-pika, py-amqp, ")


# ---- parts of a message


@pytest.mark.parametrize(
    ("arguments", "message", "missing"),
    [
        ({}, {}, "routing_key"),
        ({}, {"headers": {"h": 1}}, "routing_key"),
        (HEADER, {}, "headers"),
        (HEADER, {"routing_key": "a"}, "headers"),
        ({"hash_property": "message_id"}, {"routing_key": "a"}, "message_id"),
        ({"hash_property": "timestamp"}, {"routing_key": "a", "message_id": "m"}, "timestamp"),
    ],
)
def test_the_hashed_part_is_required(arguments: dict, message: dict, missing: str) -> None:
    error = complaint(lambda: exchange(**arguments).route(**message))
    assert error.got == f"no {missing}"
    assert missing in error.hint


@pytest.mark.parametrize(
    ("arguments", "message", "needless"),
    [
        ({}, {"routing_key": "a", "headers": {"h": 1}}, "headers"),
        ({}, {"routing_key": "a", "message_id": None}, "message_id"),
        (HEADER, {"headers": {}, "message_id": "m"}, "message_id"),
        (HEADER, {"routing_key": "a", "headers": {}, "timestamp": 0}, "timestamp"),
        ({"hash_property": "message_id"}, {"message_id": "m", "correlation_id": "c"}, "correlation_id"),
        ({"hash_property": "timestamp"}, {"timestamp": 1, "headers": None}, "headers"),
    ],
)
def test_what_is_not_hashed_is_refused_lest_it_be_taken_for_hashed(arguments, message, needless: str) -> None:
    error = complaint(lambda: exchange(**arguments).route(**message))
    assert error.what == f"{needless} of the message"
    assert "since the exchange hashes" in error.expected


# ---- the exchange


def test_both_hash_arguments_are_refused_as_the_broker_refuses_them() -> None:
    error = complaint(lambda: exchange(hash_header="h", hash_property="message_id"))
    assert error.got == "both a header and a property"


@pytest.mark.parametrize(
    "name", ["app_id", "", "message-id", "MESSAGE_ID", "timestamp ", 5, True, [], b"message_id"]
)
def test_an_unsupported_property_is_refused(name: object) -> None:
    error = complaint(lambda: exchange(hash_property=name))
    assert (error.what, error.got) == ("property to hash", name)
    assert error.expected.startswith("message_id, correlation_id or timestamp")


@pytest.mark.parametrize("name", ["", 5, True, b"h", ["h"], "\ud800", "x" * 256])
def test_what_is_no_name_of_a_header_is_refused(name: object) -> None:
    assert complaint(lambda: exchange(hash_header=name)).what == "header to hash"


@pytest.mark.parametrize("bindings", [[], {}, (), iter([]), set()])
def test_no_queue_at_all_is_refused(bindings) -> None:
    error = complaint(lambda: ConsistentHashExchange(bindings))
    assert error.got == "no queue"
    assert "Ring()" in error.hint


@pytest.mark.parametrize("release", ["", "4.3.x", 4.3, 0, False])
def test_an_invalid_release_is_refused_and_no_release_means_the_newest(release) -> None:
    assert complaint(lambda: ConsistentHashExchange(["q0"], release=release)).what == "broker release"
    assert ConsistentHashExchange(["q0"], release=None).release == Release.parse("4.3")


@pytest.mark.parametrize("wrong", [{"release": "4.3"}, {"store": "khepri"}, {"release": ""}, {"store": ""}])
def test_an_exchange_has_the_release_of_its_ring(wrong: dict) -> None:
    ring = Ring.of(["q0"], release="3.10.8")
    assert str(ConsistentHashExchange(ring).release) == "3.10.8"
    error = complaint(lambda: ConsistentHashExchange(ring, **wrong))
    assert error.got == next(iter(wrong.values()))
