"""The other exchanges: the modulus hash, which is predictable to the last copy, and those that roll dice."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from rabbit_chx import AnyOf, ModulusHashExchange, RandomExchange, ToExchange
from tests.broker.parity import Scratch, assert_same
from tests.broker.parity_clients import Message

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: the modulus exchange", "the comparison fails on one message that lands elsewhere"
    ),
]

# Bound in this order, which is neither that of the names nor that of the keys.
BINDINGS = [
    ("q5", ""), ("q1", "b"), ("q10", "a"), ("q1", "a"), (ToExchange("x7"), "c"), ("q2", "ab"), ("q1", "é"),
    (ToExchange("q5"), "a"), ("q9", "1"), ("Q9", "zzz"), ("q9", "10"), ("q9", "2"),
]  # fmt: skip


@pytest.fixture
def modulus(lab):
    with Scratch(lab, "modulus") as scratch:
        scratch.declare("x-modulus-hash")
        for destination, key in BINDINGS:
            scratch.bind(destination, key)
        yield scratch


@pytest.mark.parametrize("client", ["pika", "aio-pika"])
def test_the_modulus_hash_lands_where_the_mirror_says_duplicates_included(lab, modulus, client):
    mirror = ModulusHashExchange(BINDINGS, release=lab.release)
    keys = ["", "é🐇", "x" * 255, *(f"customer-{i}" for i in range(1_500))]
    landed = modulus.send([Message(key) for key in keys], client)
    assert_same(keys, [mirror.route(key) for key in keys], landed)
    assert set(landed) == set(mirror.destinations)
    for column in (keys, pa.array(keys)):
        assert_same(keys, [mirror.destinations[i] for i in mirror.route_many(column)], landed)


def test_the_modulus_hash_takes_raw_bytes(lab, modulus):
    mirror = ModulusHashExchange(BINDINGS, release=lab.release)
    rng = random.Random("bytes")
    keys = [rng.randbytes(length) for length in range(256)]
    assert_same(keys, [mirror.route(k) for k in keys], modulus.send([Message(k) for k in keys], "pika"))


@pytest.mark.parametrize("client", ["pika", "aio-pika", "py-amqp"])
def test_the_modulus_hash_hashes_cc_and_bcc_along(lab, modulus, client):
    mirror = ModulusHashExchange(BINDINGS, release=lab.release)
    rng = random.Random("cc")
    copies = [{"CC": ["a"]}, {"BCC": ["b", ""]}, {"CC": ["c", "d"], "BCC": ["e"]}, {"CC": []}, {}]
    messages = [Message(f"customer-{i % 100}", rng.choice(copies)) for i in range(500)]
    expected = [
        mirror.route(m.routing_key, cc=m.headers.get("CC", ()), bcc=m.headers.get("BCC", ()))
        for m in messages
    ]
    assert_same(messages, expected, modulus.send(messages, client))


def test_bindings_that_come_and_go_leave_the_order_to_the_names(lab, modulus):
    bindings = list(BINDINGS)
    rng = random.Random("bindings")
    for step in range(30):
        gone = bindings.pop(rng.randrange(len(bindings)))
        modulus.unbind(*gone)
        if len(bindings) < 6:
            bindings += [(f"new{step}-{i}", rng.choice("abc")) for i in range(6)]
            for destination, key in bindings[-6:]:
                modulus.bind(destination, key)
        mirror = ModulusHashExchange(bindings, release=lab.release)
        keys = [f"customer-{step}-{i}" for i in range(40)]
        landed = modulus.send([Message(key) for key in keys], "pika")
        assert_same(keys, [mirror.route(key) for key in keys], landed)


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_a_random_exchange_sends_to_any_of_its_queues(lab, kind):
    if kind == "x-local-random" and lab.release.typed_headers:
        return  # came with 4.0
    queues = ["q0", "q1", "q2", "q3"]
    with Scratch(lab, "dice") as x:
        x.declare(kind)
        for queue in queues:
            x.bind(queue, "")
        landed = x.send([Message("always the same")] * 300, "pika")
        answer = RandomExchange(queues).route("always the same")
        assert answer == AnyOf(frozenset(queues))
        assert set(landed) == answer.destinations
