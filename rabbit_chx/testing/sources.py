"""Where a broker can come from, in order: the environment, Docker, an installed server.

A source that lacks what is wanted is passed over with its reason kept, and if none is left, the error
tells all the reasons and the ways out. A broker named in the environment is a wish and not a guess:
then no other source is looked at. This file starts no broker; asking Docker whether it is there is all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rabbit_chx.testing import external_node, local_node
from rabbit_chx.testing.node import CannotSupply, Source, check_release

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS_OUT = (
    "Ways out: install Docker and rabbit-chx[testing]; or, on Debian and Ubuntu, "
    "`apt-get install rabbitmq-server`; or set RABBIT_CHX_BROKER_URL to the AMQP URL of a broker."
)


def available(release: str | None = None) -> Source:
    """Say where a broker of ``release`` (None: any) would come from, without starting it.

    Raises:
        BrokerUnavailable: no source has one; its message says what was tried and what would help.
    """
    tried: list[str] = []
    for source in sources(release, tried):
        return source
    raise none_left(release, tried)


def sources(release: str | None, tried: list[str]) -> Iterator[Source]:
    """Yield the sources that may have a broker of ``release``, best first; the others' reasons go to ``tried``."""
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
    """Build the error for when every source was passed over."""
    wanted = "RabbitMQ" if release is None else f"RabbitMQ {release}"
    return CannotSupply(f"no {wanted} broker can be had: {'; '.join(tried)}. {WAYS_OUT}")


def _find_docker(release: str | None) -> Source:
    try:
        from rabbit_chx.testing import docker_node
    except ImportError:
        raise CannotSupply("Docker: the package testcontainers is not installed") from None
    return docker_node.find(release)
