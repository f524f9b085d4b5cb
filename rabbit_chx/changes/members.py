"""The members that take part in a change: which groups they are of, and whether they consume the queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Final

from pika import BlockingConnection

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.interruption import uninterrupted
from rabbit_chx.base.names import group_of
from rabbit_chx.base.text import listed
from rabbit_chx.broker.applying.handover import stages
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.member.roll_call import MemberStatus, ask
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.working.markers import Hold

_ANNOUNCE_EVERY: Final = 3.0
_LONGEST_WAIT_FOR_MEMBERS: Final = 30.0
_LONGEST_WAIT_FOR_ANSWERS: Final = 5.0
_ANSWER_IN: Final = 1.0


class NotConsumed(RabbitChxError):
    """No member consumes some of the queues, so no bindings were changed."""


def _not_consumed(missing: Iterable[str], groups: Collection[str]) -> NotConsumed:
    """The error for queues that no member consumes."""
    who = f"no member of {listed(sorted(groups), 'group')}" if groups else "no member of any group"
    return NotConsumed(
        f"{who} consumes {listed(sorted(missing))}, so no bindings were changed. Start members that consume the "
        f"exchange; if other programs consume it, {Advice.DRAIN_OTHERS}"
    )


@dataclass
class Members:
    """The members of all groups that consume queues of a virtual host, or of one group."""

    connection: BlockingConnection
    management: Management
    vhost: str
    group: str | None
    timeout: float
    _announced: float = 0.0

    def groups_of(self, drain_first: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
        """The groups that consume each queue that gains keys; check that members consume those that only lose keys."""
        if not drain_first:
            return {}
        losing = set().union(*drain_first.values()) - drain_first.keys()
        consumed = self.consumed(losing)
        if missing := losing.difference(*consumed.values()):
            raise _not_consumed(missing, {self.group} if self.group else ())
        return groups_of_held(drain_first, consumed)

    def consumed(self, expected: Collection[str]) -> dict[str, set[str]]:
        """The queues that the members of each group consume; asked again for a while if they lack an expected one.

        A member that has not answered for some minutes opens a connection first, which may take longer than _ANSWER_IN.
        """
        deadline = monotonic() + min(self.timeout, _LONGEST_WAIT_FOR_ANSWERS)
        while {*expected}.difference(*(found := self._consumed()).values()) and monotonic() <= deadline:
            self.connection.sleep(0.2)
        return found

    def _consumed(self) -> dict[str, set[str]]:
        """The queues that the members of each group consume; not all groups are asked if many do not answer."""
        if self.group is not None:
            groups = {self.group}
        else:
            groups = set(
                filter(None, (group_of(queue.name) for queue, *_ in self.management.queues(self.vhost)))
            )
        found: dict[str, set[str]] = {}
        deadline = monotonic() + _LONGEST_WAIT_FOR_MEMBERS
        for group in sorted(groups):
            if monotonic() < deadline:
                found[group] = {queue for member in self._ask(group) for queue in member.queues}
        return found

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

    def announce_again(self, held: Iterable[Hold]) -> None:
        """Repeat `_announce` every few seconds for members that have joined since."""
        if monotonic() - self._announced > _ANNOUNCE_EVERY:
            self._announce(held)

    def wait_until_consumed(self, held: Collection[Hold]) -> None:
        """Wait until members consume the queues to hold; they may need a moment to start with new ones."""
        deadline = monotonic() + min(self.timeout, _LONGEST_WAIT_FOR_MEMBERS)
        while missing := {hold.queue for hold in held} - self._announce(held):
            if monotonic() > deadline:
                raise _not_consumed(missing, {group for hold in held for group in hold.groups})
            self.connection.sleep(0.2)


def groups_of_held(
    drain_first: Mapping[str, Collection[str]], consumed: Mapping[str, Collection[str]]
) -> dict[str, set[str]]:
    """The groups that consume each queue that gains keys; ``consumed`` are the queues that each group consumes now.

    A queue that no group consumes yet goes to the groups of the queues that it gains keys from.
    """
    named = {*drain_first, *chain.from_iterable(drain_first.values())}
    groups = {name: {group for group, queues in consumed.items() if name in queues} for name in named}
    for _, gaining in stages(dict(drain_first.items())):
        for gainer in gaining:
            groups[gainer] = groups[gainer] or set().union(*map(groups.__getitem__, drain_first[gainer]))
    return {gainer: groups[gainer] for gainer in drain_first}
