"""The options of ``format("rabbitmq")``: one table, and how text becomes values.

The fields of `Options` are that table. Spark hands over every value as text and every name in lower case; errors
speak of a name as it is documented. Nothing is guessed: an unknown name, a value out of range or two answers to
one question are errors. A secret stands in no error and no ``repr``. This file imports neither PySpark nor Arrow
and opens no socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.hashing import shortstr
from rabbit_chx.urls import BrokerUrl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OPTIONS", "Option", "Options", "nearest"]

_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""What Spark itself takes by ``option()`` and shows to the sink all the same."""

_INSTEAD: Final = {
    "uri": "it is called url here: older releases of Spark print the value of uri in plans and errors",
    "path": "save() and start() take no path; the exchange says where rows go",
    "queue": 'the default exchange leads to a queue by its name: option("exchange", "").option("routingKey", NAME)',
    "mandatory": "every message is mandatory: one that no queue takes is never lost in silence",
    "orderby": "spark_connector.order_for(df, key=..., seq=...) sorts before the write",
    "onreturned": "a message that comes back is sent again for retryTimeoutMs, then the write fails and names it",
    "messageid": "give the frame a column message_id: ids that Spark makes up differ from attempt to attempt",
}
"""Options that people look for, and what there is in their place."""


@dataclass(frozen=True)
class Option:
    """A row of the table."""

    name: str
    expected: str
    default: str
    doc: str
    group: str
    aliases: tuple[str, ...]
    secret: bool


def _option(group: str, default: Any, expected: str, doc: str, **more: Any) -> Any:
    secret = more.get("secret", False)
    return field(
        default=default, repr=not secret, metadata={"group": group, "allowed": expected, "doc": doc, **more}
    )


def _text(group: str, doc: str, default: str | None = None, **more: Any) -> Any:
    return _option(group, default, "text", doc, **more)


def _whole(group: str, default: int | None, doc: str, least: int = 1, most: int = 2**31 - 1) -> Any:
    return _option(group, default, f"whole number from {least} to {most}", doc, least=least, most=most)


def _flag(group: str, doc: str, *, default: bool | None) -> Any:
    return _option(group, default, "true or false", doc)


def _choice(group: str, doc: str, *choices: str) -> Any:
    return _option(group, choices[0], " or ".join(choices), doc, choices=choices)


_CONNECTION, _TLS, _TARGET, _DELIVERY, _SAFETY = "Connection", "TLS", "Target", "Delivery", "Safety"
_FILE = "A path on the executors, or the name of a file that Spark distributes."


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one write, checked; made by :meth:`of`."""

    url: str | None = _text(
        _CONNECTION,
        "amqp://user:password@host:5672/vhost, or amqps://; several, with commas between, are tried in turn.",
        secret=True,
    )
    host: str | None = _text(_CONNECTION, "The broker, where there is no url.")
    port: int | None = _whole(_CONNECTION, None, "By default 5672, with TLS 5671.", most=65_535)
    virtual_host: str | None = _text(_CONNECTION, "By default /.", aliases=("vhost",))
    username: str | None = _text(_CONNECTION, "By default the url's, or guest.", aliases=("user",))
    password: str | None = _text(_CONNECTION, "Travels in Spark's plan; the two below do not.", secret=True)
    password_env: str | None = _text(_CONNECTION, "The environment variable that holds it on the executors.")
    password_file: str | None = _text(_CONNECTION, f"A file whose one line it is. {_FILE}")
    connection_name: str = _text(
        _CONNECTION, "How the broker's list of connections begins their names.", "rabbit-chx spark"
    )
    connection_timeout_ms: int = _whole(_CONNECTION, 10_000, "Until a broker must have answered.")
    reconnect_timeout_ms: int = _whole(_CONNECTION, 120_000, "Until a lost connection must stand again.")
    heartbeat_seconds: int = _whole(_CONNECTION, 30, "They flow whatever Spark does.", most=65_535)
    blocked_timeout_ms: int = _whole(
        _CONNECTION, 900_000, "How long a broker with a memory or disk alarm is waited for."
    )
    tls: bool | None = _flag(_TLS, "By default as the url says: amqps.", default=None)
    tls_ca_file: str | None = _text(
        _TLS, f"Who may vouch for the broker; by default the system's list. {_FILE}"
    )
    tls_cert_file: str | None = _text(_TLS, f"The client's own certificate. {_FILE}")
    tls_key_file: str | None = _text(_TLS, f"Its key, if that is in a file of its own. {_FILE}")
    tls_key_password: str | None = _text(_TLS, "Of the key.", secret=True)
    tls_server_name: str | None = _text(
        _TLS, "The name in the broker's certificate, where it is not the host."
    )
    tls_verify: bool = _flag(_TLS, "false takes any certificate: for tests only.", default=True)
    exchange: str | None = _text(_TARGET, "Of all rows; or a column.")
    routing_key: str | None = _text(_TARGET, "Of all rows; or a column.")
    check_exchange: bool = _flag(
        _TARGET, "Batch: ask the broker for exchange and permission before a task starts.", default=True
    )
    persistent: bool = _flag(_DELIVERY, "Kept over a restart of the broker.", default=True)
    max_in_flight: int = _whole(_DELIVERY, 5_000, "Messages of a task that may be unconfirmed.")
    confirm_timeout_ms: int = _whole(_DELIVERY, 120_000, "How long the broker may confirm nothing at all.")
    retry_timeout_ms: int = _whole(
        _DELIVERY, 10_000, "How long a message that no queue takes is sent again before the write fails."
    )
    max_rate_per_task: int = _whole(_DELIVERY, 0, "Rows a second; 0 is no limit.", least=0)
    task_headers: bool = _flag(
        _DELIVERY, "Add x-spark-query-id, -batch-id, -partition and -attempt.", default=False
    )
    max_message_bytes: int | None = _whole(
        _DELIVERY,
        None,
        "The broker's max_message_size; by default 16 MiB, and 128 MiB before RabbitMQ 4. "
        "split_valid and dryRun do not ask the broker, and take 16 MiB.",
    )
    invalid_rows: str = _choice(
        _SAFETY, "drop leaves them out, counts them and names the first.", "fail", "drop"
    )
    null_value: str = _choice(_SAFETY, "A null body: an invalid row, or an empty message.", "fail", "empty")
    ignore_unknown_columns: bool = _flag(_SAFETY, "Leave other columns out of the write.", default=False)
    allow_speculation: bool = _flag(
        _SAFETY, "Write although speculative execution publishes rows twice.", default=False
    )
    dry_run: bool = _flag(
        _SAFETY, "Check options, rows, connection and permission; publish nothing.", default=False
    )

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options as Spark hands them over: text, with names in any case."""
        found: dict[str, str] = {}
        for name, text in given.items():
            if name.lower() in _SPARKS_OWN:
                continue
            key = _FIELD_OF.get(name.lower()) or _unknown(name)
            if key in found:
                raise InvalidValue(
                    f"option {_name(key)}",
                    "two of its names",
                    "one",
                    "Leave one of them out",
                )
            found[key] = str(text)
        options = cls(**{key: _value(key, text) for key, text in found.items()})
        _check_together(options, set(found))
        return options

    @cached_property
    def urls(self) -> list[BrokerUrl]:
        """The brokers to try. A password stands in here only if the option ``url`` holds it."""
        if self.url is None:
            tls, vhost = bool(self.tls), self.virtual_host
            return [BrokerUrl(self.host or "", self.port or 0, tls, self.username, named_vhost=vhost)]
        urls = [BrokerUrl.parse(url) for url in _several(self.url)]
        return urls if self.username is None else [replace(url, user=self.username) for url in urls]

    @property
    def where(self) -> str:
        """The brokers, for people to read."""
        return ", ".join(map(str, self.urls))

    @property
    def connection(self) -> tuple[Any, ...]:
        """All that makes two connections alike; it holds secrets."""
        return tuple(
            getattr(self, one.name) for one in fields(self) if one.metadata["group"] in _OF_CONNECTION
        )

    @property
    def columns_given(self) -> frozenset[str]:
        """The columns that options stand in for."""
        return frozenset(name for name in ("exchange", "routing_key") if getattr(self, name) is not None)


_OF_CONNECTION: Final = {_CONNECTION, _TLS, _DELIVERY}


def _name(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(map(str.capitalize, rest))


_FIELDS: Final = {one.name: one for one in fields(Options)}
_FIELD_OF: Final = {
    name.lower(): one.name
    for one in fields(Options)
    for name in (_name(one.name), *one.metadata.get("aliases", ()))
}


def _shown_default(default: Any) -> str:
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


OPTIONS: Final = tuple(
    Option(
        _name(one.name),
        one.metadata["allowed"],
        _shown_default(one.default),
        one.metadata["doc"],
        one.metadata["group"],
        one.metadata.get("aliases", ()),
        one.metadata.get("secret", False),
    )
    for one in fields(Options)
)
"""The table, for people to read."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean X? ``, or nothing where no name comes near."""
    by_lower = {re.sub("[_.-]", "", one).lower(): one for one in known}
    near = get_close_matches(re.sub("[_.-]", "", name).lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}? " if near else ""


def _unknown(name: str) -> str:
    names = [option.name for option in OPTIONS]
    hint = _INSTEAD.get(re.sub("[_.-]", "", name).lower()) or nearest(name, names)
    raise InvalidValue(  # never its value, which may be a secret under a misspelt name
        "an option",
        name,
        ", ".join(names),
        hint.strip() or "leave it out",
    )


def _value(key: str, text: str) -> Any:
    """A text as its option's type."""
    metadata = _FIELDS[key].metadata
    expected = metadata["allowed"]
    if expected == "text":
        return text
    if expected == "true or false":
        if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        raise _wrong(key, text, expected, "write it as text or as a bool")
    if "least" in metadata:
        if text.isascii() and text.isdigit() and metadata["least"] <= int(text[:20]) <= metadata["most"]:
            return int(text)
        raise _wrong(key, text, expected, "names that end in Ms count milliseconds")
    if text.lower() in metadata["choices"]:
        return text.lower()
    raise _wrong(key, text, expected, f"leave it out for {metadata['choices'][0]}")


def _wrong(key: str, got: str, expected: str, hint: str) -> InvalidValue:
    return InvalidValue(f"option {_name(key)}", got, expected, hint)


def _check_together(options: Options, found: set[str]) -> None:
    """What single options cannot tell: whether there is a broker, and one answer to each question."""
    _check_where(options, found)
    _check_who(options, found)
    _check_tls(options, found)
    for key in ("exchange", "routing_key"):
        if getattr(options, key) is not None:
            shortstr(getattr(options, key), f"the option {_name(key)}")


def _check_where(options: Options, found: set[str]) -> None:
    if not found & {"url", "host"}:
        raise InvalidValue(
            "address of the broker",
            None,
            "the option url, or host",
            'option("url", "amqp://user:password@host:5672/vhost"); in SQL options belong to the insert: '
            "INSERT INTO t WITH (url = '...', exchange = '...') SELECT ...",
        )
    doubled = found & {"host", "port", "virtual_host"} if "url" in found else set()
    if doubled:
        raise InvalidValue(
            "options",
            ["url", *sorted(map(_name, doubled))],
            "url alone, or host with port and virtualHost",
            "Leave the others out: the url holds all three",
        )
    if options.url is None:
        assert options.host is not None
        if not options.host or re.search(r"[\s/?#@,]", options.host):
            raise _wrong("host", options.host, "the name or address of one host", "several go into url")


def _check_who(options: Options, found: set[str]) -> None:
    passwords = sorted(map(_name, found & {"password", "password_env", "password_file"}))
    in_url = [BrokerUrl.parse(url) for url in _several(options.url)] if options.url is not None else []
    if any(url.password is not None for url in in_url):
        passwords.append("url")
    if len(passwords) > 1:
        raise InvalidValue(
            "password",
            f"given by {' and '.join(passwords)}",
            "one of password, passwordEnv and passwordFile, or the url's",
            "Leave the others out",
        )
    if options.username is not None and any(url.user is not None for url in in_url):
        raise InvalidValue(
            "user",
            "given by username and url",
            "one of them",
            "Take the user out of the url, or leave username out",
        )


def _check_tls(options: Options, found: set[str]) -> None:
    secure = {url.tls for url in options.urls}
    if options.url is not None and options.tls is not None and secure != {options.tls}:
        raise _wrong(
            "tls", str(options.tls).lower(), "what the url says", "write amqps:// for TLS, amqp:// without"
        )
    for key in sorted(
        found & {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name", "tls_verify"}
    ):
        if secure != {True}:
            raise InvalidValue(
                f"option {_name(key)}",
                "a connection without TLS",
                "connections with TLS",
                "Write amqps:// in the url, or tls=true beside host",
            )
    if options.tls_cert_file is None and found & {"tls_key_file", "tls_key_password"}:
        raise InvalidValue(
            "client's certificate",
            "its key alone",
            "tlsCertFile too",
            "The file that tlsCertFile names may hold both",
        )
    if not options.tls_verify and found & {"tls_ca_file", "tls_server_name"}:
        raise _wrong("tls_verify", "false", "true where tlsCaFile or tlsServerName is given", "leave it out")


def _several(url: str) -> list[str]:
    """The URLs of one option; a comma may stand in a password, so it counts only before another URL."""
    return [one.strip() for one in re.split(r",(?=\s*amqps?://)", url)]
