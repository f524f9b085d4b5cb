"""AMQP 1.0, MQTT and STOMP: messages land where the mirror says, or it says why it cannot predict them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

pytest.importorskip("proton", reason="the client for AMQP 1.0 was not built: there is no C compiler")

from rabbit_chx import InvalidValue, Unpredictable
from rabbit_chx.errors import AmbiguousHeader
from rabbit_chx.mirror.fields import PROTOCOLS, Field
from tests.broker.parity import QUEUES, assert_bulk, assert_same
from tests.broker.parity_clients import Message
from tests.broker.parity_protocols import TOPICS, Peers

pytestmark = [
    pytest.mark.broker,
    pytest.mark.newest_first,
    pytest.mark.proves(
        "Routing", "parity: AMQP 1.0, MQTT, STOMP", "the comparison fails on one message that lands elsewhere"
    ),
]

IDS = ["message_id", "correlation_id"]
RNG = random.Random("protocols")
TEXTS = ["", "é" * 60, "a:b c", *(f"{RNG.getrandbits(64):x}" for _ in range(200))]
NUMBERS = [0, 5, 2**63, 2**64 - 1, *(RNG.getrandbits(RNG.randint(1, 64)) for _ in range(200))]
INTEGERS = [*(RNG.choice((1, -1)) * RNG.getrandbits(RNG.randint(1, 63)) for _ in range(200))]
MOMENTS = [
    datetime(2024, 2, 29, tzinfo=UTC) + timedelta(milliseconds=RNG.getrandbits(40)) for _ in range(200)
]
RAW = [RNG.randbytes(length) for length in (1, 16, 255, 256, 3_000)]
UUIDS = [UUID(int=RNG.getrandbits(128)) for _ in range(100)]
FLOATS = [0.1, -1.5, 1e-300, *(RNG.gauss(0, 1e6) for _ in range(100))]


@pytest.fixture(scope="module")
def peers(lab):
    return Peers(lab)


def sent(scratch, peers, protocol, messages):
    """Publish, and return where every message landed."""
    if protocol == "mqtt":
        scratch.bind_to(TOPICS, "#")
    peers.publish(protocol, scratch.name, messages)
    scratch.lab.tally.messages[protocol] += len(messages)
    landed = peers.landed(scratch)
    return [landed.get(place) for place in range(len(messages))]


def check(lab, peers, protocol, messages, **arguments):
    """What the mirror says of every message, one by one and in bulk, is where it lands."""
    with lab.exchange(QUEUES, **arguments) as x:
        part = x.mirror._hash_on.part
        values = [getattr(message, part) for message in messages]
        expected = [x.mirror.route(**{part: value}, client=protocol) for value in values]
        landed = sent(x, peers, protocol, messages)
        assert_same(messages, expected, landed)
        column = [value["h"] for value in values] if part == "headers" and all(values) else values
        if part != "headers" or all(values):
            assert_bulk(x.mirror, [column], landed, protocol)
        return landed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_routing_key_lands_where_the_mirror_says(lab, peers, protocol):
    keys = [key for key in TEXTS if key] + ["a.b/c", "/a//b", "x" * 255]
    if protocol == "amqp10" and not lab.release.amqp10_in_core:
        with lab.exchange(QUEUES) as x, pytest.raises(Unpredictable, match="ASCII"):
            x.mirror.route("é", client=protocol)
        keys = list(filter(str.isascii, keys))
    check(lab, peers, protocol, [Message(key) for key in keys])


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("values", [TEXTS, NUMBERS, UUIDS, RAW], ids=["text", "ulong", "uuid", "binary"])
def test_an_id_of_amqp_1_0_lands_where_the_mirror_says(lab, peers, name, values):
    check(lab, peers, "amqp10", [Message("k", **{name: value}) for value in values], hash_property=name)


def test_what_stands_in_for_a_number_of_amqp_1_0_as_text_would_be_wrong(lab, peers):
    with lab.exchange(QUEUES, hash_property="message_id") as x:
        landed = sent(x, peers, "amqp10", [Message("k", message_id=number) for number in NUMBERS])
        as_text = [x.mirror.route(message_id=str(number), client="amqp10") for number in NUMBERS]
        assert sum(one != other for one, other in zip(landed, as_text, strict=True)) > 150
        with pytest.raises(InvalidValue, match="client='amqp10'"):
            x.mirror.route(message_id=NUMBERS[0])


@pytest.mark.parametrize("name", IDS)
def test_an_id_of_stomp_lands_where_the_mirror_says(lab, peers, name):
    check(lab, peers, "stomp", [Message("k", **{name: value}) for value in TEXTS], hash_property=name)


def test_correlation_data_of_mqtt_5_lands_where_the_mirror_says(lab, peers):
    urns = [text.encode() for uuid in UUIDS for text in (uuid.urn, uuid.urn + "0", str(uuid))]
    texts = [text.encode() for text in TEXTS]
    messages = [Message("t", correlation_id=value) for value in (*RAW, *texts, *urns)]
    if lab.release.has_mqtt5:
        check(lab, peers, "mqtt", messages, hash_property="correlation_id")
        return
    with lab.exchange(QUEUES, hash_property="correlation_id") as x, pytest.raises(InvalidValue):
        x.mirror.route(correlation_id=b"a", client="mqtt")


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_message_without_the_id_lands_where_the_mirror_says(lab, peers, protocol, name):
    check(lab, peers, protocol, [Message("k")], hash_property=name)


@pytest.mark.parametrize("protocol", ["amqp10", "stomp"])
def test_a_timestamp_lands_where_the_mirror_says(lab, peers, protocol):
    stamps = [1, 1_700_000_000, None, *(RNG.getrandbits(32) + 1 for _ in range(200))]
    if protocol == "amqp10":
        stamps += MOMENTS
    check(
        lab, peers, protocol, [Message("k", timestamp=stamp) for stamp in stamps], hash_property="timestamp"
    )


def test_the_timestamp_of_mqtt_is_up_to_the_broker(lab, peers):
    with lab.exchange(QUEUES, hash_property="timestamp") as x:
        assert len(set(sent(x, peers, "mqtt", [Message("t")] * 20))) == 1
        if lab.release.has_mqtt5:
            with pytest.raises(Unpredictable, match="expiry"):
                x.mirror.route(timestamp=None, client="mqtt")
        with pytest.raises(InvalidValue):
            x.mirror.route(timestamp=5, client="mqtt")


@pytest.mark.parametrize(
    "values",
    [TEXTS, [*INTEGERS, 2**63, 2**64 - 1], FLOATS, UUIDS, RAW, MOMENTS, [True, False, None]],
    ids=["text", "integer", "double", "uuid", "binary", "timestamp", "boolean"],
)
def test_an_application_property_of_amqp_1_0_lands_where_the_mirror_says(lab, peers, values):
    landed = check(
        lab, peers, "amqp10", [Message("k", {"h": value, "other": 1}) for value in values], hash_header="h"
    )
    assert lab.release.amqp10_in_core or len(set(landed)) == 1  # the plugin hides them from exchanges


def test_whole_floats_of_amqp_1_0_need_their_type(lab, peers):
    whole = [float(number) for number in range(50)]
    with lab.exchange(QUEUES, hash_header="h") as x:
        if not lab.release.amqp10_in_core:
            return
        doubles = [Message("k", {"h": Field("d", number)}) for number in whole]
        expected = [x.mirror.route(headers=one.headers, client="amqp10") for one in doubles]
        assert_same(doubles, expected, sent(x, peers, "amqp10", doubles))
        assert expected != [x.mirror.route(headers={"h": int(number)}, client="amqp10") for number in whole]
        with pytest.raises(AmbiguousHeader):
            x.mirror.route(headers={"h": 2.0}, client="amqp10")


@pytest.mark.parametrize("values", [TEXTS, INTEGERS], ids=["text", "integer"])
def test_a_header_of_stomp_lands_where_the_mirror_says(lab, peers, values):
    check(lab, peers, "stomp", [Message("k", {"h": value}) for value in values], hash_header="h")


def test_stomp_headers_that_become_properties_are_no_headers(lab, peers):
    with lab.exchange(QUEUES, hash_header="priority") as x:
        messages = [Message("k", {"priority": str(number)}) for number in range(10)]
        expected = [x.mirror.route(headers=one.headers, client="stomp") for one in messages]
        assert_same(messages, expected, sent(x, peers, "stomp", messages))


def test_a_user_property_of_mqtt_5_lands_where_the_mirror_says(lab, peers):
    if lab.release.has_mqtt5:
        check(lab, peers, "mqtt", [Message("t", {"h": text}) for text in TEXTS], hash_header="h")
        return
    with lab.exchange(QUEUES, hash_header="h") as x, pytest.raises(InvalidValue, match=r"3\.1\.1"):
        x.mirror.route(headers={"h": "a"}, client="mqtt")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_message_without_the_header_lands_where_the_mirror_says(lab, peers, protocol):
    check(lab, peers, protocol, [Message("k"), Message("k", {})], hash_header="h")
