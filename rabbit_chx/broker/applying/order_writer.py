"""The commands that keep the record of the order in which rings were bound. No connection is opened here.

An entry is written right before its bind and removed right after its unbind, on the same channel. If an apply stops in
between, the record has one entry too many, which readers ignore and the next apply removes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rabbit_chx.broker.commands import OnChannel
from rabbit_chx.broker.reading.order_record import (
    ORDER_EXCHANGE,
    PLAIN,
    OrderRecord,
    Recorded,
    anchor,
    as_recorded,
    departed,
    entry,
    order_exchange,
)
from rabbit_chx.broker.reading.ring_order import OrderEvidence, ring_of
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange
from rabbit_chx.topology.model import Binding, Exchange


class OrderWriter:
    """Keeps the record of one virtual host while a plan is applied.

    ``rings`` are those that were known, but not recorded; the order of all others comes from the record itself. ``departing`` are the
    exchanges and queues that the plan unbinds and keeps.
    """

    def __init__(
        self,
        evidence: OrderEvidence,
        rings: Mapping[str, Ring],
        departing: Collection[tuple[str, Destination]] = (),
    ) -> None:
        self._departing = departing
        self._evidence = evidence
        self._rings = rings
        self._record = OrderRecord() if evidence.why_void else evidence.record
        self._next = self._record.next_number
        self._adopted: set[str] = set()
        self._begin = [declare_exchange(order_exchange(evidence.cluster))]
        """The exchange of the record, which is declared first; one that proves nothing any more is deleted before."""
        if evidence.exchange is not None and evidence.why_void:
            self._begin.insert(0, OnChannel("exchange_delete", {"exchange": ORDER_EXCHANGE}))

    def adopt(self, exchange: str, bindings: Iterable[Binding]) -> list[OnChannel]:
        """Record the order of the bindings that an exchange has already, where it is known."""
        if exchange in self._adopted:
            return []
        begin, self._begin = self._begin, []
        self._adopted.add(exchange)
        listed = list(bindings)
        there = set(map(as_recorded, listed))
        entries = self._record.entries.setdefault(exchange, {})
        order = self._order(exchange, listed)
        keep = sorted(there & set(entries), key=lambda one: entries[one])
        if order is None or (order == keep and exchange in self._record.anchored):
            return [*begin, *self._drop(exchange, set(entries) - there)]
        commands = [*begin, *self._drop(exchange, set(entries))]
        for one in order:
            commands += self._bind(exchange, one)
        return commands

    def _order(self, exchange: str, listed: list[Binding]) -> list[Recorded] | None:
        """The bindings to record, in their order, one for each destination: that which is recorded already, if any."""
        there = {(bound.destination, bound.key) for bound in listed}
        ring = self._rings.get(exchange)
        if ring is None or not ring.known or {(one.destination, one.key) for one in ring.bindings} != there:
            try:
                ring, source = ring_of(listed, self._evidence, None)
            except InvalidValue:
                return None
            if source == "trivial" and listed:  # its only binding may have no buckets
                return None
        if not ring.known or len({destination for destination, _ in there}) < len(there) or ring.dead:
            return None
        entries = self._record.entries.get(exchange, {})
        by_preference = sorted(map(as_recorded, listed), key=lambda one: (one in entries, one[2] == PLAIN))
        chosen = {one[0]: one for one in by_preference}
        return [chosen[destination] for destination in ring.destinations]

    def bind(self, bound: Binding) -> list[OnChannel]:
        """Record a binding that is about to be made."""
        return self._bind(bound.source, as_recorded(bound))

    def _bind(self, exchange: str, one: Recorded) -> list[OnChannel]:
        destination, *_ = one
        entries = self._record.entries.setdefault(exchange, {})
        commands = []
        if exchange not in self._record.anchored:
            self._record.anchored.add(exchange)
            commands += self._drop(exchange, set(entries))
            commands.append(bind_command("bind", anchor(exchange)))
        if (exchange, destination) in self._record.departed:
            self._record.departed.discard((exchange, destination))
            commands.append(bind_command("unbind", departed(exchange, destination)))
        if one not in entries:
            entries[one] = self._next
            self._next += 1
            commands.append(bind_command("bind", entry(exchange, one, entries[one])))
        return commands

    def unbind(self, bound: Binding) -> list[OnChannel]:
        """Remove the entry of a binding that is gone, and record that its queue stays."""
        dropped = self._drop(bound.source, {as_recorded(bound)})
        if (bound.source, bound.destination) not in self._departing:
            return dropped
        self._record.departed.add((bound.source, bound.destination))
        return [*dropped, bind_command("bind", departed(bound.source, bound.destination))]

    def delete_exchange(self, name: str) -> list[OnChannel]:
        """Take back the entries of an exchange that is about to go; its anchor goes with it."""
        self._record.anchored.discard(name)
        return self._drop(name, set(self._record.entries.get(name, ())))

    def deleted_queue(self, name: str) -> None:
        """Forget the entries of a queue; the broker has deleted them with it."""
        for entries in self._record.entries.values():
            for one in [each for each in entries if each[0] == name]:
                del entries[one]
        self._record.departed = {each for each in self._record.departed if each[1] != name}

    def _drop(self, exchange: str, these: Iterable[Recorded]) -> list[OnChannel]:
        entries = self._record.entries.get(exchange, {})
        return [
            bind_command("unbind", entry(exchange, one, entries.pop(one)))
            for one in sorted(these, key=str)
            if one in entries
        ]


def bind_command(verb: str, bound: Binding) -> OnChannel:
    """The command that binds or unbinds."""
    kind, ends = "queue", {"queue": bound.destination, "exchange": bound.source}
    if isinstance(bound.destination, ToExchange):
        kind, ends = "exchange", {"destination": bound.destination.name, "source": bound.source}
    return OnChannel(f"{kind}_{verb}", {**ends, "routing_key": bound.key, "arguments": dict(bound.arguments)})


def declare_exchange(exchange: Exchange) -> OnChannel:
    """The command that declares an exchange."""
    return OnChannel(
        "exchange_declare",
        {
            "exchange": exchange.name,
            "exchange_type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": dict(exchange.arguments),
        },
    )
