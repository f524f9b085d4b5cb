"""Carry out a plan that moves keys while members of a group consume; every key keeps its order.

    with connect("amqp://user:password@host") as connection:
        carry_out(plan(wanted, read(management, "/")), connection, management, on_done=print)

1. Hold: put a marker into each queue that gains keys; the member that reaches it waits (`rabbit_chx.changes.records`).
2. Switch: apply the steps of the plan.
3. Drain the queues that lose keys: put a marker into each, which a member answers after all earlier messages.
4. Release the queues that gain keys, stage by stage.

After an interruption the queues stay held until `carry_out` is called again, which first finishes the earlier change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, takewhile
from time import monotonic
from typing import Any, Final, Literal

from pika import BlockingConnection
from pika.exceptions import AMQPError
from pika.spec import PRECONDITION_FAILED

from rabbit_chx.base.text import listed, seconds
from rabbit_chx.broker.applying.apply import lock_holder, this_process
from rabbit_chx.broker.applying.handover import (
    NotDrained,
    check_replies,
    marker_commands,
    stages,
    without_room,
)
from rabbit_chx.broker.applying.lock import release_lock, take_lock
from rabbit_chx.broker.applying.plan_commands import (
    check_cluster,
    check_plan,
    check_unchanged,
    commands_under_lock,
)
from rabbit_chx.broker.applying.step_commands import delete_if_empty
from rabbit_chx.broker.commands import Command, Lost, Pause, Refused, Surprise, why_ended
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.changes.members import Members, NotConsumed
from rabbit_chx.changes.records import (
    ChangeRecord,
    declare_commands,
    delete_commands,
    hold_commands,
    unfinished_on,
)
from rabbit_chx.consuming.queues.permissions import needs_of_change
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable, InvalidValue, RabbitChxError, Unquoted
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.planning.drain_order import held_queues
from rabbit_chx.topology.planning.steps import Bind, Plan, Step, Unbind
from rabbit_chx.working.markers import Hold

_SETTLE: Final = 1.0
"""Seconds between the switch and the markers, for messages that are still in transit."""
_EMPTY_IN: Final = 5.0
"""Seconds that a drained queue has for a late message, such as one that a member gave back and handles again."""


@dataclass(frozen=True, slots=True)
class Done:
    """One action that `carry_out` has completed."""

    what: Literal["step", "hold", "drain", "delete", "keep", "release"]
    queue: str = ""
    step: Step | None = None

    def __str__(self) -> str:
        return _SENTENCES[self.what].format(queue=self.queue, step=self.step)


_SENTENCES: Final = {
    "step": "{step}",
    "hold": "held queue {queue!r}",
    "drain": "drained queue {queue!r}",
    "delete": "deleted queue {queue!r}",
    "keep": "kept queue {queue!r}: it is not empty, or still consumed",
    "release": "released queue {queue!r}",
}


def carry_out(
    plan: Plan,
    connection: BlockingConnection,
    management: Management,
    *,
    group: str | None = None,
    removed: Collection[str] = (),
    on_done: Callable[[Done], object] = lambda _: None,
    timeout: float = 300.0,
    restores: ChangeRecord | None = None,
    more: bool = False,
    exchange: str = "",
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
        timeout: seconds for the drain of one stage, in which members must handle all that is in the queues that lose keys.
        restores: the record of the change that the plan abandons, as `plan_back` made it.
        more: another call will complete the change; the record of an interrupted one is kept until then.
        exchange: the exchange that the change is for, which is recorded; empty for that of a whole file.

    Raises:
        InvalidValue: no order of steps keeps the order of keys, or the bindings have changed since the plan was made.
        NotConsumed: no member consumes one of the queues; no bindings were changed.
        NotDrained: a member did not reach its marker in time; the queues stay held until the next call.
        ApplyStopped: only part of the plan was applied.
        BrokerUnavailable: the connection was lost, or the broker refused a command.
    """
    drain_first = held_queues(plan)
    driver = PikaDriver(connection, management)
    check_plan(plan, driver.vhost, seen=True)
    found = unfinished_on(management, driver.vhost)
    earlier = {queue.name for each in found.records for queue in each.removed}
    deleted = {*removed, *earlier, *(each for hold in found.holds for each in hold.removed)}
    needs = needs_of_change(plan, management.exchanges(driver.vhost), deleted)
    members = Members(connection, management, driver.vhost, group, timeout)
    change = _Change(members, management, driver, on_done, timeout, this_process(), needs, exchange)
    with _locked(driver, needs):
        driver.run(check_unchanged(plan))
        found = unfinished_on(management, driver.vhost)
        change.records = list(found.records)
        if found.holds or drain_first or removed or restores:
            # A drain must be permitted before anything is changed that needs it.
            driver.run(delete_commands(driver.run(check_replies())))
        if restores is None:
            change.finish(found.holds)
        else:
            change.begin_to_restore(restores, found.holds)
        change.carry_out(plan, drain_first, removed)
        if restores is not None:
            change.drain_and_delete_all({*restores.created})
        if not more:
            if restores is None:  # an interrupted abort has released the queues whose holds named these
                change.drain_and_delete(earlier)
            driver.run(delete_commands(*(each.name for each in change.records)))


@dataclass
class _Change:
    """One call of `carry_out`, which holds the lock."""

    members: Members
    management: Management
    driver: PikaDriver
    on_done: Callable[[Done], object]
    timeout: float
    by: str
    needs: Needs
    exchange: str = ""
    records: list[ChangeRecord] = field(default_factory=list)
    """Those on the broker."""
    _restoring: bool = False

    def begin_to_restore(self, record: ChangeRecord, holds: Collection[Hold]) -> None:
        """Finish what is held, so that keys can go back in order, without deleting the queues that lost keys."""
        if record.name not in {each.name for each in self.records}:
            raise InvalidValue(
                "change to abandon",
                Unquoted("one that another command has continued meanwhile"),
                "one that is unfinished",
                "`rabbit-chx scale FILE --status` shows whether one is",
            )
        there = self._existing({hold.queue for hold in holds})
        self.members.wait_until_consumed([hold for hold in holds if hold.queue in there])
        aborting = record.aborting(self.by)
        self.driver.run(declare_commands(aborting))
        self.driver.run(delete_commands(*(each.name for each in self.records)))
        self.records, self._restoring = [aborting], True
        self.finish(holds, delete=False)

    def carry_out(
        self, plan: Plan, drain_first: Mapping[str, frozenset[str]], removed: Collection[str]
    ) -> None:
        """Declare, hold, switch, drain and release."""
        binds = (Bind, Unbind)
        first = tuple(takewhile(lambda step: not isinstance(step, binds), plan.steps))
        groups = self.members.groups_of(drain_first)
        held = [
            Hold.of(queue, losers, removed, groups[queue], self.by) for queue, losers in drain_first.items()
        ]
        new = [] if self._restoring or not (drain_first or removed) else [self._begin(plan, removed)]
        try:
            self._apply(replace(plan, steps=first, changes=()))
            self._hold(held)
        except (RabbitChxError, Refused, Lost, AMQPError):
            with suppress(Refused, Lost):  # nothing is switched yet
                self.driver.run(delete_commands(*(each.name for each in new)))
            raise
        try:
            self._apply(replace(plan, steps=plan.steps[len(first) :]))
        except ApplyStopped:
            with suppress(RabbitChxError, Refused, Lost, AMQPError):
                self.finish(held)
            raise
        self.finish(held)
        if not self._restoring:  # those that lose no keys, because their bindings had no buckets
            self.drain_and_delete({*removed}.difference(*(hold.removed for hold in held)))

    def _begin(self, plan: Plan, removed: Collection[str]) -> ChangeRecord:
        """Record the change."""
        queues = [queue for queue, *_ in self.management.queues(self.driver.vhost) if queue.name in removed]
        exchanges = self.management.exchanges(self.driver.vhost)
        bindings = self.management.bindings(self.driver.vhost)
        made = ChangeRecord.of(plan, queues, exchanges, bindings, self.by, self.exchange)
        new = made.after(self.records[-1] if self.records else None)
        self.driver.run(declare_commands(new))
        self.records.append(new)
        return new

    def _apply(self, plan: Plan) -> None:
        commands = commands_under_lock(plan, lambda step: self.on_done(Done("step", step=step)), self.needs)
        self.driver.run(commands)

    def _hold(self, holds: Sequence[Hold]) -> None:
        """Hold the queues once members consume them; if one cannot be held, release all, because nothing is switched yet."""
        held: list[Hold] = []
        try:
            for hold in holds:
                self.driver.run(declare_commands(hold))
            self.members.wait_until_consumed(holds)
            for hold in holds:
                self.driver.run(hold_commands(hold))
                held.append(hold)
                self.on_done(Done("hold", hold.queue))
        except (InvalidValue, NotConsumed, Refused, Lost, AMQPError):
            with suppress(Refused, Lost):
                for hold in held:
                    self._release(hold)
                for hold in holds:
                    self.driver.run(delete_commands(hold.name))
            raise

    def _release(self, hold: Hold) -> None:
        self.driver.run(delete_commands(hold.name))
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
        settle = _SETTLE
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

    def drain_and_delete(self, queues: set[str]) -> None:
        """Drain and delete queues that no hold names; one that cannot be drained is kept while it is consumed.

        The count of the broker leaves out messages that a consumer has not acknowledged; they would be lost with the queue.
        """
        if not (there := self._unbound(self._existing(queues))):
            return
        drained = there.intersection(chain.from_iterable(self.members.consumed(there).values()))
        if drained:
            try:
                self._drain(drained, _SETTLE, ())
            except NotDrained as late:
                drained.difference_update(late.queues)
        self.delete(drained)
        self.delete(there - drained, may_be_consumed=False)

    def delete(self, queues: Iterable[str], *, may_be_consumed: bool = True) -> None:
        """Delete those of these queues that exist and are not bound; the broker cancels their consumers, and members drop them."""
        for queue in sorted(self._unbound(self._existing({*queues}))):
            commands = delete_when_empty(self.driver.vhost, queue, _EMPTY_IN, may_be_consumed=may_be_consumed)
            try:
                self.driver.run(commands)
            except (Surprise, Refused) as error:
                if isinstance(error, Refused) and error.code != PRECONDITION_FAILED:
                    raise
                self.on_done(Done("keep", queue))
            else:
                self.on_done(Done("delete", queue))

    def drain_and_delete_all(self, queues: set[str]) -> None:
        """As `drain_and_delete`, but raise if a queue is kept."""
        self.drain_and_delete(queues)
        if left := sorted(self._unbound(self._existing(queues))):
            raise NotDrained(
                f"{listed(left)} could not be deleted: not empty, or still consumed", tuple(left)
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
        if not queues:
            return queues
        return queues & {queue.name for queue, *_ in self.management.queues(self.driver.vhost)}

    def _drain(self, losing: Collection[str], settle: float, held: Collection[Hold]) -> None:
        commands = marker_commands(
            losing,
            self.timeout,
            settle,
            on_passed=lambda queue: self.on_done(Done("drain", queue)),
            on_poll=partial(self.members.announce_again, held),
        )
        try:
            self.driver.run(commands)
        except NotDrained as late:
            raise NotDrained(
                f"the messages of {listed(sorted(late.queues))} were not handled within {seconds(self.timeout)}{without_room(late.full)}, which keeps "
                f"{listed(sorted(hold.queue for hold in held))} held: run it again to continue, with a longer timeout if there are many messages",
                late.queues,
                late.full,
            ) from None


def delete_when_empty(
    vhost: str, queue: str, patience: float, *, may_be_consumed: bool = True
) -> Generator[Command, Any, None]:
    """Delete a queue that was drained, or one that is not consumed. Raises as `delete_if_empty` does if it does not get empty soon."""
    deadline = monotonic() + patience
    while True:
        try:
            yield from delete_if_empty(vhost, queue, may_be_consumed=may_be_consumed)
        except Surprise:
            if monotonic() > deadline:
                raise
        else:
            return
        yield Pause(0.1)


@contextmanager
def _locked(driver: PikaDriver, needs: Needs) -> Iterator[None]:
    """Hold the lock on the topology, and explain a lost connection or a refused command."""
    try:
        driver.run(check_cluster(publishes=True))
        driver.run(take_lock(driver.vhost, lock_holder(), seen=True))
        try:
            yield
        finally:
            driver.run(release_lock())
    except Surprise as error:
        raise BrokerUnavailable(str(error)) from None
    except (AMQPError, Lost, Refused) as error:
        raise why_ended(error, needs, "the change", driver.where) from None
