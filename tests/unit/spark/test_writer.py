"""How the driver handles the reports of its tasks, and what it rejects before a task starts."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import sys
from dataclasses import replace
from types import ModuleType
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

import pyspark_rabbitmq
from rabbit_chx import InvalidValue, RabbitChxError
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing import Timeouts, Totals
from spark_connector import RabbitMQDataSource, WriteFailed, foreach_batch
from spark_connector.worker import Task, Written, freeze_worker
from spark_connector.writing import publishers
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.partition import write_partition
from spark_connector.writing.publishing_ids import HOW_TO_CONTINUE
from spark_connector.writing.sinks import BrokerSink
from spark_connector.writing.writer import Writer
from tests.unit.complaints import complaint

URL = "amqp://user:CANARY@127.0.0.1:1"
SCHEMA = t.StructType([t.StructField("value", t.StringType()), t.StructField("key", t.StringType())])
BATCH = pa.record_batch([pa.array(["a"]), pa.array(["k"])], names=["value", "key"])


def source(**options: str) -> RabbitMQDataSource:
    return RabbitMQDataSource({"url": URL, "exchange": "x", "checkExchange": "false", **options})


def job(**options: str) -> WriteJob:
    return source(**options)._job(SCHEMA)


def test_a_complete_write_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    first = Written(
        0, rows=5, published=4, confirmed=4, dropped=1, first_dropped=("row 3",), bytes=100, connections=1
    )
    second = Written(1, query_id="q", rows=2, published=2, confirmed=2, resent=1, bytes=50, seconds=1.5)
    with caplog.at_level(logging.INFO):
        Writer(job()).commit([first, second], 7)
    (record,) = caplog.records
    assert json.loads(record.getMessage()) == {
        "event": "written",
        "exchange": "x",
        "batch": 7,
        "query": "q",
        "partitions": 2,
        "rows": 7,
        "confirmed": 6,
        "already_stored": 0,
        "dropped": 1,
        "resent": 1,
        "possible_duplicates": 1,
        "bytes": 150,
        "connections": 1,
        "seconds": 1.5,
        "first_dropped": ["row 3"],
    }


def test_a_problem_of_a_task_fails_the_commit_and_counts_what_is_in_the_broker() -> None:
    messages = [Written(0, rows=9, published=9, confirmed=9)]
    messages += [Written(n, rows=3, published=2, confirmed=1, problem=f"trouble {n}") for n in range(1, 6)]
    with pytest.raises(WriteFailed) as caught:
        Writer(job()).commit(list(messages))
    text = str(caught.value)
    assert "trouble 1; trouble 2; trouble 3; and 2 more partitions" in text
    assert "14 rows are in the broker already" in text


def test_rows_that_differ_from_the_stored_ones_are_not_told_to_be_added_by_another_run() -> None:
    problem = f"the rows differ: {HOW_TO_CONTINUE}"
    options = WriteOptions.of({"url": URL, "stream": "s", "producerName": "x"})
    write = replace(job(), options=options)
    with pytest.raises(WriteFailed) as failed:
        Writer(write).commit([Written(0, rows=2, problem=problem)])
    assert str(failed.value) == problem
    stopped = f"{problem}. Other tasks were stopped (failFast)"
    assert write.failure(stopped, "Published rows", "") == stopped
    assert write.failure("trouble", "0 rows", "") == (
        "trouble. 0 rows are in the broker already; another run of the same partitions with producerName=x adds only the missing rows"
    )
    assert write.failure("trouble?", "0 rows", "query").startswith(
        "trouble? 0 rows are in the broker already; the restarted query adds only the missing rows, if it has the same partitions"
    )


def test_stopped_partitions_fail_the_commit_as_well() -> None:
    stopped = [Written(n, rows=3, published=2, confirmed=2, stopped=True) for n in (1, 2)]
    with pytest.raises(
        WriteFailed, match=r"^trouble; 2 other partitions were stopped \(failFast\)\. 4 rows are in"
    ):
        Writer(job()).commit([Written(0, problem="trouble"), *stopped])
    with pytest.raises(WriteFailed, match="2 other partitions were stopped"):
        Writer(job()).commit([*stopped])


def test_a_task_without_a_report_fails_the_commit() -> None:
    for messages in ([None, None], [Written(0), None]):
        with pytest.raises(WriteFailed, match=r"trigger\(continuous"):
            Writer(job()).commit(messages, 3)


def test_a_task_that_cannot_reach_the_broker_raises_so_that_spark_repeats_it() -> None:
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        write_partition(iter([BATCH]), job(connectionTimeoutMs="100"), Task())


def test_an_unconfirmed_row_fails_the_commit() -> None:
    with pytest.raises(WriteFailed, match="1 rows were published but not confirmed"):
        Writer(job()).commit([Written(0, rows=2, published=2, confirmed=1)])


def test_an_abort_logs_the_confirmed_rows(caplog: pytest.LogCaptureFixture) -> None:
    Writer(job()).abort([Written(0, confirmed=5), None])
    Writer(job()).abort([Written(0, confirmed=7), None], 1)
    assert "1 of 2 partitions reported 5 confirmed rows" in caplog.text
    assert "7 confirmed rows" in caplog.text


@pytest.mark.parametrize("target", [{"exchange": "x"}, {"stream": "s", "streamPort": "1"}])
def test_a_driver_that_cannot_reach_the_broker_suggests_check_exchange_false(target: dict[str, str]) -> None:
    with pytest.raises(
        BrokerUnavailable, match="if only executors can reach the broker, set checkExchange=false"
    ):
        RabbitMQDataSource({"url": URL, **target}).writer(SCHEMA, overwrite=False)


def test_speculation_is_rejected_before_a_row_is_sent() -> None:
    task = Task(2, speculation=True)
    written = write_partition(iter([BATCH]), job(), task)
    assert "allowSpeculation=true" in written.problem
    assert replace(written, seconds=0.0, problem="") == Written(2)


@pytest.mark.parametrize(
    ("kind", "words"), [("writer", 'Use .mode("append")'), ("streamWriter", "foreach_batch")]
)
def test_rows_are_only_appended(kind: str, words: str) -> None:
    assert words in complaint(lambda: getattr(source(), kind)(SCHEMA, overwrite=True)).hint


def test_foreach_batch_checks_its_options_at_once() -> None:
    assert callable(foreach_batch(url=URL, exchange="x", maxInFlight=7, persistent=False))
    assert "Did you mean exchange?" in str(complaint(lambda: foreach_batch(url=URL, exchnge="x")))
    assert "function" in str(complaint(lambda: foreach_batch({"url": URL})))  # type: ignore[arg-type]


# ---- how names are found


def test_a_connector_that_cannot_be_imported_hides_no_other_format(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModuleType("spark_connector.data_source")  # which has no RabbitMQDataSource
    monkeypatch.setitem(sys.modules, "spark_connector.data_source", broken)
    assert not hasattr(pyspark_rabbitmq, "DefaultSource")


def test_errors_are_those_of_rabbit_chx() -> None:
    assert issubclass(WriteFailed, RabbitChxError)
    with pytest.raises(InvalidValue):
        source(maxInFlight="0").writer(SCHEMA, False)
    assert str(pickle.loads(pickle.dumps(WriteFailed("text")))) == "text"


# ---- arguments of the publisher


def test_options_become_arguments_of_the_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock()
    monkeypatch.setattr(publishers, "Publisher", made)
    options = WriteOptions.of(
        {
            "url": "amqp://me@h1,amqp://me@h2",
            "password": "CANARY",
            "maxInFlight": "7",
            "maxMessageBytes": "8",
            "connectionTimeoutMs": "1500",
            "reconnectTimeoutMs": "2000",
            "confirmTimeoutMs": "3000",
            "retryTimeoutMs": "4000",
            "heartbeatSeconds": "5",
            "persistent": "false",
        }
    )
    publishers.borrow(options, "a name").open.assert_called_once_with()
    (urls,), told = made.call_args
    credentials = told.pop("credentials")
    assert callable(credentials)
    assert credentials() == ("me", "CANARY")
    assert urls == [BrokerUrl("h1", user="me"), BrokerUrl("h2", user="me")]
    assert told == {
        "properties": {"delivery_mode": 1},
        "max_in_flight": 7,
        "max_message_bytes": 8,
        "timeouts": Timeouts(connect=1.5, reconnect=2.0, retry=4.0, confirm=3.0, blocked=900.0),
        "heartbeat": 5,
        "tls": None,
        "connection_name": "a name",
    }


def test_a_kept_connection_has_the_name_of_the_query_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(publishers, "_kept", {})
    monkeypatch.setattr(publishers, "_watched", set())
    monkeypatch.setattr(publishers, "_watch", lambda *_: None)
    opened: list[str] = []

    def publisher(*_: object, connection_name: str, **__: object) -> Mock:
        opened.append(connection_name)
        made = Mock(error=None, totals=Totals())
        made.bulk.return_value = Mock(totals=Totals())
        return made

    monkeypatch.setattr(publishers, "Publisher", publisher)
    for query in ("q", "other", "q", "", "other", ""):
        sink = BrokerSink(job(), Task(3, 1, "my app", query, "17"))
        sink.limits()
        sink.finish(whole=True)
        sink.close()
    assert [name.split(" pid")[0] for name in opened] == [
        "rabbit-chx spark my app query q batch 17 partition 3 attempt 1",
        "rabbit-chx spark my app query other batch 17 partition 3 attempt 1",
        "rabbit-chx spark my app batch partition 3 attempt 1",
    ]


@pytest.fixture
def context() -> TaskContext:
    """A task of Spark, which runs as soon as the test says so."""
    context: TaskContext = object.__new__(TaskContext)  # TaskContext() would let it run at once
    context._partitionId, context._attemptNumber = 3, 1
    context._localProperties = {
        "spark.app.name": "my app",
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": "17",
        "spark.jobGroup.id": "run",
        "spark.speculation": "True",
    }
    return context


def test_a_task_knows_what_spark_tells_it(monkeypatch: pytest.MonkeyPatch, context: TaskContext) -> None:
    assert Task.current() == Task()
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    assert Task.current() == Task(3, 1, "my app", "q", "17", "run", speculation=True)
    context._localProperties = {}
    assert Task.current() == Task(3, 1)


def test_after_a_task_the_collections_of_spark_visit_no_module(
    monkeypatch: pytest.MonkeyPatch, context: TaskContext
) -> None:
    writer = Writer(job(dryRun="true"))
    before = gc.get_freeze_count()  # some objects of Python itself are frozen from the start since 3.12
    writer.write(iter([]))
    assert gc.get_freeze_count() == before  # outside Spark

    context._localProperties = {}
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    freeze_worker.cache_clear()
    try:
        writer.write(iter([]))
        assert gc.get_freeze_count() > before + 10_000
    finally:
        gc.unfreeze()
        freeze_worker.cache_clear()
