"""Markers: messages of this package in a queue, which drain or hold it. No IO.

A publisher can put anything into a message, so what a message says is no authority. A marker counts only if it came through
the default exchange, and a hold only while the queue exists that it names. That name contains a digest of the hold's record,
which names the held queue: making one takes the permission to configure ``rabbit-chx.hold.*``, and none can be turned
against another queue. All other messages with such headers go to the handler.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Self

from rabbit_chx.broker.applying.handover import is_marker
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message import Message
from rabbit_chx.working.received import as_name, as_names, as_text, contained, object_in

HOLD: Final = "x-rabbit-chx-hold"
"""The header of a marker that holds its queue. Its value names another queue, whose deletion releases the held one."""
HOLDS: Final = "rabbit-chx.hold."
"""The prefix of the queues whose deletion releases held queues."""
CHANGES: Final = f"{HOLDS}change."
"""The prefix of the queues that record changes, and hold nothing."""
RECORD: Final = "x-rabbit-chx-record"
"""The argument of such a queue that contains the hold's record."""

_NAME: Final = re.compile(re.escape(HOLDS) + r"[0-9a-f]{16}\.(?P<digest>[0-9a-f]{32})")
LONGEST_RECORD: Final = 100_000
"""Bytes of a record: the arguments of a queue must fit into one frame."""


def now() -> str:
    """The time, as records have it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Hold:
    """One queue that is held."""

    name: str
    queue: str
    losing: tuple[str, ...] = ()
    """The queues that are drained before this one is released."""
    removed: tuple[str, ...] = ()
    """The drained queues that are then deleted."""
    groups: tuple[str, ...] = ()
    """The groups whose members consume the queues."""
    since: str = ""
    by: str = ""
    """Who holds the queue."""

    @classmethod
    def of(
        cls,
        queue: str,
        losing: Iterable[str],
        removed: Iterable[str] = (),
        groups: Iterable[str] = (),
        by: str = "",
    ) -> Self:
        """Create a hold, which is not on the broker yet."""
        losers = tuple(sorted(losing))
        drained = tuple(sorted({*removed} & {*losers}))
        nameless = cls("", queue, losers, drained, tuple(sorted(groups)), now(), by)
        return replace(nameless, name=f"{HOLDS}{secrets.token_hex(8)}.{_digest(nameless.record)}")

    @classmethod
    def read(cls, name: str, record: object) -> Self:
        """Read a hold from the name of its queue and its record.

        Raises:
            InvalidValue: the record is not the one that the name was made for.
        """
        try:
            found = object_in(_genuine(name, record), LONGEST_RECORD)
            queue = as_name(found["queue"])
            losing, removed, groups = (
                as_names(found.get(each, [])) for each in ("losing", "removed", "groups")
            )
            since, by = (as_text(found.get(each, "")) for each in ("since", "by"))
            return cls(name, queue, losing, removed, groups, since, by)
        except (KeyError, ValueError):
            raise InvalidValue(
                f"record of queue {name!r}",
                record,
                "that of a hold",
                "Delete the queue if no member waits for it",
            ) from None

    @property
    def record(self) -> str:
        """What the hold is for, as text."""
        text = json.dumps({name: value for name, value in asdict(self).items() if name != "name"})
        if len(text) > LONGEST_RECORD:
            raise InvalidValue(
                f"number of queues that queue {self.queue!r} gains keys from",
                len(self.losing),
                "fewer",
                "Change the number of queues in several steps",
            )
        return text

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its queue."""
        return {"x-queue-type": "quorum", RECORD: self.record}


def _genuine(name: str, record: object) -> str:
    """The record, if the name was made for it."""
    named = _NAME.fullmatch(name)
    text = as_text(record)
    if named is None or len(text) > LONGEST_RECORD or named["digest"] != _digest(text):
        raise ValueError("the record belongs to another name")
    return text


def _digest(record: str) -> str:
    return blake2b(record.encode(), digest_size=16).hexdigest()


class Kind(Enum):
    """The kind of a delivery."""

    MESSAGE = "message"
    """Goes to the handler."""
    DRAIN = "drain"
    """Is answered and acknowledged after all earlier messages."""
    HOLD = "hold"
    """Stops the queue until another queue, which the marker names, is deleted."""


def kind_of(message: Message) -> Kind:
    """The kind of a delivery; whatever cannot be read is for the handler."""
    return contained(partial(_kind_of, message), Kind.MESSAGE, message)


def _kind_of(message: Message) -> Kind:
    if message.headers:
        if is_marker(message.exchange, message.routing_key, message):
            return Kind.DRAIN
        if hold_of(message) is not None:
            return Kind.HOLD
    return Kind.MESSAGE


def hold_of(message: Message) -> Hold | None:
    """The hold of which a delivery is the marker; whether its queue still exists is for the caller to ask."""
    name = message.headers.get(HOLD)
    if message.exchange or not isinstance(name, str) or len(message.body) > LONGEST_RECORD:
        return None
    try:
        hold = Hold.read(name, message.body.decode())
    except (InvalidValue, UnicodeDecodeError):
        return None
    return hold if hold.queue == message.queue else None
