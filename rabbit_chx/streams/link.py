"""The connection of a client: opened when asked, replaced when it is lost, and only in its own thread and process."""

from __future__ import annotations

from collections.abc import Callable

from rabbit_chx.broker.guards import Guard
from rabbit_chx.streams.protocol.connection import StreamConnection


class Link:
    """One connection at a time.

    Args:
        client: the name of the client's class, for errors.
        connect: opens a connection.
    """

    def __init__(self, client: str, connect: Callable[[], StreamConnection]) -> None:
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
        self._connection = None
        self._guard.closed()
        self._connection = self._connect()
        self._guard.opened()
        return True

    @property
    def connection(self) -> StreamConnection:
        """The connection, which may be lost.

        Raises:
            InvalidValue: the client is not open, or belongs to another thread or process.
        """
        self._guard.check_open()
        assert self._connection is not None
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
            self._guard.closed()
