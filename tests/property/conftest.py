"""How many examples a law is tried on: enough to find what was planted, few enough to be run at every change."""

from __future__ import annotations

import errno
import socket

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import in_ci

# No deadline, since other processes share the machine. In CI the same examples every time: a change is
# judged by what it changed and not by luck, and luck has its turn on the machines of those who work on it.
settings.register_profile(
    "rabbit-chx",
    deadline=None,
    derandomize=in_ci(),
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("rabbit-chx")


@pytest.fixture
def no_way_out(monkeypatch):
    """No connection opens, and no name is asked for; what Python itself refuses to connect to, it refuses still."""
    real = socket.getaddrinfo

    def by_number(host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002 - as Python calls it
        return real(host, port, family, type, proto, flags | socket.AI_NUMERICHOST)

    def refused(*_):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(socket, "getaddrinfo", by_number)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: errno.ECONNREFUSED)
