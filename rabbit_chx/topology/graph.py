"""What leads where in a topology, whatever the keys of its bindings. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.ring import ToExchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Topology

__all__ = ["alternates_of", "reachable", "sources_in_order"]


def reachable(
    topology: Topology, start: Iterable[Destination], *, alternates: bool = False
) -> set[Destination]:
    """The given destinations and everything behind them, on request across alternate exchanges too."""
    found: set[Destination] = set()
    ahead = list(start)
    while ahead:
        destination = ahead.pop()
        if destination in found:
            continue
        found.add(destination)
        if isinstance(destination, ToExchange):
            ahead += [binding.destination for binding in topology.bindings_from(destination.name)]
            if alternates:
                ahead += alternates_of(topology, destination.name)
    return found


def alternates_of(topology: Topology, name: str) -> Iterator[Destination]:
    """Where an exchange sends what it cannot route, by its argument and by the policy applied to it."""
    exchange = topology.exchange(name)
    if exchange is None:
        return
    applied = [policy.definition for policy in topology.policies if policy.name == exchange.policy]
    for alternate in (exchange.alternate, *(each.get("alternate-exchange") for each in applied)):
        if alternate:
            yield ToExchange(alternate)


def sources_in_order(topology: Topology) -> tuple[str, ...]:
    """Every exchange and every source of bindings, each after all exchanges that it leads to (cycles aside)."""
    done: dict[str, None] = {}
    sources = (binding.source for binding in topology.bindings)
    for start in dict.fromkeys((*(exchange.name for exchange in topology.exchanges), *sources)):
        # Depth first without recursion: a chain of exchanges may be longer than Python's stack.
        path = [(start, _targets(topology, start))]
        entered = {start}
        while path:
            name, targets = path[-1]
            following = next((each for each in targets if each not in done and each not in entered), None)
            if following is None:
                done.setdefault(name)
                path.pop()
            else:
                entered.add(following)
                path.append((following, _targets(topology, following)))
    return tuple(done)


def _targets(topology: Topology, source: str) -> Iterator[str]:
    for binding in topology.bindings_from(source):
        if isinstance(binding.destination, ToExchange):
            yield binding.destination.name
