"""The topology changes under a publisher: queues that are full or gone, exchanges that are deleted."""

from __future__ import annotations

import pika
import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import SLACK, paused
from tests.patience import PATIENCE, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

SMOKE = {
    "test_a_full_queue_rejects_and_then_has_room_again",
    "test_the_last_queue_is_unbound_for_a_moment",
    "test_the_last_queue_is_unbound_for_good",
}
REFUSED = {Outcome.UNKNOWN, Outcome.REJECTED, Outcome.RETURNED}


def full(kind):
    arguments = {"x_queue_type": kind, "x_max_length": 500, "x_overflow": "reject-publish"}
    return {"queues": 2, "arguments": arguments, "quiet": 0.5}


def fill(it):
    it.control.flood(3_000)
    it.control.hold()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_rejects_and_then_has_room_again(broker, scene, kind):
    what = f"reject-publish, {kind} queues, space again"
    with scene(what, timeouts=Timeouts(retry=PATIENCE), **full(kind)) as it:
        fill(it)
        it.load.more(4_000)
        wait_until(lambda: it.totals.resent > 1_000, "rejected messages are sent again")

        def emptied() -> bool:
            it.load.drain(broker.url, it.used.queues)
            return it.totals.confirmed == 4_000

        wait_until(emptied, "there is room for all")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_that_stays_full_rejects_for_good(scene, kind):
    what = f"reject-publish, {kind} queues, full for good"
    limit = 1 + 5 + SLACK  # the window is smaller than the stream: some messages wait for others to fail
    rejected = {"outcomes": {Outcome.REJECTED}, "timeouts": Timeouts(retry=1)}
    with scene(what, start=3_000, limit=limit, **rejected, **full(kind)) as it:
        fill(it)
    assert it.load.error is None
    assert "basic.nack" in str(it.load.bulk.failures[0])


def test_the_last_queue_is_unbound_for_a_moment(scene):
    with scene("last queue unbound for a moment", queues=1, timeouts=Timeouts(retry=PATIENCE)) as it:
        it.control.flow()
        it.flow(2_000)
        it.used.unbind()
        it.other.unbind()
        wait_until(lambda: it.totals.resent > 100, "returned messages are sent again")
        it.load.hold()
        it.control.flood(100)
        it.used.bind()
        it.other.bind()


def test_the_last_queue_is_unbound_for_good(scene):
    what = "last queue unbound for good (control: acked)"
    control = {"confirms": True}  # but not mandatory: an ack is no proof
    returned = {"outcomes": {Outcome.RETURNED}, "timeouts": Timeouts(retry=1), "limit": 1 + SLACK}
    with scene(what, queues=1, control=control, **returned) as it:
        it.control.flow()
        it.flow(2_000)
        it.used.unbind()
        it.other.unbind()
        wait_until(lambda: it.totals.resent, "messages are returned")
        it.load.hold()
        it.control.flood(10)
    assert it.load.error is None
    first, rows = it.load.bulk.failures[0], it.load.ledger.rows(Outcome.RETURNED)
    assert first.row == rows[0]
    target = f"exchange '{it.used.exchange}' with key 'customer-{first.row}'"
    assert str(first) == f"row {first.row} returned ({target}): 312 NO_ROUTE"


def test_a_queue_deleted_and_recreated(broker, scene):
    """A queue is deleted with its messages, and those on their way to it are lost, but none before or after."""
    deleted = {
        "faults": 3,
        "control": None,
        "harmless": "deleted on purpose",
        "timeouts": Timeouts(retry=PATIENCE),
    }
    with scene("queue deleted and recreated", queues=2, **deleted) as it:
        for _ in range(3):
            it.flow(2_000)
            it.load.until_quiet()  # a batch that comes later is neither drained nor among those that may be lost
            it.load.drain(broker.url, it.used.queues)
            first = it.totals.published
            it.flow(1_000)
            with it.used.channel() as channel:
                channel.queue_delete(it.used.queues[1])
                it.may_lose += range(first, it.totals.published)
                channel.queue_declare(it.used.queues[1], durable=True)
                channel.queue_bind(it.used.queues[1], it.used.exchange, "1")
            it.load.until_confirmed(1_000)
        it.hold()


def test_an_exchange_deleted(scene):
    # Its bindings are deleted first, so some messages may be returned before the channel is closed.
    with scene("exchange deleted", limit=SLACK, quiet=0.5, outcomes=REFUSED) as it:
        it.control.flow()
        it.flow(5_000)
        with it.used.channel() as channel:
            channel.exchange_delete(it.used.exchange)
            channel.exchange_delete(it.other.exchange)
        wait_until(lambda: it.totals.rejected, "the broker refuses a message")
        it.load.hold()
        it.load.finish(SLACK)
    text = f"404 NOT_FOUND - no exchange '{it.used.exchange}' in vhost '/'"
    assert any(text in failure.reply for failure in it.load.bulk.failures)
    assert it.totals.connections == 1


def test_a_channel_closed_by_the_broker_in_the_middle_of_the_window(broker, scene):
    what, control, rows = "channel closed by the broker (406)", {"size": 1_000}, []
    with scene(what, control=control, limit=SLACK, quiet=0.5, outcomes={Outcome.REJECTED}) as it:
        it.flow(2_000)
        it.control.flood()
        it.control.hold()
        wait_until(lambda: it.other.depth() >= it.control.ledger.taken_in, "all buffers are empty")
        with paused(broker):  # so that messages follow the invalid one before the broker sees it
            it.control.poison = pika.BasicProperties(user_id="somebody else")
            it.control.flood(5)
        wait_until(lambda: it.control.broken, "the control notices")
        it.control.hold()
        it.load.inject(lambda bulk: rows.append(bulk.add(b"-1 ", "k", user_id="somebody else")))
        wait_until(lambda: it.totals.rejected, "the broker refuses the message")
        it.load.until_confirmed(1_000)
        it.load.hold()
    (failure,) = it.load.bulk.failures
    assert failure.row == rows[0]
    assert "PRECONDITION_FAILED - user_id property set to 'somebody else'" in failure.reply
    assert not failure.may_have_arrived
    assert it.totals.connections == 1
    assert not any(-1 in found for found in it.found)
