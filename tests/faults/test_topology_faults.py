"""The topology changes under a publisher: queues that are full or gone, exchanges that are deleted."""

from __future__ import annotations

import pika
import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.ledger import drain
from tests.faults.load import Control, Load, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

SMOKE = {
    "test_a_full_queue_rejects_and_then_has_room_again",
    "test_the_last_queue_is_unbound_for_a_moment",
    "test_the_last_queue_is_unbound_for_good",
}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_rejects_and_then_has_room_again(broker, topology, judge, kind):
    limit = {"x_queue_type": kind, "x_max_length": 500, "x_overflow": "reject-publish"}
    used, other = topology(queues=2, **limit), topology(queues=2, **limit)
    control = Control(broker.url, other.exchange)
    control.start()
    wait_until(lambda: control.ledger.taken_in > 3_000, "the control has filled its queues")
    control.hold()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=60)).start()
    load.more(4_000)
    wait_until(lambda: load.publisher.totals.resent > 1_000, "rejected messages leave again")
    for _ in range(40):
        load.drain(broker.url, used.queues)
        if load.publisher.totals.pending == 0 and load.publisher.totals.published == 4_000:
            break
    load.finish(30)
    load.drain(broker.url, used.queues, quiet=0.5)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    judge(f"reject-publish, {kind} queues, room again", load, control=loss)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_that_stays_full_rejects_for_good(broker, topology, judge, kind):
    limit = {"x_queue_type": kind, "x_max_length": 500, "x_overflow": "reject-publish"}
    used, other = topology(queues=2, **limit), topology(queues=2, **limit)
    control = Control(broker.url, other.exchange)
    control.start()
    wait_until(lambda: control.ledger.taken_in > 3_000, "the control has filled its queues")
    loss = control.finish(broker.url, other.queues)
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=1)).start(3_000)
    load.finish(1 + 5 + 5)  # the window is smaller than the stream: it has to be tried twice
    load.drain(broker.url, used.queues, quiet=0.5)

    assert load.error is None
    rejected = load.ledger.rows(Outcome.REJECTED)
    assert rejected
    assert set(load.ledger.outcomes) == set(rejected)
    assert "basic.nack" in str(load.publisher.failures[0])
    judge(f"reject-publish, {kind} queues, full for good", load, control=loss)


def test_the_last_queue_is_unbound_for_a_moment(broker, topology, judge):
    used, other = topology(queues=1), topology(queues=1)
    control = Control(broker.url, other.exchange)
    control.start()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=30)).start()
    load.flow()
    load.until_confirmed(2_000)
    with used.channel() as channel:
        before = control.ledger.taken_in
        for one in (used, other):
            channel.queue_unbind(one.queues[0], one.exchange, "1")
        load.hold()
        wait_until(lambda: load.publisher.totals.resent > 100, "returned messages leave again")
        wait_until(lambda: control.ledger.taken_in > before + 100, "the control notices nothing")
        for one in (used, other):
            channel.queue_bind(one.queues[0], one.exchange, "1")
    load.finish(30)
    load.drain(broker.url, used.queues)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    judge("last queue unbound for a moment", load, control=loss)


def test_the_last_queue_is_unbound_for_good(broker, topology, judge):
    used, other = topology(queues=1), topology(queues=1)
    control = Control(broker.url, other.exchange, confirms=True)  # but not mandatory: an ack is no proof
    control.start()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=1)).start()
    load.flow()
    load.until_confirmed(2_000)
    with used.channel() as channel:
        for one in (used, other):
            channel.queue_unbind(one.queues[0], one.exchange, "1")
    load.hold()
    load.finish(1 + 5)
    load.drain(broker.url, used.queues)
    before = control.ledger.taken_in
    wait_until(lambda: control.ledger.taken_in > before + 10, "the control notices nothing")
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    returned = load.ledger.rows(Outcome.RETURNED)
    assert returned
    assert set(load.ledger.outcomes) == set(returned)
    first = load.publisher.failures[0]
    assert first.row == returned[0]
    assert str(first) == (
        f"row {first.row} returned (exchange '{used.exchange}' with key 'customer-{first.row}'): 312 NO_ROUTE"
    )
    judge("last queue unbound for good (control: acked)", load, control=loss)


def test_a_queue_deleted_and_recreated(broker, topology, judge):
    """What stood in the queue is gone with it, and so is what was on its way in; nothing before or after is."""
    used = topology(queues=2)
    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=30)).start()
    gone = []
    for _ in range(3):
        load.flow()
        load.until_confirmed(2_000)
        load.hold()
        wait_until(lambda: load.publisher.totals.pending == 0, "all is confirmed")
        load.drain(broker.url, used.queues)
        first = load.publisher.totals.published
        load.flow()
        load.until_confirmed(1_000)
        with used.channel() as channel:
            channel.queue_delete(used.queues[1])
            last = load.publisher.totals.published
            channel.queue_declare(used.queues[1], durable=True)
            channel.queue_bind(used.queues[1], used.exchange, "1")
        load.until_confirmed(1_000)
        gone.append(range(first, last))
    load.hold()
    load.finish(60)
    load.drain(broker.url, used.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    may_lose = [row for part in gone for row in part]
    judge("queue deleted and recreated", load, faults=3, harmless="deleted on purpose", may_lose=may_lose)


def test_an_exchange_deleted(broker, topology, judge):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange)
    control.start()
    load = Load(broker.url, used.exchange).start()
    load.flow()
    load.until_confirmed(5_000)
    with used.channel() as channel:
        channel.exchange_delete(used.exchange)
        channel.exchange_delete(other.exchange)
    load.finish(5)
    load.drain(broker.url, used.queues, quiet=0.5)
    loss = control.finish(broker.url, other.queues)

    assert f"404 NOT_FOUND - no exchange '{used.exchange}' in vhost '/'" in str(load.error)
    assert load.publisher.totals.connections == 1
    # Its bindings go first, so some may come back before the channel is closed.
    assert set(load.ledger.outcomes.values()) <= {Outcome.RETURNED, Outcome.UNKNOWN, Outcome.UNSENT}
    judge("exchange deleted", load, control=loss)


def test_a_channel_closed_by_the_broker_in_the_middle_of_the_window(broker, topology, judge):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, size=1_000, held=True)
    control.start()
    load = Load(broker.url, used.exchange).start()
    load.flow()
    load.until_confirmed(2_000)
    control.flood()
    control.hold()
    wait_until(lambda: other.depth() >= control.ledger.taken_in, "every buffer on the way is empty")
    sent = control.ledger.taken_in
    broker.pause()  # so that what follows the poison is on its way before the broker sees it
    try:
        control.poison = pika.BasicProperties(user_id="somebody else")
        control.flow()
        wait_until(
            lambda: control.ledger.taken_in >= sent + 5, "the poison is on its way, and messages behind it"
        )
    finally:
        broker.unpause()
    wait_until(lambda: control.broken, "the control notices")
    control.hold()
    rows = []
    load.inject(lambda publisher: rows.append(publisher.publish(b"-1 ", "k", user_id="somebody else")))
    wait_until(lambda: load.error is not None, "the channel is closed")
    load.finish(5)
    found = load.drain(broker.url, used.queues, quiet=0.5)
    loss = control.finish(broker.url, other.queues)

    assert "PRECONDITION_FAILED - user_id property set to 'somebody else'" in str(load.error)
    assert load.ledger.outcomes[rows[0]] is Outcome.UNKNOWN
    assert not any(-1 in rows for rows in found)
    judge("channel closed by the broker (406)", load, control=loss)


def test_drain_finds_what_is_there(broker, topology):
    """The sensor itself: three messages, one of them twice, are counted as such."""
    used = topology(queues=1)
    with used.channel() as channel:
        for row in (0, 1, 1):
            channel.basic_publish(used.exchange, "k", b"%d " % row)
        wait_until(lambda: used.depth() == 3, "three messages stand in the queue")
    assert drain(broker.url, used.queues) == [[0, 1, 1]]
