"""Any message that a stranger can store in a stream: AMQP 1.0 with values that AMQP 0-9-1, or RabbitMQ, does not have."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable
from typing import TypeAlias

from hypothesis import strategies as st

from rabbit_chx.streams import StreamConnection
from rabbit_chx.streams.protocol.answers import Command
from rabbit_chx.streams.protocol.requests import one_way
from tests.stream_chunks import sized

Batch: TypeAlias = tuple[int, int, int, bytes]
"""What a stream stores as one entry: compression (0: none, 1: gzip, 2: snappy, 3: lz4, 4: zstd), number of messages, size before compression,
and the data. In the data, each message follows its size (4 bytes)."""


def text(value: bytes) -> bytes:
    return b"\xb1" + struct.pack(">I", len(value)) + value


def symbol(value: bytes) -> bytes:
    """A symbol of AMQP 1.0, such as the name of an annotation."""
    return b"\xb3" + struct.pack(">I", len(value)) + value


def compound(section: int, kind: bytes, *items: bytes) -> bytes:
    """A section of AMQP 1.0 that is a list (0xD0) or a map (0xD1)."""
    return b"\0\x53%c" % section + value_of(kind, *items)


def a_map(section: int, values: dict[bytes, bytes], name: Callable[[bytes], bytes] = text) -> bytes:
    """A section of AMQP 1.0 that is a map."""
    return compound(section, b"\xd1", *(part for each in values for part in (name(each), values[each])))


def value_of(kind: bytes, *items: bytes) -> bytes:
    """A list or a map of AMQP 1.0."""
    joined = b"".join(items)
    return kind + struct.pack(">II", len(joined) + 4, len(items)) + joined


BODY = b"\0\x53\x75\xa0\x01x"
NULL = b"\x40"
TIMES = st.sampled_from([-(2**63), -1500, -1, 0, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1])
TEXTS = st.sampled_from(
    [b"", b"key", b"x" * 255, b"x" * 256, "\0\u00fc\u202e".encode(), b"\xff\xfe"]
) | st.text(max_size=9).map(str.encode)
SCALARS = st.one_of(
    st.just(NULL),
    st.sampled_from([b"\x41", b"\x42"]),
    st.integers(0, 2**64 - 1).map(lambda value: b"\x80" + struct.pack(">Q", value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: b"\x81" + struct.pack(">q", value)),
    TIMES.map(lambda value: b"\x83" + struct.pack(">q", value)),
    st.floats().map(lambda value: b"\x82" + struct.pack(">d", value)),
    st.sampled_from([math.nan, math.inf, -math.inf]).map(lambda value: b"\x72" + struct.pack(">f", value)),
    st.binary(min_size=16, max_size=16).map(lambda value: b"\x98" + value),
    st.binary(min_size=8, max_size=8).map(lambda value: b"\x84" + value),
    st.binary(max_size=9).map(lambda value: b"\xa0%c" % len(value) + value),
    st.sampled_from("a\u20ac").map(lambda value: b"\x73" + value.encode("utf-32-be")),
    TEXTS.map(text),
)


def nested(scalars: st.SearchStrategy[bytes], names: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Scalars, and lists and maps of them."""
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: value_of(b"\xd0", *items))
            | st.lists(st.tuples(names.map(text), inner), max_size=3).map(
                lambda pairs: value_of(b"\xd1", *(each for pair in pairs for each in pair))
            )
        ),
        max_leaves=6,
    )


VALUES = nested(SCALARS, TEXTS)
NAMES = st.sampled_from(
    [
        *(b"x-routing-key", b"x-exchange", b"x-basic-type", b"x-basic-app-id", b"x-death", b"x-delay", b"CC"),
        *(b"BCC", b"x-cc", b"x-stream-filter-value", b"x-delivery-count", b"x-rabbit-chx-parked-exchange"),
        *(b"x-rabbit-chx-hold", b"x-rabbit-chx-marker", b"x-opt-deaths", b"n" * 256),
    ]
)
LONG = st.sampled_from([text(b"x" * 300), text(b"x" * 200_000), text("\u20ac".encode() * 1_000)])
MAPS = st.dictionaries(NAMES | TEXTS, VALUES | LONG, max_size=4)
PROPERTIES = st.lists(st.just(NULL) | VALUES | LONG, max_size=13)
HEADERS = st.tuples(st.sampled_from([b"\x41", NULL]), SCALARS, SCALARS).map(
    lambda items: compound(0x70, b"\xd0", *items)
)


def sections(parts: tuple[bytes, dict[bytes, bytes], list[bytes], dict[bytes, bytes]]) -> bytes:
    """A message with these sections, and a body."""
    header, annotations, properties, application = parts
    return (
        header
        + a_map(0x72, annotations)
        + compound(0x73, b"\xd0", *properties)
        + a_map(0x74, application)
        + BODY
    )


MESSAGES = st.one_of(
    st.tuples(st.just(b"") | HEADERS, MAPS, PROPERTIES, MAPS).map(sections),
    st.tuples(st.just(b"") | HEADERS, MAPS, PROPERTIES, MAPS).map(lambda parts: sections(parts)[:-3]),
    VALUES.map(lambda value: b"\0\x53\x77" + value),
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda data: b"\0\x53" + data),
)
"""Messages with any headers and properties, and undecodable ones."""


def a_sub_batch(messages: list[bytes]) -> Batch:
    plain = b"".join(map(sized, messages))
    return 1, len(messages), len(plain), gzip.compress(plain)


def publish_entry(connection: StreamConnection, publisher: int, number: int, entry: bytes | Batch) -> None:
    if isinstance(entry, bytes):
        connection._publish(publisher, [number], [entry])
        return
    compression, count, size, data = entry
    head = struct.pack(">BiQBHII", publisher, 1, number, 0x80 | compression << 4, count, size, len(data))
    connection._calls.send(one_way(Command.PUBLISH, head, data))


BATCHES = st.one_of(
    st.lists(MESSAGES, min_size=1, max_size=4).map(a_sub_batch),
    st.tuples(
        st.integers(0, 7), st.integers(0, 9), st.sampled_from([0, 9, 64 << 20]), st.binary(max_size=40)
    ),
)
"""Sub-entry batches, of which many cannot be decompressed."""
