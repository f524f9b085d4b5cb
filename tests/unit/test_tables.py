"""The tables of what the code takes, in docs/: they are what scripts/tables.py makes of all options and keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tables

from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.file.schema import SCHEMA_FILE

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "topology-reference.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", REFERENCE, re.DOTALL | re.MULTILINE)
SCHEMA = json.loads(SCHEMA_FILE.read_text())


def test_the_pages_hold_the_tables_that_the_code_makes(monkeypatch, tmp_path):
    """Where they do not: make reference."""
    for name in ("spark-options.md", "topology-reference.md"):
        (tmp_path / name).write_text((ROOT / "docs" / name).read_text())
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    tables.main()
    for made in tmp_path.iterdir():
        assert made.read_text() == (ROOT / "docs" / made.name).read_text()


@pytest.mark.parametrize("page", ["", "<!-- a: begin -->", "<!-- a: end --><!-- a: begin -->"])
def test_a_page_without_the_marks_of_a_table_is_an_error(page):
    with pytest.raises(LookupError, match="<!-- a: begin -->"):
        tables.filled(page, {"a": "new"})


def test_columns_of_numbers_are_aligned_to_the_right():
    rows = [("a|b", "4.3.6", "10,400", "17.5", ""), ("", "4.0.5", "8", "6", "7")]
    assert tables.table(("what", "release", "rows", "s", "note"), rows).splitlines() == [
        "| what | release | rows | s | note |",
        "|---|---|---:|---:|---|",
        "| a&#124;b | 4.3.6 | 10,400 | 17.5 | |",
        "| | 4.0.5 | 8 | 6 | 7 |",
    ]
    assert tables.table(("what", "rows"), []).splitlines() == ["| what | rows |", "|---|---|"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_of_the_reference_is_a_topology(example):
    loads(example, format="yaml")


def test_the_examples_of_the_reference_show_every_key():
    keys = {key for each in [SCHEMA, *SCHEMA["$defs"].values()] for key in each["properties"]}
    shown = set(re.findall(r"([$\w-]+):", "".join(EXAMPLES)))
    assert keys - shown == set()
