"""Messages of a queue as rows, with the columns and header texts of a read of streams."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pyarrow as pa
import pytest

from rabbit_chx import Field
from rabbit_chx.consuming import Message
from rabbit_chx.streams.messages.arrow.batch import HEADERS_AS_STRUCTS
from rabbit_chx.working.messages import Delivery
from spark_connector import RabbitMQDataSource
from spark_connector.columns import QUEUE_COLUMNS
from spark_connector.queues.options import QueueOptions
from spark_connector.queues.rows import partitions, record_batch, record_batches, rows
from spark_connector.reading.schema import arrow_schema, spark_schema
from tests.stream_messages import PROPERTIES
from tests.unit.complaints import complaint
from tests.wire import encoded_properties

URL = "amqp://user:CANARY@host:5673/vh"


def columns(*names: str, **others: pa.DataType) -> pa.Schema:
    """The schema of a read of these columns, and of others that the user declares with another type."""
    read = arrow_schema(spark_schema(names, QUEUE_COLUMNS), None, QUEUE_COLUMNS)
    return pa.schema([*read, *others.items()])


ALL = columns(*QUEUE_COLUMNS)


def message(body: bytes = b"x", **properties: object) -> Message:
    return Delivery(
        body,
        "key",
        queue="q",
        exchange="orders",
        redelivered=body == b"again",
        encoded=encoded_properties(**properties),
    )


def test_a_row_has_the_properties_that_the_publisher_set_and_null_for_others() -> None:
    full, empty = record_batch(
        [message(**PROPERTIES, headers={"a": "b"}), message(b"again")], ALL
    ).to_pylist()
    time = {"timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}
    fixed = {"routing_key": "key", "exchange": "orders"}
    assert full == PROPERTIES | time | fixed | {"value": b"x", "headers": [("a", "b")], "redelivered": False}
    nothing = dict.fromkeys(PROPERTIES)
    assert empty == {**nothing, **fixed, "value": b"again", "headers": [], "redelivered": True}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ü", "ü"),
        (b"\xff", "/w=="),
        (True, "true"),
        (-5, "-5"),
        (1.5, "1.5"),
        (None, None),
        (Decimal("1.5"), "1.5"),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "2023-11-14T22:13:20Z"),
        (Field("T", 1_700_000_000_000), "1700000000000000"),
        ([b"\xff", {"at": datetime(2023, 11, 14, tzinfo=UTC)}], '["/w==",{"at":"2023-11-14T00:00:00Z"}]'),
    ],
)
def test_header_values_become_text_and_in_an_array_of_structs_binary(value: object, text: str | None) -> None:
    sent = [message(headers={"h": value})]
    (row,) = record_batch(sent, columns("headers")).to_pylist()
    assert row == {"headers": [("h", text)]}
    (row,) = record_batch(sent, columns(headers=HEADERS_AS_STRUCTS)).to_pylist()
    stored = value if isinstance(value, bytes) else text and text.encode()
    assert row == {"headers": [{"key": "h", "value": stored}]}


def test_a_decimal_header_keeps_its_scale() -> None:
    encoded = encoded_properties(headers={"h": Decimal("1.5")})
    sent = encoded.replace(b"D\1\0\0\0\x0f", b"D\2\0\0\0\x96")  # 150 hundredths, which pika would shorten
    (row,) = record_batch([Delivery(b"", "key", queue="q", encoded=sent)], columns("headers")).to_pylist()
    assert row == {"headers": [("h", "1.50")]}


def test_a_timestamp_after_the_year_9999_is_null() -> None:
    found = record_batch([message(timestamp=each) for each in (2**63, 2**64 - 1, 0)], columns("timestamp"))
    assert found.column("timestamp").to_pylist() == [None, None, datetime(1970, 1, 1, tzinfo=UTC)]


def test_long_headers_are_divided_among_batches_and_not_kept() -> None:
    array = b"A" + struct.pack(">I", 100_000) + b"t\0" * 50_000
    encoded = struct.pack(">HI", 1 << 13, len(array) + 2) + b"\1h" + array
    messages = [Delivery(b"%d" % number, "key", queue="q", encoded=encoded) for number in range(40)]
    tracemalloc.start()
    try:
        batches = list(record_batches(messages, columns("value", "headers")))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 10_000_000  # the lists of all messages take 16 MB
    assert [batch.num_rows for batch in batches] == [11, 11, 11, 7]
    bodies = [body for batch in batches for body in batch.column("value").to_pylist()]
    assert bodies == [message.body for message in messages]
    assert batches[0].column("headers")[0].as_py() == [("h", "[" + "false," * 49_999 + "false]")]


SETS = [
    {},
    {"headers": {"a": 1}},
    {"headers": {"a": 2}, "priority": 0},
    {"message_id": "1"},
    {"message_id": "2"},
]


@pytest.mark.parametrize("order", [SETS, SETS * 3, SETS[3:], SETS[:1] * 2, SETS[1:2] * 3 + SETS[:1]])
def test_messages_together_become_the_rows_that_each_becomes_alone(order: list[dict[str, Any]]) -> None:
    encoded = [b"".join(pika.BasicProperties(**each).encode()) for each in order]
    messages = [
        Delivery(b"%d" % number, f"key {number}", queue="q", encoded=each)
        for number, each in enumerate(encoded)
    ]
    found = record_batch(messages, ALL).to_pylist()
    assert found == [row for one in messages for row in record_batch([one], ALL).to_pylist()]
    for row, each in zip(found, order, strict=True):
        headers = [(name, str(value)) for name, value in each.get("headers", {}).items()]
        assert [row[name] for name in ("headers", "message_id", "priority")] == [
            headers,
            each.get("message_id"),
            each.get("priority"),
        ]


@pytest.mark.parametrize(("count", "sizes"), [(1, [5]), (2, [2, 3]), (9, [1] * 5)])
def test_partitions_keep_the_order_of_the_rows(count: int, sizes: list[int]) -> None:
    found = partitions(
        [message(b"%d" % number) for number in range(5)], columns("value", "routing_key"), count
    )
    tables = [pa.Table.from_batches(rows(pickle.loads(pickle.dumps(one)))) for one in found]
    assert [table.num_rows for table in tables] == sizes
    assert [body for table in tables for body in table.column("value").to_pylist()] == [
        b"%d" % n for n in range(5)
    ]
    assert partitions([], columns("value"), count) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stream": "s"}, "got 'options stream and queue', expected one of them"),
        ({"startingoffsets": "earliest"}, "only writes or reads of streams have this option"),
        ({"routingkey": "k"}, "only writes or reads of streams have this option"),
        ({"prefetch": "5"}, "Use maxRowsPerTrigger"),
        ({"path": "x"}, "the option queue names the queue"),
        ({"subscribe": "x"}, "The option queue names the queue"),
        ({"startingOffsetsByTimestamp": '{"x": {"0": 5}}'}, "a queue has no offsets"),
        ({"endingTimestamp": "5"}, "a queue has no offsets"),
        ({"maxrowspertriger": "5"}, "Did you mean maxRowsPerTrigger?"),
        ({"maxrowspertrigger": "40000"}, "an integer from 1 to 32767"),
        ({"minpartitions": "0"}, "an integer from 1 to"),
        ({"queue": ""}, "the name of a queue"),
        ({"queue": "q" * 256}, "at most 255 bytes"),
    ],
)
def test_an_invalid_option_of_a_queue_is_an_error(change: dict[str, str], words: str) -> None:
    error = complaint(lambda: QueueOptions.of({"url": URL, "queue": "q", **change}))
    assert words in str(error)
    assert "CANARY" not in str(error)


def test_a_batch_read_of_a_queue_is_refused_with_a_hint() -> None:
    source = RabbitMQDataSource({"url": URL, "queue": "q"})
    error = complaint(lambda: source.reader(source.schema()))
    assert "expected spark.readStream. With trigger(availableNow=True)" in str(error)
