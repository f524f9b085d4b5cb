"""What a publisher can compress or nest costs Spark's Python processes, on the driver and in tasks, little memory."""

from __future__ import annotations

import os
import struct
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from rabbit_chx.streams import connect
from tests.members import in_background
from tests.patience import PATIENCE
from tests.programs import stopping
from tests.proof import Check, record_result
from tests.queues import confirming_channel
from tests.spark.test_batch_write import failure
from tests.stream_forgeries import publish_entry
from tests.unit.test_streams_hostile_entries import DENSE, HOSTILE, compressed, repeated
from tests.wire import Encoded

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.proof]

MOST_MEGABYTES = 200
DEADLINE = 3 * PATIENCE
HEADER_OF_CHUNK, HEADER_OF_BATCH = 48, struct.Struct(">BHII")
ZEROS = 30 << 20
REFUSED = {
    **dict.fromkeys(
        ["a list of 8 million nulls", "an array of 8 million bytes", "a text of 15 MiB in a list"],
        "have more than 150000 items",
    ),
    "a body of 30 MiB": "decompress to more than 16777216 bytes",
}
CHUNKS = HOSTILE | {
    "a body of 30 MiB": lambda: compressed(b"\0\x53\x75\xb0" + struct.pack(">I", ZEROS) + bytes(ZEROS))
}
READ = {
    "many lists of 98,000 booleans": 170,
    "many lists of control characters": 185,
    "many messages of many headers": 14_073,
}


def kib(process: Path, name: str) -> int:
    """A size in the status of a process; 0 if it has ended."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def python_processes() -> list[Path]:
    """The Python processes among the descendants of this process, which Spark has started."""
    processes = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
    parents = {each.name: str(kib(each, "PPid")) for each in processes}

    def is_ours(name: str) -> bool:
        while name in parents:
            name = parents[name]
            if name == str(os.getpid()):
                return True
        return False

    found = []
    for each in processes:
        try:
            program = (each / "cmdline").read_bytes()
        except OSError:
            continue
        if is_ours(each.name) and b"pyspark" in program and b"java" not in program.split(b"\0")[0]:
            found.append(each)
    return found


class Peak:
    """The most megabytes that one of Spark's Python processes has held."""

    def __init__(self) -> None:
        self.megabytes = 0
        self.started = monotonic()

    def look(self) -> None:
        self.megabytes = max([self.megabytes, *(kib(each, "VmHWM") >> 10 for each in python_processes())])


@contextmanager
def watched():
    """Watch the memory of Spark's Python processes, whose earlier peaks are forgotten."""
    for each in python_processes():
        with suppress(OSError):  # it has ended
            (each / "clear_refs").write_text("5")
    peak = Peak()

    def look(ended: threading.Event) -> None:
        while not ended.wait(0.02):
            peak.look()
        peak.look()

    with in_background(look):
        yield peak


def publish(broker, stream: str, chunk: bytes) -> None:
    """Store the batch of this chunk."""
    entry = chunk[HEADER_OF_CHUNK:]
    kind, count, size, _ = HEADER_OF_BATCH.unpack_from(entry)
    with connect(broker.stream_url) as connection:
        publisher = connection._declare_publisher(stream)
        batch = kind >> 4 & 7, count, size, entry[HEADER_OF_BATCH.size :]
        publish_entry(connection, publisher, 1, batch)
        assert any(True for _ in connection._confirms(30))


def scanned(frame) -> int:
    """The number of rows, each read with all columns."""
    seen = frame.selectExpr(
        "count(*) as rows", "sum(length(value)) as bodies", "sum(size(headers)) as headers"
    )
    return seen.collect()[0].rows


def stream_scene(spark, broker, streams, chunk: bytes, way: str, tmp_path) -> int:
    stream = streams.stream()
    publish(broker, stream, chunk)
    port = str(urlsplit(broker.stream_url).port)
    options = {"url": broker.url, "streamPort": port, "stream": stream}
    if way == "batch":
        return scanned(spark.read.format("rabbitmq").options(**options).load())
    frame = spark.readStream.format("rabbitmq").options(**options, startingOffsets="earliest").load()
    return queried(frame, tmp_path)


def queried(frame, tmp_path) -> int:
    """Run a query until its source is empty, and return the number of its rows."""
    rows = []
    writer = frame.writeStream.foreachBatch(lambda found, _: rows.append(scanned(found)))
    writer = writer.option("checkpointLocation", str(tmp_path / uuid4().hex))
    with stopping(writer.trigger(availableNow=True).start()) as query:
        assert query.awaitTermination(DEADLINE)
    return sum(rows)


@pytest.mark.pyspark("4.2", "it has no Trigger.AvailableNow for Python sources")
@pytest.mark.parametrize("way", ["batch", "streaming"])
def test_hostile_entries_of_a_stream_cost_little_memory(spark, broker, streams, way, tmp_path) -> None:
    with watched() as usual:
        assert stream_scene(spark, broker, streams, repeated(DENSE, 2_000), way, tmp_path) == 1
    with watched() as peak:
        for name, rows in READ.items():
            assert stream_scene(spark, broker, streams, CHUNKS[name](), way, tmp_path) == rows, name
        for name, words in REFUSED.items():
            error = failure(
                lambda name=name: stream_scene(spark, broker, streams, CHUNKS[name](), way, tmp_path)
            )
            assert words in error
            assert "StreamReader(" not in error
    judge(f"a {way} read of hostile entries of a stream", broker, len(READ) + len(REFUSED), peak, usual)


@pytest.mark.pyspark("4.2", "it has no Trigger.AvailableNow for Python sources")
def test_hostile_headers_in_a_queue_cost_little_memory(spark, broker, tmp_path) -> None:
    """Half of them look like messages of this package, whose headers the reader decodes."""
    nested = b"A" + struct.pack(">I", 100_000) + b"F\0\0\0\0" * 20_000
    queue = f"read-{uuid4().hex[:6]}"
    with confirming_channel(broker) as channel:
        channel.queue_declare(queue, durable=True)

        def read(count: int) -> int:
            for number in range(count):
                name = (b"h", b"x-rabbit-chx-hold")[number % 2]
                fields = bytes([len(name)]) + name + nested
                properties = struct.pack(">HI", 1 << 13, len(fields)) + fields
                channel.basic_publish("", queue, b"x", Encoded(properties))
            frame = spark.readStream.format("rabbitmq").options(url=broker.url, queue=queue).load()
            return queried(frame, tmp_path)

        try:
            with watched() as usual:
                assert read(1) == 1
            with watched() as peak:
                assert read(400) == 400
        finally:
            channel.queue_delete(queue)
    judge("a read of hostile headers in a queue", broker, 400, peak, usual)


def judge(what: str, broker, cases: int, peak: Peak, usual: Peak) -> None:
    """Record how much more memory the hostile messages took than one small message, and check it."""
    grown = peak.megabytes - usual.megabytes
    wrong = cases if grown >= MOST_MEGABYTES else 0
    control = f"peak memory of a Python process {grown} MiB above that of one small message"
    seconds = monotonic() - peak.started
    record_result(Check("Spark", what, broker.release or "4.3", cases, wrong, seconds, control))
    assert not wrong
