"""``order_for``: rows where and how they have to be so that the messages of a key are published in order.

All rows of a key must be in one partition, and sorted inside it: ``repartition`` alone looks ordered on one
machine and is not on two, since a shuffle delivers its blocks in any order. The writer then publishes each
partition over one channel, in the order of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx import InvalidValue
from spark_connector.queue_column import index_behind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_connector.queue_column import ColumnOrName

__all__ = ["order_for"]

_PLACE = "rabbit_chx_place"


def order_for(
    df: DataFrame, *, key: ColumnOrName, seq: ColumnOrName, partitions: int | None = None
) -> DataFrame:
    """The same rows, so that a write publishes those of each key in the order of ``seq``.

        order_for(df, key="customer", seq="changed_at", partitions=8).write.format("rabbitmq")...
        order_for(df, key=queue_of("routing_key", exchange), seq="changed_at", partitions=10)

    The second line gives each queue to one partition, so that a whole queue is in order; then more partitions
    than queues are of no use. ``partitions`` is also the number of connections that may publish at once.
    Rows of one key with the same ``seq`` are in no order among themselves.
    """
    _check_batch(df)
    count = _checked(partitions)
    place = index_behind(key)
    if place is None:
        # By key and then by seq: runs of one queue publish 1.4 times as fast as rows that change queues.
        return df.repartition(count, key).sortWithinPartitions(key, seq)
    placed = df.withColumn(
        _PLACE, place.cast("int")
    )  # so that the mirror is asked once, for placing and for sorting
    return placed.repartitionById(count, _PLACE).sortWithinPartitions(_PLACE, seq).drop(_PLACE)


def _check_batch(df: DataFrame) -> None:
    if df.isStreaming:
        raise InvalidValue(
            "DataFrame of order_for",
            "a streaming one",
            "a batch: Spark sorts no stream",
            "Call order_for on each micro-batch, in foreachBatch: see spark_connector.foreach_batch",
        )


def _checked(partitions: object) -> int:
    if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0:
        return partitions
    raise InvalidValue(
        "partitions",
        partitions,
        "a whole number from 1 on",
        "Left to itself Spark may merge small data into a single partition, which publishes alone: "
        "say how many connections shall publish at once, for a start as many as the cluster has cores",
    )
