"""Ctrl-C and SIGTERM take effect between two commands and not amid one."""

from __future__ import annotations

import signal
import socket
import threading
from types import SimpleNamespace

import pytest
from pika import frame, spec
from pika.exceptions import ChannelClosedByBroker, NackError, StreamLostError

from rabbit_chx.base.interruption import Terminated, terminated_as_interrupted, uninterrupted
from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.commands import Driver, Lost, exists
from rabbit_chx.broker.driver import PikaDriver
from tests.amqp_server import AmqpServer, received
from tests.unit.conftest import USUAL

pytestmark = pytest.mark.usefixtures("usual_handlers")


def interrupted(done: list[str], *signals: signal.Signals, error: type[Exception] | None = None) -> None:
    """Get these signals before it is done; it may fail then."""
    with terminated_as_interrupted(), uninterrupted():
        for each in signals:
            signal.raise_signal(each)
        done.append("it")
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("signals", "done", "error"),
    [
        ([signal.SIGINT], ["it"], KeyboardInterrupt),
        ([signal.SIGTERM], ["it"], Terminated),
        ([signal.SIGINT, signal.SIGINT], [], KeyboardInterrupt),
        ([signal.SIGINT, signal.SIGTERM], [], Terminated),
    ],
    ids=["Ctrl-C", "SIGTERM", "Ctrl-C twice", "Ctrl-C and SIGTERM"],
)
def test_what_has_begun_is_ended_before_one_signal_but_not_before_a_second_one(signals, done, error) -> None:
    found: list[str] = []
    with pytest.raises(error):
        interrupted(found, *signals)
    assert found == done
    assert {each: signal.getsignal(each) for each in USUAL} == USUAL


def test_an_error_comes_before_the_interrupt() -> None:
    with pytest.raises(LookupError):
        interrupted([], signal.SIGINT, error=LookupError)


class InterruptedDriver(PikaDriver):
    """Ctrl-C comes while the broker's answer is read, which is an error."""

    def __init__(self, answer: Exception) -> None:
        Driver.__init__(self, None, 1.0, "/", "host")
        self._error, self._torn = answer, False
        self._connection, self._channel = SimpleNamespace(), None

    def _send_in_time(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        signal.raise_signal(signal.SIGINT)
        raise self._error


@pytest.mark.parametrize(
    "answer",
    [
        ChannelClosedByBroker(404, "NOT_FOUND - no queue 'q' in vhost '/'"),
        NackError([]),
        ValueError("pika cannot send it"),
    ],
)
def test_an_interrupt_comes_before_a_refusal_which_may_be_an_ordinary_answer(answer: Exception) -> None:
    with pytest.raises(KeyboardInterrupt):
        InterruptedDriver(answer).run(exists("q"))


def test_the_reason_for_a_lost_connection_comes_before_an_interrupt() -> None:
    with pytest.raises(Lost):
        InterruptedDriver(StreamLostError("end of file")).run(exists("q"))


def test_an_interrupt_while_a_channel_is_closed_counts_though_its_connection_is_lost() -> None:
    driver = InterruptedDriver(StreamLostError("end of file"))
    driver._channel = SimpleNamespace(is_open=True, close=driver.close)
    driver._connection = SimpleNamespace(
        _impl=SimpleNamespace(_adapter_call_later=lambda *_: None, _adapter_remove_timeout=lambda _: None)
    )
    with pytest.raises(KeyboardInterrupt):
        driver.run(nothing for nothing in ())


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


def test_a_program_that_ignores_sigterm_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt(client: socket.socket) -> None:
    """Press Ctrl-C when the client begins to consume, then answer as a broker does."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    client.sendall(frame.Method(1, spec.Basic.ConsumeOk("c")).marshal())
    for _ in received(client):
        pass
    client.sendall(frame.Method(1, spec.Channel.CloseOk()).marshal())
    client.recv(1 << 16)
    client.sendall(frame.Method(0, spec.Connection.CloseOk()).marshal())


def test_an_interrupted_consumer_closes_its_connection() -> None:
    with AmqpServer(interrupt) as server:
        with pytest.raises(KeyboardInterrupt), connect(server.url) as connection:
            connection.channel().basic_consume("q", print, consumer_tag="c")
        assert connection.is_closed
