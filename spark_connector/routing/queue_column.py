"""``queue_of``: the queue that each row of a DataFrame would reach, as a column computed on the cluster; ``order_for`` places rows by it.

The mirror runs in Python workers as an Arrow UDF and returns a small number for each row; the JVM turns numbers into
names, so no text travels back. A ring is shipped as a table of 2^21 small numbers, computed once on the driver. Nothing
here opens a socket or starts a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as everywhere
)

from rabbit_chx import (
    ConsistentHashExchange,
    InvalidValue,
    ModulusHashExchange,
    ToExchange,
    Unroutable,
    shares,
)
from rabbit_chx.errors import MissingDependency
from spark_connector.routing.mirror import ModulusMirror, RingMirror, narrow

ColumnOrName: TypeAlias = "Column | str"
HashExchange: TypeAlias = "ConsistentHashExchange | ModulusHashExchange"

_INDEX: Final = "rabbit_chx_queue_index"
_PLACED: Final = "rabbit_chx_index"
_SQL_INTEGER: Final = {1: "tinyint", 2: "smallint", 4: "int"}


def queue_of(
    column: ColumnOrName | None = None,
    exchange: HashExchange | None = None,
    *,
    slots: Mapping[str, str] | None = None,
    **message: ColumnOrName,
) -> Column:
    """The queue of each row, as a string column.

        df.withColumn("queue", queue_of("routing_key", exchange))
        df.groupBy(queue_of(exchange=exchange, headers="headers")).count()

    ``column`` contains what the exchange hashes: the routing key, the property, or the value of the header. It can also
    be passed by name (``routing_key=``, ``message_id=``, ``correlation_id=``, ``timestamp=``), and ``headers=`` is a
    column of all headers in any form that the writer accepts. A null header or property means a message without
    it, which the broker also routes; a null routing key is an error.

    ``slots`` names the queue behind each destination that is an exchange. Requires PySpark 4.1 or newer.
    """
    prediction = Prediction.of(column, exchange, slots=slots, **message)
    index = prediction.index
    queue = F.get(F.array(*map(F.lit, prediction.names)), index).alias("queue")
    vars(queue)[_INDEX] = index  # order_for places rows by this number, not by the hash of a name
    return queue


# All rows of a key must be in one partition and sorted there. ``repartition`` alone looks ordered on one machine but is not on
# two, since a shuffle delivers its blocks in any order. The writer publishes each partition over one channel, in that order.
def order_for(
    df: DataFrame, *, key: ColumnOrName, seq: ColumnOrName, partitions: int | None = None
) -> DataFrame:
    """The same rows, so that a write publishes those of each key in the order of ``seq``.

        order_for(df, key="customer", seq="changed_at", partitions=8).write.format("rabbitmq")...
        order_for(df, key=queue_of("routing_key", exchange), seq="changed_at", partitions=10)

    The second line puts each queue into one partition, so that a whole queue is in order; more partitions than queues
    are then useless. ``partitions`` is also the number of connections that may publish at once. Rows of one key with
    equal ``seq`` are in no defined order.
    """
    if df.isStreaming:
        hint = "Call order_for on each micro-batch: see spark_connector.foreach_batch"
        raise InvalidValue("DataFrame for order_for", "a stream", "a batch", hint)
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        hint = "It is the number of connections that publish at once: begin with the number of cores of the cluster"
        raise InvalidValue("partitions", partitions, "a positive integer", hint)
    index = getattr(key, "__dict__", {}).get(_INDEX)  # of a column of queue_of
    if index is None:
        # By key and then by seq: runs of one queue publish 1.4 times as fast as rows that change queues.
        return df.repartition(partitions, key).sortWithinPartitions(key, seq)
    indexed = df.withColumn(_PLACED, index.cast("int"))  # computed once, for placing and for sorting
    return indexed.repartitionById(partitions, _PLACED).sortWithinPartitions(_PLACED, seq).drop(_PLACED)


def register_queue_of(
    spark: SparkSession,
    exchange: HashExchange,
    *,
    name: str = "queue_of",
    of: str = "STRING",
    headers: str | None = None,
    slots: Mapping[str, str] | None = None,
) -> None:
    """Register ``queue_of`` as a SQL function of the session.

        register_queue_of(spark, exchange)
        spark.sql("SELECT queue_of(routing_key) AS queue, count(*) FROM orders GROUP BY ALL")

    Its argument contains what the exchange hashes, and ``of`` is the argument's SQL type. If the argument is a column of
    all headers, ``headers`` is its type, such as ``MAP<STRING, STRING>``.
    """
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise InvalidValue(
            "name of the SQL function", name, "letters, digits and _, not starting with a digit"
        )
    whole = {} if headers is None else {"headers": "value"}
    prediction = Prediction.of(None if whole else "value", exchange, slots=slots, **whole)
    spark.udf.register(f"{name}_index", prediction.udf)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(value {headers or of}) RETURNS STRING "
        f"RETURN get(array({', '.join(map(_quoted, prediction.names))}), {name}_index(value))"
    )


def _quoted(name: str) -> str:
    """A SQL literal."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Prediction:
    """The checked arguments of :func:`queue_of`: the column, how it is hashed, and the queue of each number."""

    exchange: HashExchange
    source: ColumnOrName
    header: str | None
    """The header to take out of a column of all headers; None if the column contains what is hashed."""
    names: tuple[str, ...]
    """The queue of each number; with slots, several numbers have the same queue."""

    @classmethod
    def of(
        cls,
        column: ColumnOrName | None,
        exchange: HashExchange | None,
        *,
        slots: Mapping[str, str] | None = None,
        **message: ColumnOrName,
    ) -> Prediction:
        """Check the arguments of :func:`queue_of`."""
        if not isinstance(exchange, (ConsistentHashExchange, ModulusHashExchange)):
            raise InvalidValue(
                "exchange",
                exchange,
                "a ConsistentHashExchange or a ModulusHashExchange",
                'For example: queue_of("routing_key", ConsistentHashExchange({"q0": 1, "q1": 1}))',
            )
        part = "routing_key" if isinstance(exchange, ModulusHashExchange) else exchange._hash_on.part
        given = dict(message) if column is None else {"column": column, **message}
        if len(given) != 1 or not given.keys() <= {"column", part}:
            expected = f"one column: the first argument, or {part}=, which the exchange hashes"
            raise InvalidValue("columns for queue_of", ", ".join(given) or "none", expected)
        if not exchange.destinations:
            raise Unroutable("the exchange has no bucket, so no row would reach a queue")
        behind = slots or {}
        names = tuple(
            behind.get(one.name, str(one)) if isinstance(one, ToExchange) else one
            for one in exchange.destinations
        )
        ((how, source),) = given.items()
        header = getattr(exchange, "hash_header", None) if how == "headers" else None
        return cls(exchange, source, header, names)

    @property
    def udf(self) -> Any:
        """The Arrow UDF: a column in, the numbers of queues out."""
        if not hasattr(F, "arrow_udf"):
            from pyspark import __version__ as installed

            raise MissingDependency(
                f"queue_of requires PySpark 4.1 or newer, but {installed} is installed: pip install 'pyspark>=4.1'"
            )
        mirror: RingMirror | ModulusMirror
        if isinstance(self.exchange, ModulusHashExchange):
            mirror = ModulusMirror(self.exchange)
        else:
            mirror = RingMirror.of(self.exchange, self.header)
        return F.arrow_udf(mirror.numbers, _SQL_INTEGER[narrow(len(self.names)).itemsize])

    @property
    def index(self) -> Column:
        """The number of each row's queue."""
        made: Column = self.udf(self.source)
        return made

    @property
    def exact_shares(self) -> tuple[float, ...]:
        """The exact share of all keys for each number."""
        if isinstance(self.exchange, ModulusHashExchange):
            return (1 / len(self.names),) * len(self.names)
        return tuple(shares(self.exchange.ring).values())
