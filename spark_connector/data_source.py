"""``format("rabbitmq")``: where Spark asks for a writer, and everything is refused that can be before a task starts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from rabbit_chx import InvalidValue
from spark_connector.columns import layout_of
from spark_connector.connections import NotOnThisMachine, check_access
from spark_connector.options import WriteOptions
from spark_connector.partition import WriteJob
from spark_connector.writer import BatchWriter, StreamWriter, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RabbitMQDataSource", "activate", "register"]


class RabbitMQDataSource(DataSource):
    """Writes DataFrames to RabbitMQ, batch and streaming.

        df.write.format("rabbitmq").option("url", url).option("exchange", "orders").mode("append").save()

    Columns are those of `spark_connector.columns.COLUMNS`, options those of `spark_connector.options.OPTIONS`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rabbitmq"

    def schema(self) -> NoReturn:
        """A queue has no offsets to replay, so there is nothing that Spark could read twice."""
        raise InvalidValue(
            'format("rabbitmq")',
            "a read",
            "writes",
            "Consume the queue with a client; RabbitMQ streams have connectors that read",
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Check what a batch write will do."""
        if overwrite:
            raise InvalidValue(
                "save mode",
                "overwrite",
                "append",
                '.mode("append"): what is in a queue can only be consumed, not replaced',
            )
        job = self._job(schema)
        _check_broker(job.options)
        return BatchWriter(job)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Check what a streaming write will do; runs twice for each micro-batch, so the broker is not asked."""
        if overwrite:
            raise InvalidValue(
                "output mode",
                "complete",
                "append",
                "To write the result of an aggregation, use foreach_batch(...), which writes each micro-batch",
            )
        return StreamWriter(self._job(schema))

    def _job(self, schema: StructType) -> WriteJob:
        options = WriteOptions.of(self.options)
        layout = layout_of(schema, ignore_unknown=options.ignore_unknown_columns, given=options.columns_given)
        return WriteJob(options, layout)


def _check_broker(options: WriteOptions) -> None:
    """Ask the broker before a task starts, if this machine has what that takes."""
    if not (options.check_exchange or options.dry_run):
        return
    try:
        check_access(options, [] if options.exchange is None else [options.exchange])
    except NotOnThisMachine as absent:
        tell(logging.WARNING, f"exchange and permission are not checked on the driver: {absent}")


def register(spark: SparkSession) -> None:
    """Make ``format("rabbitmq")`` known to a session, on the thread that calls this.

    Spark finds the format by itself where this package is installed, except on threads of your own: it looks into the
    session that is active on the thread, and on a new one there is none.
    """
    try:
        spark.dataSource.register(RabbitMQDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(
            error
        ):  # PySpark 4.0, once it has found the format by itself
            raise
    activate(spark)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: that is where Spark looks for formats that are written in Python."""
    spark.createDataFrame([], "value string")  # runs nothing
