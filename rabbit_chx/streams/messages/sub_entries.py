"""The entries of a chunk: messages, and sub-entry batches, which contain messages of one publisher and may be compressed.

A message consists of its size (32 bits) and its bytes. In a batch, the top bit of the first byte is set. Three bits for the
compression follow, four reserved bits, the number of messages (16 bits), the sizes of the data before and after compression
(32 bits each), and the data.

Data that decompresses to another size than announced is an error, and so is a chunk that announces too much: a publisher can
compress gigabytes of zeros to a few kilobytes, and each reader would need the memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

from rabbit_chx.errors import MissingDependency

SIZE: Final = struct.Struct(">I")
_BATCH: Final = struct.Struct(">BHII")
_IS_BATCH_AS_SIZE: Final = 1 << 31
_MOST_DECOMPRESSED: Final = 24 << 20
"""The maximum number of decompressed bytes that are held at once, unless the reader sets another. Batches of publishers fit into a frame, 1 MiB by default."""
_ALWAYS_DECOMPRESSED: Final = 16 << 20
_MOST_TIMES: Final = 250
"""How many times its stored size a piece of a chunk may decompress to, if that is more than the bytes that are always allowed."""
_SNAPPY_PIECE: Final = 1 << 16


class Damaged(Exception):
    """The entries are not valid. The caller adds the stream and the offset."""

    hint = ""


class TooLarge(Damaged):
    """The entries may be valid, but decompress to more than their reader accepts."""

    hint = "StreamReader(max_batch_bytes=...) changes the limit"


class Decompressed:
    """Decompressed batches, to be appended to the data of the chunks."""

    def __init__(self, end: int, max_bytes: int | None = None) -> None:
        self.end: int = end
        """Where the next piece begins."""
        self.pieces: list[bytes] = []
        self._begin = end
        self._max_bytes = max_bytes
        self._most = self._allowed = 0

    @property
    def size(self) -> int:
        """The number of decompressed bytes."""
        return self.end - self._begin

    def begin_chunk(self, stored: int) -> None:
        """Allow as many bytes as a chunk of this stored size may have."""
        proportionate = min(max(_ALWAYS_DECOMPRESSED, _MOST_TIMES * stored), _MOST_DECOMPRESSED)
        self._allowed = proportionate if self._max_bytes is None else self._max_bytes
        self._most = self.size + self._allowed

    def check(self, size: int) -> None:
        """Check that a piece of this size is allowed, before it is decompressed."""
        if self.size + size > self._most:
            raise TooLarge(f"the sub-entry batches decompress to more than {self._allowed} bytes")

    def add(self, piece: bytes) -> int:
        """Add a piece and return its start."""
        start = self.end
        self.pieces.append(piece)
        self.end += len(piece)
        return start


def sized_records(data: bytes, at: int, end: int, count: int, spans: list[int]) -> tuple[int, int]:
    """Append starts and stops of messages to ``spans``, up to ``count`` messages or the first batch.

    Returns:
        The number of messages, and the start of the next entry.
    """
    size_at = SIZE.unpack_from
    for found in range(count):
        start = at + SIZE.size
        if start > end:
            raise Damaged(f"{count - found} entries are missing")
        (size,) = size_at(data, at)
        if size >= _IS_BATCH_AS_SIZE:
            return found, at
        at = start + size
        if at > end:
            raise Damaged(f"a message of {size} bytes exceeds the {end - start} remaining bytes")
        spans += (start, at)
    return count, at


def batch_records(data: bytes, at: int, end: int, spans: list[int], decompressed: Decompressed) -> int:
    """Append the messages of the sub-entry batch at ``at`` to ``spans`` and return the start of the next entry."""
    start = at + _BATCH.size
    if start > end:
        raise Damaged("a sub-entry batch is incomplete")
    kind, count, uncompressed, size = _BATCH.unpack_from(data, at)
    stop: int = start + size
    if stop > end:
        raise Damaged(f"a sub-entry batch of {size} bytes exceeds the {end - start} remaining bytes")
    compression = kind >> 4 & 0x07
    if not count:
        return stop  # no offset would name what is wrong in it
    if not compression:
        _fill(sized_records(data, start, stop, count, spans), count, stop)
        return stop
    if compression not in _DECOMPRESS:
        raise Damaged(f"a sub-entry batch has the unknown compression {compression}")
    decompressed.check(uncompressed)
    plain = _DECOMPRESS[compression](data[start:stop], uncompressed)
    inner: list[int] = []
    _fill(sized_records(plain, 0, len(plain), count, inner), count, len(plain))
    base = decompressed.add(plain)
    spans += [base + place for place in inner]
    return stop


def entry_at(data: memoryview, at: int) -> tuple[int, int, int]:
    """Return the numbers of messages and of bytes of the entry at ``at``, decompressed, and the start of the next entry."""
    (size,) = SIZE.unpack_from(data, at)
    if size < _IS_BATCH_AS_SIZE:
        return 1, size, at + SIZE.size + size
    _, count, uncompressed, size = _BATCH.unpack_from(data, at)
    return count, uncompressed, at + _BATCH.size + size


def _fill(found: tuple[int, int], count: int, stop: int) -> None:
    if found != (count, stop):
        raise Damaged("the messages of a sub-entry batch do not fill it")


def _gunzip(data: bytes, size: int) -> bytes:
    unzip = zlib.decompressobj(wbits=31)
    try:
        # One byte more than expected detects longer data without unpacking a decompression bomb.
        plain = unzip.decompress(data, size + 1)
    except zlib.error:
        raise Damaged("a sub-entry batch is not valid gzip") from None
    return _of_size(plain, size)


def _by_arrow(codec: str) -> Callable[[bytes, int], bytes]:
    def decompress(data: bytes, size: int) -> bytes:
        try:
            import pyarrow as pa
        except ImportError:
            raise _missing(codec, "pyarrow") from None
        try:
            plain = pa.CompressedInputStream(pa.py_buffer(data), codec).read(size + 1)
        except (OSError, pa.ArrowException):
            raise Damaged(f"a sub-entry batch is not valid {codec}") from None
        return _of_size(bytes(plain), size)

    return decompress


def _unsnappy(data: bytes, size: int) -> bytes:
    try:
        import snappy
    except ImportError:
        raise _missing("snappy", "python-snappy") from None
    stream, plain = snappy.StreamDecompressor(), bytearray()
    try:
        # Piece by piece, because python-snappy takes no limit.
        for at in range(0, len(data), _SNAPPY_PIECE):
            plain += stream.decompress(data[at : at + _SNAPPY_PIECE])
            if len(plain) > size:
                break
    except Exception:  # noqa: BLE001 - the errors of python-snappy share no base class
        raise Damaged("a sub-entry batch is not valid snappy") from None
    return _of_size(bytes(plain), size)


def _missing(codec: str, package: str) -> MissingDependency:
    return MissingDependency(
        f"the stream has sub-entry batches compressed with {codec}, which need {package}: pip install {package}"
    )


def _of_size(plain: bytes, size: int) -> bytes:
    if len(plain) != size:
        at_least = "more than " if len(plain) > size else ""
        shown = f"{at_least}{min(len(plain), size)}"
        raise Damaged(f"a sub-entry batch decompresses to {shown} bytes, expected {size}")
    return plain


_DECOMPRESS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    1: _gunzip,
    2: _unsnappy,
    3: _by_arrow("lz4"),
    4: _by_arrow("zstd"),
}
"""The compressions of the stream protocol. lz4 and snappy use their frame formats."""
