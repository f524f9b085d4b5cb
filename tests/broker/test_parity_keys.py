"""Routing keys and weights: every message lands where the mirror says."""

from __future__ import annotations

import random

import pika
import pyarrow as pa
import pytest

from rabbit_chx import ConsistentHashExchange, InvalidValue, ToExchange, Unroutable
from tests.broker.parity import assert_bulk
from tests.broker.parity_clients import Message
from tests.proof import LONG

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: routing keys", "the comparison fails on one message that lands elsewhere"
    ),
]

# 40 buckets of uneven runs, so that a mistake in any of them shows.
QUEUES = {f"q{i}": weight for i, weight in enumerate([1, 5, 2, 1, 7, 3, 1, 1, 10, 2, 4, 3])}

MANY = 4_000 if LONG else 1_500

ALPHABETS = {
    "ascii": "".join(map(chr, range(128))),
    "utf-8": "aé߿ࠀ€\ufffd𐀀🐇\U0010ffff",  # one to four bytes each, with the borders
}


def texts(alphabet, count):
    """Random texts of 0 to 255 bytes, the empty one and the longest possible among them."""
    rng = random.Random(alphabet)
    characters = ALPHABETS[alphabet]
    keys = ["", *(c * (255 // len(c.encode())) for c in characters)]
    while len(keys) < count:
        room = rng.choice((8, 24, 255))
        key = "".join(rng.choices(characters, k=rng.randint(1, room)))
        keys.append(key.encode()[:room].decode(errors="ignore"))
    return keys


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize(("client", "count"), [("pika", MANY), ("aio-pika", MANY), ("py-amqp", 500)])
def test_a_text_lands_where_the_mirror_says_one_by_one_and_in_bulk(lab, client, count, alphabet):
    keys = texts(alphabet, count)
    with lab.exchange(QUEUES) as x:
        landed = x.check((Message(key) for key in keys), client)
        assert_bulk(x.mirror, (keys, pa.array(keys)), landed)


@pytest.mark.parametrize("client", ["pika", "py-amqp"])  # aio-pika sends no bytes
def test_raw_bytes_of_every_length_land_where_the_mirror_says(lab, client):
    rng = random.Random("bytes")
    keys = [rng.randbytes(length) for length in range(256) for _ in range(4)]
    with lab.exchange(QUEUES) as x:
        landed = x.check((Message(key) for key in keys), client)
        assert_bulk(x.mirror, (keys, pa.array(keys)), landed)


@pytest.mark.parametrize("buckets", [1, 2, 3, 16, 257, 1_000])
def test_rings_of_any_size_agree(lab, buckets):
    rng = random.Random(buckets)
    cuts = sorted(rng.sample(range(1, buckets), min(buckets - 1, 19)))
    weights = [end - start for start, end in zip([0, *cuts], [*cuts, buckets], strict=True)]
    with lab.exchange({f"q{i}": weight for i, weight in enumerate(weights)}) as x:
        assert len(x.mirror.ring) == buckets
        x.check((Message(f"customer-{i}") for i in range(600)), "pika")


def test_a_weight_is_a_text_that_erlang_reads_as_an_integer(lab):
    weights = {"q0": "+5", "q1": "007", "q2": "1", "q3": "0" * 254 + "3", "q4": "10"}
    with lab.exchange(weights) as x:
        lab.compare_rings({x.name: x.mirror.ring})
        assert len(x.mirror.ring) == 5 + 7 + 1 + 3 + 10
        x.check((Message(f"customer-{i}") for i in range(500)), "pika")


def test_a_weight_that_the_mirror_refuses_is_one_that_the_broker_refuses(lab):
    refused = ["0", "-1", "+0", "1.5", "1e3", "abc", "", " 1", "1 ", "1_0", "\uff11", "0x5"]
    if (lab.release.major, lab.release.minor, lab.release.patch) >= (
        4,
        2,
        6,
    ):  # earlier releases take any size, and can be killed by it
        refused.append("10001")
    with lab.exchange({"q0": 1}) as x:
        for weight in refused:
            with pytest.raises(InvalidValue):
                x.mirror.ring.bind("q1", weight)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
                x.bind("q1", weight)
            assert refusal.value.reply_code == 406, weight
            x.reconnect()
        lab.compare_rings({x.name: x.mirror.ring})


def test_an_exchange_without_buckets_returns_what_is_mandatory(lab):
    with lab.exchange({"q0": 1}) as x:
        x.bind("q0", "2")
        x.unbind("q0", "1")  # the ring loses the queue, though a binding of it is still listed
        mirror = ConsistentHashExchange(x.mirror.ring.bind("q0", 2).unbind("q0", 1))
        assert [binding.key for binding in mirror.ring.dead] == ["2"]
        with pytest.raises(Unroutable):
            mirror.route("customer-1")
        for client in ("pika", "aio-pika", "py-amqp"):
            assert x.send([Message("customer-1")] * 20, client) == [None] * 20


@pytest.mark.parametrize("client", ["pika", "aio-pika", "py-amqp"])
def test_cc_and_bcc_keys_move_no_message_and_bring_no_second_copy(lab, client):
    rng = random.Random("cc")
    copies = [{"CC": ["a"]}, {"BCC": ["b"]}, {"CC": ["c", "d"], "BCC": ["e"]}, {"CC": []}]
    with lab.exchange(QUEUES) as x:
        x.check((Message(f"customer-{i % 200}", rng.choice(copies)) for i in range(600)), client)
        x.check((Message("", headers) for headers in copies), client)


def test_a_destination_can_be_an_exchange(lab):
    bindings = {ToExchange("x1"): 3, "q1": 1, "x1": 2, ToExchange("x2"): 1, "q2": 4, ToExchange("x3"): 2}
    with lab.exchange(bindings) as x:
        lab.compare_rings({x.name: x.mirror.ring})
        for client in ("pika", "aio-pika"):
            landed = x.check((Message(f"customer-{i}") for i in range(600)), client)
            assert set(landed) == set(bindings)
