"""What the three kinds of nodes share: settings, configuration files, and waiting for the start.

A node is a container (`docker_node`), a process on this machine (`local_node`), or an external broker (`external_node`). All have the methods
that `Broker` calls; everything else goes through ``rabbitmqctl``.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pika.exceptions import AMQPError

from rabbit_chx.broker.amqp import connect, server_version
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError

ALWAYS_ON = ("rabbitmq_management", "rabbitmq_consistent_hash_exchange")

# The keys of rabbitmq.conf that determine the broker's URLs.
OWN_KEYS = (
    *("default_user", "default_pass", "listeners.tcp", "management.tcp.", "management.ssl."),
    "stream.listeners.tcp",
)

LOOPBACK = "127.0.0.1"
AMQP = 5672
HTTP = 15672
STREAMS = 5552

# The node logs this once per boot, after its listeners and plugins have started. A rabbitmq command that root runs in the
# container before that may write the Erlang cookie first, which kills the node.
READY = "Server startup complete"

# A node boots in about ten seconds on two cores; a loaded laptop may need many times that.
START_SECONDS = 180.0
STOP_SECONDS = 60
CTL_SECONDS = 180.0


class CannotSupply(BrokerUnavailable):
    """This source has no such broker; the next source is tried."""


@dataclass(frozen=True)
class NodeSettings:
    """The settings of a new node."""

    plugins: tuple[str, ...] = ALWAYS_ON
    config: tuple[tuple[str, str], ...] = ()
    username: str = "guest"
    password: str = field(default="guest", repr=False)


class OwnNode(ABC):
    """A node that is started here, whose ports are known by the numbers that RabbitMQ gives them."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._has_streams: bool = "rabbitmq_stream" in settings.plugins

    @property
    def url(self) -> str:
        """The AMQP URL for this machine."""
        return self._url("amqp", AMQP)

    @property
    def management_url(self) -> str | None:
        """The URL of the HTTP API for this machine."""
        host, port = self._address(HTTP)
        return f"http://{host}:{port}"

    @property
    def stream_url(self) -> str | None:
        """The URL of the stream protocol for this machine; None without its plugin."""
        return self._url("rabbitmq-stream", STREAMS) if self._has_streams else None

    def _url(self, scheme: str, port: int) -> str:
        """Return the URL of the virtual host ``/``."""
        user, password = (quote(text, safe="") for text in (self._settings.username, self._settings.password))
        host, port = self._address(port)
        return f"{scheme}://{user}:{password}@{host}:{port}/%2F"

    @abstractmethod
    def _address(self, port: int) -> tuple[str, int]:
        """Return where one of the node's ports is."""


@dataclass(frozen=True)
class Source:
    """Where a broker can come from; ``str()`` describes it in one line."""

    kind: str
    description: str
    node: Callable[[NodeSettings], Any] = field(repr=False, compare=False)
    """Returns a `Node` of `broker`, which imports this module."""

    def __str__(self) -> str:
        return self.description


def check_release(release: str | None) -> str | None:
    """Return ``release``, if it has the form of a RabbitMQ release."""
    if release is None or re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", release):
        return release
    raise InvalidValue(
        "RabbitMQ release",
        release,
        "a release such as '4.3' or '4.3.6', or None for any",
    )


def is_release(version: str, release: str | None) -> bool:
    """Whether a full version belongs to a release: '4.3.6' to '4.3', and any version to None."""
    return release is None or version == release or version.startswith(f"{release}.")


def plugin_names(extra: Iterable[str]) -> tuple[str, ...]:
    """Return the plugins to enable: those that always are, then ``extra``, without duplicates."""
    names = tuple(dict.fromkeys([*ALWAYS_ON, *extra]))
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise InvalidValue("plugin name", name, "lower-case letters, digits and underscores")
    return names


def config_lines(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Check the additional lines of rabbitmq.conf and return them in order."""
    lines = tuple((str(key), str(value)) for key, value in config.items())
    for key, value in lines:
        if not re.fullmatch(r"[^\s=#]+", key) or re.search(r"[\r\n]", value):
            # the value is not shown: it may be a secret
            raise InvalidValue(
                "line for rabbitmq.conf", key, "a key without spaces, = and #, and a value on one line"
            )
        if key.startswith(OWN_KEYS):
            raise InvalidValue(
                "line for rabbitmq.conf",
                key,
                "a key other than those of the user and the ports, which are set automatically",
            )
    return lines


def render_plugins(plugins: Iterable[str]) -> str:
    """Render the file ``enabled_plugins``: an Erlang list and a dot."""
    return f"[{','.join(plugins)}].\n"


def render_config(settings: NodeSettings, *own: tuple[str, str]) -> str:
    """Render rabbitmq.conf: the user, the lines of this kind of node, the caller's lines."""
    user = (("default_user", settings.username), ("default_pass", settings.password))
    return "".join(f"{key} = {value}\n" for key, value in (*user, *own, *settings.config))


def ctl_output(arguments: tuple[str, ...], code: int | None, output: bytes, errors: bytes) -> str:
    """Return the output of ``rabbitmqctl``, or raise its error.

    The error names the command but not its arguments, because one of them may be a password; rabbitmqctl's own text is cut
    where it repeats them.
    """
    text = output.decode("utf-8", "replace")
    if code == 0:
        return text.rstrip("\n")
    complaint = errors.decode("utf-8", "replace").strip() or text.strip()
    complaint = re.split(r"\n\s*Arguments given:|\n\s*(?:\x1b\[1m)?Usage", complaint)[0].strip()
    command = arguments[0] if arguments else ""
    raise RabbitChxError(f"rabbitmqctl {command} failed with exit code {code}: {complaint[:1000]}")


def too_long(arguments: tuple[str, ...]) -> BrokerUnavailable:
    """Return the error for ``rabbitmqctl`` if it does not end in time."""
    return BrokerUnavailable(f"rabbitmqctl {arguments[0]} did not end within {CTL_SECONDS:g} seconds")


def run_ctl(command: Sequence[str], arguments: tuple[str, ...], **options: Any) -> str:
    """Return the output of ``rabbitmqctl``, which this command line runs; ``options`` are those of `subprocess.run`."""
    try:
        done = subprocess.run(  # noqa: S603  the caller's own program and arguments
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=CTL_SECONDS,
            **options,
        )
    except subprocess.TimeoutExpired:
        raise too_long(arguments) from None
    return ctl_output(arguments, done.returncode, done.stdout, done.stderr)


def wait_for_boot(boots: int, *, logs: Callable[[], str], running: Callable[[], bool]) -> None:
    """Wait until the log shows ``boots`` finished boots; a node that stops or takes too long is an error."""
    deadline = time.monotonic() + START_SECONDS
    while logs().count(READY) < boots:
        if not running():
            raise BrokerUnavailable(f"the broker stopped while it was starting:\n{_gist(logs())}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"the broker was not up in {START_SECONDS:.0f} seconds:\n{_gist(logs())}")
        time.sleep(0.1)


def release_at(url: str) -> str:
    """Connect once and return the release that the server reports."""
    with connect(url) as connection:
        return server_version(connection)


def wait_for_amqp(url: str) -> None:
    """Wait until a connection opens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            release_at(url)
        except (BrokerUnavailable, AMQPError) as error:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the broker is up but accepts no AMQP connection: {error}") from None
            time.sleep(0.2)
        else:
            return


def free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback interface.

    They are below the range of ephemeral ports: a client that keeps connecting to an ephemeral port while the broker restarts can
    connect to itself, and then occupies the port.
    """
    with ExitStack() as held:  # hold all of them at once, so that none is returned twice
        ports: list[int] = []
        while len(ports) < count:
            port = random.randrange(20_000, 30_000)  # noqa: S311  nothing secret about a port
            listener = held.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind((LOOPBACK, port))
                ports.append(port)
        return ports


def _gist(log: str) -> str:
    """Return the first errors in the log, which name the cause, or its end."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\[error\].*\w{3}", line)]
    return "\n".join(errors[:12] or lines[-12:])
