"""``format("rabbitmq")``: create readers and writers for Spark, and reject invalid options and schemas before a task starts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from rabbit_chx import InvalidValue
from rabbit_chx.errors import BrokerUnavailable, Unquoted
from spark_connector.columns import QUEUE_COLUMNS
from spark_connector.connections import NotOnThisMachine, credentials_of
from spark_connector.option_table import as_text
from spark_connector.queues.options import QueueOptions
from spark_connector.queues.source import QueueStreamReader
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.readers import BatchReader, StreamingReader
from spark_connector.reading.rows import ReadJob
from spark_connector.reading.schema import arrow_schema, spark_schema
from spark_connector.session import SessionSettings, set_python_of_tasks
from spark_connector.worker import log_line
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.bindings import bindings_of
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.publishers import check_target
from spark_connector.writing.writer import WriteCounts, Writer, counts_of


class RabbitMQDataSource(DataSource):
    """Writes DataFrames to RabbitMQ and reads them from its streams, batch and streaming, or streaming from a queue.

        df.write.format("rabbitmq").option("url", url).option("exchange", "orders").mode("append").save()
        spark.read.format("rabbitmq").option("url", url).option("superStream", "orders").load()

    `spark_connector.columns` lists the columns, `spark_connector.writing.options.OPTIONS` the options of a write, and
    `spark_connector.reading.options.READ_OPTIONS` those of a read.
    """

    session: ClassVar[SessionSettings] = SessionSettings()
    """The settings of the session, which `register` sets in a subclass."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rabbitmq"

    def schema(self) -> StructType:
        """The columns of a read; Spark asks for them if the user gives no schema."""
        # Spark adds an owner to each table, and names the options of a table so.
        if any(name == "owner" or name.startswith("option.") for name in self.options):
            hint = (
                "CREATE TABLE t (value STRING, routing_key STRING) USING rabbitmq, then INSERT INTO t WITH (url = '...', "
                "exchange = '...') SELECT ..., or SELECT ... FROM t WITH (url = '...', stream = '...'), since Spark passes no "
                "options of CREATE TABLE"
            )
            got, expected = Unquoted("CREATE TABLE without columns"), "the columns of a write or of a read"
            raise InvalidValue("statement", got, expected, hint)
        if self.session.reads_queue(self.options):
            return spark_schema(self.session.complete(QueueOptions, self.options).columns, QUEUE_COLUMNS)
        return spark_schema(self.session.complete(ReadOptions, self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        """Check a batch read."""
        if self.session.reads_queue(self.options):
            got = Unquoted("spark.read, which cannot acknowledge messages")
            hint = (
                "With trigger(availableNow=True) the query ends when the queue is empty. Or bind a stream to the exchange of the queue, "
                "and read the stream"
            )
            raise InvalidValue("read of a queue", got, "spark.readStream", hint)
        ReadOptions.check_batch(self.options)
        return BatchReader(self._read_job(schema))

    def streamReader(self, schema: StructType) -> StreamingReader | QueueStreamReader:  # noqa: N802
        """Check a streaming read; Spark calls this for each micro-batch, so it does not ask the broker."""
        if self.session.reads_queue(self.options):
            options = self.session.complete(QueueOptions, self.options)
            return QueueStreamReader(options, arrow_schema(schema, options.columns, QUEUE_COLUMNS))
        ReadOptions.check_stream(self.options)
        return StreamingReader(self._read_job(schema))

    def _read_job(self, schema: StructType) -> ReadJob:
        options = self.session.complete(ReadOptions, self.options)
        return ReadJob(options, arrow_schema(schema, options.columns))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: FBT001 - Spark's signature
        """Check a batch write."""
        if overwrite:
            hint = 'Use .mode("append"): messages in a queue cannot be replaced'
            raise InvalidValue("save mode", "overwrite", "append", hint)
        job = self._job(schema)
        _check_broker(job.options)
        with suppress(NotOnThisMachine):  # without the earlier bindings, changes to them go unnoticed
            job = replace(job, bindings=bindings_of(job.options))
        return Writer(job, self.session.counts)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: FBT001, N802
        """Check a streaming write; Spark calls this twice for each micro-batch, so it does not ask the broker."""
        if overwrite:
            hint = "To write the result of an aggregation, use foreach_batch(...), for each micro-batch"
            raise InvalidValue("output mode", "complete", "append", hint)
        return Writer(self._job(schema), self.session.counts)

    def _job(self, schema: StructType) -> WriteJob:
        options = self.session.complete(WriteOptions, self.options)
        options.check_speculation(on=self.session.speculation)
        if self.session.local:
            credentials_of(options)  # the tasks have the environment and the files of this machine
        return WriteJob(options, options.layout_of(schema), in_terminal=self.session.in_terminal)


def _check_broker(options: WriteOptions) -> None:
    """Ask the broker before a task starts, unless this machine lacks a secret or file for it."""
    if not (options.check_exchange or options.dry_run):
        return
    try:
        check_target(options)
    except NotOnThisMachine as missing:
        log_line(logging.WARNING, f"the driver did not check the target and the permission: {missing}")
    except InvalidValue as error:
        hint = "; ".join(filter(None, (error.hint, "checkExchange=false skips this check")))
        raise InvalidValue(error.what, error.got, error.expected, hint) from None
    except BrokerUnavailable as error:
        if error.permanent:
            raise
        raise BrokerUnavailable(
            f"{error}; if only executors can reach the broker, set checkExchange=false"
        ) from None


def register(spark: SparkSession) -> WriteCounts | None:
    """Register ``format("rabbitmq")`` with a session, on the calling thread.

    Spark finds the format by itself where this package is installed, but not on threads that you start: Spark looks in
    the thread's active session, and a new thread has none.

    The session's settings ``spark.datasource.rabbitmq.NAME`` become default options; call `register` again after a change.
    The driver then also rejects a write under ``spark.speculation``, and on a local master a write without its password,
    before the job starts. On a local master, tasks run this Python, unless PYSPARK_PYTHON is set. In a terminal, a batch write
    on a local master prints its progress, unless ``spark.ui.showConsoleProgress`` is false.

    Returns:
        The counts of all writes of the application, updated at the end of each write or micro-batch: ``counts.now``. None
        with Spark Connect.

    Raises:
        InvalidValue: a setting is not the name of an option, or contains a password; the tasks would run another minor version of Python than this one;
            or PySpark 4.0 has already found the format and cannot replace it.
    """
    context = getattr(spark, "_sc", None)  # None with Spark Connect
    if context is not None:
        set_python_of_tasks(context)
    counts = counts_of(context)
    terminal = context is not None and sys.stderr.isatty()
    settings = replace(SessionSettings.of(dict(spark.conf.getAll), terminal=terminal), counts=counts)
    source = type(RabbitMQDataSource.__name__, (RabbitMQDataSource,), {"session": settings})
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # PySpark 4.0 raises this error if it has already found the format.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        if settings.options:
            raise _no_settings() from None
    activate(spark)
    return counts


def _no_settings() -> InvalidValue:
    return InvalidValue(
        "settings spark.datasource.rabbitmq.*",
        Unquoted("a format that PySpark 4.0 has found by itself"),
        "PySpark 4.1 or newer, which lets register replace it",
        "Pass the options to each read and write",
    )


def activate(spark: SparkSession) -> None:
    """Make a session active on this thread: Spark looks for formats written in Python in the active session."""
    spark.createDataFrame([], "value string")  # runs no job


def foreach_batch(
    prepare: Callable[[DataFrame], DataFrame] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that prepares each micro-batch and writes it to RabbitMQ.

        counts.writeStream.outputMode("update").foreachBatch(
            foreach_batch(lambda batch: order_for(batch, key="routing_key", seq="n", partitions=4), url=url, exchange="x")
        )

    ``prepare`` returns the columns of `spark_connector.columns.COLUMNS`. The options are those of ``format("rabbitmq")``
    and are checked here, before the query starts. Spark repeats a failed micro-batch, so rows may arrive twice.

    Spark rejects the output modes ``update`` and ``complete`` for sinks written in Python, and does not sort streaming DataFrames.
    In ``foreachBatch`` a micro-batch is an ordinary DataFrame, so both work.
    """
    if prepare is not None and not callable(prepare):
        raise InvalidValue(
            "prepare",
            type(prepare).__name__,
            "a function that takes a micro-batch and returns a DataFrame",
            "Pass options by name: url=..., exchange=...",
        )
    texts = {name: as_text(value) for name, value in options.items()}
    session = SparkSession.getActiveSession()
    defaults = {} if session is None else SessionSettings.of(dict(session.conf.getAll)).options
    texts = {**WriteOptions.applicable_defaults(texts, defaults), **texts}
    WriteOptions.of(texts)
    if not any(name.lower() == "checkexchange" for name in texts):
        texts["checkExchange"] = "false"  # it would ask the broker for each micro-batch

    def write(batch: DataFrame, _batch_id: int) -> None:
        activate(batch.sparkSession)  # Spark calls this on a thread of its own
        frame = batch if prepare is None else prepare(batch)
        frame.write.format("rabbitmq").options(**texts).mode("append").save()

    return write
