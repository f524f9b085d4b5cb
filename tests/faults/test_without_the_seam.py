"""Where pika lacks a name that the short cuts need, the publisher is slower and as right."""

from __future__ import annotations

import pytest

from rabbit_chx.publishing import link
from rabbit_chx.publishing.account import Outcome
from tests.faults.ledger import body
from tests.faults.load import Load

pytestmark = pytest.mark.broker


@pytest.fixture
def no_seam(monkeypatch):
    """As with a pika that has renamed something; emitting whole batches would fail the test."""
    monkeypatch.setattr(link, "SEAM", (*link.SEAM, "_a_name_that_pika_has_not"))
    monkeypatch.setattr(link._Connection, "emit", lambda *_: pytest.fail("the short cut was taken"))


def test_every_message_is_confirmed_or_returned(broker, topology, judge, no_seam):
    used = topology(queues=2)
    rows = []

    def special(publisher):
        nowhere = {"exchange": "amq.direct"}
        rows.extend(publisher.publish(body(0), "é" * (n % 3), headers={"a": n}, **nowhere) for n in range(50))
        large = body(publisher.totals.published, 300_000)  # three frames
        publisher.publish(large, b"\xff\x00")  # and a key that is no text

    load = Load(broker.url, used.exchange, retry_timeout=0.5).start(10_000)
    load.inject(special)
    load.finish(60)
    load.drain(broker.url, used.queues)
    assert load.error is None
    assert load.ledger.rows(Outcome.RETURNED) == rows
    assert judge("seam missing", load, faults=0).duplicated == 0


def test_a_kill_loses_nothing(broker, topology, judge, no_seam):
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
    judge("seam missing, kill -9", load, harmless="its control is that of kill -9")
