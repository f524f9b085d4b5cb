"""If pika lacks a name that the fast path needs, the publisher is slower and just as correct."""

from __future__ import annotations

import pytest

from rabbit_chx.broker import receiving
from rabbit_chx.publishing import Outcome, Timeouts, connection
from tests.faults.ledger import body
from tests.faults.load import killed

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(autouse=True)
def no_fast_path(monkeypatch):
    """Imitate a pika that has renamed something; sending a whole batch at once fails the test."""
    monkeypatch.setattr(receiving, "PRIVATE_NAMES", (*receiving.PRIVATE_NAMES, "_missing"))
    monkeypatch.setattr(
        connection.PublisherConnection, "_emit", lambda *_: pytest.fail("the fast path was used")
    )


def test_every_message_is_confirmed_or_returned(scene):
    rows = []

    def special(bulk):
        nowhere = {"exchange": "amq.direct"}
        rows.extend(bulk.add(body(0), "é" * (n % 3), headers={"a": n}, **nowhere) for n in range(50))
        large = body(bulk.totals.published, 300_000)  # three frames
        bulk.add(large, b"\xff\x00")  # and a key that is not UTF-8

    no_fault = {"faults": 0, "control": None, "outcomes": {Outcome.RETURNED}}
    with scene("fast path missing", queues=2, timeouts=Timeouts(retry=0.5), **no_fault) as it:
        it.load.inject(special)
        it.load.more(10_000)
    assert it.load.error is None
    assert it.load.ledger.rows(Outcome.RETURNED) == rows
    assert it.load.ledger.duplicated == 0


def test_a_kill_loses_nothing(broker, scene):
    why = "see the control of kill -9"
    with scene("fast path missing, kill -9", control=None, harmless=why, more=1_000) as it:
        it.flow(3_000)
        with killed(broker):
            it.hold()
