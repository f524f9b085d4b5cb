"""What a query does while a stream is on another node, has no leader, or cannot be reached."""

from __future__ import annotations

import re
from unittest.mock import Mock

import pytest

from rabbit_chx.base import outages
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.ends import Bounds
from rabbit_chx.streams.protocol.opening import OnOtherNode
from spark_connector.reading import stream_access
from tests.unit.spark import stream_queries
from tests.unit.spark.stream_queries import Query, reader, stored

cluster = stream_queries.cluster


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
    monkeypatch.setattr(outages, "_EVERY_SECONDS", seconds)
    query = Query(reader())
    failures += [StreamUnavailable("the connection to h was lost: reset", "lost")] * 4
    query.plan()
    query.plan()
    first, *others, last = [record.getMessage() for record in caplog.records]
    assert first == (
        "read of the option stream: the connection to h was lost: reset; trying to reconnect for 120 s"
    )
    assert len(others) == still
    assert all(re.search(r"no connection for \d+ s: the connection to h was lost", line) for line in others)
    assert re.fullmatch(r"read of the option stream: connected again after \d+ s", last)


class Elsewhere:
    """A cluster of two nodes. The node at the address has stream ``s`` only; stream ``t`` is on the other node."""

    def __init__(self, monkeypatch, release: str) -> None:
        self.here, self.there = Mock(), Mock()
        self.release = release
        self.failures: list[StreamUnavailable] = []
        """Of the next attempts to connect to a node with the other stream."""
        self.opened: list[str | None] = []
        """For which stream each connection was."""
        self.pauses: list[float] = []
        monkeypatch.setattr(stream_access, "connected", self.connected)
        monkeypatch.setattr(stream_access, "bounds", self.bounds)
        monkeypatch.setattr(stream_access, "stored_at", self.stored_at)
        monkeypatch.setattr("spark_connector.reading.stream_access.time.sleep", self.pauses.append)

    def connected(self, _options, *, stream: str | None = None) -> Mock:
        self.opened.append(stream)
        if stream is None:
            return self.here
        if self.failures:
            raise self.failures.pop()
        return self.there

    def bounds(self, node: Mock, stream: str) -> Bounds:
        return Bounds(0, 100 if self.release == "4.3" else self.stored_at(node, stream, 100))

    def stored_at(self, node: Mock, stream: str, offset: int) -> int:
        if node is self.here and stream == "t":
            raise StreamUnavailable("not available on this node", "not available", stream)
        return offset


UNREACHABLE = OnOtherNode("it is on there; followAdvertised", "not available", "t")
AWAY = StreamUnavailable("stream 't' has no leader at the moment", "not available", "t")


@pytest.mark.parametrize("release", ["4.2", "4.3"])
def test_a_stream_on_another_node_is_no_outage(monkeypatch, caplog, release) -> None:
    cluster, made = Elsewhere(monkeypatch, release), reader(stream="s,t", startingOffsets="latest")
    made.latestOffset(stored(made.initialOffset()))
    assert cluster.opened == [None, "t"]
    cluster.here.close.assert_not_called()
    assert (cluster.pauses, caplog.records) == ([], [])


@pytest.mark.parametrize("release", ["4.2", "4.3"])
def test_a_stream_on_a_node_that_cannot_be_reached_fails_the_first_question_and_no_later_one(
    monkeypatch, caplog, release
) -> None:
    cluster, made = Elsewhere(monkeypatch, release), reader(stream="s,t", startingOffsets="latest")
    cluster.failures = [UNREACHABLE]
    with pytest.raises(StreamUnavailable, match="it is on there; followAdvertised"):
        made.initialOffset()
    assert (cluster.opened, cluster.pauses, caplog.records) == ([None, "t"], [], [])
    made.initialOffset()
    made._access.close()
    cluster.failures = [UNREACHABLE] * 3
    assert made._access.stored_at("t", 99) == 99
    assert cluster.opened[-5:] == [None, *["t"] * 4]
    assert len(cluster.pauses) == 3
    assert "it is on there; followAdvertised; trying to reconnect" in caplog.text
    cluster.here.close.assert_called_once_with()  # by this test


def test_a_stream_that_has_no_leader_for_a_moment_does_not_fail_a_query(monkeypatch, caplog) -> None:
    cluster, made = Elsewhere(monkeypatch, "4.2"), reader(stream="s,t", startingOffsets="latest")
    lost = StreamUnavailable("the connection to h was lost: reset", "lost")
    cluster.failures = [lost, AWAY, AWAY]
    made.latestOffset(stored(made.initialOffset()))
    assert (len(cluster.pauses), cluster.failures) == (3, [])
    first, last = [record.getMessage() for record in caplog.records]
    assert first.endswith("stream 't' has no leader at the moment; trying to reconnect for 120 s")
    assert "connected again" in last


@pytest.mark.parametrize(
    ("error", "enabled"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (OSError(113, "No route"), False),
        (TimeoutError(), False),
    ],
)
def test_a_first_connection_fails_at_once_and_only_a_refused_one_names_the_plugin(
    error, enabled, monkeypatch
) -> None:
    asked = Mock(side_effect=error)
    monkeypatch.setattr("socket.getaddrinfo", asked)
    with pytest.raises(StreamUnavailable) as caught:
        reader(reconnectTimeoutMs="5000").latestOffset()
    asked.assert_called_once()
    assert ("rabbitmq-plugins enable rabbitmq_stream" in str(caught.value)) == enabled
