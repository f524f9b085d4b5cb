"""A hashed header: every type that a client can send lands where the mirror says for that client."""

from __future__ import annotations

import math
import random

import aiormq
import amqp
import amqpstorm
import pika
import pyarrow as pa
import pytest

from rabbit_chx import BrokerWouldFail
from rabbit_chx.errors import AmbiguousHeader
from rabbit_chx.mirror.fields import CLIENTS, Field, encode
from tests.broker.parity import QUEUES, assert_bulk
from tests.broker.parity_clients import FAST, PUBLISHERS, Message
from tests.broker.parity_values import VALUES, random_value, sendable
from tests.proof import LONG

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: headers of every type", "the comparison fails on one message that lands elsewhere"
    ),
]

# How each client tells that the broker failed on a message.
INTERNAL_ERROR = {
    "pika": pika.exceptions.ConnectionClosedByBroker,
    "aio-pika": aiormq.exceptions.ConnectionInternalError,
    "py-amqp": amqp.exceptions.InternalError,
    "amqpstorm": amqpstorm.AMQPConnectionError,
}


def headers(values):
    return [Message(f"key {i}", {"h": value, "other": i}) for i, value in enumerate(values)]


@pytest.mark.parametrize("client", PUBLISHERS)
def test_a_value_of_every_type_lands_where_the_mirror_says_for_that_client(lab, client):
    rng = random.Random("headers")
    values = list(sendable([*VALUES, *(random_value(rng) for _ in range(1_500 if LONG else 500))], client))
    with lab.exchange(QUEUES, hash_header="h") as x:
        landed = x.check(headers(values), client)
        for value, queue in zip(values, landed, strict=True):
            try:
                assert x.mirror.route(headers={"h": value}) == queue, value
            except AmbiguousHeader:
                assert len({encode(value, each) for each in CLIENTS if list(sendable([value], each))}) > 1


def test_where_the_client_does_not_matter_all_clients_agree(lab):
    texts = [f"tenant {i} é" for i in range(1_000)]
    with lab.exchange(QUEUES, hash_header="h") as x:
        for client in FAST:
            landed = x.check(headers(texts), client)
            assert_bulk(x.mirror, (texts, pa.array(texts)), landed)


@pytest.mark.parametrize("client", PUBLISHERS)
def test_a_column_of_integers_lands_where_the_mirror_says(lab, client):
    rng = random.Random("integers")
    numbers = [rng.choice((1, -1)) * rng.getrandbits(rng.randint(1, 63)) for _ in range(1_000)]
    with lab.exchange(QUEUES, hash_header="h") as x:
        landed = x.check(headers(numbers), client)
        columns = numbers, pa.array(numbers), pa.array(numbers).to_numpy()
        assert_bulk(x.mirror, columns, landed, client)


@pytest.mark.parametrize("client", PUBLISHERS)
def test_a_missing_header_is_hashed_too_and_null_is_like_it_on_bare_releases(lab, client):
    with lab.exchange([f"q{i}" for i in range(13)], hash_header="h") as x:
        missing, null, none, empty = x.check(
            [Message("a", {"other": 1}), Message("b", {"h": None}), Message("c", None), Message("d", {})],
            client,
        )
        assert missing == none == empty
        assert (missing == null) is not lab.release.typed_headers


FIELDS = [
    Field("b", -5), Field("B", 200), Field("s", -300), Field("u", 60_000), Field("I", -70_000), Field("i", 2**32 - 1),
    Field("l", 5), Field("L", 5), Field("l", -(2**63)), Field("L", 2**63 - 1), Field("f", 0.5), Field("d", 0.1),
    Field("D", (0, 5)), Field("D", (255, -(2**31))), Field("T", 0), Field("T", 253402300799),
    Field("S", b"\xff"), Field("x", b"\xff"), Field("t", True), Field("t", False), Field("V"),
    Field("A", (Field("B", 1), Field("V"))), Field("A", (Field("F", ()),)),
    Field("F", (("n", Field("u", 1)), ("m", Field("T", 5)))), Field("F", (("", Field("A", ())),)),
]  # fmt: skip


def test_a_field_of_every_tag_lands_where_the_mirror_says_also_of_those_that_no_client_sends(lab):
    fields = FIELDS + [Field(tag, number) for tag in "bBsuIilL" for number in range(100)]
    fields += [Field("T", 10**9 + number) for number in range(100)]
    with lab.exchange(QUEUES, hash_header="h") as x:
        x.check([Message("", {"h": field}) for field in fields], "pika")


@pytest.mark.parametrize("client", PUBLISHERS)
@pytest.mark.parametrize("value", [[], {}], ids=["array", "table"])
def test_an_empty_list_is_hashed_or_fails_just_as_the_mirror_says(lab, client, value):
    with lab.exchange(QUEUES, hash_header="h") as x:
        if not lab.release.empty_list_fails:
            x.check(headers([value] * 3), client)
            return
        with pytest.raises(BrokerWouldFail):
            x.mirror.route(headers={"h": value}, client=client)
        with pytest.raises(INTERNAL_ERROR[client]):
            x.send(headers([value]), client)
        x.reconnect()
        x.check(headers(["the next message is routed"]), client)


@pytest.mark.parametrize("client", PUBLISHERS)
def test_with_one_bucket_nothing_is_hashed_and_nothing_fails(lab, client):
    with lab.exchange({"only": 1}, hash_header="h") as x:
        x.check([*headers([[], {}, None, "text", 5]), Message("", {}), Message("", None)], client)


@pytest.mark.parametrize("client", ["aio-pika", "py-amqp"])  # pika sends no floats
def test_a_float_that_erlang_lacks_fails_just_as_the_mirror_says(lab, client):
    with lab.exchange(QUEUES, hash_header="h") as x:
        for number in (math.nan, math.inf, -math.inf):
            with pytest.raises(BrokerWouldFail):
                x.mirror.route(headers={"h": number}, client=client)
            with pytest.raises(INTERNAL_ERROR[client]):
                x.send(headers([number]), client)
            x.reconnect()
        x.check(headers(["the next message is routed"]), client)
