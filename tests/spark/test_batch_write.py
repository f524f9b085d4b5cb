"""``df.write.format("rabbitmq")`` in a real Spark, which finds the format by itself."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest

from tests.canary import may_hold
from tests.deliveries import Delivery, deliveries
from tests.inbox import Inbox
from tests.proof import LONG

pytestmark = [pytest.mark.spark, pytest.mark.broker]

CANARY = "CANARY-2f7a"


def writer(frame, broker, **options):
    chosen = {"url": broker.url, "retryTimeoutMs": "300", **options}
    return frame.write.format("rabbitmq").options(**chosen).mode("append")


def numbers(spark, count, partitions=2):
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) as value", "concat('key-', id % 1000) as key"
    )


MANY = 1_000_000 if LONG else 30_000


def message_of(number: int) -> Delivery:
    """The delivery of a row, byte by byte: headers, delivery mode, message id and body."""
    key, message_id = b"key-%d" % (number % 1000), b"m-%d" % number
    headers = b"\1kS" + struct.pack(">I", len(key)) + key + b"\1nI" + struct.pack(">i", number)
    present = struct.pack(">H", 1 << 13 | 1 << 12 | 1 << 7)
    values = struct.pack(">I", len(headers)) + headers + b"\2" + bytes([len(message_id)]) + message_id
    return Delivery(key, present + values, b"%d" % number)


@pytest.mark.parametrize("count", [5_000, pytest.param(MANY, marks=pytest.mark.long)])
def test_many_rows_arrive_once_and_unchanged(spark, broker, inbox, count):
    frame = numbers(spark, count, 16 if count == MANY else 4).selectExpr(
        "value",
        "key",
        "concat('m-', value) as message_id",
        "named_struct('k', key, 'n', cast(value as int)) as headers",
    )
    writer(frame, broker, exchange=inbox.exchange).save()
    assert len(inbox) == count
    times, different = bytearray(count), []
    for one in deliveries(broker.url, inbox.queue, count):
        number = int(one.body)
        times[number] += 1
        if one != message_of(number):
            different.append(one)
    assert different[:3] == []
    assert times.count(1) == count


def test_maps_arrays_and_timestamps_arrive_as_headers_and_properties(spark, broker, inbox):
    frame = spark.sql(
        "select 'a' as value, map('x', 5L, 'y', null) as headers, timestamp '2024-02-29 12:30:15.999 UTC' as timestamp "
    )
    writer(frame, broker, exchange=inbox.exchange, routingKey="").save()
    frame = spark.sql(
        "select encode('b', 'utf-8') as body, array(named_struct('key', 'x', 'value', encode('z', 'utf-8'))) as headers"
    )
    writer(frame, broker, exchange=inbox.exchange, routingKey="").save()
    frame = spark.sql(
        "select 'c' as value, named_struct('d', 2.0D, 'day', date '2024-02-29', "
        "'ntz', timestamp_ntz '2024-02-29 12:30:15.999') as headers"
    )
    writer(frame, broker, exchange=inbox.exchange, routingKey="").save()
    first, second, third = inbox.take(3)
    assert (first.properties.headers, first.properties.timestamp) == ({"x": 5}, 1_709_209_815)
    assert (second.body, second.properties.headers) == (b"b", {"x": b"z"})
    day, moment = datetime(2024, 2, 29, tzinfo=UTC), datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)
    # pika reads a double as an integer.
    assert third.properties.headers == {"d": 2, "day": day, "ntz": moment}


def test_any_number_of_partitions_and_empty_ones(spark, broker, inbox):
    for partitions in (1, 24):
        writer(numbers(spark, 10, partitions), broker, exchange=inbox.exchange).save()
    writer(numbers(spark, 0, 1), broker, exchange=inbox.exchange).save()
    assert inbox.bodies() == {b"%d" % n: 2 for n in range(10)}


def test_sql_inserts_with_options_of_a_view_or_of_the_insert(spark, broker, inbox):
    options = f"url '{broker.url}', exchange '{inbox.exchange}', routingKey ''"
    spark.sql(f"CREATE TEMPORARY VIEW to_rabbit (value string) USING rabbitmq OPTIONS ({options})")
    spark.sql("INSERT INTO to_rabbit VALUES ('by view')")
    spark.catalog.dropTempView("to_rabbit")
    spark.sql(f"CREATE TABLE mail (value string) USING rabbitmq OPTIONS ({options})")
    assert "INSERT INTO t WITH" in failure(lambda: spark.sql("INSERT INTO mail VALUES ('lost')"))
    options = f"url = '{broker.url}', exchange = '{inbox.exchange}', routingKey = ''"
    spark.sql(f"INSERT INTO mail WITH ({options}) VALUES ('by insert')")
    spark.sql("DROP TABLE mail")
    assert inbox.bodies() == {b"by view": 1, b"by insert": 1}


# ---- errors


def failure(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has many, and their text is what users see
        call()
    assert CANARY not in str(caught.value)
    return str(caught.value)


def test_invalid_writes_are_rejected_before_a_task_starts(spark, broker, inbox):
    frame = numbers(spark, 10)
    for change, words in [
        ({"exchnge": "x"}, "Did you mean exchange?"),
        ({"uri": f"amqp://u:{CANARY}@h"}, "Use url"),
        ({"exchange": "no-such-exchange"}, "invalid exchange: got 'no-such-exchange'"),
    ]:
        options = {"exchange": inbox.exchange, **change}
        assert words in failure(lambda options=options: writer(frame, broker, **options).save())
    good = {"exchange": inbox.exchange}
    assert 'to_json(struct("*"))' in failure(lambda: writer(spark.range(3), broker, **good).save())
    assert "append" in failure(lambda: writer(frame, broker, **good).mode("overwrite").save())
    assert "partitioning" in failure(lambda: writer(frame, broker, **good).partitionBy("key").save())
    assert len(inbox) == 0


def test_a_permanent_error_publishes_no_row_twice(spark, broker):
    """``tests/faults/test_spark_faults.py`` shows that a failed task publishes its rows again."""
    with Inbox(broker.url, kind="direct", binding="known") as inbox:
        frame = numbers(spark, 40_000)
        lost = frame.selectExpr("value", "if(value = '39000', 'nowhere', 'known') as key")
        text = failure(lambda: writer(lost, broker, exchange=inbox.exchange).save())
        assert "returned: 312 NO_ROUTE" in text
        assert "rows are in the broker already" in text
        once = inbox.bodies()
        assert set(once.values()) == {1}
        assert b"39000" not in once


@pytest.mark.long
def test_a_permanent_error_stops_the_other_tasks(spark, broker, inbox):
    """At 100 rows per second the rows of the other partitions take 40 seconds."""
    frame = numbers(spark, 4_000, 40).selectExpr("nullif(value, '3') as value", "key")
    chosen = {"exchange": inbox.exchange, "maxRatePerTask": "100"}
    text = failure(lambda: writer(frame, broker, **chosen).save())
    assert "row 3 of partition 0: value is null" in text
    assert "rows are in the broker already" in text
    assert len(inbox) < 2_000


@pytest.mark.long
def test_speculation_is_rejected_unless_allowed(spark, broker, inbox):
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        text = failure(lambda: writer(numbers(spark, 10), broker, exchange=inbox.exchange).save())
        assert "allowSpeculation=true" in text
        assert len(inbox) == 0
        writer(numbers(spark, 10), broker, exchange=inbox.exchange, allowSpeculation="true").save()
        assert len(inbox) == 10
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)


def test_files_that_spark_distributes_are_found(spark, broker, inbox, tmp_path):
    file = may_hold(tmp_path / "rabbit-password")
    file.write_text(broker.password)
    spark.sparkContext.addFile(str(file))
    url = f"amqp://{broker.username}@{broker.url.rpartition('@')[2]}"
    frame = numbers(spark, 10)
    writer(frame, broker, url=url, exchange=inbox.exchange, passwordFile="rabbit-password").save()
    assert len(inbox) == 10


# ---- workers


@pytest.mark.long
def test_tasks_of_a_worker_share_its_connection(spark, broker, inbox):
    created = "element(2, hd(ets:lookup(connection_churn_metrics, node())))."
    writer(numbers(spark, 2), broker, exchange=inbox.exchange).save()
    before = int(broker.eval(created))
    for _ in range(3):
        writer(numbers(spark, 400, 40), broker, exchange=inbox.exchange, checkExchange="false").save()
    assert len(inbox) == 1202
    opened = int(broker.eval(created)) - before
    assert opened <= 2 + 1  # each of two workers; one more if Spark replaced a worker meanwhile
