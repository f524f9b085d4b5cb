"""What each call of a publisher is told about its own messages, whatever other threads publish."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pika import frame, spec

from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.amqp_server import AmqpServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from concurrent.futures import Future

TIMEOUTS = Timeouts(connect=5, reconnect=5, retry=0.2, confirm=20)
PATIENCE = 20


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
        elif body.startswith(b"no"):
            client.sendall(method(spec.Basic.Nack(number, requeue=False), 1))
        else:
            client.sendall(method(spec.Basic.Ack(number), 1))

    def send(self, content: object, channel: int = 0) -> None:
        assert self._ready.wait(PATIENCE)
        assert self._client
        self._client.sendall(method(content, channel))


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
            script.send(spec.Basic.Ack(0, multiple=True), 1)


def until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_each_thread_learns_the_outcome_of_its_own_messages() -> None:
    def work(number: int) -> list[str]:
        told = []
        for row in range(20):
            bad = (row + number) % 5 == 0
            try:
                publisher.publish(b"no" if bad else b"yes", timeout=PATIENCE)
                told.append("ok" if not bad else "wrong")
            except PublishFailed as failed:
                rejected = failed.failure.outcome is Outcome.REJECTED
                told.append("failed" if bad and rejected else "wrong")
        return told

    with scene() as (publisher, _), ThreadPoolExecutor(8) as threads:
        for told in threads.map(work, range(8)):
            assert "wrong" not in told
            assert told.count("failed") == 4
    assert publisher.totals.rejected == 8 * 4


def test_a_message_that_is_not_confirmed_delays_no_other() -> None:
    with scene() as (publisher, script):
        late = publisher.submit(b"late")
        bulk = publisher.bulk()
        bulk.add(b"late")
        assert script.late.wait(PATIENCE)
        publisher.publish(b"yes", timeout=PATIENCE)
        assert publisher.publish_many([b"yes"] * 3, timeout=PATIENCE).confirmed == 3
        assert not late.done()
        assert bulk.totals.pending == 1


def test_flush_waits_only_for_what_was_added_before() -> None:
    with scene() as (publisher, script):
        bulk = publisher.bulk()
        bulk.add(b"late one")
        assert script.late.wait(PATIENCE)
        with ThreadPoolExecutor(1) as threads:
            flushing = threads.submit(bulk.flush, PATIENCE)
            row = bulk.add(b"late two")
            until(lambda: b"late two" in script.bodies or flushing.done())
            script.send(spec.Basic.Ack(2), 1)
            assert flushing.result(PATIENCE).confirmed == 1
        assert row == 1
        assert bulk.totals.pending == 1


def test_a_message_that_was_written_may_have_arrived_when_its_time_is_over() -> None:
    with scene() as (publisher, _):
        with pytest.raises(PublishFailed, match=r"unknown .*: unconfirmed after 0.2 seconds") as caught:
            publisher.publish(b"late", timeout=0.2)
        assert caught.value.may_have_arrived
        assert caught.value.failure.outcome is Outcome.UNKNOWN


def test_a_message_that_was_not_written_is_withdrawn_when_its_time_is_over() -> None:
    with scene() as (publisher, script):
        script.send(spec.Connection.Blocked("an alarm"))
        until(lambda: publisher.totals.blocked_seconds)
        for call in (
            lambda: publisher.publish(b"one", timeout=0.05),
            lambda: publisher.publish_many([b"two", b"three"], timeout=0.05),
        ):
            with pytest.raises(PublishFailed, match="withdrawn after") as caught:
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


def test_a_call_that_waits_for_room_ends_in_time() -> None:
    with scene(max_in_flight=1) as (publisher, script):
        publisher.submit(b"late")
        assert script.late.wait(PATIENCE)
        text = "too many messages were in flight for 0.05 seconds"
        for call in (
            lambda: publisher.publish(b"one", timeout=0.05),
            lambda: publisher.publish_many([b"one", b"two"], timeout=0.05),
        ):
            with pytest.raises(PublishFailed, match=text) as caught:
                call()
            assert not caught.value.may_have_arrived
        assert [failure.row for failure in caught.value.failures] == [0, 1]


def test_a_callback_may_publish() -> None:
    done: list[object] = []

    def publish_more(_: Future[None]) -> None:
        publisher.submit(b"two").result(PATIENCE)
        publisher.publish(b"three", timeout=PATIENCE)
        done.append(None)

    with scene(max_in_flight=1) as (publisher, script):
        publisher.submit(b"one").add_done_callback(publish_more)
        until(lambda: done)
        assert script.bodies == [b"one", b"two", b"three"]


def test_the_failure_of_a_future_that_is_never_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with scene() as (publisher, _):
        for read in (True, False):
            future = publisher.submit(b"no")
            until(future.done)
            if read:
                assert isinstance(future.exception(), PublishFailed)
            del future
            gc.collect()
            assert caplog.text.count("its future was never read") == (not read)
