"""The lock that workers of a group share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from rabbit_chx.working.workers import UnfairLock, Workers
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


def test_workers_share_one() -> None:
    """With threading.Lock, four busy threads wait for each other several times as often."""
    assert type(Workers(print, THREADS, 10).lock) is UnfairLock
