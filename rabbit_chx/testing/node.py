"""What every kind of throw-away node has in common: its settings, its files, and how to wait for it.

Three kinds of node exist, one file each: a container (`docker_node`), a process on this machine
(`local_node`), and a broker somebody else runs (`external_node`). They share the small protocol `Node`;
whatever a test asks beyond it is asked through ``rabbitmqctl``, which works the same on all of them.
This file starts nothing; its sockets only ask whether a port is free and whether AMQP answers yet.
"""

from __future__ import annotations

import random
import re
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ALWAYS_ON = ("rabbitmq_management", "rabbitmq_consistent_hash_exchange")

# The lines of rabbitmq.conf that the URLs of the broker follow from.
OWN_KEYS = ("default_user", "default_pass", "listeners.tcp", "management.tcp.", "management.ssl.")

# The node prints this line once per boot, after its listeners and plugins are up. Before it, any
# rabbitmq command run as root beside the node can write the Erlang cookie first and so kill the node.
READY = "Server startup complete"

# Two busy cores boot a node in about ten seconds; a loaded laptop may need many times that.
START_SECONDS = 180.0
STOP_SECONDS = 60


class CannotSupply(BrokerUnavailable):
    """This source has no such broker; the next one may."""


@dataclass(frozen=True)
class Settings:
    """What a new node is to be."""

    plugins: tuple[str, ...] = ALWAYS_ON
    config: tuple[tuple[str, str], ...] = ()
    username: str = "guest"
    password: str = field(default="guest", repr=False)


class Node(Protocol):
    """A broker node that can be started, asked and stopped."""

    @property
    def url(self) -> str:
        """The AMQP URL, user and password included."""

    @property
    def management_url(self) -> str | None:
        """The base URL of the HTTP API, or None where it is off."""

    def start(self) -> None:
        """Start the node and return when it accepts AMQP connections."""

    def stop(self) -> None:
        """Stop the node and remove every trace of it; fine to call twice, or after a failed start."""

    def restart(self) -> None:
        """Stop and start the whole node, which may be dead already; data and ports stay."""

    def kill(self) -> None:
        """End the node as SIGKILL does."""

    def pause(self) -> None:
        """Stop all its processes where they are; its connections stay open and silent."""

    def unpause(self) -> None:
        """Let them go on."""

    def disconnect(self) -> None:
        """Take the node off its network."""

    def reconnect(self) -> None:
        """Put it back."""

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` against the node and return what it printed."""

    def logs(self) -> str:
        """Return the log of the node from its first start on."""


@dataclass(frozen=True)
class Source:
    """A place a broker can come from; ``str()`` of it is one line for a person."""

    kind: str
    description: str
    node: Callable[[Settings], Node] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.description


def check_release(release: str | None) -> str | None:
    """Return ``release`` as it is, or refuse what cannot name a RabbitMQ release."""
    if release is None or re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", release):
        return release
    raise InvalidValue(
        "RabbitMQ release of the broker",
        release,
        "a number such as '4.3' or '4.3.6', or None for whatever there is",
    )


def is_release(version: str, release: str | None) -> bool:
    """Tell whether a full version is of the wanted release: '4.3.6' is of '4.3', and anything is of None."""
    return release is None or version == release or version.startswith(f"{release}.")


def plugin_names(extra: Iterable[str]) -> tuple[str, ...]:
    """Return the plugins to switch on: those that are always on, then ``extra``, each once."""
    names = tuple(dict.fromkeys([*ALWAYS_ON, *extra]))
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise InvalidValue("plugin name", name, "lower-case letters, digits and underscores")
    return names


def config_lines(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Check the extra lines for rabbitmq.conf and return them in order."""
    lines = tuple((str(key), str(value)) for key, value in config.items())
    for key, value in lines:
        if not re.fullmatch(r"[^\s=#]+", key) or re.search(r"[\r\n]", value):
            # the value is not shown: it may be a secret
            raise InvalidValue("line for rabbitmq.conf", key, "'key': 'value on one line'")
        if key.startswith(OWN_KEYS):
            raise InvalidValue(
                "line for rabbitmq.conf",
                key,
                "any key but those of the user and the ports, which the broker sets itself",
            )
    return lines


def render_plugins(plugins: Iterable[str]) -> str:
    """Render the file ``enabled_plugins``: an Erlang list, and the dot is part of it."""
    return f"[{','.join(plugins)}].\n"


def render_config(settings: Settings, *own: tuple[str, str]) -> str:
    """Render rabbitmq.conf: the user, the lines this kind of node needs, the caller's lines."""
    user = (("default_user", settings.username), ("default_pass", settings.password))
    return "".join(f"{key} = {value}\n" for key, value in (*user, *own, *settings.config))


def amqp_url(host: str, port: int, settings: Settings) -> str:
    """Build the URL of the virtual host ``/`` on a node made from ``settings``."""
    return f"amqp://{quote(settings.username, safe='')}:{quote(settings.password, safe='')}@{host}:{port}/%2F"


def ctl_output(arguments: tuple[str, ...], code: int | None, output: bytes, errors: bytes) -> str:
    """Return what ``rabbitmqctl`` printed, or raise with its complaint.

    The error names the command but not its arguments, since one of them may be a password. For the same
    reason it stops where rabbitmqctl starts to repeat them.
    """
    text = output.decode("utf-8", "replace")
    if code == 0:
        return text.rstrip("\n")
    complaint = errors.decode("utf-8", "replace").strip() or text.strip()
    complaint = re.split(r"\n\s*Arguments given:|\n\s*(?:\x1b\[1m)?Usage", complaint)[0].strip()
    command = arguments[0] if arguments else ""
    raise RabbitChxError(f"rabbitmqctl {command} failed with exit code {code}: {complaint[:1000]}")


def wait_for_boot(boots: int, *, logs: Callable[[], str], running: Callable[[], bool]) -> None:
    """Wait until the log tells of ``boots`` finished boots; a node that dies or dawdles is an error."""
    deadline = time.monotonic() + START_SECONDS
    while logs().count(READY) < boots:
        if not running():
            raise BrokerUnavailable(f"the broker stopped while it was starting:\n{_gist(logs())}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"the broker was not up in {START_SECONDS:.0f} seconds:\n{_gist(logs())}")
        time.sleep(0.1)


def server_version(url: str) -> str:
    """Connect once and return the version the server gives itself."""
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        # pika hands the server's properties on only through this attribute, in all of 1.x
        properties = connection._impl.server_properties  # noqa: SLF001
        return str((properties or {}).get("version", "unknown"))


def wait_for_amqp(url: str) -> None:
    """Connect until it works."""
    from pika.exceptions import AMQPError

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            server_version(url)
        except (AMQPError, OSError) as error:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"the broker is up but accepts no AMQP connection: {error!r}"
                ) from None
            time.sleep(0.2)
        else:
            return


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback interface on which nothing listens.

    They lie below the range that systems hand out by themselves: a client that keeps trying to connect to
    a port of that range while the broker restarts is in the end connected to itself, and sits on the port.
    """
    with ExitStack() as held:  # all are held at once, so that none is given twice
        ports: list[int] = []
        while len(ports) < count:
            port = random.randrange(20_000, 30_000)  # noqa: S311  nothing secret about a port
            listener = held.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def _gist(log: str) -> str:
    """Return the first errors in the log, for they name the cause, or else its end."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\[error\].*\w{3}", line)]
    return "\n".join(errors[:12] or lines[-12:])
