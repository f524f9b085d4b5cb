"""The fast paths, for columns and for messages, return the same as `messages.decode`, for all messages."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given, strategies as st

from rabbit_chx.errors import CorruptChunk, InvalidMessage, MissingDependency
from rabbit_chx.messages.message_fields import PROPERTIES
from rabbit_chx.streams.messages.amqp10 import MAX_ITEMS
from rabbit_chx.streams.messages.arrow.batch import COLUMNS, record_batches
from rabbit_chx.streams.messages.chunks import parse_chunk, records_of
from rabbit_chx.streams.messages.message import decode
from rabbit_chx.streams.messages.stored import StoredMessage, Undecodable, stored_in
from tests.stream_chunks import RECORDED, a_chunk, expected_rows, sized

STORED = st.sampled_from([record for one in RECORDED for record in records_of(parse_chunk(one.chunk, "s"))])


# --- any message of AMQP 1.0 ---


def variable(short: int, long: int, data: bytes) -> st.SearchStrategy[bytes]:
    """Encode a value with a size of four bytes, or of one byte if it fits."""
    forms = [bytes([long]) + struct.pack(">I", len(data)) + data]
    if len(data) < 256:
        forms.append(bytes([short, len(data)]) + data)
    return st.sampled_from(forms)


texts = st.one_of(
    st.sampled_from([b"", b"key", "käse".encode(), b"\xff", b"/queues/a%20b", b"x" * 300, b"60000"]),
    st.text(max_size=10).map(str.encode),
)
strings = texts.flatmap(lambda text: variable(0xA1, 0xB1, text) | variable(0xA3, 0xB3, text))
binaries = texts.flatmap(lambda data: variable(0xA0, 0xB0, data))
NULL = b"\x40"
NUMBERS = """
41 42 5601 43 44 5207 5307 54ff 55ff 5002 5001 51ff 600007 700000ea60 7100000005
723f000000 800000000000000005 830000000000000005 837f7f7f7f7f7f7f7f 7300000061
9861616161616161616161616161616161 9461616161616161616161616161616161 00530141 45 846161616161616161
"""
"""Values of other types, in hexadecimal digits."""
numbers = st.sampled_from([bytes.fromhex(each) for each in NUMBERS.split()])
scalars = st.one_of(st.just(NULL), strings, binaries, numbers)


def joined(items: list[bytes], short: int, long: int) -> st.SearchStrategy[bytes]:
    data = b"".join(items)
    forms = [bytes([long]) + struct.pack(">II", len(data) + 4, len(items)) + data]
    if len(data) < 255 and len(items) < 256:
        forms.append(bytes([short, len(data) + 1, len(items)]) + data)
    return st.sampled_from(forms)


def lists(items: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[bytes]:
    return items.flatmap(lambda found: joined(found, 0xC0, 0xD0)) | st.just(b"\x45")


values = st.one_of(scalars, scalars, lists(st.lists(scalars, max_size=3)))
NAMES = [
    "x-routing-key",
    "x-exchange",
    "x-basic-type",
    "x-basic-app-id",
    "x-basic-delivery-mode",
    "x-basic-priority",
]
names = st.sampled_from([*NAMES, "x-basic-expiration", "x-one", "one", "two", "x-routing-kex"]).flatmap(
    lambda name: variable(0xA1, 0xB1, name.encode()) | variable(0xA3, 0xB3, name.encode())
)
pairs = st.lists(st.tuples(names | strings | scalars, strings | values), max_size=5)
maps = pairs.flatmap(lambda found: joined([each for pair in found for each in pair], 0xC1, 0xD1))
headers = lists(
    st.tuples(
        st.sampled_from([b"\x41", b"\x42", NULL, b"\x56\x01"]),
        st.sampled_from([b"\x50\x07", NULL, b"\x60\0\x07", b"\x41"]),
        st.sampled_from([b"\x70\0\0\xea\x60", b"\x52\x05", b"\x43", NULL, b"\xa1\x01x"]),
    ).flatmap(lambda items: st.integers(0, 3).map(lambda count: list(items)[:count]))
)
properties = lists(st.lists(strings | strings | values, max_size=14))
sections = {0x70: headers, 0x71: maps, 0x72: maps, 0x73: properties, 0x74: maps, 0x75: binaries, 0x77: values}


def section(code: int) -> st.SearchStrategy[bytes]:
    return sections[code].map(lambda value: b"\x00\x53" + bytes([code]) + value)


in_order = st.tuples(
    *(st.one_of(st.just(b""), section(code)) for code in (0x70, 0x71, 0x72, 0x73, 0x74))
).flatmap(lambda found: section(0x75).map(lambda body: b"".join(found) + body))
in_any_order = st.lists(st.sampled_from(list(sections)).flatmap(section), max_size=4).map(b"".join)
whole = st.one_of(in_order, in_order, in_order, in_any_order, STORED, STORED, st.binary(max_size=20))


@st.composite
def damaged(draw, messages=whole) -> bytes:
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(
            st.sampled_from([0, 1, 0x40, 0x45, 0xFF]) | st.integers(0, 255)
        )
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data)


def rows_of(chunks, columns=tuple(COLUMNS)):
    batches = list(record_batches(chunks, columns, most_rows=50))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def outcome(read):
    try:
        return read()
    except InvalidMessage as error:
        return str(error)


def in_chunks(messages: list[bytes], sizes: list[int]):
    """Split messages into chunks of these sizes, and one for the rest."""
    chunks, offset = [], 0
    for size in [*sizes, len(messages)]:
        part = messages[:size]
        messages = messages[size:]
        chunks.append(parse_chunk(a_chunk(map(sized, part), offset=offset), "s"))
        offset += len(part)
    return chunks


def check_binary_headers(chunks) -> None:
    """Binary headers are the stored bytes, or the text of the map."""
    texts = outcome(lambda: rows_of(chunks, ["headers"]))
    if isinstance(texts, str):
        return
    batches = list(record_batches(chunks, ["headers"], binary_headers=True, most_rows=50))
    for batch in batches:
        batch.validate(full=True)
    rows = [row["headers"] for batch in batches for row in batch.to_pylist()]
    assert [[one["key"] for one in row] for row in rows] == [list(row["headers"]) for row in texts]
    for row, expected in zip(rows, texts, strict=True):
        for one, text in zip(row, expected["headers"].values(), strict=True):
            if one["value"] is None or text is None:
                assert one["value"] is text is None
            else:
                assert text.encode() in {one["value"], base64.b64encode(one["value"])}


@given(st.lists(whole, max_size=12), st.lists(st.integers(0, 5), max_size=3))
def test_batches_have_the_rows_of_messages_decoded_one_by_one(
    messages: list[bytes], sizes: list[int]
) -> None:
    chunks = in_chunks(messages, sizes)
    assert outcome(lambda: rows_of(chunks)) == outcome(
        lambda: [row for each in chunks for row in expected_rows(each)]
    )
    check_binary_headers(chunks)


@given(st.lists(damaged(), min_size=1, max_size=6), st.sampled_from([*COLUMNS, None]))
def test_damaged_messages_have_the_same_rows_or_are_refused(
    messages: list[bytes], column: str | None
) -> None:
    """A column that does not need the damaged part of a message may have a value."""
    chunks = in_chunks(messages, [])
    columns = [column] if column else list(COLUMNS)
    try:
        found = rows_of(chunks, columns)
    except InvalidMessage as error:
        with pytest.raises(InvalidMessage):
            expected_rows(parse_chunk(a_chunk([sized(messages[error.offset])], offset=error.offset), "s"))
        return
    try:
        expected = [row for chunk in chunks for row in expected_rows(chunk)]
    except InvalidMessage:
        return
    assert found == [{name: row[name] for name in columns} for row in expected]


def contents(message):
    if type(message) is Undecodable:
        return str(message.error), message.body, message.offset, message.last
    properties = [getattr(message, name) for name in PROPERTIES]  # headers included
    found = (message.body, message.routing_key, message.exchange, properties)
    return repr((*found, message.queue, message.offset, message.stream_timestamp))  # NaN differs from itself


def decoded_alone(data: bytes, offset: int, max_items: int):
    try:
        return contents(decode(data, "s", offset, 1_700_000_000_000, max_items=max_items))
    except InvalidMessage as error:
        return str(error), data, offset, offset


@given(
    st.lists(damaged() | whole, min_size=1, max_size=6),
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from([0, 3, 10, 40, MAX_ITEMS]),
)
def test_messages_of_chunks_are_those_decoded_alone(
    messages: list[bytes], sizes: list[int], max_items: int
) -> None:
    """Many are searched together; an invalid one is found before a handler could ask for its properties."""
    many = messages * 12
    chunks = in_chunks(many, sizes)
    chunks = [chunk._replace(timestamp_ms=1_700_000_000_000) for chunk in chunks]
    found = list(stored_in(chunks, max_items=max_items))
    expected = [decoded_alone(data, offset, max_items) for offset, data in enumerate(many)]
    assert [contents(each) for each in found] == expected


BODY = b"\x00\x53\x75\xa0\x01x"


@pytest.mark.parametrize(
    "invalid",
    [
        pytest.param(b"\x00\x53\x70\xc0\x03\x01\x41\x41" + BODY, id="more items than the list says"),
        pytest.param(b"\x00\x53\x73\xc0\x03\x03\x40\x40" + BODY, id="fewer items than the list says"),
        pytest.param(b"\x00\x53\x73\xc0\x04\x01\xa1\x02a" + BODY, id="an item beyond its list"),
        pytest.param(b"\x00\x53\x73\xc0\x02\x01\x57" + BODY, id="an unknown constructor in a list"),
        pytest.param(b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x41\x41" + BODY, id="more items than the map says"),
        pytest.param(b"\x00\x53\x74\xc1\x04\x01\xa1\x01a" + BODY, id="a key without a value"),
        pytest.param(
            b"\x00\x53\x72\xc1\x06\x02\xa1\x01a\x57\x00" + BODY, id="an unknown constructor in a map"
        ),
        pytest.param(
            b"\x00\x53\x74\xc1\x09\x02\xa1\x01a\x73\0\0\xd8\0" + BODY, id="a character that does not exist"
        ),
        pytest.param(BODY + b"x", id="bytes after the body"),
        pytest.param(BODY[:-1], id="an incomplete body"),
    ],
)
def test_an_invalid_message_among_valid_ones_is_found(invalid: bytes) -> None:
    valid = b"\x00\x53\x70\xc0\x02\x01\x41" + BODY
    (chunk,) = in_chunks([valid] * 20 + [invalid] + [valid] * 20, [41])[:1]
    found = list(stored_in([chunk]))
    assert [each.offset for each in found if type(each) is Undecodable] == [20]
    assert [type(each) for each in found].count(StoredMessage) == 40


def test_most_messages_are_not_decoded_one_by_one() -> None:
    """Those of all recorded publishers but such with unusual contents; otherwise the comparisons above would show little."""
    found = [
        message
        for one in RECORDED
        for message in stored_in(
            [parse_chunk(a_chunk(map(sized, [*records_of(parse_chunk(one.chunk, "s"))] * 12)), "s")]
        )
    ]
    quick = sum(type(each) is StoredMessage for each in found)
    assert quick > 0.7 * len(found), (quick, len(found))


@given(st.data())
def test_damaged_chunks_have_the_same_rows_or_are_refused(data) -> None:
    one = data.draw(st.sampled_from([one for one in RECORDED if one.publisher in {"sub-entries", "streams"}]))
    entries = bytearray(one.chunk[48:])
    for _ in range(data.draw(st.integers(1, 3))):
        entries[data.draw(st.integers(0, len(entries) - 1))] = data.draw(st.integers(0, 255))
    count = struct.unpack_from(">H", one.chunk, 2)[0]
    chunk = parse_chunk(a_chunk([bytes(entries)], entries=count, records=len(one.messages)), "s")
    try:
        expected = expected_rows(chunk)
    except (CorruptChunk, InvalidMessage, MissingDependency):
        return
    assert len(expected) == len(one.messages)
    assert rows_of([chunk]) == expected
