"""Files that a command reads; ``-`` is standard input."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import IO, Any

import click

from rabbit_chx.base.text import is_utf8, printable
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.fields import Field
from rabbit_chx.mirror.hashing import MAX_SHORTSTR


def name_of(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == "-" else path


def open_file(path: str) -> IO[bytes]:
    """Open a file, or standard input."""
    if path == "-":
        if sys.stdin is None:  # as after <&-
            raise InvalidValue("standard input", Unquoted("a closed stream"), "a file or a pipe")
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {printable(path)}: {error.strerror}") from None


def size_of(path: str) -> int | None:
    """The size of a file in bytes; None for standard input."""
    file = Path(path)
    return file.stat().st_size if path != "-" and file.is_file() else None


def seconds_of(key: str) -> int | str:
    """The number of a key that is a timestamp; other texts stay as they are, and so do those of too many digits."""
    return int(key) if key.isascii() and key.isdigit() and len(key) <= MAX_SHORTSTR else key


def header_of(text: str) -> str | Field:
    """A header that is sent as this text; bytes that are not UTF-8 keep their value."""
    return text if is_utf8(text) else Field("S", text.encode("utf-8", "surrogateescape"))


def read_pairs(path: str, hash_property: str | None, *, option: str) -> list[tuple[int | str, str]]:
    """The pairs of a CSV file with the columns ``key,queue``; the header is optional. Hashed timestamps are numbers."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(option, path, "a readable CSV file in UTF-8", str(error)) from None
    if rows and rows[0] == ["key", "queue"]:
        del rows[0]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise InvalidValue(f"pair {number} of {path}", ",".join(row), "two columns: key,queue")
    return [(seconds_of(key) if hash_property == "timestamp" else key, queue) for key, queue in rows]


def value_of(exchange: ConsistentHashExchange, key: str) -> Any:
    """What the exchange hashes of a key from the command line; bytes that are not UTF-8 keep their value."""
    part = exchange._hash_on.part
    if part == "headers":
        return {exchange.hash_header: header_of(key)}
    if part == "timestamp":
        return seconds_of(key)
    return key.encode("utf-8", "surrogateescape")
