"""Streams whose micro-batches are prepared before they are written: ordered, aggregated, written to several places.

``df.writeStream.format("rabbitmq")`` is the plain way. Spark lets no sink that is written in Python take the output
modes ``update`` and ``complete``, and sorts no streaming DataFrame; in ``foreachBatch`` a micro-batch is an ordinary
DataFrame, and both are possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rabbit_chx import InvalidValue
from spark_connector.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__ = ["foreach_batch"]


def foreach_batch(
    prepare: Callable[[DataFrame], DataFrame] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that prepares each micro-batch and writes it to RabbitMQ.

        counts.writeStream.outputMode("update").foreachBatch(
            foreach_batch(lambda batch: order_for(batch, key="routing_key", seq="n", partitions=4), url=url, exchange="x")
        )

    ``prepare`` makes the columns of `spark_connector.columns.COLUMNS`. Options are those of ``format("rabbitmq")``, and
    are checked here, before a query starts. A micro-batch that failed comes again, so rows may be there twice.
    """
    if prepare is not None and not callable(prepare):
        raise InvalidValue(
            "prepare",
            type(prepare).__name__,
            "a function that takes a micro-batch and returns a DataFrame",
            "Options are given by name: foreach_batch(url=..., exchange=...)",
        )
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    WriteOptions.of(texts)
    if not any(name.lower() == "checkexchange" for name in texts):
        texts["checkExchange"] = "false"  # or the broker would be asked again for each micro-batch

    def write(batch: DataFrame, _batch_id: int) -> None:
        from spark_connector.data_source import activate

        activate(batch.sparkSession)  # this is a thread of Spark's own
        frame = batch if prepare is None else prepare(batch)
        frame.write.format("rabbitmq").options(**texts).mode("append").save()

    return write
