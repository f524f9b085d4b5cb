"""Batch writes of Spark under faults: no row is lost, and rows are duplicated only where the docs say so.

The guarantees are in docs/spark-guarantees.md. Streams are in `test_spark_stream_faults`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import deque
from contextlib import contextmanager
from functools import partial

import pytest

from tests.faults.load import ALIVE, on_queues
from tests.faults.spark_load import (
    BATCHES,
    SLOW,
    SMALL,
    Write,
    copies,
    failed_tasks,
    naive,
    numbered,
    of_attempts,
    open_gates,
    options,
    workers,
)
from tests.faults.spark_programs import EXECUTOR, Program
from tests.patience import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1_200)]

AGAIN = "no loss is possible, Spark runs the task again"
REPORTED = "no loss is possible, the write reports its failure"
ONE = BATCHES * SMALL
"""The rows of one partition, and of two: more rows than `ONE` in the queues are not of one partition alone."""
TWO = 2 * ONE


@pytest.fixture
def begin(spark, broker):
    """Start a write: begin(frame, topology, **options)."""
    begun: list[Write] = []

    def begin(frame, used, **more) -> Write:
        begun.append(Write(spark, frame, options(broker, used, **more)))
        return begun[-1]

    yield begin
    spark.sparkContext.cancelAllJobs()
    for one in begun:
        one.end()


@pytest.fixture(autouse=True)
def small_batches(spark):
    """Arrow batches of the size that gates expect."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", SMALL)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture
def gates(tmp_path):
    """The folder of the gates of a frame."""
    return tmp_path


def rows_written(error: str) -> int:
    """How many rows are in the broker according to an error."""
    return int(re.search(r"(\d+) rows are in the broker already", error)[1])


# -- tasks, workers and executors ----------------------------------------------------------------------


@contextmanager
def no_connections(broker):
    """Close all connections and refuse new ones."""
    broker.ctl("suspend_listeners")
    try:
        broker.ctl("close_all_user_connections", broker.username, "a test")
        yield
    finally:
        broker.ctl("resume_listeners")


@pytest.mark.parametrize("cause", ["row", pytest.param("connection", marks=pytest.mark.proof)])
def test_a_failed_attempt_is_followed_by_another(spark, broker, topology, begin, judge_spark, gates, cause):
    """A row raises an error, or the connection is closed for longer than reconnectTimeoutMs."""
    used, row = topology(), cause == "row"
    chosen = {} if row else {"reconnectTimeoutMs": 500, "connectionTimeoutMs": 60_000}
    one = begin(numbered(spark, ONE, 1, gates, fails=2 if row else 0), used, **chosen)
    # 7,000 to 9,000 rows of the first attempt are sent, and as many of the second.
    for attempt in (0, 1):
        wanted = (5_000, 12_000)[attempt] if row else used.depth() + 500
        one.until(partial(lambda wanted: used.depth() >= wanted, wanted), f"attempt {attempt} publishes")
        if row:
            open_gates(gates, attempt)
        else:
            with no_connections(broker):
                open_gates(gates, attempt)
                one.until(partial(lambda count: failed_tasks(spark) > count, attempt), "the attempt fails")
    open_gates(gates, 2)
    assert one.end() == ""

    found = copies(broker.url, used.queues)
    sent = of_attempts(found, 0)
    assert list(sent) == [0, 1, 2]
    assert sent[2] == list(range(ONE))
    if row:  # the first rows of the partition, each once
        assert all(sent[attempt] == list(range(len(sent[attempt]))) for attempt in (0, 1))
    what = {
        "row": "row that fails on attempts 0 and 1",
        "connection": "attempts 0 and 1 lose their connection",
    }
    judge_spark(what[cause], ONE, found, faults=2, twice=sent[0] + sent[1], control=AGAIN)  # fmt: skip


def test_a_worker_that_is_killed_loses_no_row(spark, broker, topology, begin, judge_spark, gates):
    used = topology()
    one = begin(numbered(spark, TWO, 2, gates), used, maxRatePerTask=3_000)
    one.until(lambda: len(workers(broker, used.exchange)) == 2, "both tasks publish")
    one.until(lambda: used.depth() > ONE, "rows of both arrive")
    victim, partition = min(workers(broker, used.exchange).items())
    os.kill(victim, signal.SIGKILL)
    open_gates(gates, 0, 1)
    assert one.end() == ""

    found = copies(broker.url, used.queues)
    sent, others = of_attempts(found, partition), of_attempts(found, 1 - partition)
    assert [list(sent), list(others)] == [[0, 1], [0]]
    assert len(sent[1]) == len(others[0]) == ONE
    judge_spark("Python worker killed", TWO, found, twice=sent[0], control=AGAIN)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return a driver with two executors; a new one if the last was killed."""
    drivers: list[Program] = []

    def running() -> Program:
        if not drivers or not drivers[-1].processes():
            drivers.append(Program("local-cluster[2,1,700]", tmp_path_factory.mktemp("cluster") / "driver"))
        return drivers[-1]

    yield running
    for one in drivers:
        one.stop()


@pytest.mark.proof
def test_an_executor_that_is_killed_loses_no_row(cluster, broker, topology, judge_spark, gates):
    used, driver = topology(), cluster()
    chosen = options(broker, used, maxRatePerTask=3_000)
    driver.order(rows=TWO, partitions=2, gates=str(gates), options=chosen)
    driver.until(lambda: len(workers(broker, used.exchange)) == 2, "both tasks publish")
    driver.until(lambda: used.depth() > ONE, "rows of both arrive")
    victim, other = driver.processes(EXECUTOR)
    os.kill(victim, signal.SIGKILL)
    open_gates(gates, 0, 1)
    assert driver.answer() == {"done": True}, driver.complaint()
    assert other in driver.processes(EXECUTOR)

    found = copies(broker.url, used.queues)
    attempts = sorted((of_attempts(found, partition) for partition in (0, 1)), key=len)
    assert [list(sent) for sent in attempts] == [[0], [0, 1]]
    assert len(attempts[1][1]) == ONE
    judge_spark("executor killed, two of them", TWO, found, twice=attempts[1][0], control=AGAIN)


@pytest.mark.proof
def test_after_the_driver_is_killed_every_process_ends(cluster, broker, topology, judge_spark):
    used, rows, driver = topology(), 200_000, cluster()
    chosen = options(broker, used, maxRatePerTask=3_000)
    driver.order(rows=rows, partitions=2, gates=None, options=chosen)
    driver.until(lambda: used.depth() > 2_000, "rows arrive")
    driver.kill()
    wait_until(lambda: not driver.processes(), "executors and workers end by themselves", SLOW, pause=0.1)
    wait_until(lambda: not workers(broker, used.exchange), "the broker drops their connections", pause=0.1)

    assert driver.busy, "it reported that it was done"
    found = copies(broker.url, used.queues)
    assert 2_000 < len(found) < rows
    what, why = "driver killed, executors on their own", "no loss is possible, no write reports success"
    note = f"{len(found):,} rows are there, and all processes ended"
    judge_spark(what, rows, found, claimed=0, control=why, note=note)


# -- the broker ----------------------------------------------------------------------------------------


def in_mailboxes(broker, used) -> int:
    """Return the number of messages that the queues have not read yet."""
    lengths = on_queues(broker, used.queues, "element(2, process_info(Queue, message_queue_len))")
    return sum(map(int, re.findall(r"\d+", lengths)))


def test_a_broker_that_is_killed_loses_no_row(spark, broker, topology, begin, judge_spark, gates):
    """Both writes wait at gates until the kill; the gate of the control opens before it, while its queues hang."""
    used, other, rows, less, held = topology(), topology(), 40_000, 15_000, gates / "control"
    held.mkdir()
    # One of the two threads of this Spark is for the control.
    last = numbered(spark, rows, 1, gates, before=rows // SMALL - 1)
    one = begin(last, used, maxRatePerTask=8_000, maxInFlight=500)
    frame, control = numbered(spark, less, 1, held), []

    def lose() -> None:
        try:
            frame.foreachPartition(naive(broker.url, other.exchange, 3_000))
            control.append("done")
        except Exception as error:  # noqa: BLE001 - compared below
            control.append(f"failed: {error}")

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    one.until(lambda: used.depth() > 2_000 and other.depth() > 2_000, "both publish")
    on_queues(broker, other.queues, "sys:suspend(Queue)")
    open_gates(held, 0)
    one.until(lambda: in_mailboxes(broker, other) > 100, "messages of the control wait for the queues")
    broker.kill()
    broker.restart()
    open_gates(gates, 0)
    assert one.end() == ""
    thread.join(SLOW)

    found = copies(broker.url, used.queues)
    assert {copy.attempt for copy in found} == {0}  # it reconnected, so no task was tried again
    assert len(found) - rows <= 500
    loss = less - len({copy.row for copy in copies(broker.url, other.queues)})
    assert control == ["done"]
    assert loss > 0, "the control lost nothing, so the fault proves nothing"
    lost = f"{loss:,} of {less:,} (foreachPartition without confirms, whose job succeeded)"
    judge_spark("broker killed and restarted, batch", rows, found, twice=range(rows), control=lost)


def test_a_write_waits_for_the_end_of_an_alarm(spark, broker, topology, begin, judge_spark, alarm, gates):
    used = topology()
    one = begin(numbered(spark, TWO, 2, gates), used)
    one.until(lambda: used.depth() >= 10_000, "rows arrive")
    alarm("memory", raised=True)
    open_gates(gates, 0)
    one.until(lambda: broker.ctl("list_connections", "state").split().count("blocked") == 2, "both wait")
    depths = deque(maxlen=30)  # three seconds, after what was on its way has arrived
    one.until(lambda: depths.append(used.depth()) or depths.count(depths[0]) == 30, "they continue to wait")
    assert depths[0] < TWO
    assert failed_tasks(spark) == 0
    alarm("memory", raised=False)
    assert one.end() == ""

    found = copies(broker.url, used.queues)
    assert {copy.attempt for copy in found} == {0}
    judge_spark("memory alarm raised and cleared", TWO, found, control=ALIVE)


def test_an_alarm_that_does_not_clear_fails_the_write_once(
    spark, broker, topology, begin, judge_spark, alarm, gates
):
    used = topology()
    one = begin(numbered(spark, TWO, 2, gates), used, maxInFlight=500, blockedTimeoutMs=1_000)
    one.until(lambda: used.depth() >= 10_000, "rows arrive")
    alarm("memory", raised=True)
    open_gates(gates, 0)
    error = one.end()
    alarm("memory", raised=False)

    assert "blocked publishing for too long (memory or disk alarm)" in error
    found, claimed = copies(broker.url, used.queues), rows_written(error)
    assert {copy.attempt for copy in found} == {0}
    assert len(found) - claimed <= 2 * 500  # in flight: the broker may read them after the alarm
    note = f"the error counts {claimed:,} rows, {len(found):,} are there"
    what = "memory alarm longer than blockedTimeoutMs"
    judge_spark(what, TWO, found, claimed=claimed, control=REPORTED, note=note)


# -- failures while other tasks run -----------------------------------------------------------------------


def test_without_fail_fast_the_other_tasks_finish_and_rows_are_counted(
    spark, broker, topology, begin, judge_spark
):
    used, rows = topology(), 12_000
    invalid = "if(key = 'key-1' and value like '1 %', null, value) as value"
    frame = numbered(spark, rows, 2).selectExpr(invalid, "key")
    one = begin(frame, used, maxRatePerTask=3_000, failFast=False)
    error = one.end()
    at_once = used.depth()

    assert "row 1 of partition 0: value is null" in error
    found = copies(broker.url, used.queues)
    assert len(found) == at_once == rows_written(error) == rows // 2
    note, what = "0 rows published after the driver saw the error", "bad row in one task, another is slow"
    judge_spark(what, rows, found, claimed=rows_written(error), control=REPORTED, note=note)


@pytest.mark.proof
def test_after_a_task_has_failed_for_good_the_others_publish_until_spark_ends_them(
    spark, broker, topology, begin, judge_spark, gates
):
    used, rows = topology(), 2_000_000  # more than the other task can publish in this time
    frame = numbered(spark, rows, 2, gates, before=0, fails=4, partition=0)
    one = begin(frame, used, maxRatePerTask=3_000)
    one.until(lambda: used.depth() > 1_000, "the other task publishes")
    open_gates(gates, 0, 1, 2, 3)
    error = one.end()
    at_once = used.depth()
    wait_until(lambda: not workers(broker, used.exchange), "Spark ends the other task", pause=0.1)

    assert "a row fails on attempt 3" in error
    found = copies(broker.url, used.queues)
    assert {copy.partition for copy in found} == {1}
    assert at_once <= len(found) < rows // 2
    note = f"{len(found) - at_once:,} rows published after the driver saw the error"
    what = "task fails for good, another is slow"
    judge_spark(what, rows, found, claimed=0, control=REPORTED, note=note)
