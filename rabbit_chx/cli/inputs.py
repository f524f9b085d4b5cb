"""Files that a command reads; ``-`` is standard input."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import IO

from rabbit_chx.errors import InvalidValue


def name_of(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == "-" else path


def open_file(path: str) -> IO[bytes]:
    """Open a file, or standard input."""
    if path == "-":
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InvalidValue("file", path, "a readable file", str(error.strerror)) from None


def size_of(path: str) -> int | None:
    """The size of a file in bytes; None for standard input."""
    file = Path(path)
    return file.stat().st_size if path != "-" and file.is_file() else None


def read_pairs(path: str, *, option: str) -> list[tuple[str, str]]:
    """The pairs of a CSV file with the columns ``key,queue``; the header is optional."""
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(option, path, "a readable CSV file in UTF-8", str(error)) from None
    if rows and rows[0] == ["key", "queue"]:
        del rows[0]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise InvalidValue(f"pair {number} of {path}", ",".join(row), "two columns: key,queue")
    return [(key, queue) for key, queue in rows]
