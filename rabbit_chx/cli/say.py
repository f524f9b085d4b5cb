"""The one place that writes JSON: an object a line, each of which says its schema and what it tells of.

docs/output.md lists every line of every verb; a test holds both together. A key that goes, or comes to mean something
else, raises the number; a new key does not.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

__all__ = ["SCHEMA", "json_line", "say_json"]

SCHEMA: Final = 1


def json_line(what: str, /, **fields: Any) -> str:
    """The line without its end, where many are written at once."""
    return json.dumps({"schema": SCHEMA, "type": what} | fields, ensure_ascii=False)


def say_json(what: str, /, **fields: Any) -> None:
    """One object on a line of standard output."""
    click.echo(json_line(what, **fields))
