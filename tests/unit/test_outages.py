"""How long clients wait before they connect again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pika.exceptions import StreamLostError

from rabbit_chx.base.outages import Backoff
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.consuming import QueueReader
from rabbit_chx.consuming.member import member as module
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.workers import Workers
from tests.unit.test_consuming_lanes import SETTINGS
from tests.unit.test_stream_groups import GIVEN

GROWING = [0.9375, 1.875, 3.75, 7.5, 15.0, 30.0, 30.0]


class Clock:
    """Time that passes only when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(longest: float = 30.0) -> tuple[Backoff, Clock]:
    clock = Clock()
    return Backoff(longest, clock=clock, share=lambda: 1.0), clock


@pytest.mark.parametrize("works_for", [None, 0.0, 1.0, 9.0])
def test_pauses_grow_while_nothing_works_for_long(works_for: float | None) -> None:
    backoff, clock = made()
    pauses = []
    for _ in GROWING:
        if works_for is not None:
            backoff.works()
            clock.now += works_for
        pauses.append(backoff.failed())
        clock.now += pauses[-1]
    assert pauses == GROWING
    assert backoff.failing_since == (works_for or 0.0)


def test_pauses_are_short_again_after_it_has_worked_for_a_while() -> None:
    backoff, clock = made(longest=2.0)
    assert [backoff.failed() for _ in range(3)] == [0.0625, 0.125, 0.25]
    backoff.works()
    clock.now = 7.0
    backoff.works()
    clock.now = 10.0
    assert backoff.failed() == 0.0625
    assert backoff.failing_since == 10.0
    clock.now = 100.0  # an attempt that took long did not work
    assert backoff.failed() == 0.125
    assert backoff.failing_since == 10.0


def test_clients_that_fail_together_do_not_try_again_together() -> None:
    assert Backoff(share=lambda: 0.0).failed() == Backoff(share=lambda: 1.0).failed() / 2
    assert Backoff().failed() != Backoff().failed()


class Pausing:
    """In place of the event that ends a client: it notes the pauses, and ends the client after some."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def is_set(self) -> bool:
        return len(self.pauses) == len(GROWING)

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def set(self) -> None: ...


def test_a_member_waits_longer_each_time_a_connection_opens_and_is_lost(monkeypatch, caplog) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(params=None)

    def lost(member: Member, _: str) -> None:
        member._backoff.works()
        raise StreamLostError("end of file")

    monkeypatch.setattr(module, "PikaDriver", lambda _: None)
    monkeypatch.setattr(module, "server_version", lambda _: "4.3.6")
    monkeypatch.setattr(Member, "_consume", lost)
    workers: Any = Workers(print, 1, 10)
    workers.stopping = ended = Pausing()
    responder: Any = SimpleNamespace(close=lambda: None)
    member = Member(Settings(**SETTINGS), connect, tuple, workers, responder)  # type: ignore[arg-type]
    member._backoff, _ = made()
    member.run()
    assert ended.pauses == GROWING
    assert caplog.text.count("trying again") == 1


def test_a_member_of_streams_waits_longer_each_time_and_once_for_what_is_lost_together(
    monkeypatch, caplog
) -> None:
    settings = StreamGroup(**GIVEN)._settings
    member: Any = StreamMember(settings, lambda _: None, StreamWorkers(print, settings), None, batches=False)
    member._backoff, clock = made()
    monkeypatch.setattr("rabbit_chx.streams.group.member.monotonic", clock)
    pauses = []
    for _ in GROWING:
        for _ in range(3):
            member._on_lost(StreamUnavailable("lost", "lost"))
        pauses.append(member._connect_again - clock.now)
        clock.now = member._connect_again
        member._backoff.works()
    for each in (member._woken, member._waker):
        each.close()
    assert pauses == GROWING
    assert caplog.text.count("trying again") == 1


@pytest.mark.parametrize("acknowledges", [False, True])
def test_a_reader_of_a_queue_gives_up_on_connections_that_open_and_are_lost(
    monkeypatch, acknowledges
) -> None:
    """It goes on as long as messages are acknowledged."""

    def lost(self: QueueReader, _: object, backoff: Backoff) -> None:
        attempts.append(1)
        self._channel: Any = SimpleNamespace(is_open=True, is_closed=False, basic_ack=lambda *_, **__: None)
        backoff.works()
        clock.now += 1.0
        if acknowledges:
            self._acked = 1
            self._turn(SimpleNamespace(is_open=True))
        if len(attempts) == 300:
            self._stop.set()
        raise StreamLostError("end of file")

    @contextmanager
    def connect(**_: float) -> Iterator[Any]:
        yield SimpleNamespace(params=None)

    attempts: list[int] = []
    clock = Clock()
    monkeypatch.setattr("rabbit_chx.consuming.queue_reader.monotonic", clock)
    monkeypatch.setattr(
        "rabbit_chx.consuming.queue_reader.Backoff", lambda longest: Backoff(longest, clock=clock)
    )
    monkeypatch.setattr(QueueReader, "_consume", lost)
    reader = QueueReader("amqp://127.0.0.1:1", "orders.0", timeouts=Timeouts(reconnect=60))
    reader._connect = connect  # type: ignore[assignment]
    reader._stop.wait = lambda *_: False  # type: ignore[assignment,misc]
    reader._run()
    if acknowledges:
        assert reader._error is None
        assert len(attempts) == 300
    else:
        assert isinstance(reader._error, BrokerUnavailable)
        assert len(attempts) == 62
