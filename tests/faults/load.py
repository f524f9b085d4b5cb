"""The publisher of a fault test, and the naive control.

Both run in their own threads, so that the test can cause a fault at a chosen moment ("when 3,000 more are confirmed") and
notices a publisher that hangs.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress

import pika
import pytest
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.publishing import Publisher
from tests.faults.ledger import Ledger, body, drain
from tests.patience import PATIENCE, wait_until

ALIVE = "no loss is possible: the connection survives"
"""Every byte is then in some buffer, and TCP delivers it."""
SLACK = 30.0
"""Extra seconds for operations that end at a timeout, because the machine may be busy."""


def within(seconds: float, work, what: str):
    """Run something that must end in time, and return its result or raise its error."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="within").start()
    if not wait([future], seconds).done:
        faulthandler.dump_traceback(file=sys.__stderr__)
        pytest.fail(f"{what} did not end within {seconds:.0f} seconds")
    return future.result()


def on_queues(broker, queues, call: str) -> str:
    """Call an Erlang function in the broker with the process of each queue, and return the list of its answers."""
    names = ", ".join(f'<<"{queue}">>' for queue in queues)
    found = 'amqqueue:get_pid(element(2, rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, Name))))'
    return broker.eval(f"[{call} || Queue <- [{found} || Name <- [{names}]]].")


@contextmanager
def killed(broker):
    """Kill the broker; start it again after the body, even if the body fails, because other tests share it."""
    broker.kill()
    try:
        yield
    finally:
        broker.restart()


@contextmanager
def paused(broker):
    """Suspend the processes of the broker until the body ends, even if it fails, because other tests share it."""
    broker.pause()
    try:
        yield
    finally:
        broker.unpause()


class Load:
    """Publishes as many messages as requested, until it is finished."""

    def __init__(
        self, url: str, exchange: str, *, size: int = 100, batch: int = 100, key=None, **options
    ) -> None:
        self.ledger = Ledger()
        self.error: BaseException | None = None
        self._size, self._batch = size, batch
        self._key = key or (lambda row: f"customer-{row}")
        self._quota = 0
        self._special = None
        self._changed = threading.Condition()
        self._finishing = self._waits = False
        self.publisher = Publisher(url, exchange, **options)
        self.bulk = self.publisher.bulk(on_failure=self.ledger.note)
        self._thread = threading.Thread(target=self._run, daemon=True, name="load")

    def start(self, quota: int = 0) -> Load:
        self._quota = quota
        self._thread.start()
        return self

    def more(self, count: int) -> None:
        """Publish that many more."""
        with self._changed:
            self._quota = self.publisher.totals.published + count
            self._changed.notify()

    def flow(self) -> None:
        """Publish without limit, until `hold`."""
        self.more(sys.maxsize // 2)

    def hold(self) -> None:
        """Publish nothing new for now; accepted messages continue, and so does a batch that has begun."""
        with self._changed:
            self._quota = 0

    def until_quiet(self) -> None:
        """Hold, and wait until no batch is being published and every message has its outcome."""
        self.hold()
        wait_until(lambda: self.is_quiet, "the last batch is published and settled")

    @property
    def is_quiet(self) -> bool:
        """Whether no batch is being published and no message is pending."""
        with self._changed:
            return self._waits and self.publisher.totals.pending == 0

    def inject(self, special) -> None:
        """Call a function with the bulk between two batches."""
        self._special = special

    def until_confirmed(self, count: int) -> None:
        wanted = self.publisher.totals.confirmed + count
        wait_until(
            lambda: self.publisher.totals.confirmed >= wanted or self.error is not None,
            f"{count} more messages confirmed ({self.publisher.totals})",
        )

    def finish(self, limit: float) -> Ledger:
        """Publish the rest of the quota, close, and return the ledger; fail if that takes longer."""
        with self._changed:
            self._finishing = True
            self._changed.notify()
        within(limit, self._thread.join, "closing the publisher")
        if self.error is not None and not isinstance(self.error, RabbitChxError):
            raise self.error
        totals = self.publisher.totals
        self.ledger.taken_in = totals.published
        assert totals.pending == 0
        assert totals.failed == len(self.ledger.outcomes)
        assert totals.confirmed + totals.failed == totals.published
        return self.ledger

    def abandon(self) -> None:
        """End the publisher without waiting for its messages, even if it hangs; after `finish`, do nothing."""
        with self._changed:
            self._quota, self._finishing = 0, True
            self._changed.notify()
        with suppress(RabbitChxError):
            self.publisher.close(timeout=0)

    def drain(self, url: str, queues, *, quiet: float = 0.0) -> list[list[int]]:
        """Empty the queues into the ledger, and return the rows of each queue in their order."""
        found = drain(url, queues, quiet=quiet)
        for rows in found:
            self.ledger.received.update(rows)
        return found

    def _run(self) -> None:
        try:
            with self.publisher, self.bulk:
                while self._may_publish():
                    self._publish_batch()
        except BaseException as error:  # noqa: BLE001 - looked at in finish()
            self.error = error

    def _may_publish(self) -> bool:
        published = self.publisher.totals.published
        with self._changed:
            self._waits = True
            self._changed.wait_for(lambda: self._quota > published or self._finishing)
            self._waits = False
            return self._quota > published

    def _publish_batch(self) -> None:
        special, self._special = self._special, None
        if special is not None:
            special(self.bulk)
        first = self.publisher.totals.published
        rows = range(first, min(first + self._batch, self._quota))
        taken = self.bulk.add_many([body(row, self._size) for row in rows], [self._key(row) for row in rows])
        assert taken == rows


_JAMMED = 1.5
"""Seconds without progress after which every buffer is full; a busy machine halts a thread for less."""


class Control(threading.Thread):
    """A naive publisher: no confirms; after an error it reconnects and continues with the next message."""

    def __init__(self, url: str, exchange: str, *, size=100, confirms=False, **parameters) -> None:
        super().__init__(daemon=True, name="control")
        self._parameters = pika.URLParameters(url)
        for name, value in {"heartbeat": 5, "socket_timeout": 2, "stack_timeout": 2, **parameters}.items():
            setattr(self._parameters, name, value)
        self._exchange, self._size, self._confirms = exchange, size, confirms
        self._stopping, self._flowing = threading.Event(), threading.Event()
        self.poison: pika.BasicProperties | None = None
        """Properties of one extra message that the ledger does not count."""
        self.connections = self.broken = 0
        self.ledger = Ledger()

    def flow(self) -> None:
        self._flowing.set()

    def flood(self, count: int = 300) -> None:
        """Publish, and return when messages are in flight."""
        wanted = self.ledger.taken_in + count
        self.flow()
        wait_until(lambda: self.ledger.taken_in > wanted, "the control publishes")

    def jam(self, broker, queues) -> None:
        """Publish to queues that hang until every buffer is full: whatever ends now loses its bytes."""
        on_queues(broker, queues, "sys:suspend(Queue)")
        self.until_jammed()

    def until_jammed(self) -> None:
        """Publish until nothing more is accepted; on a busy machine that may already be so."""
        self.flow()
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < _JAMMED:
            if seen != self.ledger.taken_in:
                seen, since = self.ledger.taken_in, time.monotonic()
            time.sleep(0.05)

    def hold(self) -> None:
        """Publish nothing for now: messages sent long before or after a fault prove nothing."""
        self._flowing.clear()

    def until_broken(self, patience: float = PATIENCE) -> None:
        """Wait until the control notices that its connection is gone."""
        before = self.broken
        wait_until(lambda: self.broken > before, "the control loses its connection", patience)

    def run(self) -> None:
        while not self._stopping.is_set():
            with suppress(AMQPError, AMQPConnectorException, OSError):
                self._one_connection()
            self.broken += 1
            self._stopping.wait(0.05)

    def _one_connection(self) -> None:
        connection = pika.BlockingConnection(self._parameters)
        try:
            channel = connection.channel()
            self.connections += 1
            self._publish_over(channel)
        finally:
            with suppress(AMQPError, OSError):
                connection.close()
            connection._cleanup()  # close() of a connection that has ended raises and leaves its loop open

    def _publish_over(self, channel) -> None:
        if self._confirms:
            channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        while not self._stopping.is_set():
            self._flowing.wait()
            if self.poison is not None:
                channel.basic_publish(self._exchange, "k", b"-1 ", self.poison)
                self.poison = None
            row = self.ledger.taken_in
            channel.basic_publish(self._exchange, f"customer-{row}", body(row, self._size), properties)
            self.ledger.taken_in = row + 1  # no error, so a naive program believes that it was published

    def stop(self) -> None:
        self._stopping.set()
        self._flowing.set()

    def finish(
        self, url: str, queues, limit: float = 10.0, *, quiet: float = 0.0, enough: bool = False
    ) -> Ledger:
        """Stop, and empty the queues; with `enough`, end as soon as all messages have arrived."""
        self.stop()
        self.join(limit)  # pika's blocking connection hangs at times: what counts is what was sent by now
        sent = self.ledger.taken_in
        for rows in drain(url, queues, quiet=quiet, enough=enough and sent):
            self.ledger.received.update(rows)
        self.ledger.taken_in = sent
        return self.ledger
