"""The commands of a plan against a simulated broker: which are sent, in which order, and what is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx import Ring, ToExchange
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.applying.plan_commands import plan_commands
from rabbit_chx.broker.applying.step_commands import StepCommands, delete_if_empty
from rabbit_chx.broker.commands import OnChannel, OverHttp, Pause, Pipelined, Refused, Surprise, carry_out
from rabbit_chx.broker.driver import at_once
from rabbit_chx.broker.reading.order_record import (
    ORDER_EXCHANGE,
    anchor,
    as_recorded,
    entry as entry_of,
    order_exchange,
)
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, NodeState, Policy, Queue
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Plan,
    RingChange,
    SetPolicy,
    Unbind,
)


def entry(bound: Binding, number: int) -> Binding:
    return entry_of(bound.source, as_recorded(bound), number)


@dataclass
class Played:
    """A simulated broker that answers from a table, makes bindings, and remembers its commands."""

    http: dict[str, Any] = field(default_factory=dict)
    trouble: dict[str, BaseException] = field(default_factory=dict)
    bound: list[Binding] = field(default_factory=list)
    deaf: bool = False
    """Whether it accepts binds and unbinds, and ignores them."""
    told: list[OnChannel | OverHttp] = field(default_factory=list)

    def run(self, *steps, seen: bool = True, record: bool = True, on_step=None, changes=(), to_record=None):
        plan = Plan("/", steps, changes, to_record=to_record or {})
        commands = plan_commands(plan, holder="me", seen=seen, record=record, on_step=on_step)
        return at_once(carry_out(commands, self.do))

    async def do(self, command):
        if isinstance(command, Pause):
            return None
        for each in command.commands if isinstance(command, Pipelined) else (command,):
            self.told.append(each)
            if trouble := self.trouble.get(each.method):
                raise trouble
            answer = self.answer(each)
        return answer

    def answer(self, command: OnChannel | OverHttp) -> Any:
        if isinstance(command, OverHttp):
            if command.method == "bindings_from":
                return [each for each in self.bound if each.source == command.arguments[1]]
            if command.method == "bindings":
                return list(self.bound)
            overview = SimpleNamespace(cluster="rabbit@a", release="4.3.6")
            plain = {
                "exchange": Exchange("x", "topic"),
                "overview": overview,
                "store": None,
                "feature_flags": {"tie_binding_to_dest_with_keep_while_cond": True},
                "nodes": {"a": NodeState()},
            }
            found = self.http.get(command.method, plain.get(command.method, []))
            return found(*command.arguments) if callable(found) else found
        verb = command.method.partition("_")[2]
        if verb in {"bind", "unbind"} and not self.deaf:
            given = command.arguments
            to = given["queue"] if "queue" in given else ToExchange(given["destination"])
            source = given["exchange"] if "queue" in given else given["source"]
            bound = Binding(source, to, given["routing_key"], given["arguments"])
            if verb == "bind" and bound not in self.bound:
                self.bound.append(bound)
            if verb == "unbind" and bound in self.bound:
                self.bound.remove(bound)
        return SimpleNamespace(message_count=0, consumer_count=0)

    @property
    def recorded(self) -> list[Binding]:
        return [each for each in self.bound if each.source == ORDER_EXCHANGE]

    @property
    def methods(self) -> list[str]:
        """The AMQP commands between taking the lock and releasing it, those for the record left out."""
        on_channel = [command for command in self.told if isinstance(command, OnChannel)]
        token = on_channel[0].arguments["arguments"]["x-max-length"]
        arguments = {"x-rabbit-chx-holder": "me", "x-max-length": token}
        taken = {"queue": LOCK, "exclusive": True, "arguments": arguments}
        assert on_channel[0] == OnChannel("queue_declare", taken)
        assert self.told[-1] == OnChannel("queue_delete", {"queue": LOCK})
        return [command.method for command in on_channel if ORDER_EXCHANGE not in command.arguments.values()][
            1:-1
        ]


RING = {"exchanges": [Exchange("x", CONSISTENT_HASH)]}
RECORDING = {"exchanges": [*RING["exchanges"], order_exchange("rabbit@a")]}
ONE = Binding("x", "q", "1", {"note": "n"})


def stopped(call) -> ApplyStopped:
    with pytest.raises(ApplyStopped) as caught:
        call()
    return caught.value


def test_a_plan_without_steps_is_no_command_at_all() -> None:
    played = Played()
    assert not played.run()
    assert not played.told


def test_each_step_is_one_command_between_lock_and_unlock() -> None:
    played = Played()
    steps = (
        DeclareExchange(Exchange("x", "topic", internal=True)),
        DeclareQueue(Queue("q", "quorum", arguments={"x-max-length": 1})),
        Bind(ONE),
        Bind(Binding("x", ToExchange("y"), "2")),
        Unbind(ONE),
        DeleteQueue("q", force=True),
        DeleteExchange("x"),
    )
    result = played.run(*steps, seen=False)
    assert result.done == steps
    assert played.methods == [
        "exchange_declare", "queue_declare", "queue_bind", "exchange_bind", "queue_unbind", "queue_delete",
        "exchange_delete",
    ]  # fmt: skip
    queue, exchange = (command.arguments for command in played.told[-3:-1])
    assert queue == {"queue": "q"}  # with what is in it
    assert exchange == {"exchange": "x", "if_unused": True}


def test_what_cannot_be_read_back_is_listed() -> None:
    exchange = Exchange("x", CONSISTENT_HASH, arguments={"hash-header": "h", "alternate-exchange": "a"})
    result = Played().run(DeclareExchange(exchange), Bind(ONE), Unbind(ONE), seen=False)
    arguments, binding = result.unverified
    assert "hash-header" in arguments
    assert "alternate-exchange" not in arguments  # the broker compares that one itself
    assert "whether exchange 'x' is bound as planned" in binding
    assert not Played().run(Bind(ONE)).unverified


def test_an_existing_binding_is_not_bound_again_and_a_missing_one_is_not_unbound() -> None:
    played = Played(bound=[ONE])
    steps = (Bind(ONE), Unbind(Binding("x", "other")))
    assert played.run(*steps).skipped == steps
    assert played.methods == []


def test_a_bind_that_changes_nothing_is_noticed() -> None:
    error = stopped(lambda: Played(deaf=True).run(Bind(ONE)))
    assert "missing q" in str(error)
    error = stopped(lambda: Played(deaf=True, bound=[ONE]).run(Unbind(ONE)))
    assert "unexpected q" in str(error)
    assert "another AMQP type" in str(error)


def test_changes_of_another_program_are_noticed(monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.broker.applying.step_commands._IN_A_BATCH", 1)
    played, steps = Played(http=RING), (Bind(ONE), Bind(Binding("x", "other", "1")))
    meddle = lambda _: played.bound.append(Binding("x", "stranger", "1"))  # noqa: E731
    error = stopped(lambda: played.run(*steps, on_step=meddle))
    assert "unexpected stranger" in str(error)
    assert error.failed == steps[1]


def test_a_destination_is_bound_once_to_a_ring_and_as_often_as_you_like_elsewhere() -> None:
    ring = Played(http=RING, bound=[ONE])
    again = Binding("x", "q", "5")
    error = stopped(lambda: ring.run(Bind(again)))
    assert "weight '1'" in str(error)
    assert ring.methods == []
    assert Played(bound=[ONE]).run(Bind(again)).done
    moved = Played(http=RING, bound=[ONE])
    assert len(moved.run(Unbind(ONE), Bind(again)).done) == 2  # a change of weight in the one safe order


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Queue("q", "classic"), "default queue type"),
        (Queue("q", "quorum", arguments={"x-max-length": 1}), '{"x-max-length": 1} instead of none'),
    ],
)
def test_a_queue_that_came_out_otherwise_is_noticed(found, said) -> None:
    error = stopped(lambda: Played(http={"queue": found}).run(DeclareQueue(Queue("q", "quorum"))))
    assert said in str(error)


@pytest.mark.parametrize("other", [Queue("other", durable=False), Queue("other", auto_delete=True)])
def test_where_classic_is_not_the_default_type_one_queue_gets_the_wrong_type_and_no_more(other) -> None:
    """The other queue cannot be a quorum queue."""
    played = Played(http={"queue": lambda _, name: other if name == "other" else Queue(name, "quorum")})
    queues = [Queue("q0", "quorum"), other, *(Queue(f"q{number}") for number in range(1, 9))]
    error = stopped(lambda: played.run(*map(DeclareQueue, queues)))
    assert "queue 'q1' is a quorum queue, not classic, because of the default queue type" in str(error)
    assert "delete the queue, which has just been declared" in str(error)
    assert played.methods == ["queue_declare"] * 3


@pytest.mark.parametrize(("kind", "careful"), [("classic", True), ("quorum", False)])
def test_a_queue_is_counted_before_it_is_deleted(kind, careful) -> None:
    played = Played(http={"queue": Queue("q", kind)})
    result = played.run(DeleteQueue("q"))
    assert played.methods == ["queue_declare", "queue_delete"]
    assert played.told[-2].arguments == {"queue": "q", "if_unused": careful, "if_empty": careful}
    assert bool(result.unverified) is not careful


def deleting(kind: str, messages: int = 0, consumers: int = 0, *, may_be_consumed: bool) -> OnChannel:
    """The command that deletes a queue with these counts."""
    commands = delete_if_empty("/", "q", may_be_consumed=may_be_consumed)
    assert next(commands).method == "queue_declare"
    assert commands.send(SimpleNamespace(message_count=messages, consumer_count=consumers)).method == "queue"
    return commands.send(Queue("q", kind))


@pytest.mark.parametrize(("kind", "if_empty"), [("classic", True), ("quorum", False)])
def test_a_consumed_queue_is_deleted_only_if_it_may_be_consumed(kind, if_empty) -> None:
    command = deleting(kind, consumers=2, may_be_consumed=True)
    assert command.arguments == {"queue": "q", "if_unused": False, "if_empty": if_empty}
    with pytest.raises(Surprise, match="0 messages and 2 consumers"):
        deleting(kind, consumers=2, may_be_consumed=False)


@pytest.mark.parametrize("may_be_consumed", [True, False])
def test_messages_and_streams_are_never_deleted_without_force(may_be_consumed) -> None:
    with pytest.raises(Surprise, match="has 1 message and 0 consumers"):
        deleting("quorum", messages=1, may_be_consumed=may_be_consumed)
    with pytest.raises(Surprise, match="stream 'q'"):
        deleting("stream", may_be_consumed=may_be_consumed)


def test_the_deletion_of_a_missing_queue_is_skipped() -> None:
    work = StepCommands("/", seen=True)
    commands = work.carry_out([DeleteQueue("q")])
    next(commands)
    with pytest.raises(StopIteration):
        commands.throw(Refused(404, "NOT_FOUND - no queue 'q' in vhost '/'"))
    assert work.worked == [False]


def test_a_queue_on_a_stopped_node_is_not_taken_for_deleted() -> None:
    down = "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible"
    played = Played(trouble={"queue_declare": Refused(404, down)})
    commands = StepCommands("/", seen=True).carry_out([DeleteQueue("q")])
    with pytest.raises(Refused, match="down or inaccessible"):
        at_once(carry_out(commands, played.do))


def test_policies_are_set_and_cleared_once() -> None:
    policy, policies = Policy("p", "^q$"), []
    played = Played(
        http={
            "policies": lambda _: list(policies),
            "put_policy": lambda _, given: policies.append(given),
            "delete_policy": lambda *_: policies.clear(),
        }
    )
    steps = (SetPolicy(policy), SetPolicy(policy), ClearPolicy("p"), ClearPolicy("p"))
    result = played.run(*steps)
    assert (result.done, result.skipped) == (steps[::2], steps[1::2])
    deaf = Played(http={"policies": []})
    assert "lists no policy 'p'" in str(stopped(lambda: deaf.run(SetPolicy(policy))))


# ---- the record of the order


def test_binds_of_a_ring_are_recorded_in_their_order_and_unbinds_take_their_entry_back() -> None:
    played = Played(http=RING)
    a, b, c = (
        Binding("x", name, weight) for name, weight in (("a", "1"), ("b", "2"), (ToExchange("c"), "1"))
    )
    assert played.run(Bind(a), Bind(b), Bind(c)).done
    declared = [each.arguments for each in played.told if each.method == "exchange_declare"]
    assert [each["exchange"] for each in declared] == [ORDER_EXCHANGE]
    assert declared[0]["durable"] is False
    assert played.recorded == [anchor("x"), entry(a, 1), entry(b, 2), entry(c, 3)]
    played.http = RECORDING
    heavier = Binding("x", "a", "5")
    played.run(Unbind(a), Bind(heavier))
    assert played.recorded == [anchor("x"), entry(b, 2), entry(c, 3), entry(heavier, 4)]


def test_the_entry_is_written_before_the_bind_and_taken_back_after_the_unbind() -> None:
    played = Played(http=RING)
    played.run(Bind(Binding("x", "q", "1")), Unbind(Binding("x", "q", "1")))
    sources = [
        each.arguments["exchange"] for each in played.told if each.method in {"queue_bind", "queue_unbind"}
    ]
    assert sources == [ORDER_EXCHANGE, "x", "x", ORDER_EXCHANGE]


def test_a_known_order_is_recorded_when_a_ring_changes() -> None:
    there = [Binding("x", name, "1") for name in "abc"]
    before = Ring.of(["c", "a", "b"])
    asked = Played(http=RING, bound=list(there))
    asked.run(Bind(Binding("x", "d", "1")), to_record={"x": before})
    assert [each.destination for each in asked.recorded[1:]] == ["c", "a", "b", "d"]
    unknown = Played(http=RING, bound=list(there))
    unknown.run(Bind(Binding("x", "d", "1")))
    assert [each.destination for each in unknown.recorded[1:]] == ["d"]


def test_entries_of_an_exchange_that_was_deleted_do_not_pass_for_the_record_of_its_successor() -> None:
    there = [Binding("x", name, "1") for name in "abc"]
    left = [
        entry(bound, number) for number, bound in enumerate(there, 1)
    ]  # the anchor went with the exchange
    played = Played(http=RECORDING, bound=[*there, *left])
    played.run(Bind(Binding("x", "d", "1")), to_record={"x": Ring.of(["a", "b", "c"])})
    assert played.recorded[0] == anchor("x")
    assert [each.destination for each in played.recorded[1:]] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("seen", [True, False])
def test_without_a_record_an_unbind_voids_what_was_recorded(seen) -> None:
    others = [anchor("y"), entry(Binding("y", "q", "1"), 2)]
    played = Played(http=RECORDING, bound=[ONE, anchor("x"), *others])
    played.run(Bind(Binding("x", "r", "1")), seen=seen, record=not seen)
    assert played.recorded == [anchor("x"), *others]
    played.run(Unbind(ONE), seen=seen, record=not seen)
    assert played.recorded == others


def test_without_a_record_on_the_broker_nothing_is_voided() -> None:
    played = Played(http=RING, bound=[ONE], trouble={"exchange_declare": Refused(404, "NOT_FOUND")})
    played.run(Unbind(ONE), record=False)
    assert played.methods == ["queue_unbind"]


def test_an_unbind_from_an_exchange_that_does_not_hash_voids_nothing() -> None:
    """It needs a permission on the record from 4.3.1 on, which `--no-record` is to do without."""
    http = {"exchanges": [Exchange("x", "topic"), order_exchange("rabbit@a")]}
    played = Played(http=http, bound=[ONE], trouble={"exchange_declare": Refused(403, "ACCESS_REFUSED")})
    assert played.run(Unbind(ONE), record=False).done == (Unbind(ONE),)


@pytest.mark.parametrize("record", [True, False])
def test_from_4_3_on_a_binding_may_follow_one_that_differs_only_in_its_arguments(record) -> None:
    steps = (Bind(replace(ONE, arguments={})), Unbind(ONE))
    assert Played(http=RING, bound=[ONE]).run(*steps, record=record).done == steps


def test_a_deleted_exchange_takes_its_entries_along() -> None:
    entries = [anchor("x"), entry(Binding("x", "q", "1"), 1), entry(Binding("y", "q", "1"), 2)]
    played = Played(http={"exchanges": [order_exchange("rabbit@a")]}, bound=[*entries])
    played.run(DeleteExchange("x"))
    assert played.recorded == [entries[0], entries[2]]  # the broker deletes the anchor itself
    refused = Played(http=played.http, bound=[*entries], trouble={"queue_unbind": Refused(404, "gone")})
    assert "gone" in str(stopped(lambda: refused.run(DeleteExchange("x"))))


def test_only_rings_are_recorded() -> None:
    played = Played()
    played.run(Bind(Binding("x", "q", "1")))
    assert not played.recorded


def appending(**given: Any) -> Any:
    """Apply a plan that appends queue d to ring x, which had the queues a, b and c when it was made."""
    before = Ring.of(["a", "b", "c"])
    step = Bind(Binding("x", "d", "1"), exchange_moved="x", moved=0.25)
    return lambda played: played.run(
        step, changes=(RingChange("x", before, before.bind("d"), 0.1, 0.1),), **given
    )


def bound_in_order(bound: str, record: str) -> Played:
    """A broker with these queues on ring x, and the record that these were bound in turn."""
    entries = [entry(Binding("x", name, "1"), number) for number, name in enumerate(record, 1)]
    there = [Binding("x", name, "1") for name in bound]
    return Played(RECORDING, bound=[*there, *([anchor("x")] if record else []), *entries])


@pytest.mark.parametrize(
    ("bound", "record"),
    [
        pytest.param("abce", "abce", id="another queue"),
        pytest.param("ab", "ab", id="a queue less"),
        pytest.param("abc", "cba", id="reordered"),
        pytest.param("abc", "", id="the node was restarted"),
    ],
)
def test_a_plan_for_a_ring_that_has_changed_since_is_not_applied(bound, record) -> None:
    """Two users planned on the same state, and the other one was faster."""
    played = bound_in_order(bound, record)
    error = stopped(lambda: appending()(played))
    assert "'x': got bindings that have changed since it was planned" in str(error)
    assert (error.done, error.failed, len(error.remaining)) == ((), None, 1)
    assert played.methods == []


@pytest.mark.parametrize(("bound", "seen"), [("abc", True), ("abcd", True), ("abce", False)])
def test_a_plan_is_applied_before_and_after_its_steps_and_where_bindings_are_not_seen(bound, seen) -> None:
    result = appending(seen=seen)(bound_in_order(bound, bound))
    assert bool(result.done) == (bound != "abcd")


def test_a_plan_that_changes_weights_can_be_applied_again() -> None:
    """After it, the same queues are bound in another order."""
    ring = Ring.of(["a", "b"])
    old, new = Binding("x", "a", "1"), Binding("x", "a", "2")
    steps = [kind(bound, exchange_moved="x", moved=0.5) for kind, bound in ((Unbind, old), (Bind, new))]
    changes = (RingChange("x", ring, ring.unbind("a", "1").bind("a", "2"), 0.5, 0.5),)
    played = bound_in_order("ab", "ab")
    assert len(played.run(*steps, changes=changes).done) == 2
    assert len(played.run(*steps, changes=changes).skipped) == 2


@pytest.mark.parametrize(("record", "expected"), [("cba", "cbad"), ("", "d")])
def test_an_order_from_before_another_command_or_a_restart_changed_it_is_not_recorded(
    record, expected
) -> None:
    """The user took a while to answer the question of `apply`."""
    played, before = bound_in_order("abc", record), Ring.of(["a", "b", "c"])
    played.run(Bind(Binding("x", "d", "1")), changes=(RingChange("x", before, before.bind("d"), 0.1, 0.1),))
    assert [each.destination for each in played.recorded[1:]] == [*expected]
