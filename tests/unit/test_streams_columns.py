"""Arrow batches have the same rows as messages that are decoded one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from rabbit_chx.errors import InvalidMessage, InvalidValue, StreamUnavailable
from rabbit_chx.streams import StreamBatch, StreamReader
from rabbit_chx.streams.messages.arrow.batch import COLUMNS, chosen, record_batches, schema
from rabbit_chx.streams.messages.chunks import parse_chunk
from spark_connector.columns import COLUMNS as SINK
from tests.stream_chunks import RECORDED, a_chunk, expected_rows, gzipped, moment, sized

TIME = 1_700_000_000_123


def table_of(chunk, columns=tuple(COLUMNS)) -> pa.Table:
    return pa.Table.from_batches(record_batches([chunk], columns), schema(columns))


def parsed(bodies, **more):
    return parse_chunk(a_chunk(map(sized, bodies), **{"time": TIME} | more), "orders")


@pytest.mark.parametrize("one", RECORDED, ids=str)
def test_a_recorded_chunk_has_the_rows_of_its_messages(one) -> None:
    chunk = parse_chunk(one.chunk, "orders")
    assert (chunk.type, chunk.records) == (0, len(one.messages))
    assert 1_790_000_000_000 < chunk.timestamp_ms < 1_800_000_000_000
    batch = table_of(chunk)
    batch.validate(full=True)
    assert batch.num_rows == len(one.messages) == chunk.end - chunk.first_offset
    assert batch.schema == schema()
    assert batch.to_pylist(maps_as_pydicts="strict") == expected_rows(chunk)


def test_columns_have_the_requested_order() -> None:
    batch = table_of(parsed([b"a", b"b"], offset=5), ["offset", "stream", "body", "stream_timestamp"])
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=TIME)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (5, "orders", b"a", time),
        (6, "orders", b"b", time),
    ]


def test_the_rows_before_a_chunk_that_cannot_be_read_come_before_the_error() -> None:
    """As `messages` yields them: whoever goes on behind the error has no others."""

    def chunks():
        for first in (0, 2):
            yield parsed([b"a", b"b"], offset=first)
        raise error

    error, found = StreamUnavailable("offsets 4 to 9 are lost", "truncated", "orders", 10), []
    with pytest.raises(StreamUnavailable) as raised:
        found.extend(record_batches(chunks(), ["offset"]))
    assert raised.value is error
    assert [batch.column("offset").to_pylist() for batch in found] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["body", "key"], "invalid column: got 'key', expected one of body, routing_key"),
        (["body"] * 2, "names without duplicates"),
    ],
)
def test_unknown_and_duplicate_columns_are_refused(columns, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        table_of(parsed([b"a"]), columns)


def test_text_is_no_list_of_columns() -> None:
    complaint = "invalid columns: got 'body', expected a list of names"
    with pytest.raises(InvalidValue, match=complaint):
        StreamReader("rabbitmq-stream://host", "s").read(0, 1, columns="body")
    with pytest.raises(InvalidValue, match=complaint):
        StreamBatch([parsed([b"a"])], first=0).arrow("body")
    assert chosen(None) == tuple(COLUMNS)
    assert chosen(["body"]) == ("body",)


def test_columns_are_those_of_the_sink_and_three_of_the_stream() -> None:
    """The sink can write the rows that were read."""
    assert list(COLUMNS)[-3:] == ["stream", "offset", "stream_timestamp"]
    assert set(COLUMNS) - {"stream", "offset", "stream_timestamp"} == (
        {column.name for column in SINK} - {"value"}
    ) | {"body"}


RANGES = [
    (0, None, range(10, 22)),
    (10, 22, range(10, 22)),
    (11, 21, range(11, 21)),
    (15, 16, range(15, 16)),
    (13, 18, range(13, 18)),
    (16, 16, range(0)),
    (22, None, range(0)),
    (0, 10, range(0)),
    (12, 5, range(0)),
]


@pytest.mark.parametrize(("start", "end", "offsets"), RANGES)
@pytest.mark.parametrize("most_rows", [1, 3, 100])
def test_each_offset_of_the_range_becomes_one_row(start, end, offsets, most_rows: int) -> None:
    chunks = [
        parsed([b"%d" % (offset + place) for place in range(3)], offset=offset) for offset in (10, 13, 16, 19)
    ]
    batches = list(record_batches(chunks, ["offset", "body"], start=start, end=end, most_rows=most_rows))
    rows = [(row["offset"], int(row["body"])) for batch in batches for row in batch.to_pylist()]
    assert rows == [(offset, offset) for offset in offsets]
    assert all(0 < batch.num_rows <= most_rows for batch in batches)


def test_holes_and_chunks_without_messages_are_skipped() -> None:
    tracking = parse_chunk(a_chunk([b"anything"], kind=1, records=0, offset=2), "orders")
    chunks = [parsed([b"a", b"b"]), tracking, parsed([b"c"], offset=9), parsed([], offset=10)]
    (batch,) = record_batches(chunks, ["offset", "body"])
    assert batch.to_pydict() == {"offset": [0, 1, 9], "body": [b"a", b"b", b"c"]}
    assert not list(record_batches([tracking]))
    assert table_of(tracking).num_rows == 0
    assert table_of(tracking).schema == schema()


def test_batches_end_at_the_requested_size() -> None:
    chunks = [parsed([b"x" * 1_000] * 10, offset=offset) for offset in range(0, 100, 10)]
    batches = list(record_batches(chunks, ["body"], most_bytes=25_000))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]


def test_decompressed_bytes_count_towards_the_size_of_a_batch() -> None:
    chunks = [parse_chunk(a_chunk([gzipped(bytes(10_000))], offset=offset), "s") for offset in range(7)]
    for most_bytes, count in ((25_000, 3), (0, 1)):
        batches = list(record_batches(chunks, ["offset", "body"], most_bytes=most_bytes))
        expected = [list(range(7))[at : at + count] for at in range(0, 7, count)]
        assert [batch["offset"].to_pylist() for batch in batches] == expected


def test_batches_own_their_data() -> None:
    """A connection may reuse its buffer for the next chunk."""
    data = bytearray(a_chunk([sized(b"abc")]))
    batch = table_of(parse_chunk(data, "s"), ["body"])
    data[:] = bytes(len(data))
    assert batch.to_pydict() == {"body": [b"abc"]}


@pytest.mark.parametrize(("section", "count"), [(0x70, 1), (0x70, 3), (0x73, 1), (0x73, 11)])
def test_a_list_with_bytes_after_its_last_item_is_refused(section: int, count: int) -> None:
    items = b"\x40" * (count + 1)
    message = b"\0\x53%c\xc0%c%c%b\0\x53\x75\xa0\x01x" % (section, len(items) + 1, count, items)
    for columns in (tuple(COLUMNS), ("body", "priority", "expiration", "timestamp", "app_id")):
        with pytest.raises(InvalidMessage, match=r"offset 2 .*: 1 bytes follow the last item of a list"):
            table_of(parsed([b"a", b"b", message, b"c"]), columns)


def test_times_outside_the_years_1_to_9999_are_null() -> None:
    def message(milliseconds: int) -> bytes:
        fields = b"\x40" * 9 + b"\x83" + milliseconds.to_bytes(8, "big", signed=True)
        return b"\x00Ss\xc0" + bytes([len(fields) + 1, 10]) + fields + b"\x00Su\xa0\x00"

    given = [
        2**63 - 1,
        -(2**63),
        253_402_300_800_000,
        253_402_300_799_999,
        -62_135_596_800_000,
        -62_135_596_800_001,
    ]
    found = table_of(parsed(map(message, given)), ["timestamp"])["timestamp"].to_pylist()
    assert found == [None, None, None, moment(given[3]), datetime(1, 1, 1, tzinfo=UTC), None]
