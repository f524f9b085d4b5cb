"""Spark reads a million rows of several clients, in batches and in random micro-batches: each row once and in order."""

from __future__ import annotations

import time
from functools import partial

import pytest
from pyspark.sql import functions as F  # noqa: N812
from rstream import CompressionType

from rabbit_chx.streams import connect
from rabbit_chx.streams.ends import bounds
from tests.broker.stream_writers import over_amqp, over_stream_protocol, with_pika, with_rstream
from tests.patience import wait_until
from tests.programs import stopping
from tests.proof import LONG, Check, dice, record_result
from tests.spark.streams import Streams
from tests.spark.test_read_micro_batches import Copy
from tests.spark.test_read_streams import DEADLINE, read

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(3_600 if LONG else 600),
    pytest.mark.pyspark("4.2", "it has no limits of micro-batches"),
]

ROWS = 1_000_000 if LONG else 30_000
STREAMS = 4
WRITERS = [
    over_amqp,
    over_stream_protocol,
    with_pika,
    partial(with_rstream, compression=CompressionType.No),
    partial(with_rstream, compression=CompressionType.Gzip),
]
PARTS = 2 * len(WRITERS)
"""Parts of a stream: one client writes each part, and a stored offset makes a hole after the part."""
STOPS = 12 if LONG else 2
PARTITIONS = (1, 5, 16) if LONG else (1, 16)
SOME = 1_000
"""The number of offsets of one stream in which the comparison must notice faults."""
VALUE = "concat({n}, ' ', repeat('x', cast({n} % 7 * 20 as int)))"
"""Spark's expression for the row with number ``n`` of its stream."""


def values(first, last):
    return [b"%d " % number + b"x" * (number % 7 * 20) for number in range(first, last)]


@pytest.fixture(scope="module")
def written(rabbitmq_broker):
    """Fill streams, and yield the number of rows of each stream."""
    random = dice("who writes what Spark reads")
    with Streams(rabbitmq_broker.url) as streams:
        counts = {streams.stream(): ROWS // STREAMS for _ in range(STREAMS)}
        for stream, count in counts.items():
            parts = random.sample(WRITERS * 2, PARTS)
            cuts = [count * part // PARTS for part in range(PARTS + 1)]
            for number, write in enumerate(parts):
                write(rabbitmq_broker, stream, values(*cuts[number : number + 2]))
                make_a_hole(rabbitmq_broker, stream, number)
        yield counts


def make_a_hole(broker, stream, number):
    name = f"reader-{number}"
    with connect(broker.stream_url) as connection:
        connection.store_offset(name, stream, number)
        wait_until(lambda: connection.query_offset(name, stream) == number, "a stored offset")
        assert bounds(connection, stream).end > number


def wrong(rows, counts) -> int:
    """Count the rows that are missing, repeated, changed, or after a later row of their part."""
    checked = rows.selectExpr(
        "value",
        "row_number() over (partition by stream order by offset) - 1 as n",
        "offset <= lag(offset) over (partition by part, stream order by at) as late",
    )
    differing = checked.where(f"late or cast(value as string) != {VALUE.format(n='n')}").count()
    found = {row["stream"]: row["count"] for row in rows.groupBy("stream").count().collect()}
    return differing + sum(abs(found.get(stream, 0) - count) for stream, count in counts.items())


def spoiled(rows):
    """Yield copies of some rows, each with a fault: a row missing, a row twice, a row changed, rows in another order."""
    yield rows.where("offset != 5")
    yield rows.union(rows.where("offset = 5"))
    yield rows.withColumn("value", F.expr("if(offset = 5, binary('?'), value)"))
    yield rows.withColumn("at", -rows.at)


def judge(rows, counts, what, version, started):
    rows = rows.cache()
    found = wrong(rows, counts)
    stream, *_ = counts
    some = rows.where(f"stream = '{stream}' and offset < {SOME}").cache()
    count = {stream: some.count()}
    faults = list(spoiled(some))
    seen = sum(wrong(fault, count) > 0 for fault in faults)
    rows.unpersist()
    control = f"a row left out, repeated, changed, rows in another order: {seen} of {len(faults)} seen"
    seconds = time.monotonic() - started
    record_result(Check("Spark", what, version, sum(counts.values()), found, seconds, control))
    assert seen == len(faults)
    assert not wrong(some, count)
    assert not found


@pytest.mark.proof
def test_batches_of_one_to_sixteen_partitions_have_each_row_once_and_in_order(spark, broker, written):
    streams, columns = ",".join(written), "value,stream,offset"
    for partitions in PARTITIONS:
        started = time.monotonic()
        rows = read(spark, broker, stream=streams, columns=columns, minPartitions=partitions)
        placed = rows.selectExpr("*", "spark_partition_id() as part", "monotonically_increasing_id() as at")
        what = f"batch read of the rows of five clients, minPartitions={partitions}"
        judge(placed, written, what, broker.version, started)


def some_batches(copy, random):
    """Read some micro-batches with a random limit, and return the number of rows of each micro-batch."""
    most = int(ROWS * 10 ** random.uniform(-3.5, -1.5))
    query = copy.start(maxRowsPerTrigger=most, minPartitions=random.randint(1, 16)).start()
    enough = random.randint(2, 4)

    def sizes():
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    with stopping(query):
        wait_until(lambda: query.exception() or len(sizes()) >= enough, "micro-batches", DEADLINE)
        assert query.exception() is None
    # The first may be one that the stopped query had planned, with its own limit: Spark repeats it.
    assert max(sizes()[1:]) <= most
    return sizes()


def test_micro_batches_of_random_sizes_have_each_row_once_and_in_order(spark, broker, written, tmp_path):
    started, random = time.monotonic(), dice("sizes of micro-batches")
    copy = Copy(spark, broker, tmp_path, stream=",".join(written))
    sizes = [size for _ in range(STOPS) for size in some_batches(copy, random)]
    sizes += copy.run(maxRowsPerTrigger=ROWS // 7, minPartitions=random.randint(1, 16))
    rows = spark.read.parquet(str(tmp_path / "rows")).selectExpr(
        "*", "_metadata.file_name as part", "_metadata.row_index as at"
    )
    what = f"micro-batches of {min(sizes):,} to {max(sizes):,} rows, 1 to 16 partitions, {STOPS} restarts"
    judge(rows, written, what, broker.version, started)
