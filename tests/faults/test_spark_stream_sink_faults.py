"""Spark writes to a stream under faults: the stream has each row once, and the rows of each source in order.

The query copies three streams into one stream. Its writes connect through a proxy.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections import defaultdict

import pytest

from rabbit_chx.streams import StreamReader, connect
from tests.faults.proxy import Proxy
from tests.faults.spark_load import SLOW
from tests.faults.spark_programs import EXECUTOR, kill_drivers
from tests.faults.spark_read import Feed, body, stop, until_committed, until_reading
from tests.proof import LONG, dice

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(3_600 if LONG else 600),
]

KILLS = 20 if LONG else 2
ROWS, ROWS_PER_TRIGGER = (900_000, 60_000) if LONG else (0, 5_000)
"""The rows that each of the three streams has besides those of the feed, and the maximum of a micro-batch."""
LAST_ROWS = 30 * SLOW
"""Seconds for writing all rows that remain after the faults."""
CONTROL = "exactlyOnce=false stores the rows of a failed task twice: tests/spark/test_write_to_streams.py"


@pytest.fixture
def proxy(broker):
    with Proxy(broker.stream_url) as proxy:
        yield proxy


@pytest.fixture
def streams(broker):
    """Three streams to read, and one to write to."""
    names = [f"faults.write.{secrets.token_hex(3)}-{number}" for number in range(4)]
    with connect(broker.stream_url) as connection:
        for name in names:
            connection.create(name)
    yield names
    with connect(broker.stream_url) as connection:
        for name in names:
            connection.delete(name)


@pytest.fixture
def begin(broker, proxy, streams, tmp_path):
    """begin(program) orders a program to copy the streams, and returns the feed that fills them."""
    *sources, target = streams
    feed = Feed(broker.stream_url, sources, first=ROWS)

    def begin(program) -> Feed:
        source = {"url": broker.stream_url, "stream": ",".join(sources), "startingOffsets": "earliest"}
        program.order(
            copy=str(tmp_path),
            options={**source, "columns": "value,stream", "maxRowsPerTrigger": str(ROWS_PER_TRIGGER)},
            into={"url": proxy.url, "stream": target},
        )
        return feed

    yield begin
    feed.end()


@pytest.fixture
def judge(broker, streams, record, tmp_path):
    """judge(scenario, program, feed, faults) ends a query, records the outcome, and checks it."""

    def judge(scenario, program, feed, faults):
        sent = feed.end()
        stop(tmp_path)
        assert program.answer(LAST_ROWS) == {"done": True}, program.complaint()
        stored = numbers_in(broker.stream_url, streams[-1])
        wanted = {name: range(count) for name, count in sent.items()}
        lost = {(name, row) for name in wanted for row in {*wanted[name]}.difference(stored[name])}
        more = {(name, row) for name in stored for row in {*stored[name]}.difference(wanted.get(name, ()))}
        twice = sum(len(rows) - len({*rows}) for rows in stored.values())
        record("Spark", scenario, sum(sent.values()), faults, lost, more, twice, control=CONTROL, notes=[])
        assert stored == {name: [*rows] for name, rows in wanted.items()}, "not once, or not in order"

    return judge


def numbers_in(url: str, stream: str) -> dict[str, list[int]]:
    """Return the numbers of the rows of each source by offset; -1 for a row that no source has."""
    found: dict[str, list[int]] = defaultdict(list)
    with StreamReader(url, stream, columns=["routing_key", "body"]) as reader:
        bounds = reader.bounds()
        for batch in reader.read(bounds.first, bounds.end):
            names, bodies = (batch.column(name).to_pylist() for name in ("routing_key", "body"))
            for name, value in zip(names, bodies, strict=True):
                number = int(value.partition(b" ")[0])
                found[name].append(number if value == body(number) else -1)
    return found


def test_killed_drivers_leave_each_row_once(cluster, begin, judge, tmp_path):
    kill_drivers(KILLS, tmp_path, begin, dice("kills of drivers that write"))
    judge("driver of a write to a stream killed, query restarted", cluster, begin(cluster), KILLS)


def test_other_faults_leave_each_row_once(cluster, broker, proxy, begin, judge, tmp_path):
    feed = begin(cluster)
    for _ in range(2):
        until_committed(cluster, tmp_path)
        os.kill(until_reading(cluster, proxy.port), signal.SIGKILL)
        until_committed(cluster, tmp_path)
        proxy.cut()
    until_committed(cluster, tmp_path)
    os.kill(cluster.processes(EXECUTOR)[0], signal.SIGKILL)
    until_committed(cluster, tmp_path)
    broker.kill()
    broker.restart()
    until_committed(cluster, tmp_path, 2)
    judge("workers, connections, executor, broker of a write to a stream killed", cluster, feed, 6)
