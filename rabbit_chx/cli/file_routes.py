"""``rabbit-chx route``: the queues of a message that passes through the exchanges of a topology file or a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabbit_chx.cli.answers import PredictedRoute, value_of
from rabbit_chx.cli.options import NO_RINGS, mirror_of
from rabbit_chx.exchange import ConsistentHashExchange
from rabbit_chx.partitioning import AnyOf, ModulusHashExchange
from rabbit_chx.releases import Release
from rabbit_chx.ring import Ring
from rabbit_chx.topology.model import CONSISTENT_HASH, Topology
from rabbit_chx.topology.routes import Router


def is_alone(topology: Topology, exchange: str) -> bool:
    """Whether the exchange is a ring of queues only, so that its mirror determines the route."""
    found = topology.exchange(exchange)
    if found is None or found.type != CONSISTENT_HASH or topology.slots_of(exchange):
        return False
    bindings = topology.bindings_from(exchange)
    return bool(bindings) and all(isinstance(bound.destination, str) for bound in bindings)


class FileRoutes:
    """Routes messages that are published to one exchange of a topology."""

    def __init__(
        self, topology: Topology, exchange: str, release: Release, rings: Mapping[str, Ring] = NO_RINGS
    ) -> None:
        self._router = Router(topology, release=release, rings=rings)
        self._name = exchange
        self.has_slots = bool(topology.slots)
        self.ring: ConsistentHashExchange | None = None
        self._modulus: ModulusHashExchange | None = None
        self._slots = topology.slots_of(exchange)
        found = topology.exchange(exchange)
        if found is not None and found.type == CONSISTENT_HASH:
            self.ring = mirror_of(topology, exchange, release, rings)
        elif self._slots is not None:
            pairs = [(bound.destination, bound.key) for bound in self._slots.top_bindings]
            self._modulus = ModulusHashExchange(pairs, release=release)

    def answer(self, key: str | bytes, headers: Mapping[str, str], width: int | None) -> PredictedRoute:
        """Route a key: the part that the exchange hashes, or the routing key if it hashes none."""
        text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        encoded = text.encode("utf-8", "surrogateescape")
        part = self.ring.hash_on.part if self.ring else "routing_key"
        if self.ring is None or part == "routing_key":
            value: Any = encoded
            ends = self._router.route(self._name, encoded, headers=headers)
        elif part == "headers":
            value = headers or value_of(self.ring, text)
            ends = self._router.route(self._name, headers=value)
        else:
            value = value_of(self.ring, text)
            ends = self._router.route(self._name, headers=headers, properties={part: value})
        explanation = self.ring.explain(value) if self.ring is not None and len(self.ring.ring) else None
        shown = ", ".join(map(str, ends)) or "unroutable"
        fields: dict[str, Any] = {
            "queues": [
                {"any_of": sorted(map(str, end.destinations))} if isinstance(end, AnyOf) else end
                for end in ends
            ]
        }
        if self._slots is not None:
            found = explanation.destination if explanation else self._modulus and self._modulus.route(encoded)
            if slot := getattr(found, "name", None):
                shown = f"{slot}: {shown}"
                fields["slot"] = slot
        unsure = any(isinstance(end, AnyOf) for end in ends)
        return PredictedRoute("file_route", key, shown, fields, explanation, width, unsure)
