"""Plan the steps from a broker to a file in a safe order, each with the keys that it moves.

Policies are set first, since a broker refuses them most often; those that send messages on to other objects follow
the declarations, and the bindings of the exchanges that get these messages. Exchanges are declared, then queues.
Bindings follow, those of an exchange after those of the exchanges that it leads to, so that no message enters an
incomplete ring. Deletions come last. After a plan has been applied, the next plan is empty.

The file owns all bindings of an exchange that hashes. Of other exchanges it owns only the bindings that it names; other
programs may have made the rest, which only ``prune`` removes. A ring that differs from the file only in its order is
left alone unless the caller asks for the strategy ``in place``, because reordering it moves keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import counted, listed
from rabbit_chx.mirror.movement import moved
from rabbit_chx.mirror.releases import Release, Store
from rabbit_chx.mirror.ring import Ring, ToExchange
from rabbit_chx.topology.checks.cluster import why_unchangeable
from rabbit_chx.topology.checks.lint_rules import invalid_names
from rabbit_chx.topology.checks.ordered_queues import as_declared
from rabbit_chx.topology.checks.release_settings import release_refusals
from rabbit_chx.topology.diff import (
    BindingDifference,
    Difference,
    MissingType,
    ObjectDifference,
    Property,
    RingDifference,
    diff,
    is_shard,
    ring_of,
)
from rabbit_chx.topology.graph import reachable, sent_on_to, sources_in_order
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    HASHING,
    MODULUS_HASH,
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Topology,
    wire_text,
)
from rabbit_chx.topology.planning.blue_green import next_name
from rabbit_chx.topology.planning.modulus_change import change_modulus
from rabbit_chx.topology.planning.ring_change import Part, Request, change_ring
from rabbit_chx.topology.planning.slot_changes import plan_slots
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
    Step,
    Unbind,
)

_LEADS_ON = {"alternate-exchange", "dead-letter-exchange", "shards-per-node"}
"""With these keys a policy of a queue or exchange in use leads to objects that may still have to be declared."""


def plan(
    wanted: Topology,
    observed: Observed,
    *,
    strategy: str | None = None,
    prune: bool = False,
    force: bool = False,
    max_moved: float = 0.5,
) -> Plan:
    """The steps that make a broker match a topology, each with the exact share of keys that it moves.

    Args:
        wanted: the topology of the file.
        observed: the state of the broker.
        strategy: the name of the `Strategy` that changes rings; by default the cheapest that ends in the file's order.
        prune: also delete what the file does not name.
        force: allow changes that move more than ``max_moved``, and the deletion of queues that hold messages.
        max_moved: the largest share of an exchange's keys that a change in place may send to other queues at any
            moment.
    """
    request = Request(wanted, observed, strategy, prune, force, max_moved)
    part = _part(request)
    part.refusals += filter(None, [why_unchangeable(observed) if part.steps else ""])
    part.refusals += _owned_by_connections(part.steps, observed)
    part.notes += _restart_notes(part, request)
    part.notes += [f"not seen: {what}" for what in observed.unseen]
    return Plan(
        wanted.vhost,
        tuple(part.steps),
        tuple(part.changes),
        part.slot_moves,
        tuple(part.notes),
        tuple(part.refusals),
        tuple(part.left_alone),
        {
            each.name: observed.rings[each.name]
            for each in request.whole.hash_exchanges
            if each.name in observed.unrecorded
        },
        frozenset(
            queue.name
            for topology in (wanted, observed.topology)
            for queue in topology.queues
            if queue.type == "stream"
        ),
    )


def _part(request: Request) -> Part:
    differences = diff(request.wanted, request.observed)
    objections = _objections(differences, request)
    part = Part(refusals=[*objections.values(), *_general_objections(request)])
    slots = Part()
    blocked = {name for kind, name in objections if kind is Exchange}
    blocked |= plan_slots(slots, differences, request)
    bindings = {
        source: _bindings(source, group, request)
        for source, group in _by_source(differences)
        if source not in blocked
    }
    changed = [each.wanted for each in differences if isinstance(each, ObjectDifference)]
    policies = [policy for policy in changed if isinstance(policy, Policy)]
    # Policies that lead to other objects are set after those.
    leading = tuple(policy for policy in policies if _LEADS_ON & set(policy.definition))
    part.steps += [SetPolicy(policy) for policy in policies if policy not in leading]
    part.steps += _declarations(differences, request.observed.release)
    targets = reachable(request.whole, sent_on_to(Topology(policies=leading)), alternates=True)
    first = [bindings.pop(name) for name in [*bindings] if ToExchange(name) in targets]
    others = [*bindings.values()]
    leads_to_slots = any(ToExchange(each.exchange) in targets for each in request.wanted.slots)
    (first if leads_to_slots else others).insert(0, slots)
    for each in first:
        part += each
    part.steps += map(SetPolicy, leading)
    for each in others:
        part += each
    if request.prune:
        part += _prune(differences, request)
    part.notes += [
        f"exchange {exchange.name!r}: its bindings belong to the sharding plugin and are left alone"
        for exchange in request.whole.hash_exchanges
        if any(is_shard(each.destination) for each in request.observed.topology.bindings_from(exchange.name))
    ]
    return part


def _general_objections(request: Request) -> Iterator[str]:
    """The reasons why a broker of this release cannot hold the topology."""
    yield from (f"{each.where}: {each.message}" for each in invalid_names(request.wanted))
    yield from release_refusals(request.whole, request.observed.topology, request.observed.release)


def _owned_by_connections(steps: Iterable[Step], observed: Observed) -> Iterator[str]:
    """The exclusive queues that a plan would unbind, which the broker refuses to others."""
    for step in steps:
        if isinstance(step, Unbind) and isinstance(name := step.binding.destination, str):
            queue = observed.topology.queue(name)
            if queue is not None and queue.exclusive:
                yield (
                    f"queue {name!r} is bound to exchange {step.binding.source!r} and is exclusive: only the connection that "
                    "declared it can unbind it. It takes keys until that connection ends"
                )


# Exchanges, queues and policies


def _declarations(differences: Iterable[Difference], release: Release) -> Iterator[Step]:
    """Declare exchanges and queues; an alternate exchange precedes the exchanges that name it."""
    missing = [
        each.wanted
        for each in differences
        if isinstance(each, ObjectDifference) and each.wanted and not each.found
    ]
    exchanges = {each.name: each for each in missing if isinstance(each, Exchange)}
    leads = [Binding(each.name, ToExchange(each.alternate)) for each in exchanges.values() if each.alternate]
    order = sources_in_order(Topology(exchanges=tuple(exchanges.values()), bindings=tuple(leads)))
    yield from (DeclareExchange(exchanges[name]) for name in order if name in exchanges)
    yield from (DeclareQueue(as_declared(queue, release)) for queue in missing if isinstance(queue, Queue))


def _objections(differences: Iterable[Difference], request: Request) -> dict[tuple[type, str], str]:
    """The objects that the broker cannot declare, or that exist with other properties, each with the reason."""
    lacking = {each.type: each.reason for each in differences if isinstance(each, MissingType)}
    found: dict[tuple[type, str], str] = {}
    for each in differences:
        thing = each.wanted if isinstance(each, ObjectDifference) else None
        if thing is None or isinstance(thing, Policy):
            continue
        assert isinstance(each, ObjectDifference)
        key = (type(thing), thing.name)
        if each.found is not None:
            found[key] = _objection(thing, each.properties, request)
        elif isinstance(thing, Exchange) and thing.type in lacking:
            found[key] = f"exchange {thing.name!r}: {lacking[thing.type]}"
    return found


def _objection(thing: Exchange | Queue, changed: Sequence[Property], request: Request) -> str:
    kind = "exchange" if isinstance(thing, Exchange) else "queue"
    taken = [
        each.name
        for topology in (request.whole, request.observed.topology)
        for each in getattr(topology, f"{kind}s")
    ]
    name = next_name(thing.name, taken)
    replace = "switch over to it" if kind == "exchange" else "drain the old one"
    differences = ", ".join(map(_shown, changed))
    return (
        f"{kind} {thing.name!r}: {differences}; a broker changes none of that in place: name the new {kind} {name!r} in "
        f"the file, {replace}, then delete the old {kind} (blue/green)"
    )


def _shown(changed: Property) -> str:
    what = f"argument {changed.name}" if changed.is_argument else changed.name
    return f"{what} is {wire_text(changed.found)}, the file says {wire_text(changed.wanted)}"


# Bindings


def _by_source(
    differences: Iterable[Difference],
) -> Iterable[tuple[str, list[BindingDifference | RingDifference]]]:
    """The differences of bindings, grouped by exchange in the given order."""
    groups: dict[str, list[BindingDifference | RingDifference]] = {}
    for each in differences:
        if isinstance(each, BindingDifference):
            groups.setdefault(each.binding.source, []).append(each)
        elif isinstance(each, RingDifference):
            groups.setdefault(each.exchange, []).append(each)
    return groups.items()


def _bindings(source: str, group: Sequence[BindingDifference | RingDifference], request: Request) -> Part:
    """The steps for the bindings of one exchange."""
    there = request.observed.topology
    exchange = request.whole.exchange(source) or there.exchange(source)
    if isinstance(group[0], RingDifference):
        assert exchange is not None
        return change_ring(group[0], exchange, request)
    plain = [each for each in group if isinstance(each, BindingDifference)]
    missing = [each.wanted for each in plain if each.wanted is not None]
    extra = [each.found for each in plain if each.found is not None]
    if exchange is not None and exchange.type == MODULUS_HASH:
        is_top = request.wanted.slots_of(source) is not None
        return change_modulus(there.bindings_from(source), missing, [] if is_top else extra, request)
    part = Part([Bind(binding) for binding in missing])
    if extra and not request.prune:
        some = ", ".join(repr(str(binding.destination)) for binding in extra[:3]) + ", ..." * (len(extra) > 3)
        part.notes.append(
            f"exchange {source!r}: {counted(len(extra), 'binding')} that the file does not name {'is' if len(extra) == 1 else 'are'} "
            f"left alone ({some}); only a plan with prune removes them"
        )
    return part


# Deletions


def _prune(differences: Sequence[Difference], request: Request) -> Part:
    """Remove the bindings, policies, exchanges and queues that the file does not name, in this order."""
    optional = [each for each in differences if isinstance(each, BindingDifference) and each.optional]
    part = Part([Unbind(each.found) for each in optional if each.found is not None])
    extra = [each.found for each in differences if isinstance(each, ObjectDifference) and not each.wanted]
    part.steps += [ClearPolicy(each.name) for each in extra if isinstance(each, Policy)]
    exchanges = [each for each in extra if isinstance(each, Exchange)]
    for exchange in exchanges:  # before any deletion, which removes bindings too
        part.steps += _emptied(exchange, request)
    part.steps += [DeleteExchange(exchange.name) for exchange in exchanges]
    for queue in (each for each in extra if isinstance(each, Queue)):
        part.steps.append(DeleteQueue(queue.name, force=request.force))
        messages = request.observed.backlog.get(queue.name, 0)
        if queue.type == "stream" and not request.force:
            part.refusals.append(
                f"stream {queue.name!r} is not in the file, and a stream keeps its messages: if they are not needed, {Advice.FORCE}"
            )
        elif messages and not request.force:
            part.refusals.append(
                f"queue {queue.name!r} is not in the file and holds {counted(messages, 'message')}: drain it first, or {Advice.FORCE}"
            )
    return part


def _emptied(exchange: Exchange, request: Request) -> Iterator[Unbind]:
    """Unbind everything from an exchange, which cannot be deleted while it has bindings."""
    for binding in reversed(request.observed.topology.bindings_from(exchange.name)):
        if exchange.type in HASHING:
            at_risk = request.waiting([binding.destination])
            yield Unbind(binding, exchange_moved=exchange.name, moved=None, at_risk=at_risk)
        else:
            yield Unbind(binding)


# Restarts


def _restart_notes(part: Part, request: Request) -> Iterator[str]:
    """Describe the effect of a node restart on the planned rings."""
    observed = request.observed
    rings = rings_after(request.wanted, part.changes, observed)
    rings = {name: ring for name, ring in rings.items() if len(ring.bindings) > 1}
    if rings and observed.release.store is Store.KHEPRI:
        dead = [name for name, ring in observed.rings.items() if name in rings and ring.known and ring.dead]
        note = f"RabbitMQ {observed.release} on Khepri keeps the order of its rings over a restart"
        if dead:
            note += f", but one before these steps revives the dead bindings of {listed(dead, 'exchange')}"
        yield note
        return
    effects: dict[str, list[str]] = {}
    for name, ring in rings.items():
        effects.setdefault(_after_restart(ring, observed.worker_pool_size), []).append(name)
    yield from (f"{listed(names, 'exchange')}: {effect}" for effect, names in effects.items() if effect)


def rings_after(wanted: Topology, changes: Iterable[RingChange], observed: Observed) -> dict[str, Ring]:
    """The rings of a topology once a plan with these changes is applied."""
    there, changed = observed.topology, {each.exchange: each.after for each in changes}
    rings = {}
    for name in (each.name for each in wanted.hash_exchanges):
        found = there.exchange(name)
        if name in changed:
            rings[name] = changed[name]
        elif found and found.type == CONSISTENT_HASH and there.bindings_from(name):
            rings[name] = ring_of(name, observed)
        else:
            rings[name] = wanted.ring(name, observed.release)
    return rings


def _after_restart(ring: Ring, worker_pool_size: int | None) -> str:
    """The effect on one ring; empty if it is unpredictable, since lint warns of that."""
    release = ring.release
    if ring.runs is None or (after := ring.after_restart(worker_pool_size=worker_pool_size)).runs is None:
        return ""
    share = moved(ring, after).share
    if not share:
        return f"RabbitMQ {release} on Mnesia with one worker rebuilds exactly this ring when the node boots"
    return (
        f"RabbitMQ {release} on Mnesia with one worker sorts the ring when the node boots: {share:.2%} of the keys "
        "move; write the file in sorted order to avoid it"
    )
