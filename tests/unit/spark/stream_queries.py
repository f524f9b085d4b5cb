"""A cluster with a stream, in place of brokers, and queries on it that plan micro-batches as Spark does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Self

import pyarrow as pa
import pytest

from rabbit_chx.errors import InvalidMessage, StreamUnavailable
from rabbit_chx.streams.ends import Bounds
from spark_connector import RabbitMQDataSource
from spark_connector.reading import rows, stream_access
from spark_connector.reading.offsets import SavedOffset
from spark_connector.reading.readers import StreamingReader


class Node:
    """A node that has a stream up to some offset; a connection to it; a reader at it."""

    def __init__(self, end: int, made: int) -> None:
        self.end = end
        self.made = made
        """A number that another stream of the same name does not have."""
        self.gap = range(0)
        """Offsets without a message."""
        self.invalid: set[int] = set()
        """Offsets of messages that cannot be decoded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do."""

    def stored_at(self, offset: int) -> int | None:
        return self.made + offset if offset < self.end and offset not in self.gap else None

    def _check_same(self, offset: int, time_ms: int) -> None:
        if self.stored_at(offset) not in {None, time_ms}:
            raise StreamUnavailable("created again", "no such stream", "s")

    def read(
        self, start: int, end: int, *, columns: tuple[str, ...], binary_headers: bool
    ) -> Iterator[pa.RecordBatch]:
        assert (columns, binary_headers) == (("offset",), False)
        if end > self.end:
            raise StreamUnavailable("beyond", "beyond the end", "s", 0, self.end)
        if found := self.invalid & {*range(start, end)}:
            raise InvalidMessage("not valid AMQP 1.0", "s", min(found))
        yield pa.RecordBatch.from_pydict({"offset": range(start, end)})


class Cluster:
    """The leader and a replica of a stream, without sockets."""

    def __init__(self) -> None:
        self.leader, self.replica = Node(100, 7_000), Node(100, 7_000)

    def connected(self, _options, _stream="", *, leader: bool = False, **_) -> Node:
        return self.leader if leader else self.replica

    def recreate(self, end: int) -> None:
        self.leader, self.replica = Node(end, 9_000), Node(end, 9_000)


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(stream_access, "connected", cluster.connected)
    monkeypatch.setattr(rows, "stream_reader", cluster.connected)
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(0, node.end))
    monkeypatch.setattr(stream_access, "stored_at", lambda node, stream, offset: node.stored_at(offset))
    monkeypatch.setattr(stream_access, "_PAUSE_SECONDS", 0.001)
    return cluster


def source_of(**options: str) -> RabbitMQDataSource:
    given = {"url": "amqp://h", "stream": "s", "startingOffsets": "earliest", "connectionTimeoutMs": "10"}
    return RabbitMQDataSource({**given, "columns": "offset", **options})


def reader(**options: str) -> StreamingReader:
    source = source_of(**options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamingReader)
    return made


def stored(offset: dict[str, SavedOffset]) -> dict[str, SavedOffset]:
    """An offset after a round trip through a checkpoint."""
    return json.loads(json.dumps(offset))


def ranges(planned) -> list[tuple[int, int]]:
    return [(one.range.start, one.range.end) for one in planned]


class Query:
    """Plans micro-batches as Spark does: before 4.2, it passes no start to `latestOffset`; since then also a limit."""

    def __init__(self, reader: StreamingReader, *, passes_start: bool = True, limited: bool = False) -> None:
        self.reader = reader
        self.at = stored(reader.initialOffset())
        self._passes_start = passes_start
        self._limited = limited

    def plan(self) -> list[tuple[int, int]]:
        given = [self.at] if self._passes_start else []
        given += [self.reader.getDefaultReadLimit()] if self._limited else []
        start, self.at = self.at, stored(self.reader.latestOffset(*given))
        return ranges(self.reader.partitions(start, self.at))
