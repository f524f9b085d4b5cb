"""Publish over AMQP 1.0 what no client library encodes: the bytes of a message as they are."""

from __future__ import annotations

import socket
import struct
from enum import Enum
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from rabbit_chx.streams.messages.amqp10 import Budget, read
from tests.patience import PATIENCE
from tests.stream_forgeries import NULL, compound, symbol, text

SASL_INIT, SASL_OUTCOME = 0x41, 0x44
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
TARGET, ACCEPTED = 0x29, b"\0\x53\x24"
TRUE, FALSE = b"\x41", b"\x42"
LARGEST = 64_000
"""Of a part of a message, in one frame."""


class Outcome(Enum):
    """What the broker answers to a message."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    ENDED = "the session or the connection ended"


class _Ended(Exception):
    """The broker has ended the link, the session or the connection."""


class Sender:
    """Publishes to one address, and connects again when the broker has ended the connection."""

    def __init__(self, url: str, address: str) -> None:
        self._url = urlsplit(url)
        self._address = address
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def send(self, message: bytes) -> Outcome:
        """Publish a message, and wait for the broker's answer."""
        try:
            if self._socket is None:
                self._connect()
            while self._credit <= self._sent:
                self._take(FLOW)
            self._transfer(message)
            return Outcome.ACCEPTED if ACCEPTED in self._take(DISPOSITION) else Outcome.REFUSED
        except (_Ended, ConnectionError):
            self._close()
            return Outcome.ENDED

    def _connect(self) -> None:
        assert self._url.hostname
        address = self._url.hostname, self._url.port or 5672
        self._socket = socket.create_connection(address, PATIENCE)
        self._received = self._socket.makefile("rb")
        self._sent = self._credit = 0
        user, password = unquote(self._url.username or ""), unquote(self._url.password or "")
        self._begin(b"AMQP\3\1\0\0")
        self._send(SASL_INIT, symbol(b"PLAIN"), _binary(f"\0{user}\0{password}".encode()), kind=1)
        assert _fields(self._take(SASL_OUTCOME))[0] == 0, "wrong user or password"
        self._begin(b"AMQP\0\1\0\0")
        vhost = unquote(self._url.path[1:]) or "/"
        self._send(OPEN, text(b"tests"), text(f"vhost:{vhost}".encode()))
        self._send(BEGIN, NULL, _number(0), _number(1_000), _number(1_000))
        target = compound(TARGET, b"\xd0", text(self._address.encode()))
        # Of a sender, whose messages are not settled before the broker has answered.
        kinds = FALSE, b"\x50\0", b"\x50\0"
        self._send(
            ATTACH, text(b"link"), _number(0), *kinds, b"\0\x53\x28\x45", target, NULL, NULL, _number(0)
        )

    def _begin(self, header: bytes) -> None:
        assert self._socket
        self._socket.sendall(header)
        assert self._read(len(header)) == header

    def _transfer(self, message: bytes) -> None:
        """Send a message in as many frames as it needs."""
        number = _number(self._sent)
        for start in range(0, max(len(message), 1), LARGEST):
            more = TRUE if start + LARGEST < len(message) else FALSE
            fields = _number(0), number, _binary(b"tag"), _number(0), FALSE, more
            self._send(TRANSFER, *fields, payload=message[start : start + LARGEST])
        self._sent += 1

    def _send(self, what: int, *fields: bytes, payload: bytes = b"", kind: int = 0) -> None:
        assert self._socket
        body = compound(what, b"\xd0", *fields) + payload
        self._socket.sendall(struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body)

    def _take(self, wanted: int) -> bytes:
        """Read frames up to one of this kind, and return it."""
        while True:
            size, offset = struct.unpack(">IB", self._read(5))
            frame = self._read(size - 5)[4 * offset - 5 :]
            if not frame:  # a heartbeat
                continue
            if frame[2] in {DETACH, END, CLOSE}:
                raise _Ended
            if frame[2] == FLOW and (link := _fields(frame)[4:7]) and link[0] is not None:
                self._credit = sum(link[1:])
            if frame[2] == wanted:
                return frame

    def _read(self, size: int) -> bytes:
        data = self._received.read(size)
        if len(data) < size:
            raise _Ended
        return data

    def _close(self) -> None:
        if self._socket is not None:
            self._received.close()
            self._socket.close()
            self._socket = None


def _fields(frame: bytes) -> list[Any]:
    fields: list[Any] = read(frame, 0, Budget())[0]
    return fields


def _number(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def _binary(value: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(value)) + value
