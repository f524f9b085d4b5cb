"""What the caller sees when publishing ends badly: timeouts, failing hooks, and an outcome for every message."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.faults.ledger import body, drain
from tests.faults.load import SLACK, killed, paused, within
from tests.patience import PATIENCE, wait_until
from tests.users import a_user

pytestmark = pytest.mark.broker

GIVEN_UP = r"\(\d+ attempts?\)"
"""A machine that halts for some seconds leaves time for one attempt."""
THOUSAND = [body(row) for row in range(1_000)]


def test_closing_with_a_timeout_while_the_broker_hangs(broker, topology):
    publisher = Publisher(broker.url, topology().exchange)
    publisher.open()
    with paused(broker):
        bulk = publisher.bulk()
        bulk.add_many(THOUSAND, "k")
        within(1 + SLACK, lambda: publisher.close(timeout=1), "closing")
        with pytest.raises(PublishFailed, match="1000 of 1000 messages were not confirmed"):
            bulk.flush()
    totals = publisher.totals
    assert totals.pending == 0
    assert totals.unknown + totals.unsent == 1_000


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


def test_a_refused_permission_and_a_refused_size_fail_the_messages_concerned_and_no_others(broker, topology):
    used = topology(queues=1)
    denied, large = {7, 30}, 20
    with (
        a_user(broker, "^$", used.exchange, "^$") as user,
        Publisher(user.url, used.exchange, max_message_bytes=32 << 20) as publisher,
    ):
        bulk = publisher.bulk()
        for row in range(40):
            text = body(row) + bytes(17 << 20 if row == large else 0)
            bulk.add(text, "k", exchange="amq.direct" if row in denied else None)
        with pytest.raises(PublishFailed, match=r"3 of 40 messages were not confirmed"):
            bulk.flush(PATIENCE)
    replies = {failure.row: failure.reply for failure in bulk.failures}
    assert replies.keys() == {*denied, large}
    assert all("no write permission on exchange 'amq.direct'" in replies[row] for row in denied)
    assert "is larger than configured max size" in replies[large]
    assert publisher.totals.connections == 1
    (rows,) = drain(broker.url, used.queues)
    assert set(rows) == set(range(40)) - {*denied, large}


def test_a_message_alone_that_is_refused_has_not_arrived(broker):
    with Publisher(broker.url) as publisher, pytest.raises(PublishFailed, match=r"rejected .* 404") as caught:
        publisher.publish(b"0 ", "k", exchange="missing", timeout=PATIENCE)
    assert not caught.value.may_have_arrived


@pytest.mark.long
def test_a_publisher_tries_again_after_it_has_given_up(broker, topology):
    used = topology(queues=1)
    publisher = Publisher(broker.url, used.exchange, timeouts=Timeouts(connect=2, reconnect=1))

    def work():
        with publisher:
            bulk = publisher.bulk()
            with killed(broker):
                for _ in range(2):
                    with pytest.raises(PublishFailed, match=GIVEN_UP):
                        publisher.publish(b"-1 ", "k")
                    assert re.search(GIVEN_UP, str(publisher.error))

            def published() -> bool:
                with suppress(PublishFailed):  # two seconds for the connection may be too short
                    publisher.publish(b"1 ", "k")
                    return True
                return False

            wait_until(published, "the broker is used again")
            assert publisher.error is None
            with pytest.raises(BrokerUnavailable, match=GIVEN_UP):  # its earlier rows may have failed
                bulk.add(b"2 ", "k")

    within(PATIENCE, work, "publishing")
    assert drain(broker.url, used.queues) == [[1]]


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
        sender = it.load.publisher._pipeline._sender
        wait_until(lambda: len(sender._retries) == 100, "no message is in flight")
        with killed(broker):
            it.load.finish(2 + SLACK)
    assert set(it.load.ledger.outcomes) == set(range(100))
    assert it.load.ledger.rows(Outcome.RETURNED)
