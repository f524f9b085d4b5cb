"""Options of a read: one source, positions as text, and errors with hints."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

import pyarrow as pa
import pytest

from spark_connector.connections import to_streams
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.positions import Positions
from spark_connector.reading.readers import StreamingReader
from spark_connector.reading.rows import ReadJob
from spark_connector.writing.options import WriteOptions
from tests.unit.complaints import complaint

URL = "amqp://user:CANARY@host:5673/vh"
VALUES = pa.schema({"value": pa.binary()})
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def of(**given: str) -> ReadOptions:
    return ReadOptions.of(
        {"url": URL, **({} if {"superStream", "exchange"} & set(given) else {"stream": "s"}), **given}
    )


def test_names_are_lists_and_a_json_list_can_contain_commas() -> None:
    assert of(stream="a, b,c").stream == ("a", "b", "c")
    for json in ('["a,b", " c "]', ' ["a,b", " c "]\n'):
        assert of(stream=json).stream == ("a,b", " c ")
    assert of(columns="value,offset").columns == ("value", "offset")
    assert of(superStream="x", keys='["k,1"]').keys == ("k,1",)
    for text in ("", "a,,b", "a,a", "[]", "[1]", '["a"', '["a", "a"]', '["a", ""]', "[" * 100_000):
        assert "separated by commas" in complaint(lambda text=text: of(stream=text)).expected


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31 13:00+01:00", NOON),
    ],
)
def test_one_position_applies_to_every_stream(text: str, position: object) -> None:
    positions = of(startingOffsets=text).starting_offsets
    assert positions is not None
    assert positions.of("any") == position
    positions.check_streams(["s0", "s1"])


def test_json_gives_a_position_to_each_stream() -> None:
    text = '{"s0": 5, "s1": "EARLIEST", "s2": "2026-01-31T12:00:00Z", "s3": 0}'
    positions = of(startingOffsets=text).starting_offsets
    assert positions == Positions(by_stream={"s0": 5, "s1": "earliest", "s2": NOON, "s3": 0})
    positions.check_streams(["s0", "s1", "s2", "s3"])
    error = complaint(lambda: positions.check_streams(["s0", "s1", "s2", "s3", "s4"]))
    assert (error.expected, error.hint) == ("s4 as well", 'Add "s4": "earliest", for example')
    error = complaint(lambda: positions.check_streams(["s0", "s1", "s22", "s3"]))
    assert (error.got, error.hint) == ("s2", "Did you mean s22? Known names: s0, s1, s22, s3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "earliest, latest, a time"),
        ("5", 'For one offset in each stream: {"STREAM": 5}'),
        ("soon", "earliest, latest, a time"),
        ("20260131", "For one offset"),
        ("2026-01-31T12:00:00", "For UTC: 2026-01-31T12:00:00Z"),
        ("2026-01-31", "For UTC: 2026-01-31T00:00Z"),
        ("{", "The JSON is invalid"),
        ("{" * 100_000, "The JSON is invalid"),
        ('{"a":' * 100_000, "nested too deeply"),
        (f'{{"s": {"9" * 5_000}}}', "4300 digits"),
        ('{"s": -1}', '"earliest" and "latest" here'),
        ('{"s": 1.5}', "an offset of 0 or more"),
        ('{"s": true}', "an offset of 0 or more"),
        ('{"s": {"0": 1}}', "an offset of 0 or more"),
        ('{"s": 9223372036854775808}', "an offset of 0 or more"),
        ('{"s": 1, "s": 2}', "each stream once"),
    ],
)
def test_an_invalid_position_is_an_error_that_names_the_option(text: str, words: str) -> None:
    error = complaint(lambda: of(startingOffsets=text))
    assert "startingOffsets" in error.what
    assert words in str(error)


def test_a_read_cannot_end_at_earliest() -> None:
    for text in ("earliest", '{"s": "earliest"}'):
        assert "no rows" in complaint(lambda text=text: of(endingOffsets=text)).hint
    assert of(endingOffsets='{"s": 7}').ending_offsets == Positions(by_stream={"s": 7})


def test_a_read_has_one_source() -> None:
    error = complaint(lambda: ReadOptions.of({"url": URL}))
    assert error.expected == "one of the options stream, superStream, exchange, queue"
    assert 'option("superStream", "orders")' in error.hint
    error = complaint(lambda: of(superStream="x", exchange="y"))
    assert error.got == "options superStream and exchange"
    assert complaint(lambda: ReadOptions.of({"stream": "s"})).what == "broker address"
    for name in ("superStream", "exchange"):
        assert "255 bytes" in complaint(lambda name=name: of(**{name: "x" * 256})).expected


def test_a_read_without_positions_starts_where_the_caller_says_and_ends_at_latest() -> None:
    assert (of().start("earliest"), of().end) == (Positions("earliest"), Positions("latest"))
    both = of(startingOffsets='{"s": 5}', endingOffsets="2026-01-31T12:00:00Z")
    assert (both.start("earliest"), both.end) == (Positions(by_stream={"s": 5}), Positions(NOON))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"steam": "CANARY-2"}, "Did you mean stream?"),
        ({"maxInFlight": "5"}, "reads of streams do not have this option"),
        ({"subscribe": "x"}, "Use stream or superStream"),
        ({"assign": '{"x": [0]}'}, "Use stream or superStream"),
        ({"kafka.bootstrap.servers": "h:9092"}, "Use url, such as amqp://user@host"),
        ({"startingTimestamp": "5"}, "Use startingOffsets, which also takes times"),
        ({"endingTimestamp": "5"}, "Use endingOffsets, which also takes times"),
        ({"startingOffsetsByTimestamp": '{"x": {"0": 5}}'}, "Use startingOffsets"),
        ({"minOffsetsPerTrigger": "5"}, "Use trigger(processingTime=...)"),
        ({"kafka.group.id": "x"}, "each query keeps its offsets in its checkpoint"),
        ({"path": "x"}, "without a path"),
        ({"minPartitions": "0"}, "from 1"),
        *(({"maxRowsPerTrigger": text}, "an integer from 1") for text in ("0", '{"s": 5}', str(2**63))),
        ({"managementUrl": "http://u:CANARY@h"}, "the option exchange as well"),
        ({"keys": "a"}, "where(\"routing_key in ('a')\")"),
    ],
)
def test_invalid_options_are_errors_with_hints(given: dict[str, str], words: str) -> None:
    error = complaint(lambda: of(**given))
    assert words in str(error)
    assert "CANARY" not in str(error)


def test_some_options_are_only_for_batch_or_only_for_streaming_reads() -> None:
    assert "a streaming read" in complaint(lambda: ReadOptions.check_batch(["maxRowsPerTrigger"])).expected
    assert "availableNow" in complaint(lambda: ReadOptions.check_stream(["endingoffsets"])).hint
    ReadOptions.check_batch(["endingOffsets"])
    ReadOptions.check_stream(["maxRowsPerTrigger"])


def test_the_limit_of_a_micro_batch_needs_pyspark_4_2() -> None:
    limited = ReadJob(of(maxRowsPerTrigger="5"), VALUES)
    if [int(part) for part in version("pyspark").split(".")[:2]] < [4, 2]:
        error = complaint(lambda: StreamingReader(limited))
        assert (error.what, error.expected) == ("option maxRowsPerTrigger", "PySpark 4.2 or newer")
    else:
        assert StreamingReader(limited).getDefaultReadLimit().max_rows == 5
    StreamingReader(ReadJob(of(), VALUES))


@pytest.mark.parametrize(
    ("given", "port", "tls"),
    [
        ({"url": URL}, 5552, False),
        ({"url": "amqps://h"}, 5551, True),
        ({"url": URL, "streamPort": "77"}, 77, False),
        ({"url": "rabbitmq-stream://h:88"}, 88, False),
        ({"url": "rabbitmq-stream+tls://h"}, 5551, True),
        ({"url": "rabbitmq-stream://h:88", "streamPort": "77"}, 77, False),
        ({"host": "h", "port": "5672"}, 5552, False),
        ({"host": "h", "tls": "true", "streamPort": "77"}, 77, True),
    ],
)
def test_the_port_is_that_of_streams(given: dict[str, str], port: int, tls: bool) -> None:
    (url,) = ReadOptions.of({"stream": "s", **given}).urls
    assert (url.port, url.tls, url.streams) == (port, tls, True)


def test_a_certificate_replaces_user_and_password() -> None:
    options = ReadOptions.of({"stream": "s", "url": "amqps://h/?auth_mechanism=external"})
    (url,), credentials = to_streams(options, lambda urls, **given: (urls, given["credentials"]))
    assert (url.external, url.user, url.password, credentials) == (True, None, None, None)


def test_several_urls_may_be_of_either_protocol() -> None:
    urls = of(url="amqp://u:a,b@h1, rabbitmq-stream://u:a,b@h2:1").urls
    assert [(url.host, url.port, url.password) for url in urls] == [("h1", 5552, "a,b"), ("h2", 1, "a,b")]
    assert "amqp" in complaint(lambda: WriteOptions.of({"url": "rabbitmq-stream://h"})).expected
