"""The broker raises a memory or disk alarm: publishing waits and continues, or ends at its timeout."""

from __future__ import annotations

import logging
import time

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import ALIVE, Control, Load, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]


# Once for longer than two heartbeats (they continue while the broker reads nothing), and twice shortly.
@pytest.mark.parametrize(("kind", "rounds", "seconds"), [("memory", 1, 8), ("disk", 2, 0.5)])
def test_an_alarm_that_clears(broker, topology, judge, alarm, caplog, kind, rounds, seconds):
    caplog.set_level(logging.INFO, "rabbit_chx.publisher")
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, held=True)
    control.start()
    load = Load(broker.url, used.exchange, heartbeat=2).start()
    for _ in range(rounds):
        load.flow()
        load.until_confirmed(5_000)
        before = load.publisher.totals.blocked_seconds
        alarm(kind, raised=True)
        wait_until(
            lambda since=before: load.publisher.totals.blocked_seconds > since, "publishing is blocked"
        )
        control.flood()
        wait_until(
            lambda since=before: load.publisher.totals.blocked_seconds > since + seconds, "it was for a while"
        )
        load.hold()
        control.hold()
        alarm(kind, raised=False)
        wait_until(lambda: load.publisher.totals.pending == 0, "what waited is confirmed")
    load.finish(30)
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    ours = [record for record in caplog.records if record.name == "rabbit_chx.publisher"]
    assert [record.getMessage().split(":")[0] for record in ours if record.levelno >= logging.WARNING] == [
        "the broker blocks publishing",
        "the broker accepts messages again",
    ] * rounds
    # Its connection stays open, and the broker reads everything later.
    assert control.connections == 1
    judge(f"{kind} alarm raised and cleared", load, faults=rounds, control=loss, harmless=ALIVE)


def test_an_alarm_that_does_not_clear(broker, topology, judge, alarm):
    used = topology()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(blocked=3)).start()
    load.flow()
    load.until_confirmed(2_000)
    alarm("memory", raised=True)
    wait_until(lambda: load.publisher.totals.blocked_seconds > 0, "publishing is blocked")
    started = time.monotonic()
    load.finish(3 + 5)
    took = time.monotonic() - started
    alarm("memory", raised=False)
    load.drain(broker.url, used.queues, quiet=2)

    assert took < 3 + 5
    assert "blocked publishing for too long" in str(load.error)
    assert set(load.ledger.outcomes.values()) <= {Outcome.UNKNOWN, Outcome.UNSENT}
    assert load.ledger.rows(Outcome.UNKNOWN)
    judge("memory alarm never cleared", load, harmless="undecided until the alarm ends, see the next line")


def test_an_alarm_that_ends_with_a_kill(broker, topology, judge, alarm):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange)
    load = Load(broker.url, used.exchange).start()
    load.flow()
    load.until_confirmed(2_000)
    alarm("memory", raised=True)
    control.start()
    wait_until(lambda: load.publisher.totals.blocked_seconds > 0, "publishing is blocked")
    wait_until(lambda: control.ledger.taken_in, "the control believes to have sent something")
    broker.kill()
    load.hold()
    control.hold()
    broker.restart()  # should clear the alarm
    alarm("memory", raised=False)
    load.finish(60)
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    judge("memory alarm, then kill -9", load, control=loss)
