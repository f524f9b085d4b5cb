"""Plans in files: what they contain, and when a plan that is made again counts as the rest of the reviewed one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.model import Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.plan_file import Reviewed, SavedPlan, dumps_plan, is_plan_file, load_plan
from rabbit_chx.topology.planning.steps import DeclareQueue, DeleteQueue
from tests.unit.topology.broker_model import Broker, hashed, made, slotted

OPTIONS = {"strategy": None, "prune": False, "force": False, "max_moved": 1.0}
BEFORE = hashed("orders", ["a", "b", "c"])
GROWN = hashed("orders", ["a", "b", "c", "d"])
CHANGED = "the broker has changed since this plan was made. Plan again, and review the new plan"


def reviewed(wanted: Topology, broker: Broker, **options) -> Reviewed:
    seen = broker.seen()
    return Reviewed.of(wanted, plan(wanted, seen, **OPTIONS | options), seen)


def refusals(shown: Reviewed, broker: Broker, *, seen=None, **options) -> tuple[str, ...]:
    seen = seen or broker.seen()
    return shown.refusals(plan(shown.wanted, seen, **OPTIONS | options), seen)


CHANGES = [
    pytest.param(BEFORE, hashed("orders", {"d": 2, "b": 1}), {}, id="all are replaced"),
    pytest.param(BEFORE, hashed("orders", ["a", "c", "d"]), {"strategy": "append"}, id="another final order"),
    pytest.param(slotted("t", ["a", "b"], count=4), slotted("t", ["a", "c"], count=4), {}, id="slots"),
    pytest.param(Topology(), replace(GROWN, policies=(Policy("p", "^a"),)), {}, id="new"),
    pytest.param(GROWN, replace(BEFORE, exchanges=(), bindings=()), {"prune": True}, id="prune"),
]


@pytest.mark.parametrize(("before", "after", "options"), CHANGES)
def test_what_is_left_of_an_interrupted_plan_is_accepted_after_each_step(before, after, options) -> None:
    broker = made(before)
    steps = plan(after, broker.seen(), **OPTIONS | options).steps
    shown = reviewed(after, broker, **options)
    assert len(shown.steps) == len(steps) > 1
    for step in steps:
        assert refusals(shown, broker, **options) == ()
        broker.do(step)
    assert refusals(shown, broker, **options) == ()


def test_steps_that_are_not_needed_are_listed_with_those_that_a_deleted_queue_needs() -> None:
    broker = made(BEFORE)
    shown = reviewed(GROWN, broker)
    broker.do(DeclareQueue(Queue("d", "quorum")))
    broker.do(DeleteQueue("c"))
    found = refusals(shown, broker)
    assert found[0] == CHANGED
    assert "in the plan, but not needed now: declare quorum queue 'd'" in found
    assert "not in the plan, but needed now: declare quorum queue 'c'" in found


def test_the_same_steps_in_another_order_are_a_difference() -> None:
    broker = made(BEFORE)
    shown = reviewed(GROWN, broker)
    swapped = replace(shown, steps=shown.steps[::-1])
    assert refusals(swapped, broker) == (CHANGED, "the steps of the plan are needed in another order now")


def test_a_ring_without_steps_must_keep_its_order_and_its_order_must_stay_known() -> None:
    broker = made(BEFORE)
    shown = reviewed(BEFORE, broker)
    assert (shown.steps, shown.orders) == ((), {"orders": "a=1, b=1, c=1"})
    assert refusals(shown, broker) == ()
    moved = made(hashed("orders", ["c", "a", "b"]))
    assert refusals(shown, moved) == (
        CHANGED,
        "exchange 'orders': the plan ends in the order a=1, b=1, c=1, and would now end in c=1, a=1, b=1",
    )
    unknown = {"orders": Ring(broker.rings["orders"].bindings, None, broker.release, "it has not been read")}
    (_, why) = refusals(shown, broker, seen=broker.seen(rings=unknown))
    assert why.startswith("exchange 'orders': the order of its ring was known, and is unknown now: read it")


def test_another_cluster_is_refused() -> None:
    shown = reviewed(GROWN, made(BEFORE, cluster="east"))
    assert refusals(shown, made(BEFORE, cluster="west")) == (
        "the plan is for cluster 'east', and this is cluster 'west'",
    )


# ---- the file


@pytest.mark.parametrize("name", ["release.plan", "a/RELEASE.PLAN"])
def test_plan_files_are_known_by_their_names(name) -> None:
    assert is_plan_file(name)
    assert not is_plan_file(f"{name}.json")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "release.plan"


def test_a_plan_is_read_as_it_was_written(path) -> None:
    shown = (reviewed(GROWN, made(BEFORE, cluster="east")), reviewed(slotted("t", ["a"]), Broker()))
    saved = SavedPlan(OPTIONS | {"strategy": "append"}, shown)
    path.write_text(dumps_plan(saved, version="0.2.0"))
    assert load_plan(path) == saved


def test_a_plan_of_a_later_format_names_the_version_that_wrote_it(path) -> None:
    path.write_text('{"plan": 2, "rabbit-chx": "9.1.0", "new": true}')
    with pytest.raises(InvalidValue, match=r"got 2, expected 1\. rabbit-chx 9\.1\.0 has written the file"):
        load_plan(path)


def damaged(text: str):
    """The text cut off at many places, and with each value of another type or missing."""
    yield from (text[:end] for end in range(0, len(text) - 2, 40))
    for other in (None, 7, "x", [], {}, [1], True):
        whole = json.loads(text)
        for keys in (
            *([key] for key in whole),
            *(["options", key] for key in whole["options"]),
            *(["vhosts", 0, key] for key in whole["vhosts"][0]),
        ):
            changed = json.loads(text)
            *parents, last = keys
            target = changed
            for key in parents:
                target = target[key]
            if isinstance(other, type(target[last])) and not isinstance(other, (list, bool)):
                continue
            del target[last]
            yield json.dumps(changed)
            target[last] = other
            yield json.dumps(changed)


def test_a_damaged_file_is_an_invalid_value_or_the_same_topology(path) -> None:
    shown = reviewed(GROWN, made(BEFORE))
    text = dumps_plan(SavedPlan(OPTIONS, (shown,)), version="0.2.0")
    refused = []
    for one in damaged(text):
        path.write_text(one)
        try:
            found = load_plan(path)
        except InvalidValue as error:
            refused.append(str(error))
        else:
            assert [each.wanted for each in found.reviewed] == [GROWN], one
    assert len(refused) > 80
    assert all(str(path) in why or "format" in why for why in refused)
