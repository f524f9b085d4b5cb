r"""Who may change a topology: one at a time, and nobody while a publisher goes past the exchange. Commands only.

The lock is an exclusive queue, ``rabbit-chx.lock``, one in a virtual host: it goes when its connection goes, however
that ends. Its arguments say who holds it, for the management API. A publisher that goes straight to the
queues has a lease of its own (:mod:`rabbit_chx.publishing.direct_watch`); leases are seen over HTTP only.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.applying.protocol import Lost, OnChannel, OverHttp, Refused, Surprise
from rabbit_chx.broker.claims import LEASE_PREFIX, LOCK, is_lease_of
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from rabbit_chx.broker.applying.protocol import Command
    from rabbit_chx.topology.model import Bound
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["changed_exchanges", "release_lock", "stand_clear_of_leases", "take_lock"]

_HOLDER: Final = "x-rabbit-chx-holder"


def take_lock(vhost: str, holder: str, token: int, *, seen: bool) -> Generator[Command, Any, None]:
    """Take the lock, or raise `Surprise` with the name of its holder.

    An exclusive queue shuts out every other connection (405). Another apply on this very connection would be let
    in, were it not for a limit that differs from apply to apply: brokers refuse to declare a queue anew with another
    ``x-max-length`` (406), while they ignore arguments that they do not know, such as the holder's name.
    """
    arguments = {_HOLDER: holder, "x-max-length": token}
    try:
        yield OnChannel("queue_declare", {"queue": LOCK, "exclusive": True, "arguments": arguments})
    except Refused as refused:
        if refused.code not in {405, 406}:
            raise
    else:
        return
    who = "whoever it is cannot be seen without management="
    if seen:
        try:
            who = (yield OverHttp("queue", (vhost, LOCK))).arguments.get(_HOLDER, "it does not say who it is")
        except BrokerUnavailable:
            who = "it is gone by now: try again"
    raise Surprise(
        f"somebody else changes the topology of virtual host {vhost!r} and holds the lock, queue {LOCK!r}: {who}"
    )


def release_lock() -> Generator[Command, Any, None]:
    """Give the lock back; a connection that is gone took it along."""
    with suppress(Refused, Lost):
        yield OnChannel("queue_delete", {"queue": LOCK})


def stand_clear_of_leases(vhost: str, steps: Sequence[Step]) -> Generator[Command, Any, None]:
    """Refuse to change what a publisher relies on that goes straight to the queues."""
    leases = yield OverHttp("queue_names", (vhost, f"^{LEASE_PREFIX.replace('.', '[.]')}"))
    if not leases:
        return
    bindings = yield OverHttp("bindings", (vhost,))
    changed = changed_exchanges(steps, bindings)
    held = [lease for lease in leases if changed is None or any(is_lease_of(lease, name) for name in changed)]
    if held:
        raise Surprise(
            f"publishers go straight to the queues, past the exchanges that this plan changes; they hold "
            f"{', '.join(map(repr, sorted(held)))}: stop them, or let them publish through the exchange, for as "
            "long as this takes"
        )


def changed_exchanges(steps: Iterable[Step], bindings: Iterable[Bound]) -> set[str] | None:
    """The exchanges whose messages may go elsewhere by these steps, and those that lead to them.

    None is for all there are: a policy may give any exchange an alternate.
    """
    bindings = list(bindings)
    changed: set[str] = set()
    for step in steps:
        match step:
            case SetPolicy() | ClearPolicy():
                return None
            case Bind(bound=bound) | Unbind(bound=bound):
                changed.add(bound.source)
            case DeleteExchange(name=name):
                changed |= {name, *_leading_to(ToExchange(name), bindings)}
            case DeleteQueue(name=name):
                changed |= _leading_to(name, bindings)
    waiting = list(changed)
    while waiting:
        above = _leading_to(ToExchange(waiting.pop()), bindings) - changed
        changed |= above
        waiting += above
    return changed


def _leading_to(destination: str | ToExchange, bindings: list[Bound]) -> set[str]:
    return {bound.source for bound in bindings if bound.destination == destination} - {""}
