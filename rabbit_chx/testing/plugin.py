"""The pytest plugin: the fixture ``rabbitmq_broker``, one real broker for the whole test session.

pytest loads this file in every session of whoever has rabbit-chx installed, so it imports next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.testing.broker import Broker

_HELP = "the RabbitMQ release of the fixture rabbitmq_broker, such as 4.3 (default: what is at hand)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rabbitmq-release`` and the ini value of the same meaning."""
    parser.getgroup("rabbit-chx").addoption("--rabbitmq-release", metavar="RELEASE", help=_HELP)
    parser.addini("rabbitmq_release", _HELP, default="")


@pytest.fixture(scope="session")
def rabbitmq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Hand out a running broker with management and the consistent-hash exchange switched on."""
    from rabbit_chx.testing.broker import Broker

    config = request.config
    release = config.getoption("--rabbitmq-release") or config.getini("rabbitmq_release")
    with Broker(release or None) as broker:
        yield broker
