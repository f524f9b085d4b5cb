"""The graph of exchanges and queues in a topology, regardless of binding keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from rabbit_chx.mirror.ring import Destination, ToExchange
from rabbit_chx.topology.model import Topology


def reachable(
    topology: Topology, start: Iterable[Destination], *, alternates: bool = False
) -> set[Destination]:
    """The given destinations and all that bindings lead to from there, optionally through alternate exchanges too."""
    found: set[Destination] = set()
    ahead = list(start)
    while ahead:
        destination = ahead.pop()
        if destination not in found:
            found.add(destination)
            if isinstance(destination, ToExchange):
                ahead += [binding.destination for binding in topology.bindings_from(destination.name)]
                ahead += alternates_of(topology, destination.name) if alternates else ()
    return found


def part_behind(topology: Topology, exchanges: Iterable[str], *, alternates: bool = False) -> Topology:
    """The part of a topology that messages to these exchanges can reach, optionally through alternate exchanges too; without policies."""
    reached = reachable(topology.expanded(), map(ToExchange, exchanges), alternates=alternates)
    slots = tuple(each for each in topology.slots if ToExchange(each.exchange) in reached)
    queues = reached | {queue for each in slots for queue in each.queues}
    return replace(
        topology,
        exchanges=tuple(each for each in topology.exchanges if ToExchange(each.name) in reached),
        queues=tuple(each for each in topology.queues if each.name in queues),
        bindings=tuple(each for each in topology.bindings if ToExchange(each.source) in reached),
        policies=(),
        slots=slots,
        co_partitioned=(),
    )


def sources_of(topology: Topology, exchange: str) -> set[str]:
    """The exchanges whose bindings lead to the queues of one exchange: its slots if it has some, or itself."""
    slots = topology.slots_of(exchange)
    return {exchange} if slots is None else set(slots.names)


def alternates_of(topology: Topology, name: str) -> Iterator[Destination]:
    """The alternate exchange of an exchange by its argument, or else those by the policies that may apply to it."""
    exchange = topology.exchange(name)
    if exchange is None:
        return
    possible = [exchange.alternate]
    if exchange.alternate is None:
        policies = topology._policies_of(exchange)
        possible = [policy.definition.get("alternate-exchange") for policy in policies if policy]
    for alternate in possible:
        if alternate:
            yield ToExchange(alternate)


def sent_on_to(topology: Topology) -> Iterator[Destination]:
    """The exchanges and queues to which exchanges, queues and policies send messages by their settings.

    These are alternate exchanges, and exchanges or queues for dead letters.
    """
    settings = [each.arguments for each in topology.exchanges]
    settings += [each.arguments for each in topology.queues]
    settings += [each.definition for each in topology.policies]
    for each in settings:
        for key in ("alternate-exchange", "dead-letter-exchange", "x-dead-letter-exchange"):
            if exchange := each.get(key):
                yield ToExchange(str(exchange))
            elif exchange == "" and (queue := each.get(key.replace("exchange", "routing-key"))):
                yield str(queue)  # through the default exchange


def undeclared_targets(wanted: Topology, there: Topology) -> set[Destination]:
    """What the settings of a topology lead to, through exchanges and queues of the broker that it does not declare."""
    others = replace(
        there,
        exchanges=tuple(each for each in there.exchanges if wanted.exchange(each.name) is None),
        queues=tuple(each for each in there.queues if wanted.queue(each.name) is None),
        bindings=tuple(each for each in there.bindings if wanted.exchange(each.source) is None),
    )
    found: set[Destination] = set()
    ahead = set(sent_on_to(wanted))
    while ahead:
        found |= reachable(others, ahead, alternates=True)
        exchanges = tuple(each for each in others.exchanges if ToExchange(each.name) in found)
        queues = tuple(each for each in others.queues if each.name in found)
        ahead = set(sent_on_to(Topology(exchanges=exchanges, queues=queues))) - found
    return found


def sources_in_order(topology: Topology) -> tuple[str, ...]:
    """All exchanges and sources of bindings, each after the exchanges that it leads to (except in cycles)."""
    exchanges = (exchange.name for exchange in topology.exchanges)
    sources = (binding.source for binding in topology.bindings)
    # Depth first, from a root that leads to all. Without recursion: a chain may be longer than Python's stack.
    path: list[tuple[str, Iterator[str]]] = [("", chain(exchanges, sources))]
    entered: set[str] = set()
    done: list[str] = []
    while path:
        name, targets = path[-1]
        following = next((each for each in targets if each not in entered), None)
        if following is None:
            done.append(name)
            path.pop()
        else:
            entered.add(following)
            path.append((following, _targets(topology, following)))
    return tuple(done[:-1])


def _targets(topology: Topology, source: str) -> Iterator[str]:
    for binding in topology.bindings_from(source):
        if isinstance(binding.destination, ToExchange):
            yield binding.destination.name
