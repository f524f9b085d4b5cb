"""The options of the connection, which writes and reads with ``format("rabbitmq")`` share.

This module imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final

from rabbit_chx import InvalidValue
from rabbit_chx.base.timeouts import HEARTBEAT
from rabbit_chx.base.urls import is_host
from rabbit_chx.publishing import BrokerUrl, Timeouts
from spark_connector.option_table import (
    OptionTable,
    flag,
    integer,
    invalid_option,
    one_of,
    option_name,
    text,
)

CONNECTION, TLS, STREAMS = "Connection", "TLS", "Streams"
TARGETS: Final = ("stream", "super_stream", "exchange", "queue")
"""The fields that name the target of a write or the source of a read, which has at most one of them."""
_ADDRESS: Final = frozenset(
    {
        *("url", "host", "port", "virtual_host", "stream_port", "management_url"),
        *("tls", "tls_ca_file", "tls_server_name", "tls_verify"),
    }
)
"""The fields that say who gets the password, and how well it is protected."""
_PASSWORDS: Final = ("password", "password_env", "password_file")
_OF_ADDRESS: Final = _ADDRESS.union(
    ("username", *_PASSWORDS, "tls_cert_file", "tls_key_file", "tls_key_password", "follow_advertised")
)
"""The fields that belong to one address: an address in an option never gets the user and the password of the session's settings."""
_FILE = "A path on the executors, or the name of a file that Spark distributes."


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(OptionTable):
    """The broker's address, the user, and TLS."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "uri": "Use url: some releases of Spark print the value of uri in plans and errors",
        **dict.fromkeys(("kafkabootstrapservers", "bootstrapservers"), "Use url, such as amqp://user@host"),
    }

    REPLACES: ClassVar[tuple[tuple[frozenset[str], frozenset[str]], ...]] = (
        (_ADDRESS, _OF_ADDRESS),
        one_of(*_PASSWORDS),
        one_of(*TARGETS),
    )

    url: str | None = text(
        CONNECTION,
        "amqp://user:password@host:5672/vhost or amqps://...; several, separated by commas, are tried in turn.",
        secret=True,
    )
    host: str | None = text(CONNECTION, "The broker, if there is no url.")
    port: int | None = integer(CONNECTION, None, "Default 5672, or 5671 with TLS.", most=65_535)
    virtual_host: str | None = text(CONNECTION, "Default /.", aliases=("vhost",))
    username: str | None = text(CONNECTION, "Default: the user in the url, or guest.", aliases=("user",))
    password: str | None = text(
        CONNECTION, "Part of Spark's plan; passwordEnv and passwordFile are safer.", secret=True
    )
    password_env: str | None = text(
        CONNECTION, "Environment variable of the executors that contains the password."
    )
    password_file: str | None = text(CONNECTION, f"File that contains only the password. {_FILE}")
    connection_name: str = text(
        CONNECTION, "Prefix of the connection names in the broker's list.", "rabbit-chx spark"
    )
    connection_timeout_ms: int = integer(
        CONNECTION, 10_000, "How long a broker may take to accept a connection."
    )
    reconnect_timeout_ms: int = integer(CONNECTION, 120_000, "How long to keep reconnecting.")
    tls: bool | None = flag(
        TLS, "Default: true if the url begins with amqps or rabbitmq-stream+tls.", default=None
    )
    tls_ca_file: str | None = text(
        TLS, f"CA certificates that may sign the broker's certificate. Default: the system's. {_FILE}"
    )
    tls_cert_file: str | None = text(TLS, f"Client certificate. {_FILE}")
    tls_key_file: str | None = text(
        TLS, f"Private key of the client certificate, unless tlsCertFile contains it. {_FILE}"
    )
    tls_key_password: str | None = text(TLS, "Password of the private key.", secret=True)
    tls_server_name: str | None = text(TLS, "Name in the broker's certificate, if it differs from the host.")
    tls_verify: bool = flag(TLS, "false accepts any certificate: for tests only.", default=True)

    def address(self, url: str | BrokerUrl) -> BrokerUrl:
        """Parse one of the URLs in the option ``url``."""
        return BrokerUrl.parse(url)

    @cached_property
    def urls(self) -> list[BrokerUrl]:
        """The brokers to try, with a password only if the option ``url`` contains one."""
        if self.url is None:
            tls, vhost = bool(self.tls), self.virtual_host
            url = BrokerUrl(self.host or "", self.port or 0, tls, self.username, named_vhost=vhost)
            return [self.address(url)]
        urls = [self.address(url) for url in several(self.url)]
        return urls if self.username is None else [replace(url, user=self.username) for url in urls]

    @property
    def where(self) -> str:
        """The brokers, as shown to people."""
        return ", ".join(map(str, self.urls))

    @property
    def timeouts(self) -> Timeouts:
        """How long to connect and to reconnect."""
        return Timeouts(connect=self.connection_timeout_ms / 1000, reconnect=self.reconnect_timeout_ms / 1000)

    def _check(self, found: set[str]) -> None:
        """Check that the options name one broker, one user and one password."""
        _check_where(self, found)
        _check_who(self, found)
        _check_tls(self, found)


@dataclass(frozen=True, kw_only=True)
class AmqpOptions(ConnectionOptions):
    """How to reach the broker over AMQP."""

    heartbeat_seconds: int = integer(
        CONNECTION,
        HEARTBEAT,
        "Interval of heartbeats, which are sent even while Spark computes.",
        most=65_535,
    )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ConnectionOptions):
    """How to reach the streams of a broker."""

    stream_port: int | None = integer(
        STREAMS, None, "The port of the stream protocol. Default 5552, or 5551 with TLS.", most=65_535
    )
    follow_advertised: bool = flag(
        STREAMS,
        "Connect to the host and port that the broker advertises for each stream, instead of those of url or host.",
        default=False,
    )

    def address(self, url: str | BrokerUrl) -> BrokerUrl:
        """Parse a URL of either protocol as the address of the stream protocol."""
        return BrokerUrl.for_streams(url, port=self.stream_port or 0)


def targets_in(names: Iterable[str]) -> list[str]:
    """Return the fields of `TARGETS` whose options are among the names, which may be in any case."""
    lower = {name.lower() for name in names}
    return [key for key in TARGETS if option_name(key).lower() in lower]


def check_one_target(what: str, names: Iterable[str]) -> None:
    """Raise if the names contain several options of `TARGETS`."""
    if len(targets := targets_in(names)) > 1:
        raise InvalidValue(what, f"options {' and '.join(map(option_name, targets))}", "one of them")


def without_password(value: str) -> str:
    """The value of an option, unless it may be a URL with a password."""
    return "(not shown: it may contain a password)" if "@" in value else value


def _check_where(options: ConnectionOptions, found: set[str]) -> None:
    if not found & {"url", "host"}:
        add = 'Add option("url", "amqp://user@host:5672/vhost"), or set spark.datasource.rabbitmq.url and call register(spark). '
        if of_an_address := sorted(found & _ADDRESS):
            name = option_name(of_an_address[0])
            add = f"The option {name} replaces the address and the user in settings of the session. {add}"
        raise InvalidValue(
            "broker address",
            None,
            "the option url or host",
            f"{add}Spark passes no options of CREATE TABLE, with or without AS SELECT: "
            "INSERT INTO t WITH (url = '...', exchange = '...') SELECT ...",
        )
    if "url" in found and (others := sorted(found & {"host", "port", "virtual_host"})):
        got = ["url", *map(option_name, others)]
        raise InvalidValue("broker address", got, "either url, or host with port and virtualHost")
    if options.url is None and (
        re.search(r"[\s/?#@,]", options.host or "") or not is_host(options.host or "")
    ):
        hint = "Use url for a URL, or for several brokers"
        raise invalid_option("host", without_password(options.host or ""), "one host name or address", hint)


def _check_who(options: ConnectionOptions, found: set[str]) -> None:
    passwords = sorted(map(option_name, found & {"password", "password_env", "password_file"}))
    in_url = [options.address(url) for url in several(options.url)] if options.url is not None else []
    if any(url.password is not None for url in in_url):
        passwords.append("url")
    if len(passwords) > 1:
        raise InvalidValue("password", f"given by {' and '.join(passwords)}", "one of them")
    if options.username is not None and any(url.user is not None for url in in_url):
        raise InvalidValue("user", "given by username and url", "one of them")
    users = sorted({url.login[0] for url in options.urls})
    if len(users) > 1 and found & {"password", "password_env"}:  # a file is read for the user of each URL
        raise InvalidValue(
            "users in url",
            users,
            f"the same user in each URL ('guest' where it has none), because {passwords[0]} is the password of one",
            "Write each password into its URL, or remove the users from the URLs and set username",
        )


def _check_tls(options: ConnectionOptions, found: set[str]) -> None:
    secure = {url.tls for url in options.urls}
    if options.url is not None and options.tls is not None and secure != {options.tls}:
        expected = "the same as the url: true with amqps:// or rabbitmq-stream+tls://, else false"
        raise invalid_option("tls", str(options.tls).lower(), expected)
    needs_tls = {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name", "tls_verify"}
    if secure != {True} and (given := sorted(found & needs_tls)):
        hint = "Write amqps:// in the url, or set tls=true if you use host"
        raise InvalidValue(f"option {option_name(given[0])}", "a connection without TLS", "TLS", hint)
    if options.tls_cert_file is None and found & {"tls_key_file", "tls_key_password"}:
        raise InvalidValue("client certificate", "only its private key", "the option tlsCertFile as well")
    if not options.tls_verify and found & {"tls_ca_file", "tls_server_name"}:
        raise invalid_option("tls_verify", "false", "true if tlsCaFile or tlsServerName is given")


def several(url: str) -> list[str]:
    """The URLs in an option. A password may contain a comma, so only a comma before another URL counts."""
    before_url = r",(?=\s*(?:amqps?|rabbitmq-stream(?:\+tls)?)://)"
    return [one.strip() for one in re.split(before_url, url, flags=re.IGNORECASE)]
