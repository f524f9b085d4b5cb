"""Tasks that write to streams of real brokers, without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_connector import RabbitMQDataSource
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
