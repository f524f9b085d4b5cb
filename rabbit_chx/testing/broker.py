"""The broker as a test sees it: start it, ask it, restart it, forget it.

Where it comes from is decided in `sources`, how it is run in the three node files. Everything here works
through the node's URLs and ``rabbitmqctl``, so it is the same for all of them.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Literal

from rabbit_chx.broker.reading.erlang_rings import parse_ring, ring_expression
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing import cleanup
from rabbit_chx.testing.node import (
    ALWAYS_ON,
    CannotSupply,
    Node,
    Settings,
    Source,
    check_release,
    config_lines,
    plugin_names,
    server_version,
    wait_for_amqp,
)
from rabbit_chx.testing.sources import none_left, sources
from rabbit_chx.urls import BrokerUrl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self

    import pika

    from rabbit_chx.ring import Destination


_NOT_RUNNING = "the broker is not running: use it inside `with Broker() as broker:`"


class Broker:
    """A real RabbitMQ broker that lives as long as the ``with`` block.

    Args:
        release: ``"4.3"`` or ``"4.3.6"``; None takes what is at hand (4.3 in Docker).
        plugins: switched on besides management and the consistent-hash exchange, which always are.
        config: further lines of rabbitmq.conf, such as ``{"default_worker_pool_size": "1"}``.

    Raises:
        BrokerUnavailable: no broker can be had; the message says what was tried and what would help.
    """

    def __init__(
        self,
        release: str | None = None,
        *,
        plugins: Iterable[str] = (),
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.release: str | None = check_release(release)
        self._settings = Settings(
            plugins=plugin_names(plugins),
            config=config_lines(config or {}),
            username="rabbit_chx",
            password=secrets.token_hex(12),
        )
        self._source: Source | None = None
        self._running: Node | None = None

    def __repr__(self) -> str:
        return f"<Broker: {self._source or 'not running'}>"

    # -- its life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker from the first source that has it, and return when it accepts AMQP."""
        if self._running is not None:
            return
        tried: list[str] = []
        for source in sources(self.release, tried):
            node = source.node(self._settings)
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
                self._source, self._running = source, node
                return
        raise none_left(self.release, tried)

    def stop(self) -> None:
        """Stop the broker and remove its data; a broker that somebody else runs is left alone."""
        node, self._running, self._source = self._running, None, None
        if node is not None:
            node.stop()
            cleanup.forget(node.stop)

    def restart(self) -> None:
        """Restart the whole node, and return when it accepts AMQP again; URLs and data stay."""
        self._node.restart()

    def kill(self) -> None:
        """End the node as SIGKILL does; `restart` brings it back with what it had on disk."""
        self._node.kill()

    def pause(self) -> None:
        """Stop the node's processes where they are, as if the machine hung."""
        self._node.pause()

    def unpause(self) -> None:
        """Let a paused node go on."""
        self._node.unpause()

    def disconnect(self) -> None:
        """Take the node off its network (Docker only)."""
        self._node.disconnect()

    def reconnect(self) -> None:
        """Put the node back on its network, and return when it accepts AMQP."""
        self._node.reconnect()

    def restart_app(self) -> None:
        """Restart RabbitMQ inside its running Erlang machine (``stop_app``, ``start_app``)."""
        self.ctl("stop_app")
        self.ctl("start_app")
        wait_for_amqp(self.url)

    # -- where it is -------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """Where this broker came from."""
        if self._source is None:
            raise BrokerUnavailable(_NOT_RUNNING)
        return self._source

    @property
    def url(self) -> str:
        """The AMQP URL, user and password included."""
        return self._node.url

    @property
    def management_url(self) -> str | None:
        """The base URL of the HTTP API without user and password; None where it is off."""
        return self._node.management_url

    @property
    def username(self) -> str:
        """The user of both URLs."""
        return BrokerUrl.parse(self.url).login[0]

    @property
    def password(self) -> str:
        """The password of both URLs."""
        return BrokerUrl.parse(self.url).login[1]

    def connection(self) -> pika.BlockingConnection:
        """Open a connection; it closes with its own ``with`` block."""
        import pika

        return pika.BlockingConnection(pika.URLParameters(self.url))

    # -- what it is --------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The version the server gives itself, such as ``"4.3.6"``."""
        return server_version(self.url)

    @property
    def store(self) -> Literal["mnesia", "khepri"]:
        """Where the node keeps its bindings now: the feature flag decides, and it can be switched on."""
        enabled = self.eval("rabbit_feature_flags:is_enabled(khepri_db).") == "true"
        return "khepri" if enabled else "mnesia"

    def ring(self, exchange: str, vhost: str | None = None) -> list[Destination]:
        """Read the ring of an x-consistent-hash exchange from the node: the destination of every bucket.

        A queue is its name, an exchange a `ToExchange`. The virtual host defaults to that of the URL.
        """
        vhost = BrokerUrl.parse(self.url).vhost if vhost is None else vhost
        text = self.eval(ring_expression(exchange, vhost))
        return parse_ring(text, exchange=exchange, vhost=vhost)

    def eval(self, expression: str) -> str:
        """Evaluate an Erlang expression on the node and return what was printed, its value last."""
        expression = expression.rstrip()
        return self.ctl("eval", expression if expression.endswith(".") else f"{expression}.")

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl --quiet`` with these arguments and return what it printed."""
        return self._node.ctl(*arguments, "--quiet")

    def logs(self) -> str:
        """Return the node's log from its first start on."""
        return self._node.logs()

    @property
    def _node(self) -> Node:
        if self._running is None:
            raise BrokerUnavailable(_NOT_RUNNING)
        return self._running


def _check_plugins(node: Node, settings: Settings) -> None:
    """Refuse a broker without a plugin that was asked for: the server only skips what it does not have."""
    wanted = set(settings.plugins) - set(ALWAYS_ON)
    if wanted:
        running = re.findall(r"\w+", node.ctl("eval", "rabbit_plugins:active()."))
        if missing := sorted(wanted - set(running)):
            raise BrokerUnavailable(f"the broker has no plugin {', '.join(missing)}")
