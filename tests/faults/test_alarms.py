"""The broker raises a memory or disk alarm: publishing waits and continues, or ends at its timeout."""

from __future__ import annotations

import logging

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import ALIVE, SLACK, killed
from tests.patience import wait_until
from tests.proof import LONG

pytestmark = [pytest.mark.broker, pytest.mark.long]


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
