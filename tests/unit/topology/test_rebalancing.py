"""Rebalancing: the moves for known loads, invalid input, and the messages of each slot in a sample."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rabbit_chx import ModulusHashExchange, ToExchange, Unpredictable
from rabbit_chx.topology import Bind, Unbind, plan_moves, rebalance
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Slots, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.slot_changes import (
    queue_of_slots,
    slots_behind,
    unfinished_moves,
)
from rabbit_chx.topology.slots.slot_counts import SlotCounts
from tests.unit.complaints import complaint
from tests.unit.topology.broker_model import made as applied, slotted

TWO = {"s0": "a", "s1": "a", "s2": "a", "s3": "b"}


def topology(top: str = MODULUS_HASH, count: int = 8, **arguments) -> Topology:
    return slotted("t", "ab", count=count, top=top, **arguments)


# ---- moves


def test_a_hot_slot_is_named_and_gets_a_queue_of_its_own() -> None:
    found = rebalance({"s0": 700, "s1": 50, "s2": 50, "s3": 200}, TWO)
    assert found.hot == {"s0": 0.7}
    assert {move.slot for move in found.moves} == {"s1", "s2"}
    assert not found.met
    assert found.max_after == pytest.approx(1.4)


def test_a_slot_without_a_rate_has_no_load_and_stays() -> None:
    found = rebalance({"s0": 1, "s1": 1}, TWO)
    assert len(found.moves) == 1
    assert found.moves[0].slot in {"s0", "s1"}


def test_an_incomplete_search_does_not_report_the_fewest_moves() -> None:
    random_ = random.Random(3)
    queues = [f"q{number}" for number in range(16)]
    rates = {f"s{number:03}": random_.paretovariate(1.2) for number in range(256)}
    queue_of = {slot: queues[place % 16] for place, slot in enumerate(rates)}
    found = [rebalance(rates, queue_of, target=target) for target in (1.02, 1.05, 1.2)]
    assert all(each.met or each.hot for each in found)
    assert not all(each.fewest for each in found)
    assert len(found[0].moves) >= len(found[1].moves) >= len(found[2].moves)


@pytest.mark.parametrize("target", [1, 0.5, -1, math.nan, math.inf, "1.2", True, None])
def test_a_target_that_no_division_could_meet_is_refused(target) -> None:
    assert complaint(lambda: rebalance({"s0": 1}, TWO, target=target)).what == "target"


@pytest.mark.parametrize("rates", [{}, {"s0": 0}])
def test_no_load_is_refused(rates) -> None:
    assert complaint(lambda: rebalance(rates, TWO)).what == "load"


@pytest.mark.parametrize("rate", [-1, math.nan, math.inf])
def test_a_negative_or_infinite_rate_is_refused(rate) -> None:
    assert "s0" in complaint(lambda: rebalance({"s0": rate}, TWO)).what


def test_slots_and_queues_that_do_not_belong_together_are_refused() -> None:
    assert complaint(lambda: rebalance({"other": 1}, TWO)).got == "other"
    assert complaint(lambda: rebalance({"s0": 1}, TWO, {"a": 1})).got == "b"
    assert complaint(lambda: rebalance({"s0": 1}, TWO, {"a": 1, "b": 1, "c": 1})).got == "c"
    assert complaint(lambda: rebalance({"s0": 1}, TWO, {"a": 0, "b": 1})).got == 0


# ---- steps


def test_a_moved_slot_gets_its_new_queue_before_it_loses_the_old_one() -> None:
    wanted = topology()
    broker = applied(wanted)
    before = queue_of_slots(wanted.slots[0], broker.seen())
    division = {slot: {"a": "b", "b": "a"}[before[slot]] for slot in list(before)[2:4]}
    made = plan_moves(wanted, "t", division, broker.seen())
    assert [type(step) for step in made.steps] == [Bind, Unbind] * 2
    assert made.slot_moves == {"t": pytest.approx(2 / 8, abs=1e-6)}
    broker.carry_out(made.steps)
    assert queue_of_slots(wanted.slots[0], broker.seen()) == before | division


def test_an_interrupted_move_ends_in_the_new_queue_even_if_that_has_more_slots() -> None:
    wanted = topology(count=16)
    slots, broker = wanted.slots[0], applied(wanted)
    of_b = [slot for slot, queue in queue_of_slots(slots, broker.seen()).items() if queue == "b"]
    broker.carry_out(plan_moves(wanted, "t", dict.fromkeys(of_b[:3], "a"), broker.seen()).steps)
    bind, unbind = plan_moves(wanted, "t", {of_b[3]: "a"}, broker.seen()).steps
    broker.do(bind)
    left = unfinished_moves(slots, broker.seen())
    assert left == {of_b[3]: "a"}
    assert [step.binding for step in plan_moves(wanted, "t", left, broker.seen()).steps] == [unbind.binding]
    assert unfinished_moves(slots, broker.seen(rings={})) == {of_b[3]: "b"}  # the queue with the fewest slots


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("queues", [{"a": 3, "b": 5}, {"a": 5, "b": 3}])
def test_rebalance_and_apply_finish_a_move_in_the_same_queue_if_the_file_allows_both(queues, known) -> None:
    wanted = replace(topology(), slots=(Slots("t", 8, queues),))
    slots, broker = wanted.slots[0], applied(wanted)
    queue_of = queue_of_slots(slots, broker.seen())
    moved = next(slot for slot in slots.names if queue_of[slot] == "a")
    emptied = next(slot for slot in slots.names if queue_of[slot] == "b")
    (bound,) = (each for each in broker.bindings if each.source == emptied)
    broker.unbind(bound)  # so that each queue has fewer slots than its weight
    broker.bind(Binding(moved, "b", "1"))
    observed = broker.seen() if known else broker.seen(rings={})
    (queue,) = unfinished_moves(slots, observed).values()
    assert queue == ("b" if known else min(queues, key=queues.__getitem__))
    unbound = [step.binding for step in plan(wanted, observed).steps if isinstance(step, Unbind)]
    assert [(each.source, each.destination) for each in unbound] == [(moved, {"a": "b", "b": "a"}[queue])]


def test_a_slot_with_two_queues_or_none_or_a_foreign_one_is_refused() -> None:
    wanted = topology()
    slots = wanted.slots[0]
    broker = applied(wanted)
    bound = next(bound for bound in broker.bindings if bound.source == "t.slot.0")
    other = "b" if bound.destination == "a" else "a"
    for changed in ([bound, Binding("t.slot.0", other, "1")], [], [Binding("t.slot.0", "foreign", "1")]):
        broker.bindings = [each for each in broker.bindings if each.source != "t.slot.0"] + changed
        error = complaint(lambda: queue_of_slots(slots, broker.seen()))
        assert "t.slot.0" in error.got
        assert "apply" in error.hint


def test_a_queue_without_a_slot_is_refused() -> None:
    broker = applied(topology())
    more = Slots("t", 8, {"a": 1, "b": 1, "c": 1})
    assert "'c'" in complaint(lambda: queue_of_slots(more, broker.seen())).got


def test_an_exchange_without_slots_is_refused_with_what_to_use() -> None:
    error = complaint(lambda: slots_behind(topology(), "orders"))
    assert error.expected.endswith("slots: t")
    assert "--strategy slots" in error.hint


# ---- samples


def test_a_message_is_counted_by_the_part_that_is_hashed() -> None:
    wanted = topology(CONSISTENT_HASH, **{"hash-header": "tenant"})
    observed = applied(wanted).seen()
    counts = SlotCounts(wanted.slots[0], wanted, observed)
    slots = {counts.route(["same"], {"tenant": f"t{number}"}, {})[0] for number in range(50)}
    assert len(slots) > 3
    assert counts.route(["a"], {"tenant": "x"}, {}) == counts.route(["b"], {"tenant": "x"}, {})
    assert counts.route([""], {"tenant": [1]}, {}) == (None, "[1]")  # clients encode a list differently


def test_cc_keys_count_where_the_broker_hashes_them() -> None:
    wanted = topology()
    counts = SlotCounts(wanted.slots[0], wanted, applied(wanted).seen())
    mirror = ModulusHashExchange(map(ToExchange, wanted.slots[0].names))
    assert counts.route(["a", "b"], {}, {})[0] == mirror.route("a", cc=["b"]).name


def test_an_unknown_order_of_slots_is_an_error() -> None:
    wanted = topology(CONSISTENT_HASH)
    broker = applied(wanted)
    observed = broker.seen()
    rings = {name: ring for name, ring in observed.rings.items() if name != "t"}
    with pytest.raises(Unpredictable, match="read it from the node"):
        SlotCounts(wanted.slots[0], wanted, replace(observed, rings=rings))


def test_a_top_exchange_that_leads_elsewhere_is_refused() -> None:
    wanted = topology()
    broker = applied(wanted)
    broker.bindings.append(Binding("t", "a", "1"))
    assert "exchange 't'" in complaint(lambda: SlotCounts(wanted.slots[0], wanted, broker.seen())).what
