"""The commands of each kind of step, and what the broker must show when they are done. This file opens no socket.

A step that the broker may ignore in silence is read back, where there is a management API to do so: exchange arguments
(a declaration with others is accepted and ignored), a second binding of a destination (accepted, and without effect on
the ring), an unbind that names other arguments than were bound. Binds are compared with all that the exchange had
before, so that a stranger's hand is noticed, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rabbit_chx.broker.applying.protocol import OnChannel, OverHttp, Refused, Surprise
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.model import CONSISTENT_HASH
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from rabbit_chx.broker.applying.protocol import Command
    from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["StepCommands", "declare_exchange"]

Work: TypeAlias = "Generator[Command, Any, bool]"
"""The commands of one step; True at its end if there was anything to do."""

# rabbit_exchange:assert_args_equivalence/2 compares this one of all exchange arguments, and no other.
_COMPARED_BY_THE_BROKER: Final = {"alternate-exchange"}


@dataclass
class StepCommands:
    """One plan's work in progress: what was last seen of each exchange that bindings lead away from."""

    vhost: str
    seen: bool
    """Whether there is a management API to look with."""
    unverified: list[str] = field(default_factory=list)
    listed: dict[str, dict[str, Binding]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    def work(self, step: Step) -> Work:
        """The commands of one step."""
        match step:
            case DeclareExchange():
                return self._declare_exchange(step.exchange)
            case DeclareQueue():
                return self._declare_queue(step.queue)
            case Bind():
                return self._bind(step.binding)
            case Unbind():
                return self._unbind(step.binding)
            case DeleteExchange():
                return self._delete_exchange(step.name)
            case DeleteQueue():
                return self._delete_queue(step.name) if not step.force else _delete_by_force(step.name)
            case SetPolicy():
                return self._set_policy(step.policy)
            case ClearPolicy():
                return self._clear_policy(step.name)

    # -- exchanges and queues ----------------------------------------------------------------------

    def _declare_exchange(self, wanted: Exchange) -> Work:
        yield declare_exchange(wanted)
        if not self.seen:
            if ignorable := sorted(set(wanted.arguments) - _COMPARED_BY_THE_BROKER):
                self.unverified.append(
                    f"whether exchange {wanted.name!r} has {', '.join(ignorable)} as declared: an exchange that "
                    "was there before keeps its own"
                )
            return True
        found = yield OverHttp("exchange", (self.vhost, wanted.name))
        if dict(found.arguments) != dict(wanted.arguments):
            raise Surprise(
                f"exchange {wanted.name!r} was there before, with the arguments {_shown(found.arguments)} instead "
                f"of {_shown(wanted.arguments)}; the broker accepts the declaration and ignores them. Arguments "
                "cannot be changed in place: declare a second exchange under another name and switch what feeds "
                "it (blue/green)"
            )
        return True

    def _declare_queue(self, wanted: Queue) -> Work:
        yield OnChannel(
            "queue_declare",
            {
                "queue": wanted.name,
                "durable": wanted.durable,
                "exclusive": wanted.exclusive,
                "auto_delete": wanted.auto_delete,
                "arguments": wanted.declared_arguments,
            },
        )
        if not self.seen:
            return True
        found = yield OverHttp("queue", (self.vhost, wanted.name))
        if found.type != wanted.type:
            raise Surprise(
                f"queue {wanted.name!r} is a {found.type} queue, not {wanted.type}: the virtual host's default queue "
                "type made it so; change that, or the file"
            )
        if dict(found.arguments) != dict(wanted.arguments):
            raise Surprise(
                f"queue {wanted.name!r} was there before, with the arguments {_shown(found.arguments)} instead of "
                f"{_shown(wanted.arguments)}: declare another queue and bind it in place of this one"
            )
        return True

    def _delete_exchange(self, name: str) -> Work:
        self.listed.pop(name, None)
        yield OnChannel("exchange_delete", {"exchange": name, "if_unused": True})
        return True

    def _delete_queue(self, name: str) -> Work:
        """Delete a queue that nobody misses.

        Classic queues check by themselves. Quorum queues close the connection when they are asked to
        (rabbit_quorum_queue:delete/4: 540), so they are counted first; streams delete what is in them.
        """
        try:
            count = yield OnChannel("queue_declare", {"queue": name, "passive": True})
        except Refused as refused:
            if refused.code == 404:
                return False
            raise
        if count.message_count or count.consumer_count:
            raise Surprise(
                f"queue {name!r} has {count.message_count} messages and {count.consumer_count} consumers: end "
                "these and drain those, or force it"
            )
        kind = (yield OverHttp("queue", (self.vhost, name))).type
        if kind == "stream":
            raise Surprise(f"nobody can tell whether stream {name!r} is still wanted: force it, if it is not")
        if kind == "quorum":
            self.unverified.append(
                f"whether quorum queue {name!r} was empty to the last: it was counted, then deleted, since it "
                "knows no if-empty"
            )
        careful = kind == "classic"
        self.listed.clear()  # its bindings went with it
        yield OnChannel("queue_delete", {"queue": name, "if_unused": careful, "if_empty": careful})
        return True

    # -- bindings ----------------------------------------------------------------------------------

    def _bind(self, bound: Binding) -> Work:
        if not self.seen:
            yield _bind_command("bind", bound)
            self._doubt_bindings_of(bound.source)
            return True
        before = yield from self._bindings_of(bound.source)
        if _identity(bound) in before:
            return False
        twins = [each for each in before.values() if each.destination == bound.destination]
        if twins and self.types[bound.source] == CONSISTENT_HASH:
            raise Surprise(
                f"{bound.destination} is bound to exchange {bound.source!r} already, with weight {twins[0].key!r}: "
                "a second binding would be ignored, and unbinding either would take it out of the ring; unbind it "
                "first, then bind it"
            )
        yield _bind_command("bind", bound)
        yield from self._expect(bound.source, {**before, _identity(bound): bound})
        return True

    def _unbind(self, bound: Binding) -> Work:
        if not self.seen:
            yield _bind_command("unbind", bound)
            self._doubt_bindings_of(bound.source)
            return True
        before = yield from self._bindings_of(bound.source)
        if _identity(bound) not in before:
            return False
        yield _bind_command("unbind", bound)
        yield from self._expect(
            bound.source, {name: each for name, each in before.items() if name != _identity(bound)}
        )
        return True

    def _doubt_bindings_of(self, source: str) -> None:
        doubt = (
            f"whether exchange {source!r} is bound as planned: a second binding of a destination is ignored, and so is "
            "an unbind that names other arguments than were bound"
        )
        if doubt not in self.unverified:
            self.unverified.append(doubt)

    def _bindings_of(self, source: str) -> Generator[Command, Any, dict[str, Binding]]:
        """What the last reading found: the lock is held, so only a stranger could have changed it."""
        if source not in self.listed:
            self.types[source] = (yield OverHttp("exchange", (self.vhost, source))).type
            self.listed[source] = yield from self._read_bindings(source)
        return self.listed[source]

    def _read_bindings(self, source: str) -> Generator[Command, Any, dict[str, Binding]]:
        rows = yield OverHttp("bindings_from", (self.vhost, source))
        return {_identity(row): row for row in rows}

    def _expect(self, source: str, expected: Mapping[str, Binding]) -> Generator[Command, Any, None]:
        found = yield from self._read_bindings(source)
        missing = [_shown_bound(each) for name, each in expected.items() if name not in found]
        extra = [_shown_bound(each) for name, each in found.items() if name not in expected]
        if missing or extra:
            raise Surprise(
                f"exchange {source!r} is not bound as it should be now: "
                + "; ".join(
                    [*(f"missing is {each}" for each in missing), *(f"listed is {each}" for each in extra)]
                )
                + ". Somebody else changes it, or it was bound by a client that writes numbers among the arguments "
                "as another AMQP type, and has to be unbound by that client or over HTTP"
            )
        self.listed[source] = found

    # -- policies ----------------------------------------------------------------------------------

    def _set_policy(self, wanted: Policy) -> Work:
        if wanted in (yield OverHttp("policies", (self.vhost,))):
            return False
        yield OverHttp("put_policy", (self.vhost, wanted))
        if wanted not in (yield OverHttp("policies", (self.vhost,))):
            raise Surprise(f"the broker lists no policy {wanted.name!r} with what was set")
        return True

    def _clear_policy(self, name: str) -> Work:
        if all(policy.name != name for policy in (yield OverHttp("policies", (self.vhost,)))):
            return False
        yield OverHttp("delete_policy", (self.vhost, name))
        if any(policy.name == name for policy in (yield OverHttp("policies", (self.vhost,)))):
            raise Surprise(f"the broker still lists policy {name!r}")
        return True


def declare_exchange(exchange: Exchange) -> OnChannel:
    """The command that declares an exchange."""
    return OnChannel(
        "exchange_declare",
        {
            "exchange": exchange.name,
            "exchange_type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": dict(exchange.arguments),
        },
    )


def _delete_by_force(name: str) -> Work:
    yield OnChannel("queue_delete", {"queue": name})
    return True


def _bind_command(verb: str, bound: Binding) -> OnChannel:
    ends: dict[str, Any] = {"queue": bound.destination, "exchange": bound.source}
    kind = "queue"
    if isinstance(bound.destination, ToExchange):
        kind, ends = "exchange", {"destination": bound.destination.name, "source": bound.source}
    return OnChannel(f"{kind}_{verb}", {**ends, "routing_key": bound.key, "arguments": dict(bound.arguments)})


def _identity(bound: Binding) -> str:
    """What the broker tells bindings of one source apart by."""
    arguments = json.dumps(dict(bound.arguments), sort_keys=True, default=str)
    return f"{bound.destination!r} {bound.key!r} {arguments}"


def _shown_bound(bound: Binding) -> str:
    return f"{bound.destination} with key {bound.key!r} and arguments {_shown(bound.arguments)}"


def _shown(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True, default=str) if arguments else "none"
