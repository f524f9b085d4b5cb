"""Requests and answers over a wire, and the frames that the broker sends without a request."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from rabbit_chx.base.text import seconds
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.protocol.answers import (
    OK,
    Close,
    Command,
    Confirms,
    ConsumerUpdate,
    Delivery,
    Fields,
    Frame,
    MetadataUpdate,
    Refusals,
    Response,
    Tune,
    parse,
    reason,
)
from rabbit_chx.streams.protocol.permissions import Access
from rabbit_chx.streams.protocol.requests import close_answer, request
from rabbit_chx.streams.protocol.wire import Wire

_T = TypeVar("_T")

_LONGER: Final = 60
"""An answer may take this many times its timeout while data arrives before it."""


class Calls:
    """The requests of one connection, and queues of the frames that it received."""

    def __init__(self, wire: Wire, timeout: float, give_up_at: float = math.inf) -> None:
        self.wire: Wire = wire
        self.timeout: float = timeout
        self.give_up_at: float = give_up_at
        """When everything ends that waits for the broker, on the monotonic clock."""
        self.vhost: str = "/"
        self.user: str | None = None
        """The user who logged in; None with a client certificate."""
        self.deliveries: deque[Delivery | ConsumerUpdate] = deque()
        """Chunks and changes of single active consumers, in the order in which they arrived."""
        self.outcomes: deque[Confirms | Refusals] = deque()
        self.unread: bool = False
        """Whether frames may have been received that `take` has not looked at, because it found its answer before them."""
        self.tune: Tune | None = None
        self.on_moved: Callable[[str], None] = lambda _stream: None
        """Called with the name of a stream after the broker removed its publishers and subscriptions."""
        self.heard: float = 0.0
        """When the broker knew the connection: after the last request that it has answered, and while data arrived without a gap."""
        self._correlation = 0
        self._answers: dict[int, Response] = {}

    def send(self, frames: bytes, timeout: float | None = None) -> None:
        """Send frames without waiting for an answer."""
        self.wire.send(frames, self._within(timeout))

    def _within(self, timeout: float | None) -> float:
        """Return for how many seconds something may wait, by default as long as for an answer."""
        left = self.give_up_at - time.monotonic()
        return max(min(self.timeout if timeout is None else timeout, left), 0.0)

    def call(
        self,
        command: Command,
        *fields: bytes,
        stream: str | None = None,
        access: Access | None = None,
        timeout: float | None = None,
    ) -> Fields:
        """Send a request and return the fields of its answer. Errors name ``stream`` and ``access``.

        Raises:
            StreamUnavailable: the broker refused it, or does not answer.
        """
        answer = self.answer(command, *fields, timeout=timeout)
        if answer.code in {None, OK}:
            return answer.fields
        raise self.refusal(answer, stream, access)

    def answer(self, command: Command, *fields: bytes, timeout: float | None = None) -> Response:
        """Send a request and return its answer, including a refusal; without a ``timeout``, data that arrives prolongs the wait."""
        self._correlation = number = self._correlation % 0xFFFF_FFFF + 1
        asked, self.wire.longest_gap = time.monotonic(), 0.0
        self.send(request(command, number, *fields), timeout)
        left = patience = self._within(timeout)
        latest = min(asked + patience * (_LONGER if timeout is None else 1), self.give_up_at)
        while (answer := self.take(lambda: self._answers.pop(number, None), left)) is None:
            # The broker sends all chunks that the credit allows before it reads the request.
            left = min(self.wire.last_data + patience, latest) - time.monotonic()
            if left <= 0:
                self.wire.close()
                raise StreamUnavailable(
                    f"the broker at {self.wire.where} did not answer {command.title} within {seconds(patience)}",
                    "lost",
                )
        self.heard = max(asked, time.monotonic() - self.wire.longest_gap)
        if answer.command is not command:
            self.wire.close()
            raise StreamUnavailable(
                f"the broker at {self.wire.where} answered {command.title} with {answer.command.title}",
                "protocol",
            )
        return answer

    def refusal(
        self, answer: Response, stream: str | None = None, access: Access | None = None
    ) -> StreamUnavailable:
        """Create the error for an answer that is not OK."""
        problem, text = reason(answer.code or 0)
        if problem == "no such stream" and answer.command in {Command.PARTITIONS, Command.ROUTE}:
            missing = f"virtual host {self.vhost!r} has no super stream or other exchange {stream!r}"
            return StreamUnavailable(missing, problem, stream)
        if problem == "permission" and access:
            text = access(self.vhost, self.user)
        of = f" for stream {stream!r}" if stream is not None else ""
        return StreamUnavailable(
            f"the broker at {self.wire.where} refused {answer.command.title}{of}: {text}", problem, stream
        )

    def take(self, found: Callable[[], _T | None], timeout: float) -> _T | None:
        """Receive frames until ``found`` returns a value; return that value, or None after ``timeout`` seconds."""
        deadline = min(time.monotonic() + timeout, self.give_up_at)
        self.unread = True
        while (one := found()) is None:
            received = self.wire.receive(deadline)
            if received is None:
                self.unread = False
                return None
            try:
                frame = parse(received)
            except StreamUnavailable:
                self.wire.close()
                raise
            self._sort(frame)
        return one

    def _sort(self, frame: Frame) -> None:
        match frame:
            case Delivery() | ConsumerUpdate():
                self.deliveries.append(frame)
            case Response():
                self._answers[frame.correlation] = frame
            case Confirms() | Refusals():
                self.outcomes.append(frame)
            case MetadataUpdate():
                self.on_moved(frame.stream)
            case Tune():
                self.tune = frame
            case Close():
                raise self._closed(frame)

    def _closed(self, frame: Close) -> StreamUnavailable:
        with suppress(StreamUnavailable):  # the broker may not wait for it
            self.send(close_answer(frame.correlation))
        self.wire.close()
        problem, why = reason(frame.code)
        text = f"{why} ({frame.text})" if frame.text and frame.code != OK else frame.text or why
        return StreamUnavailable(
            f"the broker at {self.wire.where} closed the connection: {text}",
            "lost" if frame.code == OK else problem,
        )
