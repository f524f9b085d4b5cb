"""The headers of many messages as an Arrow array of maps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.streams.messages.amqp10 import INTEGERS, Budget, Malformed, as_text, read_as
from rabbit_chx.streams.messages.arrow.fields import Found
from rabbit_chx.streams.messages.arrow.parser import (
    BINARIES,
    BOOLEAN,
    FALSE,
    FEW,
    TEXTS,
    TRUE,
    Bytes,
    Values,
    integers,
    is_code,
    joined,
)
from rabbit_chx.streams.messages.arrow.texts import Leave, slices, utf8
from rabbit_chx.streams.messages.chunks import Whole


def header_maps(data: Bytes, buffer: pa.Buffer, count: int, found: Found) -> pa.Array:
    """Build the headers of ``count`` messages.

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
    return pa.MapArray.from_arrays(pa.array(ends), keys, _values(data, buffer, values))


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
