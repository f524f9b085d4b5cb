"""What a member of a group does on every connection, on pika and on aio-pika.

The methods that talk to the broker are coroutines. On pika, whose calls block, they never suspend, and `at_once` runs
them to their end.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import count
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from rabbit_chx.broker.applying.protocol import Command, Refused, routed
from rabbit_chx.consuming.access import why_ended
from rabbit_chx.consuming.chores import Chore, Chores
from rabbit_chx.consuming.interruptions import Interruptions, Sender
from rabbit_chx.consuming.lanes import Lane, assign
from rabbit_chx.consuming.logs import log
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.queues import check_access, exists, fit_queues
from rabbit_chx.consuming.reporter import Reporter, reply
from rabbit_chx.consuming.seats import find_free, looks_lower, next_try, seat_queue, take_seat
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.sources import QueueSource
from rabbit_chx.consuming.status import queues_in, status
from rabbit_chx.consuming.workers import Progress
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.releases import Release

_T = TypeVar("_T")
_Workers = TypeVar("_Workers", bound=Progress)

TICK: Final = 0.5
"""The longest wait for events, in seconds."""
_LOOK_EVERY: Final = 30.0
_MOVE_AFTER: Final = 10.0


class Membership(Sender, ABC, Generic[_Workers]):
    """One run of a member.

    Everything but `_look_now` and the methods under "called by others" runs in the thread of the connection or in the task of the member. On
    aio-pika, `_deliver` and `_answer` run in tasks of the library instead, and must not wait.
    """

    def __init__(
        self, settings: Settings, workers: _Workers, source: QueueSource, reporter: Reporter
    ) -> None:
        self.workers = workers
        self.seat: int | None = None
        self._settings = settings
        self._source = source
        self._reporter = reporter
        self._lanes: dict[str, Lane] = {}
        self._calls: deque[Chore] = deque()
        self._search: Generator[Command, Any, None] | None = None
        """The last search for a lower seat."""
        self._error: BaseException | None = None
        self._release: Release
        self._interruptions: Interruptions
        self._control: Any
        """The channel for questions and answers."""

    # ---- called by others, on pika from any thread

    @abstractmethod
    def stop(self) -> None:
        """Finish the current messages and end."""

    def fail(self, error: BaseException) -> None:
        """Stop and raise this error from `run`."""
        self._error = self._error or error
        self.stop()

    def on_interruption(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        """Decide later what to do with a message that was not handled."""
        self._ask(self._deal_with, lane, channel, message, error)

    def _ask(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Have a function called in the thread of the connection or in the task of the member."""
        self._calls.append(partial(function, *arguments))
        self._wake()

    # ---- what pika and aio-pika do in their own way

    @abstractmethod
    def _wake(self) -> None:
        """End the wait of `_turn`."""

    @abstractmethod
    async def _carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out commands on a separate channel."""

    @abstractmethod
    async def _turn(self, seconds: float) -> None:
        """Wait for events, for at most ``seconds``; then do what is due."""

    @abstractmethod
    async def _stand_by(self, seconds: float) -> None:
        """Keep the connection alive for ``seconds``, or until the member is stopped."""

    @abstractmethod
    async def _finish(self) -> None:
        """Wait for the handlers; the broker requeues everything else when the channels are closed."""

    @abstractmethod
    async def _read_source(self) -> Collection[str]:
        """Ask the source for the queues."""

    @abstractmethod
    async def _look(self) -> None:
        """Do `_look_now` in the background, because an answer over HTTP takes time."""

    @abstractmethod
    async def _open_channel(self) -> Any: ...

    @abstractmethod
    async def _close(self, channels: Mapping[Any, str]) -> None:
        """Close channels as `close_in_one_step` does."""

    @abstractmethod
    async def _send_acknowledgements(self) -> None: ...

    @abstractmethod
    async def _subscribe(self, lane: Lane, priority: int) -> None:
        """Consume a queue on a new channel."""

    @abstractmethod
    def _is_not_found(self, error: Exception) -> bool:
        """Whether the broker has closed a channel because the queue does not exist."""

    @abstractmethod
    def _is_cancelled(self, channel: Any) -> bool:
        """Whether the broker has cancelled the consumer, unless the library calls `_on_cancelled`."""

    @abstractmethod
    async def _answer_questions(self) -> None:
        """Consume the questions that are sent to the seat's queue."""

    @abstractmethod
    async def _delete(self, queue: str) -> None: ...

    # ---- one connection

    async def _consume(self, version: str) -> None:
        """Consume on one connection until it is lost or the member has stopped."""
        self._release = Release.of_broker(version)
        self._settings.check_release(self._release)
        self.workers.heard = monotonic()
        self._interruptions = Interruptions(self._settings, self.workers, self)
        names = await self._find_seat()
        if self.seat is None:
            return
        await self._carry_out(check_access(self._settings, self.seat, names))
        self._reporter.publish(self._check_publishing(self._seat_queue))
        self._control = await self._open_channel()
        await self._answer_questions()
        await self._use(names)
        log.info("group %r: consuming %d queues in seat %d", self._settings.name, len(names), self.seat)
        await self._until_stopped()

    async def _find_seat(self) -> tuple[str, ...]:
        """Wait for a free seat, unless the member is stopped, and return the queues."""
        for tried in count():
            source = await (self._read_again() if self._lanes else self._read_source())
            names = await self._fit({*self._lanes, *source}, strict=not self._lanes)
            self._lanes = {name: self._lanes.get(name) or Lane(name) for name in names}
            seats: Iterable[int] = range(len(names))
            # Publishes, but if an alarm stops this connection, a member without a seat loses nothing.
            if tried:
                seats = await self._carry_out(find_free(self._settings.name, len(names)))
            self.seat = await self._carry_out(take_seat(self._settings.name, seats))
            if self.seat is not None or self.workers.stopped:
                break
            if not tried:
                log.info("group %r: all %d seats are taken; standing by", self._settings.name, len(names))
            await self._stand_by(next_try(tried, random.random()))  # noqa: S311 - not for secrets
        return names

    def _check_publishing(self, queue: str) -> Generator[Command, Any, None]:
        """Publish as an answer does; a missing permission ends the member. Runs in the thread of the reporter."""
        try:
            yield from routed(queue, b"", {"expiration": "0"})
        except Refused as refused:
            self._calls.append(partial(self._raise, refused))

    async def _raise(self, error: Exception) -> None:
        raise error

    async def _until_stopped(self) -> None:
        chores = Chores(
            {
                self._free: TICK,
                self._inspect: 2 * TICK,
                self._listen: self._settings.heartbeat / 3,
                self._look: _LOOK_EVERY,
                self._move: _MOVE_AFTER,
            }
        )
        while not self.workers.stopped:
            await self._turn(self._interruptions.until_retry(TICK))
            await chores.do_due()
        await self._finish()

    def _on_lost(self, error: Exception) -> None:
        """Log why the connection ended; raise if another connection would end the same way."""
        ended = why_ended(error, self._settings, self._lanes)
        if ended.permanent:
            raise ended from None
        log.warning("group %r: %s; trying again", self._settings.name, ended)

    def _forget(self) -> None:
        """Forget the deliveries of the lost connection; the broker redelivers them."""
        self.seat = None
        with self.workers.lock:
            for lane in self._lanes.values():
                lane.detach()

    # ---- queues

    async def _fit(self, names: Collection[str], *, strict: bool = False) -> tuple[str, ...]:
        """Return the queues that a group can consume; if strict, raise if there are others."""
        fit = fit_queues(names, self._settings, self._release, self._lanes, strict=strict)
        return await self._carry_out(fit)

    async def _use_if_fit(self, names: Collection[str]) -> None:
        """Consume those of the queues that are new and that a group can consume."""
        if new := {*names} - self._lanes.keys():
            await self._use(await self._fit(new))

    async def _use(self, names: Collection[str]) -> None:
        """Consume these queues too, each with the priority that the new number of queues gives it."""
        for lane, priority in assign(self._lanes, names, self.seat or 0):
            await self._subscribe(lane, priority)

    async def _consume_again(self, lane: Lane) -> None:
        """Close the channel, so that the broker requeues what is not handled, and consume with another priority."""
        await self._send_acknowledgements()
        with self.workers.lock:
            channel = lane.detach()
        # All members do this at the same time, so even a waiting one may become active for a moment.
        await self._close({channel: lane.queue if lane.careful else ""})
        await self._subscribe(lane, lane.priority)

    async def _on_cancelled(self, lane: Lane, channel: Any) -> None:
        """Consume again after the broker has cancelled the consumer, or drop the queue if it was deleted."""
        if lane.channel is not channel:
            return
        with self.workers.lock:
            lane.detach()
        await self._close({channel: ""})
        if await self._carry_out(exists(lane.queue)):
            try:
                await self._subscribe(lane, lane.priority)
            except Exception as error:
                # The broker cancels consumers before it deletes a queue.
                if not self._is_not_found(error):
                    raise
            else:
                text = "group %r: the broker cancelled the consumer of queue %r; did the handler exceed consumer_timeout?"
                log.warning(text, self._settings.name, lane.queue)
                return
            with self.workers.lock:
                lane.detach()
        log.info("group %r: queue %r was deleted", self._settings.name, lane.queue)
        del self._lanes[lane.queue]
        await self._use(())

    async def _close_all(self) -> None:
        await self._close({lane.channel: lane.to_displace for lane in self._lanes.values()})

    # ---- messages

    def _deliver(self, lane: Lane, channel: Any, message: Message) -> None:
        """Add a message to its lane, unless the lane has another channel by now."""
        with self.workers.lock:
            begin = lane.channel is channel and lane.add(message)
        if begin:
            self.workers.submit(lane)

    async def _deal_with(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        await self._carry_out(self._interruptions.deal_with(lane, channel, message, error))

    def _warn_if_late(self) -> None:
        """Log which queues still have a running handler when the member ends."""
        late = [lane.queue for lane in self._lanes.values() if not lane.is_idle]
        if late:
            log.warning(
                "group %r: the handler did not return within %g seconds of the stop; the broker will redeliver its messages "
                "from %s",
                self._settings.name,
                self._settings.stop_timeout,
                ", ".join(map(repr, late)),
            )

    # ---- questions and periodic chores

    @property
    def _seat_queue(self) -> str:
        return seat_queue(self._settings.name, self.seat or 0)

    def _answer(self, question: bytes, reply_to: str | None, correlation_id: str | None) -> None:
        """Answer a question, and consume the queues that it names."""
        if not reply_to:
            return
        if queues := queues_in(question):
            self._ask(self._use_if_fit, queues)
        answer = status(self._settings.name, self.seat or 0, self._lanes.values())
        self._reporter.publish(reply(reply_to, answer, correlation_id=correlation_id))

    async def _listen(self) -> None:
        """Wait for an answer of the broker: data that arrived while the process was paused proves nothing."""
        await self._carry_out(self._interruptions.listen(self._seat_queue))

    async def _free(self) -> None:
        await self._carry_out(self._interruptions.release(self._lanes.values()))

    async def _inspect(self) -> None:
        """Sample the rates, and consume again where the broker has closed a channel or cancelled a consumer."""
        now = monotonic()
        for lane in list(self._lanes.values()):
            lane.sample(now)
            if lane.channel is None:
                continue
            if lane.channel.is_closed:
                text = "group %r: the broker closed the channel of queue %r; did the handler exceed consumer_timeout?"
                log.warning(text, self._settings.name, lane.queue)
                with self.workers.lock:
                    lane.detach()
                await self._subscribe(lane, lane.priority)
            elif self._is_cancelled(lane.channel):
                await self._on_cancelled(lane, lane.channel)

    async def _look_now(self) -> None:
        """Ask the source for the queues again, and consume those that are new."""
        self._ask(self._use_if_fit, await self._read_again())

    async def _read_again(self) -> Collection[str]:
        """Ask the source for the queues; none if it fails, because the member knows some already."""
        try:
            return await self._read_source()
        except RabbitChxError as error:
            log.warning("group %r: the queues could not be read again: %s", self._settings.name, error)
            return ()

    async def _move(self) -> None:
        """Look for a lower free seat in the background, unless the last search waits, because answers wait behind it."""
        assert self.seat is not None
        if self._search is not None and getgeneratorstate(self._search) != GEN_CLOSED:
            return
        if looks_lower(self.seat, len(self._lanes), random.random()):  # noqa: S311
            self._search = self._look_lower(self.seat)
            self._reporter.publish(self._search)

    def _look_lower(self, seat: int) -> Generator[Command, Any, None]:
        """Runs in the thread of the reporter."""
        for lower in (yield from find_free(self._settings.name, seat)):
            self._calls.append(partial(self._move_to, lower))

    async def _move_to(self, lower: int) -> None:
        """Move to a lower seat, unless another member has just taken it or this one is about to end."""
        if self.workers.stopped or self.seat is None or self.seat <= lower:
            return
        if await self._carry_out(take_seat(self._settings.name, [lower])) is None:
            return
        log.info("group %r: moving from seat %d to seat %d", self._settings.name, self.seat, lower)
        await self._delete(self._seat_queue)
        self.seat = lower
        await self._answer_questions()
        await self._use(())
