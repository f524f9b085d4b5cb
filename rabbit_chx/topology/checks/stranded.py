"""Queues that are no longer bound but still hold messages, which consumers of the exchange may never come for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rabbit_chx.topology.model import Observed, Topology, bound_in, bound_to, hashing_exchanges

_NUMBER: Final = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class Stranded:
    """A queue that is not bound and holds messages, and the exchange that it was bound to."""

    queue: str
    exchange: str
    messages: int


def stranded(
    wanted: Topology, observed: Observed, messages: Mapping[str, int] | None = None
) -> Iterator[Stranded]:
    """The queues with messages that were part of an exchange of ``wanted`` and are bound to nothing now.

    A queue was part of an exchange if the record on the broker says so, or if it has the name of one of the exchange's
    queues with another number. Queues that ``wanted`` binds are missing bindings, and not listed here.

    Args:
        wanted: the topology of the file.
        observed: the state of the broker.
        messages: the number of messages in each queue, by default those of ``observed``.
    """
    counts = observed.backlog if messages is None else messages
    bound = bound_in(observed.topology) | bound_in(wanted)
    loose = {name: count for name, count in counts.items() if count and name not in bound}
    named = {queue.name for queue in wanted.queues}
    for exchange in hashing_exchanges(wanted):
        queues = bound_to(wanted, exchange) | bound_to(observed.topology, exchange)
        families = {_family(queue) for queue in queues if isinstance(queue, str)} - {None}
        recorded = observed.recorded.get(exchange, frozenset())
        for name in sorted(loose):
            if name in recorded or (name not in named and _family(name) in families):
                yield Stranded(name, exchange, loose.pop(name))


def _family(name: str) -> str | None:
    """A name without its numbers; None for a name that has none."""
    family, count = _NUMBER.subn("#", name)
    return family if count else None
