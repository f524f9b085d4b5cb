"""Brokers that many tests share: one that does not start is tried twice, and one that died is replaced once."""

from __future__ import annotations

import socket
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing.node import CannotSupply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.testing import Broker

_REPLACED: set[int] = set()


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Start a broker for the body of the `with`, in two tries."""
    try:
        broker.start()
    except CannotSupply:
        raise
    except BrokerUnavailable as error:
        say(f"the broker did not start and is tried once more: {error}")
        broker.start()
    yield broker
    broker.stop()


def revive(broker: Broker) -> None:
    """Replace a broker that accepts no connections any more; a second time, the error stays."""
    address = urlsplit(broker.url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=10).close()
    except OSError as error:
        if broker.source.kind == "external" or id(broker) in _REPLACED:
            raise
        _REPLACED.add(id(broker))
        replace(broker, f"it died during an earlier test: {error}")


def replace(broker: Broker, why: str) -> None:
    """Remove a broker and start another one in its place, with another address."""
    say(f"{broker!r} is replaced: {why}")
    broker.stop()
    broker.start()


def say(text: str) -> None:
    """Print a line beside the results, whichever process runs the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(pytest.PytestWarning(text), stacklevel=2)
