"""Read rows from CSV, JSON lines, Parquet and Arrow files, as columns to publish.

A reader yields batches of rows, each a dict of columns. `Picker` selects and checks columns; errors name a row by its
number, counted from 1.
"""

from __future__ import annotations

import csv
import io
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from rabbit_chx.base.text import syntax_error
from rabbit_chx.errors import InvalidValue, MissingDependency, Unquoted
from rabbit_chx.messages.message_fields import moment
from rabbit_chx.topology.file.problems import did_you_mean

_ROWS: Final = 5_000
_MAX_FIELD: Final = 128 << 20
"""Bytes of a CSV field: RabbitMQ takes no larger message. Python's default is 128 KiB."""
_LINE: Final = "(the line)"
"""The column that holds each line of a JSON lines file unchanged."""

Columns: TypeAlias = dict[str, list[Any]]


@dataclass(frozen=True)
class RowBatch:
    """Columns as `Publisher.publish_many` accepts them."""

    bodies: list[bytes]
    keys: list[str] | str
    headers: list[dict[str, Any]] | None
    properties: dict[str, list[Any]]
    first_row: int

    def __getitem__(self, rows: slice) -> RowBatch:
        """Return some consecutive rows."""
        start, _, _ = rows.indices(len(self.bodies))
        return RowBatch(
            self.bodies[rows],
            self.keys if isinstance(self.keys, str) else self.keys[rows],
            None if self.headers is None else self.headers[rows],
            {name: values[rows] for name, values in self.properties.items()},
            self.first_row + start,
        )


def format_of(path: str, chosen: str | None) -> str:
    """Return the format chosen, or the one that the file name implies."""
    if chosen is not None:
        return chosen
    suffix = Path(path).suffix.lower()
    known = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
    if suffix not in known:
        expected = f"a name that ends in {', '.join(known)}"
        raise InvalidValue("file name", path, expected, "Pass --format csv, jsonl, parquet or arrow")
    return known[suffix]


def read_batches(file: IO[bytes], kind: str, name: str) -> Iterator[Columns]:
    """Yield the rows of a file, a few thousand at a time."""
    return _READERS[kind](file, name)


def _csv(file: IO[bytes], name: str) -> Iterator[Columns]:
    csv.field_size_limit(_MAX_FIELD)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if not header:
            raise InvalidValue(f"header of {name}", "an empty line", "column names")
        if len(set(header)) < len(header):
            raise InvalidValue(f"header of {name}", header, "unique column names")
        first = 1
        while rows := list(islice(reader, _ROWS)):
            for row, values in enumerate(rows, first):
                if len(values) != len(header):
                    expected = f"{len(header)} values, as in the header"
                    raise InvalidValue(f"row {row} of {name}", f"{len(values)} values", expected)
            yield dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
            first += len(rows)
    except csv.Error as error:
        raise InvalidValue(f"line {reader.line_num} of {name}", str(error), "valid CSV") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{name}, near line {reader.line_num}", str(error), "UTF-8") from None
    finally:
        with suppress(ValueError):  # the file may be closed already
            text.detach()  # otherwise the wrapper would close it


def _jsonl(file: IO[bytes], name: str) -> Iterator[Columns]:
    first = 1
    while lines := [line.rstrip(b"\r\n") for line in islice(file, _ROWS)]:
        if first == 1:
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        rows = [_json_object(line, row, name) for row, line in enumerate(lines, first)]
        columns = dict.fromkeys(column for row in rows for column in row)
        yield {column: [row.get(column) for row in rows] for column in columns} | {_LINE: lines}
        first += len(lines)


def _json_object(line: bytes, row: int, name: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        got = Unquoted(f"{syntax_error(error)} in column {error.colno}")
        raise InvalidValue(f"line {row} of {name}", got, "one JSON object per line") from None
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"line {row} of {name}", Unquoted(error), "one JSON object per line") from None
    if not isinstance(value, dict):
        raise InvalidValue(f"line {row} of {name}", type(value).__name__, "one JSON object per line")
    return value


def _parquet(file: IO[bytes], name: str) -> Iterator[Columns]:
    with _read_by_arrow(name, "a Parquet file") as pa:
        from pyarrow import parquet

        source = file if file.seekable() else pa.py_buffer(file.read())
        for batch in parquet.ParquetFile(source).iter_batches(_ROWS):
            yield batch.to_pydict()


def _arrow(file: IO[bytes], name: str) -> Iterator[Columns]:
    with _read_by_arrow(name, "an Arrow file or stream") as pa:
        # A file starts with magic bytes, a stream does not.
        start = file.peek(6)[:6] if hasattr(file, "peek") else b""
        if start == b"ARROW1":
            reader = pa.ipc.open_file(file if file.seekable() else pa.py_buffer(file.read()))
            batches: Iterable[Any] = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            batches = pa.ipc.open_stream(file)
        for batch in batches:
            for start_row in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start_row, _ROWS).to_pydict()


@contextmanager
def _read_by_arrow(name: str, expected: str) -> Iterator[Any]:
    """Import pyarrow, and report the many kinds of errors that it raises for broken files."""
    try:
        import pyarrow as pa
    except ImportError as error:
        needed = "Parquet and Arrow files need pyarrow: pip install 'rabbit-chx[arrow]'"
        raise MissingDependency(needed) from error
    try:
        yield pa
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InvalidValue(name, str(error).partition("\n")[0], expected) from None


_READERS: Final[dict[str, Callable[[IO[bytes], str], Iterator[Columns]]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "arrow": _arrow,
}


@dataclass(frozen=True)
class Picker:
    """Which columns become body, key, headers and properties."""

    body: str | None = None
    """None: the whole row as JSON, or the unchanged line of a JSON lines file."""
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Header name -> column."""
    properties: dict[str, str] = field(default_factory=dict)
    """Property name -> column."""

    def batches(self, source: Iterable[Columns], name: str) -> Iterator[RowBatch]:
        """Yield all batches of a file, numbered from row 1; a file without rows is an error."""
        row = 1
        for columns in source:
            count = len(next(iter(columns.values())))
            if row > 1:  # by now, every column is known, but none of these JSON lines may have it
                for column in (self.body, self.key, *self.headers.values(), *self.properties.values()):
                    if column is not None:
                        columns.setdefault(column, [None] * count)
            yield self.batch(columns, row, name)
            row += count
        if row == 1:
            raise InvalidValue(name, "no rows", "at least one row")

    def batch(self, columns: Columns, first_row: int, name: str) -> RowBatch:
        """Select the columns of a batch."""
        headers = None
        if self.headers:
            picked = [_column(columns, column, name) for column in self.headers.values()]
            rows = zip(*(map(_in_utc, values) for values in picked), strict=True)
            headers = [dict(zip(self.headers, row, strict=True)) for row in rows]
        return RowBatch(
            self._bodies(columns, first_row, name),
            "" if self.key is None else _texts(columns, self.key, first_row, name),
            headers,
            {
                prop: [
                    _moment(value) if prop == "timestamp" else value
                    for value in _column(columns, column, name)
                ]
                for prop, column in self.properties.items()
            },
            first_row,
        )

    def _bodies(self, columns: Columns, first_row: int, name: str) -> list[bytes]:
        if self.body is not None:
            texts = _texts(columns, self.body, first_row, name)
            return [_bytes(text, self.body, row, name) for row, text in enumerate(texts, first_row)]
        if _LINE in columns:
            return columns[_LINE]
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [_as_json(fields, row, name) for row, fields in enumerate(rows, first_row)]


def _as_json(fields: dict[str, Any], row: int, name: str) -> bytes:
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, default=_json_value).encode()
    except ValueError as error:
        hint = "Convert the column, or pass --body-column"
        raise InvalidValue(f"row {row} of {name}", Unquoted(error), "values that JSON has", hint) from None


def _json_value(value: Any) -> str:
    """The text of a value that JSON lacks, such as a time."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _in_utc(value: Any) -> Any:
    """Return a time without a zone as one in UTC."""
    naive = isinstance(value, datetime) and value.utcoffset() is None
    return value.replace(tzinfo=UTC) if naive else value


def _moment(value: Any) -> Any:
    """Return whole seconds since 1970, which files of JSON have, as a time."""
    found = moment(value) if type(value) is int else _in_utc(value)
    return value if found is None else found


def _column(columns: Columns, column: str, name: str) -> list[Any]:
    known = [found for found in columns if found != _LINE]
    if column not in known:
        raise InvalidValue(f"column of {name}", column, ", ".join(known), did_you_mean(column, known))
    return columns[column]


def _texts(columns: Columns, column: str, first_row: int, name: str) -> list[Any]:
    """The values of a column, all of them text or bytes."""
    values = _column(columns, column, name)
    for row, value in enumerate(values, first_row):
        if not isinstance(value, (str, bytes)):
            got = "null" if value is None else type(value).__name__
            hint = "Convert the column to text first"
            raise InvalidValue(f"column {column!r} in row {row} of {name}", got, "text or bytes", hint)
    return values


def _bytes(text: str | bytes, column: str, row: int, name: str) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:  # JSON can express lone surrogates
        what = f"column {column!r} in row {row} of {name}"
        raise InvalidValue(what, text, "text without lone surrogates") from None
