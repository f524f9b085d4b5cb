"""``df.write.format("rabbitmq")`` in a real Spark, which finds the format by itself."""

from __future__ import annotations

import struct

import pytest

from tests.canary import may_hold
from tests.deliveries import Delivery, deliveries
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


def test_any_number_of_partitions_and_empty_ones(spark, broker, inbox):
    for partitions in (1, 24):
        writer(numbers(spark, 10, partitions), broker, exchange=inbox.exchange).save()
    writer(numbers(spark, 0, 1), broker, exchange=inbox.exchange).save()
    assert inbox.bodies() == {b"%d" % n: 2 for n in range(10)}


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
    assert len(inbox) == 0


def test_files_that_spark_distributes_are_found(spark, broker, inbox, tmp_path):
    file = may_hold(tmp_path / "rabbit-password")
    file.write_text(broker.password)
    spark.sparkContext.addFile(str(file))
    url = f"amqp://{broker.username}@{broker.url.rpartition('@')[2]}"
    frame = numbers(spark, 10)
    writer(frame, broker, url=url, exchange=inbox.exchange, passwordFile="rabbit-password").save()
    assert len(inbox) == 10
