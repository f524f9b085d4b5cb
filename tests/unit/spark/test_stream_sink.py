"""A task that runs again with other rows fails, also if it has no row for a stream that has rows of the earlier attempt.

The last tests are about the publishing ids that tell rows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as t

from rabbit_chx import SuperStream
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.publishing import Totals
from rabbit_chx.streams.messages.encode import encode_messages
from spark_connector import RabbitMQDataSource
from spark_connector.worker import Task, WriteFailed
from spark_connector.writing import sinks, stream_sink
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.partition import write_partition
from spark_connector.writing.publishing_ids import HOW_TO_CONTINUE, MAX_ROWS, NotRepeatable, PublishingIds
from spark_connector.writing.writer import Writer

STREAMS = ["e-0", "e-1", "e-2"]
SCHEMA = t.StructType([t.StructField("value", t.StringType()), t.StructField("key", t.StringType())])
KEY = {SuperStream(STREAMS).route(key): key for key in map(str, range(50))}
"""A key for each stream."""


class Broker:
    """Streams, and what they remember of producer names."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.last: dict[tuple[str, str | None], int] = {}
        self.has_majority = True
        """Whether it confirms what it stores."""
        self.asked: list[str] = []
        """The streams that were asked for an id without a publisher."""

    def numbers(self) -> list[int]:
        """The stored rows that are numbers."""
        return [NUMBER[message] for _, message in self.stored]

    def last_ids(
        self, _options: object, streams: Sequence[str], producers: Sequence[str]
    ) -> dict[tuple[str, str], int]:
        self.asked += streams
        pairs = [(stream, producer) for stream in streams for producer in producers]
        return {pair: self.last.get(pair, 0) for pair in pairs}


class Publisher:
    max_message_bytes = 1 << 20

    def __init__(self, broker: Broker, stream: str, name: str | None) -> None:
        self.stream, self.name, self.totals = stream, name, Totals()
        self._broker = broker

    def sequence(self) -> int:
        return self._broker.last.get((self.stream, self.name), 0)

    def bulk(self) -> Publisher:
        return self

    def _add_encoded(self, messages: Sequence[bytes], ids: Sequence[int] | None = None) -> None:
        duplicates = self.totals.duplicates
        for number, message in zip(ids or range(len(messages)), messages, strict=True):
            if self.name is None or number > self.sequence():
                self._broker.stored.append((self.stream, message))
                self._broker.last[self.stream, self.name] = number
            else:
                duplicates += 1
        done = self.totals.published + len(messages)
        self.totals = replace(self.totals, published=done, confirmed=done, duplicates=duplicates)

    def flush(self) -> None:
        if self.totals.published and not self._broker.has_majority:
            raise StreamUnavailable("no confirm", "lost", self.stream)

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


def job(**options: str) -> WriteJob:
    """A write to a stream, or else to a super stream."""
    target = {} if "stream" in options else {"superStream": "e"}
    return RabbitMQDataSource({"url": "amqp://h", "checkExchange": "false", **target, **options})._job(SCHEMA)


def batch_of(keys: Iterable[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(map(str, keys), pa.string())] * 2, names=["value", "key"])


def problem(task: Task, streams: str, **options: str) -> str:
    """Write a row to each stream whose number is in the text, and return the problem of the task."""
    batches = [batch_of(KEY[f"e-{number}"] for number in streams)] if streams else []
    return write_partition(iter(batches), job(producerName="p", **options), task).problem


FIRST, AGAIN = Task(0), Task(0, attempt=1)
QUERY = Task(0, query_id="q", batch_id="3")


def run(task: Task) -> Task:
    """The task in another run of its query."""
    return replace(task, run=str(uuid4()))


@pytest.mark.parametrize("streams", ["0", "1", ""])
def test_a_repeated_task_without_a_row_for_a_stream_that_has_rows_of_it_fails(
    broker: Broker, streams: str
) -> None:
    assert problem(FIRST, "01") == ""
    assert "number 0, but the stream has 1 (producer name 'p/0'). Divide" in problem(AGAIN, streams)
    assert len(broker.stored) == 2
    assert problem(AGAIN, "01") == ""


def test_a_batch_under_a_given_name_is_compared_on_its_first_attempt(broker: Broker) -> None:
    assert problem(FIRST, "01") == ""
    assert "for stream 'e-1' number 0" in problem(FIRST, "0")
    assert "for stream 'e-0' number 0" in problem(FIRST, "")


@pytest.mark.parametrize("streams", ["0", "2", ""])
def test_a_micro_batch_of_a_restarted_query_is_compared(broker: Broker, streams: str) -> None:
    task = run(QUERY)
    assert problem(task, "01") == ""
    assert "for stream 'e-1' number 0" in problem(run(QUERY), streams).replace("'e-0'", "'e-1'")
    assert problem(replace(task, batch_id="4"), streams) == ""


def test_only_the_first_micro_batch_of_a_run_asks_other_streams_than_those_of_its_rows(
    broker: Broker,
) -> None:
    first = run(QUERY)
    assert problem(first, "0") == ""
    assert set(broker.asked) == set(STREAMS)
    broker.asked.clear()
    for batch_id in ("4", "5"):
        assert problem(replace(first, batch_id=batch_id), "0") == ""
        assert problem(replace(first, batch_id=batch_id, partition=1), "") == ""
    assert broker.asked == []
    assert problem(replace(run(first), batch_id="6"), "0") == ""
    assert set(broker.asked) == set(STREAMS)


@pytest.mark.parametrize("group", ["", "a job group of the program"])
def test_without_the_id_of_the_run_each_micro_batch_asks(broker: Broker, group: str) -> None:
    for batch_id in ("3", "4"):
        broker.asked.clear()
        assert problem(replace(QUERY, batch_id=batch_id, run=group), "0") == ""
        assert set(broker.asked) == set(STREAMS)


@pytest.mark.parametrize("task", [FIRST, QUERY], ids=["batch", "micro-batch"])
def test_a_repeated_task_fails_until_a_majority_has_the_rows_of_the_first_attempt(
    broker: Broker, task: Task
) -> None:
    broker.has_majority = False
    for attempt in range(2):
        with pytest.raises(BrokerUnavailable, match="no confirm"):
            problem(replace(task, attempt=attempt), "01")
    assert len(broker.stored) == 2
    broker.has_majority = True
    assert problem(replace(task, attempt=2), "01") == ""
    assert len(broker.stored) == 2


def test_rows_of_an_earlier_attempt_are_counted_as_already_stored(broker: Broker) -> None:
    for rows, before in ((3, 0), (5, 3), (5, 5)):
        written = write_partition(iter([batch_of(range(rows))]), job(**NAMED), BATCH)
        new = rows - before
        assert (written.published, written.confirmed, written.already_stored) == (new, new, before)


# -- another number of partitions

NAMED = {"stream": "e", "producerName": "P"}
TEXTS = [str(number).encode() for number in range(80)]
NUMBER = {message: number for number, message in enumerate(encode_messages(bodies=TEXTS, routing_keys=TEXTS))}


@pytest.mark.parametrize("size", [2, 5])
def test_a_repeated_write_names_its_invalid_row_and_what_is_stored(broker: Broker, size: int) -> None:
    """Once, it said that 0 rows were stored, or, of a larger Arrow batch, that the rows were other ones."""
    column = pa.array(["a", "b", "c", None, "e"])
    rows = pa.record_batch([column, column.fill_null("key")], names=["value", "key"])
    again = job(stream="e", producerName="p")
    for length in (2, size):
        batches = (rows.slice(start, length) for start in range(0, 5, length))
        with pytest.raises(WriteFailed, match=r"^row 3 of partition 0: .* 2 rows are in the broker already"):
            Writer(again).commit([write_partition(batches, again, FIRST)])
    assert len(broker.stored) == 2


def attempt(rows: Sequence[int], partitions: int, task: Task, done: Sequence[int] | None = None) -> str:
    """Write numbers to a stream in contiguous partitions, of which only those in ``done`` run. Return the error."""
    write, size = job(**NAMED), -(-len(rows) // partitions)
    written = []
    for number in range(partitions) if done is None else done:
        batch = batch_of(rows[number * size : (number + 1) * size])
        written.append(write_partition(iter([batch]), write, replace(task, partition=number)))
    if done is not None:
        return "killed"
    try:
        Writer(write).commit(written)
    except WriteFailed as error:
        return str(error)
    return ""


BATCH = Task(0)


@pytest.mark.parametrize("task", [BATCH, QUERY], ids=["batch", "micro-batch"])
@pytest.mark.parametrize("done", [[0, 1], [1], [3], [0, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8])
def test_another_number_of_partitions_stores_no_row_twice_in_silence(
    broker: Broker, partitions: int, done: list[int], task: Task
) -> None:
    """Once, 1,500 rows were stored for 1,000, and the write succeeded."""
    rows = range(40)
    assert attempt(rows, 4, run(task), done) == "killed"
    error = attempt(rows, partitions, run(task))
    stored = sorted(broker.numbers())
    assert error or stored == list(rows)
    assert stored == list(rows) or "docs/spark-guarantees.md" in error
    assert "adds only the missing rows" not in error


def test_the_same_partitions_add_only_the_missing_rows(broker: Broker) -> None:
    for done in ([3], [0, 3]):
        attempt(range(40), 4, run(QUERY), done)
        assert attempt(range(40), 4, run(QUERY)) == ""
        assert sorted(broker.numbers()) == list(range(40))


def test_fewer_partitions_in_later_micro_batches_are_no_problem(broker: Broker) -> None:
    assert attempt(range(40), 4, run(QUERY)) == ""
    assert attempt(range(40, 80), 2, run(replace(QUERY, batch_id="4"))) == ""
    assert sorted(broker.numbers()) == list(range(80))


def test_an_older_checkpoint_has_an_error_of_its_own(broker: Broker) -> None:
    """Once, sorting was the advice."""
    attempt(range(4), 1, run(replace(QUERY, batch_id="7")))
    error = attempt(range(4), 1, run(QUERY))
    assert "belong to micro-batch 3, but the stream has rows of micro-batch 7" in error
    assert "The checkpoint is older than the stream, or another write used the producer name" in error
    assert HOW_TO_CONTINUE in error
    assert "sort" not in error


def test_rows_in_another_order_have_an_error_of_their_own(broker: Broker) -> None:
    attempt(range(4), 1, BATCH)
    error = attempt([1, 0, 2, 3], 1, BATCH)
    assert 'in the same order as before (df.sortWithinPartitions("id")' in error
    assert f"another producerName: {HOW_TO_CONTINUE}" in error
    assert attempt([1, 0, 2, 3], 1, BATCH) == error
    assert broker.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("task", [FIRST, QUERY])
def test_a_repeated_task_with_task_headers_has_the_same_rows(broker: Broker, task: Task) -> None:
    assert not problem(task, "0", taskHeaders="true")
    assert not problem(replace(task, attempt=1), "0", taskHeaders="true")
    ((_, message),) = broker.stored
    assert b"x-spark-partition" in message


def test_more_partitions_than_producer_names_are_rejected(broker: Broker) -> None:
    assert problem(Task(254), "0") == ""
    assert "exactlyOnce=true supports at most 255 partitions" in problem(Task(255), "0")


def test_a_message_larger_than_a_frame_is_named(broker: Broker) -> None:
    batch = pa.record_batch([["x" * ((1 << 20) - 10)], ["k" * 255]], names=["value", "key"])
    assert "row 0 of partition 0: the message has" in write_partition(iter([batch]), job(), FIRST).problem


def test_a_dry_run_asks_for_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = StreamUnavailable("gone", "no such stream", "e")
    asked = []

    def refuse(options: object) -> None:
        asked.append(options)
        raise gone

    monkeypatch.setattr(sinks, "check_streams", refuse)
    assert str(gone) in problem(QUERY, "01", dryRun="true")
    assert len(asked) == 1


def test_a_dry_run_refuses_a_body_that_no_frame_contains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "check_streams", lambda _: None)

    def refused(size: int, **options: str) -> str:
        batch = pa.record_batch([["x" * size], ["k"]], names=["value", "key"])
        return write_partition(iter([batch]), job(dryRun="true", **options), FIRST).problem

    assert refused(1 << 20) == ""
    assert "value is longer than 1048576 bytes" in refused((1 << 20) + 1)
    assert refused(2 << 20, maxMessageBytes=str(2 << 20)) == ""
    assert "value is longer than 2097152 bytes" in refused((2 << 20) + 1, maxMessageBytes=str(2 << 20))


def test_without_exactly_once_no_stream_is_asked(broker: Broker) -> None:
    assert write_partition(iter([]), job(exactlyOnce="false"), AGAIN).problem == ""
    assert broker.asked == []


# -- the ids of rows


@given(
    micro_batches=st.lists(st.lists(st.binary(max_size=3), max_size=30), max_size=5),
    attempts=st.lists(st.integers(0, 40), max_size=4),
    batch=st.booleans(),
)
def test_rows_of_attempts_that_end_anywhere_are_stored_once_and_in_order(
    micro_batches, attempts, batch
) -> None:
    broker = Broker()
    stream = Publisher(broker, "e", "p")
    numbers = [None] if batch else range(7, 7 + len(micro_batches))
    for number, rows in zip(numbers, micro_batches, strict=False):
        for rows_sent in (*attempts, len(rows)):
            ids = PublishingIds(number, stream.sequence())
            for some in (rows[: rows_sent // 2], rows[rows_sent // 2 : rows_sent]):
                sent = ids.of(some)
                stream._add_encoded(some[len(some) - len(sent) :], sent)
            if rows_sent >= len(rows):
                ids.end()
        assert ids.last == stream.sequence()
    assert [row for _, row in broker.stored] == [
        row for rows in micro_batches[: len(numbers)] for row in rows
    ]


def test_ids_fit_into_63_bits_and_their_rows_are_limited() -> None:
    ids = PublishingIds(2**27 - 1, 0)
    ids.rows = MAX_ROWS - 1
    assert ids.of([b""])[0] < 2**63
    with pytest.raises(NotRepeatable, match=f"exceed the maximum of {MAX_ROWS} in one micro-batch"):
        ids.of([b""])
