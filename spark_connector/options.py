"""The options of ``format("rabbitmq")``: their table, and how text becomes values.

The fields of `WriteOptions` are that table. Spark passes each value as text and each name in lower case. Unknown names,
values out of range and contradictions are errors, which never contain a secret. This module imports neither PySpark
nor Arrow and opens no socket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import BrokerUrl

MAX_SHORT_TEXT: Final = 255
"""Bytes in a name, a routing key or another short string of AMQP."""

_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""Options of Spark itself, which it also passes to the sink."""

_INSTEAD: Final = {
    "uri": "Use url: some releases of Spark print the value of uri in plans and errors",
    "path": "Call save() or start() without a path; the option exchange says where rows go",
    "queue": 'To write to one queue, use the default exchange: option("exchange", "").option("routingKey", NAME)',
    "mandatory": "Leave it out: every message is mandatory",
    "orderby": "Sort before the write: spark_connector.order_for(df, key=..., seq=...)",
    "onreturned": "A returned message is sent again for retryTimeoutMs, then the write fails and names it",
    "messageid": "Add a column message_id: an id that Spark generates would change with each attempt",
}
"""Options that people look for, and what to use instead."""


@dataclass(frozen=True)
class Option:
    """A row of the table."""

    name: str
    default: str
    expected: str
    doc: str
    group: str
    aliases: tuple[str, ...]
    secret: bool


def _option(
    group: str,
    default: Any,
    expected: str,
    doc: str,
    parse: Callable[[str], Any],
    *,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field whose metadata are those of an `Option`; ``parse`` returns None for a text that is no such value."""
    shown = {"expected": expected, "doc": doc, "group": group, "aliases": aliases, "secret": secret}
    return field(default=default, repr=not secret, metadata={"shown": shown, "parse": parse})


def _text(group: str, doc: str, default: str | None = None, **more: Any) -> Any:
    return _option(group, default, "text", doc, str, **more)


def _integer(group: str, default: int | None, doc: str, least: int = 1, most: int = 2**31 - 1) -> Any:
    def parse(text: str) -> int | None:
        digits = text.isascii() and text.isdigit()
        return int(text) if digits and least <= int(text[:20]) <= most else None

    return _option(group, default, f"an integer from {least} to {most}", doc, parse)


def _flag(group: str, doc: str, *, default: bool | None) -> Any:
    values = {"true": True, "false": False}
    return _option(group, default, "true or false", doc, lambda text: values.get(text.lower()))


def _choice(group: str, doc: str, *choices: str) -> Any:
    values = {choice: choice for choice in choices}
    return _option(group, choices[0], " or ".join(choices), doc, lambda text: values.get(text.lower()))


_CONNECTION, _TLS, _TARGET, _DELIVERY, _SAFETY = "Connection", "TLS", "Target", "Delivery", "Safety"
_FILE = "A path on the executors, or the name of a file that Spark distributes."


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of one write, checked; made by :meth:`of`."""

    url: str | None = _text(
        _CONNECTION,
        "amqp://user:password@host:5672/vhost or amqps://...; several, separated by commas, are tried in turn.",
        secret=True,
    )
    host: str | None = _text(_CONNECTION, "The broker, if there is no url.")
    port: int | None = _integer(_CONNECTION, None, "Default 5672, or 5671 with TLS.", most=65_535)
    virtual_host: str | None = _text(_CONNECTION, "Default /.", aliases=("vhost",))
    username: str | None = _text(_CONNECTION, "Default: the user in the url, or guest.", aliases=("user",))
    password: str | None = _text(
        _CONNECTION, "Part of Spark's plan; passwordEnv and passwordFile are safer.", secret=True
    )
    password_env: str | None = _text(
        _CONNECTION, "Environment variable of the executors that contains the password."
    )
    password_file: str | None = _text(_CONNECTION, f"File that contains only the password. {_FILE}")
    connection_name: str = _text(
        _CONNECTION, "Prefix of the connection names in the broker's list.", "rabbit-chx spark"
    )
    connection_timeout_ms: int = _integer(
        _CONNECTION, 10_000, "How long a broker may take to accept a connection."
    )
    reconnect_timeout_ms: int = _integer(_CONNECTION, 120_000, "How long to keep reconnecting.")
    heartbeat_seconds: int = _integer(
        _CONNECTION, 30, "Interval of heartbeats, which are sent even while Spark computes.", most=65_535
    )
    blocked_timeout_ms: int = _integer(
        _CONNECTION, 900_000, "How long to wait while the broker has a memory or disk alarm."
    )
    tls: bool | None = _flag(_TLS, "Default: true if the url begins with amqps.", default=None)
    tls_ca_file: str | None = _text(
        _TLS, f"CA certificates that may sign the broker's certificate. Default: the system's. {_FILE}"
    )
    tls_cert_file: str | None = _text(_TLS, f"Client certificate. {_FILE}")
    tls_key_file: str | None = _text(
        _TLS, f"Private key of the client certificate, unless tlsCertFile contains it. {_FILE}"
    )
    tls_key_password: str | None = _text(_TLS, "Password of the private key.", secret=True)
    tls_server_name: str | None = _text(
        _TLS, "Name in the broker's certificate, if it differs from the host."
    )
    tls_verify: bool = _flag(_TLS, "false accepts any certificate: for tests only.", default=True)
    exchange: str | None = _text(_TARGET, "Exchange for all rows, unless there is a column exchange.")
    routing_key: str | None = _text(
        _TARGET, "Routing key for all rows, unless there is a column routing_key."
    )
    check_exchange: bool = _flag(
        _TARGET,
        "Before a batch, check on the driver that the exchange exists and that the user may publish to it.",
        default=True,
    )
    persistent: bool = _flag(_DELIVERY, "Messages survive a restart of the broker.", default=True)
    max_in_flight: int = _integer(_DELIVERY, 5_000, "How many messages of a task may be unconfirmed.")
    confirm_timeout_ms: int = _integer(_DELIVERY, 120_000, "How long to wait if the broker confirms nothing.")
    retry_timeout_ms: int = _integer(
        _DELIVERY, 10_000, "How long to resend a message that no queue accepts before the write fails."
    )
    max_rate_per_task: int = _integer(_DELIVERY, 0, "Rows per second; 0 means no limit.", least=0)
    task_headers: bool = _flag(
        _DELIVERY, "Add the headers x-spark-query-id, -batch-id, -partition and -attempt.", default=False
    )
    max_message_bytes: int | None = _integer(
        _DELIVERY,
        None,
        "The broker's max_message_size. Default 16 MiB, or 128 MiB before RabbitMQ 4; split_valid and dryRun always "
        "assume 16 MiB.",
    )
    invalid_rows: str = _choice(
        _SAFETY, "drop leaves invalid rows out, counts them and reports the first five.", "fail", "drop"
    )
    null_value: str = _choice(
        _SAFETY, "A null value is an invalid row (fail) or an empty message.", "fail", "empty"
    )
    ignore_unknown_columns: bool = _flag(_SAFETY, "Leave unknown columns out.", default=False)
    allow_speculation: bool = _flag(
        _SAFETY, "Write even though speculative execution publishes rows twice.", default=False
    )
    dry_run: bool = _flag(
        _SAFETY, "Check options, rows, connection and permission; publish nothing.", default=False
    )

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WriteOptions:
        """The options as Spark hands them over: text, with names in any case."""
        found: dict[str, str] = {}
        for name, text in given.items():
            if name.lower() in _SPARKS_OWN:
                continue
            key = _FIELD_OF.get(name.lower()) or _unknown(name)
            if key in found:
                raise InvalidValue(f"option {_name(key)}", "two of its names", "one of them")
            found[key] = str(text)
        options = cls(**{key: _value(key, text) for key, text in found.items()})
        _check_together(options, set(found))
        return options

    @cached_property
    def urls(self) -> list[BrokerUrl]:
        """The brokers to try, with a password only if the option ``url`` contains one."""
        if self.url is None:
            tls, vhost = bool(self.tls), self.virtual_host
            return [BrokerUrl(self.host or "", self.port or 0, tls, self.username, named_vhost=vhost)]
        urls = [BrokerUrl.parse(url) for url in _several(self.url)]
        return urls if self.username is None else [replace(url, user=self.username) for url in urls]

    @property
    def where(self) -> str:
        """The brokers, as shown to people."""
        return ", ".join(map(str, self.urls))

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


_OF_CONNECTION: Final = {_CONNECTION, _TLS, _DELIVERY}


def _name(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(map(str.capitalize, rest))


_FIELDS: Final = {one.name: one for one in fields(WriteOptions)}
_FIELD_OF: Final = {
    name.lower(): one.name
    for one in fields(WriteOptions)
    for name in (_name(one.name), *one.metadata["shown"]["aliases"])
}


def as_text(value: object) -> str:
    """An option's value as Spark passes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


OPTIONS: Final = tuple(
    Option(
        _name(one.name), default="" if one.default is None else as_text(one.default), **one.metadata["shown"]
    )
    for one in fields(WriteOptions)
)
"""All options, for documentation."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean X? ``, or nothing if no name is similar."""
    by_lower = {re.sub("[_.-]", "", one).lower(): one for one in known}
    near = get_close_matches(re.sub("[_.-]", "", name).lower(), by_lower, n=1)
    return f"Did you mean {by_lower[near[0]]}? " if near else ""


def _unknown(name: str) -> str:
    names = [option.name for option in OPTIONS]
    hint = _INSTEAD.get(re.sub("[_.-]", "", name).lower()) or nearest(name, names)
    # Not its value, which may be a secret under a misspelt name.
    raise InvalidValue("option name", name, f"one of {', '.join(names)}", hint.strip())


def _value(key: str, text: str) -> Any:
    """The text as a value of the option's type."""
    metadata = _FIELDS[key].metadata
    if (value := metadata["parse"](text)) is None:
        hint = "Options ending in Ms are in milliseconds" if key.endswith("_ms") else ""
        raise _invalid(key, text, metadata["shown"]["expected"], hint)
    return value


def check_short_text(text: str, what: str) -> None:
    """Raise if AMQP cannot carry the text as a short string."""
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_SHORT_TEXT:
        raise InvalidValue(
            what, f"{text[:60]!r}... ({size} bytes)", f"at most {MAX_SHORT_TEXT} bytes of UTF-8"
        )


def _invalid(key: str, got: str, expected: str, hint: str = "") -> InvalidValue:
    return InvalidValue(f"option {_name(key)}", got, expected, hint)


def _check_together(options: WriteOptions, found: set[str]) -> None:
    """Check what involves several options: there is one broker, one user and one password."""
    _check_where(options, found)
    _check_who(options, found)
    _check_tls(options, found)
    for key in ("exchange", "routing_key"):
        if getattr(options, key) is not None:
            check_short_text(getattr(options, key), f"option {_name(key)}")


def _check_where(options: WriteOptions, found: set[str]) -> None:
    if not found & {"url", "host"}:
        raise InvalidValue(
            "broker address",
            None,
            "the option url or host",
            'Add option("url", "amqp://user@host:5672/vhost"); in SQL, options belong to the insert: '
            "INSERT INTO t WITH (url = '...', exchange = '...') SELECT ...",
        )
    if "url" in found and (others := sorted(found & {"host", "port", "virtual_host"})):
        got = ["url", *map(_name, others)]
        raise InvalidValue("broker address", got, "either url, or host with port and virtualHost")
    if options.url is None and (not options.host or re.search(r"[\s/?#@,]", options.host)):
        raise _invalid("host", options.host or "", "one host name or address", "Use url for several brokers")


def _check_who(options: WriteOptions, found: set[str]) -> None:
    passwords = sorted(map(_name, found & {"password", "password_env", "password_file"}))
    in_url = [BrokerUrl.parse(url) for url in _several(options.url)] if options.url is not None else []
    if any(url.password is not None for url in in_url):
        passwords.append("url")
    if len(passwords) > 1:
        raise InvalidValue("password", f"given by {' and '.join(passwords)}", "one of them")
    if options.username is not None and any(url.user is not None for url in in_url):
        raise InvalidValue("user", "given by username and url", "one of them")


def _check_tls(options: WriteOptions, found: set[str]) -> None:
    secure = {url.tls for url in options.urls}
    if options.url is not None and options.tls is not None and secure != {options.tls}:
        raise _invalid("tls", str(options.tls).lower(), "the same as the url: true with amqps://, else false")
    needs_tls = {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name", "tls_verify"}
    if secure != {True} and (given := sorted(found & needs_tls)):
        hint = "Write amqps:// in the url, or set tls=true if you use host"
        raise InvalidValue(f"option {_name(given[0])}", "a connection without TLS", "TLS", hint)
    if options.tls_cert_file is None and found & {"tls_key_file", "tls_key_password"}:
        raise InvalidValue("client certificate", "only its private key", "the option tlsCertFile as well")
    if not options.tls_verify and found & {"tls_ca_file", "tls_server_name"}:
        raise _invalid("tls_verify", "false", "true if tlsCaFile or tlsServerName is given")


def _several(url: str) -> list[str]:
    """The URLs in one option. A password may contain a comma, so only a comma before another URL counts."""
    return [one.strip() for one in re.split(r",(?=\s*amqps?://)", url)]
