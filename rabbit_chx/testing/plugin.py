"""The pytest plugin: the fixture ``rabbitmq_broker``, one real broker for the whole test session.

pytest loads this module in every session if rabbit-chx is installed, so it imports almost nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.testing.broker import Broker

_HELP = "the RabbitMQ release of the fixture rabbitmq_broker, such as 4.3 (default: any)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rabbitmq-release`` and the ini values ``rabbitmq_release``, ``rabbitmq_plugins`` and ``rabbitmq_config``."""
    parser.getgroup("rabbit-chx").addoption("--rabbitmq-release", metavar="RELEASE", help=_HELP)
    parser.addini("rabbitmq_release", _HELP, default="")
    parser.addini("rabbitmq_plugins", "more plugins of the fixture rabbitmq_broker", type="args", default=[])
    parser.addini("rabbitmq_config", "more lines of its rabbitmq.conf", type="linelist", default=[])


@pytest.fixture(scope="session")
def rabbitmq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A running broker with the management API and the consistent-hash exchange enabled."""
    from rabbit_chx.errors import RabbitChxError
    from rabbit_chx.testing.broker import Broker

    config = request.config
    release = config.getoption("--rabbitmq-release") or config.getini("rabbitmq_release")
    with ExitStack() as stack:
        try:
            settings = _settings(config.getini("rabbitmq_config"))
            plugins = config.getini("rabbitmq_plugins")
            broker = stack.enter_context(Broker(release or None, plugins=plugins, config=settings))
        except RabbitChxError as error:
            # pytest would show the traceback with the arguments of its functions, and URLs can contain passwords.
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        yield broker


def _settings(lines: list[str]) -> dict[str, str]:
    """The names and values in lines of rabbitmq.conf."""
    from rabbit_chx.errors import InvalidValue

    found = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            raise InvalidValue("line of rabbitmq_config", line, "a line such as channel_max = 100")
        found[name.strip()] = value.strip()
    return found
