"""Ctrl-C and SIGTERM take effect between two commands and not amid one."""

from __future__ import annotations

import signal
import threading

import pytest

from rabbit_chx.base.interruption import Terminated, terminated_as_interrupted, uninterrupted

pytestmark = pytest.mark.usefixtures("usual_handlers")


def work(done: list[str], interrupts: int, error: type[Exception] | None = None) -> None:
    """Be interrupted so many times before it is done; it may fail then."""
    with uninterrupted():
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        done.append("it")
        if error is not None:
            raise error


def test_what_has_begun_is_ended_first() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(done, 1)
    assert done == ["it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(done, 2)
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_comes_before_the_interrupt() -> None:
    with pytest.raises(LookupError):
        work([], 1, LookupError)


def test_a_program_keeps_its_own_handler() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("mine"))
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        assert seen == ["mine"]


def test_another_thread_changes_nothing() -> None:
    seen = []

    def look() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def be_signalled(done: list[str], *signals: signal.Signals) -> None:
    """Get these signals before it is done."""
    with terminated_as_interrupted(), uninterrupted():
        for each in signals:
            signal.raise_signal(each)
        done.append("it")


def test_sigterm_is_an_interrupt_that_waits_for_the_end_of_a_command() -> None:
    done: list[str] = []
    with pytest.raises(Terminated):
        be_signalled(done, signal.SIGTERM)
    assert done == ["it"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_signal_of_the_other_kind_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(Terminated):
        be_signalled(done, signal.SIGINT, signal.SIGTERM)
    assert not done


def test_a_program_that_ignores_sigterm_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
