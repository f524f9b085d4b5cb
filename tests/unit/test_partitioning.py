"""Modulus hash, super streams and the exchanges of chance."""

from __future__ import annotations

import sys

import mmh3
import numpy as np
import pyarrow as pa
import pytest

from rabbit_chx import (
    AnyOf,
    ModulusHashExchange,
    RandomExchange,
    RingBinding,
    SuperStream,
    ToExchange,
    Unpredictable,
    Unroutable,
)
from rabbit_chx.errors import MissingDependency
from rabbit_chx.mirror.partitioning import HASHES, modulus_shares
from tests.unit.complaints import complaint
from tests.unit.erlang import KEY_LISTS, SORTED_BINDINGS

# ---- x-modulus-hash


@pytest.mark.parametrize(("keys", "hash_"), KEY_LISTS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_the_whole_list_of_routing_keys_is_hashed(keys: list[str], hash_: int, count: int) -> None:
    x = ModulusHashExchange([f"q{i:02}" for i in range(count)])
    key, *more = keys
    expected = f"q{hash_ % count:02}"
    assert x.route(key, cc=more) == expected
    assert x.route(key.encode(), bcc=[each.encode() for each in more]) == expected
    assert x.route(key, cc=more[:1], bcc=more[1:]) == expected
    assert x.route(key, cc=tuple(more)) == expected
    if not more:
        assert x.destinations[x.route_many([key])[0]] == expected


@pytest.mark.parametrize(
    "column", [list, tuple, iter, np.array, pa.array, lambda keys: (key for key in keys)], ids=range(6)
)
def test_many_keys_are_routed_at_once(column) -> None:
    x = ModulusHashExchange(["q0", "q1", "q2"])
    got = x.route_many(column(["a", "customer-42", "é"]))
    assert got.dtype == np.int32
    assert got.tolist() == [53691870 % 3, 113787224 % 3, 61451803 % 3]
    assert x.route_many([]).tolist() == []


def test_from_4_3_on_destinations_are_numbered_in_erlang_order_regardless_of_keys() -> None:
    resources = [
        *(ToExchange(name) for name in ("a", "zz")),
        *("B", "a", "b", "q", "q0", "q1", "q10", "q9", "z", "é", "\ufffd", "\U0001f600"),
    ]
    for shift in range(len(resources)):
        bindings = [(each, str(i)) for i, each in enumerate(resources[shift:] + resources[:shift])]
        assert list(ModulusHashExchange(bindings, release="4.3").destinations) == resources


@pytest.mark.parametrize(("release", "store"), [("3.10.8", None), ("4.0.5", None), ("4.2", "mnesia")])
def test_before_4_3_they_are_counted_by_key_and_then_by_destination(release: str, store: str | None) -> None:
    bindings = [(name if kind == "queue" else ToExchange(name), key) for key, kind, name in SORTED_BINDINGS]
    expected = [destination for destination, _ in bindings]
    for shuffled in (bindings[::-1], bindings[9:] + bindings[:9]):
        assert list(ModulusHashExchange(shuffled, release=release, store=store).destinations) == expected


def test_a_destination_bound_twice_counts_twice() -> None:
    bindings = [("q1", "a"), ("q0", "b"), ("q0", "c")]
    assert ModulusHashExchange(bindings).destinations == ("q0", "q0", "q1")
    assert ModulusHashExchange(bindings, release="3.10.8").destinations == ("q1", "q0", "q0")


@pytest.mark.parametrize(("release", "last"), [("4.3", "q1"), ("3.10.8", "q0"), ("4.2", "q0")])
def test_the_last_of_three_destinations_gets_one_hash_less(release: str, last: str) -> None:
    expected = {"q0": 2, "q1": 1}
    shares = modulus_shares([("q1", "a"), ("q0", "b"), ("q0", "c")], release)
    assert HASHES % 3 == 2
    assert {name: share * HASHES for name, share in shares.items()} == {
        name: count * (HASHES // 3 + 1) - (name == last) for name, count in expected.items()
    }


def test_bindings_that_differ_only_in_arguments_count_each() -> None:
    """Brokers of 3.10 and 4.3 routed 790 of 1,200 messages to a queue with two such bindings, and 410 to the other."""
    shares = modulus_shares([("q0", "k"), ("q0", "k"), ("q1", "k")])
    assert shares == pytest.approx({"q0": 2 / 3, "q1": 1 / 3})


@pytest.mark.parametrize(("release", "store"), [("3.13", "khepri"), ("4.0.5", "khepri"), ("4.2", None)])
def test_khepri_before_4_3_has_no_order_to_predict(release: str, store: str | None) -> None:
    with pytest.raises(Unpredictable, match=r"Khepri.*4\.3 or later"):
        ModulusHashExchange(["q0", "q1"], release=release, store=store)


@pytest.mark.parametrize("bindings", ["q0", b"q0", None, 5, {"q0": 1, "q1": 2}, ToExchange("x")])
def test_a_list_of_bindings_is_a_list_and_holds_no_weights(bindings) -> None:
    error = complaint(lambda: ModulusHashExchange(bindings))
    assert error.got is bindings
    assert "binding key" in error.expected


@pytest.mark.parametrize(
    "wrong", ["", 5, None, b"q0", "\ud800", "x" * 256, ("q0", "k", "more"), ["q0", "k"], RingBinding("q0")]
)
def test_what_is_no_binding_is_refused(wrong) -> None:
    assert complaint(lambda: ModulusHashExchange([wrong, "q1"])).got is wrong


@pytest.mark.parametrize("key", [5, None, "\ud800", "x" * 256])
def test_what_is_no_binding_key_is_refused(key) -> None:
    assert complaint(lambda: ModulusHashExchange([("q0", key)])).what == "binding key"


def test_an_exchange_without_bindings_routes_nothing() -> None:
    modulus = ModulusHashExchange([])
    for route in (modulus.route, lambda key: modulus.route_many([key]), RandomExchange([]).route):
        with pytest.raises(Unroutable, match="no binding"):
            route("a")


def test_one_binding_twice_is_refused() -> None:
    for twice in (["q0", "q0"], [("q0", "a"), ("q0", "a")], ["q0", ("q0", "")], [("q0", b"a"), ("q0", "a")]):
        assert complaint(lambda twice=twice: ModulusHashExchange(twice)).got == "one binding twice"


def test_keys_are_checked_wherever_they_come_from() -> None:
    x = ModulusHashExchange(["q0", "q1"])
    for bad in (None, 5, "\ud800", "é" * 128):
        for call in (
            lambda bad=bad: x.route(bad),
            lambda bad=bad: x.route("a", cc=[bad]),
            lambda bad=bad: x.route("a", bcc=["b", bad]),
            lambda bad=bad: x.route_many(["a", bad]),
        ):
            assert complaint(call).what.startswith("routing key")
    for bad in ("abc", b"abc", None, {"a": 1}):
        assert complaint(lambda bad=bad: x.route("a", cc=bad)).what == "cc"
        assert complaint(lambda bad=bad: x.route("a", bcc=bad)).what == "bcc"
        assert complaint(lambda bad=bad: x.route_many(bad)).what == "column"


# ---- super streams

# The table that the tests of the Java, Go and .NET clients share, for three partitions.
OFFICIAL = {
    "hello1": 1,
    "hello2": 0,
    "hello3": 1,
    "hello4": 2,
    "hello5": 0,
    "hello8": 1,
    "hello10": 2,
    "hello88": 1,
}


def test_a_super_stream_routes_as_the_official_clients_do() -> None:
    stream = SuperStream(["invoices-0", "invoices-1", "invoices-2"])
    assert {key: stream.route(key) for key in OFFICIAL} == {
        key: f"invoices-{partition}" for key, partition in OFFICIAL.items()
    }
    keys = list(OFFICIAL)
    for column in (keys, iter(OFFICIAL), np.array(keys), pa.array(keys), OFFICIAL.keys()):
        got = stream.route_many(column)
        assert got.dtype == np.int32
        assert got.tolist() == list(OFFICIAL.values())


def test_rstream_hashes_utf_16_with_a_byte_order_mark_to_128_bits() -> None:
    stream = SuperStream([str(i) for i in range(10)], flavor="rstream")
    for key in ("hello1", "", "é", "\U0001f600", "x" * 1_000):
        # as rstream 1.1.1 says it, HashRoutingMurmurStrategy.route
        digest = mmh3.hash_bytes(bytes(key, "UTF-16"), 104729)
        assert stream.route(key) == str(int.from_bytes(digest, "little", signed=False) % 10)


def test_the_order_of_partitions_counts() -> None:
    assert SuperStream(["b", "a", "c"]).route("hello1") == "a"
    assert SuperStream(["only"]).route("anything") == "only"


@pytest.mark.parametrize(
    "partitions",
    ["abc", b"abc", None, 5, [], ["a", "a"], ["a", 5], [None], {"a": 1}, [ToExchange("a")], [["a"]]],
)
def test_partitions_are_a_list_of_names_each_once(partitions) -> None:
    assert complaint(lambda: SuperStream(partitions)).what == "list of partitions"


@pytest.mark.parametrize("key", [None, 5, b"hello1", "\ud800", ["hello1"]])
@pytest.mark.parametrize("flavor", ["official", "rstream"])
def test_a_stream_key_is_text(key, flavor) -> None:
    stream = SuperStream(["a", "b"], flavor=flavor)
    for call in (lambda: stream.route(key), lambda: stream.route_many(["hello1", key])):
        error = complaint(call)
        assert (error.what, error.got) == ("key", key)
    assert complaint(lambda: stream.route_many("hello1")).what == "column"


@pytest.mark.parametrize("flavor", ["", "Official", "java", None, 1])
def test_an_unknown_flavor_is_refused(flavor) -> None:
    assert complaint(lambda: SuperStream(["a"], flavor=flavor)).expected == "official or rstream"


def test_without_murmur3_the_error_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mmh3", None)
    with pytest.raises(MissingDependency, match=r"pip install mmh3"):
        SuperStream(["a", "b"]).route("hello1")


# ---- chance


def test_where_only_chance_knows_the_answer_is_any_of() -> None:
    x = RandomExchange(["q1", "q0", ToExchange("e")])
    answer = x.route("whatever")
    assert answer == AnyOf(frozenset({"q0", "q1", ToExchange("e")})) == x.route()
    assert str(answer) == "any of exchange e, q0, q1"


@pytest.mark.parametrize("destinations", ["q0", None, {"q0": 1}, [""], [5], ["\ud800"]])
def test_a_random_exchange_needs_a_list_of_names(destinations) -> None:
    complaint(lambda: RandomExchange(destinations))


@pytest.mark.parametrize("key", [None, 5, "x" * 256])
def test_a_random_exchange_takes_no_key_that_cannot_be(key) -> None:
    assert complaint(lambda: RandomExchange(["q0"]).route(key)).what == "routing key"
