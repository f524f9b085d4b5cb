"""The connection of a client: opened when asked, replaced when it is lost, and only in its own thread and process."""

from __future__ import annotations

from collections.abc import Callable

from rabbit_chx.broker.guards import Guard
from rabbit_chx.errors import InvalidValue
from rabbit_chx.streams.protocol.connection import StreamConnection


class Link:
    """One connection at a time.

    Args:
        client: the name of the client's class, for errors.
        connect: opens a connection.
    """

    def __init__(self, client: str, connect: Callable[[], StreamConnection]) -> None:
        self._client = client
        self._connect = connect
        self._guard = Guard(client, one_thread=True)
        self._connection: StreamConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the client, and not closed it."""
        return self._connection is not None and not self._guard.inherited

    def open(self) -> bool:
        """Connect, and return True; False if the client is open already."""
        if self.is_open:
            self._guard.check()
            return False
        self._guard.opened()
        self._connection = None
        self._connection = self._connect()
        return True

    @property
    def connection(self) -> StreamConnection:
        """The connection, which may be lost.

        Raises:
            InvalidValue: the client is not open, or belongs to another thread or process.
        """
        self._guard.check()
        if self._connection is None:
            raise InvalidValue(
                f"use of {self._client}",
                "a call while it is not open",
                f"open(), or `with {self._client}(...)`",
            )
        return self._connection

    def replace(self) -> StreamConnection:
        """Close the connection and open another one."""
        self.connection.close()
        self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection. A second call does nothing, and neither does a call in a forked child."""
        if self.is_open:
            self.connection.close()
            self._connection = None
