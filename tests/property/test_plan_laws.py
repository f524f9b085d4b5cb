"""Laws of plans, carried out on a small model of a broker that knows commands and no plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings, strategies as st

from rabbit_chx.mirror.ring import ToExchange
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
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.plan_file import Reviewed
from rabbit_chx.topology.planning.steps import DeleteQueue
from rabbit_chx.topology.planning.what_if import what_if
from tests.unit.topology.broker_model import Broker, hashed, made

# Each change of a ring counts two million keys a few times.
few = settings(max_examples=12)

QUEUES = ["a", "b", "c", "d", "e"]
WEIGHTS = st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 3), max_size=4)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """An upstream exchange, a ring, slots, a modulus exchange, of which any may be missing or empty."""
    ring = draw(st.permutations(list(draw(WEIGHTS).items())))
    bindings = [Binding("ring", name, str(weight)) for name, weight in ring]
    exchanges, slots = [Exchange("ring", CONSISTENT_HASH), Exchange("up", "topic")], []
    if draw(st.booleans()):
        bindings.append(Binding("ring", ToExchange("mod"), "1"))
    exchanges.append(Exchange("mod", MODULUS_HASH))
    bindings += [Binding("mod", name) for name in draw(st.sets(st.sampled_from(QUEUES), max_size=3))]
    keys = draw(st.sets(st.sampled_from(["#", "a.*", "b"]), max_size=2))
    bindings += [Binding("up", ToExchange("ring"), key) for key in sorted(keys)]
    bindings += [
        Binding("up", name, "#", {"n": 1}) for name in draw(st.sets(st.sampled_from(QUEUES), max_size=2))
    ]
    weights = draw(WEIGHTS)
    if weights:
        top = draw(st.sampled_from([MODULUS_HASH, CONSISTENT_HASH]))
        exchanges.append(Exchange(f"top-{top}", top))
        slots.append(Slots(f"top-{top}", 8, weights))
    policies = [Policy("p", "^a", definition={"max-length": draw(st.integers(1, 2))})]
    return Topology(
        exchanges=tuple(draw(st.permutations(exchanges))),
        queues=tuple(Queue(name, "quorum") for name in QUEUES),
        bindings=tuple(bindings),
        policies=tuple(policies[: draw(st.integers(0, 1))]),
        slots=tuple(slots),
    )


def reached(wanted: Topology, broker: Broker, *, strategy: str | None = None, prune: bool) -> None:
    """Carry a plan out and hold what is there against the file."""
    found = plan(wanted, broker.seen(), strategy=strategy, prune=prune, force=True)
    assert not found.refusals
    broker.carry_out(found.steps)
    again = plan(wanted, broker.seen(), strategy=strategy, prune=prune, force=True)
    assert not again, [str(step) for step in again.steps]
    for exchange in wanted.exchanges:
        bound = [each for each in broker.bindings if each.source == exchange.name]
        named = wanted.bindings_from(exchange.name)
        if exchange.type == CONSISTENT_HASH and not wanted.slots_of(exchange.name):
            runs = {(each.destination, int(each.key)) for each in named}
            assert set(broker.rings[exchange.name].runs) == runs
            assert not broker.rings[exchange.name].dead
        elif not wanted.slots_of(exchange.name):
            there = {(each.destination, each.key) for each in bound}
            assert {(each.destination, each.key) for each in named} <= there
            assert len(there) == len(named) or not (prune or exchange.type == MODULUS_HASH)


@few
@given(topologies(), topologies(), st.booleans())
def test_a_plan_leads_where_it_should_and_the_next_one_is_empty(first, second, prune: bool) -> None:
    broker = Broker()
    reached(first, broker, prune=False)
    reached(second, broker, prune=prune)


@pytest.mark.long
@few
@given(topologies(), topologies(), st.data())
def test_a_plan_that_was_cut_off_is_taken_up_again(first, second, data) -> None:
    broker = made(first)
    seen = broker.seen()
    whole = plan(second, seen, force=True)
    broker.carry_out(whole.steps[: data.draw(st.integers(0, len(whole.steps)))])
    rest = plan(second, broker.seen(), force=True)
    assert not Reviewed.of(second, whole, seen).refusals(rest, broker.seen())
    reached(second, broker, prune=False)


@pytest.mark.long
@few
@given(st.lists(st.integers(1, 2500), min_size=1, max_size=4), st.booleans())
@example([100] * 2, False)
@example([64, 64], True)
@example([2500] * 4, False)
def test_every_question_about_a_ring_of_any_size_is_answered(weights: list[int], slow: bool) -> None:
    queues = {f"w.{number}": weight for number, weight in enumerate(weights)}
    topology = hashed("w", queues)
    ways = what_if(topology, "w", add=1, remove=["w.0"] * slow)
    assert [way for way in ways if way.name == "slots" and 0 < way.moved <= 1]
    broker = made(topology)
    change = plan(hashed("w", {**queues, "new": 1}), broker.seen(), force=True).changes[0]
    # The new bucket takes its equal part of the keys, whatever the size of the ring was.
    assert change.moved == pytest.approx(1 / (sum(weights) + 1), rel=0.3)


@given(topologies())
def test_a_fresh_topology_moves_nothing_and_takes_nothing_away(wanted) -> None:
    found = plan(wanted, Broker().seen())
    assert not found.destructive
    assert not found.changes
    assert all(step.moved == 0.0 for step in found.steps)


@given(topologies())
def test_pruning_for_an_empty_file_leaves_nothing(first) -> None:
    broker = made(first)
    found = plan(Topology(), broker.seen(), prune=True)
    broker.carry_out(found.steps)
    assert not broker.exchanges
    assert not broker.queues
    assert not broker.bindings
    assert not any(step.force for step in found.steps if isinstance(step, DeleteQueue))
    assert not plan(
        replace(first, exchanges=(), bindings=(), queues=(), slots=(), policies=()), broker.seen()
    )
