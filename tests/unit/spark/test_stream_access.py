"""Which streams of an exchange the driver finds, with a small local server, and where streams end if a replica lags behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Self

import pyarrow as pa
import pytest

from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams import Bounds
from rabbit_chx.urls import BrokerUrl
from spark_connector import RabbitMQDataSource, logs
from spark_connector.reading import stream_access
from spark_connector.reading.offsets import DataLoss, SavedOffset
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.readers import StreamingReader
from spark_connector.reading.stream_access import StreamAccess
from tests.unit.test_management import BINDING_COLUMNS, FLAGS, QUEUE_COLUMNS, serving

BINDING = {"source": "top", "routing_key": "", "arguments": {}}
TYPES = {"s0": "stream", "s1": "stream", "q": "quorum"}


def binding(source: str, destination: str, kind: str = "queue") -> dict[str, object]:
    return {**BINDING, "source": source, "destination": destination, "destination_type": kind}


def queue(name: str) -> dict[str, object]:
    return {"name": name, "type": TYPES[name], "exclusive": False, "arguments": {}, **FLAGS}


BINDINGS = f"/api/bindings/%2F?columns={BINDING_COLUMNS}"


@pytest.fixture
def api():
    bindings = [binding("top", "hash", "exchange"), binding("hash", "s1"), binding("hash", "q")]
    bindings += [binding("top", "s0"), binding("other", "elsewhere")]
    answers = {f"/api/queues/%2F/{name}?columns={QUEUE_COLUMNS}": queue(name) for name in TYPES}
    with serving({BINDINGS: bindings, **answers}) as api:
        yield api


def access_to(api, **options: str) -> StreamAccess:
    given = {"url": "amqp://u:p@127.0.0.1", "exchange": "top", "managementUrl": api.url}
    return StreamAccess(ReadOptions.of({**given, **options}))


@pytest.mark.parametrize(("seconds", "lists"), [(1e9, 1), (0.0, 2)])
def test_the_list_of_the_streams_of_an_exchange_expires(api, monkeypatch, seconds, lists) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", seconds)
    access = access_to(api)
    assert [access.chosen(), access.chosen(["s0"])] == [["s0", "s1"]] * 2
    asked = [path for path, _ in api.asked]
    assert asked.count(BINDINGS) == lists
    assert len(asked) == lists + len(TYPES)


def test_without_the_api_the_last_list_is_used_for_a_while(api, monkeypatch) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", 0.0)
    access = access_to(api)
    assert access.chosen() == ["s0", "s1"]
    bindings, api.answers[BINDINGS] = api.answers[BINDINGS], (503, {"reason": "starting"})
    assert access.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = bindings
    assert access.chosen() == ["s0", "s1"]

    impatient = access_to(api, reconnectTimeoutMs="1")
    assert impatient.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = (503, {"reason": "starting"})
    assert impatient.chosen() == ["s0", "s1"]
    time.sleep(0.01)
    with pytest.raises(BrokerUnavailable, match=r"answered 503.*name the streams in the option stream"):
        impatient.chosen()


@pytest.mark.parametrize(("status", "permanent"), [(503, False), (401, True)])
def test_a_query_cannot_start_without_the_api(api, status, permanent) -> None:
    api.answers[BINDINGS] = (status, {"reason": "Not"})
    with pytest.raises(BrokerUnavailable, match="name the streams in the option stream") as caught:
        access_to(api).chosen()
    assert caught.value.permanent == permanent


def test_the_last_list_is_not_used_if_the_api_refuses_another_one(api, monkeypatch) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", 0.0)
    access = access_to(api)
    access.chosen()
    api.answers[BINDINGS] = (401, {"reason": "Not"})
    with pytest.raises(BrokerUnavailable):
        access.chosen()


def test_a_queue_that_was_deleted_after_its_bindings_were_listed_is_left_out(api) -> None:
    api.answers[BINDINGS].append(binding("top", "amq.gen-x"))
    assert access_to(api).chosen() == ["s0", "s1"]


def test_by_default_the_api_of_each_broker_is_asked_until_one_answers(api, monkeypatch) -> None:
    apis = {"gone": "http://127.0.0.1:1", "here": api.url}
    monkeypatch.setattr(BrokerUrl, "management_url", property(lambda url: apis[url.host]))
    options = ReadOptions.of({"url": "amqp://u:p@gone,amqp://u:p@here", "exchange": "top"})
    assert StreamAccess(options).chosen() == ["s0", "s1"]


class Node:
    """A node that has a stream up to some offset; a connection to it; a reader at it."""

    def __init__(self, end: int, made: int) -> None:
        self.end = end
        self.made = made
        """A number that another stream of the same name does not have."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do."""

    def stored_at(self, offset: int) -> int | None:
        return self.made + offset if offset < self.end else None

    def read(self, start: int, end: int, *, binary_headers: bool) -> Iterator[pa.RecordBatch]:
        assert not binary_headers
        if end > self.end:
            raise StreamUnavailable("beyond", "beyond the end", "s", 0, self.end)
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
    monkeypatch.setattr(stream_access, "stream_reader", cluster.connected)
    monkeypatch.setattr(stream_access, "bounds", lambda node, stream: Bounds(0, node.end))
    monkeypatch.setattr(stream_access, "stored_at", lambda node, stream, offset: node.stored_at(offset))
    monkeypatch.setattr(stream_access, "_PAUSE_SECONDS", 0.001)
    return cluster


def reader(**options: str) -> StreamingReader:
    given = {"url": "amqp://h", "stream": "s", "startingOffsets": "earliest", "connectionTimeoutMs": "10"}
    source = RabbitMQDataSource({**given, "columns": "offset", **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamingReader)
    return made


def stored(offset: dict[str, SavedOffset]) -> dict[str, SavedOffset]:
    """An offset after a round trip through a checkpoint."""
    return json.loads(json.dumps(offset))


class Query:
    """Plans micro-batches as Spark does: before 4.2, it passes no start to `latestOffset`."""

    def __init__(self, reader: StreamingReader, *, passes_start: bool) -> None:
        self.reader = reader
        self.at = stored(reader.initialOffset())
        self._passes_start = passes_start

    def plan(self) -> list[tuple[int, int]]:
        end = stored(self.reader.latestOffset(self.at) if self._passes_start else self.reader.latestOffset())
        planned = self.reader.partitions(self.at, end)
        self.at = end
        return [(one.range.start, one.range.end) for one in planned]


@pytest.fixture(params=[True, False], ids=["4.2", "4.0"])
def passes_start(request) -> bool:
    return request.param


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_replica_that_lags_behind_is_not_taken_for_a_new_stream(
    cluster, passes_start, fail_on_data_loss
) -> None:
    query = Query(reader(failOnDataLoss=fail_on_data_loss), passes_start=passes_start)
    assert query.plan() == [(0, 100)]
    cluster.replica.end, cluster.leader.end = 80, 120
    query.reader._access.close()  # the next connection leads to the replica
    assert query.plan() == [(100, 120)]
    cluster.leader.end = 150
    assert query.plan() == [(120, 150)]


def test_a_new_stream_that_is_shorter_is_recognised(cluster, passes_start) -> None:
    query = Query(reader(failOnDataLoss="false"), passes_start=passes_start)
    strict = Query(reader(), passes_start=passes_start)
    assert query.plan() == strict.plan() == [(0, 100)]
    cluster.recreate(30)
    for one in (query, strict):
        one.reader._access.close()
    with pytest.raises(DataLoss, match="was deleted and created again"):
        strict.plan()
    assert [*query.plan(), *query.plan()] == [(0, 30)]


def test_a_task_at_a_replica_that_lags_behind_reads_from_the_leader(cluster) -> None:
    cluster.replica.end = 80
    (partition,) = reader().partitions({"s": {"offset": 0}}, {"s": {"offset": 100}})
    (batch,) = reader().read(partition)
    assert batch.num_rows == 100
    cluster.leader.end = 90
    with pytest.raises(StreamUnavailable, match="beyond"):
        list(reader().read(partition))


@pytest.mark.parametrize(("seconds", "still"), [(1e9, 0), (0.0, 3)])
def test_an_outage_is_logged_when_it_begins_while_it_lasts_and_when_it_ends(
    cluster, monkeypatch, caplog, seconds, still
) -> None:
    failures: list[StreamUnavailable] = []

    def bounds(node, stream):
        if failures:
            raise failures.pop()
        return Bounds(0, node.end)

    monkeypatch.setattr(stream_access, "bounds", bounds)
    monkeypatch.setattr(logs, "_EVERY_SECONDS", seconds)
    query = Query(reader(), passes_start=True)
    failures += [StreamUnavailable("the connection to h was lost: reset", "lost")] * 4
    query.plan()
    query.plan()
    first, *others, last = [record.getMessage() for record in caplog.records]
    assert first == (
        "read of the option stream: the connection to h was lost: reset; trying to reconnect for 120 s"
    )
    assert len(others) == still
    assert all("no connection for 0 s: the connection to h was lost" in line for line in others)
    assert last == "read of the option stream: connected again after 0 s"
