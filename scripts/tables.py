"""Generate the tables in docs/ of accepted options and keys from their definitions in the code.

    .venv/bin/python scripts/tables.py

A test checks that the pages are up to date.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pages import filled, table

from rabbit_chx.topology.file.schema import SCHEMA_FILE
from spark_connector.columns import AMQP_TAGS, COLUMNS, READ_COLUMNS
from spark_connector.queues.options import QUEUE_OPTIONS
from spark_connector.reading.options import READ_OPTIONS
from spark_connector.reading.schema import spark_schema
from spark_connector.writing.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Write the tables of every page."""
    for name, tables in (("spark-options.md", spark_tables()), ("topology-reference.md", topology_tables())):
        page = DOCS / name
        page.write_text(filled(page.read_text(), tables))


def code(*words: str) -> str:
    """Return words formatted as code and separated by commas."""
    return ", ".join(f"`{word}`" for word in words)


# --- Spark --------------------------------------------------------------------------------------------------


def spark_tables() -> dict[str, str]:
    """Return the tables of docs/spark-options.md by their marks."""
    columns = [(code(one.name, *one.aliases), ", ".join(one.types), one.doc) for one in COLUMNS]
    tags = [(spark, code(tag)) for spark, tag in AMQP_TAGS.items()]
    types = {field.name: field.dataType.simpleString() for field in spark_schema().fields}
    read_columns = [(code(name), types[name], doc) for name, doc in READ_COLUMNS.items()]
    return {
        "columns": table(("column", "Spark types", "means"), columns),
        "header types": table(("Spark type", "AMQP tag"), tags),
        "options": _options(OPTIONS, "###"),
        "read columns": table(("column", "Spark type", "means"), read_columns),
        "read options": _options([one for one in READ_OPTIONS if one not in OPTIONS], "###"),
        "queue options": _options([one for one in QUEUE_OPTIONS if one not in OPTIONS], "###"),
    }


def _options(options: Iterable[Any], heading: str) -> str:
    """Return a table for each group of options."""
    return "\n\n".join(
        f"{heading} {group}\n\n{table(('option', 'expected', 'default', 'meaning'), map(_option, members))}"
        for group, members in groupby(options, lambda option: option.group)
    )


def _option(option: Any) -> tuple[str, ...]:
    return code(option.name, *option.aliases), option.expected, option.default, option.doc


# --- the topology file --------------------------------------------------------------------------------------


def topology_tables() -> dict[str, str]:
    """Return the tables of docs/topology-reference.md by their marks: one for each kind of thing in the schema."""
    schema = json.loads(SCHEMA_FILE.read_text())
    kinds = {"file": schema, **{_kind(name): each for name, each in schema["$defs"].items()}}
    return {
        name: f"{each['description']}\n\n{table(('key', 'value', 'default', 'means'), _keys(each))}"
        for name, each in kinds.items()
    }


def _kind(name: str) -> str:
    return name.removeprefix("File").lower()


def _keys(schema: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    for name, key in schema["properties"].items():
        default = json.dumps(key["default"]) if key.get("default", "") != "" else ""
        required = "**required**" if name in schema.get("required", ()) else default and code(default)
        yield code(name), in_words(key), required, key["description"]


def in_words(schema: dict[str, Any]) -> str:
    """Describe the values that a part of the schema allows."""
    match schema:
        case {"$ref": reference}:
            kind = _kind(reference.rpartition("/")[2])
            return f"[{kind}](#{kind})"
        case {"oneOf": branches} | {"anyOf": branches}:
            return "; or ".join(map(in_words, branches))
        case {"const": value}:
            return code(value)
        case {"enum": values}:
            return code(*values)
        case {"type": "array", "items": items}:
            return f"list, each: {in_words(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"mapping, each name to: {in_words(values)}"
        case {"type": "object"}:
            return "mapping"
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"integer from {least} to {most}" if least < most else code(str(least))
        case {"type": "string", "examples": examples}:
            return f"text, such as {code(*examples)}"
        case {"type": "string", "maxLength": most}:
            return f"text, at most {most} characters"
    return {"string": "text", "boolean": "true or false", "integer": "integer", "null": "nothing"}[
        schema["type"]
    ]


if __name__ == "__main__":
    main()
