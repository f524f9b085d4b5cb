"""Spark writes to a stream under faults: the stream has each row once, and the rows of each source in order.

The query copies three streams into one stream. Its writes connect through a proxy.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections import defaultdict

import pytest

from rabbit_chx.streams import StreamReader
from tests.broker.stream_scene import streams_at
from tests.faults.load import killed
from tests.faults.spark_load import SLOW
from tests.faults.spark_programs import EXECUTOR, kill_drivers
from tests.faults.spark_read import Feed, body, committed, stop, until_committed, until_reading
from tests.proof import LONG, dice, never

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.proof,
    pytest.mark.timeout(3_600 if LONG else 1_200),
]

KILLS = 5 if LONG else 2
ROWS, ROWS_PER_TRIGGER = (900_000, 60_000) if LONG else (0, 5_000)
"""The rows that each of the three streams has besides those of the feed, and the maximum of a micro-batch."""
LAST_ROWS = 30 * SLOW
"""Seconds for writing all rows that remain after the faults."""
OUTAGE = ["trying to reconnect for 120 s", "no connection for ", "connected again after "]
"""What the driver logs when a connection is lost, after a minute, and at the end."""
CONTROL = "exactlyOnce=false stores the rows of a failed task twice: tests/spark/test_write_to_streams.py"


@pytest.fixture
def streams(broker):
    """Three streams to read, and one to write to."""
    names = [f"faults.write.{secrets.token_hex(3)}-{number}" for number in range(4)]
    with streams_at(broker.stream_url, *names):
        yield names


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
        never(not_once_or_not_in_order=[name for name, rows in wanted.items() if stored[name] != [*rows]])

    return judge


def numbers_in(url: str, stream: str) -> dict[str, list[int]]:
    """Return the numbers of the rows of each source by offset; -1 for a row that no source has."""
    found: dict[str, list[int]] = defaultdict(list)
    with StreamReader(url, stream) as reader:
        bounds = reader.bounds()
        for batch in reader.read(bounds.first, bounds.end, columns=["routing_key", "body"]):
            names, bodies = (batch.column(name).to_pylist() for name in ("routing_key", "body"))
            for name, value in zip(names, bodies, strict=True):
                number = int(value.partition(b" ")[0])
                found[name].append(number if value == body(number) else -1)
    return found


def test_killed_drivers_leave_each_row_once(cluster, begin, judge, tmp_path):
    kill_drivers(KILLS, tmp_path, begin, dice("kills of drivers that write"))
    judge("driver of a write to a stream killed, query restarted", cluster, begin(cluster), KILLS)


def test_other_faults_leave_each_row_once(cluster, broker, proxy, streams, begin, judge, tmp_path):
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
    until_idle(cluster, broker, streams[-1], sum(feed.end().values()), tmp_path)
    lines = lines_of_an_outage(cluster, broker)
    # After the restart, one stream may be available before another, whose outage then goes on.
    assert [word for line in lines for word in OUTAGE if word in line][: len(OUTAGE)] == OUTAGE, lines
    assert not [line for line in lines if "the broker at the broker" in line]
    judge("workers, connections, executor, broker of a write to a stream killed", cluster, feed, 7)


def until_idle(program, broker, target: str, rows: int, folder) -> None:
    """Wait until the query has copied and committed all rows. Otherwise its tasks would wait for the broker, not the driver."""
    program.until(lambda: sum(map(len, numbers_in(broker.stream_url, target).values())) == rows, "all copied")
    program.until(lambda: committed(folder) == committed(folder, "offsets"), "all committed")


def lines_of_an_outage(program, broker) -> list[str]:
    """What the driver of an idle query logs while the broker is away for a minute, and when it is back."""
    before = len(program.errors())

    def lines() -> list[str]:
        return [
            line for line in program.errors()[before:].splitlines() if "read of the option stream" in line
        ]

    with killed(broker):
        program.until(lambda: OUTAGE[1] in "".join(lines()), "a minute has passed")
    program.until(lambda: OUTAGE[2] in "".join(lines()), "the driver is connected again")
    return lines()
