"""A TCP connection to a host that may have several addresses."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Final

_LEAST_WAIT: Final = 1e-4
"""Seconds. A timeout of 0 would mean not to wait for the answer of the host."""


def first_open(host: str, port: int, timeout: float) -> socket.socket:
    """Connect to one of the addresses that a host name has, which share the time: `socket.create_connection` gives it to each."""
    deadline = time.monotonic() + timeout
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed = OSError("the host has no address")
    for left, (*kind, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        try:
            return _opened(kind, address, max((deadline - time.monotonic()) / left, _LEAST_WAIT))
        except OSError as error:
            failed = error
    raise failed


def _opened(kind: Sequence[int], address: Any, timeout: float) -> socket.socket:
    opened = socket.socket(*kind)
    try:
        opened.settimeout(timeout)
        opened.connect(address)
    except BaseException:
        opened.close()
        raise
    return opened
