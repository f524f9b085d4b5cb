"""Drift and plan are read from one comparison: over thousands of pairs of topologies and brokers they never disagree."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rabbit_chx.mirror.movement import ChangeMovement, TrackedMovement
from rabbit_chx.mirror.ring import Ring, ToExchange
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    MODULUS_HASH,
    Binding,
    Exchange,
    Policy,
    Queue,
    Slots,
    Topology,
)
from rabbit_chx.topology.planning import blue_green, plan as plan_module, ring_change, ring_paths, slots
from rabbit_chx.topology.planning.plan import plan
from tests.unit.topology.broker_model import Broker

QUEUES = ["a", "b", "c", "d", "e"]
SHARD = "sharding: mod - rabbit@a - 0"


class _Uncounted:
    """Stands in for the count of two million keys, on which no law here depends."""

    def __init__(self, start: Ring, *_: int) -> None:
        self.start = start
        self._names = (*QUEUES, ToExchange("mod"))

    def overlap(self, size: int):
        return self._names, np.zeros((len(self._names), size), np.int64)

    def follow(self, changes) -> TrackedMovement:
        return TrackedMovement(tuple(ChangeMovement(0.0, ()) for _ in changes), 0.0, 0.0)

    along = follow


@pytest.fixture(autouse=True)
def uncounted(monkeypatch) -> None:
    monkeypatch.setattr(ring_paths, "MovementTracker", _Uncounted)
    for module in (ring_change, plan_module):
        monkeypatch.setattr(module, "moved", lambda *_: SimpleNamespace(share=0.0))
    monkeypatch.setattr(slots, "_moved", lambda *_: 0.0)
    for module in (slots, blue_green):
        monkeypatch.setattr(module, "moved_among", lambda *_: 0.0)
        monkeypatch.setattr(module, "keys_of", lambda ring: dict.fromkeys(ring.destinations))
        monkeypatch.setattr(module, "shares", lambda ring: dict.fromkeys(ring.destinations, 0.0))


def topology(dice: random.Random) -> Topology:
    """An upstream exchange, a ring, a modulus exchange and slots, any of which may be missing or empty."""
    some = lambda items: dice.sample(items, dice.randint(0, len(items)))  # noqa: E731
    exchanges = some(
        [Exchange("up", "topic"), Exchange("ring", CONSISTENT_HASH), Exchange("mod", MODULUS_HASH)]
    )
    names = {exchange.name for exchange in exchanges}
    queues = some(
        [Queue(name, "quorum", arguments={"x-n": 1} if dice.random() < 0.05 else {}) for name in QUEUES]
    )
    there = [queue.name for queue in queues]
    bindings = []
    if "ring" in names:
        arguments = [{}, {}, {}, {"note": "x"}]
        bindings += [Binding("ring", q, str(dice.randint(1, 2)), dice.choice(arguments)) for q in some(there)]
        if "mod" in names and dice.random() < 0.3:
            bindings.append(Binding("ring", ToExchange("mod"), "1"))
    if "mod" in names:
        bindings += [Binding("mod", queue) for queue in some(there)]
    if "up" in names:
        bindings += [Binding("up", queue, key) for queue in some(there) for key in some(["#", "x"])]
    tops, weights = [], {queue: dice.randint(1, 3) for queue in some(there)}
    if weights and dice.random() < 0.5:
        exchanges.append(Exchange("top", dice.choice([MODULUS_HASH, CONSISTENT_HASH])))
        tops.append(Slots("top", dice.choice([4, 4, 8]), weights))
    policies = some([Policy("p", "^a", definition={"max-length": dice.randint(1, 2)})])
    return Topology("/", *map(tuple, (exchanges, queues, bindings, policies, tops)))


def disturb(broker: Broker, dice: random.Random) -> None:
    """What applications, plugins, earlier versions and accidents leave on a broker."""
    broker.queues["gone"] = Queue("gone", auto_delete=True)
    broker.queues[SHARD] = Queue(SHARD)
    broker.queues["left"] = Queue("left")
    for source in list(broker.exchanges):
        hashes = source in broker.rings
        if dice.random() < 0.3 and not hashes:
            broker.bind(Binding(source, SHARD, "s"))
        if dice.random() < 0.2:
            broker.bind(Binding(source, dice.choice(["gone", "left"]), "1"))
    numbers = iter(range(1, 1000))
    for binding in [each for each in broker.bindings if each.source in broker.rings]:
        fate = dice.random()
        other = replace(binding, arguments={**binding.arguments, "note": next(numbers)})
        if fate < 0.15:  # replaced by an application
            broker.bind(other)
            broker.unbind(binding)
        elif fate < 0.3:
            broker.bind(other)
        elif fate < 0.4:  # silenced
            broker.bind(replace(binding, key="7"))
            broker.unbind(binding)


def wishes(plan) -> bool:
    return bool(plan.steps or plan.refusals or plan.left_alone)


@pytest.mark.parametrize("release", ["4.3", "3.10"])
@pytest.mark.parametrize("pairs", [100, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.proof])])
def test_there_is_drift_exactly_if_there_is_a_plan_and_applying_it_ends_both(
    release: str, pairs: int
) -> None:
    applied = 0
    for seed in range(pairs):
        dice = random.Random(f"{release} {seed}")
        before, wanted, strict = topology(dice), topology(dice), dice.random() < 0.5
        broker = Broker(release).carry_out(plan(before, Broker(release).seen()).steps)
        if dice.random() < 0.5:
            disturb(broker, dice)
        if dice.random() < 0.3:
            wanted = before
        allowed = {"prune": strict, "force": True, "strategy": "in place"}
        found = plan(wanted, broker.seen(), **allowed)
        listed = drift(wanted, broker.seen(), strict=strict)
        assert bool(listed) == wishes(found), (seed, list(map(str, listed)), found)
        if found.refusals:
            continue
        applied += 1
        broker.carry_out(found.steps)
        again = plan(wanted, broker.seen(), **allowed)
        assert not wishes(again), (seed, list(map(str, again.steps)), again.left_alone)
        assert not drift(wanted, broker.seen(), strict=strict), seed
    assert applied > pairs // 2
