"""Parse the positions where a read starts and ends, and check them. Values in, values out.

    earliest, latest                                       for every stream
    2026-01-31T12:00:00Z                                   a time, for every stream
    {"s0": 5, "s1": "earliest", "s2": "2026-01-31T12:00Z"}  by stream

Only the broker knows the offset of a time, so `stream_access` turns positions into offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from rabbit_chx import InvalidValue
from spark_connector.option_table import unknown_name

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Position: TypeAlias = str | int | datetime
"""`EARLIEST`, `LATEST`, an offset, or a time."""

_FORMS: Final = (
    'earliest, latest, a time such as 2026-01-31T12:00:00Z, or JSON such as {"s0": 5, "s1": "earliest"}'
)
_BY_STREAM: Final = "an offset of 0 or more, earliest, latest, or a time such as 2026-01-31T12:00:00Z"
_MOST: Final = 2**63 - 1


@dataclass(frozen=True)
class Positions:
    """One position for all streams, or a position for each stream."""

    everywhere: Position | None = None
    by_stream: Mapping[str, Position] = field(default_factory=dict)
    option: str = field(default="", compare=False)
    """The option that has these positions; empty for a default, which every stream has."""

    def of(self, stream: str) -> Position:
        """The position in one stream."""
        return self.by_stream[stream] if self.everywhere is None else self.everywhere

    def check_streams(self, streams: Iterable[str]) -> None:
        """Raise unless positions by stream name exactly these streams; Kafka's source requires the same of partitions."""
        if self.everywhere is not None:
            return
        known = list(streams)
        if unknown := [name for name in self.by_stream if name not in known]:
            raise unknown_name(f"stream in option {self.option}", unknown[0], known)
        if missing := [name for name in known if name not in self.by_stream]:
            hint = f'Add "{missing[0]}": "earliest", for example'
            raise InvalidValue(
                f"streams in option {self.option}",
                sorted(self.by_stream),
                f"{', '.join(missing)} as well",
                hint,
            )


def parse_positions(text: str, *, option: str, of_end: bool) -> Positions:
    """Parse the text of an option; the end of a read cannot be ``earliest``."""
    if not text.lstrip().startswith("{"):
        hint = f'For one offset in each stream: {{"STREAM": {text}}}' if text.strip().isdigit() else ""
        position = _position(f"option {option}", text.strip(), _FORMS, of_end=of_end, hint=hint)
        return Positions(position, option=option)
    by_stream = {
        name: _position(f"offset of stream {name!r} in option {option}", given, _BY_STREAM, of_end=of_end)
        for name, given in _json_object(option, text).items()
    }
    return Positions(by_stream=by_stream, option=option)


def _json_object(option: str, text: str) -> dict[str, Any]:
    """Parse a JSON object that names each stream once."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidValue(f"streams in option {option}", twice, "each stream once")
        return dict(pairs)

    try:
        found: dict[str, Any] = json.loads(text, object_pairs_hook=unique)
    except InvalidValue:
        raise
    except (ValueError, RecursionError) as error:  # Python refuses numbers of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidValue(f"option {option}", text, _FORMS, f"The JSON is invalid: {reason}") from None
    return found


def _position(what: str, given: Any, expected: str, *, of_end: bool, hint: str = "") -> Position:
    """Parse one position. To Python a bool is an int, but it is not an offset."""
    if type(given) is int and 0 <= given <= _MOST and "stream" in what:
        return given
    if type(given) is int and given < 0:
        hint = 'Kafka\'s -2 and -1 are "earliest" and "latest" here'
    if isinstance(given, str) and given.lower() in {EARLIEST, LATEST}:
        if of_end and given.lower() == EARLIEST:
            raise InvalidValue(
                what, given, "latest, a time or an offset", "A read that ends at earliest has no rows"
            )
        return given.lower()
    if isinstance(given, str) and (time := _time(what, given)):
        return time
    raise InvalidValue(what, given, expected, hint)


def _time(what: str, text: str) -> datetime | None:
    """Parse a time in ISO 8601; None if the text is not one."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if "-" not in text:  # Python parses 20260131 as a date, but it may be an offset
        return None
    if time.tzinfo is None:
        raise InvalidValue(
            what,
            text,
            "a time with a UTC offset",
            f"For UTC: {text if 'T' in text else f'{text}T00:00'}Z",
        )
    return time
