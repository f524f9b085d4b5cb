"""What verbs say beside tables: JSON for programs, and for people lines that begin with a word of one colour each.

JSON is an object a line, each of which says its schema and what it tells of.

docs/output.md lists every line of every verb; a test holds both together. A key that goes, or comes to mean something
else, raises the number; a new key does not.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import click

__all__ = ["SCHEMA", "coloured", "json_line", "notice", "print_json"]

SCHEMA: Final = 1

_COLOURS: Final = {
    "Error": "red",
    "Refused": "red",
    "Drift": "red",
    "Warning": "yellow",
    "Not seen": "yellow",
    "Not verified": "yellow",
    "Note": "cyan",
}


def notice(label: str, text: str, *, err: bool = True) -> None:
    """A line about something that is wrong or worth knowing, on standard error if nothing else is said."""
    colour = True if os.environ.get("FORCE_COLOR") else None  # as rich has it
    click.echo(f"{coloured(label + ':', _COLOURS[label])} {text}", err=err, color=colour)


def coloured(text: str, colour: str) -> str:
    """The text in a colour, which goes away in a pipe; click alone would not heed NO_COLOR."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def json_line(what: str, /, **fields: Any) -> str:
    """The line without its end, where many are written at once."""
    return json.dumps({"schema": SCHEMA, "type": what} | fields, ensure_ascii=False)


def print_json(what: str, /, **fields: Any) -> None:
    """One object on a line of standard output."""
    click.echo(json_line(what, **fields))
