"""``rabbit-chx route --file``: the queues of a message that passes through the exchanges of a topology file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.cli.keys import evidence, key_field, value_of
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.errors import InvalidValue
from rabbit_chx.exchange import ConsistentHashExchange
from rabbit_chx.partitioning import AnyOf, ModulusHashExchange
from rabbit_chx.topology.model import CONSISTENT_HASH
from rabbit_chx.topology.routes import Router

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rabbit_chx.exchange import Explanation
    from rabbit_chx.releases import Release
    from rabbit_chx.topology.model import Topology

__all__ = ["Answer", "FileRoutes", "is_alone", "print_answers"]

_SLOTS: Final = (
    "the queue of each slot is known to the broker, not to the file; `rabbit-chx export -o LIVE.yaml` writes it, and "
    "`--file LIVE.yaml` then gives one queue."
)


def is_alone(topology: Topology, exchange: str) -> bool:
    """Whether the exchange is a ring of queues only, so that its mirror determines the route."""
    found = topology.exchange(exchange)
    if found is None or found.type != CONSISTENT_HASH or topology.slots_of(exchange):
        return False
    bindings = topology.bindings_from(exchange)
    return bool(bindings) and all(isinstance(bound.destination, str) for bound in bindings)


@dataclass(frozen=True)
class Answer:
    """The route of one message."""

    key: str | bytes
    ends: tuple[str | AnyOf, ...]
    slot: str | None
    """The slot of the exchange that the message takes."""
    explanation: Explanation | None
    """How the exchange's ring routes the message, if it has a ring."""

    @property
    def text(self) -> str:
        """The queues as text."""
        ends = ", ".join(map(str, self.ends)) or "unroutable"
        return ends if self.slot is None else f"{self.slot}: {ends}"

    def json(self, *, explain: bool) -> dict[str, Any]:
        """The queues as JSON fields, with all candidates where routing is random or only the broker knows."""
        queues = [
            {"any_of": sorted(map(str, end.destinations))} if isinstance(end, AnyOf) else end
            for end in self.ends
        ]
        line: dict[str, Any] = {**key_field(self.key), "queues": queues}
        if self.slot is not None:
            line["slot"] = self.slot
        if explain and self.explanation is not None:
            line |= {"bucket": self.explanation.bucket, **evidence(self.explanation)}
        return line


class FileRoutes:
    """Routes messages that are published to one exchange of a topology."""

    def __init__(self, topology: Topology, exchange: str, release: Release) -> None:
        self._router = Router(topology, release=release)
        self._name = exchange
        self.has_slots = bool(topology.slots)
        self.ring: ConsistentHashExchange | None = None
        self._modulus: ModulusHashExchange | None = None
        self._slots = topology.slots_of(exchange)
        found = topology.exchange(exchange)
        if found is not None and found.type == CONSISTENT_HASH:
            ring = topology.ring(exchange, release)
            on = {"hash_header": found.hash_header, "hash_property": found.hash_property}
            self.ring = ConsistentHashExchange(ring, **on)
        elif self._slots is not None:
            pairs = [(bound.destination, bound.key) for bound in self._slots.top_bindings]
            self._modulus = ModulusHashExchange(pairs, release=release)

    def answer(self, key: str | bytes, headers: Mapping[str, str]) -> Answer:
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
        slot = None
        if self._slots is not None:
            found = explanation.destination if explanation else self._modulus and self._modulus.route(encoded)
            slot = getattr(found, "name", None)
        return Answer(key, ends, slot, explanation)


def print_answers(
    routes: FileRoutes,
    keys: Iterable[str | bytes],
    headers: Mapping[str, str],
    *,
    count: bool,
    explain: bool,
    output: str,
) -> None:
    """Print a line for each message or, with ``count``, for each destination."""
    if explain and routes.ring is None:
        got, allowed = "an exchange without a ring", f"an exchange of type {CONSISTENT_HASH}"
        raise InvalidValue("--explain", got, allowed)
    counts: Counter[str] = Counter()
    unsure = False
    width = max(map(len, keys)) if isinstance(keys, tuple) else 0  # those of a file are not all known
    for answer in (routes.answer(key, headers) for key in keys):
        unsure = unsure or any(isinstance(end, AnyOf) for end in answer.ends)
        counts[answer.text] += 1
        if count:
            continue
        if output == "json":
            print_json("file_route", **answer.json(explain=explain))
        else:
            echo(_line(answer, width, explain=explain))
    if count:
        _print_counts(counts, output)
    if unsure and routes.has_slots:
        notice("Note", _SLOTS)


def _line(answer: Answer, width: int, *, explain: bool) -> str:
    key = answer.key.decode("utf-8", "replace") if isinstance(answer.key, bytes) else answer.key
    if explain:
        return f"key:         {key}\n{answer.explanation or 'no bucket'}\nends in:     {answer.text}\n"
    return f"{key:<{width}}  {answer.text}" if width else f"{key}\t{answer.text}"


def _print_counts(counts: Counter[str], output: str) -> None:
    total = counts.total()
    if output == "json":
        for end, keys in sorted(counts.items()):
            print_json("count", end=end, keys=keys, share=keys / total)
        return
    from rabbit_chx.cli.tables import print_shares

    print_shares(dict(sorted(counts.items())), title=f"{total:,} keys")


def rows_of(columns: Iterable[Any]) -> Iterator[bytes]:
    """The keys of columns, one by one."""
    for column in columns:
        yield from (column[row] for row in range(len(column)))
