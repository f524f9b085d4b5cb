"""Options that several verbs share."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from rabbit_chx.cli.completion import exchanges, releases
from rabbit_chx.cli.output import notice
from rabbit_chx.cli.verb import option
from rabbit_chx.exchange import ConsistentHashExchange
from rabbit_chx.names import check_name
from rabbit_chx.releases import Release

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from rabbit_chx.broker.management import Management
    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Topology
    from rabbit_chx.urls import BrokerUrl

__all__ = [
    "FILE",
    "Described",
    "ManagementAccess",
    "broker_options",
    "check_names",
    "exchange_option",
    "exchange_options",
    "file_option",
    "management_options",
    "output_option",
    "parse_queue",
    "release_option",
    "the_exchange",
    "worker_pool_option",
]

BROKER: Final = "The broker"
EXCHANGE: Final = "The exchange"
FILE: Final = click.Path(readable=False)
"""A path that shells complete; opening it shows whether it can be read."""
_SECRET_FILE: Final = click.Path(readable=False, path_type=Path)

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def output_option(command: _Command) -> _Command:
    """``--output``: a table for people, JSON lines for programs."""
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="json prints one object a line on stdout (docs/output.md); everything else goes to stderr.",
    )(command)


def release_option(group: str, help: str = "The broker's release.") -> Callable[[_Command], _Command]:  # noqa: A002
    """``--release``: the release to mirror without a broker."""
    return option(
        "-r",
        "--release",
        group=group,
        default="4.3",
        show_default=True,
        metavar="R",
        shell_complete=releases,
        help=help,
    )


def check_names(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse invalid names in the value or values of an option, as its callback."""
    for name in (value,) if isinstance(value, str) else value or ():
        if name:  # empty means the default exchange, or nothing
            check_name(parameter.opts[-1], name)
    return value


def exchange_option(group: str, help: str) -> Callable[[_Command], _Command]:  # noqa: A002
    """``--exchange``: an exchange of the topology file."""
    return option(
        "-x",
        "--exchange",
        group=group,
        metavar="X",
        shell_complete=exchanges,
        callback=check_names,
        help=help,
    )


def file_option(help: str, *, required: bool = False) -> Callable[[_Command], _Command]:  # noqa: A002
    """``--file``: the topology file with the exchange."""
    return option("-f", "--file", group=EXCHANGE, type=FILE, required=required, metavar="FILE", help=help)


def worker_pool_option(command: _Command) -> _Command:
    """``--worker-pool-size``: decides what a restart on Mnesia does."""
    return option(
        "--worker-pool-size",
        group=EXCHANGE,
        type=click.IntRange(min=1),
        metavar="N",
        help="default_worker_pool_size of the node: with 1, a restart on Mnesia sorts the ring.",
    )(command)


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a connection; the command gets ``url``, ``password_file`` and ``tls``."""

    @option(
        "-U",
        "--url",
        group=BROKER,
        envvar=["AMQP_URL", "RABBITMQ_URL"],
        show_envvar=True,
        metavar="URL",
        help="AMQP URL: amqp://user@host:5672/vhost, or amqps://. A password in the environment variable or in "
        "--password-file is not in the process list.",
    )
    @option(
        "--password-file",
        group=BROKER,
        type=_SECRET_FILE,
        envvar="RABBITMQ_PASSWORD_FILE",
        show_envvar=True,
        metavar="FILE",
        help="File that contains only the password; read on each connect.",
    )
    @option(
        "--tls-ca-cert-file",
        group=BROKER,
        type=_SECRET_FILE,
        metavar="FILE",
        help="CA certificates to trust instead of the system's, with amqps and https.",
    )
    @option("--tls-cert-file", group=BROKER, type=_SECRET_FILE, metavar="FILE", help="Client certificate.")
    @option(
        "--tls-key-file",
        group=BROKER,
        type=_SECRET_FILE,
        metavar="FILE",
        help="Private key, if --tls-cert-file does not contain it.",
    )
    @option("--insecure", group=BROKER, is_flag=True, help="Disable TLS peer verification: for tests only.")
    @functools.wraps(command)
    def wrapper(
        *,
        tls_ca_cert_file: Path | None,
        tls_cert_file: Path | None,
        tls_key_file: Path | None,
        insecure: bool,
        **options: Any,
    ) -> Any:
        secure = _check_urls(options["url"], options.get("management_url"))
        tls = _tls(tls_ca_cert_file, tls_cert_file, tls_key_file, insecure=insecure, secure=secure)
        return command(tls=tls, **options)

    return wrapper


def _check_urls(url: str | None, management_url: str | None) -> bool:
    """Whether a URL has TLS, or none is given yet; with a warning where a password came by the command line."""
    from rabbit_chx.urls import BrokerUrl, ManagementUrl

    found: dict[str, BrokerUrl | ManagementUrl] = {}
    if url:
        found["url"] = BrokerUrl.parse(url)
    if management_url:
        found["management_url"] = ManagementUrl.parse(management_url)
    source = click.get_current_context().get_parameter_source
    if any(each.password and source(name) is ParameterSource.COMMANDLINE for name, each in found.items()):
        notice(
            "Warning",
            "the command line contains a password, which every user of this machine can read in the process list. "
            "Set AMQP_URL, or use --password-file",
        )
    return any(each.tls for each in found.values()) or not found


def _tls(
    authorities: Path | None,
    certificate: Path | None,
    key: Path | None,
    *,
    insecure: bool,
    secure: bool,
) -> ssl.SSLContext | None:
    """The context of the TLS options; None without any of them, which verifies everything."""
    named = {"--tls-ca-cert-file": authorities, "--tls-cert-file": certificate, "--tls-key-file": key}
    given = [option for option, path in named.items() if path is not None] + ["--insecure"] * insecure
    if not given:
        return None
    if not secure:
        raise click.UsageError(f"{given[0]} needs an amqps:// or https:// URL")
    if insecure and authorities:
        raise click.UsageError("--insecure and --tls-ca-cert-file exclude each other")
    if key and not certificate:
        raise click.UsageError("--tls-key-file needs --tls-cert-file")
    from rabbit_chx.broker.tls import context

    return context(
        options=("--tls-ca-cert-file", "--tls-cert-file"),
        hint="The key must belong to the certificate and have no passphrase",
        ca_file=authorities,
        cert_file=certificate,
        key_file=key,
        verify=not insecure,
    )


@dataclass(frozen=True)
class ManagementAccess:
    """How a broker's management API is reached."""

    url: str | None = None
    proxy: str | None = None
    insecure: bool = False

    def open(
        self, broker: str | BrokerUrl, password_file: Path | None, tls: ssl.SSLContext | None
    ) -> Management:
        """The API of a broker, with the same user and password."""
        from rabbit_chx.broker.management import Management

        return Management.of(
            broker,
            self.url,
            credentials=password_file,
            tls=tls,
            proxy=self.proxy,
            insecure=self.insecure,
        )


def management_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the management API; the command gets ``management_access``."""

    @option(
        "--management-url",
        group=BROKER,
        envvar="RABBITMQ_MANAGEMENT_URL",
        show_envvar=True,
        metavar="URL",
        help="Management API; by default port 15672 (15671 with amqps) of the broker's host.",
    )
    @option(
        "--management-proxy",
        group=BROKER,
        metavar="URL",
        help="HTTP proxy for the management API. http_proxy is ignored.",
    )
    @option(
        "--insecure-management",
        group=BROKER,
        is_flag=True,
        help="Send the password of an amqps URL to a management URL with http or another host.",
    )
    @functools.wraps(command)
    def wrapper(
        *, management_url: str | None, management_proxy: str | None, insecure_management: bool, **options: Any
    ) -> Any:
        access = ManagementAccess(management_url, management_proxy, insecure_management)
        return command(management_access=access, **options)

    return wrapper


def parse_queue(text: str) -> tuple[Destination, str]:
    """``NAME`` or ``NAME=WEIGHT``; a name with an equals sign needs a weight."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        name, weight = text, "1"
    return check_name("--queue", name) if name else name, weight


@dataclass(frozen=True)
class Described:
    """The exchange that the options describe: by its queues, or in a topology file."""

    queues: tuple[str, ...] = ()
    hash_header: str | None = None
    hash_property: str | None = None
    release: str = "4.3"
    store: str | None = None
    file: str | None = None
    exchange: str | None = None

    def __post_init__(self) -> None:
        by_queues = self.queues or self.hash_header or self.hash_property
        if self.file is None and self.exchange:
            raise click.UsageError("--exchange needs --file")
        if self.file is None and not self.queues:
            raise click.UsageError(
                "missing --queue NAME[=WEIGHT]: repeat it for each queue in bind order, or pass --file"
            )
        if self.file is not None and by_queues:
            raise click.UsageError(
                "--file replaces --queue, --hash-header and --hash-property: leave those out"
            )

    def mirror(self) -> ConsistentHashExchange:
        """The mirror of the exchange, which must be an x-consistent-hash exchange."""
        if self.file is not None:
            topology, name = self.in_file()
            found = topology.exchange(name)
            return ConsistentHashExchange(
                topology.ring(name, self.parsed_release),
                hash_header=found.hash_header if found else None,
                hash_property=found.hash_property if found else None,
            )
        return ConsistentHashExchange(
            [parse_queue(queue) for queue in self.queues],
            release=self.release,
            store=self.store,
            hash_header=self.hash_header,
            hash_property=self.hash_property,
        )

    def in_file(self) -> tuple[Topology, str]:
        """The topology of the file, and the name of the exchange in it."""
        from rabbit_chx.topology.file.load import load

        assert self.file is not None
        topology = load(self.file)
        return topology, the_exchange(topology, self.exchange)

    @property
    def parsed_release(self) -> Release:
        """The release and its store."""
        return Release.parse(self.release, store=self.store)


def the_exchange(topology: Topology, name: str | None) -> str:
    """The exchange with that name, or the only one that hashes."""
    from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH

    known = [each.name for each in topology.exchanges if each.type in {CONSISTENT_HASH, MODULUS_HASH}]
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise click.UsageError(f"missing --exchange: {', '.join(known) or 'no exchange of the file hashes'}")
    return name


def exchange_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe an exchange; the command gets them as ``described``."""

    @option(
        "-q",
        "--queue",
        "queues",
        group=EXCHANGE,
        multiple=True,
        metavar="NAME[=WEIGHT]",
        help="Queue and weight. Repeat it for each queue, in bind order.",
    )
    @option("--hash-header", group=EXCHANGE, metavar="H", help="Header to hash.")
    @option(
        "--hash-property",
        group=EXCHANGE,
        metavar="P",
        shell_complete=lambda *_: ["message_id", "correlation_id", "timestamp"],
        help="Property to hash: message_id, correlation_id or timestamp.",
    )
    @file_option("Topology file with the exchange, instead of --queue.")
    @exchange_option(EXCHANGE, "Exchange of --file, if several hash.")
    @release_option(EXCHANGE)
    @option(
        "--store",
        group=EXCHANGE,
        type=click.Choice(["mnesia", "khepri"]),
        help="Metadata store, if it is not the default of the release.",
    )
    @functools.wraps(command)
    def wrapper(**options: Any) -> Any:
        given = {name: options.pop(name) for name in Described.__dataclass_fields__}
        return command(described=Described(**given), **options)

    return wrapper
