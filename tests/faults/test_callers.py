"""What the caller sees when publishing ends badly: timeouts, failing hooks, and an outcome for every message."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.faults.ledger import Ledger, body
from tests.faults.load import Load, wait_until, within

pytestmark = pytest.mark.broker


def test_closing_with_a_timeout_while_the_broker_hangs(broker, topology):
    used = topology()
    publisher = Publisher(broker.url, used.exchange)
    publisher.open()
    broker.pause()
    try:
        publisher.publish_many([body(row) for row in range(1_000)], "k")
        started = time.monotonic()
        with pytest.raises(PublishFailed, match="1000 messages are unconfirmed after 1 seconds"):
            within(30, lambda: publisher.close(timeout=1), "closing")
        assert time.monotonic() - started < 1 + 5
    finally:
        broker.unpause()
    totals = publisher.totals
    assert totals.pending == 0
    assert totals.unknown + totals.unsent == 1_000


def test_closing_with_nothing_pending_while_the_broker_hangs(broker, topology):
    used = topology()
    publisher = Publisher(broker.url, used.exchange)
    publisher.open()
    publisher.publish(b"0 ", "k")
    publisher.flush()
    broker.pause()
    try:
        started = time.monotonic()
        within(30, publisher.close, "closing")
        assert time.monotonic() - started < 5
    finally:
        broker.unpause()


def test_the_callers_own_error_is_raised_and_accepted_messages_are_published(broker, topology):
    used = topology(queues=1)
    publisher = Publisher(broker.url, used.exchange)

    def work():
        with publisher:
            publisher.publish_many([body(row) for row in range(1_000)], "k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within(30, work, "leaving the block")
    assert publisher.totals.confirmed == 1_000


def test_after_a_fatal_error_every_call_raises_it(broker, topology):
    used = topology()
    publisher = Publisher(broker.url)

    def work():
        with publisher:
            publisher.publish(b"0 ", "k", exchange=f"{used.exchange}.missing")
            wait_until(lambda: publisher.totals.unknown == 1, "the channel is closed")
            for call in (lambda: publisher.publish(b"", "k"), lambda: publisher.publish_many([b""], "k")):
                with pytest.raises(BrokerUnavailable, match="404 NOT_FOUND - no exchange"):
                    call()

    with pytest.raises(
        PublishFailed, match=r"1 of 1 messages were not confirmed; the first: row 0 unknown .* 404"
    ):
        within(30, work, "publishing")
    with pytest.raises(BrokerUnavailable, match="publisher is closed"):
        publisher.publish(b"", "k")
    with pytest.raises(BrokerUnavailable, match="publisher is closed"):
        publisher.open()


@pytest.mark.parametrize("fails", ["enter", "exit", "both"])
def test_a_hook_around_batches_that_fails_changes_nothing(broker, topology, judge, caplog, fails):
    used = topology()

    @contextmanager
    def hook(_count):
        if fails in {"enter", "both"}:
            raise ZeroDivisionError
        yield
        raise ZeroDivisionError

    load = Load(broker.url, used.exchange, around_batch=hook).start(2_000)
    load.finish(30)
    load.drain(broker.url, used.queues)
    assert load.error is None
    assert load.ledger.outcomes == {}
    assert "the publisher's hook around_batch failed" in caplog.text
    assert judge(f"hook that fails on {fails}", load, faults=0).duplicated == 0


def test_a_hook_for_failures_that_fails_changes_nothing(broker):
    calls = []

    def on_failure(failure):
        calls.append(failure.row)
        raise ZeroDivisionError

    publisher = Publisher(broker.url, "amq.direct", on_failure=on_failure, timeouts=Timeouts(retry=0.2))

    def work():
        with publisher:
            publisher.publish_many([body(row) for row in range(300)], "nowhere")

    within(30, work, "publishing")
    assert sorted(calls) == list(range(300))
    assert publisher.totals.returned == 300


def test_a_negotiated_frame_size_that_is_small(broker, topology):
    """Headers that exceed the negotiated frame size are refused before they are sent."""
    used = topology(queues=1)
    broker.eval("application:set_env(rabbit, frame_max, 8192).")
    try:
        ledger = Ledger()
        with Publisher(broker.url, used.exchange, on_failure=ledger.note) as publisher:
            publisher.publish(b"0 " + b"x" * 100_000, "k", headers={"a": "x" * 8_000})
            with pytest.raises(ValueError, match="at most 8172 bytes"):
                publisher.publish(b"1 ", "k", headers={"a": "x" * 9_000})
        assert publisher.totals.confirmed == 1
    finally:
        broker.eval("application:set_env(rabbit, frame_max, 131072).")


def test_a_returned_message_that_is_given_up_is_reported_as_returned(broker, topology, judge):
    used = topology()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=60, connect=2, reconnect=2)).start()
    load.inject(
        lambda publisher: [
            publisher.publish(body(row), "nowhere", exchange="amq.direct") for row in range(100)
        ]
    )
    load.more(200)
    wait_until(lambda: load.publisher.totals.resent >= 300, "returned messages were sent three times")
    wait_until(lambda: load.publisher.totals.confirmed == 100, "the others are confirmed")
    broker.kill()
    try:
        load.finish(2 + 5)
    finally:
        broker.restart()
    load.drain(broker.url, used.queues)
    outcomes = set(load.ledger.outcomes.values())
    assert set(load.ledger.outcomes) == set(range(100))
    assert outcomes <= {Outcome.RETURNED, Outcome.UNKNOWN}
    assert Outcome.RETURNED in outcomes
    judge("host down while messages come back", load, harmless="its control is that of kill -9")
