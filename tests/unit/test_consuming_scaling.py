"""How `carry_out` chooses groups, holds and drains, against a broker and members that are fakes."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pika.exceptions import ConnectionClosedByBroker

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.base.names import SEATS, seat_queue
from rabbit_chx.broker.applying.handover import MARKER, NotDrained
from rabbit_chx.broker.commands import NO_ROUTE, OnChannel, OverHttp, Pause, Refused, carry_out as do_each
from rabbit_chx.broker.driver import at_once
from rabbit_chx.broker.reading.order_record import anchor, as_recorded, entry, order_exchange
from rabbit_chx.changes import members, scaling
from rabbit_chx.changes.members import NotConsumed, groups_of_held
from rabbit_chx.changes.records import ChangeRecord, unfinished_on
from rabbit_chx.cli.carry_out import carry_out_plans
from rabbit_chx.cli.verb import Exit
from rabbit_chx.consuming.member.roll_call import MemberStatus, QueueStatus
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, NodeState, Queue
from rabbit_chx.topology.planning.steps import Bind, DeclareQueue, Plan, RingChange, Unbind
from rabbit_chx.working.markers import CHANGES, HOLDS, RECORD, Hold


class Killed(BaseException):
    """The process has ended."""


class Scene:
    """A broker whose queues have members that answer every marker; it is driver, management and connection in one."""

    vhost, where = "/", "127.0.0.1:5672"

    def __init__(self, **groups: set[str]) -> None:
        self.groups = groups
        self.existing = {name: {} for queues in groups.values() for name in queues}
        self.existing |= {seat_queue(group, 0): {} for group in groups}
        self.full: dict[str, Refused] = {}
        self.bound: list[Binding] = []
        self.done: list[str] = []
        self.drained: list[str] = []
        """The queues that got the marker of a drain before they were deleted."""
        self.stuck: set[str] = set()
        """Queues whose members get no further than a message before the marker."""
        self.invisible: set[str] = set()
        """Queues on which the user has no permission."""
        self.foreign: set[str] = set()
        """Queues that other programs consume."""
        self.gone: set[str] = set()
        """Queues that somebody else has deleted."""
        self.asked_for: list[str] = []
        """The queues that the broker was asked whether they exist."""
        self.pauses = 0
        self.commands_left: int | None = None
        """How many commands the process carries out before it is killed."""
        self._answers: deque[Any] = deque()

    @property
    def live(self) -> Any:
        """What the command line has of a broker."""
        return SimpleNamespace(amqp=lambda _: nullcontext(self), management=self)

    @property
    def held(self) -> set[str]:
        return {
            Hold.read(name, found[RECORD]).queue
            for name, found in self.existing.items()
            if HOLDS in name and CHANGES not in name
        }

    @property
    def recorded(self) -> list[str]:
        return [name for name in self.existing if CHANGES in name]

    def hold(self, hold: Hold) -> None:
        self.existing |= {hold.queue: {}, hold.name: hold.arguments}

    def scale(self, plan: Plan, **options: Any) -> None:
        scaling.carry_out(plan, self, self, on_done=lambda done: self.done.append(str(done)), **options)

    # ---- the management API and the connection

    def queues(self, _: str) -> list[tuple[Queue, int]]:
        return [(Queue(name, arguments=found), 0) for name, found in self.existing.items()]

    def queue(self, _: str, name: str) -> Queue:
        return Queue(name, "quorum")

    def exchanges(self, _: str) -> list[object]:
        return [order_exchange("rabbit@a"), Exchange("orders", CONSISTENT_HASH)]

    def overview(self) -> SimpleNamespace:
        return SimpleNamespace(cluster="rabbit@a", release="4.3.6")

    def store(self, _: str) -> None: ...

    def feature_flags(self) -> dict[str, bool]:
        return {}

    def bindings_from(self, _: str, source: str) -> list[Binding]:
        return [each for each in self.bound if each.source == source]

    def nodes(self) -> dict[str, NodeState]:
        return {"a": NodeState()}

    def bindings(self, _: str) -> list[Binding]:
        return self.bound

    def sleep(self, _: float) -> None: ...

    def ask(self, _: object, group: str, *, holds=(), **__: object) -> list[MemberStatus]:
        """The answer of a member, which consumes the queues of the holds that the question names."""
        self.groups[group] |= {queue for hold in holds for queue in (hold.queue, *hold.losing)}
        return [MemberStatus(0, answered=True, queues=dict.fromkeys(self.groups[group], QueueStatus()))]

    # ---- the driver

    def run(self, commands: Any) -> Any:
        return at_once(do_each(commands, self._do))

    async def _do(self, command: Any) -> Any:
        if self.commands_left is not None:
            if self.commands_left == 0:
                raise Killed
            self.commands_left -= 1
        match command:
            case OnChannel("queue_declare", {"queue": queue, "passive": True}):
                self.asked_for.append(queue)
                if queue in self.invisible:
                    raise Refused(403, "ACCESS_REFUSED")
                if queue in self.gone:
                    raise Refused(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")
                consumers = sum(queue in each for each in (*self.groups.values(), self.foreign))
                return SimpleNamespace(message_count=0, consumer_count=consumers)
            case OnChannel("queue_declare", {"queue": queue, **more}):
                self.existing[queue] = more.get("arguments", {})
                return SimpleNamespace(queue=queue)
            case OnChannel("queue_delete", {"queue": queue}):
                self.existing.pop(queue, None)
            case OnChannel("basic_publish", {"routing_key": queue, "properties": properties}):
                self.publish(queue, properties["headers"])
            case OverHttp(method, arguments):
                return getattr(self, method)(*arguments)
            case OnChannel("basic_get"):
                return self._answers.popleft() if self._answers else None
            case Pause():
                self.pauses += 1
        return None

    def publish(self, queue: str, headers: dict[str, Any]) -> None:
        """Answer the marker of a drain at the second look; the broker refuses every message to a full queue."""
        if queue in self.full:
            raise self.full[queue]
        if MARKER in headers and queue in self.existing:
            self.drained.append(queue)
        if MARKER in headers and queue not in self.stuck:
            self._answers += [None, SimpleNamespace(headers=headers)]


def declared_and_bound(plan: Plan, on_step: Any, _: object):
    """Stands for the commands of a plan."""
    for step in plan.steps:
        yield OnChannel(
            "queue_declare",
            {"queue": step.queue.name if isinstance(step, DeclareQueue) else step.binding.destination},
        )
        on_step(step)


@pytest.fixture
def scene(monkeypatch):
    """Two groups, each with its own exchange and queues, and a command that scales them."""
    scene = Scene(billing={"o0", "o1"}, mailer={"m0", "m1"})
    monkeypatch.setattr(scaling, "_SETTLE", 0)
    monkeypatch.setattr(scaling, "PikaDriver", lambda *_: scene)
    monkeypatch.setattr(members, "ask", scene.ask)
    monkeypatch.setattr(scaling, "commands_under_lock", declared_and_bound)
    monkeypatch.setattr(scaling, "_EMPTY_IN", 0)
    monkeypatch.setattr(members, "_LONGEST_WAIT_FOR_ANSWERS", 0.1)
    with click.Context(click.Command("scale")):
        yield scene


def appended(**queues: str) -> Plan:
    """Each exchange with two queues gets a third one."""
    changes, steps = [], []
    for exchange, new in queues.items():
        before = Ring.of([f"{new[0]}0", f"{new[0]}1"])
        steps.append(Bind(Binding(exchange, new, "1")))
        changes.append(RingChange(exchange, before, before.bind(new, "1"), None, None))
    return Plan("/", tuple(steps), tuple(changes))


def unbound(*queues: str) -> Plan:
    """Queues whose bindings had no buckets are unbound, so no keys move."""
    return Plan("/", tuple(Unbind(Binding("mail", queue, "1")) for queue in queues))


def record_of(exchange: str, *queues: str) -> list[Binding]:
    """The record that the queues were bound in this order."""
    bound = [as_recorded(Binding(exchange, queue, "1")) for queue in queues]
    return [anchor(exchange), *(entry(exchange, one, number) for number, one in enumerate(bound, 1))]


TWO = appended(orders="o9", mail="m9")


def test_a_group_consumes_only_the_new_queues_that_gain_keys_from_its_own(scene) -> None:
    scene.scale(TWO)
    assert scene.groups == {"billing": {"o0", "o1", "o9"}, "mailer": {"m0", "m1", "m9"}}
    assert {"held queue 'o9'", "released queue 'm9'"} <= {*scene.done}
    assert not scene.held
    assert not scene.recorded


def test_an_interrupted_change_goes_on_with_the_groups_of_its_holds(scene) -> None:
    scene.hold(Hold.of("o9", ["o0", "o1"], groups=["billing"]))
    scene.scale(appended(mail="m9"), group="mailer")
    assert scene.groups == {"billing": {"o0", "o1", "o9"}, "mailer": {"m0", "m1", "m9"}}
    assert not scene.held


def test_a_change_after_an_interrupted_abort_deletes_the_queues_that_the_change_before_it_removed(
    scene,
) -> None:
    record = ChangeRecord("rabbit-chx.hold.change.1", removed=(Queue("o2", "quorum"),), is_abort=True)
    scene.existing |= {record.name: record.arguments, "o2": {}}
    scene.scale(Plan("/"), more=True)
    assert "o2" in scene.existing, "another call is to complete the change"
    scene.scale(Plan("/"))
    assert "o2" not in scene.existing
    assert not scene.recorded


def test_a_removed_queue_that_had_no_keys_is_deleted_too(scene) -> None:
    scene.scale(TWO, removed=["o0", "m1"])
    assert [each for each in scene.done if "delete" in each] == ["deleted queue 'm1'", "deleted queue 'o0'"]
    scene.drained.clear()
    scene.scale(unbound("m0"), removed=["m0"])
    assert scene.drained == ["m0"], "a member may have messages that it has not acknowledged"
    assert scene.done[-2:] == ["drained queue 'm0'", "deleted queue 'm0'"]


def test_a_removed_queue_that_is_not_drained_is_kept_while_it_is_consumed(scene) -> None:
    scene.existing |= {"other": {}, "unused": {}}
    scene.stuck, scene.foreign = {"m0"}, {"other"}
    removed = ["m0", "other", "unused"]
    scene.scale(unbound(*removed), removed=removed, timeout=0.1)
    assert scene.drained == ["m0"], "other programs would take a marker for a message"
    assert scene.done[-3:] == [
        *(f"kept queue '{queue}': it is not empty, or still consumed" for queue in ("m0", "other")),
        "deleted queue 'unused'",
    ]


@pytest.mark.parametrize("stuck", [False, True])
def test_an_abandoned_change_deletes_a_new_queue_only_after_its_messages_are_handled(scene, stuck) -> None:
    """Its exchange had no queues before, so no queue gains its keys, and no hold names it."""
    record = ChangeRecord(f"{CHANGES}1", created=("m0",))
    scene.existing[record.name] = record.arguments
    scene.stuck = {"m0"} if stuck else set()
    options = {"restores": record, "removed": ["m0"], "timeout": 0.1}
    code = carry_out_plans(scene.live, [Plan("/")], "text", **options)
    assert scene.drained == ["m0"]
    assert code == (Exit.PARTLY if stuck else Exit.FINE)
    assert ("m0" in scene.existing) == bool(scene.recorded) == stuck


def test_a_queue_that_an_interrupted_change_left_is_drained_before_it_is_deleted(scene) -> None:
    record = ChangeRecord(f"{CHANGES}1", removed=(Queue("m0", "quorum"),))
    scene.existing[record.name] = record.arguments
    scene.scale(Plan("/"))
    assert scene.done == ["drained queue 'm0'", "deleted queue 'm0'"]


def test_one_repeat_finishes_the_removal_of_a_queue_without_keys_wherever_it_was_killed(scene) -> None:
    """No hold names such a queue."""
    for number in count():
        scene.existing["m0"] = {}
        scene.done.clear()
        scene.commands_left = number
        try:
            scene.scale(unbound("m0"), removed=["m0"])
        except Killed:
            scene.commands_left = None
            plan = Plan("/") if "unbind" in str(scene.done) else unbound("m0")
            scene.scale(plan, removed=["m0"] if plan.steps else [])
        assert not scene.recorded
        assert "m0" not in scene.existing, scene.done
        if scene.commands_left is not None:
            break
    assert number > 10


def test_a_hold_that_cannot_be_recorded_leaves_nothing_behind(scene, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.working.markers.LONGEST_RECORD", 10)
    with pytest.raises(InvalidValue, match="in several steps"):
        scene.scale(TWO)
    assert not scene.recorded


def test_without_members_nothing_is_switched(scene) -> None:
    scene.existing.clear()  # and with it the queues of seats
    with pytest.raises(NotConsumed, match="no member of any group consumes queues 'm0', "):
        scene.scale(TWO)
    assert not scene.done


def test_queues_of_another_group_than_the_named_one_are_not_switched(scene) -> None:
    with pytest.raises(NotConsumed, match=r"no member of group 'mailer' consumes queues 'o0', 'o1'"):
        scene.scale(TWO, group="mailer")
    assert not scene.done
    assert scene.groups == {"billing": {"o0", "o1"}, "mailer": {"m0", "m1"}}


@pytest.mark.parametrize(
    ("queues", "recorded"),
    [
        pytest.param(("o0", "o1", "o5"), ("o0", "o1", "o5"), id="another queue"),
        pytest.param(("o0", "o1"), ("o1", "o0"), id="reordered"),
        pytest.param(("o0", "o1"), (), id="the node was restarted"),
    ],
)
def test_a_plan_from_before_another_command_or_a_restart_changed_the_ring_is_refused(
    scene, queues, recorded
) -> None:
    """Others would gain and lose keys than those that are held and drained, even if the same queues are bound."""

    def bound(*names: str) -> list[Binding]:
        return [Binding("orders", queue, "1") for queue in names]

    plan = appended(orders="o9")
    plan = replace(plan, steps=(replace(plan.steps[0], exchange_moved="orders"),))
    scene.bound = [*bound(*queues), *record_of("orders", *recorded)]
    with pytest.raises(InvalidValue, match="'orders': got bindings that have changed"):
        scene.scale(plan)
    assert not scene.done
    assert not scene.recorded
    scene.bound = [*bound("o0", "o1"), *record_of("orders", "o0", "o1")]
    scene.scale(plan)
    scene.bound = bound("o0", "o1")
    scene.scale(replace(plan, to_record={"orders": plan.changes[0].before}))


def test_a_change_that_another_command_has_finished_is_not_abandoned(scene) -> None:
    with pytest.raises(InvalidValue, match="got one that another command has continued meanwhile"):
        scene.scale(Plan("/"), restores=ChangeRecord(f"{CHANGES}1"))
    assert not scene.recorded


def test_a_member_that_answers_late_is_asked_again_before_anything_is_switched(scene, monkeypatch) -> None:
    """It may have to open the connection on which it answers."""
    asked: list[str] = []

    def ask(connection: object, group: str, **options: Any) -> list[MemberStatus]:
        asked.append(group)
        return [MemberStatus(0)] if len(asked) == 1 else scene.ask(connection, group, **options)

    monkeypatch.setattr(members, "ask", ask)
    scene.scale(appended(orders="o9"), group="billing")
    assert "released queue 'o9'" in scene.done


def interrupted_in_round(scene: Scene, number: int) -> tuple[ChangeRecord, Plan]:
    """Swap the queues of two slots, in two rounds because each queue gains keys from the other; return the record and the way back."""
    scene.bound = [Binding("slot.0", "o0", "1"), Binding("slot.1", "o1", "1")]
    moved = [Binding("slot.0", "o1", "1"), Binding("slot.1", "o0", "1")]
    rounds = [Plan("/", (Bind(to), Unbind(of))) for of, to in zip(scene.bound, moved, strict=True)]
    scene.stuck = {f"o{number - 1}"}
    assert carry_out_plans(scene.live, rounds, "text", timeout=0.1, exchange="tenants") == Exit.PARTLY
    scene.stuck = set()
    back = [Plan("/", (Bind(of), Unbind(to))) for of, to in zip(scene.bound, moved, strict=True)][:number]
    record = unfinished_on(scene, "/").record
    assert record is not None
    return record, Plan("/", tuple(step for plan in back for step in plan.steps))


@pytest.mark.parametrize("abandoned", [True, False], ids=["abandoned", "continued"])
def test_the_first_of_two_rounds_is_abandoned_or_continued(scene, abandoned) -> None:
    record, back = interrupted_in_round(scene, 1)
    assert scene.held == {"o1"}
    assert record.before == {"slot.0": (("o0", "1"),)}
    plan, options = (back, {"restores": record}) if abandoned else (Plan("/"), {})
    assert carry_out_plans(scene.live, [plan], "text", **options) == Exit.FINE
    assert not unfinished_on(scene, "/")


def test_the_second_of_two_rounds_is_continued_and_not_abandoned(scene) -> None:
    """Both rounds are one change, so the way back would be a single round."""
    record, back = interrupted_in_round(scene, 2)
    assert scene.held == {"o0"}
    assert record.before == {"slot.0": (("o0", "1"),), "slot.1": (("o1", "1"),)}
    assert record.exchange == "tenants"
    with pytest.raises(InvalidValue, match="queues 'o0', 'o1', which gain keys from each other"):
        scene.scale(back, restores=record)
    assert scene.held == {"o0"}
    assert carry_out_plans(scene.live, [Plan("/")], "text") == Exit.FINE
    assert not unfinished_on(scene, "/")


@pytest.mark.parametrize("invisible", [set(), {"o0"}], ids=["seen", "without a permission"])
def test_the_marker_waits_for_room_in_a_full_queue(scene, monkeypatch, invisible) -> None:
    """The members of a queue with ``x-overflow: reject-publish`` make the room."""
    scene.full = {"o0": Refused(NO_ROUTE, "NO_ROUTE")}
    scene.invisible = invisible
    said = r"the messages of queues? 'o0'.* not handled within .* \(queue 'o0' had no room for the marker\)"
    with pytest.raises(NotDrained, match=said) as late:
        scene.scale(appended(orders="o9"), timeout=0.1)
    assert "o0" in late.value.queues
    assert late.value.full == ("o0",)
    assert scene.held == {"o9"}
    assert {*scene.asked_for} == {"o0"}
    assert (len(scene.asked_for) == 1) == bool(invisible), (
        "its user may not ask, and is not refused again and again"
    )
    rejected = []

    def publish(queue: str, headers: dict[str, Any]) -> None:
        if queue == "o0":
            rejected.append(scene.pauses)
            if len(rejected) == 3:
                scene.full = {}
        Scene.publish(scene, queue, headers)

    monkeypatch.setattr(scene, "publish", publish)
    scene.scale(Plan("/"))
    assert scene.done[-3:] == ["drained queue 'o1'", "drained queue 'o0'", "released queue 'o9'"]
    assert [later - sooner for sooner, later in pairwise(rejected)] == [20, 20], "it is tried once a second"


def test_a_full_queue_that_is_deleted_ends_the_drain(scene, monkeypatch) -> None:
    def publish(queue: str, headers: dict[str, Any]) -> None:
        if queue == "o0":
            rejected.append(queue)
            scene.gone = {"o0"} if len(rejected) == 3 else set()
        Scene.publish(scene, queue, headers)

    rejected: list[str] = []
    scene.full = {"o0": Refused(NO_ROUTE, "NO_ROUTE")}
    monkeypatch.setattr(scene, "publish", publish)
    with pytest.raises(InvalidValue, match="queue to drain: got 'o0', expected an existing queue"):
        scene.scale(appended(orders="o9"), timeout=300)
    assert scene.held == {"o9"}


UNFINISHED = "Not finished: run the same command again"


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (Refused(NO_ROUTE, "NO_ROUTE"), "got 'o9', expected an existing queue that accepts messages"),
        (Refused(403, "ACCESS_REFUSED"), "ACCESS_REFUSED"),
    ],
)
def test_if_a_queue_cannot_be_held_the_others_are_released_and_nothing_is_unfinished(
    scene, capsys, refused, said
) -> None:
    scene.full = {"o9": refused}
    bind = appended(mail="m9", orders="o9")
    plan = replace(bind, steps=(DeclareQueue(Queue("m9")), *bind.steps))
    assert carry_out_plans(scene.live, [plan], "text") == Exit.FAILED
    found = capsys.readouterr()
    assert found.out.splitlines()[1:] == ["held queue 'm9'", "released queue 'm9'"]
    assert said in found.err
    assert "No bindings were changed" in found.err
    assert UNFINISHED not in found.err
    assert not scene.held
    assert not scene.recorded


def test_a_change_that_failed_after_its_switch_is_unfinished_although_nothing_is_held(scene, capsys) -> None:
    scene.full = {"m0": Refused(403, "ACCESS_REFUSED")}
    assert carry_out_plans(scene.live, [unbound("m0")], "text", removed=["m0"]) == Exit.PARTLY
    assert UNFINISHED in capsys.readouterr().err


def test_a_change_whose_switch_may_have_failed_is_unfinished(scene, monkeypatch, capsys) -> None:
    def lost(plan: Plan, *_: object):
        yield from ()
        if plan.steps:
            raise ApplyStopped("the connection was lost", failed=plan.steps[0], in_doubt=True)

    monkeypatch.setattr(scaling, "commands_under_lock", lost)
    assert carry_out_plans(scene.live, [unbound("m0")], "text") == Exit.PARTLY
    assert UNFINISHED in capsys.readouterr().err


def test_a_connection_lost_while_members_are_asked_leaves_a_command_to_run_again(
    scene, monkeypatch, capsys
) -> None:
    """The members are asked again while the queues drain, so the new queue is already held."""

    shown = ""

    def printed() -> str:
        nonlocal shown
        shown += capsys.readouterr().out
        return shown

    def ask(*given: Any, **options: Any) -> list[MemberStatus]:
        if "held queue 'o9'" in printed():
            raise ConnectionClosedByBroker(320, "CONNECTION_FORCED - shutdown")
        return scene.ask(*given, **options)

    monkeypatch.setattr(members, "ask", ask)
    monkeypatch.setattr(members, "_ANNOUNCE_EVERY", 0.0)
    assert carry_out_plans(scene.live, [appended(orders="o9")], "text") == Exit.PARTLY
    assert "released" not in shown
    errors = capsys.readouterr().err
    assert "Error: the broker at 127.0.0.1:5672 closed the connection" in errors
    assert UNFINISHED in errors
    assert scene.held == {"o9"}
    assert len(scene.recorded) == 1


@pytest.mark.parametrize(
    ("drain_first", "groups"),
    [
        ({"a8": {"a0"}, "a9": {"a8"}}, {"a8": {"A"}, "a9": {"A"}}),
        ({"ab": {"a0", "b0"}}, {"ab": {"A", "B"}}),
        ({"b0": {"a0"}}, {"b0": {"B"}}),
    ],
    ids=["gains keys from a new one", "of two groups", "consumed already"],
)
def test_a_queue_goes_to_the_groups_of_the_queues_that_it_gains_keys_from(drain_first, groups) -> None:
    assert groups_of_held(drain_first, {"A": {"a0"}, "B": {"b0"}}) == groups


@pytest.mark.parametrize("stray", ["5", "\x1b.0", ".0", "billing.d08d67bcf63bc79c", "g" * 237 + ".5"])
def test_a_queue_that_is_no_seat_stops_no_change(scene, stray) -> None:
    scene.existing[f"{SEATS}{stray}"] = {}
    scene.scale(TWO)
    assert scene.groups == {"billing": {"o0", "o1", "o9"}, "mailer": {"m0", "m1", "m9"}}
