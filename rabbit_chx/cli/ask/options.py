"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click
from click.core import ParameterSource

from rabbit_chx.base.names import check_name
from rabbit_chx.base.timeouts import CONNECT
from rabbit_chx.base.urls import BrokerUrl, ManagementUrl
from rabbit_chx.cli.completion import exchanges, releases
from rabbit_chx.cli.show.output import notice
from rabbit_chx.cli.verb import FloatRange, bundle, option
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import NEWEST, Release, Store
from rabbit_chx.mirror.ring import Destination

if TYPE_CHECKING:
    import ssl

    from rabbit_chx.topology.model import Topology

BROKER: Final = "The broker"
EXCHANGE: Final = "The exchange"
READ_FROM_BROKER: Final = "an exchange that is read from a broker"
FILE: Final = click.Path(readable=False)
"""A path that shells complete; opening it shows whether it can be read."""

_of_broker = partial(option, group=BROKER)
_secret_file = partial(_of_broker, type=click.Path(readable=False, path_type=Path), metavar="FILE")


def check_names(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse invalid names in the value or values of an option, as its callback."""
    for name in (value,) if isinstance(value, str) else value or ():
        if name:  # empty means the default exchange, or nothing
            check_name(parameter.opts[-1], name)
    return value


output_option = option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json prints one object a line on stdout (docs/output.md); everything else goes to stderr.",
)
other_release_option = partial(option, "-r", "--release", metavar="R", shell_complete=releases)
"""``--release`` without a default, for commands that otherwise learn it from a broker or a file."""
release_option = partial(other_release_option, default=NEWEST, show_default=True)
store_option = partial(option, "--store", type=click.Choice(["mnesia", "khepri"]))
exchange_option = partial(
    option, "-x", "--exchange", metavar="X", shell_complete=exchanges, callback=check_names
)
exchanges_option = partial(exchange_option, "exchanges", multiple=True)
"""Several exchanges of a file, by default all."""
file_option = partial(option, "-f", "--file", type=FILE, metavar="FILE", group=EXCHANGE)
keys_option = partial(option, "--keys", "keys_file", type=FILE, metavar="FILE")
raw_option = option("--raw", is_flag=True, help="Lines of --keys are bytes, not UTF-8 text.")
count_option = partial(option, type=click.IntRange(min=1), metavar="N")
worker_pool_option = count_option(
    "--worker-pool-size",
    group=EXCHANGE,
    help="default_worker_pool_size of the node: with 1, a restart on Mnesia sorts the ring.",
)


class Login(TypedDict):
    """How to authenticate with the broker and verify it: the arguments of everything that connects."""

    credentials: Path | None
    tls: ssl.SSLContext | None
    """None verifies everything."""


def with_login(given: dict[str, Any]) -> dict[str, Any]:
    """The values with the password file and the context of the TLS options as ``login``."""
    secure = _check_urls(given["url"], given.get("management_url"), given.get("management_proxy"))
    files = {
        each: given.pop(each.strip("-").replace("-", "_"))
        for each in ("--tls-ca-cert-file", "--tls-cert-file", "--tls-key-file")
    }
    insecure = given.pop("insecure")
    login = Login(credentials=given.pop("password_file"), tls=None)
    named = [each for each, path in files.items() if path is not None] + ["--insecure"] * insecure
    if not named:
        return given | {"login": login}
    authorities, certificate, key = files.values()
    if not secure:
        raise click.UsageError(f"{named[0]} needs an amqps:// or https:// URL")
    if insecure and authorities:
        raise click.UsageError("--insecure and --tls-ca-cert-file cannot be combined")
    if key and not certificate:
        raise click.UsageError("--tls-key-file needs --tls-cert-file")
    from rabbit_chx.broker.tls import context

    login["tls"] = context(
        options=("--tls-ca-cert-file", "--tls-cert-file"),
        hint="The key must belong to the certificate and have no passphrase",
        ca_file=authorities,
        cert_file=certificate,
        key_file=key,
        verify=not insecure,
    )
    return given | {"login": login}


def _check_urls(url: str | None, management_url: str | None, proxy: str | None) -> bool:
    """Whether the URL of a broker has TLS, or none is given yet; with a warning where a password came by the command line."""
    found: dict[str, BrokerUrl | ManagementUrl] = {}
    if url:
        found["url"] = BrokerUrl.parse(url)
    if management_url:
        found["management_url"] = ManagementUrl.parse(management_url)
    secure = any(each.tls for each in found.values()) or not found
    if proxy:
        found["management_proxy"] = ManagementUrl.parse(proxy)
    source = click.get_current_context().get_parameter_source
    if any(each.password and source(name) is ParameterSource.COMMANDLINE for name, each in found.items()):
        notice(
            "Warning",
            "the command line contains a password, which every user of this machine can read in the process list. "
            "Set AMQP_URL, or use --password-file",
        )
    return secure


BROKER_OPTIONS: Final = (
    _of_broker(
        "-U",
        "--url",
        envvar=["AMQP_URL", "RABBITMQ_URL"],
        show_envvar=True,
        metavar="URL",
        help="AMQP URL: amqp://user@host:5672/vhost, or amqps://. Set the password in the environment variable or in "
        "--password-file to keep it out of the process list.",
    ),
    _secret_file(
        "--password-file",
        envvar="RABBITMQ_PASSWORD_FILE",
        show_envvar=True,
        help="File that contains only the password; read on each connect.",
    ),
    _secret_file(
        "--tls-ca-cert-file",
        help="CA certificates to trust instead of the system's, with amqps and https.",
    ),
    _secret_file("--tls-cert-file", help="Client certificate."),
    _secret_file("--tls-key-file", help="Private key, if --tls-cert-file does not contain it."),
    _of_broker("--insecure", is_flag=True, help="Disable TLS peer verification: for tests only."),
)
broker_options = bundle(*BROKER_OPTIONS, gather=with_login)
"""The options of a connection; the command gets ``url`` and ``login``."""


def _at_vhost(given: dict[str, Any]) -> dict[str, Any]:
    vhost, url = given.pop("vhost"), given["url"]
    return given if vhost is None or url is None else given | {"url": BrokerUrl.parse(url).with_vhost(vhost)}


vhost_option = bundle(
    _of_broker(
        "-V",
        "--vhost",
        metavar="VHOST",
        callback=check_names,
        help="The virtual host; the default is the URL's.",
    ),
    gather=_at_vhost,
)
"""The virtual host of ``url``, for commands that have no file to name it."""


def _with_url(given: dict[str, Any]) -> dict[str, Any]:
    if given["url"] is None:
        raise click.UsageError("missing broker URL: pass --url or set AMQP_URL")
    return given | {"url": BrokerUrl.parse(given["url"])}


connection_options = bundle(broker_options, vhost_option, gather=_with_url)
"""The options of a connection to one virtual host; the command gets its ``url``, parsed, and ``login``."""


def with_management(given: dict[str, Any]) -> dict[str, Any]:
    """The values with the management API as ``management_of``."""
    from rabbit_chx.broker.management import Management

    url, proxy, insecure = map(given.pop, ("management_url", "management_proxy", "insecure_management"))
    return given | {"management_of": partial(Management.of, url=url, proxy=proxy, insecure=insecure)}


MANAGEMENT_OPTIONS: Final = (
    _of_broker(
        "--management-url",
        envvar="RABBITMQ_MANAGEMENT_URL",
        show_envvar=True,
        metavar="URL",
        help="Management API; by default port 15672 (15671 with amqps) of the broker's host.",
    ),
    _of_broker(
        "--management-proxy", metavar="URL", help="HTTP proxy for the management API. http_proxy is ignored."
    ),
    _of_broker(
        "--connect-timeout",
        type=FloatRange(0.1, 3600),
        default=CONNECT,
        show_default=True,
        metavar="SECONDS",
        help="How long the broker may take to answer at first. Later requests may take longer.",
    ),
    _of_broker(
        "--insecure-management",
        is_flag=True,
        help="Send the password of an amqps URL to a management URL with http or another host.",
    ),
)
management_options = bundle(*MANAGEMENT_OPTIONS, gather=with_management)
"""The options of the management API; the command gets ``management_of``, which is `Management.of` with them, and ``connect_timeout``."""


def pairs(option: str, texts: Iterable[str], expected: str, *, empty: bool = True) -> list[tuple[str, str]]:
    """Split the texts of a repeated option into names and values; errors do not show values, which may be secrets."""
    found = [text.partition("=") for text in texts]
    for name, equals, value in found:
        if not (name and equals and (value or empty)):
            raise InvalidValue(option, name, expected)
    return [(name, value) for name, _, value in found]


def parse_queue(text: str) -> tuple[Destination, str]:
    """``NAME`` or ``NAME=WEIGHT``; a name with an equals sign needs a weight."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        name, weight = text, "1"
    return check_name("--queue", name) if name else name, weight


def refuse(*names: str, on: str) -> None:
    """Refuse options that have no effect on an exchange."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name in names:
            raise click.UsageError(f"{parameter.opts[-1]} has no effect on {on}: leave it out")


def refuse_pool_size(release: Release) -> None:
    """Refuse the number of workers where a restart keeps the ring."""
    if release.store is Store.KHEPRI:
        refuse("worker_pool_size", on=f"RabbitMQ {release} on Khepri")


def the_exchange(topology: Topology, name: str | None) -> str:
    """The exchange with that name, or the only one that hashes."""
    from rabbit_chx.topology.model import hashing_exchanges

    if name is not None:
        return name
    known = list(hashing_exchanges(topology))
    if len(known) != 1:
        raise click.UsageError(
            f"--exchange is required: the file has {' and '.join(known) or 'no exchange that hashes'}"
        )
    return known[0]


_of_rings = partial(option, group="Rings of unknown order")
node_option = partial(
    _of_rings,
    "--node",
    metavar="COMMAND",
    envvar="RABBIT_CHX_NODE",
    show_envvar=True,
    help="Command that evaluates Erlang on a node: 'docker exec NAME rabbitmqctl eval'.",
)
ACCESS_OPTIONS: Final = (
    option(
        "--amqp-only",
        group=BROKER,
        is_flag=True,
        help="Use AMQP alone, without the management API, and list what cannot be seen.",
    ),
    node_option(),
    _of_rings(
        "--probe",
        shell_complete=exchanges,
        metavar="X",
        help="Infer the ring of exchange X by publishing probes; X and its queues must be quiet.",
    ),
    _of_rings(
        "--pairs",
        multiple=True,
        metavar="X=PAIRS.csv",
        help="Infer the ring of exchange X from lines of key,queue that consumers logged.",
    ),
)
"""The options of a broker whose rings are read, besides those of the connection and the management API."""
