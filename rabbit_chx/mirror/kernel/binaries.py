"""Convert columns of keys of any kind to concatenated bytes and their offsets.

This is Arrow's own layout, so Arrow columns are read in place without a copy; other columns are joined
once. pyarrow is imported only when a column is an Arrow column or offers Arrow's protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.base.text import too_long
from rabbit_chx.errors import InvalidValue, Unquoted

_HINT = "Cast the column to strings as its publisher does, or fill the gaps first"
_EXPECTED = "str (sent as UTF-8) or bytes"


@dataclass(frozen=True, slots=True)
class Binaries:
    """``n`` byte strings in one buffer: row ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int32] | NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def binaries(column: Any, *, what: str = "key", limit: int | None = None) -> Iterator[Binaries]:
    """Yield the column in one or more pieces; a value of more than ``limit`` bytes is an error.

    Errors call a value ``what`` and give its row.
    """
    first_row = 0
    for piece in _pieces(column, what):
        if limit is not None:
            _check_lengths(piece, limit, what, first_row)
        first_row += len(piece)
        yield piece


def is_text(column: Any) -> bool:
    """Return whether every value of the column is a str, not counting nulls in an Arrow column."""
    if _is_arrow(column):
        kind = str(getattr(column, "type", ""))
        return kind.startswith(
            ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
        )
    if isinstance(column, np.ndarray) and column.dtype.kind in "SU":
        return bool(column.dtype.kind == "U")
    return isinstance(column, (list, tuple)) and all(isinstance(value, str) for value in column)


def _check_lengths(piece: Binaries, limit: int, what: str, first_row: int) -> None:
    lengths = np.diff(piece.offsets)
    if len(lengths) and lengths.max() > limit:
        row = int(np.argmax(lengths > limit))
        raise InvalidValue(
            f"{what} in row {first_row + row}",
            Unquoted(too_long(piece[row], lengths[row])),
            f"at most {limit} bytes of UTF-8",
            "AMQP cannot carry a longer one",
        )


def _pieces(column: Any, what: str) -> Iterator[Binaries]:
    if isinstance(column, (str, bytes, bytearray, memoryview)):
        raise InvalidValue(
            "column",
            column,
            "a list, NumPy array or Arrow column of keys",
            "Put a single key into a list, or use route()",
        )
    if isinstance(column, Binaries):
        yield column
    elif _is_arrow(column):
        yield from _from_arrow(column, what)
    elif isinstance(column, np.ndarray) and column.dtype.kind in "SU" and column.ndim == 1 and column.nbytes:
        yield _from_numpy(column, what)
    else:
        yield from_list(column if isinstance(column, (list, tuple)) else list(column), what)


def from_list(keys: Sequence[str | bytes], what: str = "key") -> Binaries:
    """Join a list of str, bytes, or a mixture of both."""
    try:
        # The usual case, ASCII text only, takes two passes in C.
        text = "".join(keys)  # type: ignore[arg-type]
        if text.isascii():
            return _joined(text.encode(), map(len, keys), len(keys))
    except TypeError:
        pass
    encoded = [_encode(key, row, what) for row, key in enumerate(keys)]
    return _joined(b"".join(encoded), map(len, encoded), len(encoded))


def _encode(key: object, row: int, what: str) -> bytes:
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                f"{what} in row {row}",
                key,
                "text that UTF-8 can express, so no lone surrogates",
                "Pass the raw bytes instead",
            ) from None
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    raise InvalidValue(f"{what} in row {row}", key, _EXPECTED, _HINT)


def _joined(data: bytes, lengths: Iterable[int], count: int) -> Binaries:
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    return Binaries(np.frombuffer(data, np.uint8), offsets)


def _from_numpy(column: NDArray[Any], what: str) -> Binaries:
    """Convert fixed-width bytes or text, in which NumPy treats trailing NULs as padding."""
    if column.dtype.kind == "U":
        width = column.dtype.itemsize // 4
        points = np.ascontiguousarray(column).view(np.uint32).reshape(len(column), width)
        if points.size and points.max() > 0x7F:
            return from_list(column.tolist(), what)
        column = points.astype(np.uint8).view(f"S{width}").reshape(len(column))
    lengths = np.strings.str_len(column) if hasattr(np, "strings") else np.char.str_len(column)
    rows = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Binaries(rows[np.arange(rows.shape[1]) < lengths[:, None]], offsets)


def _is_arrow(column: Any) -> bool:
    if type(column).__module__.partition(".")[0] == "pyarrow":
        return True
    # Series of polars and pandas expose their memory through Arrow's C data interface.
    return hasattr(column, "__arrow_c_stream__") or hasattr(column, "__arrow_c_array__")


def _from_arrow(column: Any, what: str) -> Iterator[Binaries]:
    try:
        import pyarrow as pa
    except ImportError:  # a series without pyarrow: slower, but the same result
        yield from_list(list(column), what)
        return
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        column = pa.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else pa.array(column)
    first_row = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        yield _from_arrow_chunk(pa, chunk, what, first_row)
        first_row += len(chunk)


def _from_arrow_chunk(pa: Any, chunk: Any, what: str, first_row: int) -> Binaries:
    if chunk.null_count:
        row = first_row + chunk.is_null().index(pa.scalar(value=True)).as_py()
        raise InvalidValue(f"{what} in row {row}", None, _EXPECTED, _HINT)
    if not len(chunk):  # an empty chunk may have any type
        return Binaries(np.empty(0, np.uint8), np.zeros(1, np.int32))
    types = pa.types
    kind = chunk.type
    if types.is_fixed_size_binary(kind):
        width = kind.byte_width
        offsets = (np.arange(len(chunk) + 1, dtype=np.int64) + chunk.offset) * width
        return Binaries(_bytes(chunk.buffers()[1]), offsets)
    if types.is_dictionary(kind):
        return _from_arrow_chunk(pa, chunk.dictionary_decode(), what, first_row)
    if str(kind) in {"string_view", "binary_view"}:
        chunk = chunk.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
        kind = chunk.type
    if types.is_large_string(kind) or types.is_large_binary(kind):
        width_type: Any = np.int64
    elif types.is_string(kind) or types.is_binary(kind):
        width_type = np.int32
    else:
        raise InvalidValue(f"Arrow type of {what}", str(kind), "string or binary, large or not", _HINT)
    _, offsets_buffer, data_buffer = chunk.buffers()
    offsets = np.frombuffer(offsets_buffer, width_type)[chunk.offset : chunk.offset + len(chunk) + 1]
    return Binaries(_bytes(data_buffer), offsets)


def _bytes(buffer: Any) -> NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)
