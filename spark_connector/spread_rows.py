"""``spread``: how the rows of a DataFrame would spread over the queues, counted on the cluster before anything is sent.

Two passes over the data, of any size. The first asks the mirror and counts rows exactly; distinct keys, and which
may be the hottest, come from Spark's own sketches. The second counts those few exactly, since of very many keys
alike a sketch makes hot ones. What comes back is a small value. Nothing here opens a socket.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from rabbit_chx import HotKey, InvalidValue, QueueShare, Spread
from spark_connector.columns import sql_type
from spark_connector.mirror import headers_of
from spark_connector.queue_column import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

    from spark_connector.queue_column import ColumnOrName, HashExchange

__all__ = ["HotKey", "QueueShare", "Spread", "spread"]

_TRACKED: Final = 10_000
"""Keys that the sketch of each queue remembers: one with more than some thousandth of its rows is not missed."""
_CANDIDATES: Final = 10
"""For each hot key wanted, so many are counted exactly."""
_MOST_HOT: Final = 1_000
_MISSING: Final = "(missing)"


def spread(
    df: DataFrame,
    column: ColumnOrName | None = None,
    exchange: HashExchange | None = None,
    *,
    hot: int = 10,
    slots: Mapping[str, str] | None = None,
    **message: ColumnOrName,
) -> Spread:
    """Count how the rows of a DataFrame would spread over the queues of an exchange.

        print(spread(df, "routing_key", exchange))

    The arguments are those of :func:`spark_connector.queue_of`, and ``hot`` is how many of the hottest keys to
    name. Cache what is expensive to compute: it is read twice. Needs PySpark 4.1 or newer.
    """
    if df.isStreaming:
        raise InvalidValue(
            "DataFrame of spread",
            "a streaming one",
            "a batch",
            "Call it on a micro-batch, in foreachBatch: see spark_connector.foreach_batch",
        )
    if type(hot) is not int or not 0 <= hot <= _MOST_HOT:
        raise InvalidValue("hot", hot, f"a whole number up to {_MOST_HOT}", "0 names no key")
    prediction = Prediction.of(column, exchange, slots=slots, **message)
    keys = df.select(prediction.index.alias("number"), _key(df, prediction).alias("key"))
    counted = keys.groupBy("number").agg(
        F.count("*").alias("rows"),
        F.approx_count_distinct("key").alias("keys"),
        F.expr(f"approx_top_k(key, {max(hot, 1)}, {_TRACKED})").alias("hot"),
    )
    found = counted.collect()
    likely = _likely(found, hot * _CANDIDATES)
    exact = keys.where(F.col("key").isin(list(likely))).groupBy("key").count().collect() if likely else []
    hottest = sorted(((row["count"], row["key"]) for row in exact), key=lambda one: (-one[0], one[1]))[:hot]
    return _summary(prediction, found, [(key, likely[key], rows) for rows, key in hottest])


def _likely(found: Iterable[Any], most: int) -> dict[str, int]:
    """The keys that sketches take for the hottest, each with the number of its destination."""
    estimates = [(entry["count"], entry["item"], row["number"]) for row in found for entry in row["hot"]]
    return {key: number for _, key, number in sorted(estimates, reverse=True)[:most]}


def _key(df: DataFrame, prediction: Prediction) -> Column:
    """What is hashed, as text that people can read."""
    source = prediction.source
    column = F.col(source) if isinstance(source, str) else source
    data_type = df.select(column).schema.fields[0].dataType
    if prediction.header is not None:
        column = _header(column, data_type, prediction.header)
        data_type = df.select(column).schema.fields[0].dataType
    text = F.hex(column) if sql_type(data_type) == "binary" else column.cast("string")
    return F.coalesce(text, F.lit(_MISSING))


def _header(column: Column, data_type: Any, name: str) -> Column:
    """One header out of a column of all, as :func:`spark_connector.mirror.header_column` takes it in Python."""
    headers = headers_of(data_type, name)
    if headers.form != "array":
        return column[name]
    fields = data_type.elementType.names
    named = F.filter(column, lambda entry: entry[fields[headers.key_at]] == name)
    return F.get(named, F.lit(0))[fields[1 - headers.key_at]]


def _summary(
    prediction: Prediction, counted: Iterable[Any], hottest: Iterable[tuple[str, int, int]]
) -> Spread:
    """What was counted for each number, as shares of queues; of slots, several are one queue."""
    names = prediction.names
    exact: dict[str, float] = dict.fromkeys(names, 0.0)
    rows: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    for name, share in zip(names, prediction.exact_shares, strict=True):
        exact[name] += share
    for row in counted:
        rows[names[row["number"]]] += row["rows"]
        keys[names[row["number"]]] += row["keys"]
    total = rows.total()
    return Spread(
        total,
        tuple(
            QueueShare(queue, rows[queue], keys[queue], rows[queue] / total if total else 0.0, share)
            for queue, share in exact.items()
        ),
        tuple(HotKey(key, names[number], count, count / total) for key, number, count in hottest),
    )
