"""A task that runs again with other rows fails, also if it has no row for a stream that has rows of the earlier attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from rabbit_chx import SuperStream
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.publishing import Totals
from spark_connector import RabbitMQDataSource
from spark_connector.worker import Task
from spark_connector.writing import sinks, stream_sink
from spark_connector.writing.partition import write_partition

STREAMS = ["e-0", "e-1", "e-2"]
SCHEMA = t.StructType([t.StructField("value", t.StringType()), t.StructField("key", t.StringType())])
KEY = {SuperStream(STREAMS).route(key): key for key in map(str, range(50))}
"""A key for each stream."""


class Broker:
    """Streams, and what they remember of producer names."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.last: dict[tuple[str, str | None], int] = {}
        self.asked: list[str] = []
        """The streams that were asked for an id without a publisher."""

    def last_ids(self, _options: object, streams: Sequence[str], producer: str) -> dict[str, int]:
        self.asked += streams
        return {stream: self.last.get((stream, producer), 0) for stream in streams}


class Publisher:
    max_message_bytes = 1 << 20

    def __init__(self, broker: Broker, stream: str, name: str | None) -> None:
        self.stream, self.name, self.totals = stream, name, Totals()
        self._broker = broker

    def sequence(self) -> int:
        return self._broker.last.get((self.stream, self.name), 0)

    def add_encoded(self, messages: list[tuple[int, bytes]]) -> None:
        for number, message in messages:
            if self.name is None or number > self.sequence():
                self._broker.stored.append((self.stream, message))
                self._broker.last[self.stream, self.name] = number
        done = self.totals.published + len(messages)
        self.totals = replace(self.totals, published=done, confirmed=done)

    def flush(self) -> None: ...

    def close(self, timeout: float) -> None: ...


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    monkeypatch.setattr(
        stream_sink, "open_publisher", lambda _options, stream, name, _: Publisher(broker, stream, name)
    )
    monkeypatch.setattr(stream_sink, "last_ids", broker.last_ids)
    monkeypatch.setattr(
        stream_sink, "streams_of", lambda options: STREAMS if options.super_stream else [options.stream]
    )
    return broker


def problem(task: Task, streams: str, **options: str) -> str:
    """Write a row to each stream whose number is in the text, and return the problem of the task."""
    given = {"url": "amqp://h", "superStream": "e", "checkExchange": "false", "producerName": "p", **options}
    if "stream" in options:
        del given["superStream"]
    keys = [KEY[f"e-{number}"] for number in streams]
    batch = pa.record_batch([pa.array(keys, pa.string())] * 2, names=["value", "key"])
    job = RabbitMQDataSource(given)._job(SCHEMA)
    return write_partition(iter([batch] if keys else []), job, task).problem


FIRST, AGAIN = Task(0), Task(0, attempt=1)
QUERY = Task(0, query_id="q", batch_id="3")


@pytest.mark.parametrize("streams", ["0", "1", ""])
def test_a_repeated_task_without_a_row_for_a_stream_that_has_rows_of_it_fails(
    broker: Broker, streams: str
) -> None:
    assert problem(FIRST, "01") == ""
    assert "number 0, but the stream has 1 (producer name 'p/0'). Sort" in problem(AGAIN, streams)
    assert len(broker.stored) == 2
    assert problem(AGAIN, "01") == ""


def test_a_repeated_task_without_rows_fails_if_the_stream_has_rows_of_it(broker: Broker) -> None:
    assert problem(FIRST, "01", stream="e") == ""
    assert "for stream 'e' number 0, but the stream has 2" in problem(AGAIN, "", stream="e")


def test_a_batch_under_a_given_name_is_compared_on_its_first_attempt(broker: Broker) -> None:
    assert problem(FIRST, "01") == ""
    assert "for stream 'e-1' number 0" in problem(FIRST, "0")
    assert "for stream 'e-0' number 0" in problem(FIRST, "")


def test_a_micro_batch_of_a_restarted_query_is_compared_if_a_stream_has_rows_of_it(broker: Broker) -> None:
    assert problem(QUERY, "01") == ""
    assert "for stream 'e-1' number 0" in problem(QUERY, "0")
    assert problem(replace(QUERY, batch_id="4"), "0") == ""


def test_the_first_attempt_of_a_query_asks_only_the_streams_of_its_rows(broker: Broker) -> None:
    for batch_id in ("3", "4"):
        assert problem(replace(QUERY, batch_id=batch_id), "0") == ""
        assert problem(replace(QUERY, batch_id=batch_id, partition=1), "") == ""
    assert broker.asked == []


@pytest.mark.parametrize("task", [FIRST, QUERY])
def test_a_repeated_task_with_task_headers_has_the_same_rows(broker: Broker, task: Task) -> None:
    assert not problem(task, "0", taskHeaders="true")
    assert not problem(replace(task, attempt=1), "0", taskHeaders="true")
    ((_, message),) = broker.stored
    assert b"x-spark-partition" in message


def test_a_dry_run_asks_for_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = StreamUnavailable("gone", "no such stream", "e")
    asked = []

    def refuse(options: object) -> None:
        asked.append(options)
        raise gone

    monkeypatch.setattr(sinks, "check_streams", refuse)
    assert str(gone) in problem(QUERY, "01", dryRun="true")
    assert len(asked) == 1


def test_without_exactly_once_no_stream_is_asked(broker: Broker) -> None:
    named = RabbitMQDataSource({"url": "amqp://h", "superStream": "e", "exactlyOnce": "false"})._job(SCHEMA)
    assert write_partition(iter([]), named, AGAIN).problem == ""
    assert broker.asked == []
