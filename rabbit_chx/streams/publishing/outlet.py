"""The thread that sends the lots of one stream, and sends them again over a new connection until the broker has confirmed them.

Everything here runs on that thread, except `start`, `wake`, `sequence`, `stop` and `join`. The callers see only the outbox.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Final

from rabbit_chx.base.outages import CALLER_WAITS, Backoff, Outage
from rabbit_chx.base.text import counted, seconds
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError, StreamUnavailable
from rabbit_chx.publishing.messages import Outcome
from rabbit_chx.publishing.sender import CLOSED
from rabbit_chx.streams.protocol.answers import Confirms, Refusals, reason
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import again
from rabbit_chx.streams.publishing.lots import InFlight, LotOutbox

log = logging.getLogger("rabbit_chx.streams")

_AT_ONCE: Final = 10_000
"""How many messages to send before the next look at the confirms."""
_LOOK_AGAIN: Final = 1.0
"""Seconds after which a thread that waits looks at the clock, and the connection sends heartbeats."""
_GATHER: Final = 0.001
"""Seconds for which messages gather after others were sent, unless a confirm comes first: to wake up for each takes longer."""
_STEADY: Final = 5.0
"""Seconds after which an idle connection counts as one that works."""
_LEAST: Final = 1.0
"""Seconds that an attempt to connect has, even at the end of the time to reconnect."""


class Outlet:
    """Sends what is in the outbox of one stream, over one connection to the leader after another.

    ``connect`` opens one before a time of the monotonic clock; ``on_connected`` is called with it and the
    highest publishing id that the stream has for the name. If ``patient``, the first connection, too, has the
    time to reconnect, and not one attempt.
    """

    def __init__(
        self,
        stream: str,
        name: str | None,
        connect: Callable[[float], StreamConnection],
        timeouts: Timeouts,
        outbox: LotOutbox,
        on_connected: Callable[[StreamConnection, int], object],
        *,
        patient: bool,
    ) -> None:
        self.stream = stream
        self.outbox = outbox
        self._name = name
        self._connect = connect
        self._timeouts = timeouts
        self._on_connected = on_connected
        self._patient = patient
        self._why_stopped = CLOSED
        self._thread = threading.Thread(target=self._run, name=f"rabbit-chx publisher {stream}", daemon=True)
        self.thread_id: int = 0
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._sleeps = False  # or is about to: it needs a byte to wake up
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._questions: deque[Future[int]] = deque()
        self._ended: RabbitChxError | None = None
        """Why the thread has ended."""
        self._connection: StreamConnection | None = None
        self._number = 0
        self._stored = self._sent = 0
        """The last publishing id that the stream had for this name before what is in flight, and the last one that was sent."""
        self.told = 0
        """The last publishing id that a caller was told, who leaves out messages up to it, while no confirm has followed."""
        self._in_flight = InFlight()
        self._rejected: set[int] = set()
        self._moved = 0.0
        """When the broker last confirmed something, or took a message while it had none to confirm."""
        self._failing_since = math.inf
        """When the connection was lost that has confirmed messages last."""
        self._was_connected = False
        self._outage = Outage(log.warning, f"publisher of stream {stream!r}")
        self._backoff = Backoff(CALLER_WAITS)

    # -- from any thread

    def start(self) -> None:
        """Begin to connect."""
        self._wanted.set()
        self._thread.start()

    def wake(self) -> None:
        """Look into the outbox: there is something to send."""
        if not self._wanted.is_set():
            self._wanted.set()
        if self._sleeps:
            self._sleeps = False
            with suppress(OSError):  # the thread has ended
                self._wakes.send(b"1")

    def sequence(self) -> Future[int]:
        """Let the thread ask for the highest publishing id that the stream has for the name, as soon as it is connected."""
        future: Future[int] = Future()
        self._questions.append(future)
        self.wake()
        if self._ended is not None:
            self._refuse_questions(self._ended, len(self._questions))
        return future

    def stop(self, why: str = CLOSED) -> None:
        """Begin to end the connection and the thread; what has no outcome fails for this reason."""
        self._why_stopped = why
        self._stopping.set()
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, and break the connection if the broker takes no data."""
        if self._thread.ident is None:
            return
        self._thread.join(timeout / 2)
        connection = self._connection
        if self._thread.is_alive() and connection is not None:
            connection._abort()
            self._thread.join(timeout / 2)

    # -- the thread

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        try:
            while not self._stopping.is_set():  # after `_serve` has cleared the wish, which `stop` sets again
                self._wanted.wait()
                self._serve()
        except Exception as error:
            log.exception("the thread of a publisher failed")
            self.outbox.error = BrokerUnavailable(f"the publisher failed: {type(error).__name__}: {error}")
        finally:
            self._ended = self.outbox.error or BrokerUnavailable(self._why_stopped)
            self._give_up(self._ended, closed=True)
            if self._connection is not None:
                self._connection.close()
            self._woken.close()
            self._wakes.close()
            self.thread_id = 0  # another thread may get the same number

    def _serve(self) -> None:
        """Send until the publisher is closed, gives up, or loses the connection while there is nothing to send."""
        while not self._stopping.is_set():
            try:
                if self._connection is None or not self._connection.is_open:
                    self._connection = self._opened()
                self._work(self._connection)
            except BrokerUnavailable as error:
                self._after_loss(error)
                self._wanted.clear()  # before the look at what waits: what comes later sets it again
                is_idle = not self._in_flight and not self._questions and self.outbox.is_empty
                if self._was_connected and is_idle:
                    self._failing_since = math.inf
                    return
                is_late = time.monotonic() >= self._failing_since + self._timeouts.reconnect
                if error.permanent or is_late or not (self._was_connected or self._patient):
                    self._give_up(error)
                    return
                self._outage.failed(error)
                self._pause(self._backoff.failed())

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _after_loss(self, error: BrokerUnavailable) -> None:
        if self._connection is not None:
            self._connection.close()
        # Connections that open and confirm nothing are as bad as none.
        self._failing_since = min(self._failing_since, time.monotonic())
        self.outbox.trouble = f"without a connection: {error}"

    def _opened(self) -> StreamConnection:
        """Connect, and send again what is in flight."""
        self.outbox.trouble = self.outbox.trouble or f"while connecting to stream {self.stream!r}"
        if self._was_connected:
            now = time.monotonic()
            self._failing_since = min(self._failing_since, now)
            latest = max(self._failing_since + self._timeouts.reconnect, now + _LEAST)
            connection = again(self._connect, latest)
        else:
            connection = self._connect(math.inf)
        try:
            connection._give_up_at(math.inf)
            self._number = connection._declare_publisher(self.stream, self._name)
            stored = self._last_id(connection)
            # A stream that was created again has fewer.
            self._stored = min(self._stored, stored) if self._was_connected else stored
            self._on_connected(connection, stored)
            self.outbox.connected()
            self._was_connected = True
            self._moved = time.monotonic()
            if self._in_flight:
                self._send_again(connection)
        except BaseException:
            connection.close()
            raise
        self.outbox.trouble = ""
        return connection

    def _last_id(self, connection: StreamConnection) -> int:
        if self._name is None:
            return 0
        last = connection.query_publisher_sequence(self._name, self.stream)
        if last < self.told:
            text = (
                f"the last publishing id of {self._name!r} in stream {self.stream!r} was {self.told} and is {last}: "
                "a new leader lacks messages that were never confirmed, or the stream was created again"
            )
            raise StreamUnavailable(text, "not available", self.stream)
        return last

    def _send_again(self, connection: StreamConnection) -> None:
        lots = deque(self._in_flight)
        while lots:
            entries: list[tuple[int, bytes]] = []
            while lots and len(entries) < _AT_ONCE:
                lot = lots.popleft()
                lot.owner.sent_again(lot.unconfirmed)
                entries += lot.entries()
            ids, messages = [number for number, _ in entries], [message for _, message in entries]
            self.outbox.note_sent(sum(map(len, messages)), len(messages))
            self._publish(connection, ids, messages)
            self._moved = time.monotonic()
            self._take(connection)  # a broker that cannot send its confirms reads nothing

    def _publish(self, connection: StreamConnection, ids: Iterable[int], messages: Iterable[bytes]) -> None:
        try:
            connection._publish(self._number, ids, messages, timeout=self._timeouts.confirm)
        except StreamUnavailable:
            # A broker that takes nothing for so long is not tried again.
            self._look_at_the_clock(time.monotonic())
            raise

    def _work(self, connection: StreamConnection) -> None:
        """Send what waits and take the confirms, until the connection is lost or the publisher is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            taken_at = time.monotonic()
            while not self._stopping.is_set():
                self._sleeps = True  # before the look at what waits: what comes later wakes it
                self._answer(connection)
                timeout = _LOOK_AGAIN
                if self._send(connection):
                    self._sleeps = False
                    timeout = _GATHER if self.outbox.is_empty else 0
                found = selector.select(0 if connection._has_unread else timeout)
                with suppress(BlockingIOError):
                    self._woken.recv(1 << 10)
                now = time.monotonic()
                arrived = connection._has_unread or any(key.fileobj is not self._woken for key, _ in found)
                if arrived or now - taken_at >= _LOOK_AGAIN:
                    self._take(connection)
                    taken_at = now
                self._look_at_the_clock(now)

    def _answer(self, connection: StreamConnection) -> None:
        while self._questions:
            answer = self._last_id(connection)  # if the connection is lost, the next one is asked
            if not self._in_flight:  # otherwise it may include what is sent again
                self.told = answer
            self._questions.popleft().set_result(answer)

    def _send(self, connection: StreamConnection) -> bool:
        """Send the next lots; return whether there were any."""
        lots = self.outbox.take(_AT_ONCE, self._sent)
        if not lots and not self._in_flight and not self.outbox.is_empty:
            # Publishing ids that were sent before: what does the stream have of them?
            self._stored, self._sent = self._last_id(connection), 0
            lots = self.outbox.take(_AT_ONCE, self._sent)
        if not lots:
            return False
        nothing_in_flight = not self._in_flight
        self._in_flight.add(lots)
        assert lots[-1].ids is not None
        self._sent = lots[-1].ids[-1]
        self.outbox.note_sent(sum(lot.size for lot in lots), 0)
        ids = chain.from_iterable(lot.ids or () for lot in lots)
        messages = chain.from_iterable(lot.messages for lot in lots)
        if nothing_in_flight:
            self._moved = time.monotonic()
        self._publish(connection, ids, messages)
        return True

    def _take(self, connection: StreamConnection) -> None:
        for outcome in connection._confirms(0):
            if isinstance(outcome, Refusals):
                raise self._refused(outcome)
            self._confirmed(outcome)

    def _confirmed(self, confirms: Confirms) -> None:
        before = len(self._in_flight)
        done = self._in_flight.confirm(confirms.publishing_ids)
        if len(self._in_flight) == before:
            return
        self.told = 0  # a majority has all messages before a confirmed one
        self._moved, self._failing_since = time.monotonic(), math.inf
        self._outage.ended()
        self._backoff.works()
        for lot in done:
            if lot.ids and lot.ids[0] <= self._stored:
                lot.duplicates = sum(number <= self._stored for number in lot.ids)
        self.outbox.settle(done, Outcome.CONFIRMED)

    def _refused(self, outcome: Refusals) -> StreamUnavailable:
        number, code = next(iter(outcome.codes.items()))
        problem, text = reason(code)
        if text == "the publisher does not exist":  # after a stream moves, its publishers do not exist
            problem = "not available"
        text = f"the broker refused message {number} for stream {self.stream!r}: {text}"
        error = StreamUnavailable(text, problem, self.stream)
        if error.permanent:
            self._rejected.update(outcome.codes)
        return error

    def _look_at_the_clock(self, now: float) -> None:
        if not self._in_flight and now - self._moved > _STEADY:
            self._failing_since = math.inf
        if self._in_flight and now - self._moved > self._timeouts.confirm:
            what = counted(len(self._in_flight), "message")
            text = f"no confirm of {what} for stream {self.stream!r} within {seconds(self._timeouts.confirm)}"
            raise StreamUnavailable(text, "refused", self.stream)

    def _give_up(self, error: RabbitChxError, *, closed: bool = False) -> None:
        """Give each message its outcome: the stream may have those that were sent, or not."""
        # First what waits: a caller who learns that a message failed may publish the next one, or ask, which is tried.
        asked = len(self._questions)
        self.outbox.give_up(error, closed=closed)
        for lot in self._in_flight:
            for outcome, part in lot.by_outcome(self._rejected).items():
                why = "" if outcome is Outcome.CONFIRMED else str(error)
                self.outbox.settle([part], outcome, why)
        self._in_flight.clear()
        self._rejected.clear()
        self._failing_since, self.told = math.inf, 0
        self._refuse_questions(error, asked)

    def _refuse_questions(self, error: RabbitChxError, count: int) -> None:
        with suppress(IndexError):  # another thread has taken the last one
            for _ in range(count):
                self._questions.popleft().set_exception(error)
