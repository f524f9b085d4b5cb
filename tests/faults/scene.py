"""The scene of a fault: a publisher under load and a naive control, each with queues of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.faults.load import Control, Load, on_queues
from tests.patience import PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.faults.conftest import Topology


@dataclass
class Scene:
    """A load, its topology, and a control with a topology of its own."""

    load: Load
    used: Topology
    control: Control | None
    other: Topology | None
    faults: int
    may_lose: list[int] = field(default_factory=list)
    found: list[list[int]] = field(default_factory=list)
    """Afterwards: the rows of each queue, in their order."""

    @property
    def totals(self):
        return self.load.publisher.totals

    def flow(self, count: int) -> None:
        """Publish until that many more messages are confirmed, and go on."""
        self.load.flow()
        self.load.until_confirmed(count)

    def hold(self) -> None:
        self.load.hold()
        if self.control:
            self.control.hold()


@pytest.fixture
def scene(broker, topology, judge):
    """Publish while the body of the `with` causes a fault; then compare the queues with the ledger, and judge.

    The publisher starts with `start` messages (None: the body starts it) and ends with `more`. The control publishes when
    the body tells it to; `control` has its options, or is None for no control. Only `outcomes` may occur besides
    confirmed messages; without any, the publisher must have ended without an error.
    """

    @contextmanager
    def scene(
        scenario,
        *,
        start=0,
        more=0,
        faults=1,
        harmless="",
        control=(),
        outcomes=(),
        limit=60,
        quiet=1.0,
        url=broker.url,
        queues=3,
        arguments=(),
        **options,
    ):
        used, other, naive = topology(queues=queues, **dict(arguments)), None, None
        if control is not None:
            other = topology(queues=queues, **dict(arguments))
            naive = Control(url, other.exchange, **dict(control))
        it = Scene(Load(url, used.exchange, **options), used, naive, other, faults)
        try:
            if naive:
                naive.start()
                # A control that connects only after the fault loses nothing.
                wait_until(lambda: naive.connections, "the control connects")
            if start is not None:
                it.load.start(start)
            yield it
            if more:
                it.load.more(more)
            ledger = it.load.finish(limit)
            it.found = it.load.drain(broker.url, used.queues, quiet=quiet)
            # Where no message can be lost, late messages must not count as lost.
            patience = {"quiet": PATIENCE, "enough": True} if harmless else {}
            loss = naive and naive.finish(broker.url, other.queues, **patience)
        finally:
            it.load.abandon()
            if naive:
                naive.stop()
        if not outcomes:
            assert it.load.error is None
        assert set(ledger.outcomes.values()) <= set(outcomes)
        judge(
            *(scenario, ledger, it.totals),
            faults=it.faults,
            control=loss,
            harmless=harmless,
            may_lose=it.may_lose,
        )

    return scene


@pytest.fixture
def survives(broker, scene):
    """Cause a fault several times in the middle of publishing; nothing may be lost, and the control must lose messages.

    `fault(load, control)` runs while the queues of the control hang and every buffer on the way to them is full.
    """

    def survives(scenario, fault, *, rounds=1, control=(), **options):
        control = {"size": 2_000, **dict(control)}
        with scene(scenario, faults=rounds, more=1_000, control=control, **options) as it:
            for _ in range(rounds):
                it.control.jam(broker, it.other.queues)
                it.flow(5_000)
                fault(it.load, it.control)
                it.hold()
                on_queues(broker, it.other.queues, "sys:resume(Queue)")
        return it.totals

    return survives
