"""A real RabbitMQ broker for tests: this project's and yours.

    from rabbit_chx.testing import Broker

    with Broker(release="4.3") as broker:
        connection = broker.connection()

The broker is one that environment variables name, a Docker container, or a private node of an installed ``rabbitmq-server``;
``available()`` says which, without starting it.

Names are loaded on first use: the pytest plugin is in this package, and must not slow down every pytest session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.errors import BrokerUnavailable as BrokerUnavailable
    from rabbit_chx.testing.broker import Broker as Broker, available as available

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.errors": "BrokerUnavailable",
            "rabbit_chx.testing.broker": "Broker available",
        },
    )
