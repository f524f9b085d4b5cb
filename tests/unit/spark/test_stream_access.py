"""Where streams end if a replica lags behind, and what a query reads of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Self
from unittest.mock import Mock

import pyarrow as pa
import pytest

from rabbit_chx.base import outages
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.ends import Bounds
from rabbit_chx.streams.protocol.opening import OnOtherNode
from spark_connector import RabbitMQDataSource
from spark_connector.reading import rows, schema, stream_access
from spark_connector.reading.offsets import DataLoss, SavedOffset, offsets_in
from spark_connector.reading.readers import StreamingReader
from spark_connector.reading.stream_access import StreamAccess

limits = pytest.mark.pyspark("4.2", "it has no read limits")


class Node:
    """A node that has a stream up to some offset; a connection to it; a reader at it."""

    def __init__(self, end: int, made: int) -> None:
        self.end = end
        self.made = made
        """A number that another stream of the same name does not have."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do."""

    def stored_at(self, offset: int) -> int | None:
        return self.made + offset if offset < self.end else None

    def _check_same(self, offset: int, time_ms: int) -> None:
        if self.stored_at(offset) not in {None, time_ms}:
            raise StreamUnavailable("created again", "no such stream", "s")

    def read(
        self, start: int, end: int, *, columns: tuple[str, ...], binary_headers: bool
    ) -> Iterator[pa.RecordBatch]:
        assert (columns, binary_headers) == (("offset",), False)
        if end > self.end:
            raise StreamUnavailable("beyond", "beyond the end", "s", 0, self.end)
        yield pa.RecordBatch.from_pydict({"offset": range(start, end)})


class Cluster:
    """The leader and a replica of a stream, without sockets."""

    def __init__(self) -> None:
        self.leader, self.replica = Node(100, 7_000), Node(100, 7_000)

    def connected(self, _options, _stream="", *, leader: bool = False, **_) -> Node:
        return self.leader if leader else self.replica

    def recreate(self, end: int) -> None:
        self.leader, self.replica = Node(end, 9_000), Node(end, 9_000)


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(stream_access, "connected", cluster.connected)
    monkeypatch.setattr(rows, "stream_reader", cluster.connected)
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(0, node.end))
    monkeypatch.setattr(stream_access, "stored_at", lambda node, stream, offset: node.stored_at(offset))
    monkeypatch.setattr(stream_access, "_PAUSE_SECONDS", 0.001)
    return cluster


def source_of(**options: str) -> RabbitMQDataSource:
    given = {"url": "amqp://h", "stream": "s", "startingOffsets": "earliest", "connectionTimeoutMs": "10"}
    return RabbitMQDataSource({**given, "columns": "offset", **options})


def reader(**options: str) -> StreamingReader:
    source = source_of(**options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamingReader)
    return made


def stored(offset: dict[str, SavedOffset]) -> dict[str, SavedOffset]:
    """An offset after a round trip through a checkpoint."""
    return json.loads(json.dumps(offset))


def ranges(planned) -> list[tuple[int, int]]:
    return [(one.range.start, one.range.end) for one in planned]


class Query:
    """Plans micro-batches as Spark does: before 4.2, it passes no start to `latestOffset`; since then also a limit."""

    def __init__(self, reader: StreamingReader, *, passes_start: bool = True, limited: bool = False) -> None:
        self.reader = reader
        self.at = stored(reader.initialOffset())
        self._passes_start = passes_start
        self._limited = limited

    def plan(self) -> list[tuple[int, int]]:
        given = [self.at] if self._passes_start else []
        given += [self.reader.getDefaultReadLimit()] if self._limited else []
        start, self.at = self.at, stored(self.reader.latestOffset(*given))
        return ranges(self.reader.partitions(start, self.at))


@pytest.fixture(params=[True, False], ids=["4.2", "4.0"])
def passes_start(request) -> bool:
    return request.param


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_replica_that_lags_behind_is_not_taken_for_a_new_stream(
    cluster, passes_start, fail_on_data_loss, restarted
) -> None:
    query = Query(reader(failOnDataLoss=fail_on_data_loss), passes_start=passes_start)
    assert query.plan() == [(0, 100)]
    cluster.replica.end, cluster.leader.end = 80, 120
    if (
        restarted
    ):  # then Spark first asks for the partitions between the last offset of its log and the same offset
        query.reader = reader(failOnDataLoss=fail_on_data_loss)
        assert query.reader.partitions(query.at, query.at) == []
    query.reader._access.close()  # the next connection leads to the replica
    assert query.plan() == [(100, 120)]
    cluster.leader.end = 150
    assert query.plan() == [(120, 150)]


def test_a_new_stream_that_is_shorter_is_recognised(cluster, passes_start) -> None:
    query = Query(reader(failOnDataLoss="false"), passes_start=passes_start)
    strict = Query(reader(), passes_start=passes_start)
    assert query.plan() == strict.plan() == [(0, 100)]
    cluster.recreate(30)
    for one in (query, strict):
        one.reader._access.close()
    with pytest.raises(DataLoss, match=r"was deleted and created again.*failOnDataLoss=false"):
        strict.plan()
    assert [*query.plan(), *query.plan()] == [(0, 30)]


@pytest.mark.parametrize("limit", [pytest.param("20", marks=limits), pytest.param("19", marks=limits), None])
def test_a_new_stream_is_read_from_its_first_row_wherever_the_first_micro_batch_of_it_ends(
    cluster, limit
) -> None:
    """The end of a micro-batch of 20 rows of the new stream is the offset at which the old stream ended."""
    cluster.leader = cluster.replica = Node(20, 7_000)
    given = {} if limit is None else {"maxRowsPerTrigger": limit}
    query = Query(reader(failOnDataLoss="false", **given), limited=limit is not None)
    while query.plan():
        pass
    cluster.recreate(50)
    query.reader._access.close()
    read = []
    while planned := query.plan():
        read += planned
    assert (read[0][0], read[-1][1]) == (0, 50)
    assert [end for _, end in read[:-1]] == [start for start, _ in read[1:]]


@limits
def test_a_micro_batch_is_limited_over_all_streams_unless_spark_asks_for_all_rows(cluster) -> None:
    made = reader(stream="s,t", maxRowsPerTrigger="20")
    start = stored(made.initialOffset())
    assert offsets_in(made.latestOffset(start, made.getDefaultReadLimit())) == {"s": 10, "t": 10}
    everything = made.latestOffset(start, schema.limits.ReadAllAvailable())  # as with trigger(once=True)
    assert offsets_in(everything) == {"s": 100, "t": 100}


@limits
def test_rows_that_retention_has_deleted_take_no_micro_batches(cluster, monkeypatch) -> None:
    """With a limit in rows, a query that was stopped for long would plan empty micro-batches for hours."""
    query = Query(reader(failOnDataLoss="false", maxRowsPerTrigger="10"), limited=True)
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(75, node.end))
    assert [query.plan() for _ in range(4)] == [[(75, 85)], [(85, 95)], [(95, 100)], []]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_batch_from_the_earliest_offset_is_empty_if_it_ends_before_that(
    cluster, monkeypatch, fail_on_data_loss
) -> None:
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(75, node.end))

    def batch(end: int, **start: str) -> list[tuple[int, int]]:
        given = {"startingOffsets": "earliest", "endingOffsets": json.dumps({"s": end}), **start}
        source = source_of(failOnDataLoss=fail_on_data_loss, **given)
        return ranges(source.reader(source.schema()).partitions())

    assert batch(9) == batch(75) == []
    assert batch(9, startingOffsets='{"s": "earliest"}') == []
    assert batch(80) == [(75, 80)]
    for start in ('{"s": 76}', "latest"):
        with pytest.raises(InvalidValue, match="expected at most 9, where the read ends"):
            batch(9, startingOffsets=start)


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_spark_asks_a_new_query_more_than_once_where_it_starts_and_gets_the_same_answer(
    cluster, passes_start, fail_on_data_loss
) -> None:
    made = reader(startingOffsets="latest", failOnDataLoss=fail_on_data_loss)
    start = stored(made.initialOffset())
    cluster.leader.end = cluster.replica.end = 103
    end = stored(made.latestOffset(start) if passes_start else made.latestOffset())
    cluster.leader.end = cluster.replica.end = 106
    assert stored(made.initialOffset()) == start
    assert ranges(made.partitions(stored(made.initialOffset()), end)) == [(100, 103)]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_first_micro_batch_that_was_planned_before_the_start_is_asked_for_is_empty(
    cluster, fail_on_data_loss
) -> None:
    """Spark before 4.2 asks in this order, and so does a query that was killed before its first commit."""
    given = {"startingOffsets": "latest", "failOnDataLoss": fail_on_data_loss}
    earlier, again = reader(**given), reader(**given)
    end = stored(earlier.latestOffset())
    cluster.leader.end = cluster.replica.end = 5_000
    for made in (earlier, again):
        assert made.partitions(stored(made.initialOffset()), end) == []
        assert ranges(made.partitions(end, stored(made.latestOffset(end)))) == [(100, 5_000)]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_stream_that_joins_before_the_first_commit_is_read_in_the_next_micro_batch(
    cluster, monkeypatch, fail_on_data_loss
) -> None:
    given = {"failOnDataLoss": fail_on_data_loss}
    monkeypatch.setattr(StreamAccess, "chosen", lambda *_: ["s", "t"])
    end = stored(reader(**given).latestOffset())
    monkeypatch.setattr(StreamAccess, "chosen", lambda *_: ["s", "t", "u"])
    again = reader(**given)
    planned = again.partitions(stored(again.initialOffset()), end)
    assert [each.range[:3] for each in planned] == [("s", 0, 100), ("t", 0, 100)]
    joined = stored(again.latestOffset(end))
    assert again.partitions(end, joined) == []
    cluster.leader.end = cluster.replica.end = 103
    following = again.partitions(joined, stored(again.latestOffset(joined)))
    assert [each.range[:3] for each in following] == [("s", 100, 103), ("t", 100, 103), ("u", 0, 103)]


def test_retention_before_the_first_commit_is_named_as_such(cluster, monkeypatch) -> None:
    end = stored(reader().latestOffset())
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(150, node.end))
    cluster.leader.end = cluster.replica.end = 200
    again = reader()
    assert again.partitions(stored(again.initialOffset()), end) == []
    with pytest.raises(
        DataLoss, match=r"no longer has the offsets 100 to 149: its retention.*failOnDataLoss=false"
    ):
        again.latestOffset(end)


def test_the_checkpoint_of_a_query_on_another_stream_is_an_error_from_the_first_micro_batch_on(
    cluster,
) -> None:
    end = {"other": {"offset": 100}}
    made = reader()
    with pytest.raises(DataLoss, match="of a query that read stream 'other', and this query reads"):
        made.partitions(stored(made.initialOffset()), end)


def test_connections_that_were_idle_for_longer_than_heartbeats_are_replaced_in_silence(
    cluster, monkeypatch, caplog
) -> None:
    opened = Mock(side_effect=cluster.connected)
    monkeypatch.setattr(stream_access, "connected", opened)
    made = reader()
    at = stored(made.initialOffset())
    made.latestOffset(at)
    assert opened.call_count == 1
    made._access._asked -= 61
    made.latestOffset(at)
    assert opened.call_count == 2
    assert not caplog.records


def test_a_micro_batch_is_not_planned_from_a_number_that_another_source_has_saved(cluster) -> None:
    for saved in (0, 5):
        with pytest.raises(
            InvalidValue, match=f"got offsets of another format: {saved}, expected offsets of streams"
        ):
            reader().latestOffset(saved)  # type: ignore[arg-type]


def test_a_task_at_a_replica_that_lags_behind_reads_from_the_leader(cluster) -> None:
    cluster.replica.end = 80
    (partition,) = reader().partitions({"s": {"offset": 0}}, {"s": {"offset": 100}})
    (batch,) = reader().read(partition)
    assert batch.num_rows == 100
    cluster.leader.end = 90
    with pytest.raises(StreamUnavailable, match="beyond"):
        list(reader().read(partition))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_notices_that_the_stream_was_created_again_after_the_driver_planned_its_range(
    cluster, streaming
) -> None:
    source = source_of(minPartitions="2")
    if streaming:
        made = source.streamReader(source.schema())
        start = made.initialOffset()
        planned = made.partitions(start, stored(made.latestOffset(start)))
    else:
        made = source.reader(source.schema())
        planned = made.partitions()
    assert [batch.num_rows for one in planned for batch in made.read(one)] == [50, 50]
    cluster.recreate(120)
    for one in planned:
        with pytest.raises(StreamUnavailable, match="created again"):
            list(made.read(one))


def test_an_offset_beyond_the_end_is_an_error_in_batches_and_in_new_queries(cluster) -> None:
    source = source_of(startingOffsets='{"s": 101}')
    schema = source.schema()
    for plan in (source.reader(schema).partitions, source.streamReader(schema).initialOffset):
        with pytest.raises(InvalidValue, match="got 101, expected an offset from 0 to 100, where the stream"):
            plan()


@pytest.mark.parametrize(("seconds", "still"), [(1e9, 0), (0.0, 3)])
def test_an_outage_is_logged_when_it_begins_while_it_lasts_and_when_it_ends(
    cluster, monkeypatch, caplog, seconds, still
) -> None:
    failures: list[StreamUnavailable] = []

    def bounds(node, stream):
        if failures:
            raise failures.pop()
        return Bounds(0, node.end)

    monkeypatch.setattr(stream_access, "bounds", bounds)
    monkeypatch.setattr(outages, "_EVERY_SECONDS", seconds)
    query = Query(reader())
    failures += [StreamUnavailable("the connection to h was lost: reset", "lost")] * 4
    query.plan()
    query.plan()
    first, *others, last = [record.getMessage() for record in caplog.records]
    assert first == (
        "read of the option stream: the connection to h was lost: reset; trying to reconnect for 120 s"
    )
    assert len(others) == still
    assert all(re.search(r"no connection for \d+ s: the connection to h was lost", line) for line in others)
    assert re.fullmatch(r"read of the option stream: connected again after \d+ s", last)


class Elsewhere:
    """A cluster of two nodes. The node at the address has stream ``s`` only; stream ``t`` is on the other node."""

    def __init__(self, monkeypatch, release: str) -> None:
        self.here, self.there = Mock(), Mock()
        self.release = release
        self.failures: list[StreamUnavailable] = []
        """Of the next attempts to connect to a node with the other stream."""
        self.opened: list[str | None] = []
        """For which stream each connection was."""
        self.pauses: list[float] = []
        monkeypatch.setattr(stream_access, "connected", self.connected)
        monkeypatch.setattr(stream_access, "bounds", self.bounds)
        monkeypatch.setattr(stream_access, "stored_at", self.stored_at)
        monkeypatch.setattr("spark_connector.reading.stream_access.time.sleep", self.pauses.append)

    def connected(self, _options, *, stream: str | None = None) -> Mock:
        self.opened.append(stream)
        if stream is None:
            return self.here
        if self.failures:
            raise self.failures.pop()
        return self.there

    def bounds(self, node: Mock, stream: str) -> Bounds:
        return Bounds(0, 100 if self.release == "4.3" else self.stored_at(node, stream, 100))

    def stored_at(self, node: Mock, stream: str, offset: int) -> int:
        if node is self.here and stream == "t":
            raise StreamUnavailable("not available on this node", "not available", stream)
        return offset


UNREACHABLE = OnOtherNode("it is on there; followAdvertised", "not available", "t")
AWAY = StreamUnavailable("stream 't' has no leader at the moment", "not available", "t")


@pytest.mark.parametrize("release", ["4.2", "4.3"])
def test_a_stream_on_another_node_is_no_outage(monkeypatch, caplog, release) -> None:
    cluster, made = Elsewhere(monkeypatch, release), reader(stream="s,t", startingOffsets="latest")
    made.latestOffset(stored(made.initialOffset()))
    assert cluster.opened == [None, "t"]
    cluster.here.close.assert_not_called()
    assert (cluster.pauses, caplog.records) == ([], [])


@pytest.mark.parametrize("release", ["4.2", "4.3"])
def test_a_stream_on_a_node_that_cannot_be_reached_fails_the_first_question_and_no_later_one(
    monkeypatch, caplog, release
) -> None:
    cluster, made = Elsewhere(monkeypatch, release), reader(stream="s,t", startingOffsets="latest")
    cluster.failures = [UNREACHABLE]
    with pytest.raises(StreamUnavailable, match="it is on there; followAdvertised"):
        made.initialOffset()
    assert (cluster.opened, cluster.pauses, caplog.records) == ([None, "t"], [], [])
    made.initialOffset()
    made._access.close()
    cluster.failures = [UNREACHABLE] * 3
    assert made._access.stored_at("t", 99) == 99
    assert cluster.opened[-5:] == [None, *["t"] * 4]
    assert len(cluster.pauses) == 3
    assert "it is on there; followAdvertised; trying to reconnect" in caplog.text
    cluster.here.close.assert_called_once_with()  # by this test


def test_a_stream_that_has_no_leader_for_a_moment_does_not_fail_a_query(monkeypatch, caplog) -> None:
    cluster, made = Elsewhere(monkeypatch, "4.2"), reader(stream="s,t", startingOffsets="latest")
    lost = StreamUnavailable("the connection to h was lost: reset", "lost")
    cluster.failures = [lost, AWAY, AWAY]
    made.latestOffset(stored(made.initialOffset()))
    assert (len(cluster.pauses), cluster.failures) == (3, [])
    first, last = [record.getMessage() for record in caplog.records]
    assert first.endswith("stream 't' has no leader at the moment; trying to reconnect for 120 s")
    assert "connected again" in last


@pytest.mark.parametrize(
    ("error", "enabled"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (OSError(113, "No route"), False),
        (TimeoutError(), False),
    ],
)
def test_a_first_connection_fails_at_once_and_only_a_refused_one_names_the_plugin(
    error, enabled, monkeypatch
) -> None:
    asked = Mock(side_effect=error)
    monkeypatch.setattr("socket.getaddrinfo", asked)
    with pytest.raises(StreamUnavailable) as caught:
        reader(reconnectTimeoutMs="5000").latestOffset()
    asked.assert_called_once()
    assert ("rabbitmq-plugins enable rabbitmq_stream" in str(caught.value)) == enabled
