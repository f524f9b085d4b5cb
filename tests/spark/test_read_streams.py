"""``spark.read`` of real streams in a real Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from rabbit_chx import SuperStream
from rabbit_chx.broker import Management, apply, read as read_topology
from rabbit_chx.streams import StreamPublisher
from rabbit_chx.topology import Binding, Exchange, Queue, Topology, plan
from tests.patience import PATIENCE
from tests.spark.streams import numbered
from tests.spark.test_batch_write import failure, writer

pytestmark = [pytest.mark.spark, pytest.mark.broker]

admission = pytest.mark.pyspark("4.2", "it has no read limits and no Trigger.AvailableNow for Python sources")
DEADLINE = 4 * PATIENCE


def given(broker, **options):
    port = urlsplit(broker.stream_url).port
    return {
        "url": broker.url,
        "streamPort": str(port),
        **{name: str(value) for name, value in options.items()},
    }


def read(spark, broker, **options):
    return spark.read.format("rabbitmq").options(**given(broker, **options)).load()


def values(frame):
    return [int(bytes(row.value)) for row in frame.select("value").collect()]


def test_headers_are_structs_with_binary_values_if_the_schema_says_so(spark, broker, streams):
    kinds = ["'text' as s", "x'ff00' as b", "-5 as i", "1.5d as d", "true as t", "cast(null as string) as n"]
    written = spark.sql(f"select 'x' as value, struct({', '.join(kinds)}) as headers")
    names, form = [streams.stream(), streams.stream()], "headers array<struct<key:string,value:binary>>"
    written.write.format("rabbitmq").options(**given(broker, stream=names[0])).mode("append").save()
    reading = spark.read.format("rabbitmq").schema(f"value binary, {form}")
    for _ in range(2):  # as written by Spark, and as read and written again
        rows = reading.options(**given(broker, stream=names[0])).load()
        found = {one.key: bytes(one.value) for row in rows.collect() for one in row.headers}
        assert found == {"s": b"text", "b": b"\xff\x00", "i": b"-5", "d": b"1.5", "t": b"true"}
        rows.write.format("rabbitmq").options(**given(broker, stream=names[1])).mode("append").save()
        names.reverse()


def test_a_batch_reads_from_its_starting_to_its_ending_offsets(spark, broker, streams):
    full, single, empty = streams.stream(), streams.stream(), streams.stream()
    streams.fill(full, numbered(0, 60), message_id="m", priority=3)
    streams.fill(single, [b"7"])
    everything = f"{full}, {single}, {empty}"

    def found(stream=full, **options):
        return values(read(spark, broker, stream=stream, columns="value", **options))

    assert sorted(found(everything)) == sorted([*range(60), 7])
    assert found(full) == list(range(60))
    assert found(empty) == []
    assert found(startingOffsets="latest") == []
    rows = read(spark, broker, stream=full, columns="offset,value,priority,message_id").collect()
    assert [row.offset for row in rows] == sorted(row.offset for row in rows)
    assert {(row.priority, row.message_id) for row in rows} == {(3, "m")}
    start, end = rows[20].offset, rows[50].offset
    positions = {"startingOffsets": f'{{"{full}": {start}}}', "endingOffsets": f'{{"{full}": {end}}}'}
    assert found(**positions) == list(range(20, 50))
    assert found(**positions, minPartitions=7) == list(range(20, 50))
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert found(startingOffsets=later) == []
    assert found(startingOffsets=earlier, endingOffsets=later) == list(range(60))
    assert found(endingOffsets=earlier) == []


def test_only_the_requested_columns_are_returned(spark, broker, streams):
    stream = streams.stream()
    streams.fill(stream, [b"7"], headers={"a": "b", "n": 5})
    for options, schema in [
        ({"columns": "offset,headers"}, None),
        ({}, "offset bigint, headers map<string,string>"),
    ]:
        reader = spark.read.format("rabbitmq").options(**given(broker, stream=stream, **options))
        frame = (reader.schema(schema) if schema else reader).load()
        assert frame.columns == ["offset", "headers"]
        assert [row.asDict() for row in frame.collect()] == [{"offset": 0, "headers": {"a": "b", "n": "5"}}]
    row = read(spark, broker, stream=stream).collect()[0]
    assert (bytes(row.value), row.routing_key, row.exchange, row.stream) == (b"7", stream, "", stream)
    assert abs(row.stream_timestamp.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=5)


def test_keys_are_read_from_the_partitions_that_can_hold_them(spark, broker, streams):
    name, partitions = streams.super_stream(3)
    with StreamPublisher(broker.stream_url, super_stream=name) as publisher:
        bodies = [b"%d" % number for number in range(90)]
        publisher.publish_many(bodies, [f"customer-{number % 9}" for number in range(90)])
    keys = ["customer-2", "customer-7"]
    expected = [number for number in range(90) if number % 9 in (2, 7)]
    chosen = read(spark, broker, superStream=name, keys=",".join(keys))
    assert sorted(values(chosen)) == expected
    assert {row.stream for row in chosen.collect()} == set(map(SuperStream(partitions).route, keys))
    pruned = read(spark, broker, superStream=name, keys=",".join(keys), columns="value")
    assert sorted(values(pruned)) == expected


def test_keys_are_read_from_the_streams_to_which_a_hash_exchange_routes_them(spark, broker, streams):
    names, exchange = [streams.stream() for _ in range(3)], streams.exchange("x-consistent-hash", {})
    wanted = Topology(
        exchanges=(Exchange(exchange, "x-consistent-hash"),),
        queues=tuple(Queue(name, "stream") for name in names),
        bindings=tuple(Binding(exchange, name, "1") for name in names),
    )
    management = Management.of(broker.url, broker.management_url)
    apply(broker.url, plan(wanted, read_topology(management, "/")), management=management)
    frame = spark.range(900).selectExpr("string(id) as value", "concat('customer-', id % 90) as routing_key")
    writer(frame, broker, exchange=exchange).save()
    source = {"exchange": exchange, "managementUrl": broker.management_url}
    rows, one = read(spark, broker, **source), read(spark, broker, **source, keys="customer-7")
    assert (
        sorted(values(one))
        == sorted(values(rows.where("routing_key = 'customer-7'")))
        == list(range(7, 900, 90))
    )
    assert (rows.rdd.getNumPartitions(), one.rdd.getNumPartitions()) == (3, 1)
    unrecorded = streams.exchange("x-consistent-hash", dict.fromkeys(names, "1"))
    source["exchange"] = unrecorded
    text = failure(lambda: read(spark, broker, **source, keys="customer-7").collect())
    assert "where(\"routing_key in ('customer-7')\")" in text


@pytest.mark.long
def test_errors_of_invalid_reads_have_a_hint_in_the_first_line(spark, broker, streams):
    stream = streams.stream()
    streams.fill(stream, numbered(0, 5))
    streams.channel.queue_declare(f"{stream}.queue", exclusive=True)
    missing = "got 'nowhere', expected a stream in the virtual host. Read a super stream with"
    for change, words in [
        ({"stream": "nowhere"}, missing),
        ({"stream": f"{stream}.queue"}, "or a queue with the option queue"),
        ({"stream": None, "superStream": stream}, "Read a stream with the option stream"),
        ({"endingOffsets": f'{{"{stream}": 99}}'}, "expected an offset from 0 to 5, where the stream ends"),
    ]:
        options = {name: value for name, value in {"stream": stream, **change}.items() if value is not None}
        text = failure(lambda options=options: read(spark, broker, **options).collect())
        assert words in text, text[-1_500:]
