"""The broker dies or restarts: nothing that was confirmed is lost.

RABBIT_CHX_FAULT_KILLS=50 pytest tests/faults/test_broker_faults.py        (2 by default, 10 in the proof)
"""

from __future__ import annotations

import os

import pytest

from tests.faults.load import Control, Load
from tests.proof import LONG

pytestmark = pytest.mark.broker

SMOKE = {"test_kills_lose_nothing", "test_graceful_restarts_lose_nothing"}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_kills_lose_nothing(broker, topology, judge, kind):
    used, other = topology(x_queue_type=kind), topology(x_queue_type=kind)
    control = Control(broker.url, other.exchange)
    control.start()
    load = Load(broker.url, used.exchange).start()
    kills = int(os.environ.get("RABBIT_CHX_FAULT_KILLS", "10" if LONG else "2"))
    for _ in range(kills):
        control.flow()
        load.flow()
        load.until_confirmed(5_000)
        broker.kill()
        load.hold()
        control.hold()
        broker.restart()
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.publisher.totals.connections == kills + 1
    judge(f"kill -9, {kind} queues", load, faults=kills, control=loss)


@pytest.mark.long
def test_graceful_restarts_lose_nothing(broker, survives):
    survives("graceful restart", lambda _load, _control: broker.restart(), rounds=2)
