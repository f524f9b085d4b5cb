"""The broker raises a memory or disk alarm: publishing waits and continues, or ends at its timeout; a group says so."""

from __future__ import annotations

import logging
import secrets
import threading

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from rabbit_chx.streams import Reject, StreamGroup
from tests.faults.load import ALIVE, SLACK, killed
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.proof import LONG
from tests.queues import a_channel, message_count

pytestmark = [pytest.mark.broker, pytest.mark.long]

ALSO = {"test_a_stream_group_says_that_an_alarm_keeps_a_message_from_being_parked": ["4.0"]}


def until_blocked(it, seconds=0.0):
    before = it.totals.blocked_seconds
    wait_until(lambda: it.totals.blocked_seconds > before + seconds, "publishing is blocked")


# Once for longer than two heartbeats (they continue while the broker reads nothing), and shortly. With shorter heartbeats,
# a connection could be lost because the machine halts.
@pytest.mark.parametrize(("kind", "rounds", "seconds"), [("memory", 1, 12), ("disk", 2 if LONG else 1, 0.5)])
def test_an_alarm_that_clears(scene, alarm, log, kind, rounds, seconds):
    what = f"{kind} alarm raised and cleared"
    with scene(what, faults=rounds, harmless=ALIVE, heartbeat=5, control={"heartbeat": 60}) as it:
        for _ in range(rounds):
            it.flow(5_000)
            alarm(kind, raised=True)
            until_blocked(it)
            it.control.flood()
            until_blocked(it, seconds)
            it.hold()
            alarm(kind, raised=False)
            wait_until(lambda: it.totals.pending == 0, "the pending messages are confirmed")
    warnings = [message.partition(":")[0] for message in log(level=logging.WARNING)]
    assert warnings == ["the broker blocks publishing", "the broker accepts messages again"] * rounds
    # The control's connection stays open, and the broker reads everything later.
    assert it.control.connections == 1


def test_an_alarm_that_does_not_clear(scene, alarm):
    undecided = {"outcomes": {Outcome.UNKNOWN, Outcome.UNSENT}, "control": None, "quiet": 2}
    why = "undecided until the alarm ends, see the next line"
    with scene("memory alarm never cleared", harmless=why, timeouts=Timeouts(blocked=3), **undecided) as it:
        it.flow(2_000)
        alarm("memory", raised=True)
        # Not `until_blocked`: the three seconds may be over when `alarm` returns.
        wait_until(lambda: it.totals.blocked_seconds, "publishing is blocked")
        it.load.finish(3 + SLACK)
        alarm("memory", raised=False)
    assert "blocked publishing for too long" in str(it.load.error)
    assert it.load.ledger.rows(Outcome.UNKNOWN)


def test_an_alarm_that_ends_with_a_kill(broker, scene, alarm):
    with scene("memory alarm, then kill -9") as it:
        it.flow(2_000)
        alarm("memory", raised=True)
        until_blocked(it)
        it.control.flood()
        with killed(broker):
            it.hold()
        # The restart has cleared the alarm.
        alarm("memory", raised=False)


@pytest.fixture
def parking(broker):
    """A stream with a message, and a queue for failed ones."""
    names = [f"alarm-{secrets.token_hex(3)}-{kind}" for kind in ("stream", "failed")]
    with a_channel(broker, confirms=True) as channel:
        channel.queue_declare(names[0], durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare(names[1], durable=True)
        channel.basic_publish("", names[0], b"0")
    yield names
    with broker.connection() as connection:
        for name in names:
            connection.channel().queue_delete(name)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_stream_group_says_that_an_alarm_keeps_a_message_from_being_parked(broker, parking, alarm, kind):
    begun, going = threading.Event(), threading.Event()
    stream, queue = parking

    def handle(_):
        begun.set()
        assert going.wait(PATIENCE)
        raise Reject("no")

    options = {"amqp_url": f"{broker.url}?blocked_connection_timeout=1", "parking_queue": queue}
    group = StreamGroup(broker.stream_url, stream=stream, name="g", on_failure="park", **options)
    with running(group, handle):
        wait_until(begun.is_set, "the handler")
        alarm(kind, raised=True)
        wait_until(lambda: kind in broker.eval("rabbit_alarm:get_alarms()."), "the alarm")
        going.set()
        wait_until(lambda: "(memory or disk alarm)" in group.status.reason, "the reason")
        status = group.status
        assert (status.connected, status.handled, status.failed, status.lag) == (True, 0, 1, 1)
        alarm(kind, raised=False)
        wait_until(lambda: (status := group.status).handled == 1 and not status.reason, "the end")
    with broker.connection() as connection:
        assert message_count(connection.channel(), queue)
