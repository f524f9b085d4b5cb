"""split_valid rejects the same rows as the writer, for the same reasons."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import InvalidValue
from rabbit_chx.publishing.properties import max_property_bytes
from spark_connector.routing.split_valid import split_valid
from spark_connector.writing.prepare import invalid_rows
from spark_connector.writing.rules import Limits, layout_of, row_rules
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

FINE = {"value": b"x", "routing_key": "k"}
NO_UTF8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
UTF8 = [b"\xf0\x9f\x98\x80", b"\xef\xbf\xbf"]
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
MOST_HEADERS = max_property_bytes() - 2_500
NAMES = (
    *("message_id", "correlation_id", "content_type", "content_encoding"),
    *("reply_to", "type", "app_id", "user_id"),
)


def writer_refuses(df, *, body=1_000, empty_for_null=False, given=frozenset({"exchange"})) -> dict[int, str]:
    """The rows by their column ``n`` that the writer's own check finds, and why."""
    layout = layout_of(df.schema, ignore_unknown=True, given=given)
    rules = [*row_rules(layout, Limits(body, max_property_bytes()), null_is_empty=empty_for_null)]
    found: dict[int, str] = {}
    for batch in df.toArrow().to_batches():
        for row, reason in invalid_rows(batch, layout, rules):
            found[batch.column("n")[row].as_py()] = reason.partition(" (routing key")[0]
    return found


def assert_agrees(df, **options) -> dict[int, str]:
    """Both halves together are the whole, and the bad one is what the writer refuses."""
    df = df.withColumn("n", F.monotonically_increasing_id()).localCheckpoint()
    good, bad = split_valid(df, exchange="x", maxMessageBytes=1_000, ignoreUnknownColumns=True, **options)
    expected = writer_refuses(df, empty_for_null=options.get("nullValue") == "empty")
    assert {row["n"]: row["reason"] for row in bad.select("n", "reason").collect()} == expected
    assert good.columns == df.columns
    assert {row["n"] for row in good.select("n").collect()} == {
        row["n"] for row in df.select("n").collect()
    } - set(expected)
    return expected


def each(name: str, values) -> list[dict]:
    return [{**FINE, name: value} for value in values]


def frame(spark, schema: str, rows: list[dict]):
    fields = [field.split()[0] for field in schema.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in fields) for row in rows], schema)


def test_headers_of_every_number_and_time(spark):
    df = spark.sql(
        """select cast('x' as binary) value, 'k' routing_key, named_struct('d', cast(d as double), 'f', cast(d as float),
        'day', date_add(date '1970-01-01', day), 'ntz', timestampadd(microsecond, tick, timestamp_ntz '1970-01-01')) headers
        from values ('1', 0, 0L), ('nan', 0, 0L), ('-inf', 0, 0L), ('1e300', 0, 0L), ('1', -1, 0L), ('1', 2932896, 0L),
        ('1', 2932897, 0L), ('1', 0, -1L), ('1', 0, 253402300799999999L), ('1', 0, 253402300800000000L), (null, null, null)
        as t(d, day, tick)"""
    )
    assert len(assert_agrees(df)) == 7


def test_a_body_may_have_16_mib_and_in_a_stream_1_mib_unless_an_option_says_otherwise(spark):
    df = spark.range(2).selectExpr("repeat('x', cast(16 * 1024 * 1024 + id as int)) as value", "'k' as key")
    assert [part.count() for part in split_valid(df, exchange="x")] == [1, 1]
    assert [part.count() for part in split_valid(df, exchange="x", maxMessageBytes=128 << 20)] == [2, 0]
    df = spark.range(2).selectExpr("repeat('x', cast(1024 * 1024 + id as int)) as value", "'k' as key")
    for target in ({"stream": "x"}, {"superStream": "x"}):
        assert [part.count() for part in split_valid(df, **target)] == [1, 1]
        assert [part.count() for part in split_valid(df, **target, maxMessageBytes=2 << 20)] == [2, 0]


@pytest.mark.long
def test_text_that_is_not_utf8(spark):
    df = frame(spark, "value binary, raw binary", [{"value": b"x", "raw": raw} for raw in NO_UTF8 + UTF8])
    text, key = F.col("raw").cast("string"), F.lit("k").alias("routing_key")
    assert len(assert_agrees(df.select("value", text.alias("routing_key")))) == len(NO_UTF8)
    for headers in (F.create_map(F.lit("h"), text), F.struct(text.alias("h")), F.create_map(text, F.lit(1))):
        assert len(assert_agrees(df.select("value", key, headers.alias("headers")))) == len(NO_UTF8)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BODIES = [{"routing_key": "k", "value": one} for one in (None, b"", b"x" * 1_000, b"x" * 1_001)]
KEYS = ["", *(letter * count for letter in "xé" for count in (127, 128, 255, 256)), None]
EXPIRATIONS = [
    *("0", "007", "4294967295", "4294967296", "9" * 30, "", " 1", "1\n", "+1", "-1", "1.5", "1e3", "x"),
    *("\N{ARABIC-INDIC DIGIT ONE}", "0" * 254 + "7", "0" * 255 + "7"),
]
MAPS = [
    *(None, {}, {"a": "b"}, {"a": None}, {"": "b"}, {"x" * 255: "b"}, {"x" * 256: "b"}, {"é" * 128: "b"}),
    *({name: "b"} for name in ("CC", "BCC", "cc")),
    *({"a": "x" * (MOST_HEADERS - less)} for less in (7, 6)),
]
LISTS = [None if one is None else list(one.items()) for one in MAPS]
LISTS += [[("a", "b"), ("a", "c")], [("a", "b"), ("A", "c")], [(None, "b")], [None], [("a", "b"), None]]
CASES = {
    "bodies and keys": ("", [{}, *BODIES, *each("routing_key", KEYS)], 1 + 2 + 5),
    "texts": (
        ", ".join(f"{name} string" for name in NAMES),
        [row for name in NAMES for row in each(name, (None, "", "x" * 255, "x" * 256, "é" * 128))],
        2 * len(NAMES),
    ),
    "priority": ("priority int", each("priority", (None, -1, 0, 255, 256)), 2),
    "delivery mode": ("delivery_mode bigint", each("delivery_mode", (None, 0, 1, 2, 3)), 2),
    "timestamp": ("timestamp timestamp", each("timestamp", (None, BEFORE_1970, EPOCH)), 1),
    "expiration as text": (
        "expiration string",
        each("expiration", (None, *EXPIRATIONS)),
        len(EXPIRATIONS) - 4,
    ),
    "expiration as a number": ("expiration bigint", each("expiration", (None, -1, 0, 2**32 - 1, 2**32)), 2),
    "headers as a map": ("headers map<string,string>", each("headers", MAPS), 5),
    "headers as an array": ("headers array<struct<key:string,value:string>>", each("headers", LISTS), 5 + 4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of(spark, case):
    column, rows, refused = CASES[case]
    df = frame(spark, ", ".join(filter(None, ("value binary, routing_key string", column))), rows)
    assert len(assert_agrees(df)) == refused


def test_a_null_body_may_be_an_empty_message(spark):
    df = frame(spark, "value binary, routing_key string", BODIES)
    assert len(assert_agrees(df, nullValue="empty")) == 1


@pytest.mark.long
def test_headers_as_a_struct_and_times_in_them(spark):
    moments = [None, BEFORE_1970, EPOCH, LAST_MOMENT]
    rows = [{"value": b"x", "routing_key": "k", "at": moment} for moment in moments]
    df = frame(spark, "value binary, routing_key string, at timestamp", rows)
    later = F.col("at") + F.expr("INTERVAL 1 MICROSECOND")
    big = F.repeat(F.lit("x"), F.when(F.col("at").isNull(), MOST_HEADERS).otherwise(1))
    struct = F.struct(
        "at", later.alias("then"), F.lit(1).alias("`n`"), F.lit(True).alias("flag"), big.alias("big")
    )
    base = ("value", "routing_key")
    assert len(assert_agrees(df.select(*base, struct.alias("headers")))) == 3
    assert len(assert_agrees(df.select(*base, F.create_map(F.lit("at"), "at").alias("headers")))) == 1


@pytest.mark.long
def test_the_size_of_headers_to_the_byte(spark):
    schema = "value binary, routing_key string, size int"
    df = frame(spark, schema, [{**FINE, "size": size} for size in range(MOST_HEADERS - 60, MOST_HEADERS)])
    text = F.repeat(F.lit("x"), F.col("size"))
    for mixed in (
        F.struct(
            text.alias("text"), F.lit(1).cast("bigint").alias("long"), F.lit(None).cast("int").alias("none")
        ),
        F.struct(
            text.cast("binary").alias("blob"), F.lit(False).alias("flag"), F.current_timestamp().alias("at")
        ),
        F.create_map(F.lit("a"), text, F.lit("größe"), F.lit("ß")),
    ):
        found = assert_agrees(df.select("value", "routing_key", mixed.alias("headers")))
        assert 0 < len(found) < 60


def test_a_stream_is_split_too(spark, tmp_path):
    frame(spark, "value binary, routing_key string", [FINE, {"value": b"y"}]).write.parquet(
        str(tmp_path / "in")
    )
    stream = spark.readStream.schema("value binary, routing_key string").parquet(str(tmp_path / "in"))
    _, bad = split_valid(stream, exchange="x")
    query = bad.writeStream.format("memory").queryName("bad").trigger(availableNow=True).start()
    assert query.awaitTermination(2 * PATIENCE)
    assert [row["reason"] for row in spark.table("bad").collect()] == ["routing_key is null"]


def test_aliases_and_capitals_of_columns(spark):
    df = frame(spark, "Body string, KEY string", [{"Body": "x"}, {"KEY": "k"}, {"Body": "x", "KEY": "k"}])
    good, bad = split_valid(df, exchange="x")
    assert (good.count(), bad.count()) == (1, 2)


def test_a_schema_that_cannot_be_written_is_an_error_at_once(spark):
    df = spark.range(1)
    with pytest.raises(InvalidValue, match="to_json"):
        split_valid(df, exchange="x", ignoreUnknownColumns=True)
    with pytest.raises(InvalidValue, match="maxMesageBytes"):
        split_valid(df, maxMesageBytes=1)


def test_a_column_named_reason_is_in_the_way(spark):
    df = spark.createDataFrame([(b"x", "k", "r")], "value binary, routing_key string, Reason string")
    with pytest.raises(InvalidValue, match="Rename yours"):
        split_valid(df, exchange="x", ignoreUnknownColumns=True)
