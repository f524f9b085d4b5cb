"""The commands of a plan, carried out by a broker that is played: which come, in which order, and what stops them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.applying.plan_commands import check_plan, plan_commands
from rabbit_chx.broker.applying.protocol import Lost, OnChannel, OverHttp, Refused
from rabbit_chx.broker.reading.ring_order import MARKER
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Policy, Queue
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Plan,
    SetPolicy,
    Unbind,
)


@dataclass
class Played:
    """A broker that answers by table, obeys binds, and remembers what it was told."""

    http: dict[str, Any] = field(default_factory=dict)
    trouble: dict[str, BaseException] = field(default_factory=dict)
    bound: list[Binding] = field(default_factory=list)
    deaf: bool = False
    """Whether it says yes to binds and unbinds, and does nothing."""
    told: list[OnChannel | OverHttp] = field(default_factory=list)

    def run(self, *steps, seen: bool = True, on_step=None):
        commands = plan_commands(Plan("/", steps), holder="me", token=7, seen=seen, on_step=on_step)
        answer: Any = None
        trouble: BaseException | None = None
        try:
            while True:
                command = commands.send(answer) if trouble is None else commands.throw(trouble)
                self.told.append(command)
                trouble = self.trouble.get(command.method)
                answer = self.answer(command) if trouble is None else None
        except StopIteration as end:
            return end.value

    def answer(self, command: OnChannel | OverHttp) -> Any:
        if isinstance(command, OverHttp):
            if command.method in {"bindings", "bindings_from"}:
                return list(self.bound)
            plain = {"exchange": Exchange("x", "topic"), "overview": SimpleNamespace(cluster="rabbit@a")}
            found = self.http.get(command.method, plain.get(command.method, []))
            return found(*command.arguments) if callable(found) else found
        verb = command.method.partition("_")[2]
        if verb in {"bind", "unbind"} and not self.deaf:
            given = command.arguments
            to = given["queue"] if "queue" in given else ToExchange(given["destination"])
            source = given["exchange"] if "queue" in given else given["source"]
            bound = Binding(source, to, given["routing_key"], given["arguments"])
            self.bound.append(bound) if verb == "bind" else self.bound.remove(bound)
        return SimpleNamespace(message_count=0, consumer_count=0)

    @property
    def methods(self) -> list[str]:
        """What came on the channel between taking the lock and giving it back."""
        on_channel = [command for command in self.told if isinstance(command, OnChannel)]
        names = [command.method for command in on_channel]
        assert self.told[0] == OnChannel(
            "queue_declare",
            {
                "queue": LOCK,
                "exclusive": True,
                "arguments": {"x-rabbit-chx-holder": "me", "x-max-length": 7},
            },
        )
        assert self.told[-1] == OnChannel("queue_delete", {"queue": LOCK})
        return [name for name, command in zip(names, on_channel, strict=True) if not is_marker(command)][1:-1]


def is_marker(command: OnChannel) -> bool:
    return command.arguments.get("exchange") == MARKER


ONE = Binding("x", "q", "1", {"x-bind-seq": 1})


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
    sent = [command.arguments for command in played.told]
    assert sent[1] == {
        "exchange": "x", "exchange_type": "topic", "durable": True, "auto_delete": False, "internal": True,
        "arguments": {},
    }  # fmt: skip
    assert sent[2]["arguments"] == {"x-queue-type": "quorum", "x-max-length": 1}
    assert sent[4] == {"destination": "y", "source": "x", "routing_key": "2", "arguments": {}}
    assert sent[5] == {"queue": "q", "exchange": "x", "routing_key": "1", "arguments": {"x-bind-seq": 1}}
    assert sent[6] == {"queue": "q"}
    assert sent[7] == {"exchange": "x", "if_unused": True}


def test_what_nobody_can_look_at_is_told() -> None:
    exchange = Exchange("x", CONSISTENT_HASH, arguments={"hash-header": "h", "alternate-exchange": "a"})
    result = Played().run(DeclareExchange(exchange), Bind(ONE), Unbind(ONE), seen=False)
    arguments, binding = result.unverified
    assert "hash-header" in arguments
    assert "alternate-exchange" not in arguments  # the broker compares that one itself
    assert "whether exchange 'x' is bound as planned" in binding
    assert not Played().run(Bind(ONE)).unverified


def test_a_binding_that_stands_is_not_made_again_and_one_that_is_gone_is_not_taken_away() -> None:
    played = Played(bound=[ONE])
    steps = (Bind(ONE), Unbind(Binding("x", "other")))
    assert played.run(*steps).skipped == steps
    assert played.methods == []


def test_a_bind_that_changes_nothing_is_noticed() -> None:
    error = stopped(lambda: Played(deaf=True).run(Bind(ONE)))
    assert "missing is q" in str(error)
    error = stopped(lambda: Played(deaf=True, bound=[ONE]).run(Unbind(ONE)))
    assert "listed is q" in str(error)


def test_a_destination_is_bound_once_to_a_ring_and_as_often_as_you_like_elsewhere() -> None:
    ring = Played(http={"exchange": Exchange("x", CONSISTENT_HASH)}, bound=[ONE])
    again = Binding("x", "q", "5")
    error = stopped(lambda: ring.run(Bind(again)))
    assert "weight '1'" in str(error)
    assert ring.methods == []
    assert Played(bound=[ONE]).run(Bind(again)).done
    moved = Played(http={"exchange": Exchange("x", CONSISTENT_HASH)}, bound=[ONE])
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


@pytest.mark.parametrize(("kind", "careful"), [("classic", True), ("quorum", False)])
def test_a_queue_is_counted_before_it_is_deleted(kind, careful) -> None:
    played = Played(http={"queue": Queue("q", kind)})
    result = played.run(DeleteQueue("q"))
    assert played.methods == ["queue_declare", "queue_delete"]
    assert played.told[-2].arguments == {"queue": "q", "if_unused": careful, "if_empty": careful}
    assert bool(result.unverified) is not careful


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


@pytest.mark.parametrize(
    ("bound", "first"),
    [([], 1), ([ONE], 2), ([ONE, Binding("y", "q", "1", {"x-bind-seq": 9}), Binding("z", "q")], 10)],
)
def test_before_a_numbered_bind_stands_what_vouches_for_its_order(bound, first) -> None:
    played = Played(bound=list(bound))
    played.run(Bind(Binding("x", "r", "1", {"x-bind-seq": first})), Unbind(Binding("x", "r", "2")))
    (vouching,) = [
        command for command in played.told if isinstance(command, OnChannel) and is_marker(command)
    ]
    assert vouching.arguments["arguments"] == {"x-bind-seq": first, "x-cluster": "rabbit@a"}
    assert vouching.arguments["durable"] is False
    unnumbered = Played(bound=list(bound))
    unnumbered.run(Bind(Binding("x", "r", "1")))
    assert not any(map(is_marker, (each for each in unnumbered.told if isinstance(each, OnChannel))))


# ---- what stops it


def test_it_stops_at_the_first_refusal_and_says_what_is_done() -> None:
    played = Played(trouble={"queue_bind": Refused(404, "NOT_FOUND - no queue 'q' in vhost '/'")})
    steps = (DeclareExchange(Exchange("x", "topic")), Bind(ONE), DeleteExchange("x"))
    error = stopped(lambda: played.run(*steps))
    assert (error.done, error.failed, error.remaining) == (steps[:1], steps[1], steps[2:])
    assert str(error).startswith("stopped at step 2 of 3 (bind queue 'q' to exchange 'x' with key '1'): ")
    assert "no queue 'q' in virtual host '/'" in error.reason
    assert played.methods == ["exchange_declare", "queue_bind"]
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.failed) == (str(error), error.failed)


def test_a_lost_connection_leaves_its_step_in_doubt() -> None:
    played = Played(trouble={"queue_bind": Lost("gone"), "queue_delete": Lost("gone")})
    error = stopped(lambda: played.run(Bind(ONE)))
    assert "gone; whether this step was still done is not known: plan again" in str(error)


def test_a_reading_that_fails_leaves_its_step_in_doubt() -> None:
    played = Played(trouble={"bindings_from": BrokerUnavailable("no answer")})
    error = stopped(lambda: played.run(Bind(ONE)))
    assert "no answer; plan again to see whether this step was done" in str(error)


def test_whatever_else_happens_the_lock_is_given_back() -> None:
    def on_step(_: object) -> None:
        raise KeyboardInterrupt

    played = Played()
    with pytest.raises(KeyboardInterrupt):
        played.run(Bind(ONE), on_step=on_step)
    assert played.methods == ["queue_bind"]


@pytest.mark.parametrize("code", [405, 406])
def test_a_lock_that_is_held_names_its_holder(code) -> None:
    played = Played(
        trouble={"queue_declare": Refused(code, "...")},
        http={"queue": Queue(LOCK, arguments={"x-rabbit-chx-holder": "anna on host1"})},
    )
    error = stopped(lambda: played.run(Bind(ONE)))
    assert "anna on host1" in str(error)
    assert (error.done, error.failed, error.remaining) == ((), None, (Bind(ONE),))
    blind = stopped(lambda: Played(trouble=played.trouble).run(Bind(ONE), seen=False))
    assert "cannot be seen" in str(blind)
    assert not any(command.method == "queue_delete" for command in played.told)  # it is not ours


# ---- what is refused before anything is touched


@pytest.mark.parametrize(
    ("plan", "vhost", "seen", "said"),
    [
        (Plan("/", (Bind(ONE),), refusals=("too many keys move",)), "/", True, "too many keys move"),
        (Plan("a", (Bind(ONE),)), "b", True, "for virtual host 'a', but the connection leads to 'b'"),
        (Plan("/", (SetPolicy(Policy("p", "x")),)), "/", False, "set policy 'p' on 'x'.*give management="),
        (Plan("/", (DeleteQueue("q"),)), "/", False, "delete queue 'q'.*give management="),
    ],
)
def test_a_plan_that_cannot_be_applied_is_refused_as_a_whole(plan, vhost, seen, said) -> None:
    with pytest.raises(ApplyStopped, match=f"nothing was changed: .*{said}") as error:
        check_plan(plan, vhost, seen=seen)
    assert error.value.remaining == plan.steps


def test_a_plan_that_can_be_applied_is_not() -> None:
    check_plan(Plan("/", (DeleteQueue("q"),)), "/", seen=True)
    check_plan(Plan("/", (DeleteQueue("q", force=True),)), "/", seen=False)
    check_plan(Plan("a"), "b", seen=False)  # nothing to do is nothing to do anywhere
