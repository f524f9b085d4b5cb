"""Streams whose micro-batches are prepared before they are written: sorted, aggregated, or written to several places.

Spark rejects the output modes ``update`` and ``complete`` for sinks written in Python, and does not sort streaming
DataFrames. In ``foreachBatch`` a micro-batch is an ordinary DataFrame, so both work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rabbit_chx import InvalidValue
from spark_connector.option_table import as_text
from spark_connector.session import SessionSettings
from spark_connector.writing.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(
    prepare: Callable[[DataFrame], DataFrame] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that prepares each micro-batch and writes it to RabbitMQ.

        counts.writeStream.outputMode("update").foreachBatch(
            foreach_batch(lambda batch: order_for(batch, key="routing_key", seq="n", partitions=4), url=url, exchange="x")
        )

    ``prepare`` returns the columns of `spark_connector.columns.COLUMNS`. The options are those of ``format("rabbitmq")``
    and are checked here, before the query starts. Spark repeats a failed micro-batch, so rows may arrive twice.
    """
    if prepare is not None and not callable(prepare):
        raise InvalidValue(
            "prepare",
            type(prepare).__name__,
            "a function that takes a micro-batch and returns a DataFrame",
            "Pass options by name: url=..., exchange=...",
        )
    texts = {name: as_text(value) for name, value in options.items()}
    texts = {**WriteOptions.applicable_defaults(texts, _session_defaults()), **texts}
    WriteOptions.of(texts)
    if not any(name.lower() == "checkexchange" for name in texts):
        texts["checkExchange"] = "false"  # it would ask the broker for each micro-batch

    def write(batch: DataFrame, _batch_id: int) -> None:
        from spark_connector.data_source import activate

        activate(batch.sparkSession)  # Spark calls this on a thread of its own
        frame = batch if prepare is None else prepare(batch)
        frame.write.format("rabbitmq").options(**texts).mode("append").save()

    return write


def _session_defaults() -> Mapping[str, str]:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return {} if session is None else SessionSettings.of(dict(session.conf.getAll)).options
