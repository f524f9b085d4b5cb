"""Compare the bindings of an exchange before and after a write.

A publisher does not notice that a queue is unbound or deleted while others are still bound: the broker confirms every
row, but the rows of the deleted queue are lost. Only the management API lists bindings, so the comparison needs the option
``managementUrl``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rabbit_chx import RabbitChxError, ToExchange
from spark_connector.connections import management_of
from spark_connector.writing.options import WriteOptions


class Bound(NamedTuple):
    """A binding of the exchange."""

    destination: str | ToExchange
    key: str
    """The binding key; for a consistent-hash exchange, the weight."""

    def __str__(self) -> str:
        to = self.destination
        named = f"exchange {to.name!r}" if isinstance(to, ToExchange) else f"queue {to!r}"
        return f"{named} (binding key {self.key!r})"


def bindings_of(options: WriteOptions) -> tuple[Bound, ...] | None:
    """Return the bindings of the option ``exchange``, or None without the option ``managementUrl``."""
    if options.management_url is None or not options.exchange:
        return None
    url = options.urls[0]
    found = management_of(options, options.management_url).bindings_from(url.vhost, options.exchange)
    return tuple(sorted((Bound(one.destination, one.key) for one in found), key=str))


def changes(options: WriteOptions, before: Iterable[Bound] | None) -> list[str]:
    """Describe the changes since ``before``. If the broker does not answer, the changes are unknown."""
    if before is None:
        return []
    try:
        now = Counter(bindings_of(options) or ())
        gone, new = Counter(before) - now, now - Counter(before)
        lost = [f"{one} is no longer bound{_deleted(options, one)}" for one in gone.elements()]
        return lost + [f"{one} is newly bound" for one in new.elements()]
    except RabbitChxError as error:
        return [f"unknown: {error}"]


def _deleted(options: WriteOptions, bound: Bound) -> str:
    """Describe a deleted queue; return nothing if the broker still has the queue."""
    if isinstance(bound.destination, ToExchange):
        return ""
    management = management_of(options, options.management_url)
    names = {queue.name for queue, _ in management.queues(options.urls[0].vhost)}
    return "" if bound.destination in names else ": the queue was deleted, with the rows in it"
