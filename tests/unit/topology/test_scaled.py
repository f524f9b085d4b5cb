"""Adding and removing queues behind an exchange, and the order in which queues are drained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.topology import drain_first_in, dumps, loads, plan
from rabbit_chx.topology.file.dump import excerpt
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Slots, Topology
from rabbit_chx.topology.planning.drain_order import drain_stages
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.unit.topology.broker_model import hashed
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
        ({"add": ["r.9", "s.9"]}, None),
        ({"remove": 1}, "012"),
        ({"add": 2, "remove": 1}, "01245"),
    ],
)
def test_queues_come_last_and_go_from_the_end(exchange, stem, change, expected) -> None:
    found = scaled(topology(), exchange, **change)
    if expected is None:
        assert queues_of(found, exchange)[-2:] == ["r.9", "s.9"]
        return
    names = [f"{stem}.{number}" for number in expected]
    assert queues_of(found, exchange) == names
    assert {queue.name for queue in found.queues if queue.name.startswith(stem)} == set(names)


def test_a_new_queue_is_declared_like_the_last_and_a_removed_one_no_longer() -> None:
    found = scaled(topology(), "slots", add=["extra"], remove=["s.0"])
    assert found.queue("extra").declared_arguments == found.queue("s.3").declared_arguments
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
        ("ring", {"remove": 4}, "fewer than the 4 queues"),
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
    assert dumps(reread, "yaml") == dumps(
        loads(dumps(scaled(only(exchange), exchange, to=6), "yaml"), format="yaml"), "yaml"
    )


def only(exchange: str):
    lines = [
        line
        for line in SCALED.splitlines()
        if line.startswith(("schema", "exch", "queues")) or exchange[0] + ".{" in line
    ]
    return loads("\n".join(lines), format="yaml")


# ---- the order of draining


@pytest.mark.parametrize("count", [2, 5, 12])
def test_the_last_bound_leave_a_ring_one_after_the_other(count) -> None:
    names = [f"q{number}" for number in range(count + 3)]
    before, after = Ring.of(names), Ring.of(names[:3])
    gone = list(reversed(names[3:]))
    steps = tuple(Unbind(Binding("x", queue, "1")) for queue in gone)
    waits = drain_first_in(Plan("/", steps, (RingChange("x", before, after, None, None),)))
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
    wanted = scaled(topology(), "slots", to=5)
    observed = assume_applied(topology())
    planned = plan(wanted, observed)
    first = next(step for step in planned.steps if isinstance(step, Bind))
    left = assume_applied_after(first)
    rest = plan(wanted, left)
    waits = drain_first_in(rest)
    slot = first.binding.source
    old = next(each.destination for each in observed.topology.bindings_from(slot))
    assert old in waits["s.4"]
    unbinds = tuple(step for step in rest.steps if isinstance(step, Unbind) and step.binding.source == slot)
    only_the_rest = Plan("/", unbinds)
    assert drain_first_in(only_the_rest) == {"s.4": {old}}


def test_a_slot_with_two_queues_that_gets_a_third_has_no_order() -> None:
    observed = assume_applied(topology())
    slot = topology().slots_of("slots").names[0]
    old = next(each.destination for each in observed.topology.bindings_from(slot))
    other = "s.1" if old != "s.1" else "s.2"
    left = assume_applied_after(Bind(Binding(slot, other, "1")))
    wanted = scaled(topology(), "slots", remove=[str(old), other], add=["fresh"])
    rest = plan(wanted, left)
    steps = tuple(
        step for step in rest.steps if isinstance(step, (Bind, Unbind)) and step.binding.source == slot
    )
    assert drain_stages(drain_first_in(Plan("/", steps))) is None


def assume_applied_after(step: Bind):
    """The broker after this one step of a change."""
    observed = assume_applied(topology())
    bindings = (*observed.topology.bindings, step.binding)
    slot = step.binding.source
    ring = observed.rings[slot].bind(step.binding.destination, step.binding.key)
    return replace(
        observed,
        topology=replace(observed.topology, bindings=bindings),
        rings={**observed.rings, slot: ring},
        ring_sources={**observed.ring_sources, slot: "node"},
    )
