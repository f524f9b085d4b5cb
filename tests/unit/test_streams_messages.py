"""Decode messages as three releases store them, and refuse invalid messages and values."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from rabbit_chx.errors import InvalidMessage, InvalidValue
from rabbit_chx.streams.messages.chunks import parse_chunk, records_of
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.messages.message import decode as decode_message
from tests.stream_chunks import RECORDED
from tests.stream_messages import MOMENT, RAW, SECONDS, Row, decode, expected_of

OF_0_9_1 = {(one.release, name): one for one in RECORDED if one.publisher == "0-9-1" for name in one.messages}
OF_STREAMS = {
    (one.release, name): one for one in RECORDED if one.publisher == "streams" for name in one.messages
}
OF_1_0 = {(one.release, name): one for one in RECORDED if one.publisher == "1.0" for name in one.messages}


def stored(one, name: str) -> bytes:
    chunk = parse_chunk(one.chunk, "s")
    return list(records_of(chunk))[one.messages.index(name)]


@pytest.mark.parametrize(("release", "name"), OF_0_9_1, ids=" ".join)
def test_messages_published_over_amqp_0_9_1_are_decoded(release: str, name: str) -> None:
    found = decode(stored(OF_0_9_1[release, name], name), "s", 0)
    assert found == expected_of(name, release, f"0-9-1-{release}")


ID = "00112233-4455-6677-8899-aabbccddeeff"
OF_AMQP_1_0 = {
    "data": Row(b"body"),
    "empty data": Row(b""),
    "long data": Row(b"x" * 300),
    "value text": Row("käse".encode()),
    "value null": Row(None),
    "value number": Row(b"5"),
    "value map": Row(b'{"a":1,"b":[true,null]}'),
    "value binary": Row(b"\x00\xff"),
    "sequence": Row(b'[1,"two"]'),
    "every property": Row(
        b"body",
        message_id="id-1",
        user_id="guest",
        type="kind",
        reply_to="answers",
        correlation_id="correlation",
        content_type="application/json",
        content_encoding="gzip",
        timestamp=MOMENT,
        app_id="app",
        delivery_mode=2,
        priority=7,
        expiration="60000",
    ),
    "numeric ids": Row(b"body", message_id="5", correlation_id="6"),
    "uuid ids": Row(b"body", message_id=ID, correlation_id=ID),
    "binary ids": Row(b"body", message_id="AP8=", correlation_id="AP8="),
    "application properties": Row(
        b"body",
        headers={
            "text": "käse",
            "long text": "x" * 300,
            "symbol": "sym",
            "binary": "AP8=",
            "true": "true",
            "false": "false",
            "null": None,
            "byte": "-5",
            "ubyte": "200",
            "short": "-300",
            "ushort": "60000",
            "int": "-70000",
            "small int": "5",
            "uint": "4000000000",
            "small uint": "5",
            "uint 0": "0",
            "long": "-5000000000",
            "small long": "5",
            "ulong": "18446744073709551615",
            "small ulong": "5",
            "ulong 0": "0",
            "float": "0.1",
            "double": "0.1",
            "timestamp": "2023-11-14T22:13:20.123Z",
            "uuid": ID,
            "char": "ä",
        },
    ),
    "annotations of RabbitMQ": Row(b"body", headers={"x-text": "a", "x-list": '[1,"b"]', "x-map": '{"c":1}'}),
    "annotations": Row(b"body", headers={"x-text": "a", "x-list": '[1,"b"]', "x-map": '{"c":1}', "own": "d"}),
} | {name: Row(raw) for name, raw in RAW.items()}


@pytest.mark.parametrize(("release", "name"), OF_STREAMS, ids=" ".join)
def test_messages_of_stream_clients_are_decoded(release: str, name: str) -> None:
    assert decode(stored(OF_STREAMS[release, name], name), "s", 0) == OF_AMQP_1_0[name]


@pytest.mark.parametrize(
    ("release", "name"), [(release, name) for release, name in OF_1_0 if release != "3.10"], ids=" ".join
)
def test_messages_published_over_amqp_1_0_are_decoded(release: str, name: str) -> None:
    found = decode(stored(OF_1_0[release, name], name), "s", 0)
    expected = replace(OF_AMQP_1_0[name], routing_key=f"1.0-{release}", exchange="")
    assert found == expected


@pytest.mark.parametrize("name", [name for release, name in OF_1_0 if release == "3.10"])
def test_release_3_10_converts_messages_published_over_amqp_1_0(name: str) -> None:
    """The plugin stores sections in headers such as ``x-amqp-1.0-properties``. Data becomes the body; other bodies remain encoded."""
    found = decode(stored(OF_1_0["3.10", name], name), "s", 0)
    assert found.type in {"binary", "amqp-1.0"}
    assert (found.type == "binary") == ("value" not in name and name != "sequence")
    if found.type == "binary":
        assert found.body == OF_AMQP_1_0[name].body


SYMBOL = b"\x00\xa3\x10amqp:data:binary"
FORMS = {
    "a symbol as descriptor": (SYMBOL + b"\xa0\x01x", b"x"),
    "a long descriptor": (b"\x00\x80" + bytes(7) + b"\x75\xa0\x01x", b"x"),
    "two sections of data": (b"\x00Su\xa0\x01a\x00Su\xb0\0\0\0\x01b", b"ab"),
    "two sequences": (b"\x00Sv\xc0\x03\x01T\x01\x00Sv\xc0\x03\x01T\x02", b"[1,2]"),
    "an array": (b"\x00Sw\xe0\x04\x02\x50\x01\x02", b"[1,2]"),
    "a described value": (b"\x00Sw\x00\xa3\x01x\xa1\x01y", b"y"),
    "an array of described values": (b"\x00Sw\xe0\x08\x02\x00\xa3\x01x\x50\x01\x02", b"[1,2]"),
    "a decimal": (b"\x00Sw\x74abcd", b"abcd"),
    "a footer": (b"\x00Su\xa0\x01a\x00Sx\xc1\x01\x00", b"a"),
    "another descriptor, so not AMQP": (b"\x00Sy\xa0\x01a", b"\x00Sy\xa0\x01a"),
    "two bytes": (b"\x00S", b"\x00S"),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_of_amqp_1_0_are_read(name: str) -> None:
    data, value = FORMS[name]
    assert decode(data, "s", 0).body == value


INVALID = {
    "no value": (b"\x00Su", "the data ends within a value"),
    "a body beyond the end": (b"\x00Su\xa0\x05x", "5 bytes exceeds the 1 remaining"),
    "half a size": (b"\x00Su\xb0\x00", "4 bytes exceeds the 1 remaining"),
    "an unknown constructor": (b"\x00Su\x99", "unknown constructor 0x99"),
    "text as data": (b"\x00Su\xa1\x01x", "section 0x75 has a value of the wrong type"),
    "bytes after the body": (b"\x00Su\xa0\x01xx", "byte 6 is 0x78, expected a section"),
    "an unknown section": (b"\x00Su\xa0\x01x\x00S\x01\x40", "unknown descriptor 1"),
    "a section that is a double": (
        b"\x00Su\xa0\x01x\x00\x82" + struct.pack(">d", 0x70) + b"\x40",
        r"unknown descriptor 112\.0",
    ),
    "a key without a value": (b"\x00St\xc1\x04\x01\xa1\x01x", "a key without a value"),
    "too few items": (b"\x00St\xc1\x02\x02\x40", "the data ends within a value"),
    "too many items": (b"\x00St\xc1\x03\x00\x40\x40", "2 bytes follow"),
    "nested too deeply": (b"\x00Sw" + b"\x00S\x01" * 100 + b"\x40", "nested more than 32 deep"),
    "an array of nothing": (b"\x00Sw\xf0\0\0\0\x05\xff\xff\xff\xff\x40", "has 4294967295 items"),
    "half a character": (b"\x00Sw\x73\x00\x00\xd8\x00", "not a Unicode character"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_amqp_1_0_is_refused_with_stream_and_offset(name: str) -> None:
    data, reason = INVALID[name]
    with pytest.raises(InvalidMessage, match=reason) as caught:
        decode(data, "orders", 5)
    assert str(caught.value).startswith(
        "invalid message at offset 5 of stream 'orders': not valid AMQP 1.0: "
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"routing_keys": ["a", "b", "c"]},
            "column routing key: got '3 rows', expected as many rows as bodies",
        ),
        ({"colour": "red"}, "invalid property: got 'colour'"),
        ({"headers": [{}, {"a": object()}]}, "invalid header a in row 1: got <object"),
        ({"headers": {"a": 2**63}}, "invalid header a: got 9223372036854775808, expected an integer"),
        ({"headers": {"a": [1]}}, r"invalid header a: got \[1\], expected None, bool, int, float, str"),
        ({"headers": [5, {}]}, "invalid headers in row 0: got 5, expected a mapping"),
        ({"priority": [0, -1]}, "invalid property priority in row 1: got -1"),
        ({"expiration": ["5", 5.0]}, "invalid property expiration in row 1: got 5.0"),
        ({"timestamp": 1.5}, "invalid property timestamp: got 1.5, expected an aware datetime"),
        ({"routing_keys": 5}, "invalid routing key: got 5"),
        ({"routing_keys": ["a", "x" * 256]}, "invalid routing key in row 1"),
        ({"message_id": "\ud800"}, "invalid property message_id"),
    ],
)
def test_values_that_cannot_be_encoded_are_refused(options, complaint) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        encode_messages([b"a", b"b"], **options)


def test_integers_of_numpy_are_encoded_as_those_of_python() -> None:
    given = {"priority": np.array([5], np.uint8), "delivery_mode": np.int64(2)}
    assert [*encode_messages([b""], **given)] == [*encode_messages([b""], priority=5, delivery_mode=2)]


def test_a_value_that_equals_an_earlier_one_of_another_type_is_checked_for_itself() -> None:
    assert [*encode_messages([b""], expiration=5)]
    with pytest.raises(InvalidValue, match=r"invalid property expiration: got 5\.0"):
        encode_messages([b""], expiration=5.0)


def test_header_values_keep_their_types() -> None:
    headers = {"text": "käse", "bytes": b"\xff", "true": True, "n": -5, "f": 0.1, "t": MOMENT, "none": None}
    (encoded,) = encode_messages(["body"], headers=headers, timestamp=MOMENT)
    found = decode_message(encoded, "s", 7, SECONDS * 1000)
    assert (found.headers, found.timestamp, found.body) == (headers, MOMENT, b"body")
    assert (found.offset, found.stream_timestamp, found.queue) == (7, MOMENT, "s")
