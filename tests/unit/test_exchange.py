"""From a message to its destination, on every release and for every part of a message that can be hashed."""

from __future__ import annotations

import enum
import pickle
from collections import ChainMap, OrderedDict, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

from rabbit_chx import (
    BrokerWouldFail,
    ConsistentHashExchange,
    Explanation,
    Field,
    Release,
    Ring,
    Unpredictable,
    Unroutable,
)
from rabbit_chx.errors import AmbiguousHeader
from rabbit_chx.mirror.kernel import Atom
from tests.unit.erlang import BARE, HEADER, ROUTING_KEYS, SEVEN, SIXTEEN, TYPED, exchange


def assert_lands(
    term, hash_: int, of_7: int, of_16: int, arguments: dict, message: dict, release: str
) -> None:
    for queues, bucket in ((SEVEN, of_7), (SIXTEEN, of_16)):
        got = exchange(queues, release, **arguments).route(**message, explain=True)
        assert (got.term, got.hash, got.bucket) == (term, hash_, bucket)
        assert got.destination == f"q{bucket}"
        assert got.buckets == len(queues)
        assert got.seed == hash_ % 2**21


# ---- the routing key


@pytest.mark.parametrize(("key", "hash_", "of_7", "of_16"), ROUTING_KEYS)
@pytest.mark.parametrize("release", ["3.8.35", "3.10.8", "4.3.6"])
def test_a_routing_key_lands_where_erlang_says(key, hash_: int, of_7: int, of_16: int, release: str) -> None:
    encoded = key if isinstance(key, bytes) else key.encode()
    for given in (key, encoded, bytearray(encoded)):
        assert_lands(encoded, hash_, of_7, of_16, {}, {"routing_key": given}, release)
        assert exchange(SEVEN, release).route(given) == f"q{of_7}"


# ---- properties


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
@pytest.mark.parametrize(
    ("value", "term", "hash_", "of_7", "of_16"),
    [
        ("m-1", b"m-1", 25543995, 6, 6),
        (b"m-1", b"m-1", 25543995, 6, 6),
        ("", b"", 13708901, 6, 9),  # an empty property is there, and is not a missing one
        (None, Atom("undefined"), 45914356, 1, 1),
    ],
)
@pytest.mark.parametrize("release", ["3.10.8", "4.3.6"])
def test_an_id_is_hashed_as_a_binary(name: str, value, term, hash_, of_7, of_16, release: str) -> None:
    assert_lands(term, hash_, of_7, of_16, {"hash_property": name}, {name: value}, release)


@pytest.mark.parametrize(
    ("value", "term", "hash_", "of_7", "of_16"),
    [
        (1_700_000_000, b"1700000000", 71065017, 5, 13),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), b"1700000000", 71065017, 5, 13),
        (datetime(2023, 11, 14, 22, 13, 20), b"1700000000", 71065017, 5, 13),  # noqa: DTZ001 - which is UTC
        (
            datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))),
            b"1700000000",
            71065017,
            5,
            13,
        ),
        (datetime(2023, 11, 14, 22, 13, 20, 999_999, tzinfo=UTC), b"1700000000", 71065017, 5, 13),
        (0, b"0", 107350362, 3, 3),
        (None, Atom("undefined"), 45914356, 1, 1),
    ],
)
@pytest.mark.parametrize("release", ["3.10.8", "4.3.6"])
def test_a_timestamp_is_hashed_as_the_text_of_its_seconds(value, term, hash_, of_7, of_16, release) -> None:
    assert_lands(term, hash_, of_7, of_16, {"hash_property": "timestamp"}, {"timestamp": value}, release)


@pytest.mark.parametrize("value", [b"raw", datetime(2023, 11, 14, tzinfo=UTC)])
def test_bytes_and_times_are_ambiguous_since_clients_for_node_send_objects(value) -> None:
    for release in ("3.10.8", "4.3.6"):
        x = exchange(SEVEN, release=release, **HEADER)
        with pytest.raises(AmbiguousHeader, match="name the client"):
            x.route(headers={"h": value})
        with pytest.raises(AmbiguousHeader, match="name the client"):
            x.route_many([value])
        assert x.route(headers={"h": value}, client="pika") in x.destinations


def test_aio_pika_makes_up_a_message_id_and_drops_an_empty_correlation_id() -> None:
    x = exchange(hash_property="message_id")
    for missing in (None, ""):
        with pytest.raises(Unpredictable, match="random"):
            x.route(message_id=missing, client="aio-pika")
        with pytest.raises(Unpredictable, match="random"):
            x.route_many(["m-1", missing], client="aio-pika")
    assert x.route(message_id="m-1", client="aio-pika") == "q6"
    by_correlation = exchange(hash_property="correlation_id")
    assert by_correlation.route(correlation_id="", client="aio-pika") == "q1"  # undefined
    assert by_correlation.route(correlation_id="", client="pika") == "q9"  # <<>>
    for column in (["", "m-1"], np.array(["", "m-1"]), pa.array(["", "m-1"]), iter(["", "m-1"])):
        assert by_correlation.bucket_many(column, client="aio-pika").tolist() == [1, 6]


# ---- headers


@pytest.mark.parametrize(("value", "client", "term", "hash_", "of_7", "of_16"), TYPED)
@pytest.mark.parametrize("release", ["3.10.8", "3.12.14"])
def test_up_to_3_12_a_header_is_hashed_with_its_type(
    value, client, term, hash_, of_7, of_16, release
) -> None:
    message = {"headers": {"h": value, "other": 1}, "client": client}
    assert_lands(term, hash_, of_7, of_16, HEADER, message, release)


@pytest.mark.parametrize(("value", "client", "term", "hash_", "of_7", "of_16"), BARE)
def test_from_3_13_on_the_bare_value_is_hashed(value, client, term, hash_, of_7, of_16) -> None:
    message = {"headers": {"h": value, "other": 1}, "client": client}
    assert_lands(term, hash_, of_7, of_16, HEADER, message, "4.3.6")


@pytest.mark.parametrize("release", ["3.10.8", "3.12.14", "3.13.7", "4.0.5", "4.3.6"])
@pytest.mark.parametrize("headers", [None, {}, {"other": "h"}, {"H": 1}, defaultdict(int)])
def test_a_message_without_the_header_is_routed_by_the_atom_undefined(release: str, headers) -> None:
    assert_lands(Atom("undefined"), 45914356, 1, 1, HEADER, {"headers": headers}, release)


@pytest.mark.parametrize("release", ["3.13.0", "3.13.3", "3.13.6"])
@pytest.mark.parametrize("queues", [["q0"], SEVEN])
def test_3_13_0_to_6_fail_on_a_missing_header_even_with_one_bucket(release: str, queues: list[str]) -> None:
    with pytest.raises(BrokerWouldFail, match=r"3\.13\.7"):
        exchange(queues, release, **HEADER).route(headers={})
    empty = ConsistentHashExchange(Ring(release=Release.parse(release)), **HEADER)
    with pytest.raises(Unroutable):  # but never with none
        empty.route(headers={})


@pytest.mark.parametrize("release", ["3.13.0", "3.13.7", "4.0.5", "4.2.9", "4.3.4"])
@pytest.mark.parametrize("value", [[], {}])
def test_3_13_to_4_3_4_fail_on_an_empty_list_unless_there_is_one_bucket(release: str, value) -> None:
    x = exchange(["q0", "q1"], release, **HEADER)
    for call in (lambda: x.route(headers={"h": value}), lambda: x.route_many([value])):
        with pytest.raises(BrokerWouldFail, match=r"4\.3\.5"):
            call()
    single = exchange(["q0"], release, **HEADER)
    assert single.route(headers={"h": value}) == "q0"
    assert single.route_many(["a", value]).tolist() == [0, 0]


def test_the_client_is_required_where_clients_differ() -> None:
    x = exchange(release="3.10.8", **HEADER)
    for call in (lambda: x.route(headers={"h": 1}), lambda: x.route_many(np.array([1]))):
        with pytest.raises(AmbiguousHeader, match=r"pika as \{signedint,1\}, aio-pika as \{byte,1\}"):
            call()
    assert x.route(headers={"h": 70_000}) in SIXTEEN  # on which all agree
    assert exchange(release="3.13", **HEADER).route(headers={"h": 1}) == "q3"
    for value in (0.1, [1], {"a": 1}, {"b": 1, "a": 2}):
        with pytest.raises(AmbiguousHeader):
            exchange(**HEADER).route(headers={"h": value})


class Table(dict):
    pass


class Tier(enum.IntEnum):
    GOLD = 5


class Name(str):
    __slots__ = ()


class Color(enum.StrEnum):
    RED = "acme"


@pytest.mark.parametrize(
    "headers",
    [
        MappingProxyType({"h": "acme"}),
        OrderedDict(h="acme"),
        ChainMap({}, {"h": "acme"}),
        Table(h="acme"),
        defaultdict(str, h="acme"),
        {"h": Name("acme")},
        {"h": Color.RED},
        {"h": np.str_("acme")},
        {Name("h"): "acme"},
    ],
    ids=lambda headers: type(headers).__name__,
)
def test_any_mapping_and_any_text_will_do(headers) -> None:
    assert exchange(SEVEN, **HEADER).route(headers=headers) == "q4"


@pytest.mark.parametrize("value", [Tier.GOLD, 5, Field("I", Tier.GOLD), Field("l", 5)])
def test_an_integer_of_a_subclass_is_used_unchanged(value) -> None:
    for column in ([value], [value, "text"]):
        assert exchange(SEVEN, **HEADER).bucket_many(column)[0] == 4
    got = exchange(SEVEN, **HEADER).route(headers={"h": value}, explain=True)
    assert (got.hash, got.bucket) == (5, 4)  # phash2(5) would be 5878562, and bucket 5


# ---- one bucket, and none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, {"routing_key": "a"}),
        (HEADER, {"headers": {"h": "a"}}),
        (HEADER, {"headers": None}),
        ({"hash_property": "message_id"}, {"message_id": None}),
        ({"hash_property": "timestamp"}, {"timestamp": 5}),
    ],
)
def test_with_one_bucket_nothing_is_hashed_and_with_none_nothing_is_routed(arguments, message) -> None:
    got = exchange(["only"], **arguments).route(**message, explain=True)
    assert (got.hash, got.seed, got.bucket, got.buckets, got.destination) == (None, None, 0, 1, "only")
    assert "a single bucket needs no hash" in str(got)
    empty = ConsistentHashExchange(Ring(), **arguments)
    assert empty.destinations == ()
    for call in (
        lambda: empty.route(**message),
        lambda: empty.route_many(["a"]),
        lambda: empty.bucket_many([]),
    ):
        with pytest.raises(Unroutable, match="mandatory"):
            call()


# ---- evidence, and the exchange as a value


def test_an_explanation_reads_from_the_message_to_the_destination() -> None:
    got = exchange(SEVEN).route("customer-42", explain=True)
    assert isinstance(got, Explanation)
    lines = str(got).splitlines()
    assert [line.split(":")[0] for line in lines] == ["hashed", "hash", "bucket", "destination"]
    assert '<<"customer-42">> (the routing key)' in lines[0]
    assert "66013791" in lines[1]
    assert f"{66013791 % 2**21}" in lines[1]
    assert lines[2].endswith("0 of 7")
    assert lines[3].endswith(" q0")


@pytest.mark.parametrize(
    ("arguments", "message", "said"),
    [
        (HEADER, {"headers": {}}, "undefined (the header 'h' is missing)"),
        (HEADER, {"headers": {"h": 5}}, "5 (an integer is its own hash)"),
        (HEADER, {"headers": {"h": "a"}, "client": "pika"}, "the header 'h' as pika encodes it"),
        ({"hash_property": "message_id"}, {"message_id": None}, "the property message_id is missing"),
        ({"hash_property": "timestamp"}, {"timestamp": 5}, "its seconds as text"),
    ],
)
def test_an_explanation_says_why(arguments: dict, message: dict, said: str) -> None:
    assert said in str(exchange(**arguments).route(**message, explain=True))


def test_an_exchange_shows_what_decides() -> None:
    shown = repr(ConsistentHashExchange({"q0": 1, "q1": 2}, release="4.0.5", hash_header="tenant"))
    assert shown == "ConsistentHashExchange({'q0': 1, 'q1': 2}, release='4.0.5', hash_header='tenant')"
    assert "hash_property='timestamp'" in repr(exchange(hash_property="timestamp"))


@pytest.mark.parametrize(
    "arguments", [{}, HEADER, {"hash_property": "message_id"}, {"hash_property": "timestamp"}]
)
def test_an_exchange_and_its_evidence_travel_to_other_processes(arguments: dict) -> None:
    x = exchange(SEVEN, **arguments)
    message = {"headers": {"headers": {"h": "a"}}, "timestamp": {"timestamp": 5}}.get(
        x._hash_on.part, {x._hash_on.part: "a"}
    )
    explained = x.route(**message, explain=True)  # which fills its caches
    x.route_many([5] if "timestamp" in message else ["a"])
    there = pickle.loads(pickle.dumps(x))
    assert there.route(**message, explain=True) == explained
    assert pickle.loads(pickle.dumps(explained)) == explained
    assert repr(there) == repr(x)


def test_another_ring_under_the_same_exchange() -> None:
    x = exchange(SEVEN, **HEADER)
    more = x.with_ring(x.ring.bind("q7"))
    assert more.hash_header == "h"
    assert len(more.ring) == 8
    assert len(x.ring) == 7
