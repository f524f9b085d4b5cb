"""Writes of a real Spark for fault tests, and what the queues hold afterwards.

The body of every row begins with its number, as in `ledger`; with the option taskHeaders each copy of a row names the
attempt and the partition that sent it. A write runs in its own thread, so that the test can cause a fault at a chosen
moment. The programs of `spark_programs` write the same frames.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from spark_connector import register
from tests.faults.ledger import drain, row_of
from tests.members import Member
from tests.patience import PATIENCE, wait_until

SLOW = 2 * PATIENCE
"""How long something that starts processes may take."""


class Copy(NamedTuple):
    """One message, and the task that sent it."""

    row: int
    partition: int
    attempt: int
    batch: str


def copies(url: str, queues, *, quiet: float = 1.0) -> list[Copy]:
    """Empty the queues, with messages that arrive late."""

    def read(properties, content) -> Copy:
        headers = properties.headers or {}
        place = (headers.get("x-spark-partition", 0), headers.get("x-spark-attempt", 0))
        return Copy(row_of(content), *place, headers.get("x-spark-batch-id", ""))

    return [one for found in drain(url, queues, quiet=quiet, read=read) for one in found]


def of_attempts(found: list[Copy], partition: int) -> dict[int, list[int]]:
    """The sorted rows of a partition, by the attempt that sent them."""
    sent: dict[int, list[int]] = {}
    for one in found:
        if one.partition == partition:
            sent.setdefault(one.attempt, []).append(one.row)
    return {attempt: sorted(rows) for attempt, rows in sorted(sent.items())}


def duplicates(found: list[Copy]) -> list[Copy]:
    """All copies of rows that exist more than once."""
    counts = Counter(one.row for one in found)
    return [one for one in found if counts[one.row] > 1]


# -- frames ------------------------------------------------------------------------------------------


def numbered(spark, rows: int, partitions: int, gates: Path | None = None, **gate):
    """A frame of rows of about a hundred bytes; each partition has a range of them, and may wait at a gate."""
    frame = spark.range(0, rows, 1, partitions).selectExpr(
        "concat(id, ' ', repeat('x', 90)) as value", "concat('key-', id % 1000) as key"
    )
    return frame if gates is None else frame.mapInArrow(gated(str(gates), **gate), frame.schema)


BATCHES = 10
"""Batches of `SMALL` rows in a partition that has a gate. A gate before the last one lets 7 to 9 of them through, since
Spark may hold two on their way to the writer."""
SMALL = 1_000


def gated(gates: str, *, before: int = BATCHES - 1, fails: int = 0, partition: int | None = None):
    """Let rows wait until the test has caused its fault and opens the gate of their attempt.

    The first ``fails`` attempts end there in an error; with ``partition``, the other partitions have no gate.
    """

    # A nested function is pickled whole, so that no worker has to import a test.
    def pass_on(batches):
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber()
        for number, batch in enumerate(batches):
            if number == before and partition in {None, context.partitionId()}:
                while not os.path.exists(f"{gates}/{attempt}"):  # noqa: PTH110
                    time.sleep(0.02)
                if attempt < fails:
                    raise ValueError(f"a row fails on attempt {attempt}")
            yield batch

    return pass_on


def open_gates(gates: Path, *attempts: int) -> None:
    for attempt in attempts:
        (gates / str(attempt)).touch()


def put_files(folder: Path, files: int, rows: int) -> None:
    """Write files of rows, with increasing times, by which Spark orders them."""
    folder.mkdir()
    for number in range(files):
        file = folder / f"{number}.txt"
        file.write_text("".join(f"{row} \n" for row in range(number * rows, (number + 1) * rows)))
        os.utime(file, (1_600_000_000 + number,) * 2)


def stream(spark, folder, checkpoint, options: dict[str, str], key: str = "value"):
    """A query that writes the files of a folder, one per micro-batch, and ends after the last one."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
    write = lines.selectExpr("value", f"{key} as key").writeStream.format("rabbitmq").options(**options)
    return write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def options(broker, used, **more) -> dict[str, str]:
    """The options of a write to a topology; its connections have the name of the exchange."""
    own = {"url": broker.url, "exchange": used.exchange, "connectionName": used.exchange}
    return {**own, "taskHeaders": "true", "retryTimeoutMs": "300", **{k: str(v) for k, v in more.items()}}


# -- a write under way -------------------------------------------------------------------------------


class Write(Member):
    """``save()`` in its own thread."""

    def __init__(self, spark, frame, chosen: dict[str, str]) -> None:
        super().__init__(self._save)
        self._spark, self._frame, self._chosen = spark, frame, chosen
        self.start()

    def _save(self) -> None:
        register(self._spark)
        self._frame.write.format("rabbitmq").options(**self._chosen).mode("append").save()

    def until(self, condition, what: str) -> None:
        """Wait for something that must happen while the write runs."""
        wait_until(lambda: condition() or not self.is_alive(), what, SLOW, pause=0.1)
        assert self.is_alive(), f"it ended before: {what} ({self.error})"

    def end(self) -> str:
        """Wait for the end; return the text of the error, or nothing."""
        self.join(SLOW)
        assert not self.is_alive(), "the write hangs"
        return str(self.error or "")


def workers(broker, name: str) -> dict[int, int]:
    """The Python workers that have a connection of this name, by process, and their partitions."""
    listed = broker.ctl("list_connections", "client_properties")
    found = re.findall(rf"{re.escape(name)} .* partition (\d+) attempt \d+ pid (\d+)", listed)
    return {int(pid): int(partition) for partition, pid in found}


def failed_tasks(spark) -> int:
    """How many attempts have failed in the running job."""
    tracker = spark.sparkContext.statusTracker()
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


# -- the control -------------------------------------------------------------------------------------


def naive(url: str, exchange: str, rows_a_second: int):
    """A naive function for ``foreachPartition``: no confirms; after an error it reconnects and continues."""

    def publish(rows):  # nested, as above
        import time
        from contextlib import suppress

        import pika
        from pika.adapters.utils.connection_workflow import AMQPConnectorException
        from pika.exceptions import AMQPError

        parameters = pika.URLParameters(f"{url}?heartbeat=5&socket_timeout=2&stack_timeout=2")
        properties = pika.BasicProperties(delivery_mode=2)
        channel = None
        for row in rows:
            time.sleep(1 / rows_a_second)
            sent = False
            while not sent:
                with suppress(AMQPError, AMQPConnectorException, OSError):
                    if channel is None or not channel.is_open:
                        channel = pika.BlockingConnection(parameters).channel()
                    channel.basic_publish(exchange, row.key, row.value.encode(), properties)
                    sent = True
        with suppress(AMQPError, OSError):  # the broker may have closed it
            channel.connection.close()

    return publish
