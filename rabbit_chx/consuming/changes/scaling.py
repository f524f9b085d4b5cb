"""Carry out a plan that moves keys while members of a group consume; every key keeps its order.

    with connect("amqp://user:password@host") as connection:
        carry_out(plan(wanted, read(management, "/")), connection, management, on_done=print)

1. Hold: put a marker into each queue that gains keys; the member that reaches it waits (`rabbit_chx.consuming.changes.holds`).
2. Switch: apply the steps of the plan.
3. Drain the queues that lose keys: put a marker into each, which a member answers after all earlier messages.
4. Release the queues that gain keys, stage by stage.

After an interruption the queues stay held until `carry_out` is called again, which first finishes the earlier change.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pika.exceptions import AMQPError
from pika.spec import PRECONDITION_FAILED

from rabbit_chx.broker.applying.apply import lock_holder
from rabbit_chx.broker.applying.cluster_check import check_cluster
from rabbit_chx.broker.applying.handover import NotDrained, check_replies, marker_commands, stages
from rabbit_chx.broker.applying.lock import release_lock, take_lock
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.plan_commands import check_plan, plan_commands
from rabbit_chx.broker.applying.protocol import Command, Lost, OnChannel, Refused, Surprise
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.permissions import Needs, why_denied
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.consuming.changes.emptied import EMPTY_IN, delete_when_empty
from rabbit_chx.consuming.changes.held_queues import groups_of_held, held_queues
from rabbit_chx.consuming.changes.holds import declare_commands, hold_commands, holds_on, release_commands
from rabbit_chx.consuming.changes.outcomes import Done, NotConsumed, listed, not_consumed
from rabbit_chx.consuming.changes.records import ChangeRecord, changes_on, forget_commands, record_commands
from rabbit_chx.consuming.markers import Hold
from rabbit_chx.consuming.member.roll_call import MemberStatus, ask
from rabbit_chx.consuming.queues.permissions import needs_of_change
from rabbit_chx.consuming.seats import SEATS
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.interruption import uninterrupted
from rabbit_chx.ring import Destination
from rabbit_chx.topology.planning.steps import Bind, Plan, Unbind

if TYPE_CHECKING:
    from pika import BlockingConnection

_ANNOUNCE_EVERY: Final = 3.0
_LONGEST_WAIT_FOR_MEMBERS: Final = 30.0
_LONGEST_WAIT_FOR_ANSWERS: Final = 5.0
_ANSWER_IN: Final = 1.0


def carry_out(
    plan: Plan,
    connection: BlockingConnection,
    management: Management,
    *,
    group: str | None = None,
    removed: Collection[str] = (),
    on_done: Callable[[Done], object] = lambda _: None,
    timeout: float = 300.0,
    settle: float = 1.0,
    record: bool = True,
    holder: str | None = None,
    restores: ChangeRecord | None = None,
    more: bool = False,
) -> None:
    """Finish an interrupted call if there is one, and carry out a plan without breaking the order of any key.

    Args:
        plan: the plan, for the virtual host of the connection; may be empty.
        connection: a connection of pika.
        management: the management API of the same broker.
        group: the group that consumes the queues; by default the members that consume a queue which loses keys start to
            consume the new queues that gain them.
        removed: queues to delete when they have lost all keys and are empty.
        on_done: called with each completed action.
        timeout: seconds for the drain of one stage.
        settle: seconds between the switch and the markers, for messages that are still in transit.
        record: record the order of rings on the broker.
        holder: the text that the lock shows for its holder, as for `apply`.
        restores: the record of the change that the plan gives up, as `plan_back` made it.
        more: another call will complete the change; the record of an interrupted one is kept until then.

    Raises:
        InvalidValue: no order of steps keeps the order of keys.
        NotConsumed: no member consumes one of the queues; no bindings were changed.
        NotDrained: a member did not reach its marker in time; the queues stay held until the next call.
        ApplyStopped: only part of the plan was applied.
        BrokerUnavailable: the connection was lost, or the broker refused a command.
    """
    drain_first = held_queues(plan)
    driver = PikaDriver(connection, management)
    check_plan(plan, driver.vhost, seen=True)
    holder = lock_holder() if holder is None else holder
    change = _Change(connection, management, driver, on_done, timeout, settle, group, holder)
    deleted = {*removed, *(each for hold in holds_on(management, driver.vhost) for each in hold.removed)}
    needs = needs_of_change(plan, management.exchanges(driver.vhost), deleted)
    with _explained(needs, driver.where), _locked(driver, holder):
        found = holds_on(management, driver.vhost)
        change.records = changes_on(management, driver.vhost)
        if found or drain_first:
            driver.run(_try_replies())
        if restores is None:
            change.finish(found)
        else:
            change.begin_to_restore(restores, found)
        change.carry_out(plan, drain_first, removed, record=record, needs=needs)
        if restores is not None:
            change.delete_all(restores.created)
        if not more:
            change.forget(change.records)


@dataclass
class _Change:
    """One call of `carry_out`, which holds the lock."""

    connection: BlockingConnection
    management: Management
    driver: PikaDriver
    on_done: Callable[[Done], object]
    timeout: float
    settle: float
    group: str | None
    holder: str
    records: list[ChangeRecord] = field(default_factory=list)
    """Those on the broker."""
    _restoring: bool = False
    _announced: float = 0.0

    def begin_to_restore(self, record: ChangeRecord, holds: Collection[Hold]) -> None:
        """Finish what is held, so that keys can go back in order, without deleting the queues that lost keys."""
        there = self._existing({hold.queue for hold in holds})
        self._wait_for_members([hold for hold in holds if hold.queue in there])
        aborting = record.aborting(self.holder)
        self.driver.run(record_commands(aborting, self.records))
        self.records, self._restoring = [aborting], True
        self.finish(holds, delete=False)

    def forget(self, records: Iterable[ChangeRecord]) -> None:
        """Delete records of changes."""
        self.driver.run(forget_commands(records))

    def carry_out(
        self,
        plan: Plan,
        drain_first: Mapping[str, frozenset[str]],
        removed: Collection[str],
        *,
        record: bool,
        needs: Needs,
    ) -> None:
        """Declare, hold, switch, drain and release."""
        binds = (Bind, Unbind)
        first = tuple(takewhile(lambda step: not isinstance(step, binds), plan.steps))
        groups = self._groups_of(drain_first)
        new = [] if self._restoring or not drain_first else [self._begin(plan, removed)]
        held = [
            Hold.of(queue, losers, removed, groups[queue], self.holder)
            for queue, losers in drain_first.items()
        ]
        try:
            self._apply(replace(plan, steps=first, changes=()), record=record, needs=needs)
            self._hold(held)
        except (RabbitChxError, Refused, Lost, AMQPError):
            with suppress(Refused, Lost):  # nothing is switched yet
                self.forget(new)
            raise
        try:
            self._apply(replace(plan, steps=plan.steps[len(first) :]), record=record, needs=needs)
        except ApplyStopped:
            with suppress(RabbitChxError, Refused, Lost, AMQPError):
                self.finish(held)
            raise
        self.finish(held)

    def _begin(self, plan: Plan, removed: Collection[str]) -> ChangeRecord:
        """Record the change."""
        queues = [queue for queue, _ in self.management.queues(self.driver.vhost) if queue.name in removed]
        made = ChangeRecord.of(plan, queues, self.management.bindings(self.driver.vhost), self.holder)
        new = made.after(self.records[-1] if self.records else None)
        self.driver.run(record_commands(new))
        self.records.append(new)
        return new

    def _apply(self, plan: Plan, *, record: bool, needs: Needs) -> None:
        self.driver.run(
            plan_commands(
                plan,
                holder="",
                token=0,
                seen=True,
                record=record,
                on_step=lambda step: self.on_done(Done("step", step=step)),
                lock=False,
                also=needs,
            )
        )

    def _hold(self, holds: Sequence[Hold]) -> None:
        """Hold the queues once members consume them; if one cannot be held, release all, because nothing is switched yet."""
        held: list[Hold] = []
        try:
            for hold in holds:
                self.driver.run(declare_commands(hold))
            self._wait_for_members(holds)
            for hold in holds:
                self.driver.run(hold_commands(hold))
                held.append(hold)
                self.on_done(Done("hold", hold.queue))
        except (InvalidValue, NotConsumed, Refused, Lost, AMQPError):
            with suppress(Refused, Lost):
                for hold in held:
                    self._release(hold)
                for hold in holds:
                    self.driver.run(release_commands(hold))
            raise

    def _release(self, hold: Hold) -> None:
        self.driver.run(release_commands(hold))
        self.on_done(Done("release", hold.queue))

    # ---- after the switch

    def finish(self, holds: Collection[Hold], *, delete: bool = True) -> None:
        """Drain the queues that lose keys and release those that gain keys, stage by stage."""
        named = {hold.queue: hold for hold in holds}
        removed = {queue for hold in holds for queue in hold.removed}
        there = self._existing({queue for hold in holds for queue in (*hold.losing, hold.queue)})
        drain_first: dict[Destination, Collection[Destination]] = {
            hold.queue: [each for each in hold.losing if each in there] for hold in holds
        }
        settle = self.settle
        planned = stages(drain_first)
        for stage, (losing, gaining) in enumerate(planned, start=1):
            if losing:
                self._drain(losing, settle, [hold for hold in named.values() if hold.queue in there])
                settle = 0.0
            # Not earlier, because members recompute their priorities when a queue is deleted.
            if delete and stage == len(planned):
                self.delete(removed & there)
            for queue in gaining:
                self._release(named.pop(queue))

    def delete(self, queues: Iterable[str], patience: float = EMPTY_IN) -> None:
        """Delete those of these queues that exist and are not bound."""
        for queue in sorted(self._unbound(self._existing({*queues}))):
            self._delete(queue, patience)

    def delete_all(self, queues: Iterable[str]) -> None:
        """Delete these queues when they are empty: members may still have the markers of released queues."""
        self.delete(queues, self.timeout)
        if left := self._unbound(self._existing({*queues})):
            raise NotDrained(
                f"{listed(left)} did not become empty within {self.timeout:g} seconds", tuple(left)
            )

    def _unbound(self, queues: set[str]) -> set[str]:
        """The queues without bindings; an interrupted switch may have left the others bound."""
        if not queues:
            return queues
        bindings = self.management.bindings(self.driver.vhost)
        return queues - {
            str(each.destination) for each in bindings if each.source not in {"", ORDER_EXCHANGE}
        }

    def _existing(self, queues: set[str]) -> set[str]:
        return queues & {queue.name for queue, _ in self.management.queues(self.driver.vhost)}

    def _drain(self, losing: Collection[str], settle: float, held: Collection[Hold]) -> None:
        commands = marker_commands(
            losing,
            self.timeout,
            settle,
            on_passed=lambda queue: self.on_done(Done("drain", queue)),
            on_poll=partial(self._announce_again, held),
        )
        try:
            self.driver.run(commands)
        except NotDrained as late:
            raise NotDrained(
                f"the messages of {listed(late.queues)} were not handled within {self.timeout:g} seconds, so "
                f"{listed(hold.queue for hold in held)} stay held: run it again to continue, with a longer timeout if there are many messages",
                late.queues,
            ) from None

    def _delete(self, queue: str, patience: float = EMPTY_IN) -> None:
        """Delete a drained queue without bindings; the broker cancels its consumers, and members drop it."""
        try:
            self.driver.run(delete_when_empty(self.driver.vhost, queue, patience))
        except (Surprise, Refused) as error:
            if isinstance(error, Refused) and error.code != PRECONDITION_FAILED:
                raise
            self.on_done(Done("keep", queue))
        else:
            self.on_done(Done("delete", queue))

    # ---- members

    def _groups_of(self, drain_first: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
        """The groups that consume each queue that gains keys; check that members consume those that only lose keys."""
        if not drain_first:
            return {}
        losing = set().union(*drain_first.values()) - drain_first.keys()
        # A member that has not answered for some minutes opens a connection first, which may take longer than _ANSWER_IN.
        deadline = monotonic() + min(self.timeout, _LONGEST_WAIT_FOR_ANSWERS)
        while missing := losing.difference(*(consumed := self._consumed()).values()):
            if monotonic() > deadline:
                raise not_consumed(missing, {self.group} if self.group else ())
            self.connection.sleep(0.2)
        return groups_of_held(drain_first, consumed)

    def _consumed(self) -> dict[str, set[str]]:
        """The queues that the members of each group consume."""
        groups = self._groups() if self.group is None else {self.group}
        return {group: {queue for member in self._ask(group) for queue in member.queues} for group in groups}

    def _groups(self) -> set[str]:
        """All groups with members."""
        names = [queue.name for queue, _ in self.management.queues(self.driver.vhost)]
        return {name.removeprefix(SEATS).rpartition(".")[0] for name in names if name.startswith(SEATS)}

    def _ask(self, group: str, holds: Collection[Hold] = ()) -> list[MemberStatus]:
        with uninterrupted():
            return ask(self.connection, group, timeout=_ANSWER_IN, holds=holds)

    def _announce(self, held: Iterable[Hold]) -> set[str]:
        """Ask the members of each group to consume the queues of the change; return the queues that they consume.

        Bindings may no longer name those that lose keys, so members that started since do not know them.
        """
        self._announced = monotonic()
        new: dict[str, list[Hold]] = {}
        for hold in held:
            for group in hold.groups:
                new.setdefault(group, []).append(hold)
        found = [member for group, holds in sorted(new.items()) for member in self._ask(group, holds)]
        return {queue for member in found for queue in member.queues}

    def _announce_again(self, held: Iterable[Hold]) -> None:
        """Repeat `_announce` every few seconds for members that have joined since."""
        if monotonic() - self._announced > _ANNOUNCE_EVERY:
            self._announce(held)

    def _wait_for_members(self, held: Collection[Hold]) -> None:
        """Wait until members consume the queues to hold; they may need a moment to start with new ones."""
        deadline = monotonic() + min(self.timeout, _LONGEST_WAIT_FOR_MEMBERS)
        while missing := {hold.queue for hold in held} - self._announce(held):
            if monotonic() > deadline:
                raise not_consumed(missing, {group for hold in held for group in hold.groups})
            self.connection.sleep(0.2)


def _try_replies() -> Generator[Command, Any, None]:
    """Check that a drain is permitted, before any queue is held for it."""
    replies = yield from check_replies()
    yield OnChannel("queue_delete", {"queue": replies})


@contextmanager
def _locked(driver: PikaDriver, holder: str) -> Iterator[None]:
    """Hold the lock on the topology."""
    driver.run(check_cluster(publishes=True))
    driver.run(take_lock(driver.vhost, holder, 1 + secrets.randbelow(2**31 - 1), seen=True))
    try:
        yield
    finally:
        driver.run(release_lock())


@contextmanager
def _explained(needs: Needs, where: str) -> Iterator[None]:
    """Explain a lost connection or a refused command."""
    try:
        yield
    except (Surprise, Lost) as error:
        raise BrokerUnavailable(str(error)) from None
    except AMQPError as error:  # members are asked without the driver, which would raise Lost
        raise BrokerUnavailable(str(why_down(error, where))) from None
    except Refused as refused:
        reason = why_denied(refused.text, needs, what="the change") or refused.text
        raise BrokerUnavailable(f"the queues cannot be changed: {reason}") from None
