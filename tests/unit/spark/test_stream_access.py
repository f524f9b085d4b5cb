"""Where streams end if a replica lags behind, and what a query reads of them."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest

from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.ends import Bounds
from spark_connector.reading import rows, schema, stream_access
from spark_connector.reading.offsets import DataLoss, offsets_in
from spark_connector.reading.stream_access import StreamAccess
from tests.unit.spark import stream_queries
from tests.unit.spark.stream_queries import Node, Query, ranges, reader, source_of, stored

cluster = stream_queries.cluster
limits = pytest.mark.pyspark("4.2", "it has no read limits")


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


def test_a_new_stream_is_recognised_after_a_restart_though_the_last_offsets_were_a_gap(
    cluster, passes_start
) -> None:
    query = Query(reader(), passes_start=passes_start)
    query.plan()
    cluster.leader = cluster.replica = Node(110, 7_000)
    cluster.leader.gap = range(100, 110)
    query.reader._access.close()
    assert query.plan() == [(100, 110)]
    at, query.reader = query.at, reader()
    query.reader.partitions(at, at)
    assert query.plan() == []
    assert query.at == at, "otherwise Spark would run an empty micro-batch"
    cluster.recreate(120)
    query.reader = reader()
    query.reader.partitions(at, at)
    with pytest.raises(DataLoss, match="was deleted and created again"):
        query.plan()


def test_a_new_stream_whose_last_offsets_are_a_gap_is_not_taken_for_the_old_one(
    cluster, passes_start
) -> None:
    query = Query(reader(failOnDataLoss="false"), passes_start=passes_start)
    query.plan()
    cluster.recreate(120)
    cluster.leader.gap = cluster.replica.gap = range(110, 120)
    query.reader._access.close()
    end = stored(query.reader.latestOffset(query.at) if passes_start else query.reader.latestOffset())
    planned = query.reader.partitions(query.at, end)
    assert [batch.num_rows for one in planned for batch in query.reader.read(one)] == [120]


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


def test_a_batch_from_an_offset_that_retention_has_deleted_fails_or_starts_later(
    cluster, monkeypatch
) -> None:
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(75, node.end))
    strict, lenient = (
        source_of(startingOffsets='{"s": 0}', failOnDataLoss=fail) for fail in ("true", "false")
    )
    with pytest.raises(DataLoss, match=r"no longer has the offsets 0 to 74.*failOnDataLoss=false"):
        strict.reader(strict.schema()).partitions()
    assert ranges(lenient.reader(lenient.schema()).partitions()) == [(75, 100)]


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


@pytest.mark.parametrize(
    ("saved", "owner"),
    [
        ({"queue": "q", "session": "a", "rows": 5}, "queue 'q'"),
        ({"topic": {"0": 5}}, "another format: {'topic': {'0': 5}}"),  # of the source of Kafka
        ({"logOffset": 3}, "another format: {'logOffset': 3}"),  # of files
        (5, "another format: 5"),  # of the source rate
        (0, "another format: 0"),
    ],
)
def test_a_micro_batch_is_not_planned_from_the_checkpoint_of_another_source(cluster, saved, owner) -> None:
    made = reader()
    for plan in (made.latestOffset, lambda end: made.partitions(end, end)):
        with pytest.raises(InvalidValue, match=f"got offsets of {owner}, expected offsets of streams"):
            plan(saved)


def test_a_task_at_a_replica_that_lags_behind_reads_from_the_leader(cluster) -> None:
    cluster.replica.end = 80
    (partition,) = reader().partitions({"s": {"offset": 0}}, {"s": {"offset": 100}})
    (batch,) = reader().read(partition)
    assert batch.num_rows == 100
    cluster.leader.end = 90
    with pytest.raises(StreamUnavailable, match="beyond"):
        list(reader().read(partition))


def test_a_task_leaves_out_invalid_messages_over_one_connection(cluster, monkeypatch, caplog) -> None:
    opened = Mock(side_effect=cluster.connected)
    monkeypatch.setattr(rows, "stream_reader", opened)
    cluster.replica.invalid = {0, 40, 41, 99}
    made = reader(invalidRows="drop")
    (partition,) = made.partitions({"s": {"offset": 0}}, {"s": {"offset": 100}})
    read = [offset for batch in made.read(partition) for offset in batch.column("offset").to_pylist()]
    assert read == [*range(1, 40), *range(42, 99)]
    assert [json.loads(line)["offset"] for line in caplog.messages] == [0, 40, 41, 99]
    opened.assert_called_once()


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
