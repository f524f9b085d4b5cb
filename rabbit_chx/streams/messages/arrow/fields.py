"""Find the fields of many messages at once.

The messages may differ in their fields, and in the lengths of those. `message.row_of` handles messages with rare contents,
such as lists as headers or a second data section.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rabbit_chx.messages.message_fields import FIELDS
from rabbit_chx.streams.messages import message
from rabbit_chx.streams.messages.amqp10 import INTEGERS
from rabbit_chx.streams.messages.chunks import Whole
from rabbit_chx.streams.messages.parser import (
    BINARIES,
    BOOLEAN,
    FALSE,
    FEW,
    LISTS,
    MAPS,
    NULL,
    SMALL_UINT,
    TEXTS,
    TIMESTAMP,
    TRUE,
    UBYTE,
    UINT,
    UINT_0,
    Bytes,
    Encoded,
    Flags,
    Sections,
    Span,
    Values,
    numbers,
)

_VALUE_OF: Final = {
    message.HEADER: LISTS,
    0x71: MAPS,
    message.ANNOTATIONS: MAPS,
    message.PROPERTIES: LISTS,
    message.APPLICATION_PROPERTIES: MAPS,
    message.DATA: BINARIES,
    message.VALUE: (*BINARIES, *TEXTS),
}
"""Section -> the constructors of its value. The order is that of the sections in a message."""
_ANNOTATED: Final = {name.encode(): column for name, column in message.ANNOTATION_OF.items()}
_BASIC: Final = {name: column for name, column in _ANNOTATED.items() if message.is_basic(name.decode())}
_HEADER_VALUES: Final = (*TEXTS, NULL, TRUE, FALSE, BOOLEAN, *INTEGERS, *FEW)
_SMALL_NUMBERS: Final = ("delivery_mode", "priority")
_PLACES: Final = {
    field.name: [
        name
        for place in field.places
        for name in (
            (f"annotation {field.name}", f"application {field.name}") if place.startswith("x-") else (place,)
        )
    ]
    for field in FIELDS
}
"""Column -> the fields that may have it, in order of precedence."""
_PROPERTY_OF: Final = {
    field.name: place for field in FIELDS for place in field.places if not place.startswith("x-")
}


@dataclass(slots=True)
class Number:
    """An integer field of all messages; ``valid`` is False for null."""

    value: Whole
    valid: Flags

    def put(self, rows: Whole, values: Whole) -> None:
        """Set the number in these messages."""
        self.value[rows] = values
        self.valid[rows] = True

    def fill(self, other: Number) -> None:
        """Replace nulls by another field."""
        chosen = ~self.valid & other.valid
        self.value[chosen] = other.value[chosen]
        self.valid |= other.valid


@dataclass(slots=True)
class Found:
    """The fields that were found. For messages that are not simple, they are meaningless."""

    simple: Flags
    texts: dict[str, Span] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    """``ttl`` is the expiration of RabbitMQ 4."""
    headers: list[tuple[Values, Values]] = field(default_factory=list)
    """Names and values. Each item has at most one header of a message."""

    def text(self, name: str) -> Span:
        """Return the field of this name, initially null in all messages."""
        count = len(self.simple)
        return self.texts.setdefault(name, Span(np.zeros(count, np.int64), np.full(count, -1, np.int64)))

    def number(self, name: str) -> Number:
        """Return the number of this name, initially null in all messages."""
        count = len(self.simple)
        return self.numbers.setdefault(name, Number(np.zeros(count, np.int64), np.zeros(count, np.bool_)))


def find(data: Bytes, starts: Whole, stops: Whole, columns: Collection[str]) -> Found:
    """Find the fields of messages in ascending order; `chunks.PADDING` follows the last one.

    The columns are names from `message.COLUMNS_OF_MESSAGES`.
    """
    encoded = Encoded(data, len(starts))
    sections = Sections(encoded, starts, stops)
    fields = _Fields(encoded, frozenset(columns))
    fields.found.text("body").put(sections.bodies())
    for section, codes in _VALUE_OF.items():
        values = sections.read(section, codes)
        if len(values.rows):
            fields.read(section, values)
    encoded.simple &= (sections.at == stops) & (fields.found.text("body").stop >= 0)
    fields.settle()
    return fields.found


class _Fields:
    """Reads the fields that the columns need from the sections."""

    def __init__(self, encoded: Encoded, columns: frozenset[str]) -> None:
        self.encoded = encoded
        self.columns = columns
        self.found = Found(encoded.simple)
        named = {_PROPERTY_OF.get(column) for column in columns}
        self.properties = [name if name in named else None for name in message.PROPERTY_NAMES]
        while self.properties and self.properties[-1] is None:
            self.properties.pop()

    def read(self, section: int, values: Values) -> None:
        match section:
            case message.DATA | message.VALUE:
                self.encoded.put_once(self.found.text("body"), values)
            case message.HEADER:
                self._header(values)
            case message.PROPERTIES:
                self._properties(values)
            case message.ANNOTATIONS:
                self._map(values, "annotation", _ANNOTATED)
            case message.APPLICATION_PROPERTIES:
                self._map(values, "application", _BASIC)

    def _header(self, values: Values) -> None:
        most = 3 if "expiration" in self.columns else 2 if "priority" in self.columns else 1
        if not self.columns & {"delivery_mode", "priority", "expiration"}:
            return
        for place, items in zip(range(most), self.encoded.lists(values), strict=False):
            if place == 0 and "delivery_mode" in self.columns:
                durable = self.encoded.unless_null(items, (TRUE, FALSE))
                self.found.number("delivery_mode").put(durable.rows, np.where(durable.code == TRUE, 2, 1))
            elif place == 1 and "priority" in self.columns:
                self._small("priority", items)
            elif place == 2:
                self._ttl(self.encoded.unless_null(items, (UINT_0, SMALL_UINT, UINT)))

    def _small(self, name: str, items: Values) -> None:
        small = self.encoded.unless_null(items, (UBYTE,))
        self.found.number(name).put(small.rows, numbers(self.encoded.data, small.start, 1))

    def _ttl(self, items: Values) -> None:
        number = np.where(items.code == SMALL_UINT, numbers(self.encoded.data, items.start, 1), 0)
        wide = items.code == UINT
        number[wide] = numbers(self.encoded.data, items.start[wide], 4)
        self.found.number("ttl").put(items.rows, number)

    def _properties(self, values: Values) -> None:
        for name, items in zip(self.properties, self.encoded.lists(values), strict=False):
            if name == "timestamp":
                moments = self.encoded.unless_null(items, (TIMESTAMP,))
                self.found.number(name).put(moments.rows, numbers(self.encoded.data, moments.start, 8))
            elif name is not None:
                codes = BINARIES if name == "user_id" else TEXTS
                self.found.text(name).put(self.encoded.unless_null(items, codes))

    def _map(self, values: Values, source: str, annotated: dict[bytes, str]) -> None:
        if not self.columns & {*annotated.values(), "headers"}:
            return
        for names, items in self.encoded.maps(values):
            texts = self.encoded.only(names, TEXTS)
            self._pairs(texts, items.in_rows(texts.rows), source, annotated)

    def _pairs(self, names: Values, items: Values, source: str, annotated: dict[bytes, str]) -> None:
        others = np.ones(len(names.rows), np.bool_)
        for name, column in annotated.items():
            if "headers" in self.columns or column in self.columns:
                same = self.encoded.are(names, name)
                others &= ~same
                if column in self.columns and same.any():
                    self._annotation(column, source, items.of(same))
        if "headers" in self.columns and others.any():
            items = self.encoded.only(items.of(others), _HEADER_VALUES)
            self.found.headers.append((names.in_rows(items.rows), items))

    def _annotation(self, column: str, source: str, items: Values) -> None:
        # For a duplicate name, the last value takes effect, even if it is null.
        name = f"{source} {column}"
        if column in _SMALL_NUMBERS:
            self.found.number(name).valid[items.rows] = False
            self._small(name, items)
        else:
            self.found.text(name).stop[items.rows] = -1
            self.found.text(name).put(self.encoded.unless_null(items, TEXTS))

    def settle(self) -> None:
        """Set each column from the first of its places that is not null, in the order of `message.row_of`."""
        for column in self.columns & {*_ANNOTATED.values()}:
            for name in _PLACES[column]:
                if name in self.found.texts:
                    self.found.text(column).fill(self.found.texts[name])
                if name in self.found.numbers:
                    self.found.number(column).fill(self.found.numbers[name])
