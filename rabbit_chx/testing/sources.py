"""Find a source for a broker: the environment, then Docker, then an installed server.

If no source has the requested release, the error lists the reason of each. If the environment names a broker, no other source is tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from rabbit_chx.testing import external_node, local_node
from rabbit_chx.testing.node import CannotSupply, Source, check_release

HELP = (
    "To get one: install Docker and rabbit-chx[testing]; or, on Debian and Ubuntu, "
    "`apt-get install rabbitmq-server`; or set RABBIT_CHX_BROKER_URL to the AMQP URL of a broker."
)


def available(release: str | None = None) -> Source:
    """Return where a broker of ``release`` (None: any) would come from, without starting it.

    Raises:
        BrokerUnavailable: no source has one; the message lists what was tried and what to install.
    """
    tried: list[str] = []
    for source in sources(release, tried):
        return source
    raise none_left(release, tried)


def sources(release: str | None, tried: list[str]) -> Iterator[Source]:
    """Yield the sources that may have a broker of ``release``; the reasons of the others go to ``tried``."""
    check_release(release)
    if os.environ.get(external_node.URL_VARIABLE):
        yield external_node.find(release)
        return
    tried.append(f"{external_node.URL_VARIABLE} is not set")
    for find in (_find_docker, local_node.find):
        try:
            yield find(release)
        except CannotSupply as reason:
            tried.append(str(reason))


def none_left(release: str | None, tried: list[str]) -> CannotSupply:
    """Return the error for a release that no source has."""
    wanted = "RabbitMQ" if release is None else f"RabbitMQ {release}"
    return CannotSupply(f"no {wanted} broker is available: {'; '.join(tried)}. {HELP}")


def _find_docker(release: str | None) -> Source:
    try:
        from rabbit_chx.testing import docker_node
    except ImportError:
        raise CannotSupply("Docker: the package testcontainers is not installed") from None
    return docker_node.find(release)
