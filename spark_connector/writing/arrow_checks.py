"""The rows of an Arrow batch that cannot be sent, found by Arrow's and NumPy's own loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rabbit_chx.publishing import ROUTING_HEADERS
from spark_connector.writing.columns import Headers, Layout
from spark_connector.writing.rules import SIZES, InvalidRow, Rule

Mask: TypeAlias = "NDArray[np.bool_]"

_KEY_SHOWN: Final = 60


def invalid_rows(batch: pa.RecordBatch, layout: Layout, rules: Sequence[Rule]) -> list[InvalidRow]:
    """The rows that violate a rule, in their order, each with the first such rule."""
    columns = {name: batch.column(position) for name, position in layout.positions.items()}
    headers = HeaderParts.of(columns["headers"], layout.headers) if layout.headers else None
    reasons: dict[int, str] = {}
    for rule in rules:
        if headers is not None and rule.column == "headers":
            bad = headers.violations(rule)
        else:
            bad = _violations(rule, columns[rule.column])
        if bad is not None:
            for row in np.flatnonzero(bad).tolist():
                reasons.setdefault(row, rule.reason)
    keys = columns.get("routing_key")
    return [InvalidRow(row, f"{reasons[row]}{_key_of(keys, row)}") for row in sorted(reasons)]


def _key_of(keys: pa.Array | None, row: int) -> str:
    """The routing key, so that people can identify the row."""
    key = None if keys is None else as_binary(keys)[row].as_py()
    return "" if key is None else f" (routing key {key.decode('utf-8', 'replace')[:_KEY_SHOWN]!r})"


def _violations(rule: Rule, column: pa.Array) -> Mask | None:
    """The values that match a rule; None if there are certainly none."""
    match rule.test:
        case "null":
            return _mask(column.is_null()) if column.null_count else None
        case "too long":
            lengths = pc.binary_length(column)
            most = rule.bounds[1]
            return _mask(pc.greater(lengths, most)) if (pc.max(lengths).as_py() or 0) > most else None
        case "not utf-8":
            return _not_utf8(column)
        case "out of range":
            return _out_of_range(column.cast(pa.int64()), rule.bounds)
        case "time out of range":
            return _out_of_range(as_seconds(column), rule.bounds)
        case "not finite":
            return _mask(pc.invert(pc.is_finite(column)))
        case "not milliseconds":
            texts = as_binary(column).to_pylist()
            return np.array([text is not None and not _is_milliseconds(text) for text in texts], dtype=bool)
        case "reserved name":
            return _mask(pc.is_in(column, value_set=pa.array(ROUTING_HEADERS, column.type)))
        case _:
            raise AssertionError(rule.test)


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def _not_utf8(column: pa.Array) -> Mask | None:
    """Strings of Spark may hold any bytes, since a cast from binary checks nothing."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts = [text or b"" for text in as_binary(column).to_pylist()]
        return np.array([text.decode(errors="ignore").encode() != text for text in texts], dtype=bool)
    return None


def _is_milliseconds(text: bytes) -> bool:
    significant = text.lstrip(b"0")
    return text.isdigit() and len(significant) <= 10 and int(significant or b"0") < 2**32


def _out_of_range(column: pa.Array, bounds: tuple[int, int]) -> Mask | None:
    bad = pc.or_(pc.less(column, bounds[0]), pc.greater(column, bounds[1]))
    return _mask(bad) if pc.any(bad).as_py() else None


def as_binary(column: pa.Array) -> pa.Array:
    """Text as its bytes; nothing is copied."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def as_seconds(column: pa.Array) -> pa.Array:
    """Whole seconds since 1970, rounded down; a date begins at midnight in UTC."""
    ticks = column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).cast(pa.int64())
    whole = pc.divide(ticks, 1_000_000)
    return pc.subtract(whole, pc.less(pc.subtract(ticks, pc.multiply(whole, 1_000_000)), 0).cast(pa.int64()))


# -- headers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeaderParts:
    """The column ``headers`` as flat columns: the fields of a struct, or all names and all values of lists."""

    headers: Headers
    parts: Mapping[str, pa.Array]
    ends: NDArray[np.int64] | None = None
    """Of lists: where the entries of each row begin, and where those of the last row end."""

    @classmethod
    def of(cls, column: pa.Array, headers: Headers) -> HeaderParts:
        """Flatten the column; a struct that is null has null fields."""
        if headers.form == "struct":
            return cls(headers, dict(zip(headers.names, column.flatten(), strict=True)))
        ends = column.offsets.to_numpy().astype(np.int64)
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        if headers.form == "map":
            names, values = column.keys.slice(first, count), column.items.slice(first, count)
        else:
            fields = column.values.slice(first, count).flatten()
            names, values = fields[headers.key_at], fields[1 - headers.key_at]
        return cls(headers, {"name": names, "value": values}, ends - first)

    def violations(self, rule: Rule) -> Mask | None:
        """The rows that match a rule."""
        if rule.test == "headers too large":
            too_large: Mask = self._sizes() > rule.bounds[1]
            return too_large
        bad = self._repeated() if rule.test == "repeated name" else _violations(rule, self.parts[rule.part])
        if bad is None or self.ends is None:
            return bad
        rows = np.zeros(len(self.ends) - 1, dtype=bool)
        rows[self._rows()[bad]] = True
        return rows

    def _rows(self) -> NDArray[np.int64]:
        """The row of each entry."""
        assert self.ends is not None
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def _repeated(self) -> Mask:
        """The entries whose name occurs before in the same row."""
        ids = self.parts["name"].dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        pairs = self._rows() * (len(ids) + 1) + ids
        repeated = np.ones(len(pairs), dtype=bool)
        repeated[np.unique(pairs, return_index=True)[1]] = False
        return repeated

    def _sizes(self) -> NDArray[np.int64]:
        """Bytes of the headers of each row; a null value counts although it is not sent."""
        if self.ends is None:
            named = zip(self.headers.names, self.headers.tags, strict=True)
            sizes = [_value_sizes(self.parts[name], tag) + len(name.encode()) + 1 for name, tag in named]
            total: NDArray[np.int64] = np.sum(sizes, axis=0)
            return total
        names = pc.binary_length(self.parts["name"]).fill_null(0).to_numpy()
        entries = _value_sizes(self.parts["value"], self.headers.tags[0]) + names + 1
        sums = np.concatenate(([0], np.cumsum(entries)))
        return sums[self.ends[1:]] - sums[self.ends[:-1]]


def _value_sizes(values: pa.Array, tag: str) -> NDArray[np.int64]:
    """Bytes of each value and its tag."""
    if tag in SIZES:
        return np.full(len(values), SIZES[tag], dtype=np.int64)
    lengths: NDArray[np.int64] = pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return lengths + 5
