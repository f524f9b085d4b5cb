"""One HTTP request with limits: a deadline for all of it, a largest size, no redirects, no proxy unless one is named.

``urllib`` applies its timeout to each receive, follows redirects and reads ``http_proxy``; here a password goes only to the host
in the URL, and a server that sends slowly or without end costs neither time nor memory beyond the limits.
"""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import ssl
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection, IncompleteRead
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import urlsplit

from rabbit_chx.base.urls import ManagementUrl
from rabbit_chx.broker.sockets import first_open
from rabbit_chx.broker.tls import default_context
from rabbit_chx.errors import InvalidValue

TIMEOUT: Final = 30.0
"""Seconds for a whole request, unless a caller gives another limit."""
_CONNECT_SECONDS: Final = 5.0
_PIECE: Final = 1 << 16
_MOST: Final = 32 << 20
"""Bytes of an answer. The 10,000 bindings of 10,000 queues take about 2 MiB."""
_MOST_OF_ELEMENT: Final = 1 << 20
_MOST_SEPARATORS: Final = 400_000
"""A JSON value of 3 bytes takes Python 72: the number of values bounds the memory, not the size of the text. The definitions of
10,000 queues and their bindings have about 140,000."""
_MOST_SEPARATORS_OF_ARRAY: Final = 1_600_000
"""About 200,000 bindings."""
_SEPARATOR = re.compile(r"[ \t\r\n,]*").match


class TooLarge(Exception):
    """The answer is larger than any that this package expects."""


class HttpClient:
    """Sends requests to one base URL, each on a new connection, perhaps through a proxy, which gets user and password of its URL."""

    def __init__(self, url: ManagementUrl, *, tls: ssl.SSLContext | None, proxy: str | None = None) -> None:
        self._url = url
        self._connection = (
            partial(HTTPSConnection, context=tls or default_context()) if url.tls else HTTPConnection
        )
        self._proxy = ManagementUrl.parse(proxy) if proxy else None
        if self._proxy is not None and self._proxy.tls:
            hint = "The connection to a proxy is not encrypted; what passes through it to an https:// API is"
            raise InvalidValue("management proxy", self._proxy.base, "an http:// URL", hint)

    @contextmanager
    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, *, timeout: float
    ) -> Iterator[Answer]:
        """Send a request and yield the answer, whose body is still to be read; ``timeout`` is for all of it, in seconds."""
        deadline = time.monotonic() + timeout
        proxy, url = self._proxy, self._url
        own = basic_auth("Proxy-Authorization", proxy.user, proxy.password) if proxy and proxy.user else {}
        netloc = url.netloc if proxy is None else _with_port(proxy)
        seconds = min(_CONNECT_SECONDS, timeout)
        with closing(self._connection(netloc, timeout=seconds)) as connection:
            connection.response_class = partial(Answer, deadline=deadline)  # type: ignore[assignment]
            connection._create_connection = _connected  # type: ignore[attr-defined]
            if proxy is not None and url.tls:
                connection.set_tunnel(url.netloc, headers=own)
            target = url.base if proxy is not None and not url.tls else url.path
            sent = {**headers, "Connection": "close", **({} if url.tls else own)}
            try:
                connection.connect()
            except TimeoutError:
                raise ConnectionError(f"no connection within {seconds:g} seconds") from None
            connection.request(method, target + path, body, sent)
            with cast("Answer", connection.getresponse()) as answer:
                yield answer


def _connected(address: tuple[str, int], timeout: float, _: object) -> socket.socket:
    opened = first_open(*address, timeout)
    opened.settimeout(timeout)
    return opened


def _with_port(proxy: ManagementUrl) -> str:
    """Host and port of a proxy; on the way to an https:// API, http.client would take 443 for the default."""
    return proxy.netloc if urlsplit(proxy.base).port else f"{proxy.netloc}:80"


class Answer(HTTPResponse):
    """The answer to one request. Each receive ends at the deadline of the request, and the answer at a largest size."""

    def __init__(self, sock: socket.socket, *args: Any, deadline: float, **kwargs: Any) -> None:
        limited = _Limited(sock.makefile("rb", buffering=0), sock, deadline)
        # Not another self.fp afterwards: Python drops what a signal raises while it closes the first one.
        only_file = SimpleNamespace(makefile=lambda _: io.BufferedReader(limited))
        super().__init__(only_file, *args, **kwargs)  # type: ignore[arg-type]

    def value(self) -> Any:
        """Decode the whole body, a JSON value."""
        return json.loads("".join(iter(self._pieces(_MOST_SEPARATORS), "")))

    def elements(self) -> Iterator[dict[str, Any]]:
        """Decode the objects of a JSON array while it arrives: only one is in memory at a time."""
        next_piece = self._pieces(_MOST_SEPARATORS_OF_ARRAY)
        decode = json.JSONDecoder().raw_decode
        buffer = next_piece().lstrip()
        if not buffer.startswith("["):
            raise ValueError("not a JSON array")
        at = 1
        while not buffer.startswith("]", at := _SEPARATOR(buffer, at).end()):  # type: ignore[union-attr]
            try:
                element, at = decode(buffer, at)
            except json.JSONDecodeError:
                piece = next_piece()
                if not piece or len(buffer) - at > _MOST_OF_ELEMENT:
                    raise
                buffer, at = buffer[at:] + piece, 0
            else:
                if not isinstance(element, dict):
                    raise TypeError("not a JSON object")
                yield element
        if (buffer[at + 1 :] + next_piece()).strip():
            raise ValueError("more than a JSON array")

    def _pieces(self, separators: int) -> Callable[[], str]:
        """A function that reads the next piece of the text, "" at its end."""
        decode = getincrementaldecoder("utf-8")().decode

        def piece() -> str:
            nonlocal separators
            data = self.read(_PIECE)
            if not data and self.length:
                raise IncompleteRead(data, self.length)
            text = decode(data, final=not data)
            separators -= sum(map(text.count, ",[{"))
            if separators < 0:
                raise TooLarge
            return text

        return piece


def basic_auth(header: str, user: str, password: str) -> dict[str, str]:
    """The header that carries user and password."""
    return {header: "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class _Limited(io.RawIOBase):
    def __init__(self, stream: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._stream = stream
        self._socket = sock
        self._deadline = deadline
        self._left = _MOST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        count = self._stream.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise TooLarge
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()
