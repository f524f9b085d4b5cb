"""``split_valid``: separate the rows that the writer accepts from those that it rejects, before the write.

The rules are those of the writer (`rules`), here as native expressions: they run in the JVM, so neither half of the
split sends a row to Python, and PySpark 4.0 needs no pandas for it. Nothing here starts a job.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - as everywhere
)

from rabbit_chx import InvalidValue
from rabbit_chx.messages.message_fields import ROUTING_HEADERS
from spark_connector.option_table import MAX_SHORT_TEXT, as_text
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.rules import SIZES, Headers, Limits, Rule, row_rules

_REASON: Final = "reason"


def split_valid(df: DataFrame, **options: object) -> tuple[DataFrame, DataFrame]:
    """The rows that can be written, and the rows that cannot, with a column ``reason``.

        good, bad = split_valid(df, exchange="orders")
        good.write.format("rabbitmq").options(...).save()
        bad.write.mode("append").parquet("refused")

    ``options`` are those of the write; url and host may be left out. The broker is not asked, so a body may have 16
    MiB, the default limit of RabbitMQ 4, or with ``stream`` or ``superStream`` 1 MiB, unless ``maxMessageBytes`` says
    otherwise. In a stream, the key and the headers of a row need space in the frame as well, which is not checked. ``df``
    may be streaming. Both results are computed from ``df``: cache it if it is a batch that is expensive to compute.
    """
    given = {name: as_text(value) for name, value in options.items()}
    has_broker = {name.lower() for name in given} & {"url", "host"}
    checked = WriteOptions.of(given if has_broker else {"host": "localhost", **given})
    if _REASON in map(str.lower, df.columns):
        raise InvalidValue(
            "column name", _REASON, "another name", "Rename yours: split_valid adds a column reason"
        )
    layout = checked.layout_of(df.schema)
    limits = Limits.default(checked.max_body_bytes)
    rules = row_rules(layout, limits, null_is_empty=checked.null_value == "empty")
    named = {name: df.columns[position] for name, position in layout.positions.items()}
    reasons = []
    for rule in rules:
        column = F.col(f"`{named[rule.column]}`")
        if layout.headers is not None and rule.column == "headers":
            broken = _in_headers(rule, column, layout.headers, df.schema[named["headers"]].dataType)
        else:
            broken = _broken(rule, column)
        reasons.append(F.when(broken, F.lit(rule.reason)))
    reason = F.coalesce(*reasons)
    return df.where(reason.isNull()), df.withColumn(_REASON, reason).where(F.col(_REASON).isNotNull())


def _broken(rule: Rule, column: Column) -> Column:
    """Whether a value matches a rule."""
    least, most = rule.bounds
    match rule.test:
        case "null":
            return column.isNull()
        case "too long":
            return F.octet_length(column) > most
        case "not utf-8":
            return ~F.is_valid_utf8(column)  # a cast from binary checks nothing
        case "out of range":
            return ~column.between(least, most)
        case "time out of range":
            return ~_seconds(column).between(least, most)
        case "not finite":
            return F.isnan(column) | (F.abs(column) == float("inf"))
        case "not milliseconds":
            digits = F.regexp_extract(column, r"\A0*([0-9]{1,10})\z", 1)
            short = F.length(column) <= MAX_SHORT_TEXT
            return ~(short & column.rlike(r"\A0*[0-9]{1,10}\z") & (digits.cast("bigint") <= most))
        case "reserved name":
            return column.isin(*ROUTING_HEADERS)
        case _:
            raise AssertionError(rule.test)


def _seconds(column: Column) -> Column:
    """Seconds since 1970; only the day of a time without a zone, which a cast would shift to the session's zone."""
    days = F.unix_date(column.cast("date"))
    zoned = F.typeof(column) == "timestamp"
    return F.when(zoned, F.unix_seconds(column.cast("timestamp"))).otherwise(days.cast("bigint") * 86_400)


def _in_headers(rule: Rule, column: Column, headers: Headers, data_type: Any) -> Column:
    """Whether the headers of a row match a rule."""
    if headers.form == "struct":
        if rule.test != "headers too large":
            return _broken(rule, column.getField(rule.part))
        named = zip(headers.names, headers.tags, strict=True)
        sizes = [_size(column.getField(name), tag) + (len(name.encode()) + 1) for name, tag in named]
        return sum(sizes, F.lit(0)) > rule.bounds[1]
    names, values = F.map_keys(column), F.map_values(column)
    if headers.form == "array":
        fields = data_type.elementType.names
        names = F.transform(column, lambda entry: entry[fields[headers.key_at]])
        values = F.transform(column, lambda entry: entry[fields[1 - headers.key_at]])
    if rule.test == "headers too large":
        tag = headers.tags[0]
        entries = F.zip_with(names, values, lambda name, value: _length(name) + _size(value, tag) + 1)
        return F.aggregate(entries, F.lit(0), lambda total, size: total + size) > rule.bounds[1]
    if rule.test == "repeated name":
        return F.size(F.array_distinct(names)) < F.size(names)
    return F.exists(names if rule.part == "name" else values, lambda value: _broken(rule, value))


def _length(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0))


def _size(value: Column, tag: str) -> Column:
    """Bytes of a value and its tag."""
    return F.lit(SIZES[tag]) if tag in SIZES else _length(value) + 5
