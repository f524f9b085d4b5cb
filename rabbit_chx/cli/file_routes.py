"""``rabbit-chx route``: the queues of a message that passes through the exchanges of a topology file or a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabbit_chx.cli.ask.described import Located
from rabbit_chx.cli.ask.inputs import value_of
from rabbit_chx.cli.show.answers import PredictedRoute
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.hashing import hash_on
from rabbit_chx.mirror.partitioning import AnyOf, ModulusHashExchange
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import CONSISTENT_HASH, hashing_exchanges
from rabbit_chx.topology.routes import Router


def is_alone(at: Located) -> bool:
    """Whether the exchange is a ring of queues only, so that its mirror determines the route."""
    found = at.topology.exchange(at.exchange)
    if found is None or found.type != CONSISTENT_HASH or at.topology.slots_of(at.exchange):
        return False
    ring = at.rings.get(at.exchange)
    if ring is not None and ring.runs == ():
        return False  # without a bucket, an alternate exchange routes
    bindings = at.topology.bindings_from(at.exchange)
    return bool(bindings) and all(isinstance(bound.destination, str) for bound in bindings)


class FileRoutes:
    """Routes messages that are published to one exchange of a topology."""

    def __init__(self, at: Located) -> None:
        topology = at.topology
        self._router = Router(topology, release=at.release, rings=at.rings)
        self._name = at.exchange
        behind = reachable(topology, [ToExchange(at.exchange)], alternates=True)
        self.has_slots = any(ToExchange(slots.exchange) in behind for slots in topology.slots)
        self.ring: ConsistentHashExchange | None = None
        self._modulus: ModulusHashExchange | None = None
        self._slots = topology.slots_of(at.exchange)
        found = topology.exchange(at.exchange)
        if found is not None and found.type == CONSISTENT_HASH:
            self.ring = at.mirror()
        elif self._slots is not None:
            pairs = [(bound.destination, bound.key) for bound in self._slots._top_bindings]
            self._modulus = ModulusHashExchange(pairs, release=at.release)
        self._part = self.ring._hash_on.part if self.ring else "routing_key"
        hashing = [each for each in hashing_exchanges(topology).values() if ToExchange(each.name) in behind]
        self._hashed = {each.name: str(hash_on(each.hash_header, each.hash_property)) for each in hashing}
        """The exchanges from this one on that hash, each with the part that it hashes."""

    def undetermined(self, *, by_key: bool) -> dict[str, str]:
        """The exchanges that hash another part of a message than its key, with that part; without a key, all that hash."""
        on = str(self.ring._hash_on) if self.ring else "the routing key"
        return {name: part for name, part in sorted(self._hashed.items()) if not (by_key and part == on)}

    def answer(
        self, key: str | bytes | None, headers: Mapping[str, Any], width: int | None
    ) -> PredictedRoute:
        """Route a key: the part that the exchange hashes, or the routing key if it hashes none.

        None stands for no key, only headers. Other parts of the message are unknown, but given headers are all there are.
        """
        text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key or ""
        value: Any = value_of(self.ring, text) if self.ring else text.encode("utf-8", "surrogateescape")
        known = {"headers"} if headers else set()
        if self._part == "headers":
            value = headers = {**headers, **value} if key is not None else headers
        elif key is not None:
            known.add(self._part)
        ends = self._router.route(
            self._name,
            value if self._part == "routing_key" else "",
            headers=headers,
            properties={self._part: value},
            known=known,
        )
        is_known = key is not None or self._part == "headers"
        has_buckets = self.ring is not None and len(self.ring.ring) > 0
        explanation = self.ring._explain(value) if self.ring and has_buckets and is_known else None
        shown = ", ".join(map(str, ends)) or "unroutable"
        fields: dict[str, Any] = {
            "queues": [
                {"any_of": sorted(map(str, end.destinations))} if isinstance(end, AnyOf) else end
                for end in ends
            ]
        }
        if self._slots is not None:
            by_key = self._modulus.route(value) if self._modulus and is_known else None
            found = explanation.destination if explanation else by_key
            if slot := getattr(found, "name", None):
                shown = f"{slot}: {shown}"
                fields["slot"] = slot
        unsure = any(isinstance(end, AnyOf) for end in ends)
        why_none = "no bucket" if is_known else "the part that the exchange hashes is not given"
        return PredictedRoute("file_route", key or "", shown, fields, explanation, width, unsure, why_none)
