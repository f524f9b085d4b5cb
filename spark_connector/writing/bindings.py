"""Compare the bindings of an exchange before and after a write.

A publisher does not notice that a queue is unbound or deleted while others are still bound: the broker confirms every
row, but the rows of the deleted queue are lost, so the write fails, unless ``failOnDataLoss=false``. Only the management API lists bindings, so the comparison needs the option
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


class Changes(NamedTuple):
    """What happened to the bindings during a write."""

    deleted: tuple[str, ...] = ()
    """The queues that were deleted, with the rows in them."""
    others: tuple[str, ...] = ()
    """Changes by which no row is lost. If the broker does not answer, the changes are unknown."""


def changes(options: WriteOptions, before: Iterable[Bound] | None) -> Changes:
    """Describe the changes since ``before``."""
    if before is None:
        return Changes()
    try:
        now = Counter(bindings_of(options) or ())
        gone, new = sorted((Counter(before) - now).elements(), key=str), (now - Counter(before)).elements()
        names = _queues(options) if gone else set()
    except RabbitChxError as error:
        return Changes(others=(f"unknown: {error}",))
    deleted = [
        one for one in gone if not isinstance(one.destination, ToExchange) and one.destination not in names
    ]
    return Changes(
        tuple(f"{one} is no longer bound: the queue was deleted, with the rows in it" for one in deleted),
        (
            *(f"{one} is no longer bound" for one in gone if one not in deleted),
            *(f"{one} is newly bound" for one in new),
        ),
    )


def _queues(options: WriteOptions) -> set[str]:
    management = management_of(options, options.management_url)
    return {queue.name for queue, *_ in management.queues(options.urls[0].vhost)}
