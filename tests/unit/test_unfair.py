"""The lock that many threads take again and again: the workers of a group, and the callers of a publisher."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from rabbit_chx.base.unfair import UnfairCondition
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import StreamPublisher
from rabbit_chx.working.workers import Workers
from tests.patience import PATIENCE

THREADS = 4


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
    lock, inside, most = UnfairCondition(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(2_000):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    in_threads(work)
    assert (inside, most) == (0, 1)


def test_an_error_releases_the_lock() -> None:
    lock = UnfairCondition()
    with pytest.raises(ValueError, match="within"), lock:
        raise ValueError("within")
    with lock:
        pass


def test_a_thread_that_has_the_lock_may_take_it_again() -> None:
    """A signal handler runs in such a thread, and may stop the publisher."""
    lock, has_it = UnfairCondition(), threading.Event()

    def work() -> None:
        with lock, lock:
            has_it.set()

    threading.Thread(target=work, daemon=True).start()
    assert has_it.wait(PATIENCE)


def test_a_waiting_thread_does_not_queue_up_for_the_lock() -> None:
    lock, tries = UnfairCondition(), []

    def taken_at_the_third_try(*blocking: bool) -> bool:
        tries.append(blocking)
        return len(tries) == 3

    lock.acquire = taken_at_the_third_try  # type: ignore[assignment]
    lock.release = lambda: None  # type: ignore[method-assign]
    with lock:
        assert tries == [(False,)] * 3


def test_workers_and_callers_share_such_locks() -> None:
    """With those of `threading`, busy threads wait for each other several times as often."""
    bulk = Publisher("amqp://localhost").bulk()
    to_streams = StreamPublisher("rabbitmq-stream://localhost", "events")._pipeline
    of_callers = bulk._adding, bulk._pipeline.outbox._changed, to_streams._numbers
    locks = Workers(print, THREADS, 10).lock, *of_callers
    assert {type(each) for each in locks} == {UnfairCondition}
