"""The broker dies or restarts: nothing that was confirmed is lost.

RABBIT_CHX_FAULT_KILLS=50 pytest tests/faults/test_broker_faults.py        (2 by default, 10 in the proof)
"""

from __future__ import annotations

import os

import pytest

from tests.faults.load import killed
from tests.proof import LONG

pytestmark = pytest.mark.broker

SMOKE = {"test_kills_lose_nothing_in_classic_queues"}
if LONG:
    SMOKE |= {"test_kills_lose_nothing", "test_graceful_restarts_lose_nothing"}
KILLS = int(os.environ.get("RABBIT_CHX_FAULT_KILLS", "5" if LONG else "2"))


def test_kills_lose_nothing(broker, scene):
    kill(broker, scene, "quorum")


@pytest.mark.long
def test_kills_lose_nothing_in_classic_queues(broker, scene):
    kill(broker, scene, "classic")


def kill(broker, scene, kind):
    arguments = {"x_queue_type": kind}
    options = {"more": 1_000, "quiet": 0, "arguments": arguments, "control": {"size": 2_000}}
    with scene(f"kill -9, {kind} queues", faults=KILLS, **options) as it:
        for _ in range(KILLS):
            it.flow(1_000)  # the broker accepts messages again
            it.load.hold()
            it.control.jam(broker, it.other.queues)
            it.flow(5_000)
            with killed(broker):
                it.hold()
    assert it.totals.connections >= KILLS + 1


@pytest.mark.long
def test_graceful_restarts_lose_nothing(broker, survives):
    survives("graceful restart", lambda _load, _control: broker.restart(), rounds=2 if LONG else 1)
