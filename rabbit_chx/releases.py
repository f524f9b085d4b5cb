"""What each broker release hashes, accepts and keeps, as one frozen value.

Everything that changed between RabbitMQ 3.8 and 4.3 and that moves a message is a property here, with
the release it changed in; no other file of the mirror compares version numbers. This file knows nothing of rings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rabbit_chx.errors import InvalidValue

__all__ = ["MAX_WEIGHT", "SERIES", "Release", "Store"]

# The newest patch release of each series that this mirror was checked against or read.
_SERIES: Final = {
    (3, 8): 35,
    (3, 9): 29,
    (3, 10): 25,
    (3, 11): 28,
    (3, 12): 14,
    (3, 13): 7,
    (4, 0): 9,
    (4, 1): 8,
    (4, 2): 9,
    (4, 3): 6,
}
SERIES: Final = tuple(f"{major}.{minor}" for major, minor in _SERIES)
"""The series that are mirrored, the oldest first."""
_NEWEST: Final = SERIES[-1]

# Leading zeros and the like are typing errors; what follows a patch number ("-rc.1", "+dirty") is not.
_VERSION: Final = re.compile(
    r"(0|[1-9]\d?)\.(0|[1-9]\d?)(?:\.(0|[1-9]\d{0,2})(?:[-+~][\w.+~-]*)?)?", re.ASCII
)

MAX_WEIGHT: Final = 10_000
"""The largest weight of a binding: the broker's own limit from 4.2.6 on, and this toolkit's always,
because earlier releases accept any size and can be killed by it."""


class Store(Enum):
    """Where a node keeps exchanges and bindings, which decides what a restart does to a ring."""

    MNESIA = "mnesia"
    KHEPRI = "khepri"

    def __str__(self) -> str:
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Release:
    """A broker release and its metadata store.

    >>> Release.parse("4.2.6")
    Release(major=4, minor=2, patch=6, store=<Store.KHEPRI: 'khepri'>)
    >>> Release.parse("4.0", store="khepri").typed_headers
    False
    """

    major: int
    minor: int
    patch: int
    store: Store

    @classmethod
    def parse(cls, text: str | Release, *, store: str | Store | None = None) -> Release:
        """``"4.2.6"``, or ``"4.2"`` for the newest patch release of that series.

        The store is a feature flag of the node and not a function of the release; left out, it is what a
        fresh node of that release uses: Khepri from 4.2 on, Mnesia before.
        """
        if isinstance(text, Release):
            return text if store is None else cls.parse(str(text), store=store)
        match = _VERSION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidValue(
                "broker release",
                text,
                "a version such as 4.3.6 or 4.3",
                "`rabbitmqctl version` prints it",
            )
        major, minor = int(match[1]), int(match[2])
        newest = _SERIES.get((major, minor))
        if newest is None:
            raise InvalidValue(
                "broker release",
                text,
                f"a release of {', '.join(SERIES)}",
                f"A later one may route like {_NEWEST}: `rabbit-chx parity --release {_NEWEST}` tells",
            )
        patch = newest if match[3] is None else int(match[3])
        return cls(major, minor, patch, _store(text, (major, minor), store))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def _version(self) -> tuple[int, int, int]:
        return (self.major, self.minor, self.patch)

    @property
    def typed_headers(self) -> bool:
        """Up to 3.12 a header is hashed with its AMQP type; message containers ended that in 3.13."""
        return self._version < (3, 13, 0)

    @property
    def missing_header_fails(self) -> bool:
        """3.13.0 to 3.13.6 crash on a message without the hash header, even with a single bucket."""
        return (3, 13, 0) <= self._version < (3, 13, 7)

    @property
    def empty_list_fails(self) -> bool:
        """From 3.13 to 4.3.4 an empty array or table crashes the channel, except with a single bucket."""
        return (3, 13, 0) <= self._version < (4, 3, 5)

    @property
    def first_binding_wins(self) -> bool:
        """From 3.9.21 and 3.10.6 on a second binding of a destination is ignored by the ring."""
        return self._version >= (3, 10, 6) or (3, 9, 21) <= self._version < (3, 10, 0)

    @property
    def unbind_spares_duplicates(self) -> bool:
        """From 4.3.0 on, unbinding one of several bindings that differ in their arguments alone changes no ring."""
        return self._version >= (4, 3, 0)

    @property
    def deleted_exchange_keeps_buckets(self) -> bool:
        """From 4.3.0 to 4.3.5 a deleted destination exchange may keep its buckets (mended in 4.3.6 at the latest)."""
        return (4, 3, 0) <= self._version < (4, 3, 6)

    @property
    def modulus_sorts_destinations(self) -> bool:
        """From 4.3.0 on x-modulus-hash is in the core and counts destinations in sorted order."""
        return self._version >= (4, 3, 0)


def _store(text: str, series: tuple[int, int], store: str | Store | None) -> Store:
    possible = [Store.MNESIA, Store.KHEPRI]
    if series < (3, 13):
        possible.remove(Store.KHEPRI)
    if series >= (4, 3):
        possible.remove(Store.MNESIA)
    if store is None:
        return Store.KHEPRI if series >= (4, 2) else Store.MNESIA
    for known in possible:
        if store in (known, known.value):
            return known
    raise InvalidValue(
        f"metadata store of RabbitMQ {text}",
        store.value if isinstance(store, Store) else store,
        " or ".join(known.value for known in possible),
        "Leave it out for the default of the release",
    )
