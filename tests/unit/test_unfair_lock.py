"""The lock that workers of a group share."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter

import pytest

from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.consuming.member.key_lanes import KeyLane
from rabbit_chx.messages.message import Message
from rabbit_chx.working.messages import from_raw
from rabbit_chx.working.workers import UnfairLock, Workers
from tests.patience import PATIENCE

THREADS = 4
MESSAGES = 40_000
BATCH = 20


@pytest.fixture
def often_interrupted() -> Iterator[None]:
    """Python switches threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@pytest.mark.usefixtures("often_interrupted")
def test_one_thread_at_a_time_has_the_lock() -> None:
    lock, inside, most = UnfairLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(2_000):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    in_threads(work)
    assert (inside, most) == (0, 1)


def test_a_thread_waits_while_another_has_the_lock() -> None:
    lock, has_it = UnfairLock(), threading.Event()

    def work() -> None:
        with lock:
            has_it.set()

    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        assert not has_it.wait(0.1)
    assert has_it.wait(PATIENCE)
    thread.join()


def test_an_error_releases_the_lock() -> None:
    lock = UnfairLock()
    with pytest.raises(ValueError, match="within"), lock:
        raise ValueError("within")
    with lock:
        pass


class NoMember:
    """Hears about progress, and expects nothing else."""

    def on_progress(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise error

    def on_interruption(
        self, lane: object, channel: object, message: object, error: Exception | None
    ) -> None:
        raise AssertionError(error)


def test_a_waiting_thread_does_not_queue_up_for_the_lock() -> None:
    lock, tries = UnfairLock(), []
    acquire = lock._acquire

    def released_at_the_third_try(*blocking: bool) -> bool:
        assert blocking == (False,)
        tries.append(blocking)
        if len(tries) == 3:
            lock._release()
        return acquire(*blocking)

    with lock:
        lock._acquire = released_at_the_third_try  # type: ignore[method-assign]
        with lock:
            assert len(tries) == 3
        assert acquire(False)


def switches_of_busy_workers() -> int:
    """How often threads waited for each other, while workers handled messages."""
    handled: list[Message] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        handled.append(message)
        if len(handled) == MESSAGES:
            done.set()

    workers = Workers(handle, THREADS, 1_000)
    workers.heard = time.monotonic()
    lanes = [KeyLane(f"q{number}", attrgetter("routing_key"), THREADS, 1_000) for number in range(8)]
    for lane in lanes:
        lane.attach(object(), 1)
    batches = [
        (
            lane,
            [from_raw(lane.queue, RawDelivery(tag, False, "", f"key-{tag}", b"\0\0", b"")) for tag in tags],
        )
        for first in range(1, MESSAGES // len(lanes) + 1, BATCH)
        for tags in [range(first, first + BATCH)]
        for lane in lanes
    ]
    workers.start(NoMember())
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, time.monotonic()
    for lane, messages in batches:
        lane.read(messages)
        with workers.lock:
            more = lane.add(messages)
        for _ in range(more):
            workers.submit(lane)
    assert done.wait(PATIENCE)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    intervals = (time.monotonic() - began) / sys.getswitchinterval()
    workers.end()
    # Threads that wait for the interpreter wake up once in each interval: many times on a slow machine.
    return switches - round((THREADS + 1) * intervals)


def test_busy_workers_rarely_wait_for_each_other() -> None:
    # With threading.Lock, usually twice to nine times as many: busy threads pass it on at each message. Other
    # programs can make them wait as well, but not each time.
    assert any(switches_of_busy_workers() < MESSAGES / 40 for _ in range(3))
