"""Slices of one buffer as Arrow arrays of binary and strings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rabbit_chx.streams.messages.arrow.parser import Flags
from rabbit_chx.streams.messages.chunks import Whole


class Leave(Exception):
    """Some rows must be decoded one by one, because of text that is not UTF-8, a duplicate header or a large integer."""

    def __init__(self, rows: Whole) -> None:
        self.rows = rows


def slices(buffer: pa.Buffer, start: Whole, stop: Whole, valid: Flags) -> pa.Array:
    """Return slices of a buffer, ascending and without overlaps, as a binary array; null where ``valid`` is False.

    Slices and the gaps between them form a binary array that shares the buffer. `take` then keeps the slices, every second element.
    """
    chosen = np.flatnonzero(valid)
    if not len(chosen):
        return pa.nulls(len(valid), pa.binary())
    edges = np.empty(2 * len(chosen), np.int32)
    edges[0::2], edges[1::2] = start[chosen], stop[chosen]
    both = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), buffer])
    order = np.zeros(len(valid), np.int64)
    order[chosen] = np.arange(0, len(edges), 2)
    return both.take(pa.array(order, mask=None if len(chosen) == len(valid) else ~valid))


def utf8(raw: pa.Array, rows: Whole) -> pa.Array:
    """Convert slices to strings. ``rows`` has the message of each slice.

    Raises:
        Leave: Some slices are not UTF-8.
    """
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
