"""An Arrow batch as the columns that `Publisher.publish_many` takes, and which of its rows cannot be sent.

A batch is checked whole, by Arrow's and NumPy's own loops, before any of its rows leaves. Python values come from
``to_pylist``: on pyarrow 26 it costs 0.012 us a row (slices of the buffer 0.055), on pyarrow 21 it costs 0.34 us,
which is not worth a second way. This file imports no PySpark and opens no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.hashing import MAX_SHORTSTR
from rabbit_chx.publishing import ROUTING_HEADERS
from spark_connector.limits import NEEDED, SIZES, TEXTS, YEAR_10000

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from spark_connector.columns import Headers, Layout
    from spark_connector.limits import Limits

__all__ = ["InvalidRow", "arguments", "invalid_rows", "rows_at_once"]

_KEY_SHOWN: Final = 60
_BYTES_AT_ONCE: Final = 8 << 20


@dataclass(frozen=True)
class InvalidRow:
    """A row that cannot be sent."""

    row: int
    """Counted from 0 in its batch."""
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


# -- what is wrong ----------------------------------------------------------------------------------


def invalid_rows(
    batch: pa.RecordBatch, layout: Layout, limits: Limits, *, empty_for_null: bool
) -> list[InvalidRow]:
    """The rows that cannot be sent, in their order, each with the first thing that is wrong with it."""
    reasons: dict[int, str] = {}
    for bad, reason in _complaints(batch, layout, limits, empty_for_null=empty_for_null):
        for row in np.flatnonzero(bad).tolist():
            reasons.setdefault(row, reason)
    keys = batch.column(layout.positions["routing_key"]) if "routing_key" in layout.positions else None
    return [InvalidRow(row, f"{reasons[row]}{_key_of(keys, row)}") for row in sorted(reasons)]


def _key_of(keys: pa.Array | None, row: int) -> str:
    """The routing key, by which people know a row."""
    key = None if keys is None else _binary(keys)[row].as_py()
    return "" if key is None else f" (routing key {key.decode('utf-8', 'replace')[:_KEY_SHOWN]!r})"


def _complaints(
    batch: pa.RecordBatch, layout: Layout, limits: Limits, *, empty_for_null: bool
) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """For each rule that some row breaks: which rows, and the rule."""
    columns = {name: batch.column(position) for name, position in layout.positions.items()}
    value = columns["value"]
    if value.null_count and not empty_for_null:
        yield _mask(value.is_null()), "value is null; the option nullValue=empty sends an empty message"
    yield from _too_long(value, limits.body, "value")
    for name in (*NEEDED, *TEXTS):
        if name in columns:
            yield from _text_complaints(columns[name], name)
    yield from _number_complaints(columns)
    if layout.headers is not None:
        column = columns["headers"]
        if layout.headers.form == "struct":
            yield from _struct_complaints(column, layout.headers, limits)
        else:
            yield from _list_complaints(_Entries.of(column, layout.headers), layout.headers, limits)


def _text_complaints(column: pa.Array, name: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
    if name in NEEDED and column.null_count:
        yield _mask(column.is_null()), f"{name} is null"
    yield from _too_long(column, MAX_SHORTSTR, name)
    yield from _not_utf8(column, name)


def _too_long(column: pa.Array, limit: int, name: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
    lengths = pc.binary_length(column)
    if (pc.max(lengths).as_py() or 0) > limit:
        yield _mask(pc.greater(lengths, limit)), f"{name} is longer than the {limit} bytes that are allowed"


def _not_utf8(column: pa.Array, name: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Spark's strings may hold any bytes: a cast from binary checks nothing."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        wrong = [one is not None and not _is_utf8(one) for one in _binary(column).to_pylist()]
        yield np.array(wrong), f"{name} is no UTF-8"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number_complaints(columns: Mapping[str, pa.Array]) -> Iterator[tuple[NDArray[np.bool_], str]]:
    for name, least, most in (("priority", 0, 255), ("delivery_mode", 1, 2)):
        if name in columns:
            yield from _outside(columns[name], least, most, f"{name} is not from {least} to {most}")
    if "expiration" in columns:
        column, rule = columns["expiration"], "expiration is not a number of milliseconds below 2^32"
        if pa.types.is_integer(column.type):
            yield from _outside(column, 0, 2**32 - 1, rule)
        else:
            digits = [text is None or _is_milliseconds(text) for text in _binary(column).to_pylist()]
            yield ~np.array(digits, dtype=bool), rule
    if "timestamp" in columns:
        yield from _outside(_seconds(columns["timestamp"]), 0, 2**63 - 1, "timestamp is before 1970")


def _is_milliseconds(text: bytes) -> bool:
    significant = text.lstrip(b"0")
    return text.isdigit() and len(significant) <= 10 and int(significant or b"0") < 2**32


def _outside(column: pa.Array, least: int, most: int, rule: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
    wide = column.cast(pa.int64())
    bad = pc.or_(pc.less(wide, least), pc.greater(wide, most))
    if pc.any(bad).as_py():
        yield _mask(bad), rule


def _mask(found: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = found.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return mask


# -- headers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entries:
    """A column of maps, or of arrays of key and value, laid flat."""

    ends: NDArray[np.int64]
    """Where each row's entries begin, and at the end where the last one's end."""
    names: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, column: pa.Array, headers: Headers) -> _Entries:
        ends = column.offsets.to_numpy().astype(np.int64)
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        if headers.form == "map":
            names, values = column.keys.slice(first, count), column.items.slice(first, count)
        else:
            # flatten() and not field(): a struct that is null has no name either.
            fields = column.values.slice(first, count).flatten()
            names, values = fields[headers.key_at], fields[1 - headers.key_at]
        return cls(ends - first, names, values)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Of each entry, the row."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def rows_of(self, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The rows that hold one of these entries."""
        found = np.zeros(len(self.ends) - 1, dtype=bool)
        found[self.rows[bad]] = True
        return found


def _list_complaints(
    entries: _Entries, headers: Headers, limits: Limits
) -> Iterator[tuple[NDArray[np.bool_], str]]:
    names, (tag,) = entries.names, headers.tags
    if names.null_count:
        yield entries.rows_of(_mask(names.is_null())), "headers: a name is null"
    lists = pc.is_in(names, value_set=pa.array(ROUTING_HEADERS, names.type))
    for bad, reason in (
        *_too_long(names, MAX_SHORTSTR, "headers: a name"),
        *_not_utf8(names, "headers: a name"),
        *_value_complaints(entries.values, tag, "headers: a value"),
        (_mask(lists), "headers: CC and BCC are lists of routing keys to the broker"),
    ):
        yield entries.rows_of(bad), reason
    if headers.form == "array":
        yield entries.rows_of(_repeated(entries)), "headers: a name stands there twice"
    sizes = _sizes(entries.values, tag) + pc.binary_length(names).fill_null(0).to_numpy() + 1
    sums = np.concatenate(([0], np.cumsum(sizes)))
    yield _too_large(sums[entries.ends[1:]] - sums[entries.ends[:-1]], limits)


def _struct_complaints(
    column: pa.Array, headers: Headers, limits: Limits
) -> Iterator[tuple[NDArray[np.bool_], str]]:
    sizes = np.zeros(len(column), dtype=np.int64)
    for name, tag, values in zip(headers.names, headers.tags, column.flatten(), strict=True):
        yield from _value_complaints(values, tag, f"headers: {name}")
        sizes += _sizes(values, tag) + len(name.encode()) + 1
    yield _too_large(sizes, limits)


def _value_complaints(values: pa.Array, tag: str, what: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
    if tag == "S":
        yield from _not_utf8(values, what)
    if tag == "T":
        yield from _outside(_seconds(values), 0, YEAR_10000 - 1, f"{what} is not from 1970 to 9999")


def _repeated(entries: _Entries) -> NDArray[np.bool_]:
    """The entries whose name their row has already."""
    ids = entries.names.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    pairs = entries.rows * (len(ids) + 1) + ids
    repeated = np.ones(len(pairs), dtype=bool)
    repeated[np.unique(pairs, return_index=True)[1]] = False
    return repeated


def _sizes(values: pa.Array, tag: str) -> NDArray[np.int64]:
    """Bytes of each value and its tag; a little much where it is null and not sent."""
    if tag in SIZES:
        return np.full(len(values), SIZES[tag], dtype=np.int64)
    lengths: NDArray[np.int64] = pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return lengths + 5


def _too_large(sizes: NDArray[np.int64], limits: Limits) -> tuple[NDArray[np.bool_], str]:
    return sizes > limits.headers, f"headers take more than the {limits.headers} bytes that one frame holds"


# -- as Python values -------------------------------------------------------------------------------


def rows_at_once(batch: pa.RecordBatch) -> int:
    """How many rows of the batch to turn into Python values together, so that large bodies are not there twice."""
    rows, size = int(batch.num_rows), int(batch.nbytes)
    return max(_BYTES_AT_ONCE * rows // max(size, 1), 1)


def arguments(batch: pa.RecordBatch, layout: Layout, own_headers: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Publisher.publish_many`; every row is sound. ``own_headers`` go with each message."""
    columns = {name: batch.column(position) for name, position in layout.positions.items()}
    found: dict[str, Any] = {"bodies": _binary(columns.pop("value")).fill_null(b"").to_pylist()}
    if own_headers:
        found["headers"] = own_headers
    for name, column in columns.items():
        if name == "headers":
            assert layout.headers is not None
            tables = _tables(column, layout.headers)
            found[name] = [{**(table or {}), **own_headers} for table in tables] if own_headers else tables
        elif name == "timestamp":
            found[name] = _seconds(column).to_pylist()
        elif pa.types.is_integer(column.type):
            found[name] = column.to_pylist()
        else:
            found[name] = _binary(column).to_pylist()
    if "routing_key" in found:
        found["routing_keys"] = found.pop("routing_key")
    if "expiration" in found:
        found["expiration"] = [one.decode() if isinstance(one, bytes) else one for one in found["expiration"]]
    return found


def _binary(column: pa.Array) -> pa.Array:
    """Text as its bytes, which costs nothing."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _seconds(column: pa.Array) -> pa.Array:
    """Whole seconds since 1970, rounded down as the clock does."""
    ticks = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    whole = pc.divide(ticks, 1_000_000)
    return pc.subtract(whole, pc.less(pc.subtract(ticks, pc.multiply(whole, 1_000_000)), 0).cast(pa.int64()))


def _tables(column: pa.Array, headers: Headers) -> list[dict[str, Any] | None]:
    """A table of headers for each row; a header that is null is not there."""
    valid = column.is_valid().to_pylist() if column.null_count else None
    if headers.form == "struct":
        columns = [_values(*one) for one in zip(column.flatten(), headers.tags, strict=True)]
        rows = zip(*columns, strict=True) if columns else [()] * len(column)
        tables = [dict(zip(headers.names, row, strict=True)) for row in rows]
    else:
        entries = _Entries.of(column, headers)
        names, values = entries.names.to_pylist(), _values(entries.values, headers.tags[0])
        ends = entries.ends.tolist()
        tables = [
            dict(zip(names[start:end], values[start:end], strict=True)) for start, end in pairwise(ends)
        ]
    if any(one.null_count for one in _leaves(column, headers)):
        tables = [{name: value for name, value in table.items() if value is not None} for table in tables]
    if valid is not None:
        return [table if there else None for table, there in zip(tables, valid, strict=True)]
    return list(tables)


def _leaves(column: pa.Array, headers: Headers) -> list[pa.Array]:
    return column.flatten() if headers.form == "struct" else [_Entries.of(column, headers).values]


def _values(column: pa.Array, tag: str) -> list[Any]:
    """Python values from which pika makes fields with this tag."""
    if tag == "T":
        seconds = _seconds(column).to_pylist()
        return [None if value is None else datetime.fromtimestamp(value, UTC) for value in seconds]
    found: list[Any] = column.to_pylist()
    if tag == "l":
        from pika.compat import long  # an int that pika sends as 64 bits, however small it is

        return [None if value is None else long(value) for value in found]
    return found
