"""The options of a write with ``format("rabbitmq")``, and those of the connection, which a read shares.

The fields of `WriteOptions` are the table. This module imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Final

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import BrokerUrl
from spark_connector.option_table import (
    OptionTable,
    check_short_text,
    choice,
    flag,
    integer,
    invalid_option,
    option_name,
    options_of,
    text,
)

_CONNECTION, _TLS, _TARGET, _DELIVERY, _SAFETY = "Connection", "TLS", "Target", "Delivery", "Safety"
_STREAMS: Final = "Streams"
_STREAM_TARGETS: Final = ("stream", "super_stream")
TARGETS: Final = (*_STREAM_TARGETS, "exchange", "queue")
"""The fields that name the target of a write or the source of a read, which has at most one of them."""
_FILE = "A path on the executors, or the name of a file that Spark distributes."


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(OptionTable):
    """The broker's address, the user, and TLS."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "uri": "Use url: some releases of Spark print the value of uri in plans and errors",
    }

    ALTERNATIVES: ClassVar[tuple[frozenset[str], ...]] = (
        frozenset({"url", "host", "port", "virtual_host"}),
        frozenset({"password", "password_env", "password_file"}),
        frozenset(TARGETS),
    )

    url: str | None = text(
        _CONNECTION,
        "amqp://user:password@host:5672/vhost or amqps://...; several, separated by commas, are tried in turn.",
        secret=True,
    )
    host: str | None = text(_CONNECTION, "The broker, if there is no url.")
    port: int | None = integer(_CONNECTION, None, "Default 5672, or 5671 with TLS.", most=65_535)
    virtual_host: str | None = text(_CONNECTION, "Default /.", aliases=("vhost",))
    username: str | None = text(_CONNECTION, "Default: the user in the url, or guest.", aliases=("user",))
    password: str | None = text(
        _CONNECTION, "Part of Spark's plan; passwordEnv and passwordFile are safer.", secret=True
    )
    password_env: str | None = text(
        _CONNECTION, "Environment variable of the executors that contains the password."
    )
    password_file: str | None = text(_CONNECTION, f"File that contains only the password. {_FILE}")
    connection_name: str = text(
        _CONNECTION, "Prefix of the connection names in the broker's list.", "rabbit-chx spark"
    )
    connection_timeout_ms: int = integer(
        _CONNECTION, 10_000, "How long a broker may take to accept a connection."
    )
    reconnect_timeout_ms: int = integer(_CONNECTION, 120_000, "How long to keep reconnecting.")
    tls: bool | None = flag(_TLS, "Default: true if the url begins with amqps.", default=None)
    tls_ca_file: str | None = text(
        _TLS, f"CA certificates that may sign the broker's certificate. Default: the system's. {_FILE}"
    )
    tls_cert_file: str | None = text(_TLS, f"Client certificate. {_FILE}")
    tls_key_file: str | None = text(
        _TLS, f"Private key of the client certificate, unless tlsCertFile contains it. {_FILE}"
    )
    tls_key_password: str | None = text(_TLS, "Password of the private key.", secret=True)
    tls_server_name: str | None = text(_TLS, "Name in the broker's certificate, if it differs from the host.")
    tls_verify: bool = flag(_TLS, "false accepts any certificate: for tests only.", default=True)

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
        urls = [self.address(url) for url in _several(self.url)]
        return urls if self.username is None else [replace(url, user=self.username) for url in urls]

    @property
    def where(self) -> str:
        """The brokers, as shown to people."""
        return ", ".join(map(str, self.urls))

    def _check(self, found: set[str]) -> None:
        """Check that the options name one broker, one user and one password."""
        _check_where(self, found)
        _check_who(self, found)
        _check_tls(self, found)


@dataclass(frozen=True, kw_only=True)
class AmqpOptions(ConnectionOptions):
    """How to reach the broker over AMQP."""

    heartbeat_seconds: int = integer(
        _CONNECTION, 30, "Interval of heartbeats, which are sent even while Spark computes.", most=65_535
    )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ConnectionOptions):
    """How to reach the streams of a broker."""

    stream_port: int | None = integer(
        _STREAMS, None, "The port of the stream protocol. Default 5552, or 5551 with TLS.", most=65_535
    )
    follow_advertised: bool = flag(
        _STREAMS,
        "Connect to the host and port that the broker advertises for each stream, instead of those of url or host.",
        default=False,
    )

    def address(self, url: str | BrokerUrl) -> BrokerUrl:
        """Parse a URL of either protocol as the address of the stream protocol."""
        return BrokerUrl.for_streams(url, port=self.stream_port or 0)


@dataclass(frozen=True, kw_only=True)
class WriteOptions(AmqpOptions, StreamOptions):
    """The options of one write, checked."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ConnectionOptions.INSTEAD,
        "path": "Call save() or start() without a path; the option exchange says where rows go",
        "queue": 'To write to one queue, use the default exchange: option("exchange", "").option("routingKey", NAME)',
        "mandatory": "Leave it out: every message is mandatory",
        "orderby": "Sort before the write: spark_connector.order_for(df, key=..., seq=...)",
        "onreturned": "A returned message is sent again for retryTimeoutMs, then the write fails and names it",
        "messageid": "Add a column message_id: an id that Spark generates would change with each attempt",
    }

    blocked_timeout_ms: int = integer(
        _CONNECTION, 900_000, "How long to wait while the broker has a memory or disk alarm."
    )
    exchange: str | None = text(_TARGET, "Exchange for all rows, unless there is a column exchange.")
    routing_key: str | None = text(_TARGET, "Routing key for all rows, unless there is a column routing_key.")
    management_url: str | None = text(
        _TARGET,
        "URL of the management API, to compare the bindings of exchange before and after a batch. The log warns about changes. "
        "Default: no comparison.",
        secret=True,
    )
    stream: str | None = text(_TARGET, "Stream for all rows, instead of an exchange.")
    super_stream: str | None = text(
        _TARGET,
        "Super stream for all rows. The routing key selects the partition, as in RabbitMQ's stream clients.",
    )
    check_exchange: bool = flag(
        _TARGET,
        "Before a batch, check on the driver that the exchange or stream exists and that the user may publish to it.",
        default=True,
    )
    exactly_once: bool = flag(
        _STREAMS,
        "Store each row in a stream once, even if tasks run again. false stores rows at least once and accepts any order.",
        default=True,
    )
    producer_name: str | None = text(
        _STREAMS,
        "The name under which streams remember the rows of a write. Default: the id of the query, or a new name for each "
        "batch. A failed batch that runs again under the same name adds only the missing rows.",
    )
    persistent: bool = flag(_DELIVERY, "Messages survive a restart of the broker.", default=True)
    max_in_flight: int = integer(_DELIVERY, 5_000, "How many messages of a task may be unconfirmed.")
    confirm_timeout_ms: int = integer(_DELIVERY, 120_000, "How long to wait if the broker confirms nothing.")
    retry_timeout_ms: int = integer(
        _DELIVERY, 10_000, "How long to resend a message that no queue accepts before the write fails."
    )
    max_rate_per_task: int = integer(_DELIVERY, 0, "Rows per second; 0 means no limit.", least=0)
    task_headers: bool = flag(
        _DELIVERY, "Add the headers x-spark-query-id, -batch-id, -partition and -attempt.", default=False
    )
    max_message_bytes: int | None = integer(
        _DELIVERY,
        None,
        "The broker's max_message_size. Default 16 MiB, or 128 MiB before RabbitMQ 4; split_valid and dryRun always "
        "assume 16 MiB.",
    )
    invalid_rows: str = choice(
        _SAFETY, "drop leaves invalid rows out, counts them and reports the first five.", "fail", "drop"
    )
    fail_fast: bool = flag(
        _SAFETY,
        "An error that no retry can repair stops the other tasks. false lets them write their rows first.",
        default=True,
    )
    null_value: str = choice(
        _SAFETY, "A null value is an invalid row (fail) or an empty message.", "fail", "empty"
    )
    ignore_unknown_columns: bool = flag(_SAFETY, "Leave unknown columns out.", default=False)
    allow_speculation: bool = flag(
        _SAFETY, "Write even though speculative execution publishes rows twice.", default=False
    )
    dry_run: bool = flag(
        _SAFETY, "Check options, rows, connection and permission; publish nothing.", default=False
    )

    @property
    def connection(self) -> tuple[Any, ...]:
        """Equal for writes that can share a connection; it contains secrets."""
        return tuple(
            getattr(self, one.name)
            for one in fields(self)
            if one.metadata["shown"]["group"] in _OF_CONNECTION
        )

    @property
    def columns_given(self) -> frozenset[str]:
        """The columns that options replace."""
        return frozenset(name for name in ("exchange", "routing_key") if getattr(self, name) is not None)

    @property
    def to_streams(self) -> bool:
        """Whether the rows go to a stream or a super stream."""
        return any(getattr(self, key) is not None for key in _STREAM_TARGETS)

    @property
    def exactly_once_to_streams(self) -> bool:
        """Whether streams drop the rows that they already have."""
        return self.to_streams and self.exactly_once

    @property
    def refuses_speculation(self) -> bool:
        """Whether a second attempt of a slow task would publish its rows again."""
        return not self.allow_speculation and not self.exactly_once_to_streams

    @property
    def columns_optional(self) -> frozenset[str]:
        """The columns that rows need not have, although no option replaces them."""
        if self.stream is not None:
            return frozenset({"exchange", "routing_key"})
        return frozenset({"exchange"} if self.super_stream is not None else ())

    def address(self, url: str | BrokerUrl) -> BrokerUrl:
        """Parse a URL as the address of the protocol that the target needs."""
        return super().address(url) if self.to_streams else BrokerUrl.parse(url)

    @classmethod
    def applicable_defaults(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """Also leave out the defaults that have no effect on the target of the write."""
        found = super().applicable_defaults(given, defaults)
        to_streams = set(_STREAM_TARGETS) & set(targets_in((*given, *found)))
        other = {option_name(key).lower() for key in (_EXCHANGES_ONLY if to_streams else _STREAMS_ONLY)}
        return {name: value for name, value in found.items() if name.lower() not in other}

    def _check(self, found: set[str]) -> None:
        check_one_target("target of a write", map(option_name, found))
        other = sorted(found & (_EXCHANGES_ONLY if self.to_streams else _STREAMS_ONLY))
        if other:
            targets = ["a write to a stream", "a write to an exchange"]
            got, expected = targets if self.to_streams else reversed(targets)
            raise InvalidValue(f"option {option_name(other[0])}", got, expected, "Remove it")
        super()._check(found)
        for key in ("exchange", "routing_key", "stream", "super_stream"):
            if getattr(self, key) is not None:
                check_short_text(getattr(self, key), f"option {option_name(key)}")


_OF_CONNECTION: Final = {_CONNECTION, _TLS, _DELIVERY}
_EXCHANGES_ONLY: Final = {
    *("heartbeat_seconds", "blocked_timeout_ms", "management_url", "persistent", "max_in_flight"),
    *("retry_timeout_ms", "max_message_bytes"),
}
"""Options that have no effect on streams."""
_STREAMS_ONLY: Final = {"stream_port", "follow_advertised", "exactly_once", "producer_name"}

OPTIONS: Final = options_of(WriteOptions)
"""All options of a write, for documentation."""


def targets_in(names: Iterable[str]) -> list[str]:
    """Return the fields of `TARGETS` whose options are among the names, which may be in any case."""
    lower = {name.lower() for name in names}
    return [key for key in TARGETS if option_name(key).lower() in lower]


def check_one_target(what: str, names: Iterable[str]) -> None:
    """Raise if the names contain several options of `TARGETS`."""
    if len(targets := targets_in(names)) > 1:
        raise InvalidValue(what, f"options {' and '.join(map(option_name, targets))}", "one of them")


def no_speculation() -> InvalidValue:
    """The error of a write under speculative execution."""
    return InvalidValue(
        "setting spark.speculation",
        "true",
        "false",
        "A second attempt of a slow task would publish its rows again. Turn it off for this job, or set "
        "allowSpeculation=true if consumers can handle duplicates",
    )


def _check_where(options: ConnectionOptions, found: set[str]) -> None:
    if not found & {"url", "host"}:
        raise InvalidValue(
            "broker address",
            None,
            "the option url or host",
            'Add option("url", "amqp://user@host:5672/vhost"), or set spark.datasource.rabbitmq.url and call register(spark). '
            "Spark passes no options of CREATE TABLE, with or without AS SELECT: "
            "INSERT INTO t WITH (url = '...', exchange = '...') SELECT ...",
        )
    if "url" in found and (others := sorted(found & {"host", "port", "virtual_host"})):
        got = ["url", *map(option_name, others)]
        raise InvalidValue("broker address", got, "either url, or host with port and virtualHost")
    if options.url is None and (not options.host or re.search(r"[\s/?#@,]", options.host)):
        raise invalid_option(
            "host", options.host or "", "one host name or address", "Use url for several brokers"
        )


def _check_who(options: ConnectionOptions, found: set[str]) -> None:
    passwords = sorted(map(option_name, found & {"password", "password_env", "password_file"}))
    in_url = [options.address(url) for url in _several(options.url)] if options.url is not None else []
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
        raise invalid_option(
            "tls", str(options.tls).lower(), "the same as the url: true with amqps://, else false"
        )
    needs_tls = {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name", "tls_verify"}
    if secure != {True} and (given := sorted(found & needs_tls)):
        hint = "Write amqps:// in the url, or set tls=true if you use host"
        raise InvalidValue(f"option {option_name(given[0])}", "a connection without TLS", "TLS", hint)
    if options.tls_cert_file is None and found & {"tls_key_file", "tls_key_password"}:
        raise InvalidValue("client certificate", "only its private key", "the option tlsCertFile as well")
    if not options.tls_verify and found & {"tls_ca_file", "tls_server_name"}:
        raise invalid_option("tls_verify", "false", "true if tlsCaFile or tlsServerName is given")


def _several(url: str) -> list[str]:
    """The URLs in one option. A password may contain a comma, so only a comma before another URL counts."""
    return [one.strip() for one in re.split(r",(?=\s*(?:amqps?|rabbitmq-stream(?:\+tls)?)://)", url)]
