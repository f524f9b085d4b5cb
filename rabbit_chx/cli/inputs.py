"""Files that a command reads; ``-`` is standard input."""

from __future__ import annotations

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
