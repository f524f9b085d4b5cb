"""Slices of one buffer as Arrow arrays of bytes and of text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rabbit_chx.streams.chunks import Whole
from rabbit_chx.streams.encoded import Flags


class Leave(Exception):
    """These rows are not as simple as they seemed: they have texts that are not UTF-8, or a header twice."""

    def __init__(self, rows: Whole) -> None:
        self.rows = rows


def slices(buffer: pa.Buffer, start: Whole, stop: Whole, valid: Flags) -> pa.Array:
    """Bytes between ascending places, null where they are not valid.

    A binary array of all slices and all gaps between them shares the buffer; every second element is a slice.
    """
    places = np.flatnonzero(valid)
    if not len(places):
        return pa.nulls(len(valid), pa.binary())
    edges = np.empty(2 * len(places), np.int32)
    edges[0::2], edges[1::2] = start[places], stop[places]
    both = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), buffer])
    order = np.zeros(len(valid), np.int64)
    order[places] = np.arange(0, len(edges), 2)
    return both.take(pa.array(order, mask=None if len(places) == len(valid) else ~valid))


def utf8(raw: pa.Array, rows: Whole) -> pa.Array:
    """The slices as text, if they are; ``rows`` tells to which message each belongs."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = [not _is_text(one) for one in raw.to_pylist()]
        raise Leave(rows[np.array(wrong)]) from None


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeDecodeError:
        return False
