"""If pika lacks a name that the fast path needs, the publisher is slower and just as correct."""

from __future__ import annotations

import pytest

from rabbit_chx.publishing import Outcome, Timeouts, connection
from tests.faults.ledger import body
from tests.faults.load import Load

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def no_fast_path(monkeypatch):
    """Imitate a pika that has renamed something; sending a whole batch at once fails the test."""
    monkeypatch.setattr(connection, "PRIVATE_NAMES", (*connection.PRIVATE_NAMES, "_missing"))
    monkeypatch.setattr(connection._FastConnection, "emit", lambda *_: pytest.fail("the fast path was used"))


def test_every_message_is_confirmed_or_returned(broker, topology, judge, no_fast_path):
    used = topology(queues=2)
    rows = []

    def special(publisher):
        nowhere = {"exchange": "amq.direct"}
        rows.extend(publisher.publish(body(0), "é" * (n % 3), headers={"a": n}, **nowhere) for n in range(50))
        large = body(publisher.totals.published, 300_000)  # three frames
        publisher.publish(large, b"\xff\x00")  # and a key that is no text

    load = Load(broker.url, used.exchange, timeouts=Timeouts(retry=0.5)).start(10_000)
    load.inject(special)
    load.finish(60)
    load.drain(broker.url, used.queues)
    assert load.error is None
    assert load.ledger.rows(Outcome.RETURNED) == rows
    assert judge("fast path missing", load, faults=0).duplicated == 0


def test_a_kill_loses_nothing(broker, topology, judge, no_fast_path):
    used = topology()
    load = Load(broker.url, used.exchange).start()
    load.flow()
    load.until_confirmed(3_000)
    broker.kill()
    load.hold()
    broker.restart()
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues)
    assert load.error is None
    assert load.ledger.outcomes == {}
    judge("fast path missing, kill -9", load, harmless="its control is that of kill -9")
