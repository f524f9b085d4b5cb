"""A hashed property: ids, timestamps, and messages without them."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta, timezone

import pika
import pyarrow as pa
import pytest

from rabbit_chx import InvalidValue, Unpredictable
from tests.broker.parity import QUEUES, assert_bulk
from tests.broker.parity_clients import PUBLISHERS, Message
from tests.proof import LONG

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: properties", "the comparison fails on one message that lands elsewhere"
    ),
]

IDS = ["message_id", "correlation_id"]


def texts(count):
    rng = random.Random("ids")
    fixed = ["0", "é" * 127, "🐇" * 63, "x" * 255]
    return [*fixed, *(f"{rng.getrandbits(128):032x}" for _ in range(count - len(fixed)))]


@pytest.mark.parametrize("client", PUBLISHERS)
@pytest.mark.parametrize("name", IDS)
def test_an_id_lands_where_the_mirror_says_one_by_one_and_in_bulk(lab, client, name):
    ids = texts(800 if LONG else 300)
    with lab.exchange(QUEUES, hash_property=name) as x:
        landed = x.check((Message(f"key {i}", **{name: text}) for i, text in enumerate(ids)), client)
        assert_bulk(x.mirror, (ids, pa.array(ids)), landed)


@pytest.mark.parametrize("name", IDS)
def test_an_id_of_raw_bytes_lands_where_the_mirror_says(lab, name):
    rng = random.Random("bytes")
    ids = [rng.randbytes(length) for length in range(1, 256)]
    with lab.exchange(QUEUES, hash_property=name) as x:
        x.check((Message("", **{name: raw}) for raw in ids), "pika")


@pytest.mark.parametrize("name", IDS)
def test_an_empty_id_is_not_a_missing_one_but_for_aio_pika(lab, name):
    with lab.exchange([f"q{i}" for i in range(13)], hash_property=name) as x:
        messages = [Message("a"), Message("b", **{name: ""})]
        for client in ("pika", "py-amqp"):
            missing, empty = x.check(messages, client)
            assert missing != empty
        if name == "correlation_id":
            assert x.check(messages, "aio-pika") == [missing, missing]
            return
        for message_id in (None, ""):  # a random one is sent in its place
            with pytest.raises(Unpredictable):
                x.mirror.route(message_id=message_id, client="aio-pika")
            assert len(set(x.send([Message(message_id=message_id)] * 60, "aio-pika"))) > 1


NUMBERS = [0, 1, 1_700_000_000, 2**31, 2**32 - 1]
MOMENTS = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 30, 45, 999_999, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 30, 45),  # noqa: DTZ001 - the client takes it for UTC
    datetime(2024, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-11))),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
]


@pytest.mark.parametrize("client", PUBLISHERS)
def test_a_timestamp_lands_where_the_mirror_says(lab, client):
    rng = random.Random("timestamps")
    stamps = [*NUMBERS, *(rng.getrandbits(32) for _ in range(500))]
    if client in ("aio-pika", "amqpstorm"):  # the others take whole seconds only
        stamps += MOMENTS
    with lab.exchange(QUEUES, hash_property="timestamp") as x:
        landed = x.check([Message(f"key {i}", timestamp=stamp) for i, stamp in enumerate(stamps)], client)
        assert_bulk(x.mirror, [stamps], landed)


@pytest.mark.parametrize("client", PUBLISHERS)
def test_a_missing_timestamp_lands_where_the_mirror_says(lab, client):
    with lab.exchange(QUEUES, hash_property="timestamp") as x:
        x.check([Message("a"), Message("b", {"h": 1}), Message("c", correlation_id="d")], client)


def test_a_moment_before_1970_is_refused_since_no_client_can_send_it(lab):
    before = datetime(1969, 12, 31, tzinfo=UTC)
    with lab.exchange(QUEUES, hash_property="timestamp") as x:
        for client, stamp in (("pika", -1), ("py-amqp", -1), ("aio-pika", before)):
            with pytest.raises(InvalidValue):
                x.mirror.route(timestamp=stamp, client=client)
            with pytest.raises((struct.error, OverflowError, pika.exceptions.StreamLostError)):
                x.send([Message(timestamp=stamp)], client)
