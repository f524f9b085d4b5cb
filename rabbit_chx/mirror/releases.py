"""What each broker release hashes, accepts and keeps, as one frozen value.

Everything that changed between RabbitMQ 3.8 and 4.3 and that moves a message is a property here, with
the release it changed in; what only the clients of this package need to know of a release is private. No other file of the mirror
compares version numbers. This file knows nothing of rings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rabbit_chx.errors import InvalidValue

# The newest mirrored patch release of each series.
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
"""The mirrored series, oldest first."""
NEWEST: Final = SERIES[-1]
"""The newest mirrored series, the default wherever a release may be given."""

# A suffix of the patch number ("-rc.1", "+dirty") is valid; leading zeros are not.
_VERSION: Final = re.compile(
    r"(0|[1-9]\d?)\.(0|[1-9]\d?)(?:\.(0|[1-9]\d{0,2})(?:[-+~][\w.+~-]*)?)?", re.ASCII
)

MAX_WEIGHT: Final = 10_000
"""The largest weight of a binding. It is the broker's limit from 4.2.6 on; earlier releases accept larger weights, which
can exhaust their memory."""


class Store(Enum):
    """A node's metadata store, which determines how a restart changes a ring."""

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
    _ties_bindings: bool = field(default=True, init=False, repr=False)
    """Whether the feature flag of this name is enabled, as on a new node of 4.3; an upgrade leaves it disabled."""

    @classmethod
    def parse(cls, text: str | Release, *, store: str | Store | None = None) -> Release:
        """Parse ``"4.2.6"``, or ``"4.2"`` for the newest patch release of that series.

        The store is a feature flag of the node. The default is the store of a new node: Khepri from 4.2 on,
        Mnesia before.
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
                f"For a later release, `rabbit-chx parity --release {NEWEST}` checks whether it routes like {NEWEST}",
            )
        patch = newest if match[3] is None else int(match[3])
        return cls(major, minor, patch, _store(text, (major, minor), store))

    @classmethod
    def _of_broker(cls, version: str) -> Release:
        """Parse the version that a broker reports, even of a series that is not mirrored; other text counts as 0.0.0."""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version, re.ASCII)
        major, minor, patch = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
        return cls(major, minor, patch, _store(version, (major, minor), None))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def _version(self) -> tuple[int, int, int]:
        return (self.major, self.minor, self.patch)

    @property
    def typed_headers(self) -> bool:
        """Up to 3.12 a header is hashed with its AMQP type; 3.13 introduced message containers."""
        return self._version < (3, 13, 0)

    @property
    def has_mqtt5(self) -> bool:
        """3.13 introduced MQTT 5, whose messages have headers (user properties) and correlation data."""
        return self._version >= (3, 13, 0)

    @property
    def amqp10_in_core(self) -> bool:
        """From 4.0 on AMQP 1.0 is in the core; before, a plugin hid application properties from exchanges."""
        return self._version >= (4, 0, 0)

    @property
    def amqp10_converts(self) -> bool:
        """From 3.11 on the plugin can be configured to convert messages, which is not mirrored."""
        return (3, 11, 0) <= self._version < (4, 0, 0)

    @property
    def missing_header_fails(self) -> bool:
        """3.13.0 to 3.13.6 crash on a message without the hash header, even with a single bucket."""
        return (3, 13, 0) <= self._version < (3, 13, 7)

    @property
    def empty_list_fails(self) -> bool:
        """3.13.0 to 4.3.4 crash on an empty array or table, except with a single bucket."""
        return (3, 13, 0) <= self._version < (4, 3, 5)

    @property
    def first_binding_wins(self) -> bool:
        """From 3.9.21 and 3.10.6 on a second binding of a destination adds no buckets."""
        return self._version >= (3, 10, 6) or (3, 9, 21) <= self._version < (3, 10, 0)

    @property
    def unbind_spares_duplicates(self) -> bool:
        """From 4.3.0 on, unbinding one of several bindings that differ only in their arguments keeps the buckets.

        After an upgrade it removes all of them, until the feature flag ``tie_binding_to_dest_with_keep_while_cond`` is enabled.
        """
        return self._version >= (4, 3, 0) and self._ties_bindings

    @property
    def deleted_exchange_keeps_buckets(self) -> bool:
        """4.3.0 to 4.3.5 may keep the buckets of a deleted exchange (fixed in 4.3.6 at the latest)."""
        return (4, 3, 0) <= self._version < (4, 3, 6)

    @property
    def modulus_sorts_destinations(self) -> bool:
        """From 4.3.0 on x-modulus-hash is in the core and sorts destinations."""
        return self._version >= (4, 3, 0)

    @property
    def modulus_has_no_order(self) -> bool:
        """Before 4.3.0, x-modulus-hash uses its destinations in no defined order on Khepri."""
        return self.store is Store.KHEPRI and not self.modulus_sorts_destinations

    @property
    def _tags_definitions(self) -> bool:
        """From 4.3.5 on, the management API gives definitions an ETag, which changes with them."""
        return self._version >= (4, 3, 5)

    @property
    def _has_default_delivery_limit(self) -> bool:
        """From 4.0 on, quorum queues drop messages returned more than 20 times unless their limit is -1; before, -1 drops them at once."""
        return self._version >= (4, 0, 0)

    @property
    def _obeys_active_priorities(self) -> bool:
        """From 4.0 on, the single active consumer of a quorum queue is the one with the highest priority."""
        return self._version >= (4, 0, 0)

    @property
    def _has_consumer_timeouts(self) -> bool:
        """From 4.3 on, a consumer of a quorum queue can set its consumer_timeout; before, only the node's setting applies."""
        return self._version >= (4, 3, 0)

    @property
    def _keeps_own_deaths(self) -> bool:
        """From 4.0 on, the header ``x-death`` of a dead letter is the broker's; before, it adds to what a publisher has written."""
        return self._version >= (4, 0, 0)

    @property
    def _keeps_dead_consumers(self) -> bool:
        """From 4.3.0 on, a quorum queue may keep a consumer whose channel was closed while another one was taking over.

        When the last message of such a consumer is requeued, ``rabbit_fifo:return_one/8`` adds the consumer to the waiting
        ones, although it no longer exists. The queue may activate it later, and then delivers nothing.
        """
        return self._version >= (4, 3, 0)

    @property
    def _has_stream_groups(self) -> bool:
        """3.11 introduced single active consumers of streams; groups support them from 3.13 on."""
        return self._version >= (3, 13, 0)

    @property
    def _forgets_consumers_of_moved_streams(self) -> bool:
        """Before 4.3 (seen on 4.0.5, in a cluster whose nodes stop), a single active consumer of a stream that moved stays registered."""
        return self._version >= (4, 3, 0)

    @property
    def _lists_stream_commands(self) -> bool:
        """From 3.11 on, a broker lists the commands of the stream protocol that it supports."""
        return self._version >= (3, 11, 0)

    @property
    def _rejects_stream_certificates(self) -> bool:
        """3.10 fails on EXTERNAL on the stream port: rabbit_auth_mechanism_ssl:handle_response/2 gets the wrong state."""
        return (3, 10, 0) <= self._version < (3, 11, 0)

    @property
    def _requeue_stops_takeover(self) -> bool:
        """In 4.0 and 4.1, a requeue may stop a queue when a consumer of higher priority joins (rabbitmq-server #14141)."""
        return (4, 0, 0) <= self._version < (4, 2, 0)

    @property
    def _active_timeout_stops(self) -> bool:
        """4.3.0 to 4.3.5 stop a queue when all its single active consumers have exceeded consumer_timeout (#17317)."""
        return (4, 3, 0) <= self._version < (4, 3, 6)


# rabbit_db_binding.erl, delete/2.
def with_flags(release: Release, enabled: Mapping[str, bool]) -> Release:
    """The release with what the feature flags of a broker change; one that is not listed is not enabled."""
    changed = copy(release)
    enables = enabled.get("tie_binding_to_dest_with_keep_while_cond", False)
    object.__setattr__(changed, "_ties_bindings", enables)
    return changed


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
        "Omit it for the release's default",
    )
