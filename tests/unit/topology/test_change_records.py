"""The plan that abandons a change restores the state before, wherever the change was interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.changes.records import ChangeRecord
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.model import Binding, Exchange, Queue
from rabbit_chx.topology.planning.drain_order import held_queues
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.plan_back import plan_back
from rabbit_chx.working.markers import CHANGES, LONGEST_RECORD, RECORD
from tests.unit.topology.broker_model import Broker, hashed, made, slotted

RING, SLOTS = partial(hashed, "orders"), partial(slotted, "orders", count=8)


def state(broker: Broker):
    rings = {name: ring.runs for name, ring in broker.rings.items()}
    return sorted(broker.bindings, key=repr), rings


def recorded(found, broker: Broker, removed=()) -> ChangeRecord:
    """The record of a plan, as it is read again from the broker."""
    exchanges = broker.exchanges.values()
    record = ChangeRecord.of(found, removed, exchanges, broker.bindings, "somebody")
    return ChangeRecord.read(record.name, record.arguments[RECORD])


@pytest.mark.parametrize("of", [RING, SLOTS], ids=["ring", "slots"])
@pytest.mark.parametrize(("queues", "target"), [("abcd", "abcdef"), ("abcd", "ab")], ids=["up", "down"])
def test_a_change_is_abandoned_after_each_of_its_steps_and_each_step_of_that(of, queues, target) -> None:
    found = plan(of(target), made(of(queues)).seen(), max_moved=1.0)
    for number in range(len(found.steps) + 1):
        before = state(made(of(queues)))
        broker = made(of(queues))
        record = recorded(found, broker)
        broker.carry_out(found.steps[:number])
        back = plan_back(record.before, record.removed, of(target), broker.seen())
        held_queues(back)  # an order keeps every key in order
        assert not back.refusals
        for stopped in range(len(back.steps) + 1):
            again = made(of(queues)).carry_out((*found.steps[:number], *back.steps[:stopped]))
            again.carry_out(plan_back(record.before, record.removed, of(target), again.seen()).steps)
            assert state(again) == before


@pytest.mark.parametrize("release", ["4.2", "4.3"])
def test_bindings_that_stay_keep_their_arguments(release) -> None:
    first = Binding("orders", "a", "1", {"x-owner": "shop"})
    before, target = (
        replace(each, bindings=(first, *each.bindings[1:])) for each in (RING("abc"), RING("abcd"))
    )
    broker = made(before, release=release)
    found = plan(target, broker.seen(), max_moved=1.0)
    record = recorded(found, broker)
    broker.carry_out(found.steps)
    back = plan_back(record.before, record.removed, target, broker.seen())
    assert [str(step.binding.destination) for step in back.steps] == ["d"]
    assert state(broker.carry_out(back.steps)) == state(made(before, release=release))


@pytest.mark.parametrize(
    ("kind", "arguments"), [("topic", {}), ("headers", {"x-match": "all"})], ids=["topic", "headers"]
)
@pytest.mark.parametrize("is_new", [False, True], ids=["existing", "new"])
def test_bindings_of_an_exchange_that_does_not_hash_stay(kind, arguments, is_new) -> None:
    """Once, such a change could not be abandoned: it was said to have deleted the queue 'exchange orders'."""
    events = Exchange("events", kind)
    bound = Binding("events", ToExchange("orders"), "a.#", arguments)
    new = replace(bound, key="b.#")
    before, target = (
        replace(each, exchanges=(*each.exchanges, events), bindings=(*each.bindings, *those))
        for each, those in ((RING("ab"), [bound]), (RING("abc"), [bound, new]))
    )
    broker = made(RING("ab") if is_new else before)
    found = plan(target, broker.seen(), max_moved=1.0)
    record = recorded(found, broker)
    broker.carry_out(found.steps)
    broker.carry_out(plan_back(record.before, record.removed, target, broker.seen()).steps)
    bindings, rings = state(made(before))
    assert state(broker) == (sorted([*bindings, new], key=repr), rings)


def test_queues_that_the_change_deleted_are_declared_again() -> None:
    broker = made(RING("abc"))
    before = state(broker)
    found = plan(RING("ab"), broker.seen(), max_moved=1.0)
    gone = broker.queues["c"]
    record = recorded(found, broker, removed=[gone])
    broker.carry_out(found.steps)
    del broker.queues["c"]
    broker.carry_out(plan_back(record.before, record.removed, RING("ab"), broker.seen()).steps)
    assert state(broker) == before
    assert broker.queues["c"] == gone
    assert record.removed == (gone,)


def test_a_stream_that_the_change_declared_is_not_deleted_since_it_is_never_empty() -> None:
    broker = made(RING("ab"))
    wanted = RING("abc")
    wanted = replace(wanted, queues=(*wanted.queues, Queue("audit", "stream")))
    assert recorded(plan(wanted, broker.seen(), max_moved=1.0), broker).created == ("c",)


def test_a_second_change_that_goes_on_where_the_first_stopped_keeps_the_first_state() -> None:
    broker = made(RING("ab"))
    before = state(broker)
    first = plan(RING("abcd"), broker.seen(), max_moved=1.0)
    one = recorded(first, broker)
    broker.carry_out(first.steps[:3])
    second = plan(RING("abcde"), broker.seen(), max_moved=1.0)
    two = recorded(second, broker).after(one)
    broker.carry_out(second.steps)
    broker.carry_out(plan_back(two.before, two.removed, RING("ab"), broker.seen()).steps)
    assert state(broker) == before
    assert two.created == ("c", "d", "e")
    assert two.number > one.number


def test_a_change_whose_state_before_is_not_recorded_is_not_abandoned() -> None:
    broker = made(RING("ab"))
    found = plan(RING("abc"), broker.seen(), max_moved=1.0)
    record = recorded(found, broker)
    with pytest.raises(InvalidValue, match="deleted queues"):
        plan_back(record.before, record.removed, RING("ab"), made(RING("a")).seen())
    with pytest.raises(InvalidValue, match=r"exchange 'orders', which is gone.*Run the command"):
        plan_back(record.before, record.removed, RING("ab"), Broker().seen())
    many = {"orders": tuple((f"{number:0200}", "1") for number in range(600))}
    too_long = ChangeRecord(record.name, many)
    assert len(too_long.arguments[RECORD]) < 100_000
    unknown = ChangeRecord.read(too_long.name, too_long.arguments[RECORD]).before
    with pytest.raises(InvalidValue, match="bindings that the broker has no record of"):
        plan_back(unknown, (), RING("ab"), broker.seen())


def test_the_record_of_a_large_change_fits_into_a_frame() -> None:
    record = ChangeRecord(f"{CHANGES}1", created=tuple(f"orders.{number}" for number in range(10_000)))
    assert len(record.arguments[RECORD]) < LONGEST_RECORD
    assert ChangeRecord.read(record.name, record.arguments[RECORD]).before is None


ENDLESS = ChangeRecord("").arguments[RECORD].replace('"number":0', '"number":1e999')


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", json.dumps({"before": []}), json.dumps({"before": {"x": 1}}), ENDLESS, None]
)
def test_a_record_that_is_none_is_an_error_that_names_its_queue(text) -> None:
    with pytest.raises(InvalidValue, match=r"record of queue 'rabbit-chx\.hold\.change\.1'"):
        ChangeRecord.read(f"{CHANGES}1", text)
