"""Route an Arrow column as an exchange would: values that are hashed in, numbers of destinations out.

Spark's types are hashed with the AMQP tag that the writer gives them (:data:`spark_connector.columns.AMQP_TAGS`). A
null means a message without the header or property; a routing key cannot be null. This module runs in Python
workers, one batch at a time, and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, StructField, StructType

from rabbit_chx import ConsistentHashExchange, Field, InvalidValue, ModulusHashExchange, Release
from rabbit_chx.mirror.kernel import (
    SEEDS,
    block_hash_column,
    bucket_table,
    last_binary_initval,
    phash2,
    phash2_column,
)
from spark_connector.columns import amqp_tag
from spark_connector.writing.prepare import as_seconds
from spark_connector.writing.rules import Headers, layout_of


def narrow(count: int) -> np.dtype[Any]:
    """The narrowest integer type of Spark, which are all signed, for numbers below ``count``."""
    return np.min_scalar_type(-count)


@dataclass(frozen=True)
class RingMirror:
    """A consistent-hash exchange, as it is shipped to the workers."""

    on: Any
    """What is hashed: the exchange's ``_hash_on``."""
    release: Release
    header: str | None
    """The header to take out of a column of all headers; None if the column holds what is hashed."""
    table: NDArray[Any]
    """The number of the destination for each value of a hash's lowest 21 bits."""

    @classmethod
    def of(cls, exchange: ConsistentHashExchange, header: str | None) -> RingMirror:
        """Compute the table here, once, and not in each worker."""
        owners = exchange._owners.astype(narrow(len(exchange.destinations)))
        return cls(exchange._hash_on, exchange.release, header, owners[bucket_table(len(owners)).all()])

    def numbers(self, column: pa.Array) -> pa.Array:
        """The number of the destination of each row."""
        if self.header is not None:
            column = header_column(column, self.header)
        hashes = _without_row_number(lambda: self._hashes(column))
        hashes &= hashes.dtype.type(SEEDS - 1)
        return pa.array(self.table.take(hashes, mode="wrap"))

    def _hashes(self, column: pa.Array) -> NDArray[Any]:
        """For each row an integer whose lowest 21 bits choose the bucket."""
        if self.on.part == "routing_key":
            return self._hashed(_without_null(column))
        present = column.drop_null() if column.null_count else column
        found = {"timestamp": self._time_hashes, "headers": self._header_hashes}.get(
            self.on.part, self._hashed
        )(present)
        if len(present) == len(column):
            return found
        _, missing = self.on.term({} if self.on.part == "headers" else None, self.release, None)
        hashes = np.full(len(column), phash2(missing), found.dtype)
        hashes[column.is_valid().to_numpy(zero_copy_only=False)] = found
        return hashes

    def _time_hashes(self, column: pa.Array) -> NDArray[Any]:
        what, tz = "property timestamp", getattr(column.type, "tz", None)
        if tz is None:
            hint = 'Cast it: col("...").cast("timestamp")'
            raise InvalidValue(f"type of {what}", str(column.type), "timestamp", hint)
        return phash2_column(pa.array(_seconds(column, what)).cast(pa.string()))

    # rabbit_exchange_type_consistent_hash.erl, value_to_hash/2: up to 3.12 the pair {Type, Value}, then the value.
    def _header_hashes(self, column: pa.Array) -> NDArray[Any]:
        what, typed = str(self.on).removeprefix("the "), self.release.typed_headers
        tag = amqp_tag(from_arrow_type(column.type), f"type of {what}")
        if tag in "Sx":
            if not typed:
                return phash2_column(column, what=what)
            return block_hash_column(column, last_binary_initval(Field(tag, b"")._type), what=what)
        values = _seconds(column, what) if tag == "T" else column.to_numpy(zero_copy_only=False)
        if tag in "IlT" and not typed:
            # An integer is its own hash; mc_amqpl keeps timestamps in milliseconds.
            return values.astype(np.int64) * (1000 if tag == "T" else 1)
        distinct, places = np.unique(values, return_inverse=True)
        return self._hashed([Field(tag, value) for value in distinct.tolist()])[places]

    def _hashed(self, column: Any) -> NDArray[Any]:
        hashes: NDArray[Any] = self.on.hashes(column, self.release, None)
        return hashes


@dataclass(frozen=True)
class ModulusMirror:
    """A modulus-hash exchange, which needs no table."""

    exchange: ModulusHashExchange

    def numbers(self, column: pa.Array) -> pa.Array:
        """The number of the destination of each row."""
        keys = _without_null(column)
        numbers = _without_row_number(lambda: self.exchange.route_many(keys))
        return pa.array(numbers.astype(narrow(len(self.exchange.destinations))))


def _seconds(column: pa.Array, what: str) -> NDArray[np.int64]:
    """Whole seconds since 1970, as a message carries them."""
    seconds: NDArray[np.int64] = as_seconds(column).to_numpy()
    if len(seconds) and seconds.min() < 0:
        raise InvalidValue(what, column[int(seconds.argmin())].as_py(), "a time from 1970 on")
    return seconds


def header_column(headers: pa.Array, name: str) -> pa.Array:
    """The values of one header in a column ``headers`` of any form; null in rows without it."""
    form = headers_of(from_arrow_type(headers.type), name)
    if form.form == "struct":
        return pc.struct_field(headers, name)
    if form.form == "map":
        return pc.map_lookup(headers, pa.scalar(name, headers.type.key_type), "first")
    entries = headers.flatten()
    at = pc.equal(entries.field(form.key_at), name)
    rows = pc.list_parent_indices(headers).filter(at).to_numpy()
    places = np.full(len(headers), -1)
    places[rows] = np.arange(len(rows))
    return entries.field(1 - form.key_at).filter(at).take(pa.array(places, mask=places < 0))


def headers_of(data_type: Any, name: str) -> Headers:
    """The form of a column ``headers`` of this PySpark type, if it can hold the header."""
    message = StructType([StructField("value", BinaryType()), StructField("headers", data_type)])
    form = layout_of(message, given=frozenset({"exchange", "routing_key"})).headers
    assert form is not None
    if form.form == "struct" and name not in form.names:
        raise InvalidValue(
            "column headers",
            f"a struct of {', '.join(form.names)}",
            f"a field {name!r}, which the exchange hashes",
            "Names of headers are case-sensitive",
        )
    return form


def _without_null(column: pa.Array) -> pa.Array:
    """The routing keys, if every row has one."""
    if column.null_count:
        hint = "Remove these rows first: split_valid(df) separates them, and the writer rejects them too"
        raise InvalidValue("routing key", None, "text in every row", hint)
    return column


def _without_row_number(hashing: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Call it; an error omits the row, whose number within one of many batches would mislead."""
    try:
        return hashing()
    except InvalidValue as error:
        what = error.what.partition(" in row ")[0].removeprefix("the ")
        raise InvalidValue(what, error.got, error.expected, error.hint) from None
