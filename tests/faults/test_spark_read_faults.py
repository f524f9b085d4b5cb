"""Reads of streams by Spark under faults: the table that a query writes holds each message once, in order per stream.

Between Spark and the broker is a proxy that slows the rows down, so that a fault hits a task that reads.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time

import pytest

from rabbit_chx.streams import StreamPublisher, connect
from tests.faults import auto_ack
from tests.faults.proxy import Proxy
from tests.faults.spark_programs import EXECUTOR, Program
from tests.faults.spark_read import Feed, Row, body, committed, compare, readers, stop, table
from tests.proof import LONG, dice

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

KILLS = 20 if LONG else 2
AGAIN = "no loss is possible, Spark reads the offsets again"
WORKER = "pyspark.daemon"
SHARE = 10_000
"""Messages for each kill of the control."""
GOES_ON = {"failOnDataLoss": "false", "maxRowsPerTrigger": "1000"}
RETENTION = {"max-length-bytes": "40000", "stream-max-segment-size-bytes": "10000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A driver with two executors, which all tests share but those that kill it."""
    program = Program("local-cluster[2,1,700]", tmp_path_factory.mktemp("readers") / "driver")
    yield program
    program.stop()


@pytest.fixture
def proxy(broker):
    with Proxy(broker.stream_url) as proxy:
        proxy.delay = 0.03
        yield proxy


@pytest.fixture
def super_stream(broker):
    """The name of a super stream, and its three streams."""
    name = f"faults.read.{secrets.token_hex(3)}"
    partitions = {f"{name}-{number}": str(number) for number in range(3)}
    with connect(broker.stream_url) as connection:
        connection.create_super_stream(name, partitions)
    yield name, list(partitions)
    with connect(broker.stream_url) as connection:
        connection.delete_super_stream(name)


@pytest.fixture
def stream(broker):
    """A stream whose retention keeps some forty messages of a kilobyte."""
    name = f"faults.kept.{secrets.token_hex(3)}"
    with connect(broker.stream_url) as connection:
        connection.create(name, RETENTION)
    yield name
    with connect(broker.stream_url) as connection:
        connection.delete(name)


def options(proxy, **more) -> dict[str, str]:
    own = {"url": proxy.url, "columns": "value,stream,offset", "startingOffsets": "earliest"}
    return {**own, "maxRowsPerTrigger": "5000", **more}


@pytest.fixture
def begin(broker, proxy, super_stream, tmp_path):
    """Start a feed and orders to copy its super stream: begin(program); the feed."""
    name, partitions = super_stream
    feed = Feed(broker.stream_url, partitions)

    def begin(program) -> Feed:
        program.order(copy=str(tmp_path), options=options(proxy, superStream=name))
        return feed

    yield begin
    feed.end()


@pytest.fixture
def judge_table(spark, record, tmp_path):
    """Record what a fault cost the table, and check it: judge_table(scenario, sent, faults, control)."""

    def judge(scenario, sent, faults, *, control, note=""):
        found = table(spark, tmp_path)
        outcome = compare(sent, found)
        notes = [f"{committed(tmp_path)} micro-batches", note]
        messages = sum(sent.values())
        record("Spark", scenario, messages, faults, *outcome, control=control, notes=notes)
        assert outcome.duplicated == 0
        assert {stream: [row.number for row in rows] for stream, rows in found.items()} == {
            stream: list(range(count)) for stream, count in sent.items()
        }

    return judge


def until_committed(program, folder, more=1) -> None:
    enough = committed(folder) + more
    program.until(lambda: committed(folder) >= enough, "a micro-batch is done")


def until_reading(program, proxy) -> int:
    """Wait until a task reads, and return its process."""
    found: list[int] = []

    def look() -> bool:
        found[:] = readers(program.processes(WORKER), proxy.port)
        return bool(found)

    program.until(look, "a task reads")
    return found[0]


def finish(program, feed, folder) -> dict[str, int]:
    """End the feed, and let the query read the rest."""
    sent = feed.end()
    stop(folder)
    assert program.answer() == {"done": True}, program.complaint()
    return sent


def test_drivers_that_are_killed_at_random_moments_leave_each_row_once(
    cluster, broker, topology, begin, judge_table, tmp_path
):
    random = dice("kills of drivers")
    for kill in range(KILLS):
        driver = Program("local[2]", tmp_path / f"driver-{kill}")
        try:
            feed = begin(driver)
            until_committed(driver, tmp_path, random.randint(0, 1))
            moment = time.monotonic() + random.uniform(0, 2)
            driver.until(lambda moment=moment: time.monotonic() > moment, "a random moment")
            driver.kill()
        finally:
            driver.stop()
    begin(cluster)
    sent = finish(cluster, feed, tmp_path)
    lost = auto_ack.lost(topology(), broker.url, tmp_path / "control", share=SHARE, kills=KILLS)
    assert lost > 0, "the control lost nothing, so the fault proves nothing"
    control = f"{lost:,} of {KILLS * SHARE + 1:,} (pika with auto_ack, killed as often)"
    judge_table("driver of a read killed, query restarted", sent, KILLS, control=control)


def test_workers_and_an_executor_that_are_killed_while_they_read_cost_no_row(
    cluster, proxy, begin, judge_table, tmp_path
):
    feed = begin(cluster)
    for _ in range(2):
        until_committed(cluster, tmp_path)
        os.kill(until_reading(cluster, proxy), signal.SIGKILL)
    until_committed(cluster, tmp_path)
    until_reading(cluster, proxy)
    os.kill(cluster.processes(EXECUTOR)[0], signal.SIGKILL)
    until_committed(cluster, tmp_path, 2)
    sent = finish(cluster, feed, tmp_path)
    judge_table("2 Python workers and an executor killed while they read", sent, 3, control=AGAIN)


def test_a_broker_that_is_killed_during_a_read_costs_no_row(
    cluster, broker, proxy, begin, judge_table, tmp_path
):
    feed = begin(cluster)
    until_committed(cluster, tmp_path)
    until_reading(cluster, proxy)
    broker.kill()
    broker.restart()
    until_committed(cluster, tmp_path, 3)
    sent = finish(cluster, feed, tmp_path)
    judge_table(
        "broker killed and restarted, read", sent, 1, control=AGAIN, note="the query went on by itself"
    )


def test_connections_that_are_cut_while_they_read_cost_no_row(cluster, proxy, begin, judge_table, tmp_path):
    feed = begin(cluster)
    for _ in range(3):
        until_committed(cluster, tmp_path)
        until_reading(cluster, proxy)
        proxy.cut()
    until_committed(cluster, tmp_path, 2)
    sent = finish(cluster, feed, tmp_path)
    judge_table("connections of a read cut", sent, 3, control=AGAIN, note=f"{proxy.cuts} connections cut")


def test_what_retention_deletes_under_a_query_fails_it_or_is_counted(
    cluster, broker, proxy, spark, stream, record, tmp_path
):
    chosen = options(proxy, stream=stream, maxRowsPerTrigger="20")
    with StreamPublisher(broker.stream_url, stream) as publisher:
        publisher.send(map(body, range(20)))
        cluster.order(copy=str(tmp_path), options=chosen)
        until_committed(cluster, tmp_path)
        for first in range(20, 2_020, 100):
            publisher.send(body(number, 1_000) for number in range(first, first + 100))
    failed = cluster.answer()
    assert "retention deleted them before they were read" in failed.get("failed", ""), failed
    before = table(spark, tmp_path)[stream]
    cluster.order(copy=str(tmp_path), options={**chosen, **GOES_ON})
    stop(tmp_path)
    assert cluster.answer() == {"done": True}, cluster.complaint()

    rows = table(spark, tmp_path)[stream]
    assert rows[: len(before)] == before
    assert all(row == Row(row.number, row.number) for row in rows)  # this stream has no holes
    counted = losses(cluster, stream)
    kept = [row.number for row in rows]
    missing = set(range(2_020)) - set(kept)
    assert missing
    silent = missing - set(counted)
    note = (
        f"{len(missing):,} rows deleted before they were read: an error, or counted with failOnDataLoss=false"
    )
    what = "retention under a query; lost means not counted"
    control = "retention loses them, the query must not hide it"
    again = len(kept) - len(set(kept))
    record("Spark", what, 2_020, 1, silent, set(counted) - missing, again, control=control, notes=[note])
    assert sorted(counted) == sorted(missing), "each deleted row is counted once"
    assert again == 0


def losses(program, stream) -> list[int]:
    """The offsets that the query's log counts as lost."""
    lines = [json.loads(text) for text in re.findall(r'\{"event": "data loss".*?\}', program.errors())]
    ours = [line for line in lines if line["stream"] == stream]
    return [offset for line in ours for offset in range(line["first"], line["end"])]
