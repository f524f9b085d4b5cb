"""Laws of routing: one at a time and many at once agree, and whatever comes in, what comes out is an answer or
an error of this toolkit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given, strategies as st

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, RabbitChxError, SuperStream, ToExchange
from rabbit_chx.mirror.fields import CLIENTS
from rabbit_chx.mirror.kernel import jump_consistent_hash, phash2
from tests.property.strategies import ANYTHING, HEADER_VALUES, KEYS, MOMENTS, RELEASES, TEXT, weighted

RINGS = weighted(most=8, weights=20)
A_CLIENT = st.sampled_from([None, *CLIENTS])
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
"""NumPy takes zeros at the end of a text for padding."""

COLUMNS = {
    "list": list,
    "tuple": tuple,
    "generator": iter,
    "objects": lambda values: np.array([*values, None], object)[:-1],
    "numpy": lambda values: np.array(values) if values else np.array([], str),
    "arrow": lambda values: pa.array(values, None if values else pa.string()),
    "large": lambda values: pa.array(
        values, pa.large_string() if not values or isinstance(values[0], str) else None
    ),
    "chunked": lambda values: pa.chunked_array(
        [values[:2], values[2:]], pa.array(values).type if values else pa.string()
    ),
    "sliced": lambda values: (
        pa.array(["skipped", *values]).slice(1) if all(isinstance(v, str) for v in values) else values
    ),
}


def outcome(call) -> object:
    """The answer, or what kind of error of this toolkit came instead."""
    try:
        return call()
    except RabbitChxError as error:
        return type(error)


def one_by_one(exchange: ConsistentHashExchange, part: str, values, client) -> object:
    wrap = (lambda value: {"h": value}) if part == "headers" else (lambda value: value)
    return outcome(lambda: [exchange.route(**{part: wrap(value)}, client=client) for value in values])


def at_once(exchange: ConsistentHashExchange, column, client) -> object:
    return outcome(lambda: [exchange.destinations[i] for i in exchange.route_many(column, client=client)])


HASHED = {
    "routing_key": {},
    "headers": {"hash_header": "h"},
    "message_id": {"hash_property": "message_id"},
    "correlation_id": {"hash_property": "correlation_id"},
    "timestamp": {"hash_property": "timestamp"},
}


def agree(exchange: ConsistentHashExchange, part: str, values, columns, client=None) -> None:
    """Columns that hold the values route like the values one by one."""
    expected = one_by_one(exchange, part, values, client)
    for column in columns:
        assert at_once(exchange, column, client) == expected, (part, type(column))


@given(RINGS, st.sampled_from(RELEASES), st.lists(PLAIN, max_size=25), A_CLIENT)
def test_text_in_a_column_of_any_kind_routes_like_each_alone(bindings, release, texts, client) -> None:
    for part in ("routing_key", "headers", "message_id", "correlation_id"):
        exchange = ConsistentHashExchange(bindings, release=release, **HASHED[part])
        agree(exchange, part, texts, (column(texts) for column in COLUMNS.values()), client)


@given(RINGS, st.sampled_from(RELEASES), st.lists(KEYS, max_size=25))
def test_text_and_bytes_may_be_mixed(bindings, release, keys) -> None:
    exchange = ConsistentHashExchange(bindings, release=release)
    raw = [key if isinstance(key, bytes) else key.encode() for key in keys]
    agree(
        exchange,
        "routing_key",
        keys,
        [keys, raw, pa.array(raw, pa.binary()), pa.array(raw, pa.large_binary())],
    )


@given(RINGS, st.sampled_from(RELEASES), st.lists(HEADER_VALUES, max_size=8), A_CLIENT)
@example([("q0", 1)], "4.0.5", [[], {}], None)
@example([("q0", 1)], "3.13.0", [[], 0.0], None)
@example([("q0", 1), ("q1", 1)], "4.0.5", ["a", []], None)
@example([("q0", 1), ("q1", 1)], "3.13.0", [None], None)
def test_headers_of_every_type_route_like_each_alone(bindings, release, values, client) -> None:
    exchange = ConsistentHashExchange(bindings, release=release, hash_header="h")
    agree(exchange, "headers", values, (values, tuple(values), iter(values)), client)


INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)


@given(RINGS, st.sampled_from(RELEASES), INTEGERS, A_CLIENT)
def test_integers_route_like_each_alone(bindings, release, values, client) -> None:
    exchange = ConsistentHashExchange(bindings, release=release, hash_header="h")
    chunked = pa.chunked_array([values[:3], values[3:]], pa.int64())
    agree(exchange, "headers", values, (values, np.array(values), pa.array(values), chunked), client)


TIMES = st.lists(st.none() | st.integers(0, 2**64 - 1) | MOMENTS, max_size=10)


@given(RINGS, st.sampled_from(RELEASES), TIMES, A_CLIENT)
def test_timestamps_route_like_each_alone(bindings, release, values, client) -> None:
    exchange = ConsistentHashExchange(bindings, release=release, hash_property="timestamp")
    agree(exchange, "timestamp", values, (values, iter(values)), client)
    naive = [value.replace(tzinfo=None) for value in values if hasattr(value, "tzinfo")]
    columns = np.array(naive, "datetime64[us]"), pa.array(naive, pa.timestamp("us"))
    agree(exchange, "timestamp", naive, columns, client)


@given(st.lists(TEXT, max_size=20), st.integers(1, 9), st.sampled_from(["3.10.8", "4.3.6"]))
def test_modulus_hash_and_super_streams_route_many_like_each_alone(keys, count: int, release: str) -> None:
    modulus = ModulusHashExchange([f"q{i}" for i in range(count)], release=release)
    assert [modulus.destinations[i] for i in modulus.route_many(keys)] == [modulus.route(key) for key in keys]
    for flavor in ("official", "rstream"):
        stream = SuperStream([f"p{i}" for i in range(count)], flavor=flavor)
        assert [stream.partitions[i] for i in stream.route_many(keys)] == [stream.route(key) for key in keys]


@given(RINGS, KEYS)
def test_an_explanation_agrees_with_the_answer_and_with_itself(bindings, key) -> None:
    exchange = ConsistentHashExchange(bindings)
    got = exchange.route(key, explain=True)
    assert got.destination == exchange.route(key) == exchange.ring.bucket_map[got.bucket]
    assert got.buckets == sum(weight for _, weight in bindings)
    expected = jump_consistent_hash(phash2(got.term), got.buckets) if got.buckets > 1 else 0
    assert got.bucket == exchange.bucket_many([key])[0] == expected
    assert (got.hash is None) == (got.buckets == 1)


@given(RINGS, KEYS, st.sampled_from(RELEASES), st.sampled_from(RELEASES))
def test_a_routing_key_goes_the_same_way_on_every_release(bindings, key, one: str, other: str) -> None:
    first, second = (ConsistentHashExchange(bindings, release=release) for release in (one, other))
    assert first.route(key) == second.route(key)


# ---- whatever comes in


@given(ANYTHING, st.sampled_from(RELEASES), A_CLIENT, st.integers(1, 3))
def test_anything_as_a_message_gets_an_answer_or_an_error_of_this_toolkit(
    value, release, client, count: int
) -> None:
    queues = [f"q{i}" for i in range(count)]
    for part, arguments in HASHED.items():
        exchange = ConsistentHashExchange(queues, release=release, **arguments)
        outcome(lambda exchange=exchange, part=part: exchange.route(**{part: value}, client=client))
        outcome(lambda exchange=exchange: exchange.route_many(value, client=client))
        alone = one_by_one(exchange, part, [value], client)
        together = at_once(exchange, [value], client)
        if isinstance(value, str) and part == "headers":
            continue  # py-amqp alone sends lone surrogates in headers, which only a message alone may have
        assert alone == together, part


@given(ANYTHING, ANYTHING)
def test_anything_as_arguments_makes_an_exchange_or_an_error_of_this_toolkit(header, name) -> None:
    for argument in ("hash_header", "hash_property", "release", "store"):
        outcome(lambda argument=argument: ConsistentHashExchange(["q0", "q1"], **{argument: header}))
    outcome(lambda: ConsistentHashExchange(["q0"], hash_header=header, hash_property=name))
    outcome(lambda: ModulusHashExchange([(name, header)]))
    outcome(lambda: ModulusHashExchange(["q0"]).route(header, cc=name))
    outcome(lambda: SuperStream(header, flavor=name))
    outcome(lambda: SuperStream(["a"]).route(name))
    outcome(lambda: ToExchange(name))
