"""Reads of streams by Spark under faults: the table that a query writes holds each message once, in order per stream.

A proxy between Spark and the broker slows the rows down, so that faults hit tasks while they read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal

import pytest

from rabbit_chx.streams import StreamPublisher, connect
from tests.broker.stream_scene import streams_at
from tests.faults import auto_ack
from tests.faults.spark_programs import EXECUTOR, kill_drivers
from tests.faults.spark_read import (
    NO_LOSS,
    Feed,
    Row,
    body,
    finish,
    stop,
    table,
    until_committed,
    until_reading,
)
from tests.proof import LONG, dice

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(3_600 if LONG else 1_200),
]

KILLS = 5 if LONG else 1
CUTS = 3 if LONG else 1
"""How often the network is cut: the connector notices each cut only after seconds."""
SHARE = 10_000
"""Messages for each kill of the control."""
LENIENT = {"failOnDataLoss": "false", "maxRowsPerTrigger": "1000"}
RETENTION = {"max-length-bytes": "40000", "stream-max-segment-size-bytes": "10000"}


@pytest.fixture
def proxy(proxy):
    proxy.delay = 0.03
    return proxy


@pytest.fixture
def super_stream(broker):
    name = f"faults.read.{secrets.token_hex(3)}"
    partitions = {f"{name}-{number}": str(number) for number in range(3)}
    with connect(broker.stream_url) as connection:
        connection.create_super_stream(name, partitions)
    yield name, list(partitions)
    with connect(broker.stream_url) as connection:
        connection.delete_super_stream(name)


@pytest.fixture
def stream(broker):
    """A stream whose retention keeps about forty messages of a kilobyte."""
    name = f"faults.kept.{secrets.token_hex(3)}"
    with streams_at(broker.stream_url, name, arguments=RETENTION):
        yield name


def options(proxy, **more) -> dict[str, str]:
    own = {"url": proxy.url, "columns": "value,stream,offset", "startingOffsets": "earliest"}
    return {**own, "maxRowsPerTrigger": "5000", **more}


@pytest.fixture
def begin(broker, proxy, super_stream, tmp_path):
    """begin(program, **options) orders a program to copy a super stream, and returns the feed that fills it."""
    name, partitions = super_stream
    feed = Feed(broker.stream_url, partitions)

    def begin(program, **more) -> Feed:
        program.order(copy=str(tmp_path), options=options(proxy, superStream=name, **more))
        return feed

    yield begin
    feed.end()


@pytest.mark.proof
def test_killed_drivers_leave_each_row_once(cluster, broker, topology, begin, judge_table, tmp_path):
    kill_drivers(KILLS, tmp_path, begin, dice("kills of drivers"))
    feed = begin(cluster)
    sent = finish(cluster, feed, tmp_path)
    lost = auto_ack.lost(topology(), broker.url, tmp_path / "control", share=SHARE, kills=KILLS)
    assert lost > 0, "the control lost nothing, so the fault proves nothing"
    control = f"{lost:,} of {KILLS * SHARE + 1:,} (pika with auto_ack, killed as often)"
    judge_table("driver of a read killed, query restarted", sent, KILLS, control=control)


@pytest.mark.proof
def test_killed_workers_and_a_killed_executor_lose_no_row(cluster, proxy, begin, judge_table, tmp_path):
    feed = begin(cluster)
    for _ in range(2):
        until_committed(cluster, tmp_path)
        os.kill(until_reading(cluster, proxy.port), signal.SIGKILL)
    until_committed(cluster, tmp_path)
    until_reading(cluster, proxy.port)
    os.kill(cluster.processes(EXECUTOR)[0], signal.SIGKILL)
    until_committed(cluster, tmp_path, 2)
    sent = finish(cluster, feed, tmp_path)
    judge_table("2 Python workers and an executor killed while they read", sent, 3, control=NO_LOSS)


def test_a_broker_killed_during_a_read_loses_no_row(cluster, broker, proxy, begin, judge_table, tmp_path):
    feed = begin(cluster)
    until_committed(cluster, tmp_path)
    until_reading(cluster, proxy.port)
    broker.kill()
    broker.restart()
    until_committed(cluster, tmp_path, 3)
    sent = finish(cluster, feed, tmp_path)
    judge_table(
        "broker killed and restarted, read", sent, 1, control=NO_LOSS, note="the query continued by itself"
    )


@pytest.mark.proof
def test_connections_cut_during_a_read_lose_no_row(cluster, proxy, begin, judge_table, tmp_path):
    feed = begin(cluster)
    for _ in range(3):
        until_committed(cluster, tmp_path)
        until_reading(cluster, proxy.port)
        proxy.cut()
    until_committed(cluster, tmp_path, 2)
    sent = finish(cluster, feed, tmp_path)
    judge_table("connections of a read cut", sent, 3, control=NO_LOSS, note=f"{proxy.cuts} connections cut")


@pytest.mark.proof
def test_a_network_cut_for_seconds_during_a_read_loses_no_row(cluster, proxy, begin, judge_table, tmp_path):
    feed = begin(cluster, connectionTimeoutMs="2000")
    for _ in range(CUTS):
        until_committed(cluster, tmp_path)
        until_reading(cluster, proxy.port)
        proxy.partition()
        before = proxy.connections
        cluster.until(lambda before=before: proxy.connections > before + 1, "connections are opened again")
        proxy.heal()
    until_committed(cluster, tmp_path, 2)
    sent = finish(cluster, feed, tmp_path)
    judge_table("network of a read cut and restored", sent, CUTS, control=NO_LOSS)


@pytest.mark.proof
def test_rows_deleted_by_retention_fail_a_query_or_are_logged(
    cluster, broker, proxy, spark, stream, record, tmp_path
):
    chosen = options(proxy, stream=stream, maxRowsPerTrigger="20")
    with StreamPublisher(broker.stream_url, stream) as publisher:
        publisher.publish_many(map(body, range(20)))
        cluster.order(copy=str(tmp_path), options=chosen)
        until_committed(cluster, tmp_path)
        for first in range(20, 2_020, 100):
            publisher.publish_many(body(number, 1_000) for number in range(first, first + 100))
    failed = cluster.answer()
    assert "retention deleted them before they were read" in failed.get("failed", ""), failed
    before = table(spark, tmp_path)[stream]
    # Only what remains is read: a query that is stopped and repeats its micro-batch would log the loss again.
    stop(tmp_path)
    cluster.order(copy=str(tmp_path), options={**chosen, **LENIENT})
    assert cluster.answer() == {"done": True}, cluster.complaint()

    rows = table(spark, tmp_path)[stream]
    assert rows[: len(before)] == before
    assert all(row == Row(row.number, row.number) for row in rows)  # this stream has no holes
    logged = losses(cluster, stream)
    kept = [row.number for row in rows]
    missing = set(range(2_020)) - set(kept)
    assert missing
    unlogged = missing - set(logged)
    note = (
        f"{len(missing):,} rows deleted before they were read: an error, or logged with failOnDataLoss=false"
    )
    what = "retention during a query; lost means not logged"
    control = "retention deletes them; the query must log them"
    again = len(kept) - len(set(kept))
    record("Spark", what, 2_020, 1, unlogged, set(logged) - missing, again, control=control, notes=[note])
    assert sorted(logged) == sorted(missing), "each deleted row is logged once"
    assert again == 0


def losses(program, stream) -> list[int]:
    """The offsets that the query has logged as lost."""
    lines = [json.loads(text) for text in re.findall(r'\{"event": "data loss".*?\}', program.errors())]
    ours = [line for line in lines if line["stream"] == stream]
    return [offset for line in ours for offset in range(line["first"], line["end"])]
