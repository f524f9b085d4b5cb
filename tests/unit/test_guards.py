"""The limits in time that clients share, and who may use an open client."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from rabbit_chx.broker.guards import Guard
from rabbit_chx.errors import InvalidValue


def outcome(call) -> str:
    try:
        call()
    except InvalidValue as error:
        return str(error)
    return "fine"


def in_another_thread(call) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(outcome, call).result()


def in_a_child(call) -> str:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(outcome(call)))
    child.start()
    child.join(60)
    return answers.get()


def opened(*, one_thread: bool) -> Guard:
    guard = Guard("Reader", one_thread=one_thread)
    guard.opened()
    return guard


def test_a_client_for_one_thread_is_refused_in_a_second_one():
    refused = (
        "invalid use of Reader: got 'a call in a second thread', expected calls in the thread that opened it"
    )
    guard = opened(one_thread=True)
    assert outcome(guard.check) == "fine"
    assert in_another_thread(guard.check) == f"{refused}. Open a Reader in each thread"
    assert in_another_thread(opened(one_thread=False).check) == "fine"


@pytest.mark.parametrize("one_thread", [True, False])
def test_a_forked_child_must_open_a_client_that_its_parent_has_opened(one_thread):
    guard = opened(one_thread=one_thread)

    def child() -> None:
        assert guard.inherited
        with pytest.raises(
            InvalidValue, match=r"got 'a call in a forked process', .* Call open\(\) after the fork"
        ):
            guard.check()
        guard.opened()
        assert not guard.inherited
        guard.check()

    assert in_a_child(child) == "fine"
    assert not guard.inherited


def test_a_client_that_is_not_open_can_be_opened_by_any_process():
    guard = Guard("Reader", one_thread=True)
    assert not guard.inherited
    assert in_a_child(guard.check) == in_another_thread(guard.check) == "fine"
