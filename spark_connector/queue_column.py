"""``queue_of``: the queue that each row of a DataFrame would land on, as a column, worked out on the cluster.

The mirror runs in Python workers as an Arrow UDF and gives each row a small number; the JVM turns numbers into
names, so that no text travels back. What a ring knows is a table of 2^21 small numbers, made once on the driver
and shipped with the function. Nothing here opens a socket or starts a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from rabbit_chx import (
    ConsistentHashExchange,
    InvalidValue,
    MissingDependency,
    ModulusHashExchange,
    ToExchange,
    Unroutable,
    shares,
)
from spark_connector.mirror import ModulusMirror, RingMirror, narrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession


__all__ = ["ColumnOrName", "HashExchange", "Prediction", "index_behind", "queue_of", "register_queue_of"]

ColumnOrName: TypeAlias = "Column | str"
HashExchange: TypeAlias = "ConsistentHashExchange | ModulusHashExchange"

_INDEX: Final = "rabbit_chx_queue_index"
_SQL_INTEGER: Final = {1: "tinyint", 2: "smallint", 4: "int"}


def queue_of(
    column: ColumnOrName | None = None,
    exchange: HashExchange | None = None,
    *,
    slots: Mapping[str, str] | None = None,
    **message: ColumnOrName,
) -> Column:
    """The queue of each row, as a column of text.

        df.withColumn("queue", queue_of("routing_key", exchange))
        df.groupBy(queue_of(exchange=exchange, headers="headers")).count()

    ``column`` holds what the exchange hashes: the routing key, the property, or the value of the header. The
    same can be said by name (``routing_key=``, ``message_id=``, ``correlation_id=``, ``timestamp=``), and
    ``headers=`` is a column of all headers in any form that the writer takes. A null header or property is a
    message without it, which the broker routes too; a null routing key is an error.

    ``slots`` names the queue behind each destination that is an exchange. Needs PySpark 4.1 or newer.
    """
    prediction = Prediction.of(column, exchange, slots=slots, **message)
    index = prediction.index
    queue = F.get(F.array(*map(F.lit, prediction.names)), index).alias("queue")
    vars(queue)[_INDEX] = index  # for order_for, which places rows by number and not by the hash of a name
    return queue


def index_behind(column: object) -> Column | None:
    """The number of each row's queue, where the column was made by :func:`queue_of`; else None."""
    return getattr(column, "__dict__", {}).get(_INDEX)


def register_queue_of(
    spark: SparkSession,
    exchange: HashExchange,
    *,
    name: str = "queue_of",
    of: str = "STRING",
    headers: str | None = None,
    slots: Mapping[str, str] | None = None,
) -> None:
    """Make ``queue_of`` a function of SQL, for as long as the session lives.

        register_queue_of(spark, exchange)
        spark.sql("SELECT queue_of(routing_key) AS queue, count(*) FROM orders GROUP BY ALL")

    Its argument holds what the exchange hashes, and ``of`` is its SQL type. Where it shall be a column of all
    headers, ``headers`` is the type of that, such as ``MAP<STRING, STRING>``.
    """
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise InvalidValue(
            "name of the SQL function",
            name,
            "letters, digits and _, not starting with a digit",
            "Leave it out for queue_of",
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
    """The arguments of :func:`queue_of`, checked: which column is hashed, how, and what the numbers stand for."""

    exchange: HashExchange
    source: ColumnOrName
    header: str | None
    """The header to take out of the column; None where the column holds what is hashed as it is."""
    names: tuple[str, ...]
    """The queue that each number stands for; of slots, several stand for one."""

    @classmethod
    def of(
        cls,
        column: ColumnOrName | None,
        exchange: HashExchange | None,
        *,
        slots: Mapping[str, str] | None = None,
        **message: ColumnOrName,
    ) -> Prediction:
        """What the arguments mean; an error that says what they should have been."""
        if not isinstance(exchange, (ConsistentHashExchange, ModulusHashExchange)):
            raise InvalidValue(
                "exchange",
                exchange,
                "a ConsistentHashExchange or a ModulusHashExchange",
                'queue_of("routing_key", ConsistentHashExchange({"q0": 1, "q1": 1}))',
            )
        part = "routing_key" if isinstance(exchange, ModulusHashExchange) else exchange.hash_on.part
        given = dict(message) if column is None else {"column": column, **message}
        if len(given) != 1 or not given.keys() <= {"column", part}:
            raise InvalidValue(
                "column that is hashed",
                ", ".join(given) or "none",
                f"one alone: the first argument, or {part}=, which the exchange hashes",
                "Nothing else of a message decides where it goes",
            )
        if not exchange.destinations:
            raise Unroutable("the exchange has no bucket: no row would reach a queue")
        names = tuple(_queue(destination, slots or {}) for destination in exchange.destinations)
        ((how, source),) = given.items()
        header = getattr(exchange, "hash_header", None) if how == "headers" else None
        return cls(exchange, source, header, names)

    @property
    def udf(self) -> Any:
        """The function that runs on the cluster: a column in, the numbers of queues out."""
        if not hasattr(F, "arrow_udf"):
            from pyspark import __version__ as installed

            raise MissingDependency(
                f"queue_of needs PySpark 4.1 or newer, which has Arrow functions, and {installed} is installed: "
                "pip install 'pyspark>=4.1'"
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
        """The share of all hashed keys behind each number."""
        if isinstance(self.exchange, ModulusHashExchange):
            return (1 / len(self.names),) * len(self.names)
        return tuple(shares(self.exchange.ring).values())


def _queue(destination: str | ToExchange, slots: Mapping[str, str]) -> str:
    if isinstance(destination, ToExchange):
        return slots.get(destination.name, str(destination))
    return destination
