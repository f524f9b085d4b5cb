"""The order in which `apply` bound the rings of a virtual host, recorded on the broker itself.

A ring follows the order of its bind commands, which no API lists. So `apply` records it in bindings of an exchange of
its own, ``rabbit-chx.order``, to which nothing is published: one binding to every destination of a ring, with the name
of the ring's exchange as routing key, and with the number of the bind, the weight and the arguments of the bind as arguments. All of them
are text, because clients write text alike and numbers with different AMQP types. The bindings of the ring itself stay plain, so
that an application which binds for itself repeats them instead of adding others.

A record lives no longer than what it describes:

- ``rabbit-chx.order`` is transient. On Mnesia a restart deletes transient exchanges with their bindings, and rebuilds
  every ring in an order of its own. On Khepri both survive, and rings keep their order (tried on 3.10, 4.0 and 4.3).
- A queue that is deleted takes its entry along. So does the ring's exchange, to which `anchor` leads.

A queue that a plan unbinds and keeps gets another entry, `departed`, so that messages left in it are found.

It cannot show that somebody unbound a destination and bound it again with the same weight and arguments, or bound it a second time
and unbound that; only the node knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rabbit_chx.mirror.ring import Destination, ToExchange
from rabbit_chx.topology.model import Binding, Exchange, wire_text

ORDER_EXCHANGE: Final = "rabbit-chx.order"
CLUSTER: Final = "x-cluster"
"""The argument of the exchange that holds the cluster's name: an import into another cluster voids the record."""

_NUMBER: Final = re.compile("[0-9]{1,18}")
_SEQUENCE: Final = "sequence"
_WEIGHT: Final = "weight"
_ARGUMENTS: Final = "arguments"
_DEPARTED: Final = "departed"

Recorded: TypeAlias = tuple[Destination, str, str]
"""What distinguishes the bindings of one exchange: the destination, the weight, and the arguments as text."""
PLAIN: Final = wire_text({})


def order_exchange(cluster: str) -> Exchange:
    """The exchange whose bindings are the record."""
    return Exchange(ORDER_EXCHANGE, "fanout", durable=False, internal=True, arguments={CLUSTER: cluster})


def anchor(exchange: str) -> Binding:
    """The binding whose existence shows that the entries are about the current exchange of this name."""
    return Binding(ORDER_EXCHANGE, ToExchange(exchange), exchange)


def as_recorded(bound: Binding) -> Recorded:
    """What an entry says of a binding."""
    _, destination, weight, arguments = bound._identity
    return destination, weight, arguments


def entry(exchange: str, recorded: Recorded, number: int) -> Binding:
    """The binding that records that this binding of a ring was the ``number``-th to be made."""
    destination, weight, arguments = recorded
    texts = {_SEQUENCE: str(number), _WEIGHT: weight}
    if arguments != PLAIN:
        texts[_ARGUMENTS] = arguments
    return Binding(ORDER_EXCHANGE, destination, exchange, texts)


def departed(exchange: str, queue: Destination) -> Binding:
    """The binding that records that this queue was part of the ring."""
    return Binding(ORDER_EXCHANGE, queue, exchange, {_DEPARTED: "true"})


@dataclass
class OrderRecord:
    """What is recorded of all rings of a virtual host."""

    entries: dict[str, dict[Recorded, int]] = field(default_factory=dict)
    """By exchange, the number of each bind."""
    anchored: set[str] = field(default_factory=set)
    """The exchanges that have an anchor."""
    departed: set[tuple[str, Destination]] = field(default_factory=set)
    """Exchanges, each with a queue that was unbound and kept."""

    @classmethod
    def read(cls, bindings: Iterable[Binding]) -> OrderRecord:
        """The record among the bindings of a virtual host."""
        record = cls()
        for bound in bindings:
            if bound.source != ORDER_EXCHANGE:
                continue
            number, weight = bound.arguments.get(_SEQUENCE), bound.arguments.get(_WEIGHT)
            arguments = bound.arguments.get(_ARGUMENTS, PLAIN)
            if not bound.arguments and bound.destination == ToExchange(bound.key):
                record.anchored.add(bound.key)
            elif _DEPARTED in bound.arguments:
                record.departed.add((bound.key, bound.destination))
            elif (
                isinstance(weight, str)
                and isinstance(arguments, str)
                and isinstance(number, str)
                and _NUMBER.fullmatch(number)
            ):
                record.entries.setdefault(bound.key, {})[bound.destination, weight, arguments] = int(number)
        return record

    def numbers(self, exchange: str) -> dict[Recorded, int]:
        """What may be believed of one exchange."""
        return self.entries.get(exchange, {}) if exchange in self.anchored else {}

    @property
    def queues(self) -> dict[str, frozenset[str]]:
        """The queues of each exchange, bound or not."""
        listed = {(name, destination) for name, ring in self.entries.items() for destination, *_ in ring}
        found: dict[str, set[str]] = {}
        for exchange, destination in listed | self.departed:
            if isinstance(destination, str):
                found.setdefault(exchange, set()).add(destination)
        return {exchange: frozenset(queues) for exchange, queues in found.items()}

    @property
    def next_number(self) -> int:
        """A number above all that were used."""
        return 1 + max((number for each in self.entries.values() for number in each.values()), default=0)
