"""What the caller sees when publishing ends badly: timeouts, failing hooks, and an outcome for every message."""

from __future__ import annotations

import pytest

from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.faults.ledger import body, drain
from tests.faults.load import PATIENCE, SLACK, wait_until, within

pytestmark = pytest.mark.broker

THOUSAND = [body(row) for row in range(1_000)]


def test_closing_with_a_timeout_while_the_broker_hangs(broker, topology):
    publisher = Publisher(broker.url, topology().exchange)
    publisher.open()
    broker.pause()
    try:
        bulk = publisher.bulk()
        bulk.add_many(THOUSAND, "k")
        within(1 + SLACK, lambda: publisher.close(timeout=1), "closing")
        with pytest.raises(PublishFailed, match="1000 of 1000 messages were not confirmed"):
            bulk.flush()
    finally:
        broker.unpause()
    totals = publisher.totals
    assert totals.pending == 0
    assert totals.unknown + totals.unsent == 1_000


def test_closing_with_nothing_pending_while_the_broker_hangs(broker, topology):
    publisher = Publisher(broker.url, topology().exchange)
    publisher.open()
    publisher.publish(b"0 ", "k")
    broker.pause()
    try:
        within(SLACK, publisher.close, "closing")
    finally:
        broker.unpause()


def test_the_callers_own_error_is_raised_and_accepted_messages_are_published(broker, topology):
    publisher = Publisher(broker.url, topology(queues=1).exchange)

    def work():
        with publisher, publisher.bulk() as bulk:
            bulk.add_many(THOUSAND, "k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within(PATIENCE, work, "leaving the block")
    assert publisher.totals.confirmed == 1_000


def test_a_message_that_the_broker_refuses_is_found_among_others(broker, topology):
    """The reply to a foreign user id does not name the message: those in flight are sent again, one by one."""
    used = topology(queues=1)
    with Publisher(broker.url, used.exchange) as publisher:
        bulk = publisher.bulk()
        for row in range(40):
            bulk.add(body(row), "k", user_id="somebody else" if row in {7, 30} else None)
        with pytest.raises(PublishFailed, match=r"2 of 40 .* row 7 rejected .* 406 PRECONDITION_FAILED"):
            bulk.flush(PATIENCE)
        assert [failure.row for failure in bulk.failures] == [7, 30]
        publisher.publish(b"40 ", "k", timeout=PATIENCE)
    (rows,) = drain(broker.url, used.queues)
    assert set(rows) == set(range(41)) - {7, 30}


def test_a_message_alone_that_is_refused_has_not_arrived(broker):
    with Publisher(broker.url) as publisher, pytest.raises(PublishFailed, match=r"rejected .* 404") as caught:
        publisher.publish(b"0 ", "k", exchange="missing", timeout=PATIENCE)
    assert not caught.value.may_have_arrived


def test_a_publisher_tries_again_after_it_has_given_up(broker, topology):
    used = topology(queues=1)
    publisher = Publisher(broker.url, used.exchange, timeouts=Timeouts(connect=2, reconnect=1))

    def work():
        with publisher:
            bulk = publisher.bulk()
            broker.kill()
            try:
                for _ in range(2):
                    with pytest.raises(PublishFailed, match="attempts"):
                        publisher.publish(b"-1 ", "k")
                    assert "attempts" in str(publisher.error)
            finally:
                broker.restart()
            publisher.publish(b"1 ", "k")
            assert publisher.error is None
            with pytest.raises(BrokerUnavailable, match="attempts"):  # its earlier rows may have failed
                bulk.add(b"2 ", "k")

    within(PATIENCE, work, "publishing")
    assert drain(broker.url, used.queues) == [[1]]


def test_a_hook_for_failures_that_fails_changes_nothing(broker, caplog):
    calls = []

    def on_failure(failure):
        calls.append(failure.row)
        raise ZeroDivisionError

    publisher = Publisher(broker.url, "amq.direct", timeouts=Timeouts(retry=0.2))

    def work():
        with publisher, publisher.bulk(on_failure=on_failure) as bulk:
            bulk.add_many(THOUSAND, "nowhere")

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
        it.load.inject(lambda bulk: bulk.add_many(THOUSAND[:100], "nowhere", exchange="amq.direct"))
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
