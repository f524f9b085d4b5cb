"""The commands of each step, and the check that the broker carried them out. No connection is opened here.

The broker may ignore a command without an error: other exchange arguments than it has, a second binding of a
destination of a ring, an unbind with other arguments than were bound. So declarations and bindings are read back where
there is a management API: once for a batch of steps of one kind, since a request costs more than a command. Bindings
are compared with all that the exchange had before, so that changes of other programs are noticed too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Final, TypeAlias

from rabbit_chx.base.text import counted
from rabbit_chx.broker.applying.order_writer import OrderWriter, bind_command, declare_exchange
from rabbit_chx.broker.applying.read_back import Listed, check_bindings, check_declared, read_back, unverified
from rabbit_chx.broker.commands import (
    Command,
    OnChannel,
    OverHttp,
    Pipelined,
    Refused,
    Surprise,
    is_missing,
    without_repeats,
)
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.model import CONSISTENT_HASH, HASHING, Binding, Exchange, Policy, Queue
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Step,
    Unbind,
)

_Sent: TypeAlias = tuple[int, Refused | None]
"""How many steps were carried out, and why the next one was refused."""

_IN_A_BATCH: Final = 200
_FEW: Final = 3
"""Up to this many objects are asked for one by one, more in one list."""

_READ_BACK_WITH: Final[dict[type, str]] = {
    DeclareExchange: "exchange",
    DeclareQueue: "queue",
    Bind: "binding",
    Unbind: "binding",
}


def batches(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Steps in their order, those that are read back together in one batch.

    A batch ends at the first classic queue that may get the default type of the virtual host, so that no more get it.
    """
    for kind, group in groupby(steps, lambda step: _READ_BACK_WITH.get(type(step))):
        same = tuple(group)
        size = _IN_A_BATCH if kind else 1
        first = next((number for number, step in enumerate(same, 1) if _may_get_default(step)), 0)
        for part in (same[:first], same[first:]):
            yield from (part[start : start + size] for start in range(0, len(part), size))


def _may_get_default(step: Step) -> bool:
    """Whether it declares a classic queue that could be of another type: quorum queues and streams are durable, and not auto-delete."""
    if not isinstance(step, DeclareQueue) or step.queue.type != "classic":
        return False
    return step.queue.durable and not step.queue.auto_delete


@dataclass
class StepCommands:
    """The steps of one plan, and what was last seen of each exchange whose bindings they change."""

    vhost: str
    seen: bool
    """Whether there is a management API to read back with."""
    records: bool = False
    """Whether the order of rings is recorded."""
    release: Release | None = None
    order: OrderWriter | None = None
    sent: int = 0
    """How many steps the broker may have carried out, in the order of the plan."""
    worked: list[bool] = field(default_factory=list)
    """Of each finished step, whether it changed the broker."""
    unverified: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    _listed: dict[str, Listed] = field(default_factory=dict)

    def know_types(self, exchanges: Iterable[Exchange]) -> None:
        """Remember the types of exchanges that exist."""
        self.types |= {exchange.name: exchange.type for exchange in exchanges}

    def carry_out(self, batch: Sequence[Step]) -> Generator[Command, Any, None]:
        """The commands of one batch; `worked` grows with each step that is finished for certain."""
        self.sent = len(self.worked)
        match batch[0]:
            case DeclareExchange():
                yield from self._declare("exchange", [step.exchange for step in batch])  # type: ignore[union-attr]
            case DeclareQueue():
                yield from self._declare("queue", [step.queue for step in batch])  # type: ignore[union-attr]
            case Bind() | Unbind():
                yield from self._change_bindings(batch)  # type: ignore[arg-type]
            case DeleteExchange(name=name):
                yield from self._delete_exchange(name)
            case DeleteQueue(name=name, force=force):
                yield from self._delete_queue(name, force=force)
            case SetPolicy(policy=policy):
                yield from self._change_policy(
                    OverHttp("put_policy", (self.vhost, policy)),
                    lambda listed: policy in listed,
                    f"the broker lists no policy {policy.name!r} with this definition",
                )
            case ClearPolicy(name=name):
                yield from self._change_policy(
                    OverHttp("delete_policy", (self.vhost, name)),
                    lambda listed: all(each.name != name for each in listed),
                    f"the broker still lists policy {name!r}",
                )

    def _send(self, commands: Sequence[Sequence[OnChannel]]) -> Generator[Command, Any, _Sent]:
        """Send the commands of several steps and return how many steps were carried out."""
        count = 0
        for part in without_repeats(commands):
            sent, refused = yield from self._send_part(part)
            count += sent
            if refused:
                return count, refused
        return count, None

    def _send_part(self, commands: Sequence[Sequence[OnChannel]]) -> Generator[Command, Any, _Sent]:
        """Send the commands of steps that have nothing in common.

        A refusal within a pipeline does not identify the command, so all commands are sent again, one by one:
        a command that was carried out changes nothing the second time, since none after it undoes it.
        """
        flat = tuple(command for of_step in commands for command in of_step)
        before, self.sent = self.sent, self.sent + len(commands)
        if len(flat) > 1:
            try:
                yield Pipelined(flat)
            except Refused as refused:
                if refused.closed_connection:
                    raise
            else:
                return len(commands), None
        for count, of_step in enumerate(commands):
            for command in of_step:
                try:
                    yield command
                except Refused as refused:
                    self.sent = before + count
                    return count, refused
        return len(commands), None

    def _send_one(self, *commands: OnChannel) -> Generator[Command, Any, None]:
        _, refused = yield from self._send([commands])
        if refused:
            raise refused

    # -- exchanges and queues ----------------------------------------------------------------------

    def _declare(self, kind: str, wanted: Sequence[Any]) -> Generator[Command, Any, None]:
        command = declare_exchange if kind == "exchange" else _declare_queue
        count, refused = yield from self._send([[command(each)] for each in wanted])
        sent = wanted[:count]
        begun = len(self.worked)

        def check(found: Mapping[str, Any]) -> None:
            del self.worked[begun:]
            for each in sent:
                check_declared(kind, each, found.get(each.name))
                self.worked.append(True)

        if self.seen:
            yield from read_back(lambda: self._named(kind, sent), check)
        else:
            self.unverified += unverified(sent)
            self.worked += [True] * len(sent)
        self.know_types(sent if kind == "exchange" else ())
        if refused:
            raise refused

    def _named(self, kind: str, wanted: Sequence[Any]) -> Generator[Command, Any, dict[str, Any]]:
        """The exchanges or queues of these names that the broker lists."""
        if len(wanted) <= _FEW:
            found = {}
            for each in wanted:
                found[each.name] = yield OverHttp(kind, (self.vhost, each.name))
            return found
        rows = yield OverHttp(f"{kind}s", (self.vhost,))
        return {each.name: each for each in (row[0] if kind == "queue" else row for row in rows)}

    def _delete_exchange(self, name: str) -> Generator[Command, Any, None]:
        self._listed.pop(name, None)
        delete = OnChannel("exchange_delete", {"exchange": name, "if_unused": True})
        recorded = self.order.delete_exchange(name) if self.order else []
        yield from self._send_one(delete, *recorded)
        self.worked.append(True)

    def _delete_queue(self, name: str, *, force: bool) -> Generator[Command, Any, None]:
        self._listed.clear()  # its bindings go with it
        if force:
            yield from self._send_one(OnChannel("queue_delete", {"queue": name}))
        else:
            try:
                kind = yield from delete_if_empty(self.vhost, name)
            except Refused as refused:
                if not is_missing(refused.text):
                    raise
                self.worked.append(False)
                return
            if kind == "quorum":
                self.unverified.append(
                    f"whether quorum queue {name!r} was still empty when it was deleted: quorum queues do not support "
                    "if-empty, so it was counted just before"
                )
        if self.order:
            self.order.deleted_queue(name)
        self.worked.append(True)

    # -- bindings ----------------------------------------------------------------------------------

    def _change_bindings(self, batch: Sequence[Bind | Unbind]) -> Generator[Command, Any, None]:
        if not self.seen:
            count, refused = yield from self._send([[_command(step)] for step in batch])
            for step in batch[:count]:
                self._doubt_bindings_of(step.binding.source)
                self.worked.append(True)
            if refused:
                raise refused
            return
        before = yield from self.listed({step.binding.source for step in batch})
        commands, surprise = self._commands(batch, before)
        count, refused = yield from self._send(commands)
        yield from self._check_bindings(batch[:count], [bool(own) for own in commands[:count]], before)
        if trouble := refused or surprise:
            raise trouble

    def _commands(
        self, batch: Sequence[Bind | Unbind], before: Mapping[str, Listed]
    ) -> tuple[list[list[OnChannel]], Surprise | None]:
        """The commands of each step, up to the first step that must not be carried out."""
        now = {source: dict(listed) for source, listed in before.items()}
        held: defaultdict[tuple[str, Destination], list[Binding]] = defaultdict(list)
        for bound in chain.from_iterable(listed.values() for listed in before.values()):
            held[bound.source, bound.destination].append(bound)
        commands: list[list[OnChannel]] = []
        for step in batch:
            bound, is_bind = step.binding, isinstance(step, Bind)
            if (bound._identity in now[bound.source]) is is_bind:
                commands.append([])
                continue
            same = held[bound.source, bound.destination]
            own = [_command(step)]
            if self.types.get(bound.source) == CONSISTENT_HASH:
                try:
                    before_it, after_it = self._recorded(step, same, now[bound.source].values())
                except Surprise as surprise:
                    return commands, surprise
                own = [*before_it, *own, *after_it]
            commands.append(own)
            _change(now[bound.source], step)
            same.append(bound) if is_bind else same.remove(bound)
        return commands, None

    def _recorded(
        self, step: Bind | Unbind, same: Sequence[Binding], now: Iterable[Binding]
    ) -> tuple[list[OnChannel], list[OnChannel]]:
        """The commands before and after a ring change that keep the record; ``same`` are the bindings of this destination."""
        bound = step.binding
        if isinstance(step, Bind):
            self._refuse_second_binding(bound, same)
        if self.order is None:
            return [], []
        adopted = self.order.adopt(bound.source, now)
        if isinstance(step, Bind):
            return [*adopted, *self.order.bind(bound)], []
        is_last = sum(each.key == bound.key for each in same) == 1
        return adopted, self.order.unbind(bound) if is_last else []

    def _refuse_second_binding(self, bound: Binding, same: Sequence[Binding]) -> None:
        """From 4.3 on, bindings of one destination that differ only in their arguments share its buckets."""
        shares = self.release is not None and self.release.unbind_spares_duplicates
        if same and not (shares and {each.key for each in same} == {bound.key}):
            raise Surprise(
                f"{bound.destination} is already bound to exchange {bound.source!r}, with weight {same[0].key!r}: "
                "the broker would ignore a second binding, and unbinding either would take all buckets away; "
                "unbind it first, then bind it"
            )

    def listed(self, sources: Iterable[str]) -> Generator[Command, Any, dict[str, Listed]]:
        """The bindings of these exchanges as last read; the lock is held, so only other programs change them."""
        new = sorted(set(sources) - set(self._listed))
        if not set(new) <= self.types.keys():
            self.know_types((yield OverHttp("exchanges", (self.vhost,))))
        self._listed |= yield from self._read_bindings(new)
        return {source: self._listed[source] for source in sources}

    def _read_bindings(self, sources: Sequence[str]) -> Generator[Command, Any, dict[str, Listed]]:
        found: dict[str, Listed] = {source: {} for source in sources}
        if len(sources) <= _FEW:
            for source in sources:
                rows = yield OverHttp("bindings_from", (self.vhost, source))
                found[source] = {row._identity: row for row in rows}
        else:
            for row in (yield OverHttp("bindings", (self.vhost,))):
                if row.source in found:
                    found[row.source][row._identity] = row
        return found

    def _check_bindings(
        self, batch: Sequence[Bind | Unbind], worked: list[bool], before: Mapping[str, Listed]
    ) -> Generator[Command, Any, None]:
        """Compare what the exchanges have now with what they had before and these steps."""
        expected = {source: dict(listed) for source, listed in before.items()}
        for step in batch:
            _change(expected[step.binding.source], step)
        changed = sorted({step.binding.source for step, did in zip(batch, worked, strict=True) if did})
        ours = {step.binding._identity for step in batch}

        def check(found: Mapping[str, Listed]) -> None:
            for source in changed:
                # Other programs may bind to an exchange that does not hash while this one does.
                every = self.types.get(source) in HASHING
                listed = [
                    {each: bound for each, bound in some[source].items() if every or each in ours}
                    for some in (expected, found)
                ]
                check_bindings(source, *listed)

        self._listed |= yield from read_back(lambda: self._read_bindings(changed), check)
        self.worked += worked

    def _doubt_bindings_of(self, source: str) -> None:
        doubt = (
            f"whether exchange {source!r} is bound as planned: the broker ignores a second binding of a destination, "
            "and an unbind with other arguments than were bound"
        )
        if doubt not in self.unverified:
            self.unverified.append(doubt)

    # -- policies ----------------------------------------------------------------------------------

    def _change_policy(
        self, change: OverHttp, is_done: Callable[[list[Policy]], bool], problem: str
    ) -> Generator[Command, Any, None]:
        def look() -> Generator[Command, Any, list[Policy]]:
            listed: list[Policy] = yield OverHttp("policies", (self.vhost,))
            return listed

        def check(listed: list[Policy]) -> None:
            if not is_done(listed):
                raise Surprise(problem)

        needed = not is_done((yield from look()))
        if needed:
            yield change
            self.sent += 1
            yield from read_back(look, check)
        self.worked.append(needed)


def delete_if_empty(vhost: str, queue: str, *, may_be_consumed: bool = False) -> Generator[Command, Any, str]:
    """Delete a queue without messages and, unless it may be consumed, without consumers; return its type.

    Classic queues check both themselves. Quorum queues close the connection when they are asked to
    (rabbit_quorum_queue:delete/4: 540), so they are counted first; streams delete what is in them.

    Raises:
        Surprise: the queue has messages or consumers, or is a stream.
        Refused: there is no queue (404), or a classic queue has got messages or consumers since (406).
    """
    count = yield OnChannel("queue_declare", {"queue": queue, "passive": True})
    if count.message_count or (count.consumer_count and not may_be_consumed):
        raise Surprise(
            f"queue {queue!r} has {counted(count.message_count, 'message')} and "
            f"{counted(count.consumer_count, 'consumer')}: stop the consumers and drain the queue, or force the deletion"
        )
    kind: str = (yield OverHttp("queue", (vhost, queue))).type
    if kind == "stream":
        raise Surprise(
            f"stream {queue!r} always holds its messages: force the deletion if they are not needed"
        )
    checks = {"if_unused": kind == "classic" and not may_be_consumed, "if_empty": kind == "classic"}
    yield OnChannel("queue_delete", {"queue": queue, **checks})
    return kind


def _declare_queue(queue: Queue) -> OnChannel:
    return OnChannel(
        "queue_declare",
        {
            "queue": queue.name,
            "durable": queue.durable,
            "exclusive": queue.exclusive,
            "auto_delete": queue.auto_delete,
            "arguments": queue._declared_arguments,
        },
    )


def _command(step: Bind | Unbind) -> OnChannel:
    return bind_command("bind" if isinstance(step, Bind) else "unbind", step.binding)


def _change(listed: Listed, step: Bind | Unbind) -> None:
    """Do to a list of bindings what a step does to the broker's."""
    if isinstance(step, Bind):
        listed.setdefault(step.binding._identity, step.binding)
    else:
        listed.pop(step.binding._identity, None)
