"""Connections to nodes with streams, in place of a broker, and a member of a stream group that has tried to join over them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, Node
from rabbit_chx.streams.protocol.requests import OffsetSpec

HERE, ELSEWHERE = Node("a", 1), Node("b", 1)
LOST = StreamUnavailable("the connection was lost", "lost")
_LOOK = -1
"""The subscription of a look at the end of a stream."""


class Connection:
    """A connection to a node that has these streams. It is lost in one of its calls, or never."""

    release, node, _has_unread, has_stats, heartbeat = "4.3.6", HERE, False, False, 10.0

    def __init__(self, streams: list[str], elsewhere: tuple[str, ...] = (), lost_in: str = "") -> None:
        self.streams = {stream: [ELSEWHERE if stream in elsewhere else HERE] for stream in streams}
        self.subscriptions: list[str] = []
        self.refused: set[str] = set()
        """The streams of which others know another number."""
        self.ended: list[str] = []
        """The subscriptions that the member has ended."""
        self.unread: list[bytes] = []
        """What a look at the end of a stream finds."""
        self.answers: list[tuple[int, bool]] = []
        self._lost_in = lost_in
        self._socket, self._other = socket.socketpair()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        self._other.close()

    def _enter(self, call: str) -> None:
        if call == self._lost_in:
            self.close()
        if not self.is_open:
            raise LOST

    def partitions(self, _: str) -> list[str]:
        return list(self.streams)

    def metadata(self, names):
        self._enter("metadata")
        gone = SimpleNamespace(exists=False, nodes=[])
        there = {name: SimpleNamespace(exists=True, nodes=nodes) for name, nodes in self.streams.items()}
        return {name: there.get(name, gone) for name in names}

    def _subscribe(self, stream: str, *_, properties=None, **__) -> int:
        self._enter("subscribe")
        if properties is None:
            return _LOOK
        if stream not in self.streams:
            raise StreamUnavailable(f"no stream {stream!r}", "no such stream", stream)
        if stream in self.refused and "joining" not in properties["name"]:
            raise StreamUnavailable("a precondition failed", "refused", stream)
        self.subscriptions.append(properties["name"] if "joining" in properties["name"] else stream)
        assert len(self.subscriptions) <= 256
        return len(self.subscriptions) - 1

    def _events(self, _: float):
        self._enter("events")
        if self.subscriptions and "joining" in self.subscriptions[-1]:
            yield ConsumerUpdate(1, len(self.subscriptions) - 1, active=True)

    def _answer_update(self, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        self._enter("answer_update")
        self.answers.append((update.correlation, start is not None))

    def _unsubscribe(self, number: int) -> list[bytes]:
        self._enter("unsubscribe")
        if number == _LOOK:
            return self.unread
        self.ended.append(self.subscriptions[number])
        return []


@pytest.fixture
def joined(monkeypatch):
    """Returns a member after its first attempt to join. The other connections lead to further nodes."""
    with ExitStack() as opened:

        def join(connection: Connection, *others: Connection) -> StreamMember:
            def connect(stream: str | None) -> Connection:
                if stream is None:
                    return next(each for each in (connection, *others) if each.is_open)
                for each in others:
                    if HERE in each.streams.get(stream, ()):
                        return each
                if any(stream not in each.streams for each in others):
                    raise StreamUnavailable(f"no stream {stream!r}", "no such stream", stream)
                raise StreamUnavailable(f"stream {stream!r} has no leader", "not available", stream)

            group = StreamGroup("rabbitmq-stream://127.0.0.1", exchange="x", name="g")
            workers = StreamWorkers(print, group._settings)
            member = StreamMember(group._settings, connect, workers, None, batches=False)
            for each in (connection, *others, member._woken, member._waker):
                opened.callback(each.close)
            monkeypatch.setattr(member._failures, "until_retry", lambda _: 0.01)
            member._serve()
            return member

        yield join
