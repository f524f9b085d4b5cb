"""Reads of streams for fault tests: the publisher, the query that copies streams into a table, and the table.

The messages of each stream are numbered from 0, so its stream and its number identify a row of the table.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rabbit_chx.streams import StreamPublisher
from tests.faults.spark_load import SLOW
from tests.members import Member

NO_LOSS = "no loss is possible, Spark reads the offsets again"
"""What a fault test of a read records instead of a control."""
WORKER = "pyspark.daemon"
"""Text in the command lines of Python workers."""
BATCH = 50
PAUSE = 0.1
"""Each stream gets a batch of messages, then the feed pauses: longer and longer, so that a slow query can keep up."""
MANY = 2_000
"""Messages after which the pauses are twice as long."""


def body(number: int, size: int = 100) -> bytes:
    return b"%d " % number + b"x" * size


class Feed(Member):
    """Publishes to streams until `end`, with publisher names: the broker deduplicates messages sent again after a lost connection."""

    def __init__(
        self, url: str, streams: list[str], *, first: int = 0, follow_advertised: bool = False
    ) -> None:
        """Start; each stream gets ``first`` messages at once, and then `BATCH` messages at a time."""
        super().__init__(self._publish)
        self._first = first
        self._url, self._follow = url, follow_advertised
        self.sent = dict.fromkeys(streams, 0)
        self._ending = threading.Event()
        self.start()

    def _publish(self) -> None:
        with ExitStack() as stack:
            publishers = [stack.enter_context(self._publisher(stream)) for stream in self.sent]
            for publisher in publishers:
                self._send(publisher, self._first)
            while not self._ending.wait(PAUSE * (1 + (max(self.sent.values()) - self._first) / MANY)):
                for publisher in publishers:
                    self._send(publisher, BATCH)

    def _send(self, publisher: StreamPublisher, count: int) -> None:
        sent = self.sent[publisher.stream]
        publisher.publish_many(map(body, range(sent, sent + count)))
        self.sent[publisher.stream] += count

    def _publisher(self, stream: str) -> StreamPublisher:
        return StreamPublisher(self._url, stream, name="feed", follow_advertised=self._follow)

    def end(self) -> dict[str, int]:
        """Stop, and return the number of confirmed messages of each stream."""
        self._ending.set()
        self.join(SLOW)
        assert not self.is_alive(), "the feed hangs"
        if self.error:
            raise self.error
        return self.sent


# -- the query, in the program that is killed -----------------------------------------------------------


def copy(spark, folder: str, options: dict[str, str], into: dict[str, str] | None = None) -> None:
    """Copy streams or a queue into a table, or into a stream, until `stop` is called; then read the remaining rows."""

    def write():
        rows = spark.readStream.format("rabbitmq").options(**options).load()
        if into is not None:
            copies = (
                rows.selectExpr("value", "stream as routing_key")
                .writeStream.format("rabbitmq")
                .options(**into)
            )
        else:
            copies = rows.writeStream.format("parquet").option("path", f"{folder}/rows")
        return copies.option("checkpointLocation", f"{folder}/checkpoint")

    if not is_stopped(folder):
        query = write().trigger(processingTime="100 milliseconds").start()
        while not is_stopped(folder):
            if query.awaitTermination(0.1):
                raise RuntimeError("the query ended by itself")
        query.stop()
    write().trigger(availableNow=True).start().awaitTermination()


def is_stopped(folder: str) -> bool:
    return Path(folder, "stop").exists()


def stop(folder: Path) -> None:
    (folder / "stop").touch()


def committed(folder: Path, log: str = "commits") -> int:
    """The number of committed micro-batches, or with ``offsets`` of those that have begun."""
    return sum(one.name.isdigit() for one in (folder / "checkpoint" / log).glob("*"))


def until_committed(program, folder: Path, more: int = 1) -> None:
    """Wait until this many more micro-batches are committed."""
    enough = committed(folder) + more
    program.until(lambda: committed(folder) >= enough, "a micro-batch is committed")


def until_reading(program, *ports: int) -> int:
    """Wait until a task is reading through one of these ports, and return its process id."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for port in ports for pid in readers(program.processes(WORKER), port)]
        return bool(found)

    program.until(look, "a task reads")
    return found[0]


def finish(program, feed: Feed, folder: Path) -> dict[str, int]:
    """End the feed, let the query read the remaining rows, and return how many messages each stream has."""
    sent = feed.end()
    stop(folder)
    assert program.answer() == {"done": True}, program.complaint()
    return sent


def readers(pids: list[int], port: int) -> list[int]:
    """The processes that have a connection to a port."""
    return [pid for pid in pids if _sockets(pid) & _connections(pid, port)]


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):  # it has ended
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def _connections(pid: int, port: int) -> set[str]:
    """The sockets of all established connections to a port of 127.0.0.1."""
    with suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return {row[9] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"}
    return set()


# -- the table ------------------------------------------------------------------------------------------


class Row(NamedTuple):
    offset: int
    number: int


def table(spark, folder: Path) -> dict[str, list[Row]]:
    """The rows of each stream by offset. The rows of each file must be in this order."""
    source = "_metadata.file_name as file", "_metadata.row_index as row"
    number = "cast(split(cast(value as string), ' ')[0] as bigint) as number"
    frame = spark.read.parquet(str(folder / "rows")).selectExpr("stream", "offset", number, *source)
    streams, files = defaultdict(list), defaultdict(list)
    for row in frame.orderBy("file", "row").collect():
        streams[row.stream].append(Row(row.offset, row.number))
        files[row.file, row.stream].append(row.offset)
    assert all(one < other for offsets in files.values() for one, other in pairwise(offsets))
    return {stream: sorted(rows) for stream, rows in streams.items()}


class Outcome(NamedTuple):
    """The missing, unexpected and duplicated rows of a table; each row is a stream and a number."""

    lost: set[tuple[str, int]]
    unexpected: set[tuple[str, int]]
    duplicated: int


def compare(sent: dict[str, int], found: dict[str, list[Row]]) -> Outcome:
    wanted = {(stream, number) for stream, count in sent.items() for number in range(count)}
    counts = Counter((stream, row.number) for stream, rows in found.items() for row in rows)
    return Outcome(wanted - set(counts), set(counts) - wanted, counts.total() - len(counts))
