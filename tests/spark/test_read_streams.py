"""``spark.read`` of real streams in a real Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from rabbit_chx import SuperStream
from rabbit_chx.broker import Management, apply, read as read_topology
from rabbit_chx.streams import StreamPublisher, connect
from rabbit_chx.streams.ends import bounds
from rabbit_chx.topology import Binding, Exchange, Queue, Topology, plan
from tests.patience import PATIENCE, wait_until
from tests.spark.streams import numbered
from tests.spark.test_batch_write import MANY, failure, writer

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


@pytest.mark.long
def test_written_rows_can_be_read_and_written_again(spark, broker, streams, inbox):
    names = [streams.stream() for _ in range(3)]
    exchange = streams.exchange("x-consistent-hash", dict.fromkeys(names, "1"))
    frame = spark.range(0, 3_000, 1, 4).selectExpr(
        "encode(cast(id as string), 'utf-8') as value",
        "concat('key-', id % 100) as routing_key",
        "map('id', cast(id as string), 'part', 'x') as headers",
        "concat('m-', id) as message_id",
        "'application/json' as content_type",
        "timestamp_seconds(1700000000 + id) as timestamp",
    )
    top = streams.exchange("fanout", {})
    streams.channel.exchange_bind(exchange, top)
    writer(frame, broker, exchange=top).save()
    rows = read(spark, broker, exchange=top, managementUrl=broker.management_url)
    found = rows.collect()
    wrote = {bytes(row.value): row for row in frame.collect()}
    assert len(found) == len(wrote) == 3_000
    for row in found:
        assert [row[name] for name in frame.columns] == list(wrote[bytes(row.value)])
        assert row.exchange == top
    assert {row.stream for row in found} == set(names)
    assert len({(row.stream, row.routing_key) for row in found}) == 100  # each key in one stream
    places = [(row.stream, row.offset) for row in found]
    assert places == sorted(set(places))
    writer(
        rows.drop("stream", "offset", "stream_timestamp", "exchange"), broker, exchange=inbox.exchange
    ).save()
    again = inbox.take(3_000)
    assert {(one.key, one.body, one.properties.message_id) for one in again} == {
        (f"key-{n % 100}", b"%d" % n, f"m-{n}") for n in range(3_000)
    }


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


def test_offsets_without_messages_are_skipped(spark, broker, streams):
    stream = streams.stream()
    with connect(broker.stream_url) as connection, StreamPublisher(broker.stream_url, stream) as publisher:
        for part in range(3):
            publisher.publish_many(numbered(part * 2_000, part * 2_000 + 2_000))
            connection.store_offset(f"consumer-{part}", stream, part)
            wait_until(
                lambda part=part: connection.query_offset(f"consumer-{part}", stream) == part, "stored", 20
            )
        end = bounds(connection, stream).end
    rows = read(spark, broker, stream=stream, columns="offset,value", minPartitions=3).collect()
    assert [int(bytes(row.value)) for row in rows] == list(range(6_000))
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets))
    assert end > len(offsets)


@pytest.mark.long
def test_many_rows_of_large_and_small_chunks_are_read_once_and_in_order(spark, broker, streams):
    large, small = streams.stream(), streams.stream()
    with StreamPublisher(broker.stream_url, large) as publisher:
        publisher.publish_many(numbered(0, MANY))
    exchange = streams.exchange("fanout", {small: ""})
    numbers = spark.range(MANY, 2 * MANY, 1, 2).selectExpr(
        "cast(id as string) as value", "'k' as routing_key"
    )
    writer(numbers, broker, exchange=exchange).save()
    for count in (1, 16):
        rows = read(
            spark, broker, stream=f"{large},{small}", columns="value,stream,offset", minPartitions=count
        )
        found = rows.selectExpr("cast(cast(value as string) as bigint) as n", "stream", "offset").cache()
        summary = found.selectExpr("count(*)", "count(distinct n)", "min(n)", "max(n)").first()
        assert tuple(summary) == (2 * MANY, 2 * MANY, 0, 2 * MANY - 1)
        assert found.selectExpr("count(distinct stream, offset)").first()[0] == 2 * MANY
        in_order = found.where(found.stream == large).orderBy("offset").select("n").collect()
        assert [row.n for row in in_order] == list(range(MANY))
        found.unpersist()


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
    mirror = SuperStream(partitions)
    for number in range(90):
        key = f"customer-{number % 9}"
        streams.fill(mirror.route(key), [b"%d" % number], exchange="", key=None)
    full = read(spark, broker, superStream=name, columns="value,stream")
    assert sorted(values(full)) == list(range(90))
    exchange = streams.exchange("headers", {})
    for number, partition in enumerate(partitions):
        streams.channel.queue_bind(partition, exchange, arguments={"to": number, "x-match": "all"})
    for number in range(100, 190):
        key = f"customer-{number % 9}"
        to = partitions.index(mirror.route(key))
        streams.fill("", [b"%d" % number], exchange=exchange, key=key, headers={"to": to})
    rows = read(spark, broker, superStream=name)
    keys = ["customer-2", "customer-7"]
    filtered = rows.where(rows.routing_key.isin(keys))
    chosen = read(spark, broker, superStream=name, keys=",".join(keys))
    assert (
        sorted(values(chosen)) == sorted(values(filtered)) == [n for n in range(100, 190) if n % 9 in (2, 7)]
    )
    pruned = read(spark, broker, superStream=name, keys=",".join(keys), columns="value")
    assert sorted(values(pruned)) == sorted(values(filtered))
    assert {row.stream for row in chosen.collect()} == set(map(mirror.route, keys))


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
    exchange = streams.exchange("fanout", {})
    for change, words in [
        ({"stream": None}, "expected one of the options stream, superStream, exchange"),
        (
            {"stream": "nowhere"},
            "got 'nowhere', expected a stream in the virtual host. Read a super stream with",
        ),
        ({"stream": f"{stream}.queue"}, "or a queue with the option queue"),
        ({"stream": None, "superStream": stream}, "Read a stream with the option stream"),
        ({"stream": None, "superStream": exchange}, "a stream is bound"),
        ({"stream": None, "exchange": exchange, "managementUrl": broker.management_url}, "a stream is bound"),
        ({"startingOffsets": f'{{"{stream}": 99}}'}, "expected an offset from 0 to 5, where the stream ends"),
        ({"endingOffsets": f'{{"{stream}": 99}}'}, "expected an offset from 0 to 5, where the stream ends"),
        (
            {"startingOffsets": f'{{"{stream}": 4}}', "endingOffsets": f'{{"{stream}": 3}}'},
            "expected at most 3, where the read ends",
        ),
    ]:
        options = {name: value for name, value in {"stream": stream, **change}.items() if value is not None}
        text = failure(lambda options=options: read(spark, broker, **options).collect())
        assert words in text, text[-1_500:]
    reader = spark.read.format("rabbitmq").options(**given(broker, stream=stream)).schema("value int")
    assert 'col("value").cast("int")' in failure(lambda: reader.load().collect())
