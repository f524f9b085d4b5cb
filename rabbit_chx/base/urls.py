"""The addresses of a broker, parsed once: its AMQP URL and the URL of its management API.

    url = BrokerUrl.parse("amqps://user:password@host/vhost?heartbeat=10")
    url.host, url.port, url.vhost, url.user

No password appears in ``repr()``, in ``str()`` or in an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rabbit_chx.errors import InvalidValue

MAX_PORT: Final = 65_535
_HIDDEN: Final = "(not shown: it may contain a password)"
_EXTERNAL: Final = "auth_mechanism=external"
_PORTS: Final = {(False, False): 5672, (False, True): 5671, (True, False): 5552, (True, True): 5551}
"""The default ports, keyed by whether the protocol is that of streams and whether it uses TLS."""
_SCHEMES: Final = {
    "amqp": (False, False),
    "amqps": (False, True),
    "rabbitmq-stream": (True, False),
    "rabbitmq-stream+tls": (True, True),
}
"""Whether a scheme is the stream protocol, and whether it uses TLS."""
_INTEGERS: Final = {
    "heartbeat": (0, 65_535),
    "connection_attempts": (1, 1_000),
    "frame_max": (4_096, 131_072),
    "channel_max": (1, 65_535),
}
_SECONDS: Final = {"socket_timeout", "stack_timeout", "blocked_connection_timeout", "retry_delay"}


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker, a virtual host, and the user who connects."""

    host: str
    port: int = 0
    """0 selects the default port: 5672, or 5671 with TLS; for streams, 5552 or 5551."""
    tls: bool = False
    user: str | None = None
    """None: guest."""
    password: str | None = field(default=None, repr=False)
    """None: guest."""
    named_vhost: str | None = None
    """The virtual host in the URL's path; None where the path is empty."""
    external: bool = False
    """SASL EXTERNAL: the client certificate names the user, and there is no password."""
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The query parameters, under the names that pika gives them."""
    streams: bool = False
    """Whether the port is that of the stream protocol."""

    def __post_init__(self) -> None:
        if not self.port:
            object.__setattr__(self, "port", _PORTS[self.streams, self.tls])

    @classmethod
    def parse(cls, url: str | BrokerUrl) -> BrokerUrl:
        """Parse an ``amqp://`` or ``amqps://`` URL.

        The query takes pika's ``heartbeat``, ``connection_attempts``, ``retry_delay``, ``socket_timeout``, ``stack_timeout``,
        ``blocked_connection_timeout``, ``frame_max`` and ``channel_max``, and ``auth_mechanism=external``.

        Raises:
            InvalidValue: the text is not such a URL.
        """
        if isinstance(url, BrokerUrl):
            return url
        return cls._parse(url, {"amqp", "amqps"}, "amqp://user:password@host:5672/vhost, or amqps://")

    @classmethod
    def _several(
        cls, url: str | BrokerUrl | Sequence[str | BrokerUrl], *, streams: bool = False
    ) -> tuple[BrokerUrl, ...]:
        """Parse the URL, or the URLs, of a client, which it tries in turn; with ``streams``, as `for_streams` does.

        Raises:
            InvalidValue: a text is not such a URL, or there is none.
        """
        urls = (url,) if isinstance(url, (str, BrokerUrl)) else url
        if not isinstance(urls, (list, tuple)) or not all(isinstance(one, (str, BrokerUrl)) for one in urls):
            raise InvalidValue("broker URL", type(url).__name__, "a str or a list of str")
        if not urls:
            raise InvalidValue("broker URL", "an empty list", "one or more URLs")
        return tuple(map(cls.for_streams if streams else cls.parse, urls))

    @classmethod
    def for_streams(cls, url: str | BrokerUrl, *, port: int = 0) -> BrokerUrl:
        """Parse a ``rabbitmq-stream://`` or ``rabbitmq-stream+tls://`` URL.

        An ``amqp://`` or ``amqps://`` URL means the same host, user and virtual host.

        Args:
            url: the URL.
            port: of the stream protocol; by default that of a stream URL, or 5552, or 5551 with TLS.

        Raises:
            InvalidValue: the text is not such a URL.
        """
        if not isinstance(url, BrokerUrl):
            expected = (
                "rabbitmq-stream://user:password@host:5552/vhost, rabbitmq-stream+tls://, amqp:// or amqps://"
            )
            url = cls._parse(url, set(_SCHEMES), expected)
        if url.streams and not port:
            return url
        return replace(url, streams=True, port=port)

    @classmethod
    def _parse(cls, url: str, schemes: set[str], expected: str) -> BrokerUrl:
        parts = _split(url, schemes)
        if parts is None or "/" in parts.path[1:]:
            raise InvalidValue(
                "broker URL",
                _HIDDEN,
                expected,
                "Write special characters of user, password and virtual host as %XX (a slash as %2F)",
            )
        streams, tls = _SCHEMES[parts.scheme]
        query = {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
        external = query.get("auth_mechanism", "").lower() == "external"
        if external:
            del query["auth_mechanism"]
        if external and (not tls or parts.username is not None):
            secure = "rabbitmq-stream+tls://host:5551" if streams else "amqps://host:5671"
            raise InvalidValue(
                "broker URL",
                f"{_EXTERNAL} with a user or without TLS",
                f"{secure}/vhost?{_EXTERNAL} and a client certificate",
            )
        return cls(
            host=parts.hostname or "",
            port=parts.port or 0,
            tls=tls,
            streams=streams,
            user=_decoded(parts.username),
            password=_decoded(parts.password),
            named_vhost=unquote(parts.path[1:]) or None,
            external=external,
            parameters={name: _parameter(name, value) for name, value in query.items()},
        )

    def __str__(self) -> str:
        user = "user of the certificate" if self.external else f"user {self.login[0]!r}"
        return f"{host_and_port(self.host, self.port)}, virtual host {self.vhost!r}, {user}"

    @property
    def vhost(self) -> str:
        """The virtual host to connect to."""
        return self.named_vhost or "/"

    @property
    def login(self) -> tuple[str, str]:
        """User and password, ``guest`` for each that is missing."""
        return self.user or "guest", self.password or "guest"

    @property
    def management_url(self) -> str:
        """The default URL of the management API, without user and password."""
        scheme, port = ("https", 15671) if self.tls else ("http", 15672)
        return f"{scheme}://{host_and_port(self.host, port)}"

    def with_vhost(self, vhost: str) -> BrokerUrl:
        """Return the same broker with another virtual host."""
        return replace(self, named_vhost=vhost)

    def _at_vhost(self, vhost: str) -> BrokerUrl:
        """Return the same broker with a virtual host that the URL may omit but not contradict."""
        if self.vhost != vhost and self.named_vhost is not None:
            raise InvalidValue(
                "virtual host in the broker URL",
                self.vhost,
                repr(vhost),
                "Leave it out of the URL: the topology file names it",
            )
        return self.with_vhost(vhost)


@dataclass(frozen=True, slots=True)
class ManagementUrl:
    """Where a management API is, and the user and password in its URL."""

    base: str
    """The URL without user, password and ``/api``."""
    host: str
    tls: bool
    user: str | None = None
    password: str = field(default="", repr=False)

    @property
    def netloc(self) -> str:
        """Host and port."""
        return urlsplit(self.base).netloc

    @property
    def path(self) -> str:
        """The path below which the API is, without a slash at its end."""
        return urlsplit(self.base).path

    @classmethod
    def parse(cls, url: str) -> ManagementUrl:
        """Parse an ``http://`` or ``https://`` URL.

        Raises:
            InvalidValue: the text is not such a URL.
        """
        parts = _split(url, {"http", "https"})
        if parts is None or parts.query:
            raise InvalidValue(
                "management URL",
                _HIDDEN,
                "http://host:15672 or https://user:password@host:15671",
                "Write special characters of user and password as %XX",
            )
        host = parts.netloc.rpartition("@")[2]
        return cls(
            base=f"{parts.scheme}://{host}{parts.path.rstrip('/').removesuffix('/api')}",
            host=parts.hostname or "",
            tls=parts.scheme == "https",
            user=_decoded(parts.username) or None,
            password=_decoded(parts.password) or "",
        )


def is_host(text: str) -> bool:
    """Whether a connection can ask for the address of a host of this name; of a..b, none can."""
    try:
        return bool(text.encode("idna")) and text.isprintable()
    except UnicodeError:
        return False


def _split(url: str, schemes: set[str]) -> SplitResult | None:
    """The parts of a URL; None where it is invalid. No error may quote the URL: it may hold a password."""
    # urlsplit() silently drops some of these characters.
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in schemes and is_host(parts.hostname or "") and parts.port != 0
    except ValueError:  # its text quotes the URL, so it must not become the cause of another error
        return None
    # An unescaped password ends at its first / ? or #; the @ before the host is then in what follows.
    return parts if usable and "@" not in parts.path + parts.query and not parts.fragment else None


def _parameter(name: str, text: str) -> Any:
    """The value of a query parameter as pika takes it."""
    if name in _INTEGERS:
        least, most = _INTEGERS[name]
        number = int(text) if text.isdecimal() and len(text) < 7 else -1
        if least <= number <= most:
            return number
        raise InvalidValue(f"{name} in the broker URL", text, f"an integer from {least} to {most}")
    if name not in _SECONDS:
        known = ", ".join(sorted({*_INTEGERS, *_SECONDS}))
        raise InvalidValue("query of the broker URL", _HIDDEN, f"{known}, or {_EXTERNAL}")
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise InvalidValue(f"{name} in the broker URL", text, "seconds, more than 0")


def _decoded(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def host_and_port(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with an IPv6 address in brackets.

    >>> host_and_port("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
