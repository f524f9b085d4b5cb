"""Streams of Spark under faults: a query goes on from its checkpoint, and what is there twice is of one micro-batch.

The source is a folder of files, one per micro-batch, so the rows of each micro-batch are known.
"""

from __future__ import annotations

import pytest

from tests.faults.load import wait_until
from tests.faults.spark_load import SLOW, copies, options, put_files, stream, there_again, workers
from tests.faults.spark_programs import Program
from tests.inbox import Inbox

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ROWS = 2_000
"""Of a file."""
AGAIN = "no loss is possible, Spark runs the micro-batch again"


@pytest.fixture
def folder(tmp_path):
    """Where the files are; made by `put_files`."""
    return tmp_path / "in"


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture(autouse=True)
def no_query_is_left(spark):
    yield
    for query in spark.streams.active:
        query.stop()


def run_out(query) -> None:
    """Wait for the end of the last file, and raise what ended the query before it."""
    assert query.awaitTermination(SLOW), "the query hangs"


def committed(checkpoint) -> list[str]:
    """The micro-batches that are recorded as done."""
    return sorted(one.name for one in (checkpoint / "commits").glob("*") if one.name.isdigit())


def in_the_second(used) -> bool:
    """The first file is through, and some of the next."""
    return used.depth() > ROWS + ROWS // 4


def until_under_way(query, used) -> None:
    wait_until(lambda: in_the_second(used) or not query.isActive, "the second file", SLOW, pause=0.1)
    assert query.isActive, query.exception()


def rows_of(batches: set[str]) -> set[int]:
    return {row for batch in batches for row in range(int(batch) * ROWS, (int(batch) + 1) * ROWS)}


def judge_again(judge_spark, scenario: str, files: int, found, **more) -> set[int]:
    """Nothing is lost, and the rows that are there again are of one micro-batch, in each of their copies."""
    again = there_again(found)
    batches = {one.batch for one in again}
    assert len(batches) <= 1
    note = "what is there again is of one micro-batch" if again else ""
    judge_spark(scenario, files * ROWS, found, twice=rows_of(batches), note=note, **more)
    return {one.row for one in again}


def test_a_broker_that_is_killed_during_a_query_loses_no_row(
    spark, broker, topology, judge_spark, folder, checkpoint
):
    used = topology()
    put_files(folder, 4, ROWS)
    chosen = options(broker, used, maxRatePerTask=2_000, maxInFlight=500)
    query = stream(spark, folder, checkpoint, chosen).start()
    until_under_way(query, used)
    broker.kill()
    broker.restart()
    run_out(query)

    assert committed(checkpoint) == ["0", "1", "2", "3"]
    found = copies(broker.url, used.queues)
    assert {one.attempt for one in found} == {0}
    assert len(found) - 4 * ROWS <= 500
    judge_again(judge_spark, "broker killed and restarted, stream", 4, found, control="that of the batch")


def test_a_query_that_is_stopped_goes_on_from_its_checkpoint(
    spark, broker, topology, judge_spark, folder, checkpoint
):
    used = topology()
    put_files(folder, 6, ROWS)
    query = stream(spark, folder, checkpoint, options(broker, used, maxRatePerTask=1_000)).start()
    until_under_way(query, used)
    query.stop()
    assert query.exception() is None
    before = committed(checkpoint)
    assert len(before) < 6
    run_out(stream(spark, folder, checkpoint, options(broker, used)).start())

    found = copies(broker.url, used.queues)
    again = judge_again(judge_spark, "query.stop() in a micro-batch", 6, found, control=AGAIN)
    assert not again & rows_of(set(before))


def test_a_driver_that_is_killed_is_followed_by_one_that_goes_on_from_the_checkpoint(
    spark, broker, topology, judge_spark, folder, checkpoint, tmp_path
):
    used = topology()
    put_files(folder, 6, ROWS)
    driver = Program("local[2]", tmp_path / "driver")
    try:
        chosen = options(broker, used, maxRatePerTask=1_000)
        driver.order(folder=str(folder), checkpoint=str(checkpoint), options=chosen)
        driver.until(lambda: in_the_second(used), "the second file")
        driver.kill()
        wait_until(lambda: not driver.processes(), "its workers end by themselves", SLOW, pause=0.1)
        wait_until(
            lambda: not workers(broker, used.exchange), "the broker drops their connections", pause=0.1
        )
        assert driver.at_work, "it says that it is done"
    finally:
        driver.stop()
    before = committed(checkpoint)
    run_out(stream(spark, folder, checkpoint, options(broker, used)).start())

    found = copies(broker.url, used.queues)
    again = judge_again(
        judge_spark, "driver killed in a micro-batch, query restarted", 6, found, control=AGAIN
    )
    assert not again & rows_of(set(before))


def test_a_commit_that_fails_repeats_its_micro_batch_once_the_cause_is_gone(
    spark, broker, judge_spark, folder, checkpoint
):
    put_files(folder, 3, ROWS)
    poison = 2 * ROWS - 1  # the last row of the second file
    key = f"if(value = '{poison} ', 'nowhere', 'known')"
    with Inbox(broker.url, kind="direct", binding="known") as inbox:
        chosen = options(broker, inbox)
        query = stream(spark, folder, checkpoint, chosen, key=key).start()
        with pytest.raises(Exception, match=r"returned: 312 NO_ROUTE.*1999 rows are in the broker already"):
            run_out(query)
        assert committed(checkpoint) == ["0"]
        with broker.connection() as connection:
            connection.channel().queue_bind(inbox.queue, inbox.exchange, "nowhere")
        run_out(stream(spark, folder, checkpoint, chosen, key=key).start())

        assert committed(checkpoint) == ["0", "1", "2"]
        found = copies(broker.url, [inbox.queue])
        again = judge_again(
            judge_spark,
            "commit fails (no route), bound, query restarted",
            3,
            found,
            control=AGAIN,
        )
        assert again == rows_of({"1"}) - {poison}
