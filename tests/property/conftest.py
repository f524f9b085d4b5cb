"""Fixtures of property tests; their number of examples is in tests/conftest.py."""

from __future__ import annotations

import errno
import socket

import pytest


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
