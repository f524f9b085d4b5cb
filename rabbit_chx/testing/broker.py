"""A broker for tests: start, query, restart and remove it.

`sources` finds where it comes from: the environment, then Docker, then an installed server; the three node files run it. Everything here uses the node's URLs and ``rabbitmqctl``, so it is the
same for all of them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pika

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.reading.erlang_rings import parse_rings, rings_expression
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RingUnknown
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.testing import cleanup, external_node, local_node
from rabbit_chx.testing.node import (
    ALWAYS_ON,
    CannotSupply,
    NodeSettings,
    Source,
    check_release,
    config_lines,
    plugin_names,
    release_at,
    wait_for_amqp,
)

if TYPE_CHECKING:
    from rabbit_chx.testing.docker_node import DockerNode
    from rabbit_chx.testing.external_node import ExternalNode
    from rabbit_chx.testing.local_node import LocalNode

    _Node: TypeAlias = DockerNode | ExternalNode | LocalNode
    """`stop` of each may be called twice, and after a failed start."""

_NOT_RUNNING = "the broker is not running: use it inside `with Broker() as broker:`"


class Broker:
    """A real RabbitMQ broker for the duration of a ``with`` block.

    Args:
        release: ``"4.3"`` or ``"4.3.6"``; None for any (4.3 in Docker).
        plugins: to enable besides management and the consistent-hash exchange.
        config: more lines of rabbitmq.conf, such as ``{"default_worker_pool_size": "1"}``.

    Raises:
        BrokerUnavailable: no broker can be started; the message lists what was tried and what to install.
    """

    def __init__(
        self,
        release: str | None = None,
        *,
        plugins: Iterable[str] = (),
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.release: str | None = check_release(release)
        self._settings = NodeSettings(
            plugins=plugin_names(plugins),
            config=config_lines(config or {}),
            username="rabbit_chx",
            password=secrets.token_hex(12),
        )
        self._source: Source | None = None
        self._running: _Node | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"<Broker: {self._source or 'not running'}>"

    # -- starting and stopping ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker from the first available source and return when it accepts AMQP connections."""
        if self._running is not None:
            return
        tried: list[str] = []
        for source in sources(self.release, tried):
            node: _Node = source.node(self._settings)
            cleanup.stop_at_exit(node.stop)
            try:
                node.start()
                _check_plugins(node, self._settings)
            except BaseException as error:
                node.stop()
                cleanup.forget(node.stop)
                if not isinstance(error, CannotSupply):
                    raise
                tried.append(str(error))
            else:
                self._source, self._running, self._process = source, node, os.getpid()
                return
        raise none_left(self.release, tried)

    def stop(self) -> None:
        """Stop the broker and remove its data; an external broker is left as it is."""
        node, self._running, self._source = self._running, None, None
        if node is not None and self._process == os.getpid():  # a forked child leaves it to its parent
            node.stop()
            cleanup.forget(node.stop)

    def restart(self) -> None:
        """Restart the node and return when it accepts AMQP connections; URLs and data are kept."""
        self._node.restart()

    def kill(self) -> None:
        """Kill the node with SIGKILL; `restart` starts it again with the data on disk."""
        self._node.kill()

    def pause(self) -> None:
        """Suspend the node's processes, as if the machine hung."""
        self._node.pause()

    def unpause(self) -> None:
        """Resume a paused node."""
        self._node.unpause()

    def disconnect(self) -> None:
        """Disconnect the node from its network (Docker only)."""
        self._node.disconnect()

    def reconnect(self) -> None:
        """Reconnect the node to its network and return when it accepts AMQP connections."""
        self._node.reconnect()

    def restart_app(self) -> None:
        """Restart RabbitMQ inside the running Erlang VM (``stop_app``, ``start_app``)."""
        self.ctl("stop_app")
        self.ctl("start_app")
        wait_for_amqp(self.url)

    # -- address -------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """Where the broker comes from."""
        if self._source is None:
            raise BrokerUnavailable(_NOT_RUNNING)
        return self._source

    @property
    def url(self) -> str:
        """The AMQP URL with user and password."""
        return self._node.url

    @property
    def management_url(self) -> str | None:
        """The base URL of the HTTP API without user and password; None if it is disabled."""
        return self._node.management_url

    @property
    def stream_url(self) -> str:
        """The URL of the stream protocol with user and password; needs ``plugins=["rabbitmq_stream"]``."""
        url = self._node.stream_url
        if url is None:
            raise BrokerUnavailable("the broker has no stream port: pass plugins=['rabbitmq_stream']")
        return url

    @property
    def username(self) -> str:
        """The user of both URLs."""
        return BrokerUrl.parse(self.url).login[0]

    @property
    def password(self) -> str:
        """The password of both URLs."""
        return BrokerUrl.parse(self.url).login[1]

    def connection(self) -> pika.BlockingConnection:
        """Open a pika connection."""
        return pika.BlockingConnection(parameters_of(self.url))

    # -- queries --------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The release that the server reports, such as ``"4.3.6"``."""
        return release_at(self.url)

    @property
    def store(self) -> Literal["mnesia", "khepri"]:
        """The metadata store, according to the feature flag."""
        enabled = self.eval("rabbit_feature_flags:is_enabled(khepri_db).") == "true"
        return "khepri" if enabled else "mnesia"

    def ring(self, exchange: str, vhost: str | None = None) -> list[Destination]:
        """Read the ring of an x-consistent-hash exchange from the node: the destination of each bucket.

        A queue is a ``str``, an exchange a `ToExchange`. The default virtual host is that of the URL.
        """
        vhost = BrokerUrl.parse(self.url).vhost if vhost is None else vhost
        rings = parse_rings(self.eval(rings_expression(vhost)), vhost=vhost)
        if exchange not in rings:
            expected = f"an x-consistent-hash exchange of virtual host {vhost!r}"
            raise InvalidValue("exchange to read the ring of", exchange, expected)
        ring = rings[exchange]
        if isinstance(ring, RingUnknown):
            raise ring
        return ring

    def eval(self, expression: str) -> str:
        """Evaluate an Erlang expression on the node and return the output, which ends with the value."""
        return self.ctl("eval", expression.rstrip().removesuffix(".") + ".")

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl --quiet`` with these arguments and return its output."""
        return self._node.ctl(*arguments, "--quiet")

    def logs(self) -> str:
        """Return the node's log since its first start."""
        return self._node.logs()

    @property
    def _node(self) -> _Node:
        if self._running is None:
            raise BrokerUnavailable(_NOT_RUNNING)
        return self._running


def _check_plugins(node: _Node, settings: NodeSettings) -> None:
    """Refuse a broker without a requested plugin: the server silently skips plugins that it does not have."""
    wanted = set(settings.plugins) - set(ALWAYS_ON)
    if wanted:
        running = re.findall(r"\w+", node.ctl("eval", "rabbit_plugins:active()."))
        if missing := sorted(wanted - set(running)):
            raise BrokerUnavailable(f"the broker has no plugin {', '.join(missing)}")


HELP = (
    "To get one: install Docker and rabbit-chx[testing]; or, on Debian and Ubuntu, "
    "`apt-get install rabbitmq-server`; or set RABBIT_CHX_BROKER_URL to the AMQP URL of a broker."
)


def available(release: str | None = None) -> Source:
    """Return where a broker of ``release`` (None: any) would come from, without starting it.

    If a release is given, a running broker must answer and be of this release.

    Raises:
        BrokerUnavailable: no source has one, and the message lists what was tried and what to install; or the running broker is of
            another release, which the message names.
    """
    tried: list[str] = []
    for source in sources(release, tried):
        if release is not None and source.kind == "external":
            source.node(NodeSettings()).start()  # which only checks it
        return source
    raise none_left(release, tried)


def sources(release: str | None, tried: list[str]) -> Iterator[Source]:
    """Yield the sources that may have a broker of ``release``; the reasons of the others go to ``tried``.

    If the environment names a broker, no other source is tried.
    """
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
