"""Check many stored messages at once, and find their bodies and routing keys.

Only the structure is checked, with NumPy: that every value ends where it must, and has a known constructor. Messages with anything
unusual, such as a list as a header, are left to `message.decode`, which is the readable definition of what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rabbit_chx.streams.messages import message
from rabbit_chx.streams.messages.amqp10 import INTEGERS
from rabbit_chx.streams.messages.chunks import Records
from rabbit_chx.streams.messages.parser import (
    BINARIES,
    BOOLEAN,
    FALSE,
    LISTS,
    MAPS,
    NULL,
    TEXTS,
    TIMESTAMP,
    TRUE,
    Encoded,
    Flags,
    Sections,
    Span,
    Values,
)

_ITEMS: Final = (*TEXTS, *BINARIES, NULL, TRUE, FALSE, BOOLEAN, *INTEGERS, TIMESTAMP, 0x72, 0x82, 0x98)
"""Constructors of items that can always be decoded, if they end within their list or map."""
_IS_ITEM: Final[Flags] = np.isin(np.arange(256), _ITEMS)
_KEY, _EXCHANGE = b"x-routing-key", b"x-exchange"


class Quick:
    """What was found in the messages of some chunks. ``body.stop`` is -1 for those that `decode` must decode."""

    def __init__(self, records: Records, max_items: int) -> None:
        starts, stops = records.starts, records.stops
        data = np.frombuffer(records.data, np.uint8)
        self.encoded: Encoded = Encoded(data, len(starts))
        self.body: Span = Span(np.zeros(len(starts), np.int64), np.full(len(starts), -1, np.int64))
        self.key: Span = Span(*np.zeros((2, len(starts)), np.int64))
        self.exchange: Span = Span(*np.zeros((2, len(starts)), np.int64))
        sections = Sections(self.encoded, starts, stops)
        self.body.put(sections.bodies())
        self._lists(sections.read(message.HEADER, LISTS))
        self._maps(sections.read(message.ANNOTATIONS, MAPS), {_KEY: self.key, _EXCHANGE: self.exchange})
        self._lists(sections.read(message.PROPERTIES, LISTS))
        self._maps(sections.read(message.APPLICATION_PROPERTIES, MAPS), {})
        self.encoded.put_once(self.body, sections.read(message.DATA, BINARIES))
        self.encoded.put_once(self.body, sections.read(message.VALUE, (*BINARIES, *TEXTS)))
        # A byte besides the body counts as less than two items.
        besides = (stops - starts) - (self.body.stop - self.body.start)
        simple = self.encoded.simple & (sections.at == stops) & (2 * besides <= max_items)
        self.body.stop[~simple] = -1

    def _lists(self, values: Values) -> None:
        for items in self.encoded.lists(values):
            self._check(items)

    def _maps(self, values: Values, wanted: Mapping[bytes, Span]) -> None:
        for names, items in self.encoded.maps(values):
            self.encoded.only(names, TEXTS)
            self._check(items)
            for name, span in wanted.items():
                same = self.encoded.are(names, name)
                if same.any():
                    span.put(self.encoded.only(items.of(same), TEXTS))

    def _check(self, items: Values) -> None:
        known = _IS_ITEM[items.code]
        if not known.all():
            self.encoded.give_up(items.rows[~known])
