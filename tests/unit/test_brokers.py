"""A shared broker is started in two tries, and replaced once if it died."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing.node import CannotSupply
from tests.brokers import revive, running


class Port:
    """Stands for a broker: a listening socket while it runs, and a list of errors with which it does not start."""

    def __init__(self, *errors: Exception, kind: str = "docker") -> None:
        self.source = SimpleNamespace(kind=kind)
        self.url, self.starts, self._errors = "", 0, [*errors]

    def start(self) -> None:
        self.starts += 1
        if self._errors:
            raise self._errors.pop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._socket.getsockname()[1]}"

    def stop(self) -> None:
        self._socket.close()


def test_a_broker_that_does_not_start_is_tried_twice() -> None:
    late, never = Port(BrokerUnavailable("slow")), Port(BrokerUnavailable("slow"), BrokerUnavailable("slow"))
    with pytest.warns(pytest.PytestWarning, match="tried once more: slow"), running(late):
        assert late.starts == 2
    with pytest.warns(pytest.PytestWarning), pytest.raises(BrokerUnavailable, match="slow"), running(never):
        pass


def test_a_broker_that_cannot_be_had_is_tried_once() -> None:
    missing = Port(CannotSupply("no Docker"))
    with pytest.raises(CannotSupply), running(missing):
        pass
    assert missing.starts == 1


def test_a_broker_that_died_is_replaced_once() -> None:
    with running(Port()) as broker:
        revive(broker)
        assert broker.starts == 1
        broker.stop()
        with pytest.warns(pytest.PytestWarning, match="it died during an earlier test"):
            revive(broker)
        assert broker.starts == 2
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            revive(broker)


def test_a_broker_of_the_user_is_not_replaced() -> None:
    with running(Port(kind="external")) as broker:
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            revive(broker)
