"""Texts of many messages as Arrow arrays: strings that share one buffer, and headers as maps of strings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.streams.messages.amqp10 import INTEGERS, Budget, Malformed, as_text, read_as
from rabbit_chx.streams.messages.arrow.fields import Found
from rabbit_chx.streams.messages.chunks import Whole
from rabbit_chx.streams.messages.parser import (
    BINARIES,
    BOOLEAN,
    FALSE,
    FEW,
    TEXTS,
    TRUE,
    Bytes,
    Flags,
    Values,
    integers,
    is_code,
    joined,
)


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


# -- headers ------------------------------------------------------------------------------------------


def header_lists(data: Bytes, buffer: pa.Buffer, count: int, found: Found, kind: pa.DataType) -> pa.Array:
    """Build the headers of ``count`` messages, as a map of strings or as a list of structs with binary values.

    Raises:
        Leave: Some messages have a duplicate header, text that is not UTF-8, or an integer of 2^63 or more.
    """
    parts = [[part.of(found.simple[part.rows]) for part in pair] for pair in found.headers]
    names = joined([name for name, _ in parts])
    values = joined([value for _, value in parts])
    rows = names.rows
    keys = utf8(slices(buffer, names.start, names.stop, np.ones(len(rows), np.bool_)), rows)
    twins = _twins(keys, rows)
    if len(twins):
        raise Leave(twins)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    texts = _values(data, buffer, values)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(pa.array(ends), keys, texts)
    binary = is_code(values.code, BINARIES)
    stored = slices(buffer, values.start, values.stop, binary)
    both = [keys, pc.if_else(pa.array(binary), stored, texts.cast(pa.binary()))]
    pairs = pa.StructArray.from_arrays(both, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(ends), pairs).cast(kind)


def _values(data: Bytes, buffer: pa.Buffer, values: Values) -> pa.Array:
    """Convert values to text as `amqp10.as_text` does."""
    is_text = is_code(values.code, TEXTS)
    found = utf8(slices(buffer, values.start, values.stop, is_text), values.rows)
    booleans = is_code(values.code, (TRUE, FALSE, BOOLEAN))
    if booleans.any():
        true = (values.code == TRUE) | ((values.code == BOOLEAN) & (data[values.start] != 0))
        found = pc.if_else(pa.array(booleans), pc.if_else(pa.array(true), "true", "false"), found)
    few = is_code(values.code, FEW)
    if few.any():
        texts = np.full(len(few), None)
        texts[few] = _one_by_one(data, values.of(few))
        found = pc.coalesce(pa.array(texts, pa.string()), found)
    whole = is_code(values.code, INTEGERS)
    if not whole.any():
        return found
    numbers = np.zeros(len(whole), np.int64)
    numbers[whole] = integers(data, values.of(whole))
    too_large = (values.code == 0x80) & (numbers < 0)
    if too_large.any():
        raise Leave(values.rows[too_large])
    return pc.if_else(pa.array(whole), pa.array(numbers).cast(pa.string()), found)


def _one_by_one(data: Bytes, values: Values) -> list[str | None]:
    found = []
    columns = (values.rows, values.code, values.start, values.stop)
    for row, code, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        raw = data[start:stop].tobytes()
        try:
            value = raw if code in BINARIES else read_as(code, raw, 0, Budget())[0]
        except Malformed:
            raise Leave(np.array([row])) from None
        found.append(as_text(value))
    return found


def _twins(names: pa.Array, rows: Whole) -> Whole:
    """Return the rows with a duplicate name."""
    if not len(rows):
        return rows
    encoded = names.dictionary_encode()
    both = np.sort(rows * len(encoded.dictionary) + encoded.indices.to_numpy())
    return np.unique(both[1:][both[1:] == both[:-1]] // len(encoded.dictionary))
