"""docs/spark.md holds every option, column and header type of the code, word for word, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from spark_connector import AMQP_TAGS, COLUMNS, OPTIONS

DOCS = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def option_rows() -> list[str]:
    options = OPTIONS.values() if hasattr(OPTIONS, "values") else OPTIONS
    return [
        f"| `{' `, `'.join((one.name, *one.aliases)).replace(' `', '`')}` | {one.type} | {one.default} | {one.doc} |"
        for one in options
    ]


def column_rows() -> list[str]:
    return [
        f"| `{'`, `'.join((one.name, *one.aliases))}` | {', '.join(one.types)} | {one.doc} |"
        for one in COLUMNS
    ]


def tag_rows() -> list[str]:
    return [f"| {spark} | `{tag}` |" for spark, tag in AMQP_TAGS.items()]


def rows_under(title: str) -> list[str]:
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCS, re.DOTALL | re.MULTILINE)
    assert section is not None, title
    return [
        line for line in section[1].splitlines() if line.startswith("| ") and not line.startswith("| what")
    ]


def test_the_table_of_options_is_that_of_the_code() -> None:
    assert rows_under("Options") == option_rows()


def test_the_table_of_columns_is_that_of_the_code() -> None:
    assert rows_under("Columns") == column_rows()


def test_the_table_of_header_types_is_that_of_the_code() -> None:
    assert rows_under("Headers") == tag_rows()
