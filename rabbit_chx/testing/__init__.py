"""A real RabbitMQ broker for the length of a ``with`` block, for this project's tests and for yours.

    from rabbit_chx.testing import Broker

    with Broker(release="4.3") as broker:
        connection = broker.connection()

The broker is whatever the machine has: one named by environment variables, a Docker container, or a
private node of an installed ``rabbitmq-server``; ``available()`` says which, without starting it.

The names are loaded when they are first used, because the pytest plugin lives in this package and every
pytest session of everybody who has it installed would pay for them.
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
