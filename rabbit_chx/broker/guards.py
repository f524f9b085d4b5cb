"""What every client checks: its parameters when it is made, and who may use it when it is open.

That is the process that opened it, and where it allows one thread, that thread.

A forked child inherits the sockets of its parent. Whatever the child sent would arrive in the middle of the parent's frames, and a
lock may be held forever by a thread that the child lacks. So a client asks its guard before it takes a lock or touches a socket.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Sequence

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.timeouts import DEFAULTS, Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials, check_credentials
from rabbit_chx.errors import InvalidValue


def checked_urls(
    client: str,
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    timeouts: Timeouts,
    heartbeat: int,
    credentials: Credentials | None,
    tls: ssl.SSLContext | None,
    connection_name: str | None,
    *,
    defaults: Timeouts = DEFAULTS,
    streams: bool = False,
) -> tuple[BrokerUrl, ...]:
    """Return the parsed addresses of a client, after a check of the parameters that all clients have, before anything connects.

    ``client`` is its name in errors, and ``defaults`` has the timeouts that it can honour.
    """
    urls = BrokerUrl._several(url, streams=streams)
    for each in urls:
        check_credentials(credentials, each)
    if not isinstance(timeouts, Timeouts):
        raise InvalidValue("timeouts", timeouts, "Timeouts, such as Timeouts(connect=5)")
    timeouts._honoured_by(client, defaults)
    check_integer("heartbeat", heartbeat, 1, 65_535)
    if not (tls is None or isinstance(tls, ssl.SSLContext)):
        raise InvalidValue("tls", tls, "an ssl.SSLContext, or None for one that verifies the broker")
    if not (connection_name is None or isinstance(connection_name, str)):
        raise InvalidValue("connection_name", connection_name, "text")
    return urls


class Guard:
    """Remembers who opened a client, for errors with the name of its class and the call that opens it again.

    With ``one_thread``, only the thread that opened the client may use it.
    """

    def __init__(self, client: str, *, one_thread: bool = False, again: str = "open()") -> None:
        self._client = client
        self._again = again
        self._one_thread = one_thread
        self._process: int | None = None
        self._thread: int | None = None

    def opened(self) -> None:
        """Let the calling process and thread use the client from now on."""
        self._process, self._thread = os.getpid(), threading.get_ident()

    def closed(self) -> None:
        """Note that the client is closed: any process and thread may open it."""
        self._process = self._thread = None

    @property
    def inherited(self) -> bool:
        """Whether another process opened the client: its sockets, threads and locks must not be touched, not even to close them."""
        return self._process is not None and self._process != os.getpid()

    def check(self) -> None:
        """Check that the caller may use the client.

        Raises:
            InvalidValue: another process opened it, or another thread where one thread is allowed.
        """
        if self.inherited:
            raise InvalidValue(
                f"the {self._client} belongs to the parent process", hint=f"Call {self._again} after the fork"
            )
        if self._one_thread and self._thread not in {None, threading.get_ident()}:
            raise InvalidValue(
                f"the {self._client} belongs to the thread that opened it",
                hint=f"Open a {self._client} in each thread",
            )

    def check_open(self) -> None:
        """Check that the caller may use the client, and that it is open.

        Raises:
            InvalidValue: as for `check`, or it is not open.
        """
        self.check()
        if self._process is None:
            raise InvalidValue(
                f"the {self._client} is not open", hint=f"Call {self._again}, or use it in a `with` block"
            )
