"""Plan changes of slots: to a division by the weights of a file, or by given moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.diff import Difference, SlotsDifference, slot_holders, slots_difference
from rabbit_chx.topology.model import MODULUS_HASH, Exchange, Observed, Slots, Topology
from rabbit_chx.topology.planning.drain_order import drain_stages
from rabbit_chx.topology.planning.ring_change import Part, Request, case_of, repairs
from rabbit_chx.topology.planning.slots import SlotScale, slot_notes, slot_objections, slot_steps
from rabbit_chx.topology.planning.steps import Plan
from rabbit_chx.topology.slots.rebalancing import Move


def plan_slots(part: Part, differences: Iterable[Difference], request: Request) -> set[str]:
    """Add the steps of all slots and return the top exchanges that cannot be planned."""
    tops: dict[str, Exchange] = {}
    for slots in request.wanted.slots:
        top = request.whole.exchange(slots.exchange) or Exchange(slots.exchange, MODULUS_HASH)
        if reasons := list(slot_objections(slots, top, request.observed)):
            part.refusals += reasons
        else:
            tops[slots.exchange] = top
    for each in differences:
        if isinstance(each, SlotsDifference) and each.slots.exchange in tops:
            part += _slots(each, tops[each.slots.exchange], request)
    return {slots.exchange for slots in request.wanted.slots} - tops.keys()


def _slots(difference: SlotsDifference, top: Exchange, request: Request) -> Part:
    flows = bool(request.observed.topology.bindings_from(top.name))
    scale = SlotScale(difference.slots, top, request.observed) if flows else None
    part = Part(notes=list(slot_notes(difference)))
    total = 0.0
    for ring in difference.rings:
        steps, share = slot_steps(case_of(ring, request.waiting), repairs(ring), top.name, scale)
        part.steps += steps
        total += share or 0.0
    if total:
        part.slot_moves[top.name] = total
    return part


def plan_moves(wanted: Topology, exchange: str, division: Mapping[str, str], observed: Observed) -> Plan:
    """The steps that point these slots of an exchange to these queues, each with the share of keys that it moves."""
    slots = slots_behind(wanted, exchange)
    part = Part()
    plan_slots(
        part,
        [slots_difference(slots, division, observed)],
        Request(replace(wanted, slots=(slots,)), observed),
    )
    return Plan(wanted.vhost, tuple(part.steps), slot_moves=part.slot_moves, refusals=tuple(part.refusals))


def slots_behind(wanted: Topology, exchange: str) -> Slots:
    """The slots of an exchange; raise if it has none."""
    found = wanted.slots_of(exchange)
    if found is None:
        raise InvalidValue(
            "exchange",
            exchange,
            "an exchange of the file with slots: "
            + (", ".join(each.exchange for each in wanted.slots) or "none"),
            "Without slots, weights move load: `rabbit-chx plan FILE --weight QUEUE=W` shows the cost of a weight, and "
            "`rabbit-chx plan FILE --strategy slots` that of slots",
        )
    return found


def queue_of_slots(slots: Slots, observed: Observed) -> dict[str, str]:
    """The queue of each slot; raise unless each slot has one queue, and each queue of the file has a slot."""
    found = {}
    for slot in slots.names:
        queues = {binding.destination for binding in observed.topology.bindings_from(slot)}
        older = not queues <= slots.queues.keys()
        if older or len(queues) != 1:
            listed = " and ".join(sorted(repr(str(queue)) for queue in queues)) or "no queue"
            raise _unfinished(slots, f"slot {slot!r} with {listed}", older=older)
        found[slot] = str(queues.pop())
    for queue in slots.queues:
        if queue not in found.values():
            older = observed.topology.queue(queue) is None  # `scale` deletes the queues that it removes
            raise _unfinished(slots, f"no slot with queue {queue!r}", older=older)
    return found


def unfinished_moves(slots: Slots, observed: Observed) -> dict[str, str]:
    """The slots that an interrupted change left with several queues, each with its new queue.

    `apply` prefers the new queue too, but only up to the number of slots that the file gives it. The file does not
    limit a move for load, because its weights change after the move.
    """
    found = {}
    for slot, holders in slot_holders(slots, observed).items():
        queues = {binding.destination for binding in observed.topology.bindings_from(slot)}
        if len(queues) > 1 and queues <= slots.queues.keys() and holders:
            found[slot] = str(holders[-1])
    return found


def _unfinished(slots: Slots, got: str, *, older: bool) -> InvalidValue:
    return InvalidValue(
        f"slots of exchange {slots.exchange!r} on the broker",
        Unquoted(got),
        "one queue of the file for each slot, and a slot for each queue",
        "The file may be older than the broker: `rabbit-chx scale FILE --write` writes the broker's queues into it, and "
        "`rabbit-chx apply FILE` would restore the queues of the file"
        if older
        else "While members of a group consume, `rabbit-chx rebalance FILE` finishes an interrupted move; without "
        "members, `rabbit-chx apply FILE` finishes any change",
    )


def move_rounds(moves: Iterable[Move]) -> tuple[tuple[Move, ...], ...]:
    """Divide the moves into rounds that can be drained in order, because no queue in a round waits for itself."""
    made: list[list[Move]] = []
    for move in moves:
        for each in made:
            if drain_stages(_waits((*each, move))) is not None:
                each.append(move)
                break
        else:
            made.append([move])
    return tuple(map(tuple, made))


def _waits(moves: Iterable[Move]) -> dict[Destination, set[Destination]]:
    found: dict[Destination, set[Destination]] = {}
    for move in moves:
        found.setdefault(move.to_queue, set()).add(move.from_queue)
    return found
