"""``spread``: how the rows of a DataFrame would spread over the queues, counted on the cluster before anything is sent.

Two passes over the data. The first routes and counts every row; distinct keys and candidates for the hottest keys are
estimated by Spark's sketches. The second counts the candidates exactly, since a sketch of very many equally frequent
keys reports hot keys that do not exist. Nothing here opens a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - as everywhere
)

from rabbit_chx import InvalidValue, Spread
from rabbit_chx.mirror.skew import HotKey, QueueShare
from spark_connector.columns import sql_type
from spark_connector.routing.mirror import headers_of
from spark_connector.routing.queue_column import ColumnOrName, HashExchange, Prediction

_TRACKED: Final = 10_000
"""Keys tracked by the sketch of each queue; it does not miss a key with more than about 0.1 % of the rows."""
_CANDIDATES: Final = 10
"""How many candidates are counted exactly for each hot key wanted."""
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

    The arguments are those of :func:`spark_connector.queue_of`; ``hot`` is the number of hottest keys to name. ``df`` is
    read twice: cache it if it is expensive to compute. Requires PySpark 4.1 or newer.
    """
    if df.isStreaming:
        hint = "Call spread on each micro-batch: see spark_connector.foreach_batch"
        raise InvalidValue("DataFrame for spread", "a stream", "a batch", hint)
    if type(hot) is not int or not 0 <= hot <= _MOST_HOT:
        raise InvalidValue("hot", hot, f"an integer from 0 to {_MOST_HOT}")
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
    """The hottest keys according to the sketches, each with the number of its destination."""
    estimates = [(entry["count"], entry["item"], row["number"]) for row in found for entry in row["hot"]]
    return {key: number for _, key, number in sorted(estimates, reverse=True)[:most]}


def _key(df: DataFrame, prediction: Prediction) -> Column:
    """What is hashed, as readable text."""
    source = prediction.source
    column = F.col(source) if isinstance(source, str) else source
    data_type = df.select(column).schema.fields[0].dataType
    if prediction.header is not None:
        column = _header(column, data_type, prediction.header)
        data_type = df.select(column).schema.fields[0].dataType
    text = F.hex(column) if sql_type(data_type) == "binary" else column.cast("string")
    return F.coalesce(text, F.lit(_MISSING))


def _header(column: Column, data_type: Any, name: str) -> Column:
    """One header of a column of all headers, as :func:`spark_connector.routing.mirror.header_column` finds it."""
    headers = headers_of(data_type, name)
    if headers.form != "array":
        return column[name]
    fields = data_type.elementType.names
    named = F.filter(column, lambda entry: entry[fields[headers.key_at]] == name)
    return F.get(named, F.lit(0))[fields[1 - headers.key_at]]


def _summary(
    prediction: Prediction, counted: Iterable[Any], hottest: Iterable[tuple[str, int, int]]
) -> Spread:
    """The counts of each number as shares of queues; with slots, several numbers are one queue."""
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
