"""What each call of a publisher is told about its own messages, whatever other threads publish."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pika import frame, spec

from rabbit_chx.broker.guards import Guard
from rabbit_chx.errors import InvalidValue, PublishFailed
from rabbit_chx.publishing import Failure, Outcome, Publisher, Timeouts
from rabbit_chx.publishing.bulk import Bulk
from rabbit_chx.publishing.encoder import Encoder
from rabbit_chx.publishing.outbox import Outbox
from rabbit_chx.publishing.pipeline import AmqpPipeline
from tests.amqp_server import AmqpServer, confirm
from tests.patience import wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from concurrent.futures import Future

    from rabbit_chx.publishing import AsyncPublisher

TIMEOUTS = Timeouts(connect=60, reconnect=60, retry=0.2, confirm=60)
PATIENCE = 60
NEVER_READ = "its future was never read"


def method(content: object, channel: int = 0) -> bytes:
    return frame.Method(channel, content).marshal()


class Script:
    """Answers messages by their bodies: b"no..." is rejected, b"late..." never answered, all others are confirmed."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.late = threading.Event()
        self._client: socket.socket | None = None
        self._ready = threading.Event()

    def __call__(self, client: socket.socket) -> None:
        self._client = client
        self._ready.set()
        buffer, number = b"", 1  # the opening message has been read, and is the first
        while data := client.recv(1 << 16):
            buffer += data
            while (decoded := frame.decode_frame(buffer))[1] is not None:
                size, content = decoded
                buffer = buffer[size:]
                if isinstance(content, frame.Body):
                    number += 1
                    self.bodies.append(content.fragment)
                    self._answer(client, number, content.fragment)
                elif isinstance(getattr(content, "method", None), spec.Channel.Close):
                    return

    def _answer(self, client: socket.socket, number: int, body: bytes) -> None:
        if body.startswith(b"late"):
            self.late.set()
        else:
            client.sendall(confirm(number, ack=not body.startswith(b"no")))

    def send(self, content: object, channel: int = 0) -> None:
        assert self._ready.wait(PATIENCE)
        assert self._client
        self._client.sendall(method(content, channel))

    def confirm_late(self) -> None:
        """Confirm all messages, unless the publisher has ended its connection."""
        with suppress(OSError):
            self.send(spec.Basic.Ack(0, multiple=True), 1)


@contextmanager
def scene(**options: object) -> Iterator[tuple[Publisher, Script]]:
    script = Script()
    with (
        AmqpServer(script) as server,
        Publisher(server.url, "x", timeouts=TIMEOUTS, **options) as publisher,  # type: ignore[arg-type]
    ):
        opening = publisher.submit(b"opening")
        script.send(spec.Basic.Ack(1), 1)
        opening.result(PATIENCE)
        yield publisher, script
        if script.late.is_set():
            script.confirm_late()


def let_arrive(publisher: Publisher | AsyncPublisher, script: Script) -> None:
    """From now on, a message that is accepted arrives before the call goes on, so that it cannot be withdrawn."""
    accept = publisher._pipeline.accept

    def accept_and_arrive(*arguments: Any, **more: Any) -> int:
        accepted = accept(*arguments, **more)
        # Without the opening message.
        wait_until(lambda: len(script.bodies) == publisher.totals.published - 1, "the message arrives")
        return accepted

    publisher._pipeline.accept = accept_and_arrive  # type: ignore[method-assign]


def test_threads_that_open_a_publisher_at_the_same_time_share_a_connection() -> None:
    interval = sys.getswitchinterval()
    with AmqpServer(lambda _: None) as server, ThreadPoolExecutor(4) as threads:
        publisher = Publisher(server.url, "x", timeouts=TIMEOUTS)
        together = threading.Barrier(4)
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(10):
                list(threads.map(lambda _: together.wait() + (publisher.open() or 0), range(4)))
                publisher.close()
        finally:
            sys.setswitchinterval(interval)
    assert server.connections == 10


def test_a_publisher_that_was_closed_has_no_error() -> None:
    with scene() as (publisher, _):
        with pytest.raises(InvalidValue, match="invalid timeout"):
            publisher.close(math.nan)
        publisher.publish(b"still open", timeout=1e100)
        publisher.close(1e100)
    assert repr(publisher).endswith(": closed>")
    assert publisher.error is None


def test_a_timeout_may_be_longer_than_python_waits() -> None:
    longest = dict.fromkeys(("connect", "reconnect", "retry", "confirm", "blocked", "close"), 1e100)
    with (
        AmqpServer(lambda _: None) as server,
        Publisher(server.url, "x", timeouts=Timeouts(**longest)) as publisher,
    ):
        assert publisher.totals.connections == 1


def test_flush_waits_only_for_what_was_added_before() -> None:
    with scene() as (publisher, script):
        bulk = publisher.bulk()
        bulk.add(b"late one")
        assert script.late.wait(PATIENCE)
        with ThreadPoolExecutor(1) as threads:
            flushing = threads.submit(bulk.flush, PATIENCE)
            wait_until(lambda: len(bulk._rows._parts) == 2, "flush begins")
            row = bulk.add(b"late two")
            wait_until(lambda: b"late two" in script.bodies or flushing.done(), "the second message arrives")
            script.send(spec.Basic.Ack(2), 1)
            assert flushing.result(PATIENCE).confirmed == 1
        assert row == 1
        assert bulk.totals.pending == 1


class FakePipeline(AmqpPipeline):
    """A pipeline with room for one message, or more, which sends none."""

    def __init__(self, room: int = 1) -> None:
        self.encoder = Encoder("x", None, None)
        self.outbox = Outbox(max_messages=room, max_bytes=1 << 20)
        self.outboxes = [self.outbox]
        self._guard = Guard("Publisher")
        self.meanwhile = lambda: None

    def check(self) -> None: ...

    def accept(self, messages, deadline, since):  # type: ignore[no-untyped-def]
        self.meanwhile()
        return self.outbox.add(messages, lambda: None, deadline, since)

    def confirm(self) -> None:
        self.outbox.settle(self.outbox.take(10, 1 << 20), Outcome.CONFIRMED)


def test_a_flush_waits_for_a_row_that_found_room_after_the_flush_of_another_thread() -> None:
    """The other flush, and the confirms that it waits for, come while the row waits for room."""

    def meanwhile() -> None:
        with ThreadPoolExecutor(1) as threads:
            flushing = threads.submit(bulk.flush, PATIENCE)
            wait_until(lambda: len(bulk._rows._parts) == 2, "flush begins")
            pipeline.confirm()
            assert flushing.result(PATIENCE).confirmed == 1

    pipeline = FakePipeline()
    bulk = Bulk(pipeline, on_failure=None)
    bulk.add(b"one")
    pipeline.meanwhile = meanwhile  # type: ignore[method-assign]
    bulk.add(b"two")
    assert pipeline.outbox.take(10, 1 << 20)
    with pytest.raises(PublishFailed, match=r"unconfirmed after 0\.01 seconds: 1 message"):
        bulk.flush(0.01)
    assert bulk.confirmed_before <= 1


def test_a_flush_without_a_timeout_reports_no_row_that_found_room_while_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows belong to the same call of `add_many` in another thread: some are confirmed before the next ones find room."""
    pipeline = FakePipeline()
    bulk = Bulk(pipeline, on_failure=None)
    columns = pipeline.encoder.many([b"one", b"two"], "", None, None, {})
    rows = pipeline.some(columns, 0, 0, bulk._rows.part())
    pipeline.accept(rows[:1], None, None)
    wait_for = bulk._rows.wait_for

    def wait_and_accept_the_next(*given: Any) -> bool:
        pipeline.confirm()
        done = wait_for(*given)
        pipeline.accept(rows[1:], None, None)
        return done

    monkeypatch.setattr(bulk._rows, "wait_for", wait_and_accept_the_next)
    totals = bulk.flush()
    assert (totals.confirmed, totals.pending) == (1, 1)


def test_confirmed_before_is_a_row_before_which_all_are_confirmed() -> None:
    pipeline = FakePipeline(room=2_000)
    bulk = Bulk(pipeline, on_failure=print)
    assert bulk.add_many([b""] * 1_200, "k") == range(1_200)
    taken = pipeline.outbox.take(1_200, 1 << 20)
    assert bulk.confirmed_before == 0
    for settled in (taken[:600], taken[601:]):
        pipeline.outbox.settle(settled, Outcome.CONFIRMED)
        assert 600 - pipeline.step <= bulk.confirmed_before <= 600
    pipeline.outbox.settle(taken[600:601], Outcome.CONFIRMED)
    assert bulk.confirmed_before == 1_200
    bulk.add_many([b""] * 3, "k")
    first, second, third = pipeline.outbox.take(3, 1 << 20)
    pipeline.outbox.settle([second], Outcome.RETURNED)
    pipeline.outbox.settle([first, third], Outcome.CONFIRMED)
    assert bulk.confirmed_before == 1_201


def test_a_caller_that_goes_on_publishing_does_not_hide_that_nothing_is_confirmed() -> None:
    with scene() as (publisher, script):
        # Not before the opening message is confirmed, which may take longer.
        publisher._pipeline._sender._timeouts = replace(TIMEOUTS, confirm=0.5)
        first = publisher.submit(b"late")
        assert script.late.wait(PATIENCE)
        wait_until(
            lambda: first.done() or not publisher.submit(b"late"), "the first message fails", pause=0.05
        )
        with pytest.raises(PublishFailed, match=r"has confirmed nothing for"):
            first.result(PATIENCE)
        script.late.clear()


def test_a_message_that_was_written_may_have_arrived_when_its_time_is_over() -> None:
    with scene() as (publisher, script):
        let_arrive(publisher, script)
        with pytest.raises(PublishFailed, match=r"unknown .*: unconfirmed after 0.2 seconds") as caught:
            publisher.publish(b"late", timeout=0.2)
        assert caught.value.may_have_arrived
        assert caught.value.failure.outcome is Outcome.UNKNOWN


def test_a_message_that_was_not_written_is_withdrawn_when_its_time_is_over() -> None:
    with scene() as (publisher, script):
        script.send(spec.Connection.Blocked("an alarm"))
        wait_until(lambda: publisher.totals.blocked_seconds, "publishing is blocked")
        for call in (
            lambda: publisher.publish(b"one", timeout=0.05),
            lambda: publisher.publish_many([b"two", b"three"], timeout=0.05),
        ):
            text = r"withdrawn after 0\.05 seconds while the broker blocks publishing: an alarm"
            with pytest.raises(PublishFailed, match=text) as caught:
                call()
            assert not caught.value.may_have_arrived
        bulk = publisher.bulk()
        bulk.add(b"four")
        with pytest.raises(PublishFailed, match="withdrawn after"):
            bulk.flush(0.05)
        cancelled, kept = publisher.submit(b"five"), publisher.submit(b"six")
        assert cancelled.cancel()
        assert wait([cancelled], PATIENCE).done
        script.send(spec.Connection.Unblocked())
        kept.result(PATIENCE)
        assert script.bodies == [b"six"]
        assert publisher.totals.unsent == 5
        assert publisher.totals.pending == 0


def test_a_written_message_cannot_be_cancelled() -> None:
    with scene() as (publisher, script):
        future = publisher.submit(b"late")
        assert script.late.wait(PATIENCE)
        assert not future.cancel()
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        future.result(PATIENCE)


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_call_is_accepted_only_if_there_is_room_in_time(seconds: float) -> None:
    """Once, with a full window, a `submit` blocked for 12 seconds."""
    with scene(max_in_flight=1) as (publisher, script):
        bulk = publisher.bulk()
        publisher.submit(b"yes", timeout=0).result(PATIENCE)
        bulk.add(b"yes", timeout=0)
        bulk.flush(PATIENCE)
        publisher.submit(b"late")
        assert script.late.wait(PATIENCE)
        future = publisher.submit(b"one", timeout=seconds)
        assert future.done()
        bulk.add(b"two", timeout=seconds)
        assert bulk.totals.unsent == 1
        text = f"too many messages were in flight for {seconds} seconds"
        for call in (
            lambda: publisher.publish(b"one", timeout=seconds),
            lambda: future.result(0),
            lambda: bulk.flush(0),
        ):
            with pytest.raises(PublishFailed, match=text) as caught:
                call()
            assert not caught.value.may_have_arrived
        assert b"one" not in script.bodies


def test_messages_of_a_bulk_that_find_no_room_in_time_fail_unsent() -> None:
    told: list[tuple[int, str]] = []

    def fail(failure: Failure) -> None:
        told.append((failure.row, failure.reply))
        if failure.row == 0:
            assert bulk.add(b"instead", timeout=0.01) == 1

    with scene(max_in_flight=1) as (publisher, script):
        publisher.submit(b"late")
        assert script.late.wait(PATIENCE)
        bulk = publisher.bulk(on_failure=fail)
        assert bulk.add(b"one", timeout=0.05) == 0
        assert bulk.add_many([b"two", b"three"], timeout=0.05) == range(2, 4)
        totals = bulk.flush(PATIENCE)
        assert (totals.published, totals.unsent, totals.pending) == (4, 4, 0)
        reply = "too many messages were in flight for {} seconds"
        assert told == [(row, reply.format(0.01 if row == 1 else 0.05)) for row in range(4)]
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        assert bulk.add(b"yes", timeout=PATIENCE) == 4
        assert bulk.flush(PATIENCE).confirmed == 1


def test_each_message_of_a_batch_has_an_outcome_while_the_hook_for_failures_adds_others() -> None:
    """A row that the hook added took the place of one of the batch, which had no outcome."""
    told: list[str] = []

    def fail(failure: Failure) -> None:
        told.append(failure.routing_key)
        if failure.routing_key == "1":
            bulk.add(b"", "instead", timeout=0)

    bulk = Bulk(FakePipeline(), on_failure=fail)
    keys = list(map(str, range(1_000)))
    bulk.add_many([b""] * len(keys), keys, timeout=0)
    assert sorted(told) == sorted([*keys[1:], "instead"])
    assert (bulk.totals.published, bulk.totals.pending, bulk.totals.unsent) == (1_001, 1, 1_000)


def test_a_callback_may_publish() -> None:
    done: list[object] = []

    def publish_more(_: Future[None]) -> None:
        publisher.submit(b"two").result(PATIENCE)
        publisher.publish(b"three", timeout=PATIENCE)
        done.append(None)

    with scene(max_in_flight=1) as (publisher, script):
        publisher.submit(b"one").add_done_callback(publish_more)
        wait_until(lambda: done, "the callback ends")
        assert script.bodies == [b"one", b"two", b"three"]


def test_the_end_of_the_block_waits_for_callbacks_and_for_what_they_publish() -> None:
    def publish_more(_: Future[None]) -> None:
        time.sleep(0.02)
        publisher.submit(b"two").add_done_callback(lambda _: publisher.submit(b"three"))

    for _ in range(5):
        with scene() as (publisher, script):
            publisher.submit(b"one").add_done_callback(publish_more)
        assert script.bodies == [b"one", b"two", b"three"]
        assert publisher.totals.confirmed == 4


def test_a_callback_that_closes_does_not_wait_for_itself() -> None:
    closed = threading.Event()
    with scene() as (publisher, _):
        publisher.submit(b"one").add_done_callback(lambda _: (publisher.close(PATIENCE), closed.set()))
        assert closed.wait(PATIENCE / 2)


def test_a_slow_callback_delays_close_no_longer_than_its_timeout() -> None:
    go, waits = threading.Event(), threading.Event()
    with scene() as (publisher, script):
        # Confirmed only when it has its callback, which would otherwise run in this thread.
        publisher.submit(b"late").add_done_callback(lambda _: (waits.set(), go.wait(PATIENCE)))
        assert script.late.wait(PATIENCE)
        script.confirm_late()
        assert waits.wait(PATIENCE)
        began = time.monotonic()
        publisher.close(0.1)
        assert 0.1 <= time.monotonic() - began < PATIENCE / 2
    go.set()


def test_the_failure_of_a_future_that_is_never_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # futures that other tests have left
    caplog.clear()
    with scene() as (publisher, _):
        for read in (True, False):
            future = publisher.submit(b"no")
            wait_until(future.done, "the message is rejected")
            if read:
                assert isinstance(future.exception(), PublishFailed)
            del future
            # The publisher's thread may have it a little longer.
            wait_until(
                lambda n=int(not read): gc.collect() >= 0 and caplog.text.count(NEVER_READ) == n, NEVER_READ
            )
