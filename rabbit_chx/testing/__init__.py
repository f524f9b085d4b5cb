"""A real RabbitMQ broker for tests: this project's and yours.

    from rabbit_chx.testing import Broker

    with Broker(release="4.3") as broker:
        connection = broker.connection()

The broker is one that environment variables name, a Docker container, or a private node of an installed ``rabbitmq-server``;
``available()`` says which, without starting it.

Names are loaded on first use: the pytest plugin is in this package, and must not slow down every pytest session.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rabbit_chx.testing.broker import Broker
    from rabbit_chx.testing.node import Node, Source
    from rabbit_chx.testing.sources import available

__all__ = ["Broker", "Node", "Source", "available"]

_HOMES = {"Broker": "broker", "Node": "node", "Source": "node", "available": "sources"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
