"""Read keys from a file or standard input of any size, one per line.

A block of a few megabytes is in memory at a time, and becomes a column without a Python object for each key.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, TypeVar

import numpy as np

from rabbit_chx.base.text import too_long
from rabbit_chx.cli.ask.inputs import header_of, name_of, open_file, seconds_of, size_of
from rabbit_chx.cli.show.output import progress
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.hashing import MAX_SHORTSTR
from rabbit_chx.mirror.kernel.binaries import Binaries

_BLOCK: Final = 1 << 22
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
_MOST_LINE: Final = 1 << 20
_T = TypeVar("_T")


def key_columns(path: str, *, raw: bool, title: str) -> Iterator[Binaries]:
    """The keys of a file, with progress on a terminal."""
    name = name_of(path)
    with open_file(path) as file, progress(f"{title} {name}", size_of(path), unit="bytes") as advance:
        yield from read_keys(file, name=name, raw=raw, advance=advance)


def predicted(
    path: str, part: str, predict: Callable[[Any], _T], *, raw: bool, title: str
) -> Iterator[tuple[Binaries, _T]]:
    """The keys of a file, with what ``predict`` returns for this part of messages; its errors name the line."""
    first_line = 1
    for column in key_columns(path, raw=raw, title=title):
        try:
            found = predict(_values_of(column, part))
        except InvalidValue as error:
            what, in_row, row = error.what.rpartition(" in row ")
            if not in_row:
                raise
            what += f" in line {first_line + int(row)} of {name_of(path)}"
            raise InvalidValue(what, error.got, error.expected, error.hint) from None
        first_line += len(column)
        yield column, found


def read_keys(
    file: IO[bytes], *, name: str, raw: bool, advance: Callable[[int], object] = lambda _: None
) -> Iterator[Binaries]:
    """The lines of a file as columns of keys; ``advance`` is called with the number of bytes read.

    Lines end in LF or CRLF; a byte order mark before the first is no part of it. With ``raw``, lines are bytes that end in LF.
    """
    rest = b""
    mark = b"" if raw else BOM_UTF8
    first_line = 1
    while block := file.read(_BLOCK):
        advance(len(block))
        block = rest + block.removeprefix(mark)
        mark = b""
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if len(rest) > _MOST_LINE:
            _refuse(rest, first_line + block.count(b"\n"), name)
        if end:
            column = _column(block[:end], name=name, raw=raw, first_line=first_line)
            first_line += len(column)
            yield column
    if rest:
        yield _column(rest + b"\n", name=name, raw=raw, first_line=first_line)
    elif first_line == 1:
        raise InvalidValue(f"keys of {name}", "an empty file", "one key per line")


def _column(block: bytes, *, name: str, raw: bool, first_line: int) -> Binaries:
    """The lines of a block that ends in a newline."""
    if not raw:
        _check_utf8(block, name, first_line)
    data = np.frombuffer(block, np.uint8)
    is_end = data == _NEWLINE
    if not raw:
        is_end[:-1] |= (data[:-1] == _RETURN) & is_end[1:]
    ends = np.flatnonzero(data == _NEWLINE)
    # Without line ends, the block is the concatenated keys.
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = (ends + 1) - np.cumsum(is_end)[ends]
    lengths = np.diff(offsets)
    if lengths.max() > MAX_SHORTSTR:
        row = int(np.argmax(lengths > MAX_SHORTSTR))
        _refuse(bytes(block.split(b"\n")[row]), first_line + row, name)
    return Binaries(data[~is_end], offsets)


def _check_utf8(block: bytes, name: str, first_line: int) -> None:
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line = block.count(b"\n", 0, error.start)
        raise InvalidValue(
            f"line {first_line + line} of {name}",
            block.split(b"\n")[line],
            "UTF-8 text",
            "--raw accepts any bytes",
        ) from None


def _refuse(line: bytes, number: int, name: str) -> None:
    raise InvalidValue(
        f"line {number} of {name}",
        Unquoted(too_long(line, len(line))),
        f"a key of at most {MAX_SHORTSTR} bytes, the limit of AMQP",
    )


def _values_of(column: Binaries, part: str) -> Binaries | list[Any]:
    """Keys as an exchange that hashes this part of a message hashes them."""
    if part not in {"headers", "timestamp"}:
        return column
    # Headers and timestamps are hashed by type, so they are decoded to text and numbers.
    texts = [column[row].decode("utf-8", "surrogateescape") for row in range(len(column))]
    return list(map(seconds_of if part == "timestamp" else header_of, texts))
