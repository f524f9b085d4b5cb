"""``spark.readStream`` of real queues in a real Spark: at least once, acknowledged when a micro-batch is finished."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.patience import PATIENCE, wait_until
from tests.programs import stopping
from tests.queues import confirming_channel, message_count
from tests.spark.test_batch_write import failure

pytestmark = [pytest.mark.spark, pytest.mark.broker]

admission = pytest.mark.pyspark(
    "4.2", "it has no read limits, and Trigger.AvailableNow ends after a micro-batch"
)
DEADLINE = 4 * PATIENCE
KINDS = {"classic": {}, "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}}


@pytest.fixture
def channel(broker):
    with confirming_channel(broker) as channel:
        yield channel


@pytest.fixture
def queue(request, channel):
    """A quorum queue, unless the test asks for another type."""
    arguments = KINDS[getattr(request, "param", "quorum")]
    name = f"read-{uuid4().hex[:6]}"
    channel.queue_declare(name, durable=True, arguments=arguments)
    yield name
    channel.queue_delete(name)


def fill(channel, queue, numbers):
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number)


def unacknowledged(broker, queue):
    listed = broker.ctl("list_queues", "name", "messages_unacknowledged")
    return dict(line.split("\t") for line in listed.splitlines())[queue] != "0"


class Collected:
    """A query that collects the rows of each micro-batch in the order of the DataFrame, and can be restarted."""

    def __init__(self, spark, broker, folder, queue, **options):
        self._spark, self._folder = spark, folder
        self._options = {"url": broker.url, "queue": queue, "columns": "value", **options}
        self.rows: list = []
        self.batches: list[list] = []
        self.broken = False

    def writer(self):
        frame = self._spark.readStream.format("rabbitmq").options(**self._options).load()
        written = frame.writeStream.foreachBatch(self._add)
        return written.option("checkpointLocation", str(self._folder / "checkpoint"))

    def _add(self, frame, _):
        if rows := frame.collect():
            self.batches.append(rows)
            self.rows += rows
        if self.broken:
            raise RuntimeError("broken on purpose")

    def run(self):
        """Read until the queue is empty."""
        with stopping(self.writer().trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(DEADLINE)

    @property
    def values(self):
        return [int(bytes(row.value)) for row in self.rows]


@admission
@pytest.mark.parametrize(
    "queue", [pytest.param("classic", marks=[pytest.mark.long, pytest.mark.proof]), "quorum"], indirect=True
)
def test_each_row_is_read_once_in_order_and_acknowledged(spark, broker, channel, queue, tmp_path):
    fill(channel, queue, range(250))
    collected = Collected(spark, broker, tmp_path, queue, maxRowsPerTrigger="100")
    collected.run()
    assert collected.values == list(range(250))
    assert max(map(len, collected.batches)) <= 100
    wait_until(lambda: message_count(channel, queue) == 0, "everything is acknowledged")
    collected.run()
    fill(channel, queue, range(250, 260))
    collected.run()
    assert collected.values == list(range(260))
    assert message_count(channel, queue) == 0


@admission
def test_the_driver_holds_twice_the_rows_of_a_micro_batch(spark, broker, channel, queue, tmp_path):
    fill(channel, queue, range(20))
    collected = Collected(spark, broker, tmp_path, queue, maxRowsPerTrigger="4")

    def look(_, number):
        if number == 0:
            wait_until(
                lambda: message_count(channel, queue) == 20 - 2 * 4, "the broker has sent eight messages"
            )

    with stopping(collected.writer().foreachBatch(look).trigger(availableNow=True).start()) as query:
        assert query.awaitTermination(DEADLINE)
    assert query.exception() is None


@admission
def test_a_restarted_query_reads_unfinished_rows_again(spark, broker, channel, queue, tmp_path):
    """The broker redelivers them, after Spark has repeated the micro-batch of the checkpoint without rows."""
    fill(channel, queue, range(200))
    collected = Collected(spark, broker, tmp_path, queue, maxRowsPerTrigger="50")
    collected.broken = True
    assert "broken on purpose" in failure(collected.run)
    first = len(collected.values)
    assert 0 < first <= 50  # fewer where the broker delivers slowly
    assert collected.values == list(range(first))
    # The second run could find an empty queue while the broker still counts the messages as delivered to the first.
    wait_until(lambda: message_count(channel, queue) == 200, "the messages of the first run are requeued")
    collected.broken = False
    collected.run()
    assert collected.values == [*range(first), *range(200)]
    assert message_count(channel, queue) == 0


@pytest.mark.long
def test_an_idle_query_has_acknowledged_all_its_rows(spark, broker, channel, queue, tmp_path):
    """Spark commits a micro-batch when it plans the next one, which may be later than consumer_timeout."""
    collected = Collected(spark, broker, tmp_path, queue)
    query = collected.writer().start()
    with stopping(query):
        for last in (20, 25):
            fill(channel, queue, range(last - 5, last))
            wait_until(lambda last=last: query.exception() or last - 1 in collected.values, "rows", DEADLINE)
            wait_until(lambda: not unacknowledged(broker, queue), "acknowledgements", DEADLINE, pause=0.5)
    assert collected.values == list(range(15, 25))


def test_the_error_of_a_missing_queue_is_in_the_first_line(spark, broker, tmp_path):
    """The other errors of a queue are those of its reader: tests/broker/test_queue_reader.py."""
    query = Collected(spark, broker, tmp_path, "nowhere").writer().start()
    text = failure(lambda: query.awaitTermination(DEADLINE))
    assert "invalid queue: got 'nowhere', expected an existing queue" in text, text[-1_500:]
