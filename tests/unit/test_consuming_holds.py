"""The record of a hold, plans that cannot keep the order of keys, and the deletion of removed queues."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.broker.commands import OnChannel, Pause, Refused, Surprise, carry_out as do_each, is_missing
from rabbit_chx.broker.driver import at_once
from rabbit_chx.broker.permissions import NOTHING
from rabbit_chx.changes.records import declare_commands, hold_commands
from rabbit_chx.changes.scaling import Done, _Change, delete_when_empty
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.consuming.queues.queues import fit_queues
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.model import Binding, Queue
from rabbit_chx.topology.planning.drain_order import check_current, held_queues
from rabbit_chx.topology.planning.plan import plan as planned
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind
from rabbit_chx.working.markers import HOLD, HOLDS, Hold, Kind, hold_of, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.workers import Workers
from tests.unit.test_consuming_lanes import SETTINGS
from tests.unit.topology.broker_model import hashed, made, slotted
from tests.wire import encoded_properties, refusal


def test_a_hold_survives_writing_and_reading() -> None:
    hold = Hold.of("q8", ["q1", "q0", "q9"], removed=["q9", "q7"], groups=["billing"])
    assert hold.name.startswith(HOLDS)
    assert hold.losing == ("q0", "q1", "q9")
    assert hold.removed == ("q9",)
    assert Hold.read(hold.name, hold.record) == hold
    assert Hold.of("q8", []).name != Hold.of("q8", []).name


def test_the_marker_of_a_hold_names_the_hold() -> None:
    hold = Hold.of("q8", ["q0"])
    (declared,) = declare_commands(hold)
    (published,) = hold_commands(hold)
    assert declared.arguments["queue"] == hold.name
    assert declared.arguments["durable"]
    assert (
        declared.arguments["arguments"]["x-queue-type"] == "quorum"
    )  # it outlives a node, as the queue that it holds
    assert published.arguments["mandatory"]
    properties = published.arguments["properties"]
    assert properties == {"headers": {HOLD: hold.name}, "delivery_mode": 2}
    marker = Delivery(published.arguments["body"], "q8", queue="q8", encoded=encoded_properties(**properties))
    assert kind_of(marker) is Kind.HOLD
    assert hold_of(marker) == hold


DOWN = [
    "NOT_FOUND - queue 'rabbit-chx.hold.x' in vhost '/' process is stopped by supervisor",
    "NOT_FOUND - home node 'rabbit@b' of durable queue 'rabbit-chx.hold.x' in vhost '/' is down or inaccessible",
    "NOT_FOUND - failed to perform operation on queue 'rabbit-chx.hold.x' in vhost '/' due to timeout",
]


ABSENT = "NOT_FOUND - no queue 'rabbit-chx.hold.x' in vhost '/'"


@pytest.fixture
def held(monkeypatch):
    """Returns the hold of a lane at a time, after a look to which the broker gave this answer; none: the hold exists."""

    def look(now: float, answer: str | None) -> str | None:
        monkeypatch.setattr("rabbit_chx.consuming.member.interruptions.monotonic", lambda: now)
        commands = made.release([lane])
        assert next(commands).arguments == {"queue": "rabbit-chx.hold.x", "passive": True}
        with pytest.raises(StopIteration):
            commands.throw(Refused(404, answer)) if answer else commands.send(None)
        return lane.hold

    made = Interruptions(Settings(**SETTINGS), Workers(print, 1, 10), print, print)
    lane = QueueLane("q8")
    lane.attach(object(), 1)
    lane.hold = "rabbit-chx.hold.x"
    return look


@pytest.mark.parametrize("text", DOWN)
def test_a_queue_stays_held_while_the_broker_cannot_reach_its_hold(held, text) -> None:
    assert held(10.0, text)
    assert held(10.5, ABSENT) is None


@pytest.mark.parametrize("name", ["ä".encode("latin-1"), "ä".encode()[:1] + b"..."], ids=["4.0", "3.10"])
def test_a_queue_is_missing_though_the_reply_is_not_utf_8(held, name) -> None:
    error = refusal(404, b"NOT_FOUND - no queue 'q" + name)
    assert is_missing(error.reply_text)
    assert held(10.0, error.reply_text)
    assert held(11.0, error.reply_text) is None


def test_a_queue_stays_held_when_a_node_does_not_know_the_hold_for_a_moment(held) -> None:
    """On Khepri, the node of the member may learn of the hold later than the node where it was declared."""
    for now in (10.0, 10.5, 10.9):
        assert held(now, ABSENT)
    assert held(11.0, ABSENT) is None


def test_a_queue_is_released_at_once_when_a_hold_that_was_found_is_deleted(held) -> None:
    assert held(10.0, ABSENT)
    assert held(10.1, None)
    assert held(10.2, ABSENT) is None


def test_a_member_consumes_the_other_queues_while_the_broker_cannot_reach_one() -> None:
    """The broker tells nothing about such a queue; the member looks at it again later."""
    assert consumed_of(["q0", "q1"], unreachable={"q0"}, strict=False) == ("q1",)


def test_a_member_that_starts_waits_for_a_queue_that_the_broker_cannot_reach() -> None:
    with pytest.raises(Refused, match="stopped by supervisor"):
        consumed_of(["q0", "q1"], unreachable={"q0"}, strict=True)


def consumed_of(names: list[str], unreachable: set[str], *, strict: bool) -> tuple[str, ...]:
    """Which of the queues a group can consume."""

    async def declare(command: OnChannel) -> None:
        if command.arguments["queue"] in unreachable:
            raise Refused(404, DOWN[0])

    fit = fit_queues(names, Settings(**SETTINGS), Release._of_broker("4.3.0"), {}, strict=strict)
    return at_once(do_each(fit, declare))


# ---- the order of release


def changed(before: Ring, *steps) -> Plan:
    ring = before
    for step in steps:
        do = ring.bind if isinstance(step, Bind) else ring.unbind
        ring = do(step.binding.destination, step.binding.key)
    return Plan("/", steps, (RingChange("x", before, ring, None, None),))


UNKNOWN = Ring(Ring.of(["a", "b"]).bindings, None, Ring.of(["a", "b"]).release, "the node was restarted")


def test_appended_queues_wait_for_those_that_lose_keys() -> None:
    plan = changed(Ring.of(["a", "b"]), Bind(Binding("x", "c", "1")), Bind(Binding("x", "d", "1")))
    assert held_queues(plan) == {"c": {"a", "b"}, "d": {"a", "b", "c"}}


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (changed(Ring.of(["a", "b", "c"]), Unbind(Binding("x", "a", "1"))), "gain keys from each other"),
        (
            Plan("/", (Bind(Binding("m", "q", ""), exchange_moved="m", moved=0.5),)),
            "x-modulus-hash.*slots under a new name",
        ),
        (
            changed(Ring.of(["a", ToExchange("b")]), Bind(Binding("x", "c", "1"))),
            r"between exchanges \(exchange b\)",
        ),
        (
            Plan("/", (Bind(Binding("x", "c", "1")),), (RingChange("x", UNKNOWN, UNKNOWN, None, None),)),
            r"unknown order.*the node was restarted",
        ),
    ],
)
def test_a_change_that_cannot_keep_order_is_an_error(plan, reason) -> None:
    with pytest.raises(InvalidValue, match=reason):
        held_queues(plan)


@pytest.mark.parametrize("kind", [hashed, slotted])
@pytest.mark.parametrize(("queues", "other"), [("ab", "abcd"), ("abcd", "ab")])
def test_a_plan_is_current_until_another_change_has_begun(kind, queues, other) -> None:
    start, wanted = kind("x", "abc"), kind("x", queues)
    broker = made(start)
    plan, foreign = (planned(kind("x", each), broker.seen(), max_moved=1) for each in (queues, other))
    assert {step.binding.source for step in plan.steps if isinstance(step, (Bind, Unbind))}
    check_current(plan, broker.bindings)
    for step in plan.steps:
        broker.do(step)
        check_current(plan, broker.bindings)
    assert not planned(wanted, broker.seen())
    broker = made(start).carry_out(foreign.steps)
    with pytest.raises(InvalidValue, match="bindings that have changed since it was planned"):
        check_current(plan, broker.bindings)


# ---- the deletion of removed queues


def actions_of_deletion(trouble: Exception | None) -> list[Done]:
    """What is reported when the broker answers the deletion of a queue with this error."""

    def run(_: object) -> None:
        if trouble:
            raise trouble

    done: list[Done] = []
    driver = SimpleNamespace(vhost="/", run=run)
    there = SimpleNamespace(queues=lambda _: [(Queue("q"), 0)], bindings=lambda _: [])
    _Change(None, there, driver, done.append, timeout=1, by="", needs=NOTHING).delete(["q"])
    return done


@pytest.mark.parametrize("trouble", [Surprise("1 message"), Refused(406, "PRECONDITION_FAILED")])
def test_a_removed_queue_that_is_not_empty_is_kept(trouble) -> None:
    assert actions_of_deletion(None) == [Done("delete", "q")]
    assert actions_of_deletion(trouble) == [Done("keep", "q")]


def test_a_removed_queue_is_deleted_once_its_last_message_is_handled() -> None:
    commands = delete_when_empty("/", "q", patience=5.0)
    assert next(commands).method == "queue_declare"
    assert isinstance(commands.send(SimpleNamespace(message_count=1, consumer_count=1)), Pause)
    assert next(commands).method == "queue_declare"
    commands.send(SimpleNamespace(message_count=0, consumer_count=1))
    assert commands.send(SimpleNamespace(type="quorum")).method == "queue_delete"


def test_another_refusal_of_a_deletion_is_an_error() -> None:
    with pytest.raises(Refused, match="ACCESS_REFUSED"):
        actions_of_deletion(Refused(403, "ACCESS_REFUSED"))
