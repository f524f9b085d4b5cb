"""An exchange with a single binding, which may have no buckets: found with a node, and mentioned without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx.broker.management_rows import Overview
from rabbit_chx.broker.reading.order_record import anchor, as_recorded, entry, order_exchange
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.model import Binding, Exchange
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import Bind, RingChange, Unbind
from rabbit_chx.watch.observer import Snapshot
from rabbit_chx.watch.ring_check import check_ring
from tests.unit.topology.test_apply_commands import RING, Played
from tests.unit.topology.test_reader import Api, Node

ONLY = Binding("x", "a", "3")
FILE = "schema: 1\nexchanges: {x: {type: x-consistent-hash, queues: {a: 3}}}\nqueues: {a: {type: stream}}\n"
NOTE = "exchange 'x': the only binding is assumed to have buckets"


class Single(Api):
    """A broker with one binding, and with a record of what is given."""

    def __init__(self, *recorded: Binding) -> None:
        entries = [each for bound in recorded for each in (anchor("x"), entry("x", as_recorded(bound), 1))]
        super().__init__([ONLY, *entries], now=[ONLY])

    def overview(self) -> Overview:
        return replace(super().overview(), exchange_types=frozenset({"x-consistent-hash"}))

    def exchanges(self, vhost: str) -> list[Exchange]:
        return [*super().exchanges(vhost), order_exchange("here")]


@pytest.fixture
def live(live, run, write):
    """Run a verb on what was read from a broker."""

    def shown(observed, verb: str, *arguments: str):
        live(observed, Single())
        about = ["-x", "x"] if verb in {"route", "ring", "simulate"} else [write(FILE)]
        return run(verb, *arguments, *about, "--url", "amqp://host/v")

    return shown


def test_a_dead_one_is_drift_that_a_plan_repairs(live) -> None:
    observed = read(Single(), "v", node=Node())
    assert "dead-binding" in {one.kind for one in drift(observed.topology, observed)}
    made = plan(observed.topology, observed)
    assert made.steps == (Unbind(ONLY), Bind(ONLY))
    routed = live(observed, "route", "k1")
    assert "unroutable" in routed.out
    assert live(observed, "check").code == 2
    watched = check_ring(Snapshot(0.0, "x", observed=observed, first=observed), None)
    assert [problem.name for problem in watched.problems] == ["dead-binding"]


@pytest.mark.parametrize("verb", [("check",), ("plan",), ("route", "k1"), ("ring",)])
def test_without_a_node_or_a_record_it_is_believed_with_a_note(live, verb) -> None:
    assert NOTE in live(read(Single(), "v"), *verb).err
    for proven in (read(Single(), "v", node=Node("a", "a", "a")), read(Single(ONLY), "v")):
        found = live(proven, *verb)
        assert (found.code, NOTE in found.err) == (0, False), found


def test_one_of_another_weight_than_the_recorded_one_is_refused(live) -> None:
    observed = read(Single(Binding("x", "a", "1")), "v")
    assert live(observed, "route", "k1").code == 1
    assert live(observed, "check").code == live(observed, "plan").code == 2


def test_it_is_recorded_once_a_node_has_shown_its_buckets() -> None:
    for node, unrecorded in ((None, set()), (Node(), set()), (Node("a", "a", "a"), {"x"})):
        observed = read(Single(), "v", node=node)
        assert observed.unrecorded == unrecorded
        assert set(plan(observed.topology, observed).to_record) == unrecorded


def test_an_apply_that_binds_a_second_queue_does_not_record_what_was_only_believed() -> None:
    observed = read(Single(), "v")
    before, second = observed.rings["x"], Binding("x", "b", "1")
    change = RingChange("x", before, before.bind("b"), 0.25, 0.25)
    played = Played(http=RING, bound=[ONLY])
    played.run(Bind(second), changes=(change,))
    assert [each.destination for each in played.recorded[1:]] == ["b"]
