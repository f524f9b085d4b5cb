"""A schema is accepted with every column at its place, or refused before a task starts."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from spark_connector.columns import COLUMNS
from spark_connector.writing.rules import Headers, layout_of
from tests.programs import loaded_after
from tests.unit.complaints import complaint

TEXT, BYTES = t.StringType(), t.BinaryType()
BOTH = frozenset({"exchange", "routing_key"})


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def test_every_documented_column_is_taken_with_each_of_its_types() -> None:
    kinds = {
        "string": TEXT,
        "binary": BYTES,
        "tinyint": t.ByteType(),
        "smallint": t.ShortType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "map": t.MapType(TEXT, TEXT),
        "array": t.ArrayType(schema(key=TEXT, value=BYTES)),
        "struct": schema(a=TEXT),
    }
    for column in COLUMNS:
        for kind in column.types:
            layout = layout_of(
                schema(**{"value": BYTES, column.name: kinds[kind]}), given=BOTH - {column.name}
            )
            assert layout.types[column.name] == kind
            assert layout.positions[column.name] == (0 if column.name == "value" else 1)


def test_aliases_and_names_in_other_cases_are_the_same_columns() -> None:
    layout = layout_of(schema(KEY=TEXT, Body=TEXT), given=frozenset({"exchange"}))
    assert dict(layout.positions) == {"routing_key": 0, "value": 1}


def test_texts_of_limited_length_are_texts() -> None:
    layout = layout_of(schema(value=t.VarcharType(5), key=t.CharType(3)), given=frozenset({"exchange"}))
    assert layout.types == {"value": "string", "routing_key": "string"}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": TEXT}, 'to_json(struct("*")).alias("value")'),
        ({"value": TEXT, "keyy": TEXT}, "Did you mean key?"),
        ({"value": TEXT, "zzz": TEXT}, "ignoreUnknownColumns=true"),
        ({"value": TEXT, "body": TEXT}, "['value', 'body']"),
        ({"value": TEXT, "key": TEXT}, "both a column and the option routingKey"),
        ({"value": TEXT, "exchange": TEXT}, "both a column and the option exchange"),
        ({"value": TEXT, "Value": TEXT}, "['value', 'Value']"),
        ({"value": t.DecimalType(10, 2)}, "decimal(10,2)"),
        ({"value": schema(a=TEXT)}, "to_json"),
        ({"value": TEXT, "priority": TEXT}, 'cast("tinyint")'),
        ({"value": TEXT, "timestamp": t.TimestampNTZType()}, 'cast("timestamp")'),
        ({"value": TEXT, "message_id": t.LongType()}, 'cast("string")'),
        ({"value": TEXT, "headers": TEXT}, "struct("),
        (
            {"value": TEXT, "headers": t.MapType(TEXT, t.DecimalType(9, 2))},
            "AMQP's own decimal has only 32 bits",
        ),
        ({"value": TEXT, "headers": t.MapType(t.LongType(), TEXT)}, "map<bigint,string>"),
        ({"value": TEXT, "headers": t.ArrayType(TEXT)}, "array<string>"),
        ({"value": TEXT, "headers": t.ArrayType(schema(name=TEXT, value=TEXT))}, "struct<name"),
        ({"value": TEXT, "headers": schema(a=schema(b=TEXT))}, "type of header a"),
        ({"value": TEXT, "headers": schema(CC=TEXT)}, "other than CC and BCC"),
        ({"value": TEXT, "headers": schema(**{"h" * 256: TEXT})}, "255 bytes"),
        ({"value": TEXT, "headers": t.StructType([t.StructField("a", TEXT)] * 2)}, "unique names"),
    ],
)
def test_an_invalid_schema_is_rejected(columns: dict[str, t.DataType], words: str) -> None:
    assert words in str(complaint(lambda: layout_of(schema(**columns), given=BOTH)))


@pytest.mark.parametrize("absent", ["routingKey", "exchange"])
def test_key_and_exchange_are_required(absent: str) -> None:
    given = BOTH - {"exchange" if absent == "exchange" else "routing_key"}
    error = complaint(lambda: layout_of(schema(value=TEXT), given=given))
    assert f'option("{absent}", "")' in error.hint


def test_unknown_columns_can_be_left_out() -> None:
    layout = layout_of(schema(id=t.DoubleType(), value=TEXT), ignore_unknown=True, given=BOTH)
    assert dict(layout.positions) == {"value": 1}


def test_headers_keep_their_names_and_tags() -> None:
    def headers(kind: t.DataType) -> Headers | None:
        return layout_of(schema(value=TEXT, headers=kind), given=BOTH).headers

    for can_be_null in (True, False):
        assert headers(t.MapType(TEXT, t.LongType(), can_be_null)) == Headers("map", ("l",))
    assert headers(schema(a=TEXT, b=t.IntegerType())) == Headers("struct", ("S", "I"), ("a", "b"))
    assert headers(t.ArrayType(schema(value=BYTES, key=TEXT))) == Headers("array", ("x",), key_at=1)


def test_columns_and_options_are_known_without_spark() -> None:
    loaded = loaded_after("import spark_connector.columns, spark_connector.writing.options, pyspark_rabbitmq")
    assert not {"pyspark", "pyarrow"} & loaded
