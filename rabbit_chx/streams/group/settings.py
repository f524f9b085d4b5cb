"""The settings of a member of a stream group, and where a stream begins for a group that has no stored offset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from rabbit_chx.base.limits import check_integer, check_seconds
from rabbit_chx.base.names import check_name
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams.protocol import requests
from rabbit_chx.streams.protocol.requests import MAX_CREDIT, MAX_NAME
from rabbit_chx.working.retries import Retries

Position: TypeAlias = Literal["first", "last", "next"] | datetime | int
"""Where a group starts: at the first or the last chunk, after the last one, at a time, or at an offset."""
Start: TypeAlias = Position | Callable[[str], Position | Awaitable[Position | None] | None]
"""A position (``"first"``, ``"last"``, ``"next"``, an aware datetime or an offset), or a function from the name of a stream to one.
Only `AsyncStreamGroup` awaits what a function returns."""
OnStreamFailure: TypeAlias = Literal["stop", "park"]
StreamCallback: TypeAlias = Callable[[str], object]
"""Called with the name of a stream."""
_POSITIONS: Final = ("first", "last", "next")
_EXPECTED: Final = "'first', 'last', 'next', an aware datetime, or an offset from 0"
_SHARED: Final = {"single-active-consumer": "true"}
_MOST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(Retries):
    """The settings of a member, the same for both classes."""

    stream: str | None
    exchange: str | None
    """The exchange or super stream whose streams are shared."""
    start: Start
    store_every: int
    store_seconds: float
    credit: int
    on_assigned: StreamCallback | None
    on_revoked: StreamCallback | None

    def __post_init__(self) -> None:
        check_reference(self.name)
        if self.stream is not None:
            check_name("stream", self.stream)
        if self.exchange is not None:
            check_name("exchange", self.exchange)
        check_integer("store_every", self.store_every, 1, 1_000_000_000)
        check_seconds("store_seconds", self.store_seconds)
        check_integer("credit", self.credit, 2, MAX_CREDIT)
        for name in ("on_assigned", "on_revoked"):
            if (got := getattr(self, name)) is not None and not callable(got):
                raise InvalidValue(name, got, "a function that takes the name of a stream, or None")
        if not callable(self.start):
            check_position(self.start)
        Retries.__post_init__(self)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a subscription of the group."""
        common = {**_SHARED, "name": self.name}
        return common if self.exchange is None else {**common, "super-stream": self.exchange}

    @property
    def joining_properties(self) -> dict[str, str]:
        """The properties of the subscription with which a member waits for its turn to join."""
        return {**_SHARED, "name": name_beside(self.name, "joining")}

    def callbacks(self, *, assigned: bool) -> dict[str, Callable[[str], Any]]:
        """The functions of the program that are told of a stream. If ``start`` is a function, it is the last one at an assignment."""
        names = ("on_assigned", "start") if assigned else ("on_revoked",)
        return {name: given for name in names if callable(given := getattr(self, name))}

    @property
    def asks(self) -> bool:
        """Whether a function of the program is called when a stream is assigned."""
        return bool(self.callbacks(assigned=True))


def check_release(version: str) -> None:
    """Raise if a release does not divide streams among consumers."""
    if not Release._of_broker(version)._has_stream_groups:
        raise InvalidValue(
            "broker release",
            version,
            "3.13 or later",
            "Earlier releases have no single active consumers of streams (before 3.11), or are not supported",
        )


def check_position(got: object, what: str = "start") -> None:
    """Raise if a value is not a position in a stream."""
    is_offset = isinstance(got, int) and not isinstance(got, bool) and 0 <= got <= _MOST_OFFSET
    is_time = isinstance(got, datetime) and got.tzinfo is not None
    if not (is_offset or is_time or got in _POSITIONS):
        raise InvalidValue(what, got, _EXPECTED)


def name_beside(group: str, what: str) -> str:
    """A name for something else that belongs to a group."""
    end = f" ({what})"
    return group.encode()[: MAX_NAME - len(end)].decode(errors="ignore") + end


def check_reference(name: str) -> None:
    """Raise if a value cannot be the name of a group."""
    requests.name(name, "group name")
