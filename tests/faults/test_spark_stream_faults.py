"""Streams of Spark under faults: a query continues from its checkpoint, and duplicates are of one micro-batch.

The source is a folder of files, one per micro-batch, so the rows of each micro-batch are known.
"""

from __future__ import annotations

import pytest

from tests.faults.spark_load import SLOW, copies, duplicates, options, put_files, stream, workers
from tests.faults.spark_programs import Program
from tests.inbox import Inbox
from tests.patience import wait_until
from tests.programs import stopping

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1_200)]

ROWS = 2_000
"""In each file."""
AGAIN = "no loss is possible, Spark runs the micro-batch again"


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture
def begin(spark, broker, tmp_path, checkpoint):
    """Start a query on the files: begin(topology, **options)."""

    def begin(used, *, key="value", **more):
        return stream(spark, tmp_path / "in", checkpoint, options(broker, used, **more), key=key).start()

    yield begin
    for query in spark.streams.active:
        query.stop()


def run_out(query) -> None:
    """Wait until the last file is written, and raise an error that ended the query before."""
    assert query.awaitTermination(SLOW), "the query hangs"


def committed(checkpoint) -> list[str]:
    """The micro-batches that are recorded as done."""
    return sorted(one.name for one in (checkpoint / "commits").glob("*") if one.name.isdigit())


def in_the_second(used) -> bool:
    """Whether the first file is written, and some of the second."""
    return used.depth() > ROWS + ROWS // 4


def until_running(query, used) -> None:
    wait_until(lambda: in_the_second(used) or not query.isActive, "the second file", SLOW, pause=0.1)
    assert query.isActive, query.exception()


def rows_of(batches) -> set[int]:
    return {row for batch in batches for row in range(int(batch) * ROWS, (int(batch) + 1) * ROWS)}


@pytest.fixture
def judge_query(broker, judge_spark):
    """Nothing is lost, and all copies of duplicated rows are of one micro-batch; return the copies and these rows."""

    def judge(scenario: str, files: int, queues, control=AGAIN):
        found = copies(broker.url, queues)
        again = duplicates(found)
        batches = {one.batch for one in again}
        assert len(batches) <= 1
        note = "all duplicates are of one micro-batch" if again else ""
        judge_spark(scenario, files * ROWS, found, twice=rows_of(batches), note=note, control=control)
        return found, {one.row for one in again}

    return judge


@pytest.mark.proof
def test_a_broker_that_is_killed_during_a_query_loses_no_row(
    broker, topology, judge_query, begin, checkpoint, tmp_path
):
    used = topology()
    put_files(tmp_path / "in", 4, ROWS)
    query = begin(used, maxRatePerTask=1_000, maxInFlight=500)
    until_running(query, used)
    broker.kill()
    broker.restart()
    run_out(query)

    assert committed(checkpoint) == ["0", "1", "2", "3"]
    what = "broker killed and restarted, stream"
    found, _ = judge_query(what, 4, used.queues, control="see the control of the batch")
    assert {one.attempt for one in found} == {0}
    assert len(found) - 4 * ROWS <= 500


def test_a_stopped_query_continues_from_its_checkpoint(topology, judge_query, begin, checkpoint, tmp_path):
    used = topology()
    put_files(tmp_path / "in", 6, ROWS)
    query = begin(used, maxRatePerTask=1_000)
    until_running(query, used)
    query.stop()
    assert query.exception() is None
    before = committed(checkpoint)
    assert len(before) < 6
    run_out(begin(used))
    _, again = judge_query("query.stop() in a micro-batch", 6, used.queues)
    assert not again & rows_of(before)


def test_after_a_driver_is_killed_another_continues_from_the_checkpoint(
    broker, topology, judge_query, begin, checkpoint, tmp_path
):
    used = topology()
    put_files(tmp_path / "in", 6, ROWS)
    with stopping(Program("local[2]", tmp_path / "driver")) as driver:
        chosen = options(broker, used, maxRatePerTask=1_000)
        driver.order(folder=str(tmp_path / "in"), checkpoint=str(checkpoint), options=chosen)
        driver.until(lambda: in_the_second(used), "the second file")
        driver.kill()
        wait_until(lambda: not driver.processes(), "its workers end by themselves", SLOW, pause=0.1)
        wait_until(
            lambda: not workers(broker, used.exchange), "the broker drops their connections", pause=0.1
        )
        assert driver.busy, "it reported that it was done"
    before = committed(checkpoint)
    run_out(begin(used))
    _, again = judge_query("driver killed in a micro-batch, query restarted", 6, used.queues)
    assert not again & rows_of(before)


def test_a_failed_commit_repeats_its_micro_batch_once_the_cause_is_gone(
    broker, judge_query, begin, checkpoint, tmp_path
):
    put_files(tmp_path / "in", 3, ROWS)
    unroutable = 2 * ROWS - 1  # the last row of the second file
    key = f"if(value = '{unroutable} ', 'nowhere', 'known')"
    with Inbox(broker.url, kind="direct", binding="known") as inbox:
        query = begin(inbox, key=key)
        with pytest.raises(Exception, match=r"returned: 312 NO_ROUTE.*1999 rows are in the broker already"):
            run_out(query)
        assert committed(checkpoint) == ["0"]
        with broker.connection() as connection:
            connection.channel().queue_bind(inbox.queue, inbox.exchange, "nowhere")
        run_out(begin(inbox, key=key))

        assert committed(checkpoint) == ["0", "1", "2"]
        _, again = judge_query("commit fails (no route), bound, query restarted", 3, [inbox.queue])
        assert again == rows_of({"1"}) - {unroutable}
