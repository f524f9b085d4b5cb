"""The streams of a super stream or an exchange, and a thread that notices when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError, StreamUnavailable
from rabbit_chx.publishing.sender import CLOSED
from rabbit_chx.streams.partitions import Partitions
from rabbit_chx.streams.protocol.connection import StreamConnection

log = logging.getLogger("rabbit_chx.streams")

_LOOK: Final = 10.0
"""Seconds between two checks for new partitions."""
_LOOK_AGAIN: Final = 1.0
"""Seconds after a check whose answers contradict each other, as they do while streams are added one by one."""


class Routes:
    """Which stream a message belongs to. Once the streams begin to change, no message is accepted that was routed before.

    ``connect`` opens a connection before a time of the monotonic clock, ``settle`` waits until every message
    that was accepted has its outcome, and ``use`` is called with the names of the streams when they have
    changed.
    """

    def __init__(
        self,
        source: str,
        connect: Callable[[float], StreamConnection],
        find: Callable[[StreamConnection, str], Partitions],
        settle: Callable[[], object],
        use: Callable[[Sequence[str]], object],
    ) -> None:
        self.source = source
        self._connect = connect
        self._find = find
        self._settle = settle
        self._use = use
        self._changed = threading.Condition()
        self.current: Partitions | None = None
        """The streams; None while they are not known yet, or change."""
        self._error: RabbitChxError | None = None
        self._refusal: RabbitChxError | None = None
        """Why no call is accepted any more."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"rabbit-chx partitions of {source}", daemon=True
        )
        self._connection: StreamConnection | None = None
        self._in_doubt = False
        """Whether the last check has failed in a way that the next one must confirm."""

    # -- from any thread

    def start(self) -> None:
        """Begin to look for the streams."""
        self._thread.start()

    def wait_until_known(self, deadline: float) -> None:
        """Return when the broker has said which streams there are; raise if it has not by the deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.current or self._error or self._refusal, max(deadline - time.monotonic(), 0)
            )
            if error := self._refusal or self._error:
                raise error
            if self.current is None:
                raise BrokerUnavailable(f"the broker does not say which streams {self.source!r} has")

    def refuse(self, error: RabbitChxError) -> None:
        """Raise this in every call from now on, even where it waits."""
        with self._changed:
            self._refusal = error
            self._changed.notify_all()

    def stop(self, timeout: float) -> None:
        """End the thread, and every wait."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def known(self, deadline: float | None) -> Partitions | None:
        """Return the streams as soon as they are known and do not change; None if that is not so by the deadline."""
        current = self.current
        if current is not None and self._error is None and self._refusal is None:
            return current  # without the lock, which nearly every message would need

        def ready() -> bool:
            return bool(self.current or self._error or self._refusal or self._stopping.is_set())

        with self._changed:
            timeout = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not self._changed.wait_for(ready, timeout):
                return None
            if error := self._refusal or self._error:
                raise error
            if self.current is None:
                raise BrokerUnavailable(CLOSED)
            return self.current

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._look()
                self._stopping.wait(self._pause())
        except Exception as error:
            log.exception("the thread that knows the partitions of %r failed", self.source)
            self._note(RabbitChxError(f"the publisher failed: {type(error).__name__}: {error}"))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _pause(self) -> float:
        if self._in_doubt:
            return _LOOK_AGAIN
        # Between two checks, the connection sends no heartbeats, and the broker closes it after two silent intervals.
        if self._connection is None or not self._connection.is_open:
            return _LOOK
        return min(_LOOK, self._connection.heartbeat or _LOOK)

    def _look(self) -> None:
        """Look for changes; callers learn why it is impossible if waiting does not help."""
        try:
            self._compare()
        except RabbitChxError as error:
            if self._connection is not None:
                self._connection.close()
            is_known = self.current is not None
            self._in_doubt = is_known and isinstance(error, InvalidValue) and not self._in_doubt
            permanent = not isinstance(error, StreamUnavailable) or error.permanent
            if not is_known or (permanent and not self._in_doubt):
                self._note(error)
        else:
            self._in_doubt = False
            self._note(None)

    def _note(self, error: RabbitChxError | None) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _compare(self) -> None:
        if self._connection is None or not self._connection.is_open:
            self._connection = self._connect(float("inf"))
        if self.current is not None and self.current.holds(self._connection, self.source):
            return
        found = self._find(self._connection, self.source)
        with self._changed:  # where callers look twice
            self.current = self._error = None
        # Keys that move to another stream stay in order: the messages before are confirmed first.
        self._settle()
        if not self._stopping.is_set():
            self._use(found.streams)
            with self._changed:
                self.current = found
                self._changed.notify_all()
