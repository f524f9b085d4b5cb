"""``split_valid``: the rows that the writer would take, and those that it would refuse, told apart by Spark itself.

The rules are those of :mod:`spark_connector.rows`, in the same order and the same words, as native expressions:
no Python runs, so that one row that can never be sent does not stop a stream for ever. A test binds the two files.
This file starts no job and opens no socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from rabbit_chx.errors import InvalidValue
from rabbit_chx.hashing import MAX_SHORTSTR
from rabbit_chx.publishing import ROUTING_HEADERS
from spark_connector.columns import layout_of
from spark_connector.limits import NEEDED, SIZES, TEXTS, YEAR_10000, Limits
from spark_connector.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column, DataFrame

    from spark_connector.columns import Headers, Layout

__all__ = ["split_valid"]

_REASON: Final = "reason"
_MICROSECONDS: Final = 1_000_000


def split_valid(df: DataFrame, **options: object) -> tuple[DataFrame, DataFrame]:
    """The rows that can be written, and those that cannot, with the column ``reason`` added.

        good, bad = split_valid(df, exchange="orders")
        good.write.format("rabbitmq").options(...).save()
        bad.write.mode("append").parquet("refused")

    ``options`` are those of the write, by their names; url and host may be left out. No broker is asked: a body
    may have 16 MiB, which every release takes by default, unless ``maxMessageBytes`` says otherwise (the writer
    itself lets it have 128 MiB before RabbitMQ 4). Works on streams too. Both frames are computed from ``df``: cache it, if
    it is a batch that is expensive to compute.
    """
    checked = _options({name: _as_text(value) for name, value in options.items()})
    _refuse_twin(df.columns)
    layout = layout_of(df.schema, ignore_unknown=checked.ignore_unknown_columns, given=checked.columns_given)
    limits = Limits.unasked(checked.max_message_bytes)
    rules = _rules(df, layout, limits, empty_for_null=checked.null_value == "empty")
    reason = F.coalesce(*(F.when(broken, F.lit(words)) for broken, words in rules))
    return df.where(reason.isNull()), df.withColumn(_REASON, reason).where(F.col(_REASON).isNotNull())


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(given: dict[str, str]) -> Options:
    here = {name.lower() for name in given} & {"url", "host"}
    return Options.of(given if here else {"host": "localhost", **given})


def _refuse_twin(names: list[str]) -> None:
    if _REASON in map(str.lower, names):
        raise InvalidValue(
            "columns", _REASON, "any other name", "Rename yours: split_valid adds a column of this name"
        )


_Rule: TypeAlias = "tuple[Column, str]"


def _rules(df: DataFrame, layout: Layout, limits: Limits, *, empty_for_null: bool) -> Iterator[_Rule]:
    """What each row must not be, and how the writer says it."""
    names = {name: df.columns[position] for name, position in layout.positions.items()}
    columns = {name: F.col(f"`{here}`") for name, here in names.items()}
    value = columns["value"]
    if not empty_for_null:
        yield value.isNull(), "value is null; the option nullValue=empty sends an empty message"
    yield _longer(value, limits.body), f"value is longer than the {limits.body} bytes that are allowed"
    for name in (*NEEDED, *TEXTS):
        if name in columns:
            yield from _text_rules(columns[name], name)
    yield from _number_rules(columns, layout)
    if layout.headers is not None:
        headers = _struct_rules if layout.headers.form == "struct" else _list_rules
        yield from headers(columns["headers"], layout.headers, df.schema[names["headers"]].dataType, limits)


def _text_rules(column: Column, name: str) -> Iterator[_Rule]:
    if name in NEEDED:
        yield column.isNull(), f"{name} is null"
    yield _longer(column, MAX_SHORTSTR), f"{name} is longer than the {MAX_SHORTSTR} bytes that are allowed"
    yield _no_utf8(column), f"{name} is no UTF-8"


def _longer(column: Column, limit: int) -> Column:
    return F.octet_length(column) > limit


def _no_utf8(column: Column) -> Column:
    """A cast from binary checks nothing, so that Spark's strings may hold any bytes."""
    return ~F.is_valid_utf8(column)


def _number_rules(columns: dict[str, Column], layout: Layout) -> Iterator[_Rule]:
    for name, least, most in (("priority", 0, 255), ("delivery_mode", 1, 2)):
        if name in columns:
            yield ~columns[name].between(least, most), f"{name} is not from {least} to {most}"
    if "expiration" in columns:
        column = columns["expiration"]
        sound = column.between(0, 2**32 - 1)
        if layout.types["expiration"] == "string":
            digits = F.regexp_extract(column, r"\A0*([0-9]{1,10})\z", 1)
            sound = column.rlike(r"\A0*[0-9]{1,10}\z") & (digits.cast("bigint") < 2**32)
        yield ~sound, "expiration is not a number of milliseconds below 2^32"
    if "timestamp" in columns:
        yield F.unix_micros(columns["timestamp"]) < 0, "timestamp is before 1970"


# -- headers ----------------------------------------------------------------------------------------


def _struct_rules(column: Column, headers: Headers, _type: object, limits: Limits) -> Iterator[_Rule]:
    size = F.lit(0)
    for name, tag in zip(headers.names, headers.tags, strict=True):
        field = column.getField(name)
        for broken, words in _value_rules(tag):
            yield broken(field), f"headers: {name} {words}"
        size = size + _size(field, tag) + (len(name.encode()) + 1)
    yield _too_large(size, limits)


def _list_rules(column: Column, headers: Headers, data_type: Any, limits: Limits) -> Iterator[_Rule]:
    """Of a map, or of an array of key and value."""
    names, values = F.map_keys(column), F.map_values(column)
    if headers.form == "array":
        fields = data_type.elementType.names
        names = F.transform(column, lambda entry: entry[fields[headers.key_at]])
        values = F.transform(column, lambda entry: entry[fields[1 - headers.key_at]])
    (tag,) = headers.tags
    too_long = f"headers: a name is longer than the {MAX_SHORTSTR} bytes that are allowed"
    yield F.exists(names, lambda name: name.isNull()), "headers: a name is null"
    yield F.exists(names, lambda name: _longer(name, MAX_SHORTSTR)), too_long
    yield F.exists(names, _no_utf8), "headers: a name is no UTF-8"
    for broken, words in _value_rules(tag):
        yield F.exists(values, broken), f"headers: a value {words}"
    lists = "headers: CC and BCC are lists of routing keys to the broker"
    yield F.exists(names, lambda name: name.isin(*ROUTING_HEADERS)), lists
    if headers.form == "array":
        repeated = F.size(F.array_distinct(names)) < F.size(names)
        yield repeated, "headers: a name stands there twice"
    sizes = F.zip_with(names, values, lambda name, value: _length(name) + _size(value, tag) + 1)
    yield _too_large(F.aggregate(sizes, F.lit(0), lambda total, size: total + size), limits)


def _value_rules(tag: str) -> Iterator[tuple[Callable[[Column], Column], str]]:
    if tag == "S":
        yield _no_utf8, "is no UTF-8"
    if tag == "T":
        end = YEAR_10000 * _MICROSECONDS
        yield lambda value: ~F.unix_micros(value).between(0, end - 1), "is not from 1970 to 9999"


def _length(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0))


def _size(value: Column, tag: str) -> Column:
    """Bytes of a value and its tag."""
    return F.lit(SIZES[tag]) if tag in SIZES else _length(value) + 5


def _too_large(size: Column, limits: Limits) -> _Rule:
    return size > limits.headers, f"headers take more than the {limits.headers} bytes that one frame holds"
