"""Adding and removing queues behind an exchange, and the order in which queues are drained."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.topology import drain_first, drain_first_in, loads, plan
from rabbit_chx.topology.file.dump import excerpt
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Slots, Topology
from rabbit_chx.topology.planning.drain_order import drain_stages
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.unit.topology.broker_model import hashed, made
from tests.verbs import SCALED


def topology():
    return loads(SCALED, format="yaml")


def test_a_new_queue_whose_name_would_be_too_long_has_to_be_named() -> None:
    name = "x" * 255
    with pytest.raises(InvalidValue, match="expected a queue name of 1 to 255 bytes"):
        scaled(hashed(name, ["a"]), name, add=1)
    assert queues_of(scaled(hashed(name, ["a"]), name, add=["b"]), name) == ["a", "b"]


def queues_of(found, exchange: str) -> list[str]:
    slots = found.slots_of(exchange)
    return list(slots.queues) if slots else [str(each.destination) for each in found.bindings_from(exchange)]


@pytest.mark.parametrize(("exchange", "stem"), [("ring", "r"), ("slots", "s")])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"to": 6}, "012345"),
        ({"to": 4}, "0123"),
        ({"to": 2}, "01"),
        ({"add": 1}, "01234"),
        ({"remove": 1}, "012"),
        ({"add": 2, "remove": 1}, "01245"),
    ],
)
def test_queues_come_last_and_go_from_the_end(exchange, stem, change, expected) -> None:
    found = scaled(topology(), exchange, **change)
    names = [f"{stem}.{number}" for number in expected]
    assert queues_of(found, exchange) == names
    assert {queue.name for queue in found.queues if queue.name.startswith(stem)} == set(names)


def test_a_new_queue_is_declared_like_the_last_and_a_removed_one_no_longer() -> None:
    found = scaled(topology(), "slots", add=["extra"], remove=["s.0"])
    assert found.queue("extra")._declared_arguments == found.queue("s.3")._declared_arguments
    assert found.queue("s.0") is None
    assert queues_of(found, "slots") == ["s.1", "s.2", "s.3", "extra"]


def test_a_removed_queue_that_something_else_leads_to_stays_declared() -> None:
    text = SCALED.replace(
        'queues:\n  "r', '  audit: {type: topic, bindings: [{queue: r.3, key: "#"}]}\nqueues:\n  "r', 1
    )
    found = scaled(loads(text, format="yaml"), "ring", to=3)
    assert found.queue("r.3") is not None
    assert queues_of(found, "ring") == ["r.0", "r.1", "r.2"]


@pytest.mark.parametrize(
    ("exchange", "change", "complaint"),
    [
        ("other", {"to": 2}, "one of ring, slots"),
        ("ring", {"remove": ["nope"]}, "one of r.0"),
        ("ring", {"add": ["r.1"]}, "not bound yet"),
        ("ring", {"add": 1001}, "from 0 to 1000"),
    ],
)
def test_what_cannot_be_changed_is_refused(exchange, change, complaint) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        scaled(topology(), exchange, **change)


@pytest.mark.parametrize("exchange", ["ring", "slots"])
def test_the_excerpt_loads_as_the_changed_exchange(exchange) -> None:
    found = scaled(topology(), exchange, to=6)
    text = excerpt(found, exchange)
    assert '.{0..5}"' in text
    reread = loads("schema: 1\n" + text, format="yaml")
    assert reread.exchanges == (found.exchange(exchange),)
    assert reread.bindings == found.bindings_from(exchange)
    assert reread.slots_of(exchange) == found.slots_of(exchange)
    assert reread.queues == tuple(each for each in found.queues if each.name.startswith(exchange[0]))


# ---- the order of draining


def test_who_waits_for_whom() -> None:
    two, three = Ring.of(["a", "b"]), Ring.of(["a", "b", "c"])
    assert drain_first(two, three) == {"c": {"a", "b"}}
    assert drain_first(three, two) == {"a": {"c"}, "b": {"c"}}
    assert drain_first(Ring.of(["a", "b"]), Ring.of(["b", "a"])) == {"a": {"b"}, "b": {"a"}}
    assert drain_first(two, two) == drain_first(Ring(), two) == {}


def test_a_plan_says_who_waits_in_rings_and_slots() -> None:
    wanted = scaled(scaled(topology(), "ring", add=1), "slots", add=1)
    waits = drain_first_in(plan(wanted, assume_applied(topology())))
    assert waits == {"r.4": {"r.0", "r.1", "r.2", "r.3"}, "s.4": {"s.1", "s.2", "s.3"}}


def test_many_queues_that_are_appended_are_released_one_after_the_other() -> None:
    old, new = ["a", "b"], [f"n{number}" for number in range(40)]
    steps = tuple(Bind(Binding("x", queue, "1")) for queue in new)
    change = RingChange("x", Ring.of(old), Ring.of(old + new), None, None)
    assert drain_stages(drain_first_in(Plan("/", steps, (change,)))) == [{name} for name in new]


@pytest.mark.parametrize("count", [2, 12])
def test_the_last_bound_leave_a_ring_one_after_the_other(count: int) -> None:
    names = [f"q{number}" for number in range(count + 3)]
    gone = names[:2:-1]
    steps = tuple(Unbind(Binding("x", queue, "1")) for queue in gone)
    change = RingChange("x", Ring.of(names), Ring.of(names[:3]), None, None)
    waits = drain_first_in(Plan("/", steps, (change,)))
    assert drain_stages(waits) == [*({queue} for queue in gone[1:]), set(names[:3])]
    assert all(waits[queue] == set(gone) for queue in names[:3])


@pytest.mark.parametrize(
    ("counts", "change", "after"),
    [
        ([20, 24, 20], {"add": ["n"]}, [15, 18, 15, 16]),
        ([20, 24, 20], {"remove": 1}, [29, 35]),
        ([1, 1, 62], {"remove": 1}, [32, 32]),
        ([1, 63], {"add": ["n"]}, [1, 42, 21]),
        ([20, 24, 20], {"to": 3}, [20, 24, 20]),
        ([16, 16, 16, 16], {"remove": 1}, [16, 16, 16]),
        ([1, 1, 3], {"add": ["n"]}, [1, 1, 3, 1]),
    ],
)
def test_slot_counts_stay_counts_and_weights_weights(counts, change, after) -> None:
    queues = {f"q{number}": weight for number, weight in enumerate(counts)}
    file = Topology(exchanges=(Exchange("x", CONSISTENT_HASH),), slots=(Slots("x", 64, queues),))
    assert list(scaled(file, "x", **change).slots_of("x").queues.values()) == after


def test_a_slot_that_an_interrupted_change_left_with_two_queues_is_drained() -> None:
    wanted, broker = scaled(topology(), "slots", to=5), made(topology())
    declare, bind, *_ = plan(wanted, broker.seen()).steps
    slot = bind.binding.source
    (old,) = (each.destination for each in broker.bindings if each.source == slot)
    broker.carry_out([declare, bind])
    rest = plan(wanted, broker.seen())
    assert old in drain_first_in(rest)["s.4"]
    unbinds = tuple(step for step in rest.steps if isinstance(step, Unbind) and step.binding.source == slot)
    assert drain_first_in(Plan("/", unbinds)) == {"s.4": {old}}
