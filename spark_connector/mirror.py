"""An exchange as it is shipped to the workers: an Arrow column of what it hashes in, numbers of destinations out.

What :mod:`rabbit_chx.hashing` says of Python values, this file says of Spark's types, each with the tag that the
writer sends it with (:data:`spark_connector.columns.AMQP_TAGS`). A null is a message without the header or
property; a routing key cannot be null. Runs in Python workers, one batch at a time; opens no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx import Field, InvalidValue
from rabbit_chx.hashing import HashHeader, HashRoutingKey, HashTimestamp, hash_of
from rabbit_chx.kernel.batch import block_hash_column, phash2_column
from rabbit_chx.kernel.phash2 import last_binary_initval
from rabbit_chx.kernel.table import SEEDS, bucket_table
from spark_connector.columns import amqp_tag, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, Release
    from rabbit_chx.hashing import HashOn
    from spark_connector.columns import Headers

__all__ = ["ModulusMirror", "RingMirror", "header_column", "headers_of", "narrow"]

_MICROSECONDS: Final = 1_000_000
_MISSING_KEY: Final = (
    "Remove these rows first: split_valid(df) separates them, and the writer rejects them too"
)


def narrow(count: int) -> np.dtype[Any]:
    """The narrowest of Spark's integers that counts so far; it has none without a sign."""
    return np.min_scalar_type(-count)


@dataclass(frozen=True)
class RingMirror:
    """A consistent-hash exchange."""

    on: HashOn
    release: Release
    header: str | None
    """To be taken out of a column of all headers; None where the column holds what is hashed as it is."""
    table: NDArray[Any]
    """Of the 21 bits of a hash that count, the number of the destination."""

    @classmethod
    def of(cls, exchange: ConsistentHashExchange, header: str | None) -> RingMirror:
        """With its table, which is drawn here and not on each worker."""
        owners = exchange.owners.astype(narrow(len(exchange.destinations)))
        return cls(exchange.hash_on, exchange.release, header, owners[bucket_table(len(owners)).all()])

    def numbers(self, column: pa.Array) -> pa.Array:
        """For each row the number of its destination."""
        if self.header is not None:
            column = header_column(column, self.header)
        hashes = _hashes(column, self.on, self.release)
        hashes &= hashes.dtype.type(SEEDS - 1)
        return pa.array(self.table.take(hashes, mode="wrap"))


@dataclass(frozen=True)
class ModulusMirror:
    """A modulus-hash exchange, which needs no table."""

    exchange: ModulusHashExchange

    def numbers(self, column: pa.Array) -> pa.Array:
        """For each row the number of its destination."""
        keys = _no_nulls(column)
        numbers = _without_row(lambda: self.exchange.route_many(keys))
        return pa.array(numbers.astype(narrow(len(self.exchange.destinations))))


def _hashes(column: pa.Array, on: HashOn, release: Release) -> NDArray[Any]:
    """For each row an integer of which the lowest 21 bits choose the bucket.

    The column holds what the exchange hashes: routing keys, values of the property, or values of the header.
    """
    if isinstance(on, HashRoutingKey):
        return _without_row(lambda: on.hashes(_no_nulls(column), release, None))
    present = column.drop_null() if column.null_count else column
    found = _without_row(lambda: _present(present, on, release))
    if len(present) == len(column):
        return found
    _, missing = on.term({} if isinstance(on, HashHeader) else None, release, None)
    hashes = np.full(len(column), hash_of(missing, release), found.dtype)
    hashes[column.is_valid().to_numpy(zero_copy_only=False)] = found
    return hashes


def _present(column: pa.Array, on: HashOn, release: Release) -> NDArray[Any]:
    if isinstance(on, HashTimestamp):
        return phash2_column(pa.array(_seconds(column, str(on))).cast(pa.string()))
    if isinstance(on, HashHeader):
        return _header_hashes(column, on, release)
    return on.hashes(column, release, None)


# rabbit_exchange_type_consistent_hash.erl, value_to_hash/2: up to 3.12 the pair {Type, Value}, then the value.
def _header_hashes(column: pa.Array, on: HashHeader, release: Release) -> NDArray[Any]:
    tag = _tag(column.type, on)
    if tag in "Sx":
        if not release.typed_headers:
            return phash2_column(column, what=str(on))
        return block_hash_column(column, last_binary_initval(Field(tag, b"").type), what=str(on))
    values = _seconds(column, str(on)) if tag == "T" else column.to_numpy(zero_copy_only=False)
    if tag != "t" and not release.typed_headers:
        # An integer is its own hash; mc_amqpl keeps timestamps in milliseconds.
        return values.astype(np.int64) * (1000 if tag == "T" else 1)
    distinct, places = np.unique(values, return_inverse=True)
    return on.hashes([Field(tag, value) for value in distinct.tolist()], release, None)[places]


def _tag(type_: pa.DataType, on: HashHeader) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return amqp_tag(from_arrow_type(type_), f"the type of {on}")


def _seconds(column: pa.Array, what: str) -> NDArray[np.int64]:
    """Whole seconds since 1970, as a message carries them."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        raise InvalidValue(
            f"type of {what}",
            str(column.type),
            "timestamp",
            'cast it: col("...").cast("timestamp")',
        )
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
    if len(micros) and micros.min() < 0:
        raise InvalidValue(
            what,
            column[int(micros.argmin())].as_py(),
            "a time from 1970 on",
            "AMQP has no earlier one",
        )
    seconds: NDArray[np.int64] = micros // _MICROSECONDS
    return seconds


def header_column(headers: pa.Array, name: str) -> pa.Array:
    """The values of one header out of a column ``headers`` of any form; null where a row has it not."""
    from pyspark.sql.pandas.types import from_arrow_type

    form = headers_of(from_arrow_type(headers.type), name)
    if form.form == "struct":
        return pc.struct_field(headers, name)
    if form.form == "map":
        return pc.map_lookup(headers, name, "first")
    entries = headers.flatten()
    at = pc.equal(entries.field(form.key_at), name)
    rows = pc.list_parent_indices(headers).filter(at).to_numpy()
    places = np.full(len(headers), -1)
    places[rows] = np.arange(len(rows))
    return entries.field(1 - form.key_at).filter(at).take(pa.array(places, mask=places < 0))


def headers_of(data_type: Any, name: str) -> Headers:
    """The form of a column ``headers`` of this PySpark type, which has to have a place for the header."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    message = StructType([StructField("value", BinaryType()), StructField("headers", data_type)])
    form = layout_of(message, given=frozenset({"exchange", "routing_key"})).headers
    assert form is not None
    if form.form == "struct" and name not in form.names:
        raise InvalidValue(
            "column headers",
            f"a struct of {', '.join(form.names)}",
            f"one with a field {name!r}, which the exchange hashes",
            "Names of headers count letter by letter, capitals too",
        )
    return form


def _no_nulls(column: pa.Array) -> pa.Array:
    """The column of routing keys, if every row has one."""
    if column.null_count:
        raise InvalidValue("routing key", None, "text in every row", _MISSING_KEY)
    return column


def _without_row(hashing: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Call it; an error does not tell the row, which counts within one of many batches and would mislead."""
    try:
        return hashing()
    except InvalidValue as error:
        what = error.what.partition(" in row ")[0].removeprefix("the ")
        raise InvalidValue(what, error.got, error.expected, error.hint) from None
