"""Tasks that write to streams of real brokers, without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest

from spark_connector import RabbitMQDataSource, WriteFailed
from spark_connector.worker import Task
from spark_connector.writing.partition import write_partition
from tests.broker.spark_frames import rows
from tests.broker.stream_scene import stored

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

ROWS, LOT = 20_000, 500


def test_two_attempts_at_the_same_time_store_each_row_once(broker, stream_url, stream) -> None:
    """With speculative execution, a second attempt of a slow task starts while the first one is running."""
    schema, batch = rows(ROWS)
    writer = RabbitMQDataSource({"url": broker.stream_url, "stream": stream}).writer(schema, overwrite=False)

    def attempt(_):
        return writer.write(batch.slice(first, LOT) for first in range(0, ROWS, LOT))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(attempt, range(2))
    assert (first.problem, second.problem) == ("", "")
    assert first.confirmed + first.already_stored == second.confirmed + second.already_stored == ROWS
    assert [message.body for message in stored(stream_url, stream)] == [
        b"body %d" % number for number in range(ROWS)
    ]


@pytest.mark.parametrize(
    "task", [Task(), Task(query_id="q", batch_id="3")], ids=["batch", "micro-batch of a restarted query"]
)
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_fewer_partitions_after_a_kill_fail(broker, stream, task, partitions) -> None:
    """Once, 1,500 rows were stored for 1,000, and the write succeeded."""
    schema, batch = rows(600)
    options = {"url": broker.stream_url, "stream": stream, "producerName": "P"}
    writer = RabbitMQDataSource(options).writer(schema, overwrite=False)

    def run(count: int, ended):
        """A run of the write in some partitions, of which these end."""
        size, attempt = len(batch) // count, replace(task, run=str(uuid4()))
        parts = {each: batch.slice(each * size, size) for each in ended}
        return [
            write_partition(iter([part]), writer._job, replace(attempt, partition=each))
            for each, part in parts.items()
        ]

    assert [one.confirmed for one in run(4, [1, 3])] == [150, 150]
    complaint = f"the write has {partitions} partitions, but an earlier attempt .* had at least 4"
    with pytest.raises(WriteFailed, match=complaint):
        writer.commit(run(partitions, range(partitions)))
