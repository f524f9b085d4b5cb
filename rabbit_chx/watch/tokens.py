"""Access control for `watch --serve`: the address to listen on, the token, and the allowed values of ``Host``."""

from __future__ import annotations

import ipaddress
import re
import socket
from base64 import b64decode
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, Self

from rabbit_chx.base.urls import MAX_PORT, host_and_port
from rabbit_chx.errors import InvalidValue

TOKEN_VARIABLE: Final = "RABBIT_CHX_WATCH_TOKEN"  # noqa: S105 - the name of a variable
_SHORTEST_TOKEN: Final = 16
_EXPECTED: Final = "HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    """The host as given, without brackets."""
    port: int
    family: socket.AddressFamily
    ip: str
    """The first address to which the host resolves."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``HOST:PORT`` and resolve the host."""
        found = re.fullmatch(r"(?:\[([^][]+)\]|([^][:/@\s]+)):(\d{1,5})", text, re.ASCII)
        if found is None or int(found[3]) > MAX_PORT:
            raise InvalidValue("--serve", text, _EXPECTED)
        host, port = found[1] or found[2], int(found[3])
        try:
            (family, _, _, _, (ip, *_)), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise InvalidValue("--serve", text, "a host name or address of this machine") from None
        return cls(host, port, family, str(ip))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.ip).is_loopback

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """Decides which requests are allowed: with a token, those that carry it; without, those that name this machine."""

    address: Address
    token: str | None

    def __post_init__(self) -> None:
        if self.token is None:
            if not self.address.loopback:
                raise InvalidValue(
                    "--serve",
                    str(self.address),
                    "a loopback address such as 127.0.0.1:8080, or a token",
                    f"Other machines could read the page: set {TOKEN_VARIABLE} to require a token",
                )
        elif len(self.token) < _SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", self.token):
            expected = f"at least {_SHORTEST_TOKEN} printable ASCII characters without spaces"
            raise InvalidValue(TOKEN_VARIABLE, "a value that is not shown", expected)

    @property
    def hosts(self) -> list[str]:
        """The names of this server that a ``Host`` header may have; ``*`` is any name.

        Any web page can point its own name to 127.0.0.1 and then read this server's answers (DNS rebinding), but the
        browser sends that name. A browser sends the token only to the name for which the user entered it, so with a token
        any name is allowed.
        """
        if self.token is not None:
            return ["*"]
        addresses = [self.address.host, self.address.ip, "127.0.0.1", "::1"]
        return ["localhost", *(f"[{each}]" if ":" in each else each for each in addresses)]

    def admits(self, authorization: str | None) -> bool:
        """Whether an ``Authorization`` header has the token, if one is needed: as ``Bearer``, or as the password of ``Basic``."""
        return self.token is None or compare_digest(_token_in(authorization or ""), self.token.encode())


def _token_in(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            return b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:  # not Base64
            return b""
    return b""
