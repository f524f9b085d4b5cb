"""What a responder does with its connection, which is a fake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from inspect import GEN_CLOSED, getgeneratorstate
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Self

import pytest
from pika.exceptions import ConnectionWrongStateError, StreamLostError

from rabbit_chx.broker.commands import Refused
from rabbit_chx.consuming.member import responder as module
from rabbit_chx.consuming.member.responder import Responder, reply
from rabbit_chx.errors import BrokerUnavailable
from tests.patience import wait_until

PATIENCE = 60.0


class Connection:
    """A stand-in for a connection, which the broker can end at any time."""

    def __init__(self) -> None:
        self.is_open = True
        self.ended = threading.Event()
        self.published: SimpleQueue[str] = SimpleQueue()
        parameters = SimpleNamespace(virtual_host="/", host="h", port=5672, frame_max=131_072)
        self._impl = SimpleNamespace(
            params=parameters, _adapter_call_later=lambda *_: None, _adapter_remove_timeout=lambda _: None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False

    def process_data_events(self, _: float) -> None:
        if not self.is_open:
            raise ConnectionWrongStateError("the connection has ended")
        if self.ended.is_set():
            self.is_open = False
            raise StreamLostError("end of file")

    def channel(self) -> Any:
        return SimpleNamespace(
            is_closed=False,
            is_open=True,
            close=lambda: None,
            confirm_delivery=lambda: None,
            basic_publish=self._publish,
        )

    def _publish(self, *, routing_key: str, **_: object) -> None:
        if self.ended.is_set():
            self.is_open = False
            raise StreamLostError("end of file")
        self.published.put(routing_key)


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A responder that is closed has time to end."""
    monkeypatch.setattr(module, "_TICK", PATIENCE)


@pytest.fixture
def connections() -> list[Connection]:
    return []


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def responder(connections, warnings) -> Generator[Responder]:
    made = Responder(_opening(connections), warnings.append)
    yield made
    made.close()


def _opening(connections: list[Connection]) -> Callable[[], Any]:
    def connect() -> Connection:
        connections.append(Connection())
        return connections[-1]

    return connect


def test_answers_share_a_connection_and_keep_their_order(responder, connections) -> None:
    for asker in "abc":
        responder.publish(reply(asker, b""))
    responder.close()
    (connection,) = connections
    assert [connection.published.get(timeout=PATIENCE) for _ in range(3)] == ["a", "b", "c"]


@pytest.mark.parametrize("noticed", [False, True])
def test_an_answer_that_finds_its_idle_connection_ended_is_sent_on_another_one(
    responder, connections, warnings, monkeypatch, noticed
) -> None:
    if noticed:  # an idle connection is read at each tick
        monkeypatch.setattr(module, "_TICK", 0.01)
    responder.publish(reply("a", b""))
    wait_until(lambda: connections, "the first connection")
    connections[0].published.get(timeout=PATIENCE)
    connections[0].ended.set()
    wait_until(
        lambda: not (noticed and connections[0].is_open), "the responder notices the end of the connection"
    )
    responder.publish(reply("b", b""))
    wait_until(lambda: len(connections) == 2, "the second connection")
    first, second = connections
    assert second.published.get(timeout=PATIENCE) == "b"
    responder.close()
    assert not first.is_open
    assert warnings == []


def test_every_dropped_publishing_is_closed_so_that_who_gave_it_can_tell(warnings) -> None:
    going = threading.Event()

    def fail() -> Any:
        assert going.wait(PATIENCE)
        raise BrokerUnavailable("no answer")

    failing = Responder(fail, warnings.append)
    given = [reply("a", b"") for _ in range(3)]
    failing.publish(given[0])
    failing.publish(given[1])
    going.set()
    failing.close()
    failing.publish(given[2])
    assert [getgeneratorstate(each) for each in given] == [GEN_CLOSED] * 3
    assert len(warnings) == 1


def test_answers_are_dropped_for_a_second_after_a_failure_and_for_up_to_30_after_several(
    connections, warnings, monkeypatch
) -> None:
    """As docs/permissions.md says of addresses that end the connection."""
    clock, fails, attempts = SimpleNamespace(now=100.0), True, 0
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)

    def connect() -> Connection:
        nonlocal attempts
        attempts += 1
        if fails:
            raise BrokerUnavailable("ended")
        return _opening(connections)()

    responder, pauses = Responder(connect, warnings.append), []
    for number in range(1, 9):
        responder.publish(reply("a", b""))
        wait_until(
            lambda number=number: attempts == number and responder._silent_until > clock.now, "the failure"
        )
        dropped = reply("b", b"")
        responder.publish(dropped)
        assert getgeneratorstate(dropped) == GEN_CLOSED
        pauses.append(responder._silent_until - clock.now)
        clock.now = responder._silent_until
    assert pauses[0] <= 1
    assert 10 < max(pauses) <= 30
    fails = False
    responder.publish(reply("c", b""))
    wait_until(lambda: connections, "the connection")
    assert connections[0].published.get(timeout=PATIENCE) == "c"
    responder.close()


def test_a_refusal_names_no_command_that_would_take_permissions_away(warnings) -> None:
    """The responder does not know the other permissions that its owner needs."""

    def refuse() -> Any:
        raise Refused(
            403, "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'u'"
        )

    failing = Responder(refuse, warnings.append)
    failing.publish(reply("a", b""))
    failing.close()
    (warning,) = warnings
    assert "write access to exchange 'amq.default'" in warning
    assert "set_permissions" not in warning
