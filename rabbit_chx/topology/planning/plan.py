"""From what is on a broker to what a file wants: the steps in the one safe order, and what each of them moves.

Exchanges are declared, then queues, then policies; then bindings are made, those of an exchange after those of all
that it leads to, so that nothing flows into a ring that is half built; what is to go goes last. A second plan from
where the first one ends is empty. Values in, values out: nothing is read or sent here.

Of an exchange that hashes, the file owns all bindings. Of any other it owns those that it names, and the rest goes
only with ``prune``: others may have bound queues of their own. A ring that holds what the file says in another
order is left alone unless the caller asks for ``strategy="in place"``, since to reorder it moves keys to no one's gain.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from rabbit_chx.errors import InvalidValue
from rabbit_chx.movement import moved
from rabbit_chx.releases import Store
from rabbit_chx.topology.checks.invalid_names import invalid_names
from rabbit_chx.topology.checks.lint import other_product
from rabbit_chx.topology.checks.release_settings import release_refusals
from rabbit_chx.topology.model import BIND_SEQUENCE, CONSISTENT_HASH, MODULUS_HASH, Exchange
from rabbit_chx.topology.planning.bindings import (
    grouped,
    modulus_steps,
    plain_changes,
    sources_in_order,
    waiting_behind,
)
from rabbit_chx.topology.planning.objects import declarations, is_a_clients, leftovers, objections, policies
from rabbit_chx.topology.planning.ring_change import STRATEGIES, Options, Outcome, change_ring, ring_of
from rabbit_chx.topology.planning.ring_paths import Case
from rabbit_chx.topology.planning.slots import SlotPlan, plan_slots
from rabbit_chx.topology.planning.steps import Bind, DeleteExchange, DeleteQueue, Plan, Unbind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rabbit_chx.ring import Ring
    from rabbit_chx.topology.model import Binding, Observed, Slots, Topology
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["plan"]


def plan(
    wanted: Topology,
    observed: Observed,
    *,
    strategy: str | None = None,
    prune: bool = False,
    force: bool = False,
    max_moved: float = 0.5,
) -> Plan:
    """The steps that make a broker what a topology says, each with the exact share of keys that it moves.

    Args:
        wanted: what should be.
        observed: what is.
        strategy: how rings are changed, by the name of a `Strategy`; left out, the cheapest way to the file's own order.
        prune: also take away what the file does not name.
        force: do it although it moves more than ``max_moved``, or although a queue to delete holds messages.
        max_moved: the share of an exchange's keys that a change in place may send elsewhere at any moment.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise InvalidValue("strategy", strategy, ", ".join(STRATEGIES))
    if not isinstance(max_moved, (int, float)) or not 0 <= max_moved <= 1:
        raise InvalidValue("max_moved", max_moved, "a share from 0 to 1")
    return _Planner(wanted, observed, Options(strategy, prune, force, max_moved)).plan()


class _Planner:
    def __init__(self, wanted: Topology, observed: Observed, options: Options) -> None:
        self._slots = {slots.exchange: slots for slots in wanted.slots}
        self._slot_plans: dict[str, SlotPlan] = {}
        self._slot_of = {name: slots for slots in wanted.slots for name in slots.names}
        self.wanted = replace(
            wanted,
            exchanges=(*wanted.exchanges, *(each for slots in wanted.slots for each in slots.exchanges)),
            bindings=(*wanted.bindings, *(each for slots in wanted.slots for each in slots.top_bindings)),
        )
        self.observed = observed
        self._options = options
        self._waiting = waiting_behind(observed)
        self._groups = grouped(self.wanted.bindings)
        self._there = grouped(observed.topology.bindings)
        self._late: list[Unbind] = []

    def plan(self) -> Plan:
        """The whole of it."""
        refused = objections(self.wanted, self.observed)
        sum_of = Outcome(refusals=list(refused.values()))
        sum_of.refusals += [f"{each.where}: {each.message}" for each in invalid_names(self.wanted)]
        sum_of.refusals += release_refusals(self.wanted, self.observed.topology, self.observed.release)
        sum_of.steps += declarations(self.wanted, self.observed)
        sum_of.steps += policies(self.wanted, self.observed.topology)
        for slots in self._slots.values():
            sum_of += self._plan_slots(slots)
        for source in sources_in_order(self.wanted):
            if f"exchange {source!r}" not in refused:
                sum_of += self._source(source)
        sum_of.steps += self._late
        if self._options.prune:
            sum_of += self._prune()
        sum_of.notes += self._restart_notes(sum_of)
        sum_of.notes += [f"not seen: {what}" for what in self.observed.unseen]
        product = other_product(self.observed)
        sum_of.refusals += [product] if product else []
        return Plan(
            self.wanted.vhost,
            tuple(_numbered(sum_of.steps, self.observed.topology)),
            tuple(sum_of.changes),
            {top: each.moved for top, each in self._slot_plans.items() if each.moved},
            tuple(sum_of.notes),
            tuple(sum_of.refusals),
        )

    def _plan_slots(self, slots: Slots) -> Outcome:
        top = self.wanted.exchange(slots.exchange) or Exchange(slots.exchange, MODULUS_HASH)
        found = plan_slots(slots, top, self.observed, self._waiting)
        self._slot_plans[slots.exchange] = found
        return Outcome(notes=list(found.notes), refusals=list(found.refusals))

    def _source(self, source: str) -> Outcome:
        """The bindings of one exchange."""
        slots = self._slot_of.get(source)
        if slots is not None:
            return Outcome(steps=list(self._slot_plans[slots.exchange].steps.get(source, ())))
        if source in self._slots and self._slot_plans[source].refusals:
            return Outcome()
        exchange = self.wanted.exchange(source) or self.observed.topology.exchange(source)
        wanted = self._groups.get(source, [])
        if exchange is not None and exchange.type == CONSISTENT_HASH:
            target = tuple((bound.destination, int(bound.key)) for bound in wanted)
            case = Case(source, ring_of(source, self.observed), target, self._waiting)
            return change_ring(case, exchange, self.observed, self._options)
        if exchange is not None and exchange.type == MODULUS_HASH:
            return self._modulus(source, wanted)
        return self._plain(source, wanted)

    def _plain(self, source: str, wanted: list[Binding]) -> Outcome:
        missing, extra = plain_changes(wanted, self._there.get(source, ()))
        notes = []
        if self._options.prune:
            self._late += [Unbind(bound) for bound in extra if not self._is_clients_queue(bound)]
        elif extra:
            some = ", ".join(repr(str(bound.destination)) for bound in extra[:3]) + ", ..." * (len(extra) > 3)
            notes.append(
                f"exchange {source!r}: {len(extra)} bindings that the file does not name are left alone ({some}); "
                "pruning takes them away"
            )
        return Outcome(steps=[Bind(bound) for bound in missing], notes=notes)

    def _is_clients_queue(self, bound: Binding) -> bool:
        queue = self.observed.topology.queue(str(bound.destination))
        return queue is not None and is_a_clients(queue)

    def _modulus(self, source: str, wanted: list[Binding]) -> Outcome:
        there = self._there.get(source, [])
        missing, extra = plain_changes(wanted, there)
        if not missing and not extra:
            return Outcome()
        if source in self._slots:
            extra = []  # whatever is not a slot was refused
        steps, share = modulus_steps(there, missing, extra, self.observed.release, self._waiting)
        outcome = Outcome(steps=[*steps])
        if not there:
            outcome.steps = [Bind(bound) for bound in missing]
            return outcome
        cost = "an unknown share" if share is None else f"{share:.2%}"
        hint = "with slots (`slots: 64`) under a new exchange a queue more or less moves only its own share"
        outcome.notes.append(
            f"exchange {source!r}: another number of bindings moves {cost} of its keys; {hint}"
        )
        too_much = share is None or share > self._options.max_moved
        if extra and too_much and not self._options.force:
            outcome.refusals.append(
                f"exchange {source!r}: this change moves {cost} of its keys, and more than "
                f"{self._options.max_moved:.0%} is not done unasked: build a new exchange under another name and "
                f"switch over to it (blue/green), or allow more, or force it; {hint}"
            )
        return outcome

    def _prune(self) -> Outcome:
        outcome = Outcome()
        there = self.observed.topology
        steps = leftovers(self.wanted, there, force=self._options.force)
        for step in steps:
            if isinstance(step, DeleteExchange):
                outcome.steps += self._emptied(step.name)
            waiting = self.observed.backlog.get(step.name, 0) if isinstance(step, DeleteQueue) else 0
            if waiting and not self._options.force and isinstance(step, DeleteQueue):
                outcome.refusals.append(
                    f"queue {step.name!r} is in no file and holds {waiting} messages: drain it first, or force it"
                )
        outcome.steps += steps
        return outcome

    def _emptied(self, exchange: str) -> Iterator[Unbind]:
        """Its bindings unbound, since an exchange that leads somewhere is not deleted."""
        bounds = self._there.get(exchange, [])
        found = self.observed.topology.exchange(exchange)
        hashes = found is not None and found.type in {CONSISTENT_HASH, MODULUS_HASH}
        for bound in reversed(bounds):
            if hashes:
                yield Unbind(
                    bound, exchange_moved=exchange, moved=None, at_risk=self._waiting([bound.destination])
                )
            else:
                yield Unbind(bound)

    def _restart_notes(self, sum_of: Outcome) -> Iterator[str]:
        """What a boot of the node does to the rings as the plan leaves them."""
        rings = {
            exchange.name: self._after(exchange.name, sum_of)
            for exchange in self.wanted.hash_exchanges
            if exchange.name not in self._slot_of
        }
        rings = {name: ring for name, ring in rings.items() if len(ring.bindings) > 1}
        if not rings:
            return
        release = self.observed.release
        if release.store is Store.KHEPRI:
            yield f"RabbitMQ {release} on Khepri keeps the order of its rings over a restart"
            return
        for name, ring in rings.items():
            yield f"exchange {name!r}: {_after_restart(ring, self.observed.worker_pool_size)}"

    def _after(self, exchange: str, sum_of: Outcome) -> Ring:
        change = next((each for each in sum_of.changes if each.exchange == exchange), None)
        if change is not None:
            return change.after
        ring = ring_of(exchange, self.observed)
        return ring if ring.bindings else self.wanted.ring(exchange, self.observed.release)


def _numbered(steps: Iterable[Step], there: Topology) -> Iterator[Step]:
    """The same steps, whose binds go on counting where the virtual host stands.

    One count for all exchanges, because the broker keeps one mark: from which number on they are to be believed.
    """
    numbers = count(1 + max((bound.sequence or 0 for bound in there.bindings), default=0))
    made: list[tuple[Binding, Binding]] = []  # what this plan itself binds, and perhaps unbinds again
    for step in steps:
        if isinstance(step, Bind) and step.binding.sequence is not None:
            bound = replace(step.binding, arguments={**step.binding.arguments, BIND_SEQUENCE: next(numbers)})
            made.append((step.binding, bound))
            yield replace(step, binding=bound)
        elif isinstance(step, Unbind):
            yield replace(step, binding=next((now for was, now in made if was == step.binding), step.binding))
        else:
            yield step


def _after_restart(ring: Ring, worker_pool_size: int | None) -> str:
    release = ring.release
    after = ring.after_restart(worker_pool_size=worker_pool_size)
    if after.runs is None or ring.runs is None:
        return (
            f"RabbitMQ {release} on Mnesia rebuilds the ring in an order that nobody knows when the node boots, so keys "
            "move: set default_worker_pool_size = 1 (sorted order then), go over to slots under an x-modulus-hash "
            "exchange, or to Khepri"
        )
    share = moved(ring, after).share
    if not share:
        return f"RabbitMQ {release} on Mnesia with one worker rebuilds this very ring when the node boots"
    return (
        f"RabbitMQ {release} on Mnesia with one worker sorts the ring when the node boots: {share:.2%} of the keys "
        "move; write the file in sorted order to avoid it"
    )
