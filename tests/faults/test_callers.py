"""What the caller sees when publishing ends badly: timeouts, failing hooks, and an outcome for every message."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.faults.ledger import body
from tests.faults.load import PATIENCE, SLACK, wait_until, within

pytestmark = pytest.mark.broker

THOUSAND = [body(row) for row in range(1_000)]


def test_closing_with_a_timeout_while_the_broker_hangs(broker, topology):
    publisher = Publisher(broker.url, topology().exchange)
    publisher.open()
    broker.pause()
    try:
        publisher.publish_many(THOUSAND, "k")
        with pytest.raises(PublishFailed, match="1000 messages are unconfirmed after 1 seconds"):
            within(1 + SLACK, lambda: publisher.close(timeout=1), "closing")
    finally:
        broker.unpause()
    totals = publisher.totals
    assert totals.pending == 0
    assert totals.unknown + totals.unsent == 1_000


def test_closing_with_nothing_pending_while_the_broker_hangs(broker, topology):
    publisher = Publisher(broker.url, topology().exchange)
    publisher.open()
    publisher.publish(b"0 ", "k")
    publisher.flush()
    broker.pause()
    try:
        within(SLACK, publisher.close, "closing")
    finally:
        broker.unpause()


def test_the_callers_own_error_is_raised_and_accepted_messages_are_published(broker, topology):
    publisher = Publisher(broker.url, topology(queues=1).exchange)

    def work():
        with publisher:
            publisher.publish_many(THOUSAND, "k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within(PATIENCE, work, "leaving the block")
    assert publisher.totals.confirmed == 1_000


def test_after_a_fatal_error_every_call_raises_it(broker, topology):
    publisher, missing = Publisher(broker.url), f"{topology().exchange}.missing"

    def work():
        with publisher:
            publisher.publish(b"0 ", "k", exchange=missing)
            wait_until(lambda: publisher.totals.unknown == 1, "the channel is closed")
            for call in (lambda: publisher.publish(b"", "k"), lambda: publisher.publish_many([b""], "k")):
                with pytest.raises(BrokerUnavailable, match="404 NOT_FOUND - no exchange"):
                    call()

    with pytest.raises(
        PublishFailed, match=r"1 of 1 messages were not confirmed; the first: row 0 unknown .* 404"
    ):
        within(PATIENCE, work, "publishing")
    for call in (lambda: publisher.publish(b"", "k"), publisher.open):
        with pytest.raises(BrokerUnavailable, match="publisher is closed"):
            call()


@pytest.mark.parametrize("fails", ["enter", "exit", "both"])
def test_a_hook_around_batches_that_fails_changes_nothing(scene, caplog, fails):
    @contextmanager
    def hook(_count):
        if fails in {"enter", "both"}:
            raise ZeroDivisionError
        yield
        raise ZeroDivisionError

    what = f"hook that fails on {fails}"
    with scene(what, start=2_000, faults=0, control=None, quiet=0, around_batch=hook) as it:
        pass
    assert "the publisher's hook around_batch failed" in caplog.text
    assert it.load.ledger.duplicated == 0


def test_a_hook_for_failures_that_fails_changes_nothing(broker, caplog):
    calls = []

    def on_failure(failure):
        calls.append(failure.row)
        raise ZeroDivisionError

    publisher = Publisher(broker.url, "amq.direct", on_failure=on_failure, timeouts=Timeouts(retry=0.2))

    def work():
        with publisher:
            publisher.publish_many(THOUSAND, "nowhere")

    within(PATIENCE, work, "publishing")
    assert sorted(calls) == list(range(1_000))
    assert publisher.totals.returned == 1_000
    assert caplog.text.count("the publisher's hook on_failure failed") == 1_000


def test_a_negotiated_frame_size_that_is_small(broker, topology):
    """Headers that exceed the negotiated frame size are refused before they are sent."""
    broker.eval("application:set_env(rabbit, frame_max, 8192).")
    try:
        with Publisher(broker.url, topology(queues=1).exchange) as publisher:
            publisher.publish(b"0 " + b"x" * 100_000, "k", headers={"a": "x" * 8_000})
            with pytest.raises(ValueError, match="at most 8172 bytes"):
                publisher.publish(b"1 ", "k", headers={"a": "x" * 9_000})
        assert publisher.totals.confirmed == 1
    finally:
        broker.eval("application:set_env(rabbit, frame_max, 131072).")


@pytest.mark.long
def test_a_returned_message_that_is_given_up_is_reported_as_returned(broker, scene):
    what, harmless = "host down while messages come back", "see the control of kill -9"
    allowed = {"outcomes": {Outcome.RETURNED, Outcome.UNKNOWN}, "control": None, "harmless": harmless}
    with scene(what, timeouts=Timeouts(retry=60, connect=2, reconnect=2), **allowed) as it:
        it.load.inject(
            lambda publisher: publisher.publish_many(THOUSAND[:100], "nowhere", exchange="amq.direct")
        )
        it.load.more(200)
        # Then a message waits one or two seconds between attempts, so hardly any is in flight when the broker is killed.
        wait_until(lambda: it.totals.resent >= 700, "returned messages were sent again seven times")
        wait_until(lambda: it.totals.confirmed == 100, "the others are confirmed")
        broker.kill()
        try:
            it.load.finish(2 + SLACK)
        finally:
            broker.restart()
    assert set(it.load.ledger.outcomes) == set(range(100))
    assert it.load.ledger.rows(Outcome.RETURNED)
