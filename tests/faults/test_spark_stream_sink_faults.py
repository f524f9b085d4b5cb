"""Spark writes to a stream under faults: the stream has each row once, and the rows of each source in order.

The query copies three streams into one stream. Its writes connect through a proxy.
"""

from __future__ import annotations

import os
import secrets
import signal

import pytest

from rabbit_chx.streams import StreamReader, connect
from tests.faults.proxy import Proxy
from tests.faults.spark_programs import EXECUTOR, kill_drivers
from tests.faults.spark_read import Feed, body, stop, until_committed, until_reading
from tests.proof import LONG, dice

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

KILLS = 20 if LONG else 2
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
    feed = Feed(broker.stream_url, sources)

    def begin(program) -> Feed:
        source = {"url": broker.stream_url, "stream": ",".join(sources), "startingOffsets": "earliest"}
        program.order(
            copy=str(tmp_path),
            options={**source, "columns": "value,stream", "maxRowsPerTrigger": "5000"},
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
        assert program.answer() == {"done": True}, program.complaint()
        with StreamReader(broker.stream_url, streams[-1]) as reader:
            found = reader.bounds()
            stored = [(one.routing_key, one.value) for _, one in reader.messages(found.first, found.end)]
        wanted = {(stream, body(number)) for stream, count in sent.items() for number in range(count)}
        outcome = wanted - set(stored), set(stored) - wanted, len(stored) - len(set(stored))
        record("Spark", scenario, len(wanted), faults, *outcome, control=CONTROL, notes=[])
        for stream, count in sent.items():
            assert [value for name, value in stored if name == stream] == [
                body(number) for number in range(count)
            ]

    return judge


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
