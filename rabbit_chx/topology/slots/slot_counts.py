"""Count the messages of each slot in a sample, with the mirror of the exchange in front of the slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import text_of
from rabbit_chx.errors import InvalidValue, RabbitChxError, RingUnknown
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.partitioning import ModulusHashExchange
from rabbit_chx.mirror.ring import name_of
from rabbit_chx.topology.model import MODULUS_HASH, Exchange, Observed, Slots, Topology

_MOST_KEYS: Final = 200_000
"""The most distinct keys that are counted; beyond that, the rarer half is dropped."""


class SlotCounts:
    """The messages of each slot, and the hottest keys; bindings, ring and release of the broker determine the slot of a key."""

    def __init__(self, slots: Slots, wanted: Topology, observed: Observed) -> None:
        top = wanted.exchange(slots.exchange) or Exchange(slots.exchange, MODULUS_HASH)
        self.mirror: ConsistentHashExchange | ModulusHashExchange = _mirror(top, observed)
        self._names = [name_of(destination) for destination in self.mirror.destinations]
        if sorted(self._names) != sorted(slots.names):
            raise InvalidValue(
                f"exchange {top.name!r} on the broker",
                f"bindings to {len(self._names)} destinations",
                f"one binding to each of its {slots.count} slots, and no others",
                "`rabbit-chx plan FILE` shows the differences",
            )
        self.of_slot: Counter[str] = Counter(dict.fromkeys(slots.names, 0))
        self._of_key: Counter[tuple[str, str]] = Counter()
        self._slot_of: dict[Any, str | None] = {}

    @property
    def total(self) -> int:
        """All counted messages."""
        return self.of_slot.total()

    def add(self, slot: str, key: str) -> None:
        """Count one message."""
        self.of_slot[slot] += 1
        self._of_key[slot, key] += 1
        if len(self._of_key) > _MOST_KEYS:
            self._of_key = Counter(dict(self._of_key.most_common(_MOST_KEYS // 2)))

    def add_keys(self, keys: Sequence[Any]) -> None:
        """Count messages, given as the values that the exchange hashes."""
        for place, key in zip(self.mirror.route_many(keys).tolist(), keys, strict=True):
            self.add(self._names[place], text_of(key))

    def hottest_key(self, slot: str) -> tuple[str, int]:
        """The key that occurred most often in a slot, and how often."""
        found = ((key, count) for (each, key), count in self._of_key.items() if each == slot)
        return max(found, key=lambda pair: pair[1], default=("", 0))

    def route(
        self, keys: Sequence[str], headers: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """The slot of a message, None if it cannot be predicted, and the value that determines it.

        The keys of CC and BCC follow the routing key.
        """
        if isinstance(self.mirror, ModulusHashExchange):
            value: Any = tuple(keys)
            shown = keys[0]
        elif self.mirror.hash_header is not None:
            value = headers.get(self.mirror.hash_header)
            shown = text_of(value)
        else:
            part = self.mirror._hash_on.part
            value = keys[0] if part == "routing_key" else properties.get(part)
            shown = text_of(value)
        known = repr(value)
        if known not in self._slot_of:
            self._slot_of[known] = self._predict(keys, headers, value)
        return self._slot_of[known], shown

    def _predict(self, keys: Sequence[str], headers: Mapping[str, Any], value: Any) -> str | None:
        try:
            if isinstance(self.mirror, ModulusHashExchange):
                return name_of(self.mirror.route(keys[0], cc=keys[1:]))
            hashed = headers if self.mirror.hash_header is not None else value
            return name_of(self.mirror._explain(hashed).destination)
        except RabbitChxError:  # a header that clients encode differently, for example
            return None


def _mirror(top: Exchange, observed: Observed) -> ConsistentHashExchange | ModulusHashExchange:
    if top.type == MODULUS_HASH:
        bound = observed.topology.bindings_from(top.name)
        return ModulusHashExchange([(each.destination, each.key) for each in bound], release=observed.release)
    ring = observed.rings.get(top.name)
    if ring is None or ring.runs is None:
        reason = "it has no bindings" if ring is None else ring.why_unknown
        raise RingUnknown(
            f"the slots of keys are unknown, because the order of exchange {top.name!r} is unknown: {reason}; "
            f"{Advice.LEARN_ORDER}"
        )
    return ConsistentHashExchange(ring, hash_header=top.hash_header, hash_property=top.hash_property)
