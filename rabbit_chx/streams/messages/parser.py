"""A vectorized parser of AMQP 1.0: each step parses one value in each of many messages.

A step that meets unexpected data in a message clears the message's flag in `Encoded.simple`. The values parsed from such a
message are meaningless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rabbit_chx.streams.messages.amqp10 import INTEGERS
from rabbit_chx.streams.messages.chunks import Whole

Flags: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_MOST_ITEMS: Final = 128
"""Messages with longer maps or lists are not simple: each item is a step."""

_FIRST_SECTION, _LAST_SECTION = 0x70, 0x78
NULL, TRUE, FALSE, EMPTY_LIST = 0x40, 0x41, 0x42, 0x45
UINT_0, UBYTE, SMALL_UINT, UINT, TIMESTAMP = 0x43, 0x50, 0x52, 0x70, 0x83
TEXTS: Final = (0xA1, 0xA3, 0xB1, 0xB3)
BINARIES: Final = (0xA0, 0xB0)
LISTS: Final = (EMPTY_LIST, 0xC0, 0xD0)
MAPS: Final = (0xC1, 0xD1)
BOOLEAN: Final = 0x56
"""A boolean with a byte for its value."""
FEW: Final = (0x72, 0x73, 0x82, TIMESTAMP, 0x98, *BINARIES)
"""Rare header values, which are converted to text one by one: floats, characters, times, UUIDs and binary."""
_FIRST_VARIABLE: Final = 0xA0
_LONG: Final = 0x10
"""The bit of a constructor that means a size of four bytes instead of one: 0xB1 instead of 0xA1."""

_BEYOND: Final = 1 << 40
"""The size of values with an unknown constructor: their end is beyond the message, so the message is not simple."""


_FIXED: Final[Whole] = np.full(256, _BEYOND, np.int64)
"""The size of the values of each constructor; 0 for those that begin with their size."""
_FIXED[[NULL, TRUE, FALSE, UINT_0, 0x44, EMPTY_LIST]] = 0
for _first, _size in {0x50: 1, 0x60: 2, 0x70: 4, 0x80: 8, 0x90: 16}.items():
    _FIXED[_first : _first + 16] = _size
_FIXED[_FIRST_VARIABLE:] = 0


@dataclass(slots=True)
class Values:
    """One encoded value in each of several messages."""

    rows: Whole
    """The indexes of the messages, ascending."""
    code: Bytes
    """The constructors."""
    start: Whole
    """Where the values begin, after constructor and size."""
    stop: Whole

    def of(self, chosen: Flags) -> Values:
        """Return the values selected by a mask."""
        if chosen.all():
            return self
        return Values(self.rows[chosen], self.code[chosen], self.start[chosen], self.stop[chosen])

    def in_rows(self, rows: Whole) -> Values:
        """Return the values of these messages, a subset of `rows`."""
        return self if len(rows) == len(self.rows) else self.of(np.isin(self.rows, rows))


@dataclass(slots=True)
class Span:
    """A text or binary field of all messages; a stop of -1 means null."""

    start: Whole
    stop: Whole

    def put(self, found: Values) -> None:
        """Set the field in the messages of these values."""
        self.start[found.rows] = found.start
        self.stop[found.rows] = found.stop

    def fill(self, other: Span) -> None:
        """Replace nulls by another field."""
        null = self.stop < 0
        self.start[null] = other.start[null]
        self.stop[null] = other.stop[null]


def is_code(codes: Bytes, among: Collection[int]) -> Flags:
    """Return a mask of the constructors that are among these."""
    found = np.zeros(len(codes), np.bool_)
    for code in among:
        found |= codes == code
    return found


def numbers(data: Bytes, at: Whole, width: int) -> Whole:
    """Decode the unsigned integers at these places. With a width of eight bytes, they are signed.

    In a damaged message, their last bytes may be padding.
    """
    value = np.zeros(len(at), np.int64)
    for place in range(width):
        value = value << 8 | data[at + place]
    return value


def integers(data: Bytes, values: Values) -> Whole:
    """Decode values whose constructors are `INTEGERS`. Those of eight bytes are signed, as in `numbers`."""
    found = np.zeros(len(values.rows), np.int64)
    for code in np.unique(values.code).tolist():
        width, signed = INTEGERS[code]
        same = values.code == code
        number = numbers(data, values.start[same], width)
        if signed and width < 8:
            number -= number >> (8 * width - 1) << (8 * width)
        found[same] = number
    return found


def joined(parts: Sequence[Values]) -> Values:
    """Merge values, ordered by message."""
    if not parts:
        none = np.empty(0, np.int64)
        return Values(none, np.empty(0, np.uint8), none, none)
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    code, start, stop = (
        np.concatenate([getattr(part, name) for part in parts])[order] for name in ("code", "start", "stop")
    )
    return Values(rows[order], code, start, stop)


class Encoded:
    """The bytes of many messages, followed by `chunks.PADDING`, and a mask of the messages that are simple so far."""

    def __init__(self, data: Bytes, count: int) -> None:
        self.data = data
        self.simple: Flags = np.ones(count, np.bool_)

    def give_up(self, rows: Whole) -> None:
        """Mark messages as not simple."""
        self.simple[rows] = False

    def put_once(self, span: Span, found: Values) -> None:
        """Set a field; messages that have the field already are not simple."""
        self.give_up(found.rows[span.stop[found.rows] >= 0])
        span.put(found)

    def values(self, rows: Whole, at: Whole, limit: Whole) -> Values:
        """Parse the values that begin at ``at`` and must not exceed ``limit``."""
        if not (at < limit).all():
            inside = at < limit
            self.give_up(rows[~inside])
            rows, at, limit = rows[inside], at[inside], limit[inside]
        code = self.data[at]
        found = Values(rows, code, at + 1, at + 1)
        size = _FIXED[code]
        variable = code >= _FIRST_VARIABLE
        if variable.any():
            long = variable & (code & _LONG != 0)
            size = np.where(variable, self.data[found.start], size)
            found.start = found.start + variable
            if long.any():
                size[long] = numbers(self.data, found.start[long] - 1, 4)
                found.start = found.start + 3 * long
        found.stop = found.start + size
        inside = found.stop <= limit
        if inside.all():
            return found
        self.give_up(rows[~inside])
        return found.of(inside)

    def only(self, values: Values, codes: Collection[int]) -> Values:
        """Return the values with these constructors; messages with other constructors are not simple."""
        fits = is_code(values.code, codes)
        if fits.all():
            return values
        self.give_up(values.rows[~fits])
        return values.of(fits)

    def unless_null(self, values: Values, codes: Collection[int]) -> Values:
        """Return the values that are not null, and require these constructors of them."""
        return self.only(values.of(values.code != NULL), codes)

    def are(self, values: Values, text: bytes) -> Flags:
        """Return a mask of the values that equal a text."""
        same: Flags = values.stop - values.start == len(text)
        left = np.flatnonzero(same)
        start = values.start[left]
        for place in reversed(range(len(text))):  # names with a common prefix differ in their last bytes
            equal = self.data[start + place] == text[place]
            if not equal.all():
                same[left[~equal]] = False
                left, start = left[equal], start[equal]
            if not len(left):
                break
        return same

    def lists(self, values: Values) -> Iterator[Values]:
        """Yield the first items of all lists, then the second items, and so on.

        Lists that do not end with their last item are not simple, unless the caller stops before it.
        """
        lists, count, at = self._items(values)
        rows, limit, place = lists.rows, lists.stop, 0
        while len(rows):
            items = self.values(rows, at, limit)
            rows, limit, count = _remaining(items.rows, rows, limit, count)
            at, place = items.stop, place + 1
            going = count > place
            if not going.all():
                self.give_up(rows[~going & (at != limit)])
                rows, at, limit, count = rows[going], at[going], limit[going], count[going]
            yield items

    def maps(self, values: Values) -> Iterator[tuple[Values, Values]]:
        """Yield the first names and values of all maps, then the second ones, and so on."""
        maps, count, at = self._items(values)
        self.give_up(maps.rows[count % 2 == 1])
        rows, limit, pairs = maps.rows, maps.stop, count // 2
        while len(rows):
            names = self.values(rows, at, limit)
            rows, limit, pairs = _remaining(names.rows, rows, limit, pairs)
            items = self.values(rows, names.stop, limit)
            yield names.in_rows(items.rows), items
            rows, limit, pairs = _remaining(items.rows, rows, limit, pairs)
            at, pairs = items.stop, pairs - 1
            self.give_up(rows[(pairs == 0) & (at != limit)])
            if not pairs.all():
                going = pairs > 0
                rows, at, limit, pairs = rows[going], at[going], limit[going], pairs[going]

    def _items(self, values: Values) -> tuple[Values, Whole, Whole]:
        """Return the lists or maps that are not empty, their numbers of items, and where their first items begin."""
        wide = values.code & _LONG != 0
        none = values.code == EMPTY_LIST
        width = np.where(none, 0, np.where(wide, 4, 1))
        count = np.where(none, 0, self.data[values.start]).astype(np.int64)
        if wide.any():
            count[wide] = numbers(self.data, values.start[wide], 4)
        at = values.start + width
        odd = (at > values.stop) | (count > _MOST_ITEMS) | ((count == 0) & (at != values.stop))
        self.give_up(values.rows[odd])
        chosen = ~odd & (count > 0)
        return values.of(chosen), count[chosen], at[chosen]


class Sections:
    """A cursor in every message, from section to section."""

    def __init__(self, encoded: Encoded, starts: Whole, stops: Whole) -> None:
        self.encoded = encoded
        self.at: Whole = starts.copy()
        self.stops = stops
        self.section: Bytes = np.zeros(len(starts), np.uint8)
        """The section at each cursor; 0 without one."""

    def bodies(self) -> Values:
        """Return the messages that are not AMQP 1.0, as values. The cursors of the others stay at their first section."""
        data, at = self.encoded.data, self.at
        first, second, third = data[at], data[at + 1], data[at + 2]
        known = (third >= _FIRST_SECTION) & (third <= _LAST_SECTION)
        sections = (self.stops - at > 2) & (first == 0) & (second == 0x53) & known
        other_forms = ~sections & (first == 0) & ((second == 0x80) | (second == 0xA3))
        self.encoded.simple &= ~other_forms
        self.section[sections] = third[sections]
        rows = np.flatnonzero(~sections & ~other_forms)
        bodies = Values(rows, third[rows], at[rows], self.stops[rows])
        self.at[rows] = bodies.stop
        return bodies

    def read(self, section: int, codes: Collection[int]) -> Values:
        """Parse this section in the messages that have it at their cursor and return its values."""
        rows = np.flatnonzero(self.section == section)
        values = self.encoded.values(rows, self.at[rows] + 3, self.stops[rows])
        values = self.encoded.only(values, codes)
        data, at = self.encoded.data, values.stop
        self.at[values.rows] = at
        begins = (at + 3 < self.stops[values.rows]) & (data[at] == 0) & (data[at + 1] == 0x53)
        self.section[values.rows] = np.where(begins, data[at + 2], 0)
        return values


def _remaining(found: Whole, rows: Whole, limit: Whole, count: Whole) -> tuple[Whole, Whole, Whole]:
    """Keep the messages in which a value was found."""
    if len(found) == len(rows):
        return rows, limit, count
    chosen = np.isin(rows, found)
    return rows[chosen], limit[chosen], count[chosen]
