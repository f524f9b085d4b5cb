"""Who waits for one message: a call of `publish`, or a future."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from rabbit_chx.base.text import seconds
from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing.messages import Failure, Outcome, OutgoingMessage, Owner, Totals
from rabbit_chx.publishing.outbox import log

CANCELLED: Final = "cancelled by the caller"


class Receipt(Owner):
    """A thread that waits for the outcome of one message. A lock is the cheapest thing in Python to wait for."""

    __slots__ = ("_pending", "failure")

    def __init__(self) -> None:
        self._pending = threading.Lock()
        self._pending.acquire()
        self.failure: Failure | None = None

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Let the waiting thread go on."""
        if outcome is not Outcome.CONFIRMED:
            self.failure = messages[0].failure(outcome, reply)
        self._pending.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait for the outcome; return whether there is one."""
        if seconds is None:
            return self._pending.acquire()
        return self._pending.acquire(timeout=max(seconds, 0.0))


def publish_failed(failure: Failure) -> PublishFailed:
    """Return the error about one message."""
    text = f"the message was not confirmed: {failure.reason}"
    return PublishFailed(text, Totals(published=1, **{failure.outcome.value: 1}), [failure])


class Callbacks:
    """Runs the callbacks of futures, one after the other on a thread that starts with the first one."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "rabbit-chx callbacks")
        self._changed = threading.Condition()
        self._coming = 0
        """Callbacks that have not returned, of messages without an outcome as well."""
        self._thread_id = 0

    def expect(self) -> None:
        """Count a callback that `run` will be given."""
        with self._changed:
            self._coming += 1

    def run(self, callback: Callable[[Future[None]], object], future: Future[None]) -> None:
        """Call a callback when those before it have returned."""
        try:
            self._threads.submit(self._run, callback, future)
        except RuntimeError:  # the interpreter is ending, and starts no thread
            self._run(callback, future)

    def _run(self, callback: Callable[[Future[None]], object], future: Future[None]) -> None:
        self._thread_id = threading.get_ident()
        try:
            run_callback(callback, future)
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until all have returned, but not inside one of them."""
        if threading.get_ident() != self._thread_id:
            with self._changed:
                self._changed.wait_for(lambda: not self._coming, seconds)

    def end(self) -> None:
        """Let the thread end after the callbacks that it has."""
        self._threads.shutdown(wait=False)


def run_callback(callback: Callable[[Future[None]], object], future: Future[None]) -> None:
    """Call a callback, and log its exceptions."""
    try:
        callback(future)
    except Exception:  # noqa: BLE001 - it is logged
        log.exception("a callback of a published message failed")


class Confirmation(Future[None], Owner):
    """A future that ends when its message is confirmed; ``cancel`` withdraws a message that was not written.

    The sender's thread sets the result, so waiting for one future inside a callback of another does not wait forever.
    Callbacks run on a thread of their own: they may publish, which may wait for the sender's thread.
    """

    def __init__(self, withdraw: Callable[[Container[Owner], str], None], callbacks: Callbacks) -> None:
        super().__init__()
        self._withdraw = withdraw
        self._callbacks = callbacks
        self._cancelling = self._read = False

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Set the result."""
        if outcome is Outcome.CONFIRMED:
            self.set_result(None)
        elif self._cancelling and outcome is Outcome.UNSENT:
            super().cancel()
            self.set_running_or_notify_cancel()  # without it, concurrent.futures.wait would not return
        else:
            self.set_exception(publish_failed(messages[0].failure(outcome, reply)))

    def cancel(self) -> bool:
        """Withdraw the message; return False if it was written already."""
        if not self.done():
            self._cancelling = True
            self._withdraw({self}, CANCELLED)
            self._cancelling = self.done()
        return self.cancelled()

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call the function when the message has its outcome: on the thread of the callbacks, or here if it has one."""
        if self.done():
            run_callback(fn, self)
        else:
            self._callbacks.expect()
            super().add_done_callback(partial(self._callbacks.run, fn))

    def result(self, timeout: float | None = None) -> None:
        """Wait until the message is confirmed; raise `PublishFailed` if it was not."""
        try:
            return super().result(timeout)
        finally:
            self._read = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return the error if the message was not confirmed."""
        try:
            return super().exception(timeout)
        finally:
            self._read = self.done()

    def __del__(self) -> None:
        if not self._read and self.done() and not self.cancelled():
            error: Any = super().exception()
            if error is not None:
                log.error("a message failed, and its future was never read: %s", error)


def withdrawn(timeout: float | None) -> str:
    """Say why a message was withdrawn."""
    return f"withdrawn after {seconds(timeout or 0.0)}"


def unconfirmed(timeout: float | None) -> str:
    """Say why a message that was written has no outcome."""
    return f"unconfirmed after {seconds(timeout or 0.0)}"
